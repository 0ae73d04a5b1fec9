//! Moves bytes from one socket to another by way of a pipe, inside the kernel: pages change hands
//! and nothing is copied.
//!
//! A pipe costs two descriptors and one more system call per piece than a buffer does, so it is for
//! bulk. It is lent while bytes are in it. A worker has only so many; a connection that gets none
//! copies.

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Context, Poll, ready};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Most bytes in a pipe. The kernel holds these bytes when their reader has stopped.
pub const PIPE_BYTES: usize = 256 * 1024;
/// Pipes a worker has at most, each with two descriptors.
const MOST: usize = 64;
/// Empty pipes it keeps between turns: a pipe is rarely held for longer than one.
const KEEP: usize = 4;

struct Pool {
    free: Vec<Ends>,
    /// The number of pipes, free or lent.
    open: usize,
}

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool { free: Vec::new(), open: 0 }) };
}

struct Ends {
    read: OwnedFd,
    write: OwnedFd,
}

impl Ends {
    fn make() -> Option<Self> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        // Refused to users with many pipes. A smaller one does as well, in smaller pieces.
        let _ = fcntl_setpipe_size(&write, PIPE_BYTES);
        Some(Self { read, write })
    }
}

/// Closes the pipes that lie idle.
pub fn trim() {
    POOL.with_borrow_mut(|pool| {
        pool.open -= pool.free.len();
        pool.free = Vec::new();
    });
}

/// A pipe, lent to one direction of a connection.
pub struct SplicePipe {
    /// It is `None` only while the pipe is dropped.
    ends: Option<Ends>,
    held: usize,
}

impl SplicePipe {
    /// A pipe, or `None`: as many are in use as there may be, or the process has no descriptors.
    pub fn take() -> Option<Self> {
        POOL.with_borrow_mut(|pool| {
            let ends = match pool.free.pop() {
                Some(ends) => ends,
                None if pool.open >= MOST => return None,
                None => {
                    let ends = Ends::make()?;
                    pool.open += 1;
                    ends
                }
            };
            let ends = Some(ends);
            Some(Self { ends, held: 0 })
        })
    }

    /// Whether the pipe is empty.
    pub fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// Takes the bytes that a socket has received into the empty pipe. Returns 0 when there are
    /// none, when its peer has finished sending, or before urgent data; a read tells these cases
    /// apart. (With bytes in the pipe it would not even be known which of the two to wait for.)
    ///
    /// # Errors
    /// Those of a read; and see [`is_refused`].
    pub fn poll_fill(&mut self, cx: &mut Context<'_>, from: &TcpStream) -> Poll<io::Result<usize>> {
        let Some(ends) = self.ends.as_ref().filter(|_| self.held == 0) else {
            return Poll::Ready(Err(io::ErrorKind::ResourceBusy.into()));
        };
        ready!(from.poll_read_ready(cx))?;
        // `try_io` does not fit here: it would take "nothing" for the socket's word and wait for
        // more to come.
        Poll::Ready(match step(from, &ends.write, PIPE_BYTES) {
            Ok(count) => {
                self.held = count;
                Ok(count)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            Err(error) => Err(error),
        })
    }

    /// Sends some of what is in it, and says how much.
    ///
    /// # Errors
    /// Those of a write.
    pub fn poll_drain(&mut self, cx: &mut Context<'_>, to: &TcpStream) -> Poll<io::Result<usize>> {
        let Some(ends) = self.ends.as_ref().filter(|_| self.held > 0) else {
            return Poll::Ready(Ok(0));
        };
        loop {
            ready!(to.poll_write_ready(cx))?;
            let moved = to.try_io(Interest::WRITABLE, || step(&ends.read, to, self.held));
            match moved {
                Ok(count) => {
                    self.held = self.held.saturating_sub(count);
                    return Poll::Ready(Ok(count));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl Drop for SplicePipe {
    fn drop(&mut self) {
        // A task that outlives the thread-local pool (process exit) just closes its pipe.
        let _ = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            match self.ends.take() {
                Some(ends) if self.held == 0 && pool.free.len() < KEEP => pool.free.push(ends),
                _ => pool.open -= 1,
            }
        });
    }
}

fn step(from: impl AsFd, to: impl AsFd, most: usize) -> io::Result<usize> {
    let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
    loop {
        match splice(&from, None, &to, None, most, flags) {
            Err(Errno::INTR) => {}
            done => return Ok(done?),
        }
    }
}

/// The kernel, or a confinement of this process, does not let it splice from this socket: no byte
/// has moved, and copying will do.
pub fn is_refused(error: &io::Error) -> bool {
    let refusals = [Errno::INVAL, Errno::NOSYS, Errno::PERM, Errno::ACCESS];
    Errno::from_io_error(error).is_some_and(|errno| refusals.contains(&errno))
}

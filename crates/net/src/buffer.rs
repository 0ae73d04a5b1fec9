//! Byte buffers that belong to the worker and are lent to a connection while it has bytes in hand.
//!
//! An idle connection owns no buffer: it takes one when bytes can be read and gives it back when
//! they are used up. The pool is last-in first-out, so the buffer just returned is still in cache.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Capacity of a pooled buffer: one TLS record (16,645 bytes) less a byte, and room to read on
/// behind it, so that it need not grow. Also a size class of the allocator.
pub const BUFFER_BYTES: usize = 20 * 1024;
/// Least room for a read.
const READ_BYTES: usize = 3 * 1024;
/// Bytes of free buffers a worker keeps. More are given back to the allocator at once.
const POOL_BYTES: usize = 16 * 1024 * 1024;
/// A larger buffer than this is not kept. It covers what one turn of a busy shared connection seals.
const KEEP_BYTES: usize = 160 * 1024;
/// Larger buffers a worker keeps. They are lent for a moment each, and only to those who ask for
/// the room: lent to everyone, they would soon be the storage of every small message.
const KEEP_LARGE: usize = 4;

struct Pool {
    free: Vec<Vec<u8>>,
    large: Vec<Vec<u8>>,
    /// Capacity of all in `free`; `large` is bounded by its number.
    bytes: usize,
    /// Fewest free ones since the last `trim`: so many were not needed.
    fewest: usize,
}

thread_local! {
    static POOL: RefCell<Pool> = const {
        RefCell::new(Pool { free: Vec::new(), large: Vec::new(), bytes: 0, fewest: 0 })
    };
}

fn take_storage() -> Vec<u8> {
    let free = POOL.with_borrow_mut(|pool| {
        let storage = pool.free.pop()?;
        pool.bytes -= storage.capacity();
        pool.fewest = pool.fewest.min(pool.free.len());
        Some(storage)
    });
    free.unwrap_or_else(|| Vec::with_capacity(BUFFER_BYTES))
}

fn take_large(wanted: usize) -> Vec<u8> {
    let found = POOL.with_borrow_mut(|pool| {
        let place = pool.large.iter().position(|s| s.capacity() >= wanted)?;
        Some(pool.large.swap_remove(place))
    });
    found.unwrap_or_else(|| Vec::with_capacity(wanted.next_power_of_two()))
}

fn give_back(mut storage: Vec<u8>) {
    if storage.capacity() < BUFFER_BYTES || storage.capacity() > KEEP_BYTES {
        return;
    }
    storage.clear();
    // A task that outlives the thread-local pool (process exit) just frees its buffer.
    let _ = POOL.try_with(|pool| {
        let mut pool = pool.borrow_mut();
        if storage.capacity() >= 2 * BUFFER_BYTES {
            if pool.large.len() < KEEP_LARGE {
                pool.large.push(storage);
            }
            return;
        }
        if pool.bytes + storage.capacity() <= POOL_BYTES {
            pool.bytes += storage.capacity();
            pool.free.push(storage);
        }
    });
}

/// Frees the buffers that nobody has needed since the last call. Without it the pool would keep
/// what the busiest moment needed; with a small fixed pool every busy moment would allocate.
pub fn trim() {
    POOL.with_borrow_mut(|pool| {
        // The ones in front have been free for the longest time.
        let unused = pool.free.drain(..pool.fewest);
        pool.bytes -= unused.map(|storage| storage.capacity()).sum::<usize>();
        pool.fewest = pool.free.len();
        pool.large = Vec::new();
        if pool.free.is_empty() {
            pool.free = Vec::new();
        }
    });
}

/// Bytes received and not yet used, in pooled storage.
#[derive(Debug, Default)]
pub struct Buf {
    storage: Vec<u8>,
    start: usize,
}

impl Buf {
    /// A buffer without storage.
    pub const fn new() -> Self {
        Self {
            storage: Vec::new(),
            start: 0,
        }
    }

    /// The unused bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.storage.get(self.start..).unwrap_or_default()
    }

    /// The unused bytes, to be changed in place.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.storage.get_mut(self.start..).unwrap_or_default()
    }

    /// Number of unused bytes.
    pub fn len(&self) -> usize {
        self.storage.len() - self.start
    }

    /// No unused bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Marks the first `count` bytes as used. Storage goes back to the worker when none is left.
    pub fn consume(&mut self, count: usize) {
        self.start = (self.start + count).min(self.storage.len());
        if self.start == self.storage.len() {
            self.release();
        }
    }

    /// Drops all bytes and gives the storage back.
    pub fn release(&mut self) {
        self.start = 0;
        if self.storage.capacity() > 0 {
            give_back(std::mem::take(&mut self.storage));
        }
    }

    /// The storage to append to, taken from the worker if there is none.
    pub fn storage(&mut self) -> &mut Vec<u8> {
        if self.storage.capacity() == 0 {
            self.storage = take_storage();
        }
        &mut self.storage
    }

    /// Appends bytes. Used ones make way first, so that a buffer that never empties does not grow
    /// with everything that ever passed through it.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.make_room(bytes.len());
        self.storage.extend_from_slice(bytes);
    }

    /// Shortens to the first `len` unused bytes.
    pub fn truncate(&mut self, len: usize) {
        if len == 0 {
            self.release();
        } else {
            self.storage.truncate(self.start + len);
        }
    }

    /// Makes room for at least `wanted` more bytes by moving what is there to the front first.
    pub fn make_room(&mut self, wanted: usize) {
        let start = self.start;
        let storage = self.storage();
        if storage.capacity() - storage.len() >= wanted {
            return;
        }
        if start > 0 {
            storage.copy_within(start.., 0);
            storage.truncate(storage.len() - start);
            self.start = 0;
        }
        let needed = self.storage.len() + wanted;
        if self.storage.capacity() < needed {
            let mut larger = take_large(needed.max(2 * BUFFER_BYTES));
            larger.extend_from_slice(&self.storage);
            give_back(std::mem::replace(&mut self.storage, larger));
        }
    }

    /// Reads once into the free part; keeps no storage when there is nothing to read.
    ///
    /// tokio clears readiness itself when a read leaves part of the buffer free, so a message
    /// costs one `recv`, not two.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn poll_fill<R: AsyncRead + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut R,
    ) -> Poll<io::Result<usize>> {
        self.make_room(READ_BYTES);
        let result = pin!(stream.read_buf(&mut self.storage)).poll(cx);
        if self.is_empty() {
            self.release();
        }
        result
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_goes_back_when_used_up() {
        let mut buf = Buf::new();
        buf.extend_from_slice(b"hello world");
        let storage = buf.as_slice().as_ptr();
        buf.consume(6);
        assert_eq!(buf.as_slice(), b"world");
        buf.consume(5);
        assert!(buf.is_empty());
        assert_eq!(
            buf.storage.capacity(),
            0,
            "an empty buffer holds no storage"
        );
        let mut next = Buf::new();
        next.extend_from_slice(b"x");
        assert_eq!(
            next.as_slice().as_ptr(),
            storage,
            "the last one returned is used first"
        );
    }

    #[test]
    fn what_was_not_needed_is_freed_and_what_was_is_kept() {
        let buffers = |count| {
            let mut all: Vec<_> = (0..count).map(|_| Buf::new()).collect();
            all.iter_mut().for_each(|buf| buf.extend_from_slice(b"x"));
        };
        let free = || POOL.with_borrow(|pool| (pool.free.len(), pool.bytes / BUFFER_BYTES));
        trim();
        trim();
        assert_eq!(free(), (0, 0));
        buffers(100);
        trim();
        assert_eq!(free(), (100, 100), "they were all in use");
        buffers(3);
        trim();
        assert_eq!(free(), (3, 3));
        buffers(2000);
        assert_eq!(free().0, POOL_BYTES / BUFFER_BYTES, "bounded");
    }

    #[test]
    fn large_storage_is_lent_only_for_large_contents() {
        let small = |buf: &Buf| buf.storage.capacity() == BUFFER_BYTES;
        let mut buf = Buf::new();
        buf.extend_from_slice(b"start ");
        buf.extend_from_slice(&[b'x'; 3 * BUFFER_BYTES]);
        assert_eq!(&buf.as_slice()[..8], b"start xx");
        let large = buf.as_slice().as_ptr();
        buf.release();
        let mut next = Buf::new();
        next.extend_from_slice(b"x");
        assert!(small(&next));
        let mut next = Buf::new();
        next.make_room(3 * BUFFER_BYTES);
        assert_eq!(next.storage.as_ptr(), large, "it is used again");
        let many: Vec<_> = (0..2 * KEEP_LARGE)
            .map(|_| {
                let mut buf = Buf::new();
                buf.make_room(3 * BUFFER_BYTES);
                buf
            })
            .collect();
        drop(many);
        assert_eq!(POOL.with_borrow(|pool| pool.large.len()), KEEP_LARGE);
    }

    #[test]
    fn make_room_moves_the_rest_to_the_front() {
        let mut buf = Buf::new();
        buf.extend_from_slice(&[b'a'; BUFFER_BYTES]);
        buf.consume(BUFFER_BYTES - 3);
        buf.make_room(1024);
        assert_eq!(buf.as_slice(), b"aaa");
        assert_eq!(buf.storage.capacity(), BUFFER_BYTES);
    }
}

//! Decides whether the proxy has room for another connection from downstream: descriptors, memory, and the limit of
//! the mesh.

use crate::context::admission::Carried;
use crate::context::memory_limit;
use crate::serve::spread::{self, CountedStream};
use crate::telemetry::reason::{Failure, Reason};
use crate::worker::Worker;
use std::fmt;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::OnceLock;

/// Most descriptors kept for purposes other than downstream connections: upstreams, the controller,
/// the operator.
const RESERVE: u64 = 256;

/// Why a connection is not served.
pub enum TooMany {
    /// The limit of the mesh is reached.
    Configured(u32),
    /// The remaining descriptors are reserved.
    Descriptors(usize),
    /// No descriptor is left.
    Exhausted,
    /// The remaining memory is reserved.
    Memory,
}

impl fmt::Display for TooMany {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Configured(most) => write!(
                f,
                "this proxy has {most} connections, as many as maxConnections of the mesh allows"
            ),
            Self::Descriptors(most) => write!(
                f,
                "this proxy has {most} connections, as many as its file descriptors allow; \
                 raise `ulimit -Hn`"
            ),
            Self::Memory => f.write_str(&memory_limit::refusal().detail),
            Self::Exhausted => f.write_str(
                "this proxy has no file descriptor for another connection; raise `ulimit -Hn`",
            ),
        }
    }
}

/// Says why the proxy has no room for another connection from downstream, where so many descriptors are in use.
pub fn too_many(worker: &Worker, descriptors: usize) -> Option<TooMany> {
    let configured = worker.config().snapshot.mesh.max_connections;
    if exceeds(configured) {
        return Some(TooMany::Configured(configured));
    }
    if memory_limit::is_short() {
        return Some(TooMany::Memory);
    }
    let room = Room::get();
    (descriptors >= room.most).then_some(TooMany::Descriptors(room.most))
}

/// Whether the proxy has as many connections as the mesh allows; 0: any number.
pub fn exceeds(configured: u32) -> bool {
    configured > 0 && spread::open_in_all() >= usize::try_from(configured).unwrap_or(usize::MAX)
}

/// Counts a connection that a sidecar at this address carries in a stream. Where there is no room, it takes the
/// place of others as a connection of its own does.
///
/// # Errors
/// Others have no more places than this address.
pub fn enter_stream(
    worker: &Worker,
    source: IpAddr,
    stream: Rc<dyn Carried>,
) -> Result<CountedStream, Failure> {
    let room = Room::get();
    // The application's side of each stream takes a descriptor, perhaps only soon.
    let open = spread::open_in_all();
    let descriptors = match open < room.most / 4 {
        true => 0,
        false => descriptors().max(open + OWN),
    };
    if let Some(why) = too_many(worker, descriptors) {
        worker.metrics.internal(|i| i.shed += 1);
        if descriptors >= room.hard || worker.admission.make_room(source).is_none() {
            return Err(Failure::new(Reason::Overload, why.to_string()));
        }
    }
    let held = worker.admission.enter_stream(source, stream);
    Ok(CountedStream::new(held))
}

/// Returns the least number of descriptors in use, where no new one is at hand.
fn descriptors() -> usize {
    let probe = std::fs::File::open("/dev/null");
    probe.map_or(usize::MAX, |probe| number(&probe))
}

/// Returns the least number of descriptors in use: the kernel gives the lowest number that is free.
pub fn number(descriptor: &impl AsRawFd) -> usize {
    usize::try_from(descriptor.as_raw_fd()).unwrap_or(usize::MAX)
}

/// Descriptors that are nobody's connection: listeners, event queues, files.
const OWN: usize = 32;

/// How many descriptors may be in use when a connection is served.
#[derive(Clone, Copy)]
pub struct Room {
    /// Limit without displacing another connection.
    pub most: usize,
    /// Limit while displaced connections are closing.
    pub hard: usize,
}

/// Limits derived from the process's own, which is raised before the first connection comes.
static ROOM: OnceLock<Room> = OnceLock::new();

impl Room {
    /// Returns the limits of this process.
    pub fn get() -> Self {
        *ROOM.get_or_init(|| {
            use rustix::process::{Resource, getrlimit};
            let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
            let reserve = RESERVE.min(limit / 4);
            let within = |reserve| usize::try_from(limit - reserve).unwrap_or(usize::MAX);
            Self {
                most: within(reserve),
                hard: within(reserve / 2),
            }
        })
    }
}

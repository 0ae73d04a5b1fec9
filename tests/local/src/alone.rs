//! Locks between tests that would disturb each other, each of which may run in a process of its own.

use crate::note_wait;
use std::fs::File;
use std::time::Instant;

/// A lock, held until it is dropped or the process ends.
#[must_use]
pub struct Alone(#[expect(dead_code)] File);

/// Waits until no other test holds gigabytes in sockets. Past a limit for all of them together (`net.ipv4.tcp_mem`), the
/// kernel resets connections of tests that have nothing to do with it.
pub fn full_sockets() -> Alone {
    alone("full-sockets")
}

/// Waits until no other test on this machine holds the lock of this name, and takes it.
pub fn alone(name: &str) -> Alone {
    let path = std::env::temp_dir().join(format!("tulle-test-{name}.lock"));
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        // Another user's: to read it is enough for a lock.
        .or_else(|_| File::open(&path))
        .unwrap();
    let begun = Instant::now();
    file.lock().unwrap();
    note_wait(&format!("the lock `{name}`"), begun.elapsed());
    Alone(file)
}

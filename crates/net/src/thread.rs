//! Starts threads, all by one function: each instance of the standard library's takes some 2 KB of the program.

use std::io;

/// Starts a thread that nobody waits for.
///
/// # Errors
/// The system has no room for another one.
pub fn start(name: String, run: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    let thread = std::thread::Builder::new().name(name);
    thread.spawn(run).map(drop)
}

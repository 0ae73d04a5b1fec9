//! Ports that no other test uses, in this process or another.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::net::{Ipv4Addr, TcpListener};

/// Below the kernel's own choice for outgoing connections (32768…), which could take a port
/// between the test's look at it and the proxy's bind.
const FIRST: u16 = 20_000;
const LAST: u16 = 32_000;

/// The next port on 127.0.0.1 that nothing listens on. A counter in a file is shared by all tests.
pub fn free_port() -> u16 {
    let path = std::env::temp_dir().join("tulle-test-ports");
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .unwrap();
    file.lock().unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    let mut port = text.trim().parse().unwrap_or(FIRST);
    loop {
        port = if (FIRST..LAST).contains(&port) {
            port + 1
        } else {
            FIRST
        };
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            break;
        }
    }
    file.rewind().unwrap();
    write!(file, "{port:>8}").unwrap();
    port
}

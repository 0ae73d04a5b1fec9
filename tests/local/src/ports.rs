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
    free_ports(1)
}

/// The first of so many such ports in a row.
pub fn free_ports(count: u16) -> u16 {
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
    let last: u16 = text.trim().parse().unwrap_or(LAST);
    let mut first = last.wrapping_add(1);
    loop {
        if !(FIRST..=LAST - count).contains(&first) {
            first = FIRST;
        }
        let is_free = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
        match (first..first + count).find(|port| !is_free(*port)) {
            Some(taken) => first = taken + 1,
            None => break,
        }
    }
    file.rewind().unwrap();
    write!(file, "{:>8}", first + count - 1).unwrap();
    first
}

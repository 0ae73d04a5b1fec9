//! A wire between two sidecars, which a test can cut or have slow.

use crate::pause;
use rustix::net::{self, AddressFamily, SocketType, sockopt};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// Carries connections to an address until it is cut; then carries new ones.
pub struct Wire {
    /// Where it takes them.
    pub address: SocketAddr,
    carried: Arc<Mutex<Vec<TcpStream>>>,
}

impl Wire {
    /// A wire that is as fast as this machine.
    pub fn to(target: SocketAddr) -> Self {
        Self::new(target, TcpStream::connect, carry)
    }

    /// A wire that is slow towards whoever connects, and has room for little on its way.
    pub fn slow(target: SocketAddr) -> Self {
        Self::new(target, dial_with_little_room, carry_slowly)
    }

    fn new(
        target: SocketAddr,
        dial: fn(SocketAddr) -> io::Result<TcpStream>,
        carry_back: fn(&TcpStream, &TcpStream),
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let carried = Arc::new(Mutex::new(Vec::new()));
        let ends = carried.clone();
        // Lives as long as the test.
        thread::spawn(move || {
            for from in listener.incoming().flatten() {
                let Ok(to) = dial(target) else {
                    continue;
                };
                ends.lock().unwrap().extend([clone(&from), clone(&to)]);
                let (back_from, back_to) = (clone(&to), clone(&from));
                thread::spawn(move || carry(&from, &to));
                thread::spawn(move || carry_back(&back_from, &back_to));
            }
        });
        Self { address, carried }
    }

    /// Ends what it carries.
    pub fn cut(&self) {
        for end in self.carried.lock().unwrap().drain(..) {
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

fn clone(stream: &TcpStream) -> TcpStream {
    stream.try_clone().unwrap()
}

fn dial_with_little_room(target: SocketAddr) -> io::Result<TcpStream> {
    let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
    sockopt::set_socket_recv_buffer_size(&socket, 16 * 1024)?;
    net::connect(&socket, &target)?;
    Ok(socket.into())
}

fn carry(mut from: &TcpStream, mut to: &TcpStream) {
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}

fn carry_slowly(mut from: &TcpStream, mut to: &TcpStream) {
    let mut part = [0; 16 * 1024];
    while let Ok(count) = from.read(&mut part)
        && count > 0
        && to.write_all(&part[..count]).is_ok()
    {
        pause("a slow wire", Duration::from_millis(4));
    }
    let _ = to.shutdown(Shutdown::Write);
}

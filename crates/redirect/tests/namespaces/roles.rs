//! Roles of a process of this binary inside a namespace.

use rustix::net::{AddressFamily, SocketType, sockopt};
use std::ffi::OsString;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::Duration;
use tulle_redirect::{Cgroup, FilterBackend, LaunchSpec, Network, ProcessLimits, exec_in};

/// Plays the role the arguments ask for, if any.
pub(crate) fn play(arguments: &[String]) -> bool {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        [exec_in::SUBCOMMAND, ..] => {
            let Err(error) = exec_in::main(arguments[1..].iter().map(OsString::from));
            eprintln!("{error}");
            std::process::exit(1);
        }
        ["role", "listen", addresses @ ..] => listen(addresses),
        ["role", "dial", to, from @ ..] => println!("{}", dial(to, from.first().copied())),
        ["role", "leave", to] => println!("{}", leave(to)),
        ["role", "udp-echo", address] => udp_echo(address),
        ["role", "udp", to] => println!("{}", udp(to)),
        ["role", "resolve", name] => println!("{}", resolve(name)),
        ["role", "status"] => print!("{}", std::fs::read_to_string("/proc/self/status").unwrap()),
        ["role", "burn"] => burn(),
        ["role", "sleep"] => sleep(),
        ["role", "make-and-die", mesh] => make_and_die(mesh),
        ["role", "spawn-and-die", namespace] => spawn_and_die(namespace),
        _ => return false,
    }
    true
}

fn ready() {
    println!("ready");
    std::io::stdout().flush().unwrap();
}

fn sleep() {
    ready();
    loop {
        std::thread::sleep(Duration::from_secs(1000));
    }
}

/// Sends to who does not read, until no more can be sent. Returns how much that was; what is not on the way ends in the kernel.
fn leave(to: &str) -> usize {
    let mut stream = TcpStream::connect(to).unwrap();
    stream
        .set_write_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    let mut sent = 0;
    while let Ok(bytes) = stream.write(&[0; 4096]) {
        sent += bytes;
    }
    sent
}

/// IPv6 only for an IPv6 address, so that both can listen on one port.
fn bind(address: SocketAddr) -> TcpListener {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = rustix::net::socket(family, SocketType::STREAM, None).unwrap();
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true).unwrap();
    }
    sockopt::set_socket_reuseaddr(&socket, true).unwrap();
    rustix::net::bind(&socket, &address).unwrap();
    rustix::net::listen(&socket, 16).unwrap();
    TcpListener::from(socket)
}

/// Tells each caller the port that accepted it, and its original destination.
fn listen(addresses: &[&str]) {
    let listeners: Vec<TcpListener> = addresses.iter().map(|a| bind(a.parse().unwrap())).collect();
    for listener in listeners {
        std::thread::spawn(move || {
            let port = listener.local_addr().unwrap().port();
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let original = original_destination(&stream);
                let _ = write!(stream, "{port} for {original}");
            }
        });
    }
    sleep();
}

fn original_destination(stream: &TcpStream) -> String {
    let address = match stream.local_addr().unwrap() {
        SocketAddr::V4(_) => sockopt::ip_original_dst(stream).map(SocketAddr::from),
        SocketAddr::V6(_) => sockopt::ipv6_original_dst(stream).map(SocketAddr::from),
    };
    // Without rules the kernel tracks no connections, so there is no entry. With rules a connection
    // that was not redirected has the address it came to.
    match address {
        Ok(address) if address != stream.local_addr().unwrap() => address.to_string(),
        _ => "me".to_owned(),
    }
}

/// Returns the listener's answer, or the kind of error.
pub(crate) fn dial(to: &str, from: Option<&str>) -> String {
    let to: SocketAddr = to.parse().unwrap();
    let connect = || -> std::io::Result<String> {
        let family = if to.is_ipv4() {
            AddressFamily::INET
        } else {
            AddressFamily::INET6
        };
        let socket = rustix::net::socket(family, SocketType::STREAM, None)?;
        // The kernel's own timeout for an unanswered SYN is minutes.
        sockopt::set_socket_timeout(
            &socket,
            sockopt::Timeout::Send,
            Some(Duration::from_secs(5)),
        )?;
        if let Some(from) = from {
            let from: IpAddr = from.parse().unwrap();
            rustix::net::bind(&socket, &SocketAddr::from((from, 0)))?;
        }
        rustix::net::connect(&socket, &to)?;
        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    match connect() {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::Other => error.to_string(),
        Err(error) => format!("{:?}", error.kind()),
    }
}

fn udp_echo(address: &str) {
    let socket = UdpSocket::bind(address).unwrap();
    ready();
    let mut buffer = [0; 64];
    loop {
        let (length, from) = socket.recv_from(&mut buffer).unwrap();
        socket.send_to(&buffer[..length], from).unwrap();
    }
}

fn udp(to: &str) -> String {
    let to: SocketAddr = to.parse().unwrap();
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    // Only a connected socket gets errors.
    socket.connect(to).unwrap();
    let mut buffer = [0; 64];
    match socket.send(b"hello").and_then(|_| socket.recv(&mut buffer)) {
        Ok(length) => format!("{} from {to}", String::from_utf8_lossy(&buffer[..length])),
        Err(error) => format!("{:?}", error.kind()),
    }
}

fn resolve(name: &str) -> String {
    let mut found: Vec<String> = match (name, 0).to_socket_addrs() {
        Ok(addresses) => addresses.map(|a| a.ip().to_string()).collect(),
        Err(_) => return "unknown".to_owned(),
    };
    found.sort_unstable();
    found.dedup();
    found.join(" ")
}

fn burn() {
    ready();
    let mut number = 1_u64;
    loop {
        number = std::hint::black_box(number.wrapping_mul(3));
    }
}

fn make_and_die(mesh: &str) {
    let network = Network::new(mesh).unwrap();
    network.ensure().unwrap();
    for index in 0..3 {
        let workload = format!("w{index}");
        let namespace = network.add_workload(&workload, index).unwrap();
        let redirection = tulle_redirect::Redirection::default();
        tulle_redirect::apply_redirection(&namespace, FilterBackend::Nft, &redirection).unwrap();
        let limits = ProcessLimits {
            cpu_millis: Some(500),
            memory_bytes: Some(1 << 26),
        };
        let cgroup = Cgroup::create(mesh, &workload, &limits).unwrap();
        let spec = LaunchSpec {
            namespace: Some(namespace.name),
            cgroup: cgroup.directories().to_vec(),
            parent: None,
            ..LaunchSpec::default()
        };
        println!("{}", crate::world::start(&spec, &["sleep"]).detach());
    }
    // Dies like `kill -9`: nothing is dropped, nothing is cleaned up.
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
        .unwrap();
}

fn spawn_and_die(namespace: &str) {
    let spec = LaunchSpec {
        namespace: Some(namespace.to_owned()),
        ..LaunchSpec::default()
    };
    println!("{}", crate::world::start(&spec, &["sleep"]).detach());
}

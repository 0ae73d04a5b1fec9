//! A sidecar that may open few files, and more clients than it has room for: those it serves are
//! served on, the others are told at once and the operator why, and it does not spin meanwhile.

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;
use tests_local::{
    CLIENT, Client, Mesh, Proxy, SERVER, Server, eventually, get, inbound_config, ok,
    outbound_config, pause, proxy_binary,
};

/// File limit of each sidecar.
pub(crate) const FILES: usize = 256;
const CLIENTS: usize = 500;
/// Per second, of /proc: the kernel's promise to programs, whatever its own clock.
const TICKS: f64 = 100.0;

/// The proxy, started with so few descriptors that it cannot have more.
pub(crate) fn with_few_files(mesh: &Mesh) -> PathBuf {
    let script = mesh.path().join("few-files");
    let program = proxy_binary().display().to_string();
    let text = format!("#!/bin/sh\nulimit -n {FILES}\nexec '{program}' \"$@\"\n");
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    script
}

/// Seconds of processor time so far.
fn cpu(proxy: &Proxy) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", proxy.pid())).unwrap();
    let after_name = stat.rsplit(')').next().unwrap();
    let ticks = after_name.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks.map(|t| t.parse::<u64>().unwrap()).sum();
    ticks as f64 / TICKS
}

/// Whoever spins takes all of this time. What is taken for granted is far less, and enough for the
/// clock ticks of a busy machine.
fn assert_rests(proxy: &Proxy) {
    const WATCHED: Duration = Duration::from_secs(3);
    let before = cpu(proxy);
    pause("it rests", WATCHED);
    let taken = cpu(proxy) - before;
    println!("{taken:.2} s of processor time in {WATCHED:?}");
    assert!(taken < 1.0, "{taken} s of processor time in {WATCHED:?}");
}

/// A client that has asked and keeps its connection, or was refused.
fn newcomer(address: std::net::SocketAddr, request: &str) -> Option<Client> {
    let mut client = Client::try_connect(address).ok()?;
    client.try_send(request).ok()?;
    Some(client)
}

fn answer(client: &mut Client) -> Option<u16> {
    client.try_response("GET").ok().map(|r| r.status())
}

#[test]
fn clients_that_there_is_no_room_for_are_told_and_the_others_served() {
    let app = Server::http(|_| ok(b"five stars"));
    let mesh = Mesh::new();
    let program = with_few_files(&mesh);
    let inbound = inbound_config(app.address());
    let outbound = outbound_config(inbound.address);
    let _server = Proxy::start_binary(&program, &mesh, SERVER, inbound.file);
    let proxy = Proxy::start_binary(&program, &mesh, CLIENT, outbound.file);
    let mut known: Vec<_> = (0..8).map(|_| Client::connect(outbound.address)).collect();
    let mut served_on = || {
        for client in &mut known {
            assert_eq!(client.get("/").status(), 200);
        }
    };
    served_on();
    let mut served = Vec::new();
    for number in 0..CLIENTS {
        if let Some(mut client) = newcomer(outbound.address, &get("/"))
            && answer(&mut client) == Some(200)
        {
            served.push(client);
        }
        if number % 50 == 0 {
            served_on();
        }
    }
    println!("{} of {CLIENTS} have found room", served.len());
    assert!(served.len() > FILES / 2 && served.len() < FILES);
    // A client that is served was not shed, and the others all were.
    let shed = (CLIENTS - served.len()) as f64;
    proxy.await_metric("tulle_connections_shed_total", &[], shed);
    assert!(served.iter_mut().all(|c| c.get("/").status() == 200));
    assert_rests(&proxy);
    // The operator is let in, and told.
    let told = proxy.await_error("overload")["detail"].to_string();
    assert!(told.contains("ulimit"), "{told}");
    assert!(proxy.log().matches("new connections are closed").count() < CLIENTS / 2);
    served_on();

    drop(served);
    eventually("there is room again", || {
        let client = newcomer(outbound.address, &get("/"));
        client.is_some_and(|mut c| answer(&mut c) == Some(200))
    });
    served_on();
}

#[test]
fn a_sidecar_that_cannot_open_anything_refuses_and_recovers() {
    // Each client needs a connection to the application, too.
    let app = Server::start(|mut connection| {
        while let Ok(bytes) = connection.read_some() {
            if bytes.is_empty() || connection.try_send(bytes).is_err() {
                return;
            }
        }
    });
    let mesh = Mesh::new();
    let inbound = inbound_config(app.address())
        .set("/inbound/ports/0/protocol", "tcp")
        .set("/workers", 2);
    let outbound = outbound_config(inbound.address).set("/services/0/ports/0/protocol", "tcp");
    let server = Proxy::start_binary(&with_few_files(&mesh), &mesh, SERVER, inbound.file);
    let _client = Proxy::start(&mesh, CLIENT, outbound.file);
    let echoes = |client: &mut Client| {
        let mut byte = [0];
        client.try_send("x").is_ok()
            && std::io::Read::read_exact(&mut client.stream(), &mut byte).is_ok()
    };
    let connect = || Client::try_connect(outbound.address).ok();
    let mut known: Vec<_> = (0..8).filter_map(|_| connect()).collect();
    assert!(known.iter_mut().all(echoes));
    let mut served = Vec::new();
    for _ in 0..CLIENTS {
        if let Some(mut client) = connect()
            && echoes(&mut client)
        {
            served.push(client);
        }
    }
    println!("{} of {CLIENTS} have found room", served.len());
    assert!(served.len() > FILES / 2 && served.len() < FILES);
    assert!(known.iter_mut().chain(&mut served).all(echoes));
    assert_rests(&server);
    drop(served);
    eventually("there is room again", || {
        connect().is_some_and(|mut c| echoes(&mut c))
    });
    let told = server.await_error("overload")["detail"].to_string();
    assert!(told.contains("file descriptors"), "{told}");
    assert!(known.iter_mut().all(echoes));
}

#[test]
fn without_any_descriptor_clients_are_told_all_the_same() {
    let app = Server::http(|_| ok(b"five stars"));
    let mesh = Mesh::new();
    let inbound = inbound_config(app.address());
    let outbound = outbound_config(inbound.address);
    let _server = Proxy::start(&mesh, SERVER, inbound.file);
    let proxy = Proxy::start(&mesh, CLIENT, outbound.file);
    let mut known = Client::connect(outbound.address);
    assert_eq!(known.get("/").status(), 200);
    let numbers = || {
        let all = std::fs::read_dir(format!("/proc/{}/fd", proxy.pid())).unwrap();
        let all = all.filter_map(|e| e.ok()?.file_name().to_str()?.parse::<u64>().ok());
        all.collect::<Vec<_>>()
    };
    // The limit is on the numbers of descriptors: none below the largest may be free.
    let mut fillers = Vec::new();
    let all = loop {
        let open = numbers();
        // The connection on which administration was asked may be about to close.
        pause("it opens and closes nothing", Duration::from_millis(100));
        if numbers() != open {
            continue;
        }
        let next = open.iter().max().map_or(0, |most| most + 1);
        let free = next - open.len() as u64;
        if free == 0 {
            break Some(next);
        }
        for _ in 0..free {
            let mut filler = Client::connect(outbound.address);
            assert_eq!(filler.get("/").status(), 200);
            fillers.push(filler);
        }
    };
    let pid = Pid::from_raw(i32::try_from(proxy.pid()).unwrap());
    let none = Rlimit {
        current: all,
        maximum: rustix::process::getrlimit(Resource::Nofile).maximum,
    };
    let before = prlimit(pid, Resource::Nofile, none).unwrap();
    for _ in 0..50 {
        let client = newcomer(outbound.address, &get("/"));
        assert!(client.is_none_or(|mut c| c.is_ended()));
    }
    assert_eq!(known.get("/").status(), 200);
    assert_rests(&proxy);
    prlimit(pid, Resource::Nofile, before).unwrap();
    assert_eq!(Client::connect(outbound.address).get("/").status(), 200);
    proxy.await_metric("tulle_connections_shed_total", &[], 1.0);
    assert!(proxy.metric("tulle_overloads_total", &[]) >= 1.0);
}

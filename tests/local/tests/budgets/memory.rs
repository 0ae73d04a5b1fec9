//! Memory of an idle connection, and of a proxy that has just started.

use crate::{is_promised, usual_request, with_policy};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tests_local::{
    CLIENT, Client, Mesh, PATIENCE, Pair, Proxy, SERVER, Server, TlsClient, alone, gateway_config,
    holds_within, id, inbound_config, ok, outbound_config, pause, release_binary, skip,
};
use tulle_net::socket::raise_descriptor_limit;

/// Maximum number of connections; fewer if fewer files may be open.
const CONNECTIONS: usize = 10_000;
/// Files that are open beside the connections.
const OTHER_FILES: u64 = 2000;
/// Opened before the first look, so that what all connections share is there.
const WARM_UP: usize = 100;
const PLAIN_BYTES: u64 = 2 * 1024;
const TLS_BYTES: u64 = 12 * 1024;
const START_BYTES: u64 = 6 << 20;
/// Size limit of the release build's file. A static one, as releases and images have it, has 123,000 bytes more, and may have
/// 11,000,000 (`scripts/build-static.sh`).
const PROGRAM_BYTES: u64 = 10_870_000;

/// Memory once it no longer falls: the allocator takes its time to give back what is free.
fn settled_memory(proxy: &Proxy) -> u64 {
    let mut least = proxy.own_memory();
    let mut since = Instant::now();
    while since.elapsed() < Duration::from_secs(2) {
        pause("memory falls no longer", Duration::from_millis(100));
        let now = proxy.own_memory();
        if now < least {
            (least, since) = (now, Instant::now());
        }
    }
    least
}

/// How many connections a process may hold here, with the limit raised as far as it goes.
fn most_connections() -> usize {
    use rustix::process::{Resource, getrlimit};
    raise_descriptor_limit();
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let most = usize::try_from(files.saturating_sub(OTHER_FILES)).unwrap_or(usize::MAX);
    if most < CONNECTIONS {
        println!("memory: only {most} connections; no more than {files} files may be open");
    }
    most.min(CONNECTIONS)
}

/// Opens connections with `open` and checks what each costs the proxy.
fn measure<C>(what: &str, proxy: &Proxy, most: u64, mut open: impl FnMut() -> C) {
    // Two tests at once would need twice as many files.
    let _alone = alone("connections");
    let count = most_connections();
    let _first: Vec<C> = (0..WARM_UP).map(|_| open()).collect();
    let before = settled_memory(proxy);
    let _clients: Vec<C> = (0..count).map(|_| open()).collect();
    let after = settled_memory(proxy);
    let each = after.saturating_sub(before) / count as u64;
    println!("memory, {what}: {each} bytes for each of {count} idle connections");
    assert!(
        each <= most,
        "{what}: {each} bytes per idle connection, at most {most} allowed"
    );
    // A figure of 0 would mean that nothing was measured.
    assert!(each > 100, "{what}: {each} bytes cannot be");
}

fn plain(address: std::net::SocketAddr) -> Client {
    let mut client = Client::connect(address);
    client.send(usual_request());
    assert_eq!(client.response("GET").status(), 200);
    client
}

#[test]
fn an_idle_plain_connection_costs_little() {
    let app = Server::http(|_| ok(b"five stars"));
    let pair = Pair::with(app.address(), |client, server| {
        (client, with_policy(server))
    });
    measure("client's sidecar, plain", &pair.client, PLAIN_BYTES, || {
        plain(pair.address)
    });

    let mesh = Mesh::new();
    let config = gateway_config(app.address());
    let gateway = Proxy::start(&mesh, "edge", config.file);
    measure("gateway, plain", &gateway, PLAIN_BYTES, || {
        plain(config.address)
    });
}

#[test]
fn an_idle_tls_connection_costs_little() {
    let app = Server::http(|_| ok(b"five stars"));
    let mesh = Mesh::new();
    let config = with_policy(inbound_config(app.address()));
    let sidecar = Proxy::start(&mesh, SERVER, config.file);
    let certificate = mesh.ca.issue(&id(CLIENT));
    measure("server's sidecar, TLS", &sidecar, TLS_BYTES, || {
        let mut client = TlsClient::http(config.address, &certificate);
        client.send(usual_request()).unwrap();
        assert_eq!(client.response("GET").unwrap().status(), 200);
        client
    });
}

/// The program as users get it. `None`, after saying so, where nobody has promised it: `make demo` leaves one
/// without link-time optimisation in its place.
fn release() -> Option<PathBuf> {
    if !is_promised() {
        skip("it is about the program that `make test` builds");
        return None;
    }
    let program = release_binary().filter(|program| is_fresh(program));
    assert!(
        program.is_some(),
        "target/release/tulle-proxy is missing or older than its sources (cargo build --release --package tulle-proxy)"
    );
    program
}

/// Whether the program is newer than all it was made of, which Cargo has written beside it.
fn is_fresh(program: &Path) -> bool {
    let modified = |path: &Path| path.metadata().and_then(|m| m.modified()).ok();
    let Ok(sources) = std::fs::read_to_string(program.with_extension("d")) else {
        return false;
    };
    let (_, sources) = sources.split_once(": ").unwrap_or_default();
    let mut sources = sources.split_whitespace().peekable();
    let newer = |source| modified(Path::new(source)) > modified(program);
    sources.peek().is_some() && !sources.any(newer)
}

#[test]
fn a_release_build_is_and_starts_small() {
    let Some(program) = release() else { return };
    let size = program.metadata().unwrap().len();
    println!("tulle-proxy: {} KiB on disk", size / 1024);
    assert!(size <= PROGRAM_BYTES, "{size} bytes");
    let app = Server::http(|_| ok(b"five stars"));
    let mesh = Mesh::new();
    let server = with_policy(inbound_config(app.address()));
    let client = outbound_config(server.address);
    let entry = client.address;
    let started = [(SERVER, server), (CLIENT, client)].map(|(name, config)| {
        let proxy = Proxy::start_binary(&program, &mesh, name, config.file);
        (name, proxy)
    });
    let check = |when: &str| {
        for (name, proxy) in &started {
            // Memory that only the start needed is given back soon after it.
            let mut memory = u64::MAX;
            holds_within(PATIENCE, "memory of the start is given back", || {
                memory = memory.min(proxy.memory());
                memory < START_BYTES
            });
            println!("memory, sidecar of {name} {when}: {} KiB", memory / 1024);
            assert!(
                memory < START_BYTES,
                "{name} {when}: {memory} bytes resident"
            );
        }
    };
    check("at the start");
    // Requests first load the code that they need.
    let mut client = plain(entry);
    for _ in 0..100 {
        client.send(usual_request());
        assert_eq!(client.response("GET").status(), 200);
    }
    check("after 100 requests");
}

//! Peers that do not read: what a sidecar holds for them is bounded, nobody else waits for them, and
//! memory that a burst took is given back.

use std::io::{ErrorKind, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tests_local::{
    CLIENT, Client, Connection, Gate, Mesh, Pair, Proxy, SERVER, Server, TlsClient, TlsServer,
    eventually, full_sockets, get, holds_within, id, inbound_config, ok, outbound_config, pattern,
    pause,
};

const STALLED: usize = 100;
const BODY: usize = 10 << 20;
/// Most that a sidecar may take for all that is stalled.
const GROWTH: u64 = 16 << 20;
/// Longest wait for anything that takes a busy machine long.
const LONG: Duration = Duration::from_secs(120);
/// Time without progress after which a transfer counts as stalled.
const STILL: Duration = Duration::from_secs(2);

/// The peak memory of the sidecars since `start`.
struct Watched<'a> {
    proxies: Vec<(&'static str, &'a Proxy, u64, u64)>,
}

impl<'a> Watched<'a> {
    fn start(proxies: &[(&'static str, &'a Proxy)]) -> Self {
        let with_memory = |(name, proxy): &(&'static str, &'a Proxy)| {
            let now = proxy.own_memory();
            (*name, *proxy, now, now)
        };
        Self {
            proxies: proxies.iter().map(with_memory).collect(),
        }
    }

    fn pair(pair: &'a Pair) -> Self {
        Self::start(&[
            ("client's sidecar", &pair.client),
            ("server's sidecar", &pair.server),
        ])
    }

    fn look(&mut self) {
        for (_, proxy, _, most) in &mut self.proxies {
            *most = proxy.own_memory().max(*most);
        }
    }

    /// Watches until `moved` no longer changes, and has moved at all.
    fn until_still(&mut self, mut moved: impl FnMut() -> u64) {
        let end = Instant::now() + LONG;
        let (mut last, mut since) = (moved(), Instant::now());
        while last == 0 || since.elapsed() < STILL {
            assert!(Instant::now() < end, "it moves on: nothing is stalled");
            pause("nothing moves any more", Duration::from_millis(20));
            self.look();
            let now = moved();
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
    }

    fn check(&self, what: &str) {
        for (name, _, before, most) in &self.proxies {
            let growth = most - before;
            println!("{what}, {name}: {} KiB for {STALLED}", growth / 1024);
            assert!(growth <= GROWTH, "{what}, {name}: {growth} bytes");
        }
    }
}

/// Waits that others do not notice.
fn others_are_served(mut open: impl FnMut() -> Client, known: &mut Client) {
    let mut longest = Duration::ZERO;
    for _ in 0..20 {
        let begin = Instant::now();
        assert_eq!(known.get("/small").status(), 200);
        assert_eq!(open().get("/small").status(), 200);
        longest = longest.max(begin.elapsed());
    }
    println!("others, beside what is stalled: two requests took {longest:?} at the most");
}

/// An application that answers `/big` with a large body; counts what it could send.
fn downloads(sent: Arc<AtomicU64>) -> impl Fn(Connection) + Send + Sync + 'static {
    let body = pattern(BODY);
    move |mut connection| {
        while let Ok(request) = connection.request() {
            if request.target() != "/big" {
                connection.send(ok(b"five stars"));
                continue;
            }
            connection.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {BODY}\r\n\r\n"));
            for part in body.chunks(16 * 1024) {
                if connection.try_send(part).is_err() {
                    return;
                }
                sent.fetch_add(part.len() as u64, Ordering::SeqCst);
            }
        }
    }
}

#[test]
fn stalled_responses_take_bounded_memory_and_delay_nobody() {
    let _alone = full_sockets();
    let sent = Arc::<AtomicU64>::default();
    let app = Server::start(downloads(sent.clone()));
    let pair = Pair::start(app.address());
    let mut other = pair.connect();
    assert_eq!(other.get("/small").status(), 200);

    let mut watched = Watched::pair(&pair);
    let mut stalled: Vec<_> = (0..STALLED).map(|_| pair.connect()).collect();
    for client in &mut stalled {
        client.send(get("/big"));
    }
    watched.until_still(|| sent.load(Ordering::SeqCst));
    others_are_served(|| pair.connect(), &mut other);
    watched.look();
    watched.check("stalled responses");

    // A client that reads on gets everything.
    let mut first = stalled.swap_remove(0);
    drop(stalled);
    assert_eq!(first.response("GET").body, pattern(BODY));
}

#[test]
fn stalled_uploads_take_bounded_memory_and_delay_nobody() {
    let open = Arc::<Gate>::default();
    let gate = open.clone();
    let app = Server::start(move |mut connection| {
        while let Ok(head) = connection.head() {
            if head.starts_with("POST") {
                gate.pass();
                let Ok(body) = connection.read_exact(BODY) else {
                    return;
                };
                assert_eq!(body, pattern(BODY));
            }
            connection.send(ok(b"five stars"));
        }
    });
    let pair = Pair::start(app.address());
    let mut other = pair.connect();
    assert_eq!(other.get("/small").status(), 200);

    let mut watched = Watched::pair(&pair);
    let body = Arc::new(pattern(BODY));
    let connect = || Upload::start(pair.connect(), &body);
    let mut uploads: Vec<_> = (0..STALLED).map(|_| connect()).collect();
    watched.until_still(|| uploads.iter_mut().map(Upload::send).sum());
    others_are_served(|| pair.connect(), &mut other);
    watched.look();
    watched.check("stalled uploads");

    let mut first = uploads.swap_remove(0);
    drop(uploads);
    open.open();
    assert_eq!(first.finish(), 200);
}

/// A client in the middle of a large request.
struct Upload {
    client: Client,
    body: Arc<Vec<u8>>,
    sent: usize,
}

impl Upload {
    fn start(mut client: Client, body: &Arc<Vec<u8>>) -> Self {
        client.send(format!(
            "POST /big HTTP/1.1\r\nHost: ratings\r\nContent-Length: {BODY}\r\n\r\n"
        ));
        client.stream().set_nonblocking(true).unwrap();
        Self {
            client,
            body: body.clone(),
            sent: 0,
        }
    }

    /// Sends as much as is taken; how much there has been altogether.
    fn send(&mut self) -> u64 {
        while self.sent < BODY {
            match self.client.stream().write(&self.body[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("upload: {error}"),
            }
        }
        self.sent as u64
    }

    /// Sends the rest; the status of the answer.
    fn finish(&mut self) -> u16 {
        self.client.stream().set_nonblocking(false).unwrap();
        self.client.send(&self.body[self.sent..]);
        // The server reads what all the others have sent before it answers.
        self.client.stream().set_read_timeout(Some(LONG)).unwrap();
        self.client.response("POST").status()
    }
}

#[test]
fn stalled_responses_over_a_connection_each_take_bounded_memory() {
    let sent = Arc::<AtomicU64>::default();
    let app = Server::start(downloads(sent.clone()));
    let mesh = Mesh::new();
    let config = inbound_config(app.address());
    let sidecar = Proxy::start(&mesh, SERVER, config.file);
    let certificate = mesh.ca.issue(&id(CLIENT));
    let connect = || TlsClient::http(config.address, &certificate);
    assert_eq!(connect().get("/small").unwrap().status(), 200);

    let mut watched = Watched::start(&[("server's sidecar", &sidecar)]);
    let mut stalled: Vec<_> = (0..STALLED).map(|_| connect()).collect();
    for client in &mut stalled {
        client.send(get("/big")).unwrap();
    }
    watched.until_still(|| sent.load(Ordering::SeqCst));
    for _ in 0..20 {
        assert_eq!(connect().get("/small").unwrap().status(), 200);
    }
    watched.look();
    watched.check("stalled responses, a TLS connection each");

    let mut first = stalled.swap_remove(0);
    drop(stalled);
    assert_eq!(first.response("GET").unwrap().body, pattern(BODY));
}

#[test]
fn stalled_uploads_over_a_connection_each_take_bounded_memory() {
    let _alone = full_sockets();
    let mesh = Mesh::new();
    let certificate = mesh.ca.issue(&id(SERVER));
    let (connections, ended) = (Arc::<AtomicUsize>::default(), Arc::<Gate>::default());
    let (number, end) = (connections.clone(), ended.clone());
    // A server that speaks only HTTP/1.1 has a connection for each exchange. All but the first read
    // nothing, until the stalled ones are all there.
    let app = TlsServer::start(&certificate, &["http/1.1"], move |mut connection| {
        let number = number.fetch_add(1, Ordering::SeqCst);
        if (1..=STALLED).contains(&number) {
            end.pass();
        }
        while connection.request().is_ok() {
            if connection.send(ok(b"five stars")).is_err() {
                return;
            }
        }
    });
    let config = outbound_config(app.address());
    let sidecar = Proxy::start(&mesh, CLIENT, config.file);
    let mut other = Client::connect(config.address);
    other.send(format!(
        "POST /small HTTP/1.1\r\nHost: ratings\r\nContent-Length: {BODY}\r\n\r\n"
    ));
    // It keeps the first connection busy, so that the stalled ones get others.
    eventually("the first connection is there", || {
        connections.load(Ordering::SeqCst) == 1
    });
    let mut watched = Watched::start(&[("client's sidecar", &sidecar)]);
    let body = Arc::new(pattern(BODY));
    let connect = || Upload::start(Client::connect(config.address), &body);
    let mut uploads: Vec<_> = (0..STALLED).map(|_| connect()).collect();
    watched.until_still(|| uploads.iter_mut().map(Upload::send).sum());
    // Each has a connection of its own, so that others get one that is read.
    eventually("the stalled ones are all there", || {
        connections.load(Ordering::SeqCst) > STALLED
    });
    watched.look();
    other.send(&*body);
    assert_eq!(other.response("POST").status(), 200);
    others_are_served(|| Client::connect(config.address), &mut other);
    watched.look();
    watched.check("stalled uploads, a TLS connection each");
    ended.open();
}

#[test]
fn memory_of_a_burst_is_given_back() {
    const CONNECTIONS: usize = 500;
    const RESPONSE: usize = 1 << 20;
    const KEPT: u64 = 2 << 20;
    let _alone = full_sockets();
    let large = ok(&pattern(RESPONSE));
    let app = Server::http(move |request| match request.target() {
        "/large" => large.clone(),
        _ => ok(b"five stars"),
    });
    let pair = Pair::start(app.address());
    let mut clients: Vec<_> = (0..CONNECTIONS).map(|_| pair.connect()).collect();
    // All at once, so that there are as many connections behind the sidecars as there will be.
    let round = |clients: &mut Vec<Client>, target: &str, length: usize| {
        clients.iter_mut().for_each(|c| c.send(get(target)));
        for client in clients {
            assert_eq!(client.response("GET").body.len(), length);
        }
    };
    round(&mut clients, "/small", 10);
    let mut watched = Watched::pair(&pair);
    // How much of it the sidecars hold and how much the kernel varies.
    eventually("it is a burst", || {
        std::thread::scope(|scope| {
            let burst = scope.spawn(|| round(&mut clients, "/large", RESPONSE));
            while !burst.is_finished() {
                watched.look();
                pause("between looks at memory", Duration::from_millis(5));
            }
        });
        let mut proxies = watched.proxies.iter();
        proxies.any(|(_, _, before, most)| *most > before + KEPT)
    });
    for (name, proxy, before, most) in watched.proxies {
        println!(
            "burst, {name}: {} KiB, before {}",
            most / 1024,
            before / 1024
        );
        let (begin, mut now) = (Instant::now(), most);
        let given_back = holds_within(LONG, "memory is given back", || {
            now = proxy.own_memory();
            now <= before + KEPT
        });
        assert!(
            given_back,
            "{name}: {now} bytes are kept, {before} before, {most} at the most"
        );
        println!(
            "burst, {name}: {} KiB after {:?}",
            now / 1024,
            begin.elapsed()
        );
    }
}

//! Clients that ask for much over HTTP/2 and read nothing: what a gateway holds for them is bounded, and
//! others are served.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tests_local::{
    Http2Client, Mesh, Proxy, SERVER, gateway_config, is_root, proxy_binary, request,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;
use tulle_net::socket::raise_descriptor_limit;
use tulle_redirect::{Cgroup, ProcessLimits};

const CONNECTIONS: usize = 70;
const STREAMS: usize = 120;
const BODY: usize = 256 * 1024;
/// Most that the gateway may take for all of them: 2 KiB for each stream, where a buffer alone has 20.
const GROWTH: u64 = 16 << 20;
const LONG: Duration = Duration::from_secs(60);

/// An application that answers `/big` with a large body, and counts how often it was asked for it, and
/// `/endless` with one that does not end.
async fn serve(mut tcp: TcpStream, asked: Arc<watch::Sender<usize>>) -> std::io::Result<()> {
    let big = vec![b'x'; BODY];
    let mut head = Vec::new();
    loop {
        while !head.ends_with(b"\r\n\r\n") {
            if tcp.read_buf(&mut head).await? == 0 {
                return Ok(());
            }
        }
        if head.starts_with(b"GET /endless") {
            tcp.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
            loop {
                tcp.write_all(&big).await?;
            }
        }
        let body = match head.starts_with(b"GET /big") {
            true => &*big,
            false => b"five stars",
        };
        if body.len() == BODY {
            asked.send_modify(|times| *times += 1);
        }
        head.clear();
        let length = body.len();
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
        tcp.write_all(answer.as_bytes()).await?;
        tcp.write_all(body).await?;
    }
}

async fn application() -> (SocketAddr, watch::Receiver<usize>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (asked, times) = watch::channel(0);
    let asked = Arc::new(asked);
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            tokio::spawn(serve(tcp, asked.clone()));
        }
    });
    (address, times)
}

/// Clients that ask for more than they read; the most that the gateway has taken meanwhile.
async fn attack(
    gateway: &Proxy,
    to: SocketAddr,
    other: &Http2Client,
    mut heard: watch::Receiver<usize>,
) -> u64 {
    let (mut clients, mut asked) = (Vec::new(), Vec::new());
    let mut most = gateway.own_memory();
    for number in 1..=CONNECTIONS {
        let client = Http2Client::connect(to).await;
        for _ in 0..STREAMS {
            // Answers come, are kept by the client and never read.
            asked.extend(client.open(request("GET", "/big"), true).await);
        }
        clients.push(client);
        // Whatever else this machine does: the application's queue of connections is not what is tried.
        let all = heard.wait_for(|times| *times >= number * STREAMS);
        timeout(LONG, all).await.expect("requests arrive").unwrap();
        most = gateway.own_memory().max(most);
    }
    let begin = Instant::now();
    let mut grown = begin;
    while grown.elapsed() < Duration::from_secs(2) && begin.elapsed() < LONG {
        let now = gateway.own_memory();
        if now > most {
            (most, grown) = (now, Instant::now());
        }
        assert_eq!(other.get("/small").await.unwrap().status(), 200);
    }
    most
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_ask_and_do_not_read_leave_their_answers_with_the_application() {
    raise_descriptor_limit();
    let (app, heard) = application().await;
    let mesh = Mesh::new();
    let config = gateway_config(app);
    let gateway = Proxy::start(&mesh, SERVER, config.file);
    let other = Http2Client::connect(config.address).await;
    assert_eq!(other.get("/small").await.unwrap().status(), 200);
    let before = gateway.own_memory();
    let most = attack(&gateway, config.address, &other, heard).await;
    let growth = most - before;
    println!(
        "{CONNECTIONS} clients that do not read: {} KiB",
        growth / 1024
    );
    assert!(growth <= GROWTH, "{growth} bytes");
}

/// Memory limit of a small container.
const ALLOWED: u64 = 48 << 20;

/// A cgroup that goes with the test.
struct Group(Cgroup);

impl Group {
    fn new(name: &str) -> Self {
        let limits = ProcessLimits {
            cpu_millis: None,
            memory_bytes: Some(ALLOWED),
        };
        Self(Cgroup::create(&format!("{name}-{}", std::process::id()), "proxy", &limits).unwrap())
    }

    /// A program that starts the proxy in it, with the limit from the first page on.
    fn program(&self, mesh: &Mesh) -> std::path::PathBuf {
        let joins = self.0.directories().iter();
        let joins = joins.map(|d| format!("echo $$ > {}/cgroup.procs\n", d.display()));
        let file = mesh.path().join("limited");
        let proxy = proxy_binary().display();
        let text = format!(
            "#!/bin/sh\nset -e\n{}exec {proxy} \"$@\"\n",
            joins.collect::<String>()
        );
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        file
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = self.0.remove();
        for directory in self.0.directories() {
            let _ = directory.parent().map(fs::remove_dir);
        }
    }
}

/// A gateway in a small container, and a client that nobody should keep from being served.
struct Small {
    gateway: Proxy,
    address: SocketAddr,
    other: Http2Client,
    _mesh: Mesh,
    _group: Group,
}

impl Small {
    async fn start(name: &str) -> Self {
        raise_descriptor_limit();
        let (app, _heard) = application().await;
        let (mesh, group) = (Mesh::new(), Group::new(name));
        let config = gateway_config(app);
        let gateway = Proxy::start_binary(&group.program(&mesh), &mesh, SERVER, config.file);
        let other = Http2Client::connect(config.address).await;
        assert_eq!(other.get("/small").await.unwrap().status(), 200);
        Self {
            gateway,
            address: config.address,
            other,
            _mesh: mesh,
            _group: group,
        }
    }

    /// Lets one client after another come, until the other one is refused, or they themselves are closed.
    async fn fill(&self, mut client: impl AsyncFnMut()) {
        let begin = Instant::now();
        let mut clients = 0;
        let refused = loop {
            client().await;
            clients += 1;
            let answer = self.other.get("/small").await.unwrap();
            if answer.status() != 200 {
                break Some(answer);
            }
            // On a slow machine memory has room again by the time the other one asks, and only those that
            // fill it are closed: the newest at once, others as they do not read.
            let closed = || self.gateway.metric("tulle_connections_shed_total", &[]) > 0.0;
            if begin.elapsed() > LONG / 4 && closed() {
                break None;
            }
            assert!(begin.elapsed() < LONG, "nobody was refused");
        };
        let own = self.gateway.own_memory() / 1024;
        let who = if refused.is_some() {
            "an older one"
        } else {
            "those that fill it"
        };
        println!("{who} refused after {clients} clients at {own} KiB");
        if let Some(refused) = refused {
            assert_eq!(refused.status(), 503);
            assert_eq!(refused.header("x-tulle-reason"), Some("overload"));
            assert!(refused.text().contains("memory"), "{}", refused.text());
        }
    }

    /// They are still there, and read nothing.
    async fn is_served_again(&self) {
        let begin = Instant::now();
        while self.other.get("/small").await.unwrap().status() != 200 {
            assert!(begin.elapsed() < LONG, "nobody is served any more");
        }
        let own = self.gateway.own_memory() / 1024;
        println!("served again after {:?} at {own} KiB", begin.elapsed());
        let peak = self.gateway.memory_peak();
        assert!(peak < ALLOWED, "{peak}");
        assert!(self.gateway.metric("tulle_connections_shed_total", &[]) > 0.0);
    }
}

/// More clients than there is memory for: the proxy says so in time, ends those who take nothing, and
/// serves the others again. The kernel ends nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_small_container_new_requests_are_refused_and_idle_readers_end() {
    if !is_root() {
        return;
    }
    let small = Small::start("greedy").await;
    let (mut clients, mut asked) = (Vec::new(), Vec::new());
    let come = async || {
        // One that is closed at once was refused, too.
        let Some(client) = Http2Client::try_connect(small.address).await else {
            return;
        };
        for _ in 0..STREAMS {
            let Ok(answer) = client.open(request("GET", "/big"), true).await else {
                break;
            };
            asked.push(answer);
        }
        clients.push(client);
    };
    small.fill(come).await;
    small.is_served_again().await;
    drop((small, clients, asked));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_small_container_idle_readers_of_http1_end_too() {
    if !is_root() {
        return;
    }
    let small = Small::start("slow").await;
    let mut clients = Vec::new();
    let come = async || {
        let asks = b"GET /endless HTTP/1.1\r\nHost: a\r\n\r\n";
        // One that is closed at once was refused, too.
        if let Ok(mut client) = TcpStream::connect(small.address).await
            && client.write_all(asks).await.is_ok()
        {
            clients.push(client);
        }
    };
    small.fill(come).await;
    small.is_served_again().await;
    drop((small, clients));
}

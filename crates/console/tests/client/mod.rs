//! A controller with a console, and a client that sends what it is told, byte for byte.
#![allow(dead_code, unreachable_pub, missing_docs)]

use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use tulle_api::v1::ApplyRequest;
use tulle_api::v1::objects_client::ObjectsClient;
use tulle_console::{ConsoleClock, ConsoleConfig, RunningConsole};
use tulle_control::jwks::LEAST_REFRESH;
use tulle_control::{Controller, ControllerConfig, HOST_AWAY, RunningController, StoreKind};

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running controller with its console.
pub struct Site {
    browser: Browser,
    pub console: RunningConsole,
    pub running: RunningController,
    objects: ObjectsClient<Channel>,
    _directory: tempfile::TempDir,
}

pub async fn site() -> Site {
    site_with(|_| {}).await
}

pub async fn site_with(change: impl FnOnce(&mut ConsoleConfig)) -> Site {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("run/control.sock");
    let running = Controller::start(ControllerConfig {
        state_dir: directory.path().join("state"),
        listen: "127.0.0.1:0".parse().unwrap(),
        socket: socket.clone(),
        store: StoreKind::Memory,
        metrics: None,
        host_away: HOST_AWAY,
        least_key_refresh: LEAST_REFRESH,
        observe: true,
    })
    .await
    .unwrap();
    let mut config = ConsoleConfig {
        listen: "127.0.0.1:0".parse().unwrap(),
        forwarded: false,
        actions: false,
        visitors: None,
        clock: ConsoleClock::default(),
    };
    change(&mut config);
    let observer = running.observer().unwrap();
    let console = RunningConsole::start(config, observer).await.unwrap();
    Site {
        browser: Browser {
            address: console.address(),
        },
        console,
        running,
        objects: operator(&socket).await,
        _directory: directory,
    }
}

async fn operator(socket: &Path) -> ObjectsClient<Channel> {
    let socket = socket.to_owned();
    let connect = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_static("http://controller");
    ObjectsClient::new(endpoint.connect_with_connector(connect).await.unwrap())
}

/// The cookie of a new session, as a browser sends it.
pub async fn session(site: &Site) -> String {
    let code = site.code();
    let reply = site.open(&code).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.cookie()
}

/// A client of the console at an address.
pub struct Browser {
    pub address: SocketAddr,
}

impl Deref for Site {
    type Target = Browser;

    fn deref(&self) -> &Browser {
        &self.browser
    }
}

impl Site {
    pub fn code(&self) -> String {
        let url = self.console.codes().url("tester").unwrap();
        let (page, code) = url.split_once("#code=").unwrap();
        assert_eq!(page, format!("{}/", self.origin()));
        code.to_owned()
    }

    /// Stores so many objects, which no earlier round has stored as they are now.
    pub async fn apply(&self, round: usize, count: usize) {
        let object = |number: usize| {
            let name = format!("routes-{number}");
            let object = json!({
                "apiVersion": "specs.smi-spec.io/v1alpha4", "kind": "HTTPRouteGroup",
                "metadata": { "name": name },
                "spec": { "matches": [{ "name": "all", "pathRegex": format!("/{round}/.*") }] },
            });
            tulle_api::v1::Object {
                kind: "HTTPRouteGroup".into(),
                name,
                json: object.to_string(),
            }
        };
        let request = ApplyRequest {
            objects: (0..count).map(object).collect(),
            ..Default::default()
        };
        self.objects.clone().apply(request).await.unwrap();
    }
}

impl Browser {
    pub fn origin(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Opens a session as the page does.
    pub async fn open(&self, code: &str) -> Reply {
        let origin = self.origin();
        let headers = [
            ("origin", origin.as_str()),
            ("sec-fetch-site", "same-origin"),
            ("content-type", "application/json"),
        ];
        let body = json!({ "code": code }).to_string();
        self.send("POST", "/api/v1/session", &headers, body.as_bytes())
            .await
    }

    pub async fn get_in(&self, session: &str, path: &str) -> Reply {
        self.get_as(path, &[("cookie", session)]).await
    }

    pub async fn get_as(&self, path: &str, headers: &[(&str, &str)]) -> Reply {
        self.send("GET", path, headers, b"").await
    }

    /// Sends a request on a connection of its own and reads to its end.
    pub async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Reply {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let headers = [headers, &[("connection", "close")]].concat();
        let head = self.head(method, path, &headers, body.len());
        // The server may answer and close before it has read all.
        let _ = stream.write_all(&[head.as_bytes(), body].concat()).await;
        let mut bytes = Vec::new();
        let read = timeout(PATIENCE, stream.read_to_end(&mut bytes)).await;
        let read = read.unwrap_or_else(|_| panic!("{method} {path}: no end"));
        Reply::parse(&bytes).unwrap_or_else(|| panic!("{method} {path}: {read:?}"))
    }

    /// Sends the head of a request whose body does not come, and waits until the server wants the body.
    pub async fn post_slowly(&self, path: &str, headers: &[(&str, &str)]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let headers = [headers, &[("expect", "100-continue")]].concat();
        let head = self.head("POST", path, &headers, 20);
        stream.write_all(head.as_bytes()).await.unwrap();
        let wanted = b"HTTP/1.1 100 Continue\r\n\r\n";
        let mut answer = [0; 25];
        let read = timeout(PATIENCE, stream.read_exact(&mut answer)).await;
        read.expect("the server says something").unwrap();
        assert_eq!(&answer, wanted, "{}", String::from_utf8_lossy(&answer));
        stream
    }

    fn head(&self, method: &str, path: &str, headers: &[(&str, &str)], length: usize) -> String {
        let mut head = format!("{method} {path} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| *name == "host") {
            head += &format!("host: {}\r\n", self.address);
        }
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        if length > 0 {
            head += &format!("content-length: {length}\r\n");
        }
        head + "\r\n"
    }

    pub async fn stream(&self, session: &str, path: &str) -> Events {
        let stream = TcpStream::connect(self.address).await.unwrap();
        self.follow(stream, session, path).await
    }

    /// A stream whose reader has room for little and takes its time.
    pub async fn slow_stream(&self, session: &str, path: &str) -> Events {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.connect(&self.address.into()).unwrap();
        socket.set_nonblocking(true).unwrap();
        let stream = TcpStream::from_std(socket.into()).unwrap();
        self.follow(stream, session, path).await
    }

    async fn follow(&self, mut stream: TcpStream, session: &str, path: &str) -> Events {
        let head = self.head("GET", path, &[("cookie", session)], 0);
        stream.write_all(head.as_bytes()).await.unwrap();
        Events::begin(stream).await
    }
}

/// An answer.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Reply {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let end = bytes.windows(4).position(|w| w == b"\r\n\r\n")?;
        let head = std::str::from_utf8(&bytes[..end]).unwrap();
        let mut lines = head.lines();
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let header = |line: &str| {
            let (name, value) = line.split_once(':').unwrap();
            (name.to_ascii_lowercase(), value.trim().to_owned())
        };
        Some(Self {
            status,
            headers: lines.map(header).collect(),
            body: bytes[end + 4..].to_vec(),
        })
    }

    pub fn has(&self, name: &str) -> bool {
        self.headers.iter().any(|(known, _)| known == name)
    }

    pub fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value)
    }

    pub fn cookie(&self) -> String {
        let cookie = self.header("set-cookie");
        cookie.split(';').next().unwrap().to_owned()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }
}

/// A stream of events, without the chunks that it comes in.
pub struct Events {
    pub status: u16,
    stream: TcpStream,
    bytes: Vec<u8>,
    text: String,
}

impl Events {
    async fn begin(stream: TcpStream) -> Self {
        let mut events = Self {
            status: 0,
            stream,
            bytes: Vec::new(),
            text: String::new(),
        };
        while !events.bytes.windows(4).any(|w| w == b"\r\n\r\n") {
            assert!(events.read().await, "the head is cut");
        }
        let reply = Reply::parse(&events.bytes).unwrap();
        events.status = reply.status;
        if events.status == 200 {
            assert_eq!(reply.header("content-type"), "text/event-stream");
            assert_eq!(reply.header("cache-control"), "no-store");
        }
        events.bytes = reply.body;
        events
    }

    async fn read(&mut self) -> bool {
        let read = timeout(PATIENCE, self.stream.read_buf(&mut self.bytes)).await;
        matches!(read.expect("the stream says something"), Ok(1..))
    }

    /// Takes whole chunks out of what has come; false: it was the last one.
    fn unchunk(&mut self) -> bool {
        while let Some(line) = self.bytes.windows(2).position(|w| w == b"\r\n") {
            let size = std::str::from_utf8(&self.bytes[..line]).unwrap();
            let size = usize::from_str_radix(size, 16).unwrap();
            if self.bytes.len() < line + 4 + size {
                return true;
            }
            let chunk = self.bytes[line + 2..line + 2 + size].to_vec();
            self.bytes.drain(..line + 4 + size);
            if size == 0 {
                return false;
            }
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
        true
    }

    /// The next event and its data.
    pub async fn event(&mut self) -> (String, Value) {
        let next = self.next().await;
        next.unwrap_or_else(|| panic!("cut: {}", self.text))
    }

    /// The next event and its data; none: the stream is cut.
    async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            let open = self.unchunk();
            if let Some(end) = self.text.find("\n\n") {
                let event: String = self.text.drain(..end + 2).collect();
                let field = |name: &str| {
                    let mut lines = event.lines();
                    lines.find_map(|line| line.strip_prefix(name).map(str::to_owned))
                };
                let Some(name) = field("event: ") else {
                    continue; // a sign of life
                };
                let data = serde_json::from_str(&field("data: ").unwrap()).unwrap();
                if name != "end" {
                    assert!(field("id: ").unwrap().parse::<u64>().is_ok(), "{event}");
                }
                return Some((name, data));
            }
            if !open || !self.read().await {
                return None;
            }
        }
    }

    /// The reason that it gives at its end.
    pub async fn end(&mut self) -> String {
        let end = self.end_unless_cut().await;
        end.unwrap_or_else(|| panic!("cut: {}", self.text))
    }

    /// The reason that it gives at its end; none: it is cut before.
    pub async fn end_unless_cut(&mut self) -> Option<String> {
        loop {
            let (name, data) = self.next().await?;
            if name == "end" {
                return Some(data["reason"].as_str().unwrap().to_owned());
            }
        }
    }
}

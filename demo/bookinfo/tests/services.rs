//! Starts the real binary, one process per service, on free loopback ports.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const RATING: &str = "2099a055-1e21-46ef-825e-9e0de93554ea";
const PRODUCT: &str = "a071c269-369c-4f79-be03-6a41f27d6b5f";
const NEW_RATING: &str = r#"{"productId":"a071c269-369c-4f79-be03-6a41f27d6b5f","reviewerId":"9bc908be-0717-4eab-bb51-ea14f669ef20","rating":3}"#;
/// Nothing listens here: the discard port is never open on a test machine.
const NOBODY: &str = "127.0.0.1:9";

struct Service {
    process: Child,
    address: SocketAddr,
}

impl Service {
    fn start(args: &[&str]) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_bookinfo"))
            .args(args)
            .args(["--port", "0"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        // Later lines are drained, or the service would fail to print them.
        std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
        let (_, address) = line
            .trim()
            .rsplit_once(' ')
            .unwrap_or_else(|| panic!("{args:?} did not start: {line:?}"));
        let address = address.parse().unwrap();
        Self { process, address }
    }

    fn ratings(dir: &Path) -> Self {
        let database = dir.join("ratings.redb");
        Self::start(&["ratings", "--database", database.to_str().unwrap()])
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn get(&self, path: &str) -> Reply {
        self.send("GET", path, "", "")
    }

    fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> Reply {
        exchange(self.address, method, path, headers, body)
    }

    fn terminate(&mut self) -> ExitStatus {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").arg(&pid).status().unwrap().success());
        let start = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "still running");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct Reply {
    status: u16,
    head: String,
    body: String,
}

fn exchange(to: SocketAddr, method: &str, path: &str, headers: &str, body: &str) -> Reply {
    let mut stream = TcpStream::connect(to).unwrap();
    let timeout = Some(Duration::from_secs(30));
    stream.set_read_timeout(timeout).unwrap();
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    )
    .unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Reply {
        status,
        head: head.to_ascii_lowercase(),
        body: body.to_owned(),
    }
}

#[test]
fn ratings_answers_stores_and_refuses() {
    let dir = tempfile::tempdir().unwrap();
    let ratings = Service::ratings(dir.path());

    let seeded = ratings.get(&format!("/ratings/{RATING}"));
    assert_eq!(seeded.status, 200, "{}", seeded.body);
    assert!(seeded.body.contains(&format!("\"id\":\"{RATING}\"")));
    assert!(seeded.head.contains("content-type: application/json"));

    let created = ratings.send("POST", "/ratings", "", NEW_RATING);
    assert_eq!(created.status, 201, "{}", created.body);
    let location = created.head.lines().find(|l| l.starts_with("location:"));
    let location = location.unwrap().trim_start_matches("location: ");
    let stored = ratings.get(location);
    assert_eq!((stored.status, stored.body), (200, created.body));

    let unknown = "/ratings/00000000-0000-4000-8000-000000000000";
    assert_eq!(ratings.get(unknown).status, 404);
    assert_eq!(ratings.get("/ratings/7").status, 400);
    assert_eq!(ratings.get("/other").status, 404);
    assert_eq!(ratings.get("/ratings").status, 405);
    for bad in [
        "",
        "{",
        "{}",
        &NEW_RATING.replace(":3", ":6"),
        &NEW_RATING.replace("a0", "zz"),
    ] {
        let reply = ratings.send("POST", "/ratings", "", bad);
        assert_eq!(reply.status, 400, "{bad}");
        assert!(reply.body.contains("\"error\""), "{bad}");
    }
    let large = " ".repeat(65 * 1024);
    assert_eq!(ratings.send("POST", "/ratings", "", &large).status, 413);
    assert_eq!(ratings.get("/health").status, 200);
}

#[test]
fn ratings_survive_kill_and_sigterm_is_a_clean_exit() {
    let dir = tempfile::tempdir().unwrap();
    let mut ratings = Service::ratings(dir.path());
    let created = ratings.send("POST", "/ratings", "", NEW_RATING);
    let id = created.body.split('"').nth(3).unwrap().to_owned();
    ratings.process.kill().unwrap();
    ratings.process.wait().unwrap();

    let mut ratings = Service::ratings(dir.path());
    assert_eq!(ratings.get(&format!("/ratings/{id}")).body, created.body);
    assert!(ratings.terminate().success());
}

#[test]
fn gateway_passes_requests_and_statuses() {
    let dir = tempfile::tempdir().unwrap();
    let ratings = Service::ratings(dir.path());
    let details = Service::start(&["details"]);
    let gateway = Service::start(&[
        "gateway",
        "--ratings",
        &ratings.url(),
        "--details",
        &details.url(),
        "--reviews",
        NOBODY,
    ]);
    let direct = ratings.get(&format!("/ratings/{RATING}"));
    let through = gateway.get(&format!("/bookinfo-ratings/ratings/{RATING}"));
    assert_eq!((through.status, through.body), (200, direct.body));
    let path = format!("/bookinfo-details/details/{PRODUCT}");
    assert!(gateway.get(&path).body.contains("Comedy of Errors"));
    let post = gateway.send("POST", "/bookinfo-ratings/ratings", "", NEW_RATING);
    assert_eq!(post.status, 201, "{}", post.body);
    assert_eq!(gateway.get("/bookinfo-ratings/ratings/7").status, 400);
    assert_eq!(gateway.get("/bookinfo-nothing/x").status, 404);
    let unreachable = gateway.get("/bookinfo-reviews/reviews/x");
    assert_eq!(unreachable.status, 502);
    assert!(unreachable.body.contains(NOBODY), "{}", unreachable.body);
}

#[test]
fn gateway_keeps_traces_and_drops_what_is_not_for_the_next_hop() {
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = upstream.local_addr().unwrap().to_string();
    let gateway = Service::start(&["gateway", "--ratings", &address]);
    let seen = std::thread::spawn(move || {
        let (mut stream, _) = upstream.accept().unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let reply = b"HTTP/1.1 403 Forbidden\r\nx-reason: policy\r\ncontent-length: 2\r\n\r\nno";
        stream.write_all(reply).unwrap();
        String::from_utf8(head).unwrap().to_ascii_lowercase()
    });
    let headers = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n\
                   X-B3-TraceId: 1\r\nx-request-id: r1\r\nkeep-alive: 5\r\n\
                   x-forwarded-client-cert: URI=spiffe://m/svc/ingress\r\n";
    let reply = gateway.send("GET", "/bookinfo-ratings/a?b=c", headers, "");
    let seen = seen.join().unwrap();
    assert!(seen.starts_with("get /a?b=c http/1.1\r\n"), "{seen}");
    assert!(seen.contains(&format!("host: {address}\r\n")), "{seen}");
    assert!(seen.contains("traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"));
    assert!(seen.contains("x-b3-traceid: 1\r\n") && seen.contains("x-request-id: r1\r\n"));
    assert!(
        !seen.contains("keep-alive") && !seen.contains("x-forwarded-client-cert"),
        "{seen}"
    );
    assert_eq!((reply.status, reply.body.as_str()), (403, "no"));
    assert!(reply.head.contains("x-reason: policy"));
}

#[test]
fn productpage_shows_the_book_its_reviews_and_the_callers() {
    let dir = tempfile::tempdir().unwrap();
    let ratings = Service::ratings(dir.path());
    let details = Service::start(&["details"]);
    let reviews = Service::start(&["reviews", "--ratings", &ratings.url()]);
    let page = Service::start(&[
        "productpage",
        "--details",
        &details.url(),
        "--reviews",
        &reviews.url(),
    ]);
    let forwarded =
        "x-forwarded-client-cert: By=spiffe://m/svc/productpage;URI=spiffe://m/svc/ingress\r\n";
    let reply = page.send("GET", "/productpage", forwarded, "");
    assert_eq!(reply.status, 200);
    assert!(reply.head.contains("content-type: text/html"));
    assert!(reply.body.contains("The Comedy of Errors"));
    assert!(reply.body.contains("★★★★★<") && reply.body.contains("★★★★☆<"));
    assert!(reply.body.contains("spiffe://m/svc/ingress"));

    drop(ratings);
    let degraded = page.get("/productpage");
    assert_eq!(degraded.status, 200);
    assert!(degraded.body.contains("no rating"), "{}", degraded.body);
    assert_eq!(reviews.get("/reviews/unknown").status, 404);
}

#[test]
fn a_database_in_use_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let _first = Service::ratings(dir.path());
    let second = Command::new(env!("CARGO_BIN_EXE_bookinfo"))
        .args(["ratings", "--port", "0", "--database"])
        .arg(dir.path().join("ratings.redb"))
        .output()
        .unwrap();
    assert!(!second.status.success());
    let message = String::from_utf8(second.stderr).unwrap();
    assert!(message.contains("another ratings process"), "{message}");
}

#[test]
fn echo_says_what_it_was_asked_and_fails_when_told_to() {
    let echo = Service::start(&["echo", "--name", "v2"]);
    let reply = echo.send("POST", "/a?b=c", "X-Team: a\r\n", "words");
    assert_eq!(reply.status, 200);
    let said: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
    assert_eq!(said["name"], "v2");
    assert_eq!(said["method"], "POST");
    assert_eq!(said["target"], "/a?b=c");
    assert_eq!(said["headers"]["x-team"], "a");
    assert_eq!(said["body"], "words");
    assert_eq!(echo.get("/status/503").status, 503);
    assert_eq!(echo.get("/status/99").status, 400);
    assert_eq!(echo.get("/delay/0.01").status, 200);
    assert_eq!(echo.get("/delay/-1").status, 400);
}

/// Lost requests are counted by cause.
fn a_load_keeps_account(manner: &[&str]) {
    let mut echo = Service::start(&["echo"]);
    let url = format!("{}/path", echo.url());
    let load = ["load", "--lanes", "1", "--pause", "1", &url];
    let load = Service::start(&[&load, manner].concat());
    let count = |kind: &str| {
        let account: serde_json::Value = serde_json::from_str(&load.get("/").body).unwrap();
        account[kind].as_u64().unwrap()
    };
    let until = |kind: &str| {
        let start = Instant::now();
        while count(kind) == 0 {
            assert!(start.elapsed() < Duration::from_secs(30), "no {kind}");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    until("answeredKept");
    until("answeredNew");
    assert_eq!(count("refused") + count("endedKept") + count("cut"), 0);
    assert!(echo.terminate().success());
    until("refused");
}

#[test]
fn a_load_keeps_account_of_http1() {
    a_load_keeps_account(&[]);
}

#[test]
fn a_load_keeps_account_of_http2() {
    a_load_keeps_account(&["--http2"]);
}

#[test]
fn who_greets_speaks_first() {
    let greet = Service::start(&["greet", "--name", "db"]);
    let url = format!("tcp://{}", greet.address);
    let said = Command::new(env!("CARGO_BIN_EXE_bookinfo"))
        .args(["talk", &url, "one", "two"])
        .output()
        .unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    assert_eq!(said, "db is ready\ndb heard one\ndb heard two\n");
}

//! The access log: it never holds a request up, whoever reads it or does not, and its lines of two proxies
//! belong together.

use serde_json::json;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;
use tests_local::{
    CLIENT, Client, Config, Mesh, Pair, Proxy, Server, eventually, gateway_config, get, ok, pause,
    proxy_binary,
};

/// More than the queue and the pipe hold together.
const REQUESTS: usize = 12_000;
const PIPELINED: usize = 100;

#[test]
fn a_reader_that_hangs_costs_lines_not_requests() {
    let app = Server::http(|_| ok(b"12345"));
    let config = gateway_config(app.address()).set("/mesh/accessLog", true);
    let mesh = Mesh::new();
    let pipe = mesh.path().join("log");
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    // Opened for reading too, so that it does not wait for a reader, who never reads.
    let script = format!(
        "#!/bin/sh\nexec '{}' \"$@\" 1<>'{}'\n",
        proxy_binary().display(),
        pipe.display()
    );
    let program = mesh.path().join("proxy");
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();

    let proxy = Proxy::start_binary(&program, &mesh, CLIENT, config.file);
    let mut client = Client::connect(config.address);
    for _ in 0..REQUESTS / PIPELINED {
        client.send(get("/").repeat(PIPELINED));
        for _ in 0..PIPELINED {
            assert_eq!(client.response("GET").status(), 200);
        }
    }
    let dropped = proxy.metric("tulle_access_log_dropped_total", &[]);
    assert!(dropped > 0.0, "the reader was waited for");
}

/// Tests that a watcher sees requests without a log, and only while it is there.
#[test]
fn who_watches_sees_requests_as_they_end() {
    let app = Server::http(|_| ok(b"12345"));
    let mesh = Mesh::new();
    let config = gateway_config(app.address());
    let address = config.address;
    let proxy = Proxy::start_binary(proxy_binary(), &mesh, CLIENT, config.file);
    let mut client = Client::connect(address);
    assert_eq!(client.get("/before").status(), 200);

    let watch = || {
        let admin = proxy.config["admin"].as_str().unwrap();
        let mut stream = TcpStream::connect(admin).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        stream
            .write_all(b"GET /tap HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .unwrap();
        let mut reader = BufReader::new(stream);
        let mut status = String::new();
        reader.read_line(&mut status).unwrap();
        (status, reader)
    };
    let mut watching: Vec<_> = (0..4).map(|_| watch()).collect();
    for (status, _) in &watching {
        assert!(status.contains(" 200 "), "{status}");
    }
    let (status, _) = watch();
    assert!(status.contains(" 429 "), "as many as may: {status}");

    for n in 0..1000 {
        assert_eq!(client.get(&format!("/seen/{n}")).status(), 200);
    }
    // One that reads late has the first of them, and traffic did not wait for it.
    let (_, reader) = &mut watching[0];
    let mut lines = reader
        .lines()
        .map(Result::unwrap)
        .filter(|l| l.starts_with('{'));
    let first: serde_json::Value = serde_json::from_str(&lines.next().unwrap()).unwrap();
    assert_eq!(first["path"], "/seen/0");
    assert_eq!(first["response_code"], 200);
    assert_eq!(proxy.metric("tulle_access_log_dropped_total", &[]), 0.0);
}

/// A client that sends no id of its request: the line of the caller's proxy has the one that the server's has, and
/// says who was asked.
#[test]
fn the_lines_of_both_sides_meet() {
    let app = Server::http(|_| ok(b"12345"));
    let pair = Pair::with(app.address(), |client, server| {
        let logged = |config: Config| config.set("/mesh/accessLog", true);
        (logged(client), logged(server))
    });
    let mut client = pair.connect();
    assert_eq!(client.get("/one").status(), 200);
    let line = |proxy: &Proxy| {
        let mut lines = Vec::new();
        eventually("the request is in the log", || {
            lines = proxy.access_log();
            !lines.is_empty()
        });
        lines.remove(0)
    };
    let (caller, server) = (line(&pair.client), line(&pair.server));
    assert_eq!(caller["request_id"], server["request_id"]);
    assert_eq!(caller["request_id"].as_str().map(str::len), Some(36));
    assert_eq!(caller["upstream_host"], pair.inbound.to_string());
    assert_eq!(server["upstream_host"], app.address().to_string());
}

/// Sets what the log has, and how.
fn lines(config: Config, lines: serde_json::Value) -> Config {
    config
        .set("/mesh/accessLog", true)
        .set("/mesh/accessLogLines", lines)
}

#[test]
fn a_share_of_requests_is_logged_by_both_sides_or_by_neither() {
    let app = Server::http(|_| ok(b"12345"));
    let half = || json!({ "samplingPpm": 500_000 });
    let pair = Pair::with(app.address(), |client, server| {
        (lines(client, half()), lines(server, half()))
    });
    let mut client = pair.connect();
    for _ in 0..200 {
        assert_eq!(client.get("/").status(), 200);
    }
    let ids = |proxy: &Proxy| -> BTreeSet<String> {
        let lines = proxy.access_log().into_iter();
        lines.map(|line| line["request_id"].to_string()).collect()
    };
    eventually("both sides have the same, about a half", || {
        let (caller, server) = (ids(&pair.client), ids(&pair.server));
        caller == server && (50..150).contains(&caller.len())
    });
}

#[test]
fn only_errors_are_logged_in_a_format_of_ones_own() {
    let app = Server::http(|request| match request.target() {
        "/bad" => b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n".to_vec(),
        _ => ok(b"12345"),
    });
    let format = "%REQ(:METHOD)% %REQ(:PATH)% %RESPONSE_CODE% %RESPONSE_FLAGS% \"%REQ(USER-AGENT)%\" \
                  %REQUESTED_SERVER_NAME% 100%%";
    let config = gateway_config(app.address());
    let config = lines(config, json!({ "onlyErrors": true, "format": format }));
    let mesh = Mesh::new();
    let proxy = Proxy::start(&mesh, CLIENT, config.file);
    let mut client = Client::connect(config.address);
    assert_eq!(client.get("/good").status(), 200);
    client.send("GET /bad HTTP/1.1\r\nHost: a\r\nUser-Agent: a\"b\r\n\r\n");
    assert_eq!(client.response("GET").status(), 500);
    let written = || std::fs::read_to_string(proxy.log_files()[0]).unwrap();
    eventually("the line is there", || !written().is_empty());
    assert_eq!(written(), "GET /bad 500 - \"a\\x22b\" - 100%\n");
}

#[test]
fn a_line_says_how_long_the_upstream_took() {
    let app = Server::http(|_| {
        pause("the application takes its time", Duration::from_millis(60));
        ok(b"12345")
    });
    let config = gateway_config(app.address()).set("/mesh/accessLog", true);
    let mesh = Mesh::new();
    let proxy = Proxy::start(&mesh, CLIENT, config.file);
    let mut client = Client::connect(config.address);
    assert_eq!(client.get("/").status(), 200);
    eventually("the line is there", || !proxy.access_log().is_empty());
    let line = proxy.access_log().remove(0);
    let ms = |field: &str| line[field].as_f64().unwrap();
    assert!(ms("upstream_service_time") >= 59.0, "{line:#}");
    assert!(ms("upstream_service_time") <= ms("time_to_first_byte"));
    assert!(line.get("requested_server_name").is_none(), "{line:#}");
}

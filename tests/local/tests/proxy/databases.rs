//! Databases and mail servers, real ones with their own clients, through both sidecars: whoever
//! speaks first, with and without `appProtocol`, large results, idle connections.
//!
//! MongoDB is no package of Debian 12. Its clients speak first, in binary, which `tcp.rs` covers.

use std::net::SocketAddr;
use std::process::{Command, Output, Stdio};
use tests_local::{Client, Daemon, Mesh, Pair, SERVER, installed};

/// Every way a port may be declared: `appProtocol` said or not, mutual TLS strict or permissive.
fn every_way(app: SocketAddr, run: impl Fn(&Pair)) {
    for protocol in ["tcp", "detect"] {
        for strict in [true, false] {
            eprintln!("{protocol}, strict: {strict}");
            let pair = Pair::with(app, |client, server| {
                (
                    client
                        .set("/services/0/ports/0/protocol", protocol)
                        .set("/mesh/strictMtls", strict),
                    server
                        .set("/inbound/ports/0/protocol", protocol)
                        .set("/mesh/strictMtls", strict),
                )
            });
            run(&pair);
            all_was_tcp(&pair);
        }
    }
}

/// Everything passed as opaque connections with mutual TLS.
fn all_was_tcp(pair: &Pair) {
    for proxy in [&pair.client, &pair.server] {
        let opened = "istio_tcp_connections_opened_total";
        let mutual = ["connection_security_policy=\"mutual_tls\""];
        let count = proxy.metric(opened, &[]);
        assert!(count >= 1.0);
        assert_eq!(proxy.metric(opened, &mutual), count);
        assert_eq!(proxy.metric("istio_requests_total", &[]), 0.0);
        proxy.await_metric("istio_tcp_connections_closed_total", &[], count);
    }
}

/// No connection was cut by anybody.
fn none_failed(pair: &Pair) {
    for proxy in [&pair.client, &pair.server] {
        assert_eq!(proxy.metric("tulle_tcp_failures_total", &[]), 0.0);
    }
}

fn output(command: &mut Command) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = command.stdin(Stdio::null()).output().unwrap();
    let errors = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{command:?}: {status}: {errors}");
    String::from_utf8(stdout).unwrap().trim_end().to_owned()
}

fn psql(pair: &Pair, tls: &str, commands: &[&str]) -> String {
    let target = format!(
        "host=127.0.0.1 port={} user=postgres sslmode={tls}",
        pair.address.port()
    );
    let mut psql = Command::new("psql");
    psql.args([
        "-X",
        "-q",
        "-A",
        "-t",
        "-v",
        "ON_ERROR_STOP=1",
        "-d",
        &target,
    ]);
    psql.args(commands.iter().flat_map(|c| ["-c", c]));
    output(&mut psql)
}

#[test]
fn postgresql() {
    let Some(server) = Daemon::postgres(None) else {
        return;
    };
    every_way(server.address, |pair| {
        assert_eq!(psql(pair, "prefer", &["select 6 * 7"]), "42");
        // A result of 16 MiB, to the last row.
        let rows = psql(
            pair,
            "disable",
            &["select i, repeat('x', 1000) from generate_series(1, 16384) i"],
        );
        assert_eq!(rows.lines().count(), 16384);
        assert!(rows.lines().all(|row| row.len() > 1000));
        assert!(rows.lines().last().unwrap().starts_with("16384|"));
        // Bulk upwards; a connection that is idle between two commands; a notice out of turn.
        let said = psql(
            pair,
            "disable",
            &[
                "create temporary table t (x text)",
                "\\copy t from program 'yes line | head -n 300000'",
                "\\! sleep 0.5",
                "select count(*), sum(length(x)) from t",
                "listen news",
                "notify news, 'hello'",
            ],
        );
        let mut lines = said.lines();
        assert_eq!(lines.next(), Some("300000|1200000"));
        let notice = lines.next().unwrap();
        assert!(
            notice.contains("\"news\" with payload \"hello\""),
            "{notice}"
        );
        none_failed(pair);
    });
}

/// The application's own TLS, begun in the middle of the connection. Its farewells meet the reset of
/// whoever has closed already, so here a cut is no failure.
#[test]
fn postgresql_with_its_own_tls() {
    let mesh = Mesh::new();
    let certificate = mesh.certificate(SERVER);
    let Some(server) = Daemon::postgres(Some(&certificate)) else {
        return;
    };
    every_way(server.address, |pair| {
        let asked = "select ssl from pg_stat_ssl where pid = pg_backend_pid()";
        assert_eq!(psql(pair, "require", &[asked]), "t");
        assert_eq!(psql(pair, "disable", &[asked]), "f");
    });
}

#[test]
fn mariadb() {
    let (Some(server), Some(_)) = (
        Daemon::mariadb(),
        installed("mariadb", "mariadb-client-core"),
    ) else {
        return;
    };
    every_way(server.address, |pair| {
        let port = format!("--port={}", pair.address.port());
        let sql = |text: &str| {
            let options = [
                "--no-defaults",
                "--host=127.0.0.1",
                "--user=root",
                "-N",
                "-B",
            ];
            let mut client = Command::new("mariadb");
            client
                .args(options)
                .args(["--max-allowed-packet=64M", &port, "-e", text]);
            output(&mut client)
        };
        assert_eq!(sql("select 6 * 7"), "42");
        let large = sql("select repeat('x', 16777216)");
        assert_eq!(large.len(), 16_777_216);
        assert!(large.bytes().all(|b| b == b'x'));
        let idle = sql("select 1; select sleep(0.5); select 2");
        assert_eq!(idle, "1\n0\n2");
        none_failed(pair);
    });
}

#[test]
fn redis() {
    let Some(server) = Daemon::redis() else {
        return;
    };
    every_way(server.address, |pair| {
        let port = pair.address.port().to_string();
        let ask = |arguments: &[&str]| {
            output(
                Command::new("redis-cli")
                    .args(["-p", &port])
                    .args(arguments),
            )
        };
        assert_eq!(ask(&["ping"]), "PONG");
        let script = "return string.rep('x', 16777216)";
        assert_eq!(ask(&["eval", script, "0"]).len(), 16_777_216);
        // A client that waits for another is idle until then.
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| ask(&["blpop", "queue", "0"]));
            tests_local::eventually("somebody waits", || {
                ask(&["client", "list"]).contains("cmd=blpop")
            });
            assert_eq!(ask(&["rpush", "queue", "job"]), "1");
            assert_eq!(waits.join().unwrap(), "queue\njob");
        });
        ask(&["flushall"]);
        // Many commands at once, and the client ends its side before it has all the answers.
        let mut client = pair.connect();
        client.send("PING\r\n".repeat(1000));
        assert_eq!(client.read_exact(7 * 1000), b"+PONG\r\n".repeat(1000));
        client.send("QUIT\r\n");
        assert_eq!(client.read_to_end().unwrap(), b"+OK\r\n");
        none_failed(pair);
    });
}

#[test]
fn smtp() {
    let Some(server) = Daemon::smtp() else {
        return;
    };
    every_way(server.address, |pair| {
        let mut client = pair.connect();
        let mut say = |words: &str, code: &str| {
            client.send(words);
            let answer = answer(&mut client);
            assert!(answer.starts_with(code), "{words:?}: {answer:?}");
            answer
        };
        say("", "220");
        say("EHLO client.test\r\n", "250");
        say("MAIL FROM:<a@client.test>\r\n", "250");
        say("RCPT TO:<b@server.test>\r\n", "250");
        say("DATA\r\n", "354");
        let subject = format!("port {}", pair.address.port());
        let line = "0123456789".repeat(7) + "\r\n";
        let text = format!("Subject: {subject}\r\n\r\n{}.\r\n", line.repeat(30_000));
        say(&text, "250");
        say("QUIT\r\n", "221");
        assert!(client.is_ended());
        tests_local::eventually("the message is there", || server.log().contains(&subject));
        none_failed(pair);
    });
}

/// An answer of a mail server: lines up to one without a hyphen after its code.
fn answer(client: &mut Client) -> String {
    let mut text = String::new();
    loop {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            line.extend(client.read_exact(1));
        }
        let more = line.get(3) == Some(&b'-');
        text.push_str(&String::from_utf8(line).unwrap());
        if !more {
            return text;
        }
    }
}

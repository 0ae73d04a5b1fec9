//! The access log never holds a request up, whoever reads it or does not.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use tests_local::{CLIENT, Client, Mesh, Proxy, Server, gateway_config, get, ok, proxy_binary};

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

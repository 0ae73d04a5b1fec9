//! The application's metrics at the sidecar's port: a scraper has no certificate of the mesh and could not
//! ask the application itself.

use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tests_local::{
    Client, Mesh, Proxy, SERVER, Server, eventually, free_port, inbound_config, ok, one,
};

/// An application's page, with a name that is the mesh's.
const PAGE: &[u8] =
    b"# TYPE jobs_total counter\njobs_total{kind=\"a\"} 7\n# EOF\ntulle_workers 99\n";

fn sidecar(mesh: &Mesh, app: &Server, port: u16) -> Proxy {
    let config = inbound_config(app.address()).set(
        "/applicationMetrics",
        json!({ "port": port, "path": "/stats?all" }),
    );
    Proxy::start(mesh, SERVER, config.file)
}

#[test]
fn both_are_served_and_a_page_that_is_broken_spoils_nothing() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let app = Server::http(move |request| {
        assert_eq!(request.target(), "/stats?all");
        assert_eq!(request.header("accept"), "text/plain;version=0.0.4");
        match count.fetch_add(1, Ordering::SeqCst) {
            0 => ok(PAGE),
            1 => ok(b"jobs_total 8\n<html>"),
            2 => b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n".to_vec(),
            3 => ok("a 1\n".repeat(1 << 20).as_bytes()),
            _ => ok(format!("{}\n", "a 1\n".repeat(1 << 20)).as_bytes()),
        }
    });
    let mesh = Mesh::new();
    let proxy = sidecar(&mesh, &app, app.address().port());
    let scrape = || one(proxy.metrics_address(), "/metrics").text();
    let first = scrape();
    assert!(
        first.contains("# TYPE jobs_total counter\njobs_total{kind=\"a\"} 7\n"),
        "{first}"
    );
    assert!(
        first.contains("\ntulle_application_metrics_up 1\n"),
        "{first}"
    );
    // Its own numbers are there, and nobody else says them.
    assert_eq!(first.matches("\ntulle_workers ").count(), 1, "{first}");
    assert!(!first.contains("tulle_workers 99"), "{first}");
    for what in ["no text of Prometheus", "no success"] {
        let page = scrape();
        assert!(
            page.contains("\ntulle_application_metrics_up 0\n"),
            "{what}: {page}"
        );
        assert!(page.contains("\ntulle_workers "), "{what}: {page}");
        assert!(!page.contains("jobs_total"), "{what}: {page}");
    }
    // The first answer has the largest allowed size, the next one byte more.
    assert!(scrape().contains("\na 1\n"));
    let long = scrape();
    assert!(long.len() < 1 << 20 && long.contains("\ntulle_application_metrics_up 0\n"));
    // The mesh's own questions leave the application alone.
    let before = asked.load(Ordering::SeqCst);
    let own = one(proxy.metrics_address(), "/metrics?only=proxy").text();
    assert!(own.contains("\ntulle_workers ") && !own.contains("tulle_application"));
    assert!(!proxy.admin("/metrics").text().contains("tulle_application"));
    assert_eq!(asked.load(Ordering::SeqCst), before);
}

#[test]
fn an_application_that_does_not_answer_is_not_waited_for_for_ever() {
    let app = Server::start(|connection| {
        let mut stream = connection.stream();
        let _ = std::io::Read::read_to_end(&mut stream, &mut Vec::new());
    });
    let mesh = Mesh::new();
    let proxy = sidecar(&mesh, &app, app.address().port());
    let mut client = Client::connect(proxy.metrics_address());
    client.send(
        "GET /metrics HTTP/1.1\r\nHost: a\r\nX-Prometheus-Scrape-Timeout-Seconds: 0.5\r\n\r\n",
    );
    let page = client.response("GET").text();
    assert!(
        page.contains("\ntulle_application_metrics_up 0\n"),
        "{page}"
    );
    assert!(page.contains("\ntulle_workers "), "{page}");
    eventually("the log says why", || {
        proxy.log().contains("no whole answer within 400ms")
    });

    // Nor one that is not there.
    let proxy = sidecar(&mesh, &app, free_port());
    let page = one(proxy.metrics_address(), "/metrics").text();
    assert!(
        page.contains("\ntulle_application_metrics_up 0\n"),
        "{page}"
    );
}

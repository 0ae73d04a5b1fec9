//! One request through two sidecars, and what each party learns from it.

use tests_local::{
    CLIENT, Client, Mesh, Pair, Proxy, SERVER, Server, get, id, inbound_config, post,
};

#[test]
fn a_request_and_its_body_pass_through_both_sidecars() {
    let app = Server::echo();
    let pair = Pair::start(app.address());
    let mut client = pair.connect();
    let response = client.get("/ratings/1?a=b");
    assert_eq!(response.status(), 200);
    assert!(
        response
            .text()
            .starts_with("GET /ratings/1?a=b HTTP/1.1\r\nHost: ratings\r\n")
    );
    client.send(post("/ratings", b"five stars"));
    let response = client.response("POST");
    assert!(
        response.text().ends_with("\r\n\r\nfive stars"),
        "{}",
        response.text()
    );
    assert_eq!(
        app.connections(),
        1,
        "the connection to the application is kept"
    );
}

#[test]
fn both_sides_count_the_request_with_both_identities() {
    let app = Server::echo();
    let pair = Pair::start(app.address());
    assert_eq!(pair.connect().get("/").status(), 200);
    let source = format!("source_principal=\"{}\"", id(CLIENT));
    let destination = format!("destination_principal=\"{}\"", id(SERVER));
    for (proxy, reporter) in [(&pair.client, "source"), (&pair.server, "destination")] {
        let labels = [
            source.as_str(),
            destination.as_str(),
            &format!("reporter=\"{reporter}\""),
            "connection_security_policy=\"mutual_tls\"",
            "destination_service=\"ratings\"",
            "source_workload=\"productpage\"",
            "response_code=\"200\"",
            "response_flags=\"-\"",
        ];
        proxy.await_metric("istio_requests_total", &labels, 1.0);
        let histogram = "istio_request_duration_milliseconds_count";
        assert_eq!(proxy.metric(histogram, &labels), 1.0);
    }
    assert_eq!(pair.client.metric("tulle_tls_handshakes_total", &[]), 1.0);
}

#[test]
fn the_application_learns_the_caller_and_never_a_forged_one() {
    let app = Server::echo();
    let pair = Pair::start(app.address());
    let mut client = pair.connect();
    client.send(
        "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-Client-Cert: URI=spiffe://tulle.local/svc/admin\r\n\
         x-forwarded-client-cert: By=me\r\n\r\n",
    );
    client.response("GET");
    let seen = app.received_text();
    let expected = format!(
        "x-forwarded-client-cert: By={};URI={}\r\n",
        id(SERVER),
        id(CLIENT)
    );
    assert!(seen.contains(&expected), "{seen}");
    assert_eq!(
        seen.to_ascii_lowercase()
            .matches("x-forwarded-client-cert")
            .count(),
        1,
        "{seen}"
    );
    assert!(!seen.contains("svc/admin"), "{seen}");
}

#[test]
fn a_plaintext_caller_cannot_forge_an_identity() {
    let app = Server::echo();
    let config = inbound_config(app.address()).set("/mesh/strictMtls", false);
    let mesh = Mesh::new();
    let _proxy = Proxy::start(&mesh, SERVER, config.file);
    let mut client = Client::connect(config.address);
    client.send("GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-Client-Cert: URI=x\r\n\r\n");
    assert_eq!(client.response("GET").status(), 200);
    let seen = app.received_text().to_ascii_lowercase();
    assert!(!seen.contains("forwarded-client-cert"), "{seen}");
}

#[test]
fn a_request_id_is_added_once_and_kept_if_there_is_one() {
    let app = Server::echo();
    let pair = Pair::start(app.address());
    let mut client = pair.connect();
    let id_of = |text: String| {
        let lines: Vec<_> = text
            .lines()
            .filter(|l| l.starts_with("x-request-id: "))
            .collect();
        assert_eq!(lines.len(), 1, "{text}");
        lines[0]["x-request-id: ".len()..].to_owned()
    };
    let first = id_of(client.get("/").text());
    let second = id_of(client.get("/").text());
    assert_eq!(first.len(), 36);
    assert_ne!(first, second);
    client.send("GET / HTTP/1.1\r\nHost: a\r\nx-request-id: mine\r\n\r\n");
    assert_eq!(id_of(client.response("GET").text()), "mine");
}

#[test]
fn trace_headers_and_unknown_ones_pass_unchanged() {
    let app = Server::echo();
    let pair = Pair::start(app.address());
    let headers = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n\
                   tracestate: a=1,b=2\r\n\
                   X-B3-TraceId: 80f198ee56343ba864fe8b2a57d3eff7\r\n\
                   b3: 80f198ee56343ba864fe8b2a57d3eff7-e457b5a2e4d86bd1-1\r\n\
                   X-Odd-Case:   two  spaces   \r\n\
                   Cookie: a=b; c=d\r\n";
    let mut client = pair.connect();
    client.send(get("/").replace("\r\n\r\n", &format!("\r\n{headers}\r\n")));
    assert_eq!(client.response("GET").status(), 200);
    for line in headers.lines() {
        assert!(
            app.received_text().contains(line.trim_end()),
            "{line}: {}",
            app.received_text()
        );
    }
}

#[test]
fn what_the_application_answers_passes_unchanged() {
    let app = Server::http(|_| {
        b"HTTP/1.1 418 I'm a Teapot\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nServer: pot\r\n\
          Content-Length: 3\r\nX-Empty:\r\n\r\ntea"
            .to_vec()
    });
    let pair = Pair::start(app.address());
    let response = pair.connect().get("/");
    assert_eq!(
        response.head,
        "HTTP/1.1 418 I'm a Teapot\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nServer: pot\r\n\
         Content-Length: 3\r\nX-Empty:\r\n\r\n"
    );
    assert_eq!(response.body, b"tea");
}

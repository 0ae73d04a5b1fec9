//! Spans of requests, told to a collector, and the trace's context that is passed on.

use http::HeaderMap;
use serde_json::{Value, json};
use std::net::SocketAddr;
use tests_local::{
    CLIENT, Client, Collector, Config, Http2Client, Http2Server, Mesh, Message, Pair, Proxy,
    SERVER, Server, eventually, free_port, gateway_config, id, ok, public_config, request,
};
use tulle_tls::testing::Leaf;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";
const ALL: u32 = 1_000_000;

fn traced(config: Config, collector: SocketAddr, sampling: u32) -> Config {
    config.set("/mesh/tracing", settings(collector, sampling))
}

fn settings(collector: SocketAddr, sampling: u32) -> Value {
    json!({
        "endpoint": collector.to_string(),
        "samplingPpm": sampling,
        "attributes": { "deployment.environment.name": "test" },
    })
}

fn pair(app: SocketAddr, collector: SocketAddr, sampling: u32) -> Pair {
    Pair::with(app, |client, server| {
        (
            traced(client, collector, sampling),
            traced(server, collector, sampling),
        )
    })
}

/// Asks, and reads what has arrived at an application that answers with it.
fn ask(address: SocketAddr, fields: &str) -> Message {
    let mut client = Client::connect(address);
    let head = "GET /ratings/7?secret=1 HTTP/1.1\r\nHost: ratings:9080\r\n";
    client.send(format!("{head}{fields}\r\n"));
    client.response("GET")
}

/// The field of the request as the application saw it.
fn seen(response: &Message, name: &str) -> Vec<String> {
    let text = response.text();
    let lines = text.lines().filter_map(|line| line.split_once(": "));
    let same = lines.filter(|(n, _)| n.eq_ignore_ascii_case(name));
    same.map(|(_, value)| value.to_owned()).collect()
}

/// Ends both sidecars in order, which sends what they hold.
fn end(pair: Pair) {
    let Pair {
        mut client,
        mut server,
        ..
    } = pair;
    for proxy in [&mut client, &mut server] {
        proxy.terminate();
        assert_eq!(proxy.wait().code(), Some(0));
    }
}

#[test]
fn spans_go_out_over_http_as_well() {
    let collector = Collector::by_http();
    let app = Server::echo();
    let by_http = |config: Config| {
        traced(config, collector.address(), ALL).set("/mesh/tracing/protocol", json!("http"))
    };
    let pair = Pair::with(app.address(), |client, server| {
        (by_http(client), by_http(server))
    });
    assert_eq!(ask(pair.address, "").status(), 200);
    let spans = collector.expect(2);
    assert_eq!(spans[0].ids().0, spans[1].ids().0, "one trace: {spans:?}");
    pair.client
        .await_metric("tulle_traces_exported_total", &[], 1.0);
}

#[test]
fn a_call_is_one_trace_of_two_spans() {
    let collector = Collector::default();
    let app = Server::echo();
    let pair = pair(app.address(), collector.address(), ALL);
    let response = ask(pair.address, "tracestate: lost=1\r\n");
    assert_eq!(response.status(), 200);
    let spans = collector.expect(2);
    let [client, server] = spans.as_slice() else {
        panic!("{spans:?}");
    };
    let (trace, ours, parent) = client.ids();
    assert_eq!((trace.len(), ours.len(), parent.as_str()), (32, 16, ""));
    let (same, theirs, caller) = server.ids();
    assert_eq!((same, caller), (trace.clone(), ours));
    assert!(!client.is_server() && server.is_server());
    // The application continues where its sidecar is; a state without its parent is nobody's.
    assert_eq!(
        seen(&response, "traceparent"),
        [format!("00-{trace}-{theirs}-01")]
    );
    assert_eq!(seen(&response, "tracestate"), [""; 0]);

    for span in &spans {
        assert_eq!(span.span.name, "GET ratings");
        for (key, value) in [
            ("http.request.method", "GET"),
            ("url.path", "/ratings/7"),
            ("url.scheme", "http"),
            ("server.address", "ratings"),
            ("server.port", "9080"),
            ("http.response.status_code", "200"),
            ("tulle.source", &id(CLIENT)),
            ("tulle.destination", &id(SERVER)),
            ("tulle.service", SERVER),
            ("error.type", ""),
            ("http.request.resend_count", ""),
        ] {
            assert_eq!(span.said(key), value, "{key} of {span:?}");
        }
        assert_eq!(span.teller("deployment.environment.name"), "test");
        assert_eq!(span.failed(), None);
        let (from, to) = (span.span.start_time_unix_nano, span.span.end_time_unix_nano);
        assert!(from < to, "{from} to {to}");
    }
    assert_eq!(client.teller("service.name"), CLIENT);
    assert_eq!(server.teller("service.name"), SERVER);
    assert_eq!(
        client.said("network.peer.port"),
        pair.inbound.port().to_string()
    );
    assert_eq!(server.said("client.address"), "127.0.0.1");
    let (outer, inner) = (&client.span, &server.span);
    assert!(outer.start_time_unix_nano <= inner.start_time_unix_nano);
    pair.client
        .await_metric("tulle_traces_exported_total", &[], 1.0);
    assert_eq!(pair.client.metric("tulle_traces_dropped_total", &[]), 0.0);
}

#[test]
fn who_comes_with_a_trace_stays_in_it_and_unsampled_ones_leave_nothing() {
    let collector = Collector::default();
    let app = Server::echo();
    // No request is sampled by the sidecars themselves.
    let pair = pair(app.address(), collector.address(), 0);
    let w3c = |flags: &str| format!("traceparent: 00-{TRACE}-{CALLER}-{flags}\r\n");
    let state = "tracestate: congo=t61rcWkgMzE,rojo=00f067aa0ba902b7\r\n";

    let response = ask(pair.address, &(w3c("01") + state));
    let parents = seen(&response, "traceparent");
    assert_eq!(
        seen(&response, "tracestate"),
        ["congo=t61rcWkgMzE,rojo=00f067aa0ba902b7"]
    );
    let kept = ask(pair.address, &(w3c("00") + state));
    assert_eq!(
        seen(&kept, "traceparent"),
        [format!("00-{TRACE}-{CALLER}-00")]
    );
    let silent = ask(pair.address, "");
    assert_eq!(seen(&silent, "traceparent"), [""; 0], "nobody has decided");
    // Two are as none.
    let twice = ask(pair.address, &(w3c("01") + &w3c("01")));
    assert_eq!(seen(&twice, "traceparent").len(), 2);

    end(pair);
    let spans = collector.expect(2);
    let (trace, ours, parent) = spans[0].ids();
    assert_eq!((trace.as_str(), parent.as_str()), (TRACE, CALLER));
    let (trace, theirs, parent) = spans[1].ids();
    assert_eq!((trace.as_str(), parent), (TRACE, ours));
    assert_eq!(parents, [format!("00-{TRACE}-{theirs}-01")]);
}

#[test]
fn a_sidecar_that_decides_against_it_tells_those_behind() {
    let collector = Collector::default();
    let app = Server::echo();
    // The server's sidecar would record all, if it were asked.
    let mesh = Pair::with(app.address(), |client, server| {
        (
            traced(client, collector.address(), 1),
            traced(server, collector.address(), ALL),
        )
    });
    let response = ask(mesh.address, "");
    let parents = seen(&response, "traceparent");
    assert!(
        parents.len() == 1 && parents[0].ends_with("-00"),
        "{parents:?}"
    );
    end(mesh);
    assert!(collector.taken().is_empty(), "{:?}", collector.taken());
}

#[test]
fn b3_goes_on_as_it_came() {
    let collector = Collector::default();
    let app = Server::echo();
    let pair = pair(app.address(), collector.address(), 0);
    let short = &TRACE[16..];
    let many = format!(
        "X-B3-TraceId: {short}\r\nX-B3-SpanId: {CALLER}\r\nX-B3-ParentSpanId: {CALLER}\r\n"
    );

    let single = ask(pair.address, &format!("b3: {TRACE}-{CALLER}-1\r\n"));
    let multi = ask(pair.address, &format!("{many}X-B3-Sampled: 1\r\n"));
    let dropped = ask(pair.address, &format!("{many}X-B3-Sampled: 0\r\n"));
    let denied = ask(pair.address, "b3: 0\r\n");
    assert_eq!(seen(&dropped, "x-b3-spanid"), [CALLER]);
    assert_eq!(seen(&denied, "b3"), ["0"]);
    end(pair);

    let mut spans = collector.expect(4);
    spans.sort_by_key(|s| (s.ids().0 != TRACE, s.is_server()));
    let (_, client, caller) = spans[0].ids();
    let (_, server, parent) = spans[1].ids();
    assert_eq!(
        (caller.as_str(), parent.as_str()),
        (CALLER, client.as_str())
    );
    assert_eq!(
        seen(&single, "b3"),
        [format!("{TRACE}-{server}-1-{client}")]
    );
    assert_eq!(seen(&single, "traceparent"), [""; 0]);
    let (trace, client, caller) = spans[2].ids();
    assert_eq!(
        (trace, caller.as_str()),
        (format!("{:0>32}", short), CALLER)
    );
    let (_, server, parent) = spans[3].ids();
    assert_eq!(parent, client);
    for (name, value) in [
        ("x-b3-traceid", short),
        ("x-b3-spanid", &server),
        ("x-b3-parentspanid", &client),
        ("x-b3-sampled", "1"),
    ] {
        assert_eq!(seen(&multi, name), [value], "{name}");
    }
}

#[test]
fn failures_say_their_reason() {
    let collector = Collector::default();
    let app = Server::http(|_| b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_vec());
    let pair = Pair::with(app.address(), |client, server| {
        let policy = json!({ "rules": [{
            "name": "t", "sources": [id(CLIENT)], "matches": [{ "pathRegex": "/ratings/7" }] }] });
        (
            traced(client, collector.address(), ALL),
            traced(server, collector.address(), ALL).set("/inbound/policy", policy),
        )
    });
    assert_eq!(ask(pair.address, "").status(), 404);
    let denied = tests_local::one(pair.address, "/other");
    assert_eq!(denied.status(), 403);
    end(pair);
    let spans = collector.expect(4);
    let find = |path: &str, server: bool| {
        let is = |s: &&tests_local::Taken| s.said("url.path") == path && s.is_server() == server;
        spans.iter().find(is).unwrap()
    };
    let refused = find("/other", true);
    assert_eq!(refused.said("error.type"), "denied");
    let detail = refused.failed().unwrap();
    assert!(detail.contains("may not call"), "{detail}");
    assert_eq!(refused.said("http.response.status_code"), "403");
    assert_eq!(find("/other", false).said("error.type"), "403");
    // A 404 is a failure of the caller, not of the server.
    assert_eq!(find("/ratings/7", false).said("error.type"), "404");
    let fine = find("/ratings/7", true);
    assert_eq!(
        (fine.said("error.type").as_str(), fine.failed()),
        ("", None)
    );
}

#[test]
fn a_request_that_is_sent_again_is_one_span_that_says_so() {
    let collector = Collector::default();
    let tries = std::sync::atomic::AtomicU32::new(0);
    let app =
        Server::http(
            move |_| match tries.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
                0 | 1 => b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n".to_vec(),
                _ => ok(b"fine"),
            },
        );
    let rules = json!([{
        "backends": [{ "service": SERVER, "port": 9080 }],
        "retry": { "attempts": 2, "statuses": [503] },
    }]);
    let pair = Pair::with(app.address(), |client, server| {
        let client = client.set(
            "/services/0/routes",
            json!([{ "name": "r", "rules": rules }]),
        );
        (
            traced(client, collector.address(), ALL),
            traced(server, collector.address(), ALL),
        )
    });
    assert_eq!(ask(pair.address, "").status(), 200);
    end(pair);
    let spans = collector.expect(4);
    assert_eq!(spans[0].said("http.request.resend_count"), "2");
    assert_eq!(spans[0].said("http.response.status_code"), "200");
    let (_, client, _) = spans[0].ids();
    let statuses: Vec<_> = spans[1..]
        .iter()
        .map(|s| s.said("http.response.status_code"))
        .collect();
    assert_eq!(statuses, ["503", "503", "200"]);
    assert!(
        spans[1..]
            .iter()
            .all(|s| s.ids().2 == client && s.is_server())
    );
}

#[test]
fn a_gateway_begins_a_trace_for_clients_outside() {
    let collector = Collector::default();
    let app = Server::echo();
    let mesh = Mesh::new();
    let config = traced(gateway_config(app.address()), collector.address(), ALL);
    let address = config.address;
    let proxy = Proxy::start(&mesh, "edge", config.file);
    let response = ask(address, "");
    let spans = collector.expect(1);
    let (trace, span, parent) = spans[0].ids();
    assert_eq!(
        seen(&response, "traceparent"),
        [format!("00-{trace}-{span}-01")]
    );
    assert!(parent.is_empty() && spans[0].is_server());
    assert_eq!(spans[0].said("client.address"), "127.0.0.1");
    // It calls the service as itself.
    assert_eq!(spans[0].said("tulle.source"), id("edge"));
    assert_eq!(spans[0].teller("service.name"), "edge");
    proxy.await_metric("tulle_traces_exported_total", &[], 1.0);
}

#[tokio::test]
async fn grpc_says_its_own_status() {
    let collector = std::thread::spawn(Collector::default).join().unwrap();
    let app = Http2Server::start(|_, mut respond| async move {
        let response = http::Response::builder().header("content-type", "application/grpc");
        let mut send = respond
            .send_response(response.body(()).unwrap(), false)
            .unwrap();
        send.send_data(bytes::Bytes::from_static(b"\0\0\0\0\0"), false)
            .unwrap();
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", "14".parse().unwrap());
        send.send_trailers(trailers).unwrap();
    })
    .await;
    let pair = Pair::with(app.address(), |client, server| {
        let client = client.set("/services/0/ports/0/protocol", "grpc");
        let server = server.set("/inbound/ports/0/protocol", "grpc");
        (
            traced(client, collector.address(), ALL),
            traced(server, collector.address(), ALL),
        )
    });
    let client = Http2Client::connect(pair.address).await;
    let mut call = request("POST", "/shop.Shop/Buy");
    let grpc = http::HeaderValue::from_static("application/grpc");
    call.headers_mut().insert("content-type", grpc);
    let answer = client.exchange(call, "x", None).await.unwrap();
    assert_eq!(answer.status(), 200);
    tokio::task::spawn_blocking(move || {
        end(pair);
        for span in collector.expect(2) {
            assert_eq!(span.said("rpc.grpc.status_code"), "14", "{span:?}");
            assert_eq!(span.said("error.type"), "14");
            assert_eq!(span.said("url.path"), "/shop.Shop/Buy");
        }
        drop(collector);
    })
    .await
    .unwrap();
}

#[test]
fn without_the_collector_requests_go_on_and_losses_are_counted() {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let app = Server::echo();
    let mut pair = pair(app.address(), address, ALL);
    let mut client = pair.connect();
    // More than what waits in the exporter and the ring together.
    for _ in 0..80 {
        client.send(tests_local::get("/").repeat(50));
        for _ in 0..50 {
            assert_eq!(client.response("GET").status(), 200);
        }
    }
    let lost = |proxy: &Proxy| proxy.metric("tulle_traces_dropped_total", &[]);
    eventually("spans are lost", || lost(&pair.client) > 0.0);
    assert_eq!(pair.client.metric("tulle_traces_exported_total", &[]), 0.0);
    assert!(
        pair.client.log().contains("the collector"),
        "{}",
        pair.client.log()
    );

    // It comes, and gets what is left.
    let collector = Collector::on(address);
    eventually("spans come", || !collector.taken().is_empty());
    pair.client
        .await_metric("tulle_traces_exported_total", &[], 1.0);
    // And it goes: that keeps nobody from ending.
    drop(collector);
    assert_eq!(client.get("/").status(), 200);
    pair.client.terminate();
    assert_eq!(pair.client.wait().code(), Some(0));
}

#[test]
fn a_changed_configuration_holds_at_once() {
    let collector = Collector::default();
    let app = Server::echo();
    let mesh = Mesh::new();
    let config = gateway_config(app.address());
    let (address, mut file) = (config.address, config.file);
    let proxy = Proxy::start(&mesh, "edge", file.clone());
    assert_eq!(seen(&ask(address, ""), "traceparent"), [""; 0]);
    file["mesh"]["tracing"] = settings(collector.address(), ALL);
    let mut whole = proxy.config.clone();
    whole["mesh"] = file["mesh"].clone();
    proxy.reload(&whole);
    assert_eq!(seen(&ask(address, ""), "traceparent").len(), 1);
    collector.expect(1);
    // Roots that are none are refused, and the last good configuration stays.
    let mut wrong = whole.clone();
    wrong["mesh"]["tracing"]["endpoint"] = "https://127.0.0.1:4317".into();
    wrong["mesh"]["tracing"]["roots"] = "none".into();
    proxy.write_config(&wrong);
    eventually("it is refused", || {
        proxy.metric("tulle_config_refused_total", &[]) > 0.0
    });
    assert_eq!(seen(&ask(address, ""), "traceparent").len(), 1);
    collector.expect(2);
}

/// Over TLS, to a collector that must prove its name.
#[tokio::test]
async fn https() {
    let mesh = Mesh::new();
    let certificate = mesh.ca.issue_leaf(&Leaf {
        uris: Vec::new(),
        dns: vec!["localhost".into()],
        ..Leaf::new(&id(SERVER))
    });
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let tls = public_config(&certificate, &["h2"]);
    let _collector = Http2Server::on(
        listener,
        Some(tls),
        h2::server::Builder::new(),
        move |request, mut respond| {
            let told = told.clone();
            async move {
                let path = request.uri().path().to_owned();
                let mut body = request.into_body();
                let mut message = Vec::new();
                while let Some(Ok(data)) = body.data().await {
                    message.extend_from_slice(&data);
                }
                let _ = told.send((path, message));
                let response = http::Response::builder()
                    .header("content-type", "application/grpc")
                    .header("grpc-status", "0");
                let _ = respond.send_response(response.body(()).unwrap(), true);
            }
        },
    );
    let app = Server::echo();
    let config = gateway_config(app.address()).set(
        "/mesh/tracing",
        json!({ "endpoint": format!("https://localhost:{port}"), "roots": mesh.ca.pem(), "samplingPpm": ALL }),
    );
    let address = config.address;
    let proxy = Proxy::start(&mesh, "edge", config.file);
    assert_eq!(ask(address, "").status(), 200);
    let told = tokio::time::timeout(std::time::Duration::from_secs(15), heard.recv());
    let (path, message) = told.await.expect("spans come").unwrap();
    assert_eq!(
        path,
        "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
    );
    let text = String::from_utf8_lossy(&message);
    assert!(
        text.contains("service.name") && text.contains("/ratings/7"),
        "{text}"
    );
    assert!(!text.contains("secret"), "{text}");
    drop(proxy);
}

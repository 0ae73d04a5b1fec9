//! Once warm, forwarding a request allocates nothing, on either side.

use crate::counting;
use crate::{usual_post, usual_request, with_policy};
use serde_json::{Value, json};
use std::net::SocketAddr;
use tests_local::{
    CLIENT, Client, Config, Http2Client, Http2Server, Mesh, SERVER, Server, eventually, free_port,
    gateway_config, id, inbound_config, ok, outbound_config, read, request,
};
use tulle_proxy::control::file::Source;

const WARM_UP: usize = 500;
const REQUESTS: usize = 2000;
/// Warm-up is over when a round allocates nothing; it has to be over after so many.
const ROUNDS: usize = 20;
const CONNECTIONS: [usize; 4] = [1, 16, 64, 256];
/// Concurrent HTTP/2 streams of a connection.
const STREAMS: [usize; 2] = [1, 50];

/// Runs a whole proxy in threads of this process, which count.
fn run(mesh: &Mesh, name: &'static str, config: Config) {
    let certificates = mesh.certificate(name);
    let admin = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let file = mesh.path().join(format!("{name}.yaml"));
    let config = config
        .set("/identity", id(name))
        .set("/workers", 1)
        .set("/admin", admin.to_string())
        .set("/metrics", format!("127.0.0.1:{}", free_port()))
        .set("/certificates/certificate", path(&certificates, "cert.pem"))
        .set("/certificates/key", path(&certificates, "key.pem"))
        .set("/certificates/trustBundle", path(&certificates, "ca.pem"));
    std::fs::write(&file, config.file.to_string()).unwrap();
    std::thread::spawn(move || tulle_proxy::run::run(&Source::File(file)).unwrap());
    eventually("the proxy is ready", || {
        let ready = Client::try_connect(admin).and_then(|mut client| {
            client
                .try_send("GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
            client.try_response("GET")
        });
        ready.is_ok_and(|r| r.status() == 200)
    });
}

fn path(directory: &std::path::Path, file: &str) -> Value {
    directory.join(file).to_str().unwrap().into()
}

/// Sends requests over some connections at once: all are written before the first answer is read.
fn drive(clients: &mut [Client], request: &str, count: usize) {
    for _ in 0..count.div_ceil(clients.len()) {
        for client in &mut *clients {
            client.send(request);
        }
        for client in &mut *clients {
            assert_eq!(client.response("GET").status(), 200);
        }
    }
}

/// Like the function above, over one connection with so many streams at once.
async fn drive_http2(client: &Http2Client, body: usize, streams: usize, count: usize) {
    for _ in 0..count.div_ceil(streams) {
        let mut open = Vec::new();
        for _ in 0..streams {
            let method = if body == 0 { "GET" } else { "POST" };
            let mut request = request(method, "/ratings/7");
            let agent = http::HeaderValue::from_static("curl/8.5.0");
            request.headers_mut().insert("user-agent", agent);
            let (response, mut send) = client.open(request, body == 0).await.unwrap();
            if body > 0 {
                send.send_data(vec![b'x'; body].into(), true).unwrap();
            }
            open.push(response);
        }
        for response in open {
            let answer = read(response.await.unwrap()).await.unwrap();
            assert_eq!((answer.status(), answer.body.len()), (200, body));
        }
    }
}

/// How many buffers are in use at once differs from round to round, and each new most costs one
/// allocation; an allocation that belongs to requests comes in every round.
fn allocates_nothing(workers: &[usize], what: &str, mut drive: impl FnMut(usize)) {
    drive(WARM_UP);
    let mut rounds = Vec::new();
    while rounds.last() != Some(&0) {
        assert!(
            rounds.len() < ROUNDS,
            "{what}, {REQUESTS} requests a round: {rounds:?} allocations, such as these:\n{}",
            counting::found()
        );
        let count = || -> u64 { workers.iter().map(|w| counting::allocations(*w)).sum() };
        workers.iter().for_each(|w| counting::watch(*w, true));
        let before = count();
        drive(REQUESTS);
        rounds.push(count() - before);
        workers.iter().for_each(|w| counting::watch(*w, false));
    }
    println!("allocations, {what}, per {REQUESTS} requests: {rounds:?}");
}

/// One test, because threads of a name are told apart only by their number.
#[test]
fn a_proxied_request_allocates_nothing_after_warm_up() {
    let app = Server::http(|_| ok(b"five stars"));
    let mesh = Mesh::new();
    let server = with_policy(inbound_config(app.address()));
    let client = outbound_config(server.address);
    // Filters that edit nothing, retries that are not needed, and a route that is not taken.
    let backends = json!([{ "service": SERVER, "port": 9080 }]);
    let rules = json!([
        { "matches": [{ "path": { "prefix": "/not-asked" } }], "backends": backends,
          "filters": [{ "requestHeaders": { "add": [{ "name": "x-a", "value": "b" }] } }] },
        { "backends": backends,
          "filters": [{ "fault": { "abortStatus": 503, "abortPpm": 0 } },
                      { "mirror": { "service": SERVER, "port": 9080, "ppm": 0 } }],
          "retry": { "attempts": 2, "statuses": [503], "tryTimeoutMs": 10_000 } },
    ]);
    let gateway = gateway_config(app.address()).set(
        "/gateways/0/routes",
        json!([{ "name": "all", "rules": rules }]),
    );
    // Traces are wanted, of requests that come with one.
    let tracing = json!({ "endpoint": "127.0.0.1:9", "samplingPpm": 0 });
    let traced = gateway_config(app.address()).set("/mesh/tracing", tracing);
    let (entry, edge) = (client.address, gateway.address);
    let traced_edge = traced.address;
    run(&mesh, SERVER, server);
    run(&mesh, CLIENT, client);
    run(&mesh, "edge", gateway);
    run(&mesh, "traced", traced);
    // The same pair for an application that speaks HTTP/2, as its clients do.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let app2 = runtime.block_on(Http2Server::echo());
    let server =
        with_policy(inbound_config(app2.address())).set("/inbound/ports/0/protocol", "http2");
    let client = outbound_config(server.address).set("/services/0/ports/0/protocol", "http2");
    let entry2 = client.address;
    run(&mesh, SERVER, server);
    run(&mesh, CLIENT, client);
    let workers = counting::threads("worker-0");
    assert_eq!(workers.len(), 6, "a worker of each proxy");

    for (what, address, request) in [
        ("GET, two sidecars", entry, usual_request()),
        ("POST, two sidecars", entry, usual_post()),
        ("GET, gateway with filters", edge, usual_request()),
        ("GET, gateway with traces", traced_edge, usual_request()),
    ] {
        for connections in CONNECTIONS {
            let mut clients: Vec<_> = (0..connections).map(|_| Client::connect(address)).collect();
            let what = format!("{what}, {connections} connections");
            allocates_nothing(&workers, &what, |count| {
                drive(&mut clients, &request, count)
            });
        }
    }
    for (what, body) in [("GET", 0), ("POST", 1000)] {
        for streams in STREAMS {
            let client = runtime.block_on(Http2Client::connect(entry2));
            let what = format!("{what} over HTTP/2, two sidecars, {streams} streams");
            allocates_nothing(&workers, &what, |count| {
                runtime.block_on(drive_http2(&client, body, streams, count));
            });
        }
    }

    // The counters work: a new connection does allocate.
    let before: u64 = workers.iter().map(|w| counting::allocations(*w)).sum();
    drive(&mut [Client::connect(entry)], &usual_request(), 1);
    let after: u64 = workers.iter().map(|w| counting::allocations(*w)).sum();
    assert_ne!(before, after);
}

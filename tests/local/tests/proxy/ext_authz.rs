//! Another service of the mesh decides about requests: over HTTP or gRPC, behind a sidecar of its own.

use serde_json::{Value, json};
use std::net::SocketAddr;
use tests_local::{
    Config, Message, Pair, Proxy, SERVER, Server, eventually, id, inbound_config, ok, pause, post,
};

const AUTHZ: &str = "authz";

/// client → sidecar ═ sidecar of `ratings` → application; and ═ sidecar of `authz` → its application.
struct Asking {
    pair: Pair,
    authz: Proxy,
}

impl Asking {
    fn start(app: SocketAddr, authz: SocketAddr, filter: Value) -> Self {
        let protocol = match filter["grpc"] == true {
            true => "grpc",
            false => "http",
        };
        let sidecar = inbound_config(authz).set("/inbound/ports/0/protocol", protocol);
        let pair = pair(app, sidecar.address, protocol, filter);
        let only_ratings = json!({ "rules": [{ "name": "t", "sources": [id(SERVER)] }] });
        let Config { file, .. } = sidecar
            .set("/inbound/service", AUTHZ)
            .set("/inbound/policy", only_ratings);
        let authz = Proxy::start(&pair.mesh, AUTHZ, file);
        Self { pair, authz }
    }

    fn ask(&self, target: &str, fields: &str) -> Message {
        let mut client = self.pair.connect();
        client.send(format!(
            "GET {target} HTTP/1.1\r\nHost: ratings\r\n{fields}\r\n"
        ));
        client.response("GET")
    }
}

/// A pair whose server's sidecar asks at `authz`.
fn pair(app: SocketAddr, authz: SocketAddr, protocol: &str, filter: Value) -> Pair {
    let mut own = json!({ "name": "ExternalAuth/x", "service": AUTHZ, "port": 9080,
                          "timeoutMs": 10_000 });
    let given = filter.as_object().unwrap().clone();
    own.as_object_mut().unwrap().extend(given);
    let service = json!({ "name": AUTHZ, "identities": [id(AUTHZ)], "ports": [{
        "port": 9080, "protocol": protocol, "endpoints": [{ "address": authz.to_string() }] }] });
    let rules = json!([{ "name": "ExternalAuth/x", "filters": [{ "externalAuth": own }] }]);
    Pair::with(app, |client, server| {
        (
            client,
            server
                .set("/services", json!([service]))
                .set("/inbound/ports/0/rules", rules),
        )
    })
}

fn answer(status: &str, fields: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\n{fields}Content-Length: {length}\r\n\r\n{body}").into_bytes()
}

#[test]
fn who_is_allowed_passes_with_what_the_service_says_of_it() {
    let app = Server::echo();
    let authz = Server::http(|_| answer("200 OK", "X-User: anna\r\nX-Other: no\r\n", "fine"));
    let filter = json!({ "pathPrefix": "/check", "requestHeaders": ["x-team"],
                         "upstreamHeaders": ["x-user", "x-group"] });
    let mesh = Asking::start(app.address(), authz.address(), filter);
    let forged = "X-User: root\r\nx_user: root\r\nX-Group: wheel\r\n";
    let fields = format!("Authorization: Basic YTpi\r\nX-Team: a\r\nX-Secret: s\r\n{forged}");
    for _ in 0..2 {
        let response = mesh.ask("/ratings/1?a=b", &fields);
        assert_eq!(response.status(), 200, "{}", response.text());
        let seen = response.text().to_ascii_lowercase();
        assert!(seen.starts_with("get /ratings/1?a=b "), "{seen}");
        assert!(seen.contains("\r\nx-user: anna\r\n"), "{seen}");
        assert!(seen.contains("\r\nauthorization: basic ytpi\r\n"), "{seen}");
        assert!(!seen.contains("root") && !seen.contains("wheel"), "{seen}");
        assert!(!seen.contains("x-other"), "{seen}");
    }
    let asked = authz.received_text();
    assert!(
        asked.starts_with("GET /check/ratings/1?a=b HTTP/1.1\r\nhost: ratings\r\n"),
        "{asked}"
    );
    assert!(asked.contains("authorization: Basic YTpi\r\n"), "{asked}");
    assert!(asked.contains("x-team: a\r\n"), "{asked}");
    assert!(!asked.to_ascii_lowercase().contains("x-secret"), "{asked}");
    let caller = format!("URI={}", id(SERVER));
    assert!(asked.contains(&caller), "asked in mutual TLS: {asked}");
    let labels = ["outcome=\"allowed\""];
    mesh.pair
        .server
        .await_metric("tulle_external_auth_total", &labels, 2.0);
    assert!(mesh.authz.metric("tulle_tls_handshakes_total", &[]) >= 1.0);
}

#[test]
fn who_is_denied_gets_the_answer_of_the_service() {
    let app = Server::echo();
    let authz = Server::http(|request| match request.target() {
        "/login" => answer(
            "302 Found",
            "Location: https://login\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n",
            "",
        ),
        "/created" => answer("201 Created", "", ""),
        _ => answer(
            "403 Forbidden",
            "Content-Type: application/json\r\nX-Why: because\r\nConnection: x-hop\r\nX-Hop: 1\r\n\
             X-Tulle-Reason: forged\r\n",
            "{\"why\":1}",
        ),
    });
    let mesh = Asking::start(app.address(), authz.address(), json!({}));
    let denied = mesh.ask("/", "");
    assert_eq!(denied.status(), 403);
    assert_eq!(denied.header("x-tulle-reason"), "external_denied");
    assert_eq!(denied.header("content-type"), "application/json");
    assert_eq!(denied.header("x-why"), "because");
    assert_eq!(denied.text(), "{\"why\":1}");
    assert_eq!(denied.header("connection"), "", "no hop-by-hop fields");
    let login = mesh.ask("/login", "");
    assert_eq!(login.status(), 302);
    assert_eq!(login.header("location"), "https://login");
    assert_eq!(login.all("set-cookie"), ["a=1", "b=2"]);
    assert_eq!(mesh.ask("/created", "").status(), 403, "only 200 allows");
    assert_eq!(app.received_text(), "");
    let error = mesh.pair.server.await_error("external_denied");
    let detail = error["detail"].as_str().unwrap();
    assert!(detail.contains("ExternalAuth/x: service authz"), "{detail}");
}

#[test]
fn only_some_headers_of_a_denial_go_back_when_they_are_named() {
    let app = Server::echo();
    let authz = Server::http(|_| {
        let fields =
            "X-A: 1\r\nX-B: 2\r\nWWW-Authenticate: Basic\r\nTransfer-Encoding: chunked\r\n";
        let head = format!("HTTP/1.1 401 Unauthorized\r\n{fields}\r\n");
        [head.as_bytes(), b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"].concat()
    });
    let filter = json!({ "clientHeaders": ["x-a"] });
    let mesh = Asking::start(app.address(), authz.address(), filter);
    let denied = mesh.ask("/", "");
    assert_eq!(denied.status(), 401);
    assert_eq!(denied.header("x-a"), "1");
    assert_eq!(denied.header("x-b"), "");
    assert_eq!(denied.header("www-authenticate"), "Basic");
    assert_eq!(denied.text(), "abcde");
}

#[test]
fn a_service_that_cannot_be_asked_refuses_unless_it_fails_open() {
    let nobody: SocketAddr = ([127, 0, 0, 1], tests_local::free_port()).into();
    for fail_open in [false, true] {
        let app = Server::echo();
        let broken = Server::http(|_| answer("500 Oops", "", ""));
        let silent = Server::start(
            |mut connection| while connection.read_some().is_ok_and(|b| !b.is_empty()) {},
        );
        let filter =
            json!({ "failOpen": fail_open, "timeoutMs": 300, "upstreamHeaders": ["x-user"] });
        let meshes = [
            Asking::start(app.address(), broken.address(), filter.clone()),
            Asking::start(app.address(), silent.address(), filter.clone()),
            Asking::start(app.address(), nobody, filter.clone()),
        ];
        let refused_by_policy = {
            // Its sidecar allows nobody. It has time to say so.
            let mut filter = filter.clone();
            filter["timeoutMs"] = 10_000.into();
            let mesh = Asking::start(app.address(), broken.address(), filter);
            let mut file = mesh.authz.config.clone();
            file["inbound"]["policy"] = json!({});
            mesh.authz.reload(&file);
            mesh
        };
        for mesh in meshes.iter() {
            let response = mesh.ask("/", "x-user: root\r\n");
            if fail_open {
                assert_eq!(response.status(), 200);
                assert!(!response.text().contains("root"), "{}", response.text());
                let labels = ["outcome=\"failed_open\""];
                mesh.pair
                    .server
                    .await_metric("tulle_external_auth_total", &labels, 1.0);
            } else {
                assert_eq!(response.status(), 503);
                assert_eq!(response.header("x-tulle-reason"), "external_unavailable");
            }
        }
        assert_eq!(
            refused_by_policy.ask("/", "").status(),
            403,
            "a refusal is an answer"
        );
        if !fail_open {
            assert_eq!(app.received_text(), "");
        }
    }
}

#[test]
fn the_body_is_told_and_goes_on_whole() {
    let app = Server::echo();
    let authz = Server::http(|request| match request.text().contains("evil") {
        true => answer("403 Forbidden", "", ""),
        false => ok(b""),
    });
    let mesh = Asking::start(app.address(), authz.address(), json!({ "bodyBytes": 2000 }));
    let ask = |body: &[u8]| {
        let mut client = mesh.pair.connect();
        client.send(post("/", body));
        client.response("POST")
    };
    assert!(ask(b"good").text().ends_with("\r\n\r\ngood"));
    assert_eq!(ask(b"evil").status(), 403);
    let long = "x".repeat(100_000);
    let response = ask(long.as_bytes());
    assert!(response.text().ends_with(&long), "all of it");

    // The body is chunked and comes in pieces.
    let mut client = mesh.pair.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nev\r\n");
    pause(
        "between parts of a body",
        std::time::Duration::from_millis(50),
    );
    client.send("2\r\nil\r\n0\r\n\r\n");
    assert_eq!(client.response("POST").status(), 403);
    // Extensions are no part of what is told.
    let mut client = mesh.pair.connect();
    let chunk = format!("1;{}\r\nx\r\n", "e".repeat(255));
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    client.send(chunk.repeat(8));
    pause(
        "between parts of a body",
        std::time::Duration::from_millis(50),
    );
    client.send("4\r\nevil\r\n0\r\n\r\n");
    assert_eq!(client.response("POST").status(), 403);
    let mut client = mesh.pair.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    client.send("0000000000000001\r\nx\r\n".repeat(1999));
    assert_eq!(
        client.response("POST").status(),
        400,
        "little content in many bytes"
    );
    let mut client = mesh.pair.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
    assert_eq!(client.response("POST").status(), 100);
    client.send("evil");
    let mut last = client.response("POST");
    while last.status() == 100 {
        last = client.response("POST");
    }
    assert_eq!(last.status(), 403);
    assert!(!app.received_text().contains("evil"));
}

mod grpc {
    //! The same over gRPC, with a server that a library makes.

    use super::*;
    use std::sync::{Arc, Mutex};
    use tokio_stream::wrappers::TcpListenerStream;
    use tonic::{Request, Response, Status as Failed};
    use tulle_api::ext_authz::authorization_server::{Authorization, AuthorizationServer};
    use tulle_api::ext_authz::check_response::HttpResponse;
    use tulle_api::ext_authz::{
        BoolValue, CheckRequest, CheckResponse, DeniedHttpResponse, HeaderValue, HeaderValueOption,
        HttpStatus, OkHttpResponse, QueryParameter, Status,
    };

    type Decide = dyn Fn(&CheckRequest) -> Result<CheckResponse, Failed> + Send + Sync;

    struct Service {
        decide: Box<Decide>,
        asked: Arc<Mutex<Vec<CheckRequest>>>,
    }

    #[tonic::async_trait]
    impl Authorization for Service {
        async fn check(
            &self,
            request: Request<CheckRequest>,
        ) -> Result<Response<CheckResponse>, Failed> {
            let request = request.into_inner();
            let answer = (self.decide)(&request);
            self.asked.lock().unwrap().push(request);
            answer.map(Response::new)
        }
    }

    struct Decider {
        address: SocketAddr,
        asked: Arc<Mutex<Vec<CheckRequest>>>,
        _runtime: tokio::runtime::Runtime,
    }

    fn decider(
        decide: impl Fn(&CheckRequest) -> Result<CheckResponse, Failed> + Send + Sync + 'static,
    ) -> Decider {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build().unwrap();
        let asked = Arc::default();
        let service = Service {
            decide: Box::new(decide),
            asked: Arc::clone(&asked),
        };
        let listener =
            runtime.block_on(async { tokio::net::TcpListener::bind("127.0.0.1:0").await });
        let listener = listener.unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(
            tonic::transport::Server::builder()
                .add_service(AuthorizationServer::new(service))
                .serve_with_incoming(TcpListenerStream::new(listener)),
        );
        Decider {
            address,
            asked,
            _runtime: runtime,
        }
    }

    fn option(key: &str, value: &str, append: bool) -> HeaderValueOption {
        HeaderValueOption {
            header: Some(HeaderValue {
                key: key.into(),
                value: value.into(),
                raw_value: vec![],
            }),
            append: append.then_some(BoolValue { value: true }),
            append_action: 0,
        }
    }

    fn allowed(ok: OkHttpResponse) -> Result<CheckResponse, Failed> {
        Ok(CheckResponse {
            status: Some(Status::default()),
            http_response: Some(HttpResponse::OkResponse(ok)),
        })
    }

    fn denied(code: i32, body: &str) -> Result<CheckResponse, Failed> {
        Ok(CheckResponse {
            status: Some(Status {
                code: 7,
                message: "no".into(),
            }),
            http_response: Some(HttpResponse::DeniedResponse(DeniedHttpResponse {
                status: Some(HttpStatus { code }),
                headers: vec![option("X-Why", "because", false)],
                body: body.into(),
            })),
        })
    }

    #[test]
    fn who_is_allowed_passes_with_the_edits_of_the_service() {
        let app = Server::echo();
        let decider = decider(|_| {
            allowed(OkHttpResponse {
                headers: vec![option("x-user", "anna", false), option("x-list", "b", true)],
                headers_to_remove: vec!["X-Secret".into()],
                response_headers_to_add: vec![option("x-seen", "yes", false)],
                ..Default::default()
            })
        });
        let filter = json!({ "grpc": true, "bodyBytes": 100 });
        let mesh = Asking::start(app.address(), decider.address, filter);
        let mut client = mesh.pair.connect();
        for _ in 0..3 {
            client.send(
                "POST /ratings/1?a=b HTTP/1.1\r\nHost: shop\r\nX-User: root\r\nX-List: a\r\n\
                 X-Secret: s\r\nContent-Length: 4\r\n\r\nbody",
            );
            let response = client.response("POST");
            assert_eq!(response.status(), 200, "{}", response.text());
            assert_eq!(response.header("x-seen"), "yes");
            let seen = response.text().to_ascii_lowercase();
            assert!(seen.contains("\r\nx-user: anna\r\n"), "{seen}");
            assert!(
                !seen.contains("root") && !seen.contains("x-secret"),
                "{seen}"
            );
            assert_eq!(seen.matches("x-list:").count(), 2, "{seen}");
            assert!(seen.ends_with("\r\n\r\nbody"), "{seen}");
        }
        let asked = decider.asked.lock().unwrap();
        assert_eq!(asked.len(), 3);
        let attributes = asked[0].attributes.as_ref().unwrap();
        let source = attributes.source.as_ref().unwrap();
        assert_eq!(source.principal, id(tests_local::CLIENT));
        let address = source.address.as_ref().unwrap().socket_address.as_ref();
        assert_eq!(address.unwrap().address, "127.0.0.1");
        assert_eq!(
            attributes.destination.as_ref().unwrap().principal,
            id(SERVER)
        );
        let http = attributes.request.as_ref().unwrap().http.as_ref().unwrap();
        assert_eq!((&*http.method, &*http.path), ("POST", "/ratings/1?a=b"));
        assert_eq!((&*http.host, &*http.body, http.size), ("shop", "body", 4));
        assert_eq!(http.headers["x-user"], "root");
        assert_eq!(http.id, http.headers["x-request-id"]);
    }

    #[test]
    fn who_is_denied_gets_the_answer_of_the_service() {
        let app = Server::echo();
        let decider = decider(|_| denied(402, "pay"));
        let mesh = Asking::start(app.address(), decider.address, json!({ "grpc": true }));
        let response = mesh.ask("/", "");
        assert_eq!(response.status(), 402);
        assert_eq!(response.header("x-tulle-reason"), "external_denied");
        assert_eq!(response.header("x-why"), "because");
        assert_eq!(response.text(), "pay");
        assert_eq!(app.received_text(), "");
    }

    #[test]
    fn an_answer_that_cannot_be_carried_out_refuses() {
        let app = Server::echo();
        let decider = decider(|request| {
            let attributes = request.attributes.as_ref().unwrap();
            let http = attributes.request.as_ref().unwrap().http.as_ref().unwrap();
            match http.path.as_str() {
                "/failed" => Err(Failed::internal("oops")),
                "/host" => allowed(OkHttpResponse {
                    headers: vec![option("host", "other", false)],
                    ..Default::default()
                }),
                "/split" => allowed(OkHttpResponse {
                    headers: vec![option("x-a", "1\r\nx-b: 2", false)],
                    ..Default::default()
                }),
                "/query" => allowed(OkHttpResponse {
                    query_parameters_to_set: vec![QueryParameter::default()],
                    ..Default::default()
                }),
                _ => allowed(OkHttpResponse::default()),
            }
        });
        let mesh = Asking::start(app.address(), decider.address, json!({ "grpc": true }));
        assert_eq!(mesh.ask("/fine", "").status(), 200);
        for target in ["/failed", "/host", "/split", "/query"] {
            let response = mesh.ask(target, "");
            assert_eq!(
                (response.status(), response.header("x-tulle-reason")),
                (503, "external_unavailable"),
                "{target}"
            );
        }
        assert_eq!(app.received_text().matches("GET ").count(), 1);
    }
}

#[test]
fn a_service_that_fails_is_no_longer_asked_while_its_circuit_is_open() {
    let app = Server::echo();
    let authz = Server::http(|_| answer("500 Broken", "", ""));
    let mesh = Asking::start(app.address(), authz.address(), json!({}));
    let mut file = mesh.pair.server.config.clone();
    file["services"][0]["ports"][0]["traffic"] =
        json!({ "breaker": { "minRequests": 2, "errorAmount": 2, "openMs": 600_000 } });
    mesh.pair.server.reload(&file);
    let asked = || authz.received_text().matches("GET /").count();
    eventually("the circuit is open", || {
        let before = asked();
        assert_eq!(mesh.ask("/", "").status(), 503);
        before > 0 && asked() == before
    });
    let failed = mesh.pair.server.await_error("external_unavailable");
    assert!(failed["detail"].as_str().is_some());
    let before = asked();
    (0..5).for_each(|_| assert_eq!(mesh.ask("/", "").status(), 503));
    assert_eq!(asked(), before);
}

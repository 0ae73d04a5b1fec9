//! The console as browsers and others meet it: the real server over a real controller.

#![allow(clippy::unwrap_used)]

mod client;

use client::{Reply, Site, session, site, site_with};
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::time::timeout;
use tulle_console::{ConsoleClock, ConsoleConfig, RunningConsole};
use tulle_control::observe::Refusal;

fn error(reply: &Reply) -> String {
    let body = reply.json();
    for field in ["message", "fix"] {
        assert!(body["error"][field].as_str().is_some(), "{body}");
    }
    body["error"]["code"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn another_name_that_leads_here_is_not_answered() {
    let site = site().await;
    let port = site.address.port();
    for host in [
        format!("evil.example:{port}"),
        "evil.example".into(),
        format!("127.0.0.1.evil.example:{port}"),
        "127.0.0.1".into(),
    ] {
        for path in ["/", "/api/v1/graph", "/assets/none.js"] {
            let reply = site.get_as(path, &[("host", &host)]).await;
            assert_eq!((reply.status, error(&reply).as_str()), (421, "wrong_host"));
        }
    }
    let host = format!("localhost:{port}");
    assert_eq!(site.get_as("/", &[("host", &host)]).await.status, 200);
}

#[tokio::test]
async fn other_sites_can_neither_read_nor_act() {
    let site = site_with(|config| config.actions = true).await;
    let session = session(&site).await;
    let csrf = site.get_in(&session, "/api/v1/session").await.json()["csrf"].clone();
    let csrf = csrf.as_str().unwrap();
    let origin = site.origin();
    let body = json!({ "kind": "HTTPRouteGroup", "name": "none" }).to_string();
    let delete = async |headers: &[(&str, &str)]| {
        let usual = [
            ("cookie", session.as_str()),
            ("content-type", "application/json"),
        ];
        let headers = [&usual, headers].concat();
        let path = "/api/v1/actions/delete";
        site.send("POST", path, &headers, body.as_bytes()).await
    };
    // A form of another page: its origin, or none at all.
    let foreign = delete(&[("origin", "http://evil.example")]).await;
    assert_eq!(
        (foreign.status, error(&foreign).as_str()),
        (403, "wrong_origin")
    );
    assert_eq!(delete(&[("x-tulle-csrf", csrf)]).await.status, 403);
    let sites = [("origin", origin.as_str()), ("sec-fetch-site", "same-site")];
    assert_eq!(error(&delete(&sites).await), "wrong_origin");
    let missing = delete(&[("origin", &origin)]).await;
    assert_eq!(
        (missing.status, error(&missing).as_str()),
        (403, "wrong_csrf")
    );
    let wrong = delete(&[
        ("origin", &origin),
        ("x-tulle-csrf", "AAAAAAAAAAAAAAAAAAAAAA"),
    ])
    .await;
    assert_eq!(error(&wrong), "wrong_csrf");
    let right = delete(&[("origin", &origin), ("x-tulle-csrf", csrf)]).await;
    assert_eq!(
        right.status,
        404,
        "there is no such object: {}",
        right.json()
    );
    // Without a session the token is none.
    let headers = [
        ("origin", origin.as_str()),
        ("x-tulle-csrf", csrf),
        ("content-type", "application/json"),
    ];
    let path = "/api/v1/actions/delete";
    let none = site.send("POST", path, &headers, body.as_bytes()).await;
    assert_eq!((none.status, error(&none).as_str()), (401, "no_session"));

    for path in ["/api/v1/graph", "/api/v1/events", "/api/v1/tap"] {
        let headers = [
            ("cookie", session.as_str()),
            ("sec-fetch-site", "cross-site"),
        ];
        let reply = site.get_as(path, &headers).await;
        assert_eq!(error(&reply), "wrong_origin", "{path}");
    }
}

#[tokio::test]
async fn actions_are_off_unless_the_operator_allows_them() {
    let site = site().await;
    let session = session(&site).await;
    let facts = site.get_in(&session, "/api/v1/session").await.json();
    assert_eq!(facts["actions"], false);
    for action in ["log-level", "apply", "delete", "revoke"] {
        let headers = [
            ("origin", site.origin()),
            ("cookie", session.clone()),
            ("content-type", "application/json".into()),
            ("x-tulle-csrf", facts["csrf"].as_str().unwrap().to_owned()),
        ];
        let headers = headers
            .each_ref()
            .map(|(name, value)| (*name, value.as_str()));
        let path = format!("/api/v1/actions/{action}");
        let reply = site.send("POST", &path, &headers, b"{}").await;
        assert_eq!((reply.status, error(&reply).as_str()), (403, "read_only"));
        assert!(
            reply.json()["error"]["fix"]
                .as_str()
                .unwrap()
                .contains("--console-actions")
        );
    }
}

#[tokio::test]
async fn a_code_opens_one_session_with_a_strict_cookie() {
    let site = site().await;
    let code = site.code();
    let reply = site.open(&code).await;
    assert_eq!(reply.status, 200);
    let cookie = reply.header("set-cookie");
    let port = site.address.port();
    assert!(
        cookie.starts_with(&format!("tulle-console-{port}=")),
        "{cookie}"
    );
    let attributes: Vec<&str> = cookie.split("; ").skip(1).collect();
    assert_eq!(
        attributes,
        ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"]
    );
    let again = site.open(&code).await;
    assert_eq!((again.status, error(&again).as_str()), (401, "no_session"));
    assert!(!again.has("set-cookie"));
    for wrong in ["", "A", "AAAAAAAAAAAAAAAAAAAAAA"] {
        assert_eq!(site.open(wrong).await.status, 401);
    }

    let session = cookie.split(';').next().unwrap();
    let facts = site.get_in(session, "/api/v1/session").await.json();
    assert_eq!(facts["user"], "tester");
    let mesh = &facts["mesh"];
    for field in ["name", "trustDomain", "version", "platform", "where"] {
        assert!(mesh[field].is_string(), "{facts}");
    }
    assert!(facts["csrf"].as_str().unwrap().len() >= 22, "{facts}");
    assert!(
        facts["expiresAt"].as_u64().unwrap() > 1_700_000_000,
        "{facts}"
    );
    let forged = format!("tulle-console-{port}=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA");
    for other in ["a=b", forged.as_str()] {
        let reply = site.get_in(other, "/api/v1/graph").await;
        assert_eq!((reply.status, error(&reply).as_str()), (401, "no_session"));
    }
}

#[tokio::test]
async fn codes_and_sessions_expire_and_streams_with_them() {
    let seconds = Arc::<AtomicU64>::default();
    let shown = seconds.clone();
    let now = move || Duration::from_secs(shown.load(Ordering::Relaxed));
    let site = site_with(|config| config.clock = ConsoleClock::new(now)).await;
    let (old, new) = (site.code(), site.code());
    seconds.store(59, Ordering::Relaxed);
    let session = site.open(&new).await.cookie();
    seconds.store(60, Ordering::Relaxed);
    assert_eq!(site.open(&old).await.status, 401);
    let mut stream = site.stream(&session, "/api/v1/events").await;
    assert_eq!(stream.event().await.0, "graph");
    seconds.store(60 + 12 * 3600, Ordering::Relaxed);
    assert_eq!(site.get_in(&session, "/api/v1/graph").await.status, 401);
    assert_eq!(stream.end().await, "session_expired");
}

#[tokio::test]
async fn no_path_leads_to_a_file() {
    let site = site().await;
    for path in [
        "/../Cargo.toml",
        "/assets/../../Cargo.toml",
        "/assets/%2e%2e/%2e%2e/Cargo.toml",
        "/assets/..%2f..%2fCargo.toml",
        "/assets/....//Cargo.toml",
        "//etc/passwd",
        "/etc/passwd",
        "/index.html%00",
        "/.git/config",
        "/api/v1/../../etc/passwd",
    ] {
        let reply = site.get_as(path, &[]).await;
        assert!(
            [400, 401, 404].contains(&reply.status),
            "{path}: {}",
            reply.status
        );
        assert!(!reply.text().contains("root:"), "{path}");
    }
}

#[tokio::test]
async fn the_page_comes_with_every_protection() {
    let site = site().await;
    let page = site.get_as("/", &[]).await;
    assert_eq!(page.status, 200);
    assert!(page.header("content-type").starts_with("text/html"));
    let text = page.text();
    let assets = text.split('"').filter(|part| part.starts_with("/assets/"));
    let assets: Vec<&str> = assets.collect();
    assert!(!assets.is_empty(), "{text}");
    for asset in assets {
        let reply = site.get_as(asset, &[("accept-encoding", "gzip")]).await;
        assert_eq!(
            (reply.status, reply.header("content-encoding")),
            (200, "gzip")
        );
        assert!(reply.header("cache-control").contains("immutable"));
        let kind = reply.header("content-type");
        let ends = asset.rsplit('.').next().unwrap();
        let expected = match ends {
            "js" => "text/javascript",
            "css" => "text/css",
            "svg" => "image/svg+xml",
            other => panic!("what is {other}?"),
        };
        assert!(kind.starts_with(expected), "{asset}: {kind}");
    }
    let api = site.get_as("/api/v1/graph", &[]).await;
    assert_eq!((api.status, api.header("cache-control")), (401, "no-store"));
    for reply in [page, api] {
        let policy = reply.header("content-security-policy");
        for part in [
            "default-src 'none'",
            "script-src 'self'",
            "connect-src 'self'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
            "form-action 'none'",
        ] {
            assert!(policy.contains(part), "{policy}");
        }
        assert!(!policy.contains("unsafe") && !policy.contains('*'));
        assert_eq!(reply.header("x-content-type-options"), "nosniff");
        assert_eq!(reply.header("referrer-policy"), "no-referrer");
        assert_eq!(reply.header("x-frame-options"), "DENY");
    }
}

#[tokio::test]
async fn what_is_too_large_or_malformed_is_refused() {
    let site = site_with(|config| config.actions = true).await;
    let session = session(&site).await;
    let long = "a".repeat(20 * 1024);
    let head = site.get_as("/", &[("x-long", &long)]).await;
    assert_eq!(head.status, 431);
    let origin = site.origin();
    let csrf = site.get_in(&session, "/api/v1/session").await.json()["csrf"].clone();
    let headers = [
        ("origin", origin.as_str()),
        ("cookie", session.as_str()),
        ("content-type", "application/json"),
        ("x-tulle-csrf", csrf.as_str().unwrap()),
    ];
    let post = async |path: &str, body: &[u8]| site.send("POST", path, &headers, body).await;
    let large = format!("{{\"yaml\":\"{}\"}}", "a".repeat(300 * 1024));
    let reply = post("/api/v1/actions/apply", large.as_bytes()).await;
    assert_eq!((reply.status, error(&reply).as_str()), (413, "bad_body"));
    // Whoever has no session yet sends a code, and nothing larger.
    let key = format!("{{\"code\":\"{}\"}}", "a".repeat(30 * 1024));
    assert_eq!(post("/api/v1/session", key.as_bytes()).await.status, 413);
    for body in [
        "",
        "{",
        "[]",
        "{\"code\":1}",
        "{\"code\":\"a\",\"more\":1}",
        "null",
    ] {
        let reply = post("/api/v1/session", body.as_bytes()).await;
        assert_eq!(
            (reply.status, error(&reply).as_str()),
            (400, "bad_body"),
            "{body}"
        );
    }
    let plain = [("origin", origin.as_str()), ("content-type", "text/plain")];
    let reply = site
        .send("POST", "/api/v1/session", &plain, b"{\"code\":\"a\"}")
        .await;
    assert_eq!(
        reply.status, 415,
        "a form of another page can send this type"
    );
    let tokens = post("/api/v1/session", b"{\"token\":\"a\"}").await;
    assert_eq!((tokens.status, error(&tokens).as_str()), (400, "no_tokens"));
    for method in ["PUT", "DELETE", "OPTIONS", "PATCH", "HEAD"] {
        let reply = site.send(method, "/", &[], b"").await;
        assert_eq!(reply.status, 405, "{method}");
        assert_eq!(reply.header("allow"), "GET, POST");
    }
    assert_eq!(post("/api/v1/actions/none", b"{}").await.status, 404);
    assert_eq!(post("/api/v1/graph", b"{}").await.status, 404);
}

#[tokio::test]
async fn slow_bodies_keep_nobody_from_a_session() {
    let site = site_with(|config| config.actions = true).await;
    let (origin, code) = (site.origin(), site.code());
    let headers = [
        ("origin", origin.as_str()),
        ("content-type", "application/json"),
    ];
    let mut slow = Vec::new();
    for _ in 0..8 {
        slow.push(site.post_slowly("/api/v1/session", &headers).await);
    }
    let opened = site.open(&code).await;
    assert_eq!(opened.status, 200, "{}", opened.text());

    // Bodies of actions are larger, and few are read at a time.
    let session = opened.cookie();
    let csrf = opened.json()["csrf"].as_str().unwrap().to_owned();
    let own = [
        ("cookie", session.as_str()),
        ("x-tulle-csrf", csrf.as_str()),
    ];
    let headers = [&headers[..], &own].concat();
    let path = "/api/v1/actions/delete";
    for _ in 0..4 {
        slow.push(site.post_slowly(path, &headers).await);
    }
    let more = site.send("POST", path, &headers, b"{}").await;
    assert_eq!((more.status, error(&more).as_str()), (503, "busy"));
    assert_eq!(site.open(&site.code()).await.status, 200);
}

#[tokio::test]
async fn every_route_answers_in_its_documented_form() {
    let site = site().await;
    site.apply(0, 3).await;
    let session = session(&site).await;
    let fields = |value: &Value| -> Vec<String> {
        let object = value.as_object().unwrap_or_else(|| panic!("{value}"));
        object.keys().cloned().collect()
    };
    for (path, expected) in [
        (
            "graph?window=60",
            "at window revision nodes edges rest coverage",
        ),
        ("services", "services"),
        ("proxies", "proxies"),
        ("objects", "objects"),
        ("objects?kind=HTTPRouteGroup", "objects"),
        ("certificates", "authority certificates"),
        ("findings", "findings"),
        ("marks?from=0&to=2000000000", "marks"),
        ("compare?before=1&after=2&window=60", "edges"),
        ("session", "user actions csrf expiresAt mesh"),
    ] {
        let reply = site.get_in(&session, &format!("/api/v1/{path}")).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        assert_eq!(reply.header("content-type"), "application/json");
        let expected: Vec<&str> = expected.split(' ').collect();
        assert_eq!(fields(&reply.json()), expected, "{path}");
    }
    for (path, status) in [
        ("edge?id=service%2Fa%3Eservice%2Fb", 404),
        ("service?name=none", 404),
        ("proxy?id=none", 404),
        ("proxy/config?id=none", 404),
        ("proxy/endpoints?id=none", 404),
        ("object?kind=HTTPRouteGroup&name=none", 404),
        ("none", 404),
        ("", 404),
        ("edge", 400),
        ("service", 400),
        ("why?from=a", 400),
        ("object?name=a", 400),
        ("compare", 400),
        ("graph?window=5", 400),
        ("graph?window=901", 400),
        ("graph?at=NaN", 400),
        ("graph?windows=60", 400),
        ("graph?window=60&window=70", 400),
        ("tap?status=x", 400),
        ("tap?failed=maybe", 400),
        ("events?all=1", 400),
    ] {
        let reply = site.get_in(&session, &format!("/api/v1/{path}")).await;
        assert_eq!(reply.status, status, "{path}: {}", reply.text());
        error(&reply);
    }
}

#[tokio::test]
async fn streams_are_bounded_for_a_session_and_for_all() {
    let site = site().await;
    let mut open = Vec::new();
    'all: loop {
        let session = session(&site).await;
        for _ in 0..20 {
            let stream = site.stream(&session, "/api/v1/events").await;
            if stream.status != 200 {
                assert_eq!(stream.status, 429);
                break 'all;
            }
            open.push(stream);
        }
        let more = site.get_in(&session, "/api/v1/events").await;
        assert_eq!(
            (more.status, error(&more).as_str()),
            (429, "too_many_streams")
        );
    }
    assert_eq!(open.len(), 64);
    for stream in &mut open {
        let (name, data) = stream.event().await;
        assert_eq!((name.as_str(), &data["whole"]), ("graph", &json!(true)));
        assert_eq!(stream.event().await.0, "findings");
    }
    // All others still have their answer.
    let session = session(&site).await;
    assert_eq!(site.get_in(&session, "/api/v1/graph").await.status, 200);
    drop(open);
    let reopened = async {
        while site.stream(&session, "/api/v1/events").await.status != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(10), reopened).await.unwrap();
}

#[tokio::test]
async fn who_reads_no_events_holds_up_nobody_and_is_told_so() {
    let site = site().await;
    let session = session(&site).await;
    let mut slow = site.slow_stream(&session, "/api/v1/events").await;
    let mut quick = site.stream(&session, "/api/v1/events").await;
    assert_eq!(quick.event().await.0, "graph");
    let begin = Instant::now();
    let mut longest = Duration::ZERO;
    let mut round = 0;
    // A browser is given up when it has taken nothing for ten seconds, or is 32 frames behind.
    while begin.elapsed() < Duration::from_secs(14) {
        let applied = Instant::now();
        site.apply(round, 200).await;
        longest = longest.max(applied.elapsed());
        round += 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(
        longest < Duration::from_secs(5),
        "an object took {longest:?}"
    );
    // On a busy machine the connection is given up first.
    let end = timeout(Duration::from_secs(30), slow.end_unless_cut()).await;
    assert!(matches!(end.unwrap().as_deref(), Some("slow") | None));
    let graph = site.get_in(&session, "/api/v1/graph").await;
    assert_eq!(graph.status, 200);
    // Whoever reads is told of all of it.
    let marks = async { while quick.event().await.0 != "mark" {} };
    timeout(Duration::from_secs(10), marks).await.unwrap();
}

#[tokio::test]
async fn without_a_stream_no_graph_is_prepared() {
    let site = site().await;
    // The controller looks at the mesh each five seconds if somebody follows it.
    tokio::time::sleep(Duration::from_secs(6)).await;
    let session = session(&site).await;
    let mut stream = site.stream(&session, "/api/v1/events").await;
    let (name, graph) = stream.event().await;
    assert_eq!((name.as_str(), &graph["revision"]), ("graph", &json!(1)));
}

#[tokio::test]
async fn streams_hear_of_the_end() {
    let site = site().await;
    let session = session(&site).await;
    let mut stream = site.stream(&session, "/api/v1/events").await;
    assert_eq!(stream.event().await.0, "graph");
    let Site { console, .. } = site;
    console.shutdown().await;
    assert_eq!(stream.end().await, "shutdown");
}

#[tokio::test]
async fn in_a_cluster_a_token_is_reviewed_and_the_port_is_any() {
    let visitors = |token: String| -> Result<String, Refusal> {
        match token.as_str() {
            "good" => Ok("system:serviceaccount:a:b".into()),
            _ => Err(Refusal {
                code: "not_allowed",
                message: "may not get meshes.tulle.dev".into(),
                fix: "ask for it".into(),
                status: 403,
            }),
        }
    };
    let site = site_with(move |config| {
        config.forwarded = true;
        config.visitors = Some(Arc::new(move |token| {
            Box::pin(async move { visitors(token) })
        }));
    })
    .await;
    let host = "127.0.0.1:40404";
    let post = async |body: Value| {
        let headers = [
            ("host", host),
            ("origin", "http://127.0.0.1:40404"),
            ("content-type", "application/json"),
        ];
        let body = body.to_string();
        site.send("POST", "/api/v1/session", &headers, body.as_bytes())
            .await
    };
    let refused = post(json!({ "token": "bad" })).await;
    assert_eq!(
        (refused.status, error(&refused).as_str()),
        (403, "not_allowed")
    );
    let code = post(json!({ "token": "good" })).await;
    assert!(!code.has("set-cookie"), "a program has no use for a cookie");
    let code = code.json()["code"].clone();
    let opened = post(json!({ "code": code })).await;
    assert_eq!(opened.json()["user"], "system:serviceaccount:a:b");
    assert!(
        opened
            .header("set-cookie")
            .starts_with("tulle-console-40404=")
    );
}

#[tokio::test]
async fn it_listens_on_loopback_or_not_at_all() {
    let site = site().await;
    let start = |listen: SocketAddr| {
        let config = ConsoleConfig {
            listen,
            forwarded: false,
            actions: false,
            visitors: None,
            clock: ConsoleClock::default(),
        };
        RunningConsole::start(config, site.running.observer().unwrap())
    };
    assert!(start((Ipv4Addr::UNSPECIFIED, 0).into()).await.is_err());
    let taken = start(site.address).await.unwrap_err();
    assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
}

//! Requests that must bring a signed token, through two sidecars.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};
use tests_local::{Client, Pair, Server};

fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

pub(crate) struct Issuer(EcdsaKeyPair);

impl Issuer {
    pub(crate) fn new() -> Self {
        Self(EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap())
    }

    pub(crate) fn jwks(&self) -> String {
        let point = self.0.public_key().as_ref();
        let key = json!({ "kty": "EC", "crv": "P-256", "kid": "1",
                          "x": encode(&point[1..33]), "y": encode(&point[33..]) });
        json!({ "keys": [key] }).to_string()
    }

    /// A token that is good for so many seconds.
    fn token(&self, seconds: i64) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let exp = i64::try_from(now.as_secs()).unwrap() + seconds;
        let claims =
            json!({ "iss": "https://issuer", "aud": "ratings", "exp": exp, "sub": "anna" });
        let header = json!({ "alg": "ES256", "kid": "1", "typ": "JWT" });
        let signed = format!(
            "{}.{}",
            encode(header.to_string()),
            encode(claims.to_string())
        );
        let signature = self.0.sign(&SystemRandom::new(), signed.as_bytes());
        format!("{signed}.{}", encode(signature.unwrap()))
    }
}

fn pair(app: &Server, issuer: &Issuer, matches: Value) -> Pair {
    let jwt = json!({ "jwt": {
        "name": "AuthenticationPolicy/users",
        "providers": [{
            "issuer": "https://issuer", "audiences": ["ratings"], "jwks": issuer.jwks(),
            "claimHeaders": [{ "claim": "sub", "header": "x-user" }],
        }],
    }});
    let rule =
        json!({ "name": "AuthenticationPolicy/users", "matches": matches, "filters": [jwt] });
    Pair::with(app.address(), |client, server| {
        (client, server.set("/inbound/ports/0/rules", json!([rule])))
    })
}

#[test]
fn the_application_learns_who_the_token_is_for() {
    let app = Server::echo();
    let issuer = Issuer::new();
    let pair = pair(&app, &issuer, json!([]));
    let token = issuer.token(600);
    let fields = format!("Authorization: Bearer {token}\r\nX-User: root\r\nx_user: root\r\n");
    for _ in 0..3 {
        let response = pair.ask("/ratings", &fields);
        assert_eq!(response.status(), 200, "{}", response.text());
        let text = response.text().to_ascii_lowercase();
        assert!(text.contains("\r\nx-user: anna\r\n"), "{text}");
        assert!(
            !text.contains("root") && !text.contains("authorization"),
            "{text}"
        );
    }
}

#[test]
fn without_a_good_token_nothing_reaches_the_application() {
    let app = Server::echo();
    let issuer = Issuer::new();
    let pair = pair(&app, &issuer, json!([]));
    let (good, other) = (issuer.token(600), Issuer::new().token(600));
    let bearer = |token: &str| format!("Authorization: Bearer {token}\r\n");
    for (what, fields) in [
        ("none", String::new()),
        ("expired", bearer(&issuer.token(-61))),
        ("signed by another", bearer(&other)),
        ("two", format!("{0}{0}", bearer(&good))),
        ("cut", bearer(&good[..good.len() - 1])),
    ] {
        let response = pair.ask("/ratings", &fields);
        assert_eq!(response.status(), 401, "{what}");
        assert_eq!(
            response.header("x-tulle-reason"),
            "unauthenticated",
            "{what}"
        );
        let challenge = response.header("www-authenticate");
        assert!(
            challenge.starts_with("Bearer realm="),
            "{what}: {challenge}"
        );
        assert!(!response.text().contains(&good), "no token is repeated");
    }
    assert_eq!(app.received_text(), "");
    let error = pair.server.await_error("unauthenticated");
    let detail = error["detail"].as_str().unwrap();
    assert!(detail.contains("AuthenticationPolicy/users"), "{detail}");
    let labels = [
        "response_code=\"401\"",
        "response_flags=\"unauthenticated\"",
    ];
    pair.server
        .await_metric("istio_requests_total", &labels, 5.0);
}

#[test]
fn a_rule_for_some_paths_cannot_be_passed_by_another_spelling() {
    let app = Server::echo();
    let issuer = Issuer::new();
    let pair = pair(&app, &issuer, json!([{ "path": { "prefix": "/private" } }]));
    assert_eq!(pair.ask("/public", "").status(), 200);
    assert_eq!(pair.ask("/private/x", "").status(), 401);
    for target in [
        "/public/../private",
        "//private",
        "/%70rivate",
        "/private;a",
        "/./private",
    ] {
        let response = pair.ask(target, "");
        assert_eq!(
            (response.status(), response.header("x-tulle-reason")),
            (403, "denied"),
            "{target}"
        );
    }
    assert!(!app.received_text().contains("rivate"));
}

#[test]
fn keys_are_changed_while_serving() {
    let app = Server::echo();
    let (old, new) = (Issuer::new(), Issuer::new());
    let pair = pair(&app, &old, json!([]));
    let bearer = |issuer: &Issuer| format!("Authorization: Bearer {}\r\n", issuer.token(600));
    let (by_old, by_new) = (bearer(&old), bearer(&new));
    assert_eq!(pair.ask("/", &by_old).status(), 200);
    assert_eq!(pair.ask("/", &by_new).status(), 401);
    let mut file = pair.server.config.clone();
    let provider = "/inbound/ports/0/rules/0/filters/0/jwt/providers/0/jwks";
    *file.pointer_mut(provider).unwrap() = new.jwks().into();
    pair.server.reload(&file);
    assert_eq!(pair.ask("/", &by_old).status(), 401, "remembered no longer");
    assert_eq!(pair.ask("/", &by_new).status(), 200);
}

#[test]
fn opaque_connections_do_not_pass_what_is_demanded_of_requests() {
    for protocol in ["http", "detect", "tcp"] {
        let app = Server::echo();
        let issuer = Issuer::new();
        let jwt = json!({ "jwt": { "name": "AuthenticationPolicy/users", "providers": [
            { "issuer": "https://issuer", "jwks": issuer.jwks() }] } });
        let rules = json!([{ "name": "AuthenticationPolicy/users", "filters": [jwt] }]);
        // The sidecar of this client says that what it sends is no HTTP.
        let pair = Pair::with(app.address(), |client, server| {
            (
                client.set("/services/0/ports/0/protocol", "tcp"),
                server
                    .set("/inbound/ports/0/rules", rules)
                    .set("/inbound/ports/0/protocol", protocol),
            )
        });
        let request = "GET /private HTTP/1.1\r\nHost: a\r\n\r\n";
        if protocol == "tcp" {
            assert!(Client::is_cut(pair.address, request), "{protocol}");
            pair.server.await_error("denied");
        } else {
            // Bytes that could be a request are judged as one.
            let mut client = pair.connect();
            client.send(request);
            assert_eq!(client.response("GET").status(), 401, "{protocol}");
            pair.server.await_error("unauthenticated");
        }
        assert_eq!(app.received_text(), "", "{protocol}");
    }
}

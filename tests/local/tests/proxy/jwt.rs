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
        self.token_with(seconds, json!({}))
    }

    /// The same with further claims.
    fn token_with(&self, seconds: i64, further: Value) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let exp = i64::try_from(now.as_secs()).unwrap() + seconds;
        let mut claims =
            json!({ "iss": "https://issuer", "aud": "ratings", "exp": exp, "sub": "anna" });
        for (name, value) in further.as_object().unwrap() {
            claims[name] = value.clone();
        }
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

fn rule(issuer: &Issuer, matches: Value, optional: bool) -> Value {
    let jwt = json!({ "jwt": {
        "name": "AuthenticationPolicy/users",
        "providers": [{
            "issuer": "https://issuer", "audiences": ["ratings"], "jwks": issuer.jwks(),
            "claimHeaders": [{ "claim": "sub", "header": "x-user" }],
        }],
        "optional": optional,
    }});
    json!({ "name": "AuthenticationPolicy/users", "matches": matches, "filters": [jwt] })
}

fn pair(app: &Server, issuer: &Issuer, matches: Value) -> Pair {
    let rule = rule(issuer, matches, false);
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

/// Two sidecars whose server's policy allows by the claims of a token.
fn pair_by_claims(app: &Server, issuer: &Issuer, optional: bool, when: &str) -> Pair {
    let rules = json!([rule(issuer, json!([]), optional)]);
    let allow = json!({ "name": "AuthorizationPolicy/team", "anyIdentity": true,
                        "matches": [{ "when": [when] }] });
    Pair::with(app.address(), |client, server| {
        let policy = json!({ "permissive": false, "rules": [allow] });
        (
            client,
            server
                .set("/inbound/ports/0/rules", rules)
                .set("/inbound/policy", policy),
        )
    })
}

#[test]
fn a_policy_allows_by_the_claims_of_a_token() {
    let app = Server::echo();
    let issuer = Issuer::new();
    let when = "jwt.claims.sub == 'anna' && 'admin' in jwt.claims.groups && jwt.claims.level >= 3";
    let pair = pair_by_claims(&app, &issuer, false, when);
    let ask = |token: &str| {
        let response = pair.ask("/", &format!("Authorization: Bearer {token}\r\n"));
        (response.status(), response.text())
    };
    let with = |claims: Value| issuer.token_with(600, claims);
    let admin = with(json!({ "groups": ["users", "admin"], "level": 3.5 }));
    // The second time the token is known.
    for _ in 0..2 {
        assert_eq!(ask(&admin).0, 200, "{}", ask(&admin).1);
    }
    // Longer than what is kept with a token.
    let long = with(json!({ "groups": ["admin"], "level": 3, "text": "x".repeat(4000) }));
    for _ in 0..2 {
        assert_eq!(ask(&long).0, 200);
    }
    for (what, claims) in [
        ("another group", json!({ "groups": ["users"], "level": 3 })),
        ("another level", json!({ "groups": ["admin"], "level": 2 })),
        ("another type", json!({ "groups": "admin", "level": 3 })),
        ("no groups", json!({ "level": 3 })),
        (
            "another user",
            json!({ "groups": ["admin"], "level": 3, "sub": "otto" }),
        ),
    ] {
        let (status, text) = ask(&with(claims));
        assert_eq!(status, 403, "{what}: {text}");
        assert!(text.contains("AuthorizationPolicy/team"), "{what}: {text}");
    }
    let received = app.received_text();
    // A client without a good token hears that it needs one.
    let forged = Issuer::new().token_with(600, json!({ "groups": ["admin"], "level": 3 }));
    let expired = issuer.token_with(-61, json!({ "groups": ["admin"], "level": 3 }));
    for (what, token) in [
        ("forged", forged),
        ("expired", expired),
        ("none", String::new()),
    ] {
        let fields = match token.is_empty() {
            true => String::new(),
            false => format!("Authorization: Bearer {token}\r\n"),
        };
        let response = pair.ask("/", &fields);
        assert_eq!(response.status(), 401, "{what}");
        let challenge = response.header("www-authenticate");
        assert!(
            challenge.starts_with("Bearer realm="),
            "{what}: {challenge}"
        );
    }
    assert_eq!(app.received_text(), received, "nothing of it came through");
}

#[test]
fn without_a_token_there_are_no_claims_where_it_is_optional() {
    let app = Server::echo();
    let issuer = Issuer::new();
    let when = "!has(jwt.claims.sub) || jwt.claims.sub == 'anna'";
    let pair = pair_by_claims(&app, &issuer, true, when);
    assert_eq!(pair.ask("/", "").status(), 200);
    let ask = |claims: Value| {
        let token = issuer.token_with(600, claims);
        pair.ask("/", &format!("Authorization: Bearer {token}\r\n"))
    };
    assert_eq!(ask(json!({})).status(), 200);
    let response = ask(json!({ "sub": "otto" }));
    assert_eq!(response.status(), 403, "{}", response.text());
}

#[test]
fn what_denies_by_claims_denies_where_they_cannot_be_told() {
    let app = Server::echo();
    let issuer = Issuer::new();
    let deny = json!({ "name": "AuthorizationPolicy/guests", "action": "deny", "anyIdentity": true,
                       "matches": [{ "when": ["jwt.claims.role == 'guest'"] }] });
    let pair = Pair::with(app.address(), |client, server| {
        let policy = json!({ "permissive": true, "rules": [deny] });
        (
            client,
            server
                .set(
                    "/inbound/ports/0/rules",
                    json!([rule(&issuer, json!([]), true)]),
                )
                .set("/inbound/policy", policy),
        )
    });
    let ask = |claims: Value| {
        let token = issuer.token_with(600, claims);
        pair.ask("/", &format!("Authorization: Bearer {token}\r\n"))
    };
    assert_eq!(ask(json!({ "role": "user" })).status(), 200);
    assert_eq!(ask(json!({ "role": "guest" })).status(), 403);
    // A claim that is missing has no value, and what has none denies.
    assert_eq!(ask(json!({})).status(), 403);
    assert_eq!(pair.ask("/", "").status(), 403);
}

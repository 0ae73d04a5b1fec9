//! Tests with tokens made with real keys, valid and invalid.

use super::*;
use crate::filter::jwt::token::base64url;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeySize, PublicKeyComponents};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair,
    KeyPair, RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PKCS1_SHA512, RSA_PSS_SHA256, RSA_PSS_SHA384,
    RSA_PSS_SHA512, RsaEncoding, RsaKeyPair,
};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use std::time::Duration;
use tulle_net::Buf;

/// Seconds since 1970.
const NOW: u64 = 1_800_000_000;

fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

struct Signer {
    key: EcdsaKeyPair,
}

impl Signer {
    fn new() -> Self {
        let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        Self { key }
    }

    fn jwk(&self, id: &str) -> Value {
        let point = self.key.public_key().as_ref();
        json!({ "kty": "EC", "crv": "P-256", "kid": id, "use": "sig",
                "x": encode(&point[1..33]), "y": encode(&point[33..]) })
    }

    fn token(&self, header: &Value, claims: &Value) -> String {
        let signed = format!(
            "{}.{}",
            encode(header.to_string()),
            encode(claims.to_string())
        );
        let signature = self.key.sign(&SystemRandom::new(), signed.as_bytes());
        format!("{signed}.{}", encode(signature.unwrap()))
    }

    fn good(&self) -> String {
        self.token(&json!({ "alg": "ES256", "kid": "k" }), &claims())
    }
}

fn claims() -> Value {
    json!({ "iss": "https://issuer", "aud": ["shop", "other"], "exp": NOW + 600, "sub": "anna",
            "realm": { "roles": ["a", "b"] }, "age": 7 })
}

fn filter(signer: &Signer) -> resource::Jwt {
    let claim = |claim: &str, header: &str| resource::ClaimHeader {
        claim: claim.into(),
        header: header.into(),
    };
    resource::Jwt {
        name: "AuthenticationPolicy/shop".into(),
        providers: vec![resource::JwtProvider {
            issuer: "https://issuer".into(),
            audiences: vec!["shop".into()],
            jwks: json!({ "keys": [signer.jwk("k")] }).to_string(),
            claim_headers: vec![
                claim("sub", "x-user"),
                claim("realm.roles", "x-roles"),
                claim("age", "x-age"),
            ],
            ..Default::default()
        }],
        optional: false,
    }
}

/// Returns the forwarded head, or the failure.
fn check_at(jwt: &Jwt, fields: &str, now: u64) -> Result<String, Failure> {
    let mut message = Buf::new();
    message.extend_from_slice(format!("GET / HTTP/1.1\r\nhost: a\r\n{fields}\r\n").as_bytes());
    let head = message.len();
    let mut draft = Draft::new(&mut message, head);
    jwt.check(&mut draft, UNIX_EPOCH + Duration::from_secs(now))?;
    Ok(String::from_utf8(draft.head().to_vec()).unwrap())
}

fn check(jwt: &Jwt, fields: &str) -> Result<String, Failure> {
    check_at(jwt, fields, NOW)
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

#[test]
fn a_good_token_becomes_headers_that_a_client_cannot_send() {
    let signer = Signer::new();
    let jwt = Jwt::compile(&filter(&signer)).unwrap();
    let forged = "X-User: root\r\nx_user: root\r\nX-Age: 99\r\n";
    let good = bearer(&signer.good());
    let fields = format!("{good}{forged}accept: */*\r\n");
    for _ in 0..2 {
        // The second check uses the remembered token.
        let head = check(&jwt, &fields).unwrap();
        assert_eq!(
            head,
            "GET / HTTP/1.1\r\nhost: a\r\naccept: */*\r\nx-user: anna\r\n\
             x-roles: [\"a\",\"b\"]\r\nx-age: 7\r\n\r\n"
        );
    }
    let mut forwarding = filter(&signer);
    forwarding.providers[0].forward = true;
    let jwt = Jwt::compile(&forwarding).unwrap();
    assert!(check(&jwt, &fields).unwrap().contains(&good));
}

#[test]
fn what_is_refused() {
    let signer = Signer::new();
    let jwt = Jwt::compile(&filter(&signer)).unwrap();
    let header = json!({ "alg": "ES256", "kid": "k" });
    let with = |name: &str, value: Value| {
        let mut claims = claims();
        claims[name] = value;
        bearer(&signer.token(&header, &claims))
    };
    let good = signer.good();
    let (message, signature) = good.rsplit_once('.').unwrap();
    let hs = |alg: &str| bearer(&signer.token(&json!({ "alg": alg, "kid": "k" }), &claims()));
    let none = format!(
        "{}.{}.",
        encode(json!({ "alg": "none" }).to_string()),
        encode(claims().to_string())
    );
    let flipped = match &signature[..1] {
        "A" => format!("B{}", &signature[1..]),
        _ => format!("A{}", &signature[1..]),
    };
    let crit = json!({ "alg": "ES256", "kid": "k", "crit": ["exp"] });
    let cases = [
        ("nothing", String::new(), "required"),
        (
            "another scheme",
            "Authorization: Basic YTpi\r\n".into(),
            "required",
        ),
        ("twice", format!("{0}{0}", bearer(&good)), "more than once"),
        ("empty", "Authorization: Bearer\r\n".into(), "no signed JWT"),
        ("no alg", bearer(&none), "signature"),
        ("HS256", hs("HS256"), "signature"),
        ("RS256 by an EC key", hs("RS256"), "signature"),
        (
            "flipped",
            bearer(&format!("{message}.{flipped}")),
            "signature",
        ),
        ("cut", bearer(message), "no signed JWT"),
        ("four parts", bearer(&format!("{good}.x")), "no signed JWT"),
        ("padding", bearer(&format!("{good}=")), "no signed JWT"),
        (
            "spaces inside",
            bearer(&good.replacen('.', " .", 1)),
            "no signed JWT",
        ),
        ("crit", bearer(&signer.token(&crit, &claims())), "critical"),
        ("other key", bearer(&Signer::new().good()), "signature"),
        (
            "unknown kid",
            bearer(&signer.token(&json!({ "alg": "ES256", "kid": "z" }), &claims())),
            "signature",
        ),
        ("issuer", with("iss", json!("https://issuer/")), "issuer"),
        ("issuers", with("iss", json!(["https://issuer"])), "issuer"),
        ("audience", with("aud", json!("shopping")), "audience"),
        ("no audience", with("aud", Value::Null), "audience"),
        ("expired", with("exp", json!(NOW - 60)), "expired"),
        ("exp of null", with("exp", Value::Null), "no time"),
        ("exp of text", with("exp", json!("never")), "no time"),
        ("not yet", with("nbf", json!(NOW + 61)), "not valid yet"),
        (
            "from the future",
            with("iat", json!(NOW + 61)),
            "not valid yet",
        ),
        ("long", bearer(&"a".repeat(token::MAX_BYTES + 1)), "16 KiB"),
    ];
    for (what, fields, reason) in cases {
        let failure = check(&jwt, &fields).expect_err(what);
        assert_eq!(failure.reason, Reason::Unauthenticated, "{what}");
        assert!(
            failure.detail.contains(reason),
            "{what}: {}",
            failure.detail
        );
        let answer = failure.answer.unwrap();
        assert_eq!(answer.status, 401);
        let (name, challenge) = &answer.headers[0];
        assert_eq!(name, "www-authenticate");
        let challenge = String::from_utf8(challenge.clone()).unwrap();
        assert!(
            challenge.starts_with("Bearer realm=\"AuthenticationPolicy/shop\""),
            "{challenge}"
        );
    }
    let within = with("exp", json!(NOW as f64 - 59.5));
    assert!(check(&jwt, &within).is_ok(), "clocks may differ a little");
}

#[test]
fn a_token_without_expiry_is_refused_unless_its_provider_says_otherwise() {
    let signer = Signer::new();
    let mut endless = claims();
    endless.as_object_mut().unwrap().remove("exp");
    let header = json!({ "alg": "ES256", "kid": "k" });
    let fields = bearer(&signer.token(&header, &endless));
    let mut filter = filter(&signer);
    let jwt = Jwt::compile(&filter).unwrap();
    let failure = check(&jwt, &fields).unwrap_err();
    assert_eq!(failure.reason, Reason::Unauthenticated);
    assert!(failure.detail.contains("no expiry (`exp`)"), "{failure}");
    assert!(failure.detail.contains("`requireExpiry`"), "{failure}");

    filter.providers[0].expiry_optional = true;
    let jwt = Jwt::compile(&filter).unwrap();
    assert!(check(&jwt, &fields).is_ok());
    // Times that a token does have are still checked.
    endless["nbf"] = json!(NOW + 61);
    let early = bearer(&signer.token(&header, &endless));
    assert!(check(&jwt, &early).is_err());
    endless["exp"] = json!(NOW - 60);
    let expired = bearer(&signer.token(&header, &endless));
    let failure = check(&jwt, &expired).unwrap_err();
    assert!(failure.detail.contains("expired"), "{failure}");
}

#[test]
fn a_remembered_token_expires() {
    let signer = Signer::new();
    let jwt = Jwt::compile(&filter(&signer)).unwrap();
    let fields = bearer(&signer.good());
    assert!(check_at(&jwt, &fields, NOW).is_ok());
    assert!(check_at(&jwt, &fields, NOW + 659).is_ok());
    let failure = check_at(&jwt, &fields, NOW + 660).unwrap_err();
    assert!(failure.detail.contains("expired"), "{failure}");
}

#[test]
fn a_token_may_end_after_2038() {
    let signer = Signer::new();
    let jwt = Jwt::compile(&filter(&signer)).unwrap();
    // The begin of 2040 and of 2110, beyond the seconds of 31 bits and of 32.
    for end in [2_208_988_800_u64, 4_417_977_600] {
        let mut claims = claims();
        claims["exp"] = json!(end);
        let fields = bearer(&signer.token(&json!({ "alg": "ES256", "kid": "k" }), &claims));
        for now in [NOW, 1 << 31, end + 59] {
            assert!(check_at(&jwt, &fields, now).is_ok(), "{now} of {end}");
        }
        let failure = check_at(&jwt, &fields, end + 60).unwrap_err();
        assert!(failure.detail.contains("expired"), "{failure}");
    }
}

#[test]
fn memory_of_tokens_is_bounded() {
    let signer = Signer::new();
    let jwt = Jwt::compile(&filter(&signer)).unwrap();
    let header = json!({ "alg": "ES256" });
    for i in 0..REMEMBERED + 20 {
        let mut claims = claims();
        claims["sub"] = json!(i.to_string());
        check(&jwt, &bearer(&signer.token(&header, &claims))).unwrap();
    }
    assert!(jwt.good().len() <= REMEMBERED);
}

#[test]
fn without_a_token_where_none_is_needed() {
    let signer = Signer::new();
    let optional = resource::Jwt {
        optional: true,
        ..filter(&signer)
    };
    let jwt = Jwt::compile(&optional).unwrap();
    assert_eq!(
        check(&jwt, "x-user: root\r\n").unwrap(),
        "GET / HTTP/1.1\r\nhost: a\r\n\r\n",
        "and still nobody"
    );
    assert!(check(&jwt, &bearer("a.b.c")).is_err());
    for other in [
        "Basic YTpi",
        "BASIC  YTpi==",
        "Digest username=\"a, b\", nonce=\"c\"",
    ] {
        let head = check(&jwt, &format!("Authorization: {other}\r\n")).unwrap();
        assert!(head.contains(other), "the application's own users: {head}");
    }
}

#[test]
fn what_some_application_might_take_for_a_token_is_refused_also_where_none_is_needed() {
    let signer = Signer::new();
    let optional = resource::Jwt {
        optional: true,
        ..filter(&signer)
    };
    let jwt = Jwt::compile(&optional).unwrap();
    let good = signer.good();
    for value in [
        "Bearer\tforged".to_owned(),
        format!("Bearer\t{good}"),
        "JWT forged".into(),
        "Token forged".into(),
        "DPoP forged".into(),
        "Bearer".into(),
        "Bearer forged".into(),
        format!("bearer bearer {good}"),
        format!("Bearer {good}, Bearer {good}"),
        format!("Bearer={good}"),
        good.clone(),
        "Basic".into(),
        "Basic YTpi, Bearer forged".into(),
        "Basic\tYTpi".into(),
        "Digest a=\"\u{1}\"".into(),
        String::new(),
    ] {
        let failure = check(&jwt, &format!("Authorization: {value}\r\n")).unwrap_err();
        assert_eq!(failure.reason, Reason::Unauthenticated, "{value:?}");
    }
    let two = format!("{}{}", bearer(&good), "authorization: Basic YTpi\r\n");
    assert!(check(&jwt, &two).is_err());
    assert!(check(&jwt, &bearer(&good)).is_ok());
}

#[test]
fn each_header_with_a_token_is_checked() {
    let (one, two) = (Signer::new(), Signer::new());
    let mut both = filter(&one);
    both.providers.push(resource::JwtProvider {
        issuer: "https://issuer".into(),
        jwks: json!({ "keys": [two.jwk("k")] }).to_string(),
        header: "x-token".into(),
        ..Default::default()
    });
    let jwt = Jwt::compile(&both).unwrap();
    assert!(check(&jwt, &bearer(&one.good())).is_ok());
    let head = check(&jwt, &format!("x-token: {}\r\nx_token: x\r\n", two.good())).unwrap();
    assert_eq!(head, "GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    assert!(check(&jwt, &format!("x-token: {}\r\n", one.good())).is_err());
    assert!(check(&jwt, &format!("{}x-token: x\r\n", bearer(&one.good()))).is_err());
}

/// Servers that map names to variables read `x_token` as `x-token`.
#[test]
fn a_header_that_reads_as_the_token_s_is_removed() {
    let signer = Signer::new();
    let mut optional = filter(&signer);
    optional.optional = true;
    optional.providers[0].header = "x-token".into();
    let jwt = Jwt::compile(&optional).unwrap();
    for forged in ["x_token", "X_Token"] {
        let head = check(&jwt, &format!("{forged}: forged\r\nx_other: b\r\n")).unwrap();
        assert_eq!(head, "GET / HTTP/1.1\r\nhost: a\r\nx_other: b\r\n\r\n");
    }
}

/// RFC 7515, appendix A.3.
#[test]
fn the_example_of_the_standard() {
    let jwks = json!({ "keys": [{
        "kty": "EC", "crv": "P-256",
        "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
        "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
    }] });
    let jwt = Jwt::compile(&resource::Jwt {
        name: "AuthenticationPolicy/joe".into(),
        providers: vec![resource::JwtProvider {
            issuer: "joe".into(),
            jwks: jwks.to_string(),
            ..Default::default()
        }],
        optional: false,
    })
    .unwrap();
    let token = "eyJhbGciOiJFUzI1NiJ9.\
                 eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.\
                 DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q";
    assert!(check_at(&jwt, &bearer(token), 1_300_819_300).is_ok());
    assert!(check_at(&jwt, &bearer(token), 1_300_819_500).is_err());
}

#[test]
fn every_algorithm() {
    let random = SystemRandom::new();
    let rsa = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
    let public: PublicKeyComponents<Vec<u8>> = rsa.public_key().into();
    let jwk = json!({ "kty": "RSA", "n": encode(&public.n), "e": encode(&public.e) });
    let keys = Keys::parse(&json!({ "keys": [jwk] }).to_string()).unwrap();
    let encodings: [(&str, &'static dyn RsaEncoding); 6] = [
        ("RS256", &RSA_PKCS1_SHA256),
        ("RS384", &RSA_PKCS1_SHA384),
        ("RS512", &RSA_PKCS1_SHA512),
        ("PS256", &RSA_PSS_SHA256),
        ("PS384", &RSA_PSS_SHA384),
        ("PS512", &RSA_PSS_SHA512),
    ];
    for (algorithm, encoding) in encodings {
        let mut signature = vec![0; rsa.public_modulus_len()];
        rsa.sign(encoding, &random, b"text", &mut signature)
            .unwrap();
        assert!(
            keys.verify(algorithm, None, b"text", &signature),
            "{algorithm}"
        );
        assert!(!keys.verify(algorithm, None, b"texts", &signature));
        assert!(!keys.verify("ES256", None, b"text", &signature));
    }
    let p384 = EcdsaKeyPair::generate(&ECDSA_P384_SHA384_FIXED_SIGNING).unwrap();
    let point = p384.public_key().as_ref();
    let jwk = json!({ "kty": "EC", "crv": "P-384", "alg": "ES384",
                      "x": encode(&point[1..49]), "y": encode(&point[49..]) });
    let keys = Keys::parse(&json!({ "keys": [jwk] }).to_string()).unwrap();
    let signature = p384.sign(&random, b"text").unwrap();
    assert!(keys.verify("ES384", Some("any"), b"text", signature.as_ref()));
    let ed = Ed25519KeyPair::generate().unwrap();
    let jwk = json!({ "kty": "OKP", "crv": "Ed25519", "x": encode(ed.public_key()) });
    let keys = Keys::parse(&json!({ "keys": [jwk] }).to_string()).unwrap();
    assert!(keys.verify("EdDSA", None, b"text", ed.sign(b"text").as_ref()));
    assert!(!keys.verify("EdDSA", None, b"other", ed.sign(b"text").as_ref()));
}

#[test]
fn key_sets_that_make_no_sense() {
    let signer = Signer::new();
    let good = signer.jwk("k");
    let changed = |name: &str, value: Value| {
        let mut key = good.clone();
        key[name] = value;
        json!({ "keys": [key] }).to_string()
    };
    for (what, text) in [
        ("no JSON", "keys".to_owned()),
        ("no set", good.to_string()),
        ("nothing", json!({ "keys": [] }).to_string()),
        (
            "shared secrets",
            json!({ "keys": [{ "kty": "oct", "k": "c2VjcmV0" }] }).to_string(),
        ),
        ("encryption", changed("use", json!("enc"))),
        ("short", changed("x", json!("AA"))),
        ("padding", changed("x", json!("AA=="))),
        (
            "small RSA",
            json!({ "keys": [{ "kty": "RSA", "n": encode([1; 128]), "e": "AQAB" }] }).to_string(),
        ),
        (
            "many",
            json!({ "keys": vec![good.clone(); 33] }).to_string(),
        ),
    ] {
        assert!(Keys::parse(&text).is_err(), "{what}");
    }
    let mixed = json!({ "keys": [{ "kty": "oct", "k": "c2VjcmV0" }, good] });
    assert!(
        Keys::parse(&mixed.to_string()).is_ok(),
        "unknown kinds are passed over"
    );
    assert_eq!(base64url(b"AB"), None, "bits left over");
}

#[test]
fn headers_that_cannot_be_used() {
    let signer = Signer::new();
    for header in ["host", "x-forwarded-client-cert", "a b", "X_Tulle_Reason"] {
        let mut filter = filter(&signer);
        filter.providers[0].header = header.into();
        assert!(Jwt::compile(&filter).is_err(), "{header}");
        let mut filter = self::filter(&signer);
        filter.providers[0].claim_headers[0].header = header.into();
        assert!(Jwt::compile(&filter).is_err(), "{header}");
    }
    let mut both = filter(&signer);
    both.providers[0].claim_headers[0].header = "authorization".into();
    assert!(Jwt::compile(&both).is_err());
}

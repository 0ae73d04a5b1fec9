//! Tokens: only a token signed by a key of the set is accepted, and reading never panics; a token
//! that is read again has the same claims.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

// Pure; depending on their crate would put all of the proxy under the sanitizer.
#[path = "../../crates/proxy/src/filter/jwt/keys.rs"]
mod keys;
#[allow(dead_code)]
#[path = "../../crates/proxy/src/filter/jwt/token.rs"]
mod token;

static KEYS: LazyLock<keys::Keys> = LazyLock::new(|| {
    // The example of RFC 7515, appendix A.3.
    let set = r#"{"keys":[{"kty":"EC","crv":"P-256",
        "x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
        "y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}"#;
    keys::Keys::parse(set).expect("a key set")
});

fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = keys::Keys::parse(text);
    }
    let Ok(token) = token::Token::parse(data) else {
        return;
    };
    let issuer = token.issuer().map(str::to_owned);
    if let Ok(claims) = token.verify(&KEYS, &[], false, 1_300_819_300.0) {
        // This is the only token that its unknown key has signed.
        assert_eq!(issuer.as_deref(), Some("joe"));
        assert_eq!(claims.text("iss").as_deref(), Some("joe"));
        let until = claims.expires();
        assert!(until.is_finite() && until > 1_300_819_300.0);
    }
});

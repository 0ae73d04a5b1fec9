//! Selects the keys of a fetched JSON Web Key Set (RFC 7517) that sidecars receive.
//!
//! A sidecar refuses a resource with a set that makes no sense, and would then learn nothing new of its
//! other rules either. A stranger's server must not bring that about, so keys that no sidecar can use are
//! left out here, by the rules of `crates/proxy/src/filter/jwt/keys.rs`.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value, json};

/// Keys that a sidecar takes.
const MAX_KEYS: usize = 32;

/// The usable keys of a set, as a set.
///
/// # Errors
/// It is no set, or has no usable key, or too many.
pub(super) fn usable(body: &[u8]) -> Result<String, String> {
    let set: Value = serde_json::from_slice(body).map_err(|_| "the answer is no JSON")?;
    let keys = set.get("keys").and_then(Value::as_array);
    let keys = keys.ok_or("the answer is no JSON Web Key Set (`{\"keys\": [...]}`)")?;
    let keys: Vec<Value> = keys.iter().filter_map(key).collect();
    match keys.len() {
        0 => Err("the set has no key for RS*, PS*, ES256, ES384 or EdDSA signatures".into()),
        1..=MAX_KEYS => Ok(json!({ "keys": keys }).to_string()),
        count => Err(format!(
            "the set has {count} keys, at most {MAX_KEYS} are used"
        )),
    }
}

/// Reduces a key to the members that matter; `None`: no sidecar could use it.
fn key(key: &Value) -> Option<Value> {
    let optional = |name: &str| match key.get(name) {
        None | Some(Value::Null) => Some(None),
        Some(value) => value.as_str().map(Some),
    };
    if optional("use")?.is_some_and(|usage| usage != "sig") {
        return None;
    }
    match key.get("key_ops") {
        None | Some(Value::Null) => {}
        Some(ops) => {
            let mut ops = ops.as_array()?.iter();
            ops.find(|op| op.as_str() == Some("verify"))?;
        }
    }
    let bytes = |name: &str| URL_SAFE_NO_PAD.decode(key.get(name)?.as_str()?).ok();
    let is = |name: &str, length: usize| bytes(name).is_some_and(|b| b.len() == length);
    let kind = key.get("kty")?.as_str()?;
    let curve = optional("crv")?.unwrap_or_default();
    let members: &[&str] = match (kind, curve) {
        ("RSA", _) => {
            let n = bytes("n")?;
            let bits = n.iter().skip_while(|b| **b == 0).count() * 8;
            bytes("e")?;
            (bits >= 2048).then_some(&["n", "e"])?
        }
        ("EC", "P-256") => (is("x", 32) && is("y", 32)).then_some(&["crv", "x", "y"])?,
        ("EC", "P-384") => (is("x", 48) && is("y", 48)).then_some(&["crv", "x", "y"])?,
        ("OKP", "Ed25519") => is("x", 32).then_some(&["crv", "x"])?,
        _ => return None,
    };
    let mut told = Map::new();
    told.insert("kty".into(), kind.into());
    for name in ["kid", "alg"] {
        if let Some(value) = optional(name)? {
            told.insert(name.into(), value.into());
        }
    }
    for name in members {
        told.insert((*name).to_owned(), key.get(*name)?.clone());
    }
    Some(Value::Object(told))
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: &str = "THBRoioHyeBpfLlo60wwU5ipsutRrw3bskXEOTjW4hg";

    fn ed25519(more: Value) -> Value {
        let mut key = json!({ "kty": "OKP", "crv": "Ed25519", "x": X });
        for (name, value) in more.as_object().unwrap() {
            key[name] = value.clone();
        }
        key
    }

    #[test]
    fn only_what_sidecars_can_use_goes_on() {
        let good = ed25519(json!({ "kid": "a", "alg": "EdDSA", "use": "sig", "x5c": ["long"] }));
        let mut keys = vec![good];
        for bad in [
            json!({ "use": "enc" }),
            json!({ "use": 1 }),
            json!({ "kid": 1 }),
            json!({ "key_ops": ["sign"] }),
            json!({ "x": "AA" }),
            json!({ "x": "not base64url!" }),
            json!({ "kty": "oct" }),
            json!({ "kty": "RSA", "n": "AQAB", "e": "AQAB" }),
        ] {
            keys.push(ed25519(bad));
        }
        keys.push(json!("no object"));
        let told = usable(json!({ "keys": keys }).to_string().as_bytes()).unwrap();
        let expected = json!({ "keys": [
            { "kty": "OKP", "kid": "a", "alg": "EdDSA", "crv": "Ed25519", "x": X }] });
        assert_eq!(serde_json::from_str::<Value>(&told).unwrap(), expected);
    }

    #[test]
    fn what_is_no_set() {
        let many = vec![ed25519(json!({})); MAX_KEYS + 1];
        let many = json!({ "keys": many }).to_string();
        for body in [
            "",
            "{",
            "[]",
            "{}",
            "{\"keys\": 1}",
            "{\"keys\": []}",
            &many,
        ] {
            assert!(usable(body.as_bytes()).is_err(), "{body}");
        }
        let most = json!({ "keys": vec![ed25519(json!({})); MAX_KEYS] });
        assert!(usable(most.to_string().as_bytes()).is_ok());
    }
}

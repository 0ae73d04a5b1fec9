//! Keys that sign tokens: a JSON Web Key Set (RFC 7517), and signatures (RFC 7518) checked by
//! aws-lc-rs.
//!
//! Only signatures of key pairs are accepted. With a shared secret (`HS256`) whoever can check a
//! token could make one, and `none` is not a signature. A key is used only for the algorithms of
//! its kind, so that a token cannot choose how its signature is read.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use super::token::base64url;
use aws_lc_rs::signature::{
    self, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm,
};
use serde::Deserialize;

/// Most keys of a set that are used. A token without a key id is tried with each.
const MAX_KEYS: usize = 32;

/// Public keys.
pub struct Keys(Vec<Key>);

struct Key {
    id: Option<String>,
    algorithm: Option<String>,
    material: Material,
}

enum Material {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

#[derive(Deserialize)]
struct Set {
    keys: Vec<Jwk>,
}

#[derive(Deserialize, Default)]
struct Jwk {
    #[serde(default)]
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    key_ops: Option<Vec<String>>,
    #[serde(default)]
    crv: String,
    #[serde(default)]
    n: String,
    #[serde(default)]
    e: String,
    #[serde(default)]
    x: String,
    #[serde(default)]
    y: String,
}

impl Keys {
    /// Reads a set. Keys of unknown kinds are ignored, as the standard says.
    ///
    /// # Errors
    /// It is not a set, has a broken key, or no usable one.
    pub fn parse(text: &str) -> Result<Self, String> {
        let set: Set = serde_json::from_str(text)
            .map_err(|e| format!("jwks is no JSON Web Key Set (`{{\"keys\": [...]}}`): {e}"))?;
        let mut keys = Vec::new();
        for (index, jwk) in set.keys.into_iter().enumerate() {
            let name = jwk.kid.clone().unwrap_or_else(|| index.to_string());
            if let Some(key) = Key::read(jwk).map_err(|e| format!("jwks: key {name}: {e}"))? {
                keys.push(key);
            }
        }
        match keys.len() {
            0 => Err("jwks has no key for RS*, PS*, ES256, ES384 or EdDSA signatures".into()),
            1..=MAX_KEYS => Ok(Self(keys)),
            count => Err(format!(
                "jwks has {count} keys, at most {MAX_KEYS} are used"
            )),
        }
    }

    /// Whether one of the keys has made the signature.
    pub fn verify(
        &self,
        algorithm: &str,
        id: Option<&str>,
        message: &[u8],
        signature: &[u8],
    ) -> bool {
        let fits = |key: &&Key| {
            let id_fits = match (&key.id, id) {
                (Some(own), Some(wanted)) => own == wanted,
                _ => true,
            };
            id_fits && key.algorithm.as_deref().is_none_or(|a| a == algorithm)
        };
        let mut keys = self.0.iter().filter(fits);
        keys.any(|key| key.material.verify(algorithm, message, signature))
    }
}

impl Key {
    /// Reads a key. `None`: it is of another kind, or not for signatures.
    fn read(jwk: Jwk) -> Result<Option<Self>, String> {
        let signs = jwk.usage.as_deref().is_none_or(|u| u == "sig")
            && jwk
                .key_ops
                .as_ref()
                .is_none_or(|ops| ops.iter().any(|op| op == "verify"));
        if !signs {
            return Ok(None);
        }
        let part = |name: &str, text: &str| {
            base64url(text.as_bytes()).ok_or_else(|| format!("{name} is not base64url"))
        };
        let point = |length: usize| {
            let (x, y) = (part("x", &jwk.x)?, part("y", &jwk.y)?);
            if x.len() != length || y.len() != length {
                return Err(format!("x and y must have {length} bytes"));
            }
            // Uncompressed (SEC 1, section 2.3.3).
            Ok([&[4], x.as_slice(), y.as_slice()].concat())
        };
        let material = match (jwk.kty.as_str(), jwk.crv.as_str()) {
            ("RSA", _) => {
                let (n, e) = (part("n", &jwk.n)?, part("e", &jwk.e)?);
                let zeros = n.iter().take_while(|&&b| b == 0).count();
                let n = n.get(zeros..).unwrap_or_default().to_vec();
                if n.len() < 256 {
                    return Err("an RSA key must have at least 2048 bits".into());
                }
                Material::Rsa { n, e }
            }
            ("EC", "P-256") => Material::P256(point(32)?),
            ("EC", "P-384") => Material::P384(point(48)?),
            ("OKP", "Ed25519") => {
                let x = part("x", &jwk.x)?;
                if x.len() != 32 {
                    return Err("x must have 32 bytes".into());
                }
                Material::Ed25519(x)
            }
            _ => return Ok(None),
        };
        Ok(Some(Self {
            id: jwk.kid,
            algorithm: jwk.alg,
            material,
        }))
    }
}

impl Material {
    fn verify(&self, algorithm: &str, message: &[u8], signature: &[u8]) -> bool {
        let plain = |how: &'static dyn VerificationAlgorithm, key: &[u8]| {
            let key = UnparsedPublicKey::new(how, key);
            key.verify(message, signature).is_ok()
        };
        match (self, algorithm) {
            (Self::Rsa { n, e }, _) => {
                let how = match algorithm {
                    "RS256" => &signature::RSA_PKCS1_2048_8192_SHA256,
                    "RS384" => &signature::RSA_PKCS1_2048_8192_SHA384,
                    "RS512" => &signature::RSA_PKCS1_2048_8192_SHA512,
                    "PS256" => &signature::RSA_PSS_2048_8192_SHA256,
                    "PS384" => &signature::RSA_PSS_2048_8192_SHA384,
                    "PS512" => &signature::RSA_PSS_2048_8192_SHA512,
                    _ => return false,
                };
                let key = RsaPublicKeyComponents { n, e };
                key.verify(how, message, signature).is_ok()
            }
            (Self::P256(point), "ES256") => plain(&signature::ECDSA_P256_SHA256_FIXED, point),
            (Self::P384(point), "ES384") => plain(&signature::ECDSA_P384_SHA384_FIXED, point),
            (Self::Ed25519(x), "EdDSA" | "Ed25519") => plain(&signature::ED25519, x),
            _ => false,
        }
    }
}

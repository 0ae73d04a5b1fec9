//! Checks a single Secret or ConfigMap, beyond its types. Messages do not show its content.

use super::{metadata, object_name};
use crate::document::{Path, Report};
use crate::manifest::{ConfigMap, Secret};
use std::collections::BTreeMap;

/// Type of a Secret with a certificate and its key.
pub(in crate::manifest) const TLS: &str = "kubernetes.io/tls";

pub(in crate::manifest) fn secret(secret: &Secret, report: &mut Report) {
    metadata(&secret.metadata, object_name, report);
    let top = Path::default();
    keys(&top.key("data"), &secret.data, report);
    keys(&top.key("stringData"), &secret.string_data, report);
    for key in secret.data.keys() {
        if secret.text(key).is_none() {
            let problem = "expected text in base64 (RFC 4648, with padding)";
            let hint = "or put it as it is under `stringData`";
            report.add(&top.key("data").key(key), problem, hint);
        }
    }
    if secret.secret_type.as_deref() == Some(TLS) {
        for key in ["tls.crt", "tls.key"] {
            if !secret.data.contains_key(key) && !secret.string_data.contains_key(key) {
                let problem = format!("a Secret of type {TLS} has `{key}`");
                report.add(&top.key("data"), problem, format!("add `{key}: …`"));
            }
        }
    }
}

pub(in crate::manifest) fn config_map(map: &ConfigMap, report: &mut Report) {
    metadata(&map.metadata, object_name, report);
    keys(&Path::default().key("data"), &map.data, report);
}

fn keys(at: &Path, data: &BTreeMap<String, String>, report: &mut Report) {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    for key in data.keys() {
        if key.is_empty() || key.len() > 253 || !key.bytes().all(plain) {
            let problem = "expected a key of letters, digits, `-`, `_` and `.`";
            report.add(&at.key(key), problem, "");
        }
    }
}

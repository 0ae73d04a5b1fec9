//! The validating webhook ([`crate::validate`]) as an object for the API server.

use super::{asked_at, namespace};
use crate::crd::{Definition, definitions};
use crate::kinds::GATEWAY as GATEWAY_GROUP;
use crate::names::{SETTINGS, VALIDATOR, metadata};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The kinds of that group that are read.
const GATEWAY_KINDS: [&str; 5] = [
    "gateways",
    "httproutes",
    "grpcroutes",
    "tlsroutes",
    "tcproutes",
];
const GATEWAY_VERSIONS: [&str; 3] = ["v1", "v1alpha3", "v1alpha2"];

/// The webhook as an object for the API server.
pub(super) fn configuration() -> Value {
    let groups: BTreeSet<&str> = definitions().iter().map(|d| d.group).collect();
    let rules: Vec<Value> = groups.into_iter().map(rule_of).collect();
    let one = |name: &str, policy: &str, seconds: u32, rules: Vec<Value>| {
        json!({
            "name": name,
            "admissionReviewVersions": ["v1"],
            "clientConfig": asked_at("/validate"),
            "failurePolicy": policy,
            "sideEffects": "None",
            "timeoutSeconds": seconds,
            "rules": rules,
        })
    };
    let gateway = rule(GATEWAY_GROUP, &GATEWAY_VERSIONS, &GATEWAY_KINDS);
    // The controller refuses to start with them, too, so nobody waits for this one.
    let mut settings = one(
        "settings.tulle.dev",
        "Ignore",
        3,
        vec![changes_of_settings()],
    );
    settings["namespaceSelector"] =
        json!({ "matchLabels": { "kubernetes.io/metadata.name": namespace() } });
    settings["objectSelector"] = json!({ "matchLabels": { "app.kubernetes.io/name": SETTINGS } });
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": metadata(VALIDATOR),
        "webhooks": [
            one("objects.tulle.dev", "Fail", 10, rules),
            one("gateway-api.tulle.dev", "Ignore", 3, vec![gateway]),
            settings,
        ],
    })
}

fn changes_of_settings() -> Value {
    json!({
        "operations": ["UPDATE"],
        "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "scope": "Namespaced",
    })
}

fn rule_of(group: &str) -> Value {
    let of_group = || definitions().iter().filter(|d| d.group == group);
    let versions: BTreeSet<&str> = of_group().flat_map(|d| d.versions).copied().collect();
    let versions: Vec<&str> = versions.into_iter().collect();
    let kinds: Vec<&str> = of_group().map(|d: &Definition| d.plural).collect();
    rule(group, &versions, &kinds)
}

fn rule(group: &str, versions: &[&str], kinds: &[&str]) -> Value {
    json!({
        "operations": ["CREATE", "UPDATE"],
        "apiGroups": [group], "apiVersions": versions, "resources": kinds, "scope": "*",
    })
}

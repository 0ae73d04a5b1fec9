//! Namespaces, and workloads whose pods have annotations.

use super::imported::Imported;
use serde_json::{Map, Value, json};

/// Prefixes of their labels and annotations.
const PREFIXES: [&str; 2] = ["openservicemesh.io/", "flomesh.io/"];

/// Where an object says how its pods are treated.
const POD_METADATA: [&str; 3] = [
    "/metadata",
    "/spec/template/metadata",
    "/spec/jobTemplate/spec/template/metadata",
];

/// An object of Kubernetes, which stays as it is but for labels and annotations of OSM.
pub(super) fn import(id: String, whole: Value, imported: &mut Imported) {
    replaced(id, whole, imported, translate);
}

/// An object of Kubernetes in which `translate` replaces what is said to a mesh: with the place and the metadata, and
/// whether it is a namespace; it returns whether anything was said.
pub(super) fn replaced(
    id: String,
    mut whole: Value,
    imported: &mut Imported,
    translate: fn(&str, &str, &mut Value, bool, &mut Imported) -> bool,
) {
    let is_namespace = whole["kind"] == "Namespace";
    let mut changed = false;
    for pointer in POD_METADATA {
        let Some(metadata) = whole.pointer_mut(pointer) else {
            continue;
        };
        changed |= translate(&id, pointer, metadata, is_namespace, imported);
    }
    if !changed {
        imported.untouched.push(id);
        return;
    }
    if is_namespace {
        let mut metadata = Map::new();
        for name in ["name", "labels", "annotations"] {
            let value = whole["metadata"][name].take();
            if !value.is_null() && value.as_object().is_none_or(|fields| !fields.is_empty()) {
                metadata.insert(name.into(), value);
            }
        }
        whole = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata });
    }
    clean(&mut whole);
    let made = imported.make(&id, whole);
    if is_namespace {
        made.notes
            .push("pods get sidecars when they start: `tulle namespace add NAME --restart`".into());
    }
}

/// Takes out fields that the API server wrote: they are not to be applied.
pub(super) fn clean(object: &mut Value) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
        return;
    };
    for name in [
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "managedFields",
        "selfLink",
    ] {
        metadata.remove(name);
    }
    if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
        if annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
}

/// Replaces their labels and annotations by ours; whether there were any.
fn translate(
    id: &str,
    at: &str,
    metadata: &mut Value,
    is_namespace: bool,
    imported: &mut Imported,
) -> bool {
    let mut theirs = Vec::new();
    for field in ["labels", "annotations"] {
        let Some(Value::Object(map)) = metadata.get_mut(field) else {
            continue;
        };
        let names: Vec<String> = map.keys().filter(|k| own(k).is_some()).cloned().collect();
        for name in names {
            let value = map.remove(&name).unwrap_or_default();
            theirs.push((field, name, value.as_str().unwrap_or_default().to_owned()));
        }
    }
    for (field, name, value) in &theirs {
        let short = own(name).unwrap_or_default();
        match ours(short, value, is_namespace) {
            Some((field, name, value)) => {
                let Some(metadata) = metadata.as_object_mut() else {
                    continue;
                };
                let map = metadata.entry(field).or_insert_with(|| Map::new().into());
                map[name] = value.into();
            }
            None => imported.lose(
                id,
                &format!(
                    "{}.{field}.{name}",
                    at.trim_start_matches('/').replace('/', ".")
                ),
                "it has no counterpart",
                "see the annotations in docs/kubernetes.md",
            ),
        }
    }
    !theirs.is_empty()
}

/// The name after their prefix.
fn own(name: &str) -> Option<&str> {
    PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix))
}

/// Ours in place of one of theirs: in which field, its name, its value.
fn ours(
    name: &str,
    value: &str,
    is_namespace: bool,
) -> Option<(&'static str, &'static str, String)> {
    let switch = |value: &str| match value {
        "enabled" | "true" | "yes" => "enabled",
        _ => "disabled",
    };
    let ours = match name {
        "monitored-by" if is_namespace => ("labels", "tulle.dev/inject", "enabled".to_owned()),
        "ignore" if is_namespace => ("labels", "tulle.dev/inject", "disabled".to_owned()),
        "sidecar-injection" if is_namespace => {
            ("labels", "tulle.dev/inject", switch(value).to_owned())
        }
        "sidecar-injection" => ("annotations", "tulle.dev/inject", switch(value).to_owned()),
        "metrics" if is_namespace => ("labels", "tulle.dev/metrics", switch(value).to_owned()),
        "outbound-port-exclusion-list" => (
            "annotations",
            "tulle.dev/exclude-outbound-ports",
            value.to_owned(),
        ),
        "inbound-port-exclusion-list" => (
            "annotations",
            "tulle.dev/exclude-inbound-ports",
            value.to_owned(),
        ),
        "outbound-ip-range-exclusion-list" => (
            "annotations",
            "tulle.dev/exclude-outbound-ranges",
            value.to_owned(),
        ),
        "outbound-ip-range-inclusion-list" => (
            "annotations",
            "tulle.dev/include-outbound-ranges",
            value.to_owned(),
        ),
        _ => return None,
    };
    Some(ours)
}

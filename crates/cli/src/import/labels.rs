//! Namespaces, and workloads whose pods have annotations.

use super::imported::Imported;
use serde_json::{Map, Value, json};

/// Prefixes of their labels and annotations.
const PREFIXES: [&str; 2] = ["openservicemesh.io/", "flomesh.io/"];

pub(super) const INJECT: &str = "tulle.dev/inject";
pub(super) const EXCLUDE_INBOUND: &str = "tulle.dev/exclude-inbound-ports";
pub(super) const EXCLUDE_OUTBOUND: &str = "tulle.dev/exclude-outbound-ports";
pub(super) const EXCLUDE_RANGES: &str = "tulle.dev/exclude-outbound-ranges";
pub(super) const INCLUDE_RANGES: &str = "tulle.dev/include-outbound-ranges";

/// Where an object says how its pods are treated.
const POD_METADATA: [&str; 3] = [
    "/metadata",
    "/spec/template/metadata",
    "/spec/jobTemplate/spec/template/metadata",
];

/// Counterpart of a label or annotation.
pub(super) enum Ours {
    /// It is said to somebody else, and stays.
    NotTheirs,
    /// It says what is so in any case, or was written by their programs.
    Moot,
    Lost,
    /// A label or annotation: the field, the name, the value.
    Is(&'static str, &'static str, String),
}

/// Translates a label or annotation: the field that has it, its name, its value, and whether it is a namespace's.
pub(super) type Translate = fn(&str, &str, &str, bool) -> Ours;

/// An object of Kubernetes, which stays as it is but for labels and annotations that say something to their mesh.
pub(super) fn import(id: String, mut whole: Value, imported: &mut Imported, translate: Translate) {
    let is_namespace = whole["kind"] == "Namespace";
    let mut changed = false;
    for pointer in POD_METADATA {
        let Some(metadata) = whole.pointer_mut(pointer) else {
            continue;
        };
        changed |= replace(&id, pointer, metadata, is_namespace, imported, translate);
    }
    if !changed {
        imported.untouched.push(id);
        return;
    }
    // Their fields are the same in all versions, and hosts know the last one alone.
    let version = whole["apiVersion"].as_str().unwrap_or_default();
    if version.starts_with("gateway.networking.k8s.io/")
        && matches!(
            whole["kind"].as_str(),
            Some("Gateway" | "HTTPRoute" | "GRPCRoute")
        )
    {
        whole["apiVersion"] = "gateway.networking.k8s.io/v1".into();
    }
    if is_namespace {
        let mut metadata = Map::new();
        for name in ["name", "labels", "annotations"] {
            let value = whole.get_mut("metadata").and_then(|m| m.get_mut(name));
            let value = value.map(Value::take).unwrap_or_default();
            if !value.is_null() && value.as_object().is_none_or(|fields| !fields.is_empty()) {
                metadata.insert(name.into(), value);
            }
        }
        whole = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata });
    }
    clean(&mut whole);
    let made = imported.make(&id, whole);
    made.is_kept = true;
    if is_namespace {
        made.notes
            .push("pods get sidecars when they start: `tulle namespace add NAME --restart`".into());
    }
}

/// Takes out fields that the API server wrote: they are not to be applied.
pub(crate) fn clean(object: &mut Value) {
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
fn replace(
    id: &str,
    at: &str,
    metadata: &mut Value,
    is_namespace: bool,
    imported: &mut Imported,
    translate: Translate,
) -> bool {
    let mut changed = false;
    for field in ["labels", "annotations"] {
        let all = metadata[field].as_object().cloned().unwrap_or_default();
        for (name, value) in all {
            let value = value.as_str().unwrap_or_default();
            let ours = translate(field, &name, value, is_namespace);
            if let Ours::NotTheirs = ours {
                continue;
            }
            changed = true;
            take(metadata, field, &name);
            let why = match ours {
                // The webhook refuses a pod whose list it cannot read.
                Ours::Is(_, ours, value) if ours.ends_with("-ports") && value.contains('-') => {
                    "a range of ports has to be written out"
                }
                Ours::Is(field, name, value) => {
                    put(metadata, field, name, value);
                    continue;
                }
                Ours::Lost => "it has no counterpart",
                Ours::NotTheirs | Ours::Moot => continue,
            };
            let place = at.trim_start_matches('/').replace('/', ".");
            let instead = "see the annotations in docs/kubernetes.md";
            imported.lose(id, &format!("{place}.{field}.{name}"), why, instead);
        }
    }
    changed
}

/// Takes one out; names have `/` in them.
fn take(metadata: &mut Value, field: &str, name: &str) {
    let Some(fields) = metadata.as_object_mut() else {
        return;
    };
    if let Some(Value::Object(map)) = fields.get_mut(field) {
        map.remove(name);
        if map.is_empty() {
            fields.remove(field);
        }
    }
}

/// Takes out labels or annotations whose names are of a domain, and returns these names.
pub(super) fn take_all(whole: &mut Value, field: &str, domain: &str) -> Vec<String> {
    let all = whole["metadata"][field].as_object();
    let names = all.into_iter().flatten().map(|(name, _)| name);
    let theirs: Vec<String> = names.filter(|n| n.contains(domain)).cloned().collect();
    if let Some(metadata) = whole.get_mut("metadata") {
        theirs.iter().for_each(|name| take(metadata, field, name));
    }
    theirs
}

/// Puts ours in; of two about the same one that says no counts, be it a label or an annotation.
fn put(metadata: &mut Value, field: &str, name: &str, value: String) {
    let mut places = ["labels", "annotations"].into_iter();
    if places.any(|place| metadata[place][name] == "disabled") {
        return;
    }
    let fields = metadata.as_object_mut();
    let map = fields.map(|f| f.entry(field).or_insert_with(|| Map::new().into()));
    if let Some(Value::Object(map)) = map {
        map.insert(name.to_owned(), value.into());
    }
}

/// The name after their prefix.
fn own(name: &str) -> Option<&str> {
    PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix))
}

/// Labels and annotations of OSM, osm-edge and FSM.
pub(super) fn osm(_: &str, name: &str, value: &str, is_namespace: bool) -> Ours {
    let Some(name) = own(name) else {
        return Ours::NotTheirs;
    };
    let (field, name, value) = match name {
        "monitored-by" if is_namespace => ("labels", INJECT, "enabled"),
        "ignore" if is_namespace => ("labels", INJECT, "disabled"),
        // The webhook chooses namespaces and pods by labels alone.
        "sidecar-injection" => ("labels", INJECT, switch(value)),
        "metrics" if is_namespace => ("labels", "tulle.dev/metrics", switch(value)),
        "outbound-port-exclusion-list" => ("annotations", EXCLUDE_OUTBOUND, value),
        "inbound-port-exclusion-list" => ("annotations", EXCLUDE_INBOUND, value),
        "outbound-ip-range-exclusion-list" => ("annotations", EXCLUDE_RANGES, value),
        "outbound-ip-range-inclusion-list" => ("annotations", INCLUDE_RANGES, value),
        _ => return Ours::Lost,
    };
    Ours::Is(field, name, value.to_owned())
}

/// The value of a switch.
pub(super) fn switch(value: &str) -> &'static str {
    match value {
        "enabled" | "true" | "yes" => "enabled",
        _ => "disabled",
    }
}

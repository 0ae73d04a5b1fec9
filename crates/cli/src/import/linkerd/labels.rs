//! Namespaces, and workloads whose pods have annotations.

use crate::import::imported::Imported;
use crate::import::labels::replaced;
use crate::import::source::Source;
use serde_json::{Map, Value};

/// An object of Kubernetes, which stays as it is but for their annotations.
pub(super) fn import(source: Source, imported: &mut Imported) {
    let id = source.id.clone();
    replaced(id, source.into_whole(), imported, translate);
}

/// Replaces their annotations by ours; whether there were any.
fn translate(
    id: &str,
    at: &str,
    metadata: &mut Value,
    is_namespace: bool,
    imported: &mut Imported,
) -> bool {
    let Some(Value::Object(annotations)) = metadata.get_mut("annotations") else {
        return false;
    };
    let is_theirs = |name: &&String| name.contains("linkerd.io/");
    let names: Vec<String> = annotations.keys().filter(is_theirs).cloned().collect();
    let mut theirs = Vec::new();
    for name in names {
        let value = annotations.remove(&name).unwrap_or_default();
        theirs.push((name, value.as_str().unwrap_or_default().to_owned()));
    }
    for (name, value) in &theirs {
        // The injector's own marks of when and by whom.
        if name.starts_with("linkerd.io/created-by") || name.starts_with("linkerd.io/proxy-version")
        {
            continue;
        }
        let at = format!(
            "{}.annotations.{name}",
            at.trim_start_matches('/').replace('/', ".")
        );
        let ours = match (name.as_str(), value.as_str()) {
            ("linkerd.io/inject", "enabled" | "ingress") => ("tulle.dev/inject", "enabled"),
            ("linkerd.io/inject", _) => ("tulle.dev/inject", "disabled"),
            ("config.linkerd.io/skip-inbound-ports", ports) if !is_namespace => {
                ("tulle.dev/exclude-inbound-ports", ports)
            }
            ("config.linkerd.io/skip-outbound-ports", ports) if !is_namespace => {
                ("tulle.dev/exclude-outbound-ports", ports)
            }
            ("config.linkerd.io/skip-subnets", ranges) if !is_namespace => {
                ("tulle.dev/exclude-outbound-ranges", ranges)
            }
            ("config.linkerd.io/opaque-ports", ports) if !is_namespace => {
                ("tulle.dev/opaque-ports", ports)
            }
            _ => {
                imported.lose(
                    id,
                    &at,
                    "it has no counterpart",
                    "see the annotations in docs/kubernetes.md",
                );
                continue;
            }
        };
        // A namespace has it as a label.
        let field = if is_namespace {
            "labels"
        } else {
            "annotations"
        };
        if let Some(metadata) = metadata.as_object_mut() {
            let map = metadata.entry(field).or_insert_with(|| Map::new().into());
            map[ours.0] = ours.1.into();
        }
    }
    !theirs.is_empty()
}

//! How strict mutual TLS is.

use super::ROOT;
use crate::import::fields::{lose_rest, take, text};
use crate::import::imported::{Imported, object};
use crate::import::source::Source;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Where the PeerAuthentications among the objects refuse plaintext. Where none says anything, nobody knows: Istio accepts it by
/// default, but a file or `--namespace` may leave out the one of the mesh.
#[derive(Default)]
pub(super) struct Strictness {
    /// Namespaces for which a mode is said, and whether it is strict. That of the root namespace is the mesh's.
    namespaces: BTreeMap<String, bool>,
    /// Namespaces of which some workloads or ports are strict.
    parts: BTreeSet<String>,
}

impl Strictness {
    pub(super) fn read(objects: &[Value]) -> Self {
        let mut all = Self::default();
        for object in objects {
            let version = object["apiVersion"].as_str().unwrap_or_default();
            if object["kind"] != "PeerAuthentication" || !version.starts_with("security.istio.io/")
            {
                continue;
            }
            let namespace = object["metadata"]["namespace"].as_str();
            let namespace = namespace.unwrap_or_default().to_owned();
            let spec = &object["spec"];
            let mode = spec["mtls"]["mode"].as_str();
            let ports = spec["portLevelMtls"].as_object().into_iter().flatten();
            let mut ports = ports.map(|(_, port)| &port["mode"]);
            if ports.any(|mode| mode == "STRICT") {
                all.parts.insert(namespace.clone());
            }
            match (mode, spec["selector"].is_null()) {
                (Some("STRICT"), false) => {
                    all.parts.insert(namespace);
                }
                (Some("STRICT"), true) => {
                    all.namespaces.insert(namespace, true);
                }
                (Some("PERMISSIVE" | "DISABLE"), true) => {
                    all.namespaces.entry(namespace).or_insert(false);
                }
                _ => {}
            }
        }
        all
    }

    fn of_mesh(&self) -> bool {
        self.namespaces.get(ROOT) == Some(&true)
    }

    /// Whether all workloads of a namespace accept plaintext. None: it is not said.
    pub(super) fn accepts_plaintext(&self, namespace: Option<&str>) -> Option<bool> {
        let namespace = namespace.unwrap_or_default();
        if self.parts.contains(namespace) {
            return Some(false);
        }
        let of_mesh = || self.namespaces.get(ROOT);
        let is_strict = self.namespaces.get(namespace).or_else(of_mesh)?;
        Some(!is_strict)
    }
}

pub(super) fn import(mut source: Source, strictness: &Strictness, imported: &mut Imported) {
    let mut spec = std::mem::take(&mut source.spec);
    let id = source.id.clone();
    if take(&mut spec, "selector").is_some() || take(&mut spec, "portLevelMtls").is_some() {
        let why = "strictness is of the mesh or of a namespace, not of workloads and ports";
        let instead = "let clients without a certificate in by their addresses: an AccessControl";
        return imported.lose(&id, "spec.selector", why, instead);
    }
    let mode = text(&mut spec, "mtls/mode").unwrap_or_default();
    let namespace = source.namespace.clone().unwrap_or_default();
    match (mode.as_str(), namespace.as_str()) {
        ("STRICT", ROOT) => {
            let spec = json!({ "mtls": { "mode": "strict" } });
            let made = imported.make(&id, object("Mesh", None, "mesh", spec));
            made.notes
                .push("`tulle harden --dry-run` shows what this would refuse today".into());
        }
        ("STRICT", _) => {
            let command = format!(
                "`tulle harden {namespace}` makes it strict; with --dry-run it shows what would be refused"
            );
            imported.lose(
                &id,
                "spec.mtls.mode",
                "a namespace is made strict by a command",
                &command,
            );
        }
        ("PERMISSIVE", namespace) if namespace != ROOT && strictness.of_mesh() => imported.lose(
            &id,
            "spec.mtls.mode",
            "the mesh is strict, and then each of its namespaces is",
            "let clients without a certificate in by their addresses: an AccessControl",
        ),
        ("PERMISSIVE" | "UNSET" | "", _) => {}
        _ => imported.lose(
            &id,
            "spec.mtls.mode",
            &format!("mutual TLS is never off ({mode})"),
            "take pods out of the mesh with the annotation tulle.dev/inject: disabled",
        ),
    }
    lose_rest(imported, &id, "spec", &spec, "leave it out");
}

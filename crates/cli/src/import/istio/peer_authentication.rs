//! How strict mutual TLS is.

use crate::import::fields::{lose_rest, take, text};
use crate::import::imported::{Imported, object};
use crate::import::source::Source;
use serde_json::json;

pub(super) fn import(mut source: Source, imported: &mut Imported) {
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
        ("STRICT", "istio-system") => {
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

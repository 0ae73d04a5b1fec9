//! Hosts outside the mesh: an Egress.

use crate::import::fields::{list, lose_rest, take, text};
use crate::import::imported::{Imported, object};
use crate::import::source::Source;
use crate::import::texts;
use serde_json::{Map, json};
use std::collections::BTreeSet;

/// Namespace of the controller, whose Egresses are for every workload.
const EVERYBODY: &str = "tulle-system";
const SEE: &str = "see docs/manifests/egress.md";

pub(super) fn import(mut source: Source, imported: &mut Imported) {
    let mut spec = std::mem::take(&mut source.spec);
    let id = source.id.clone();
    if text(&mut spec, "location").as_deref() == Some("MESH_INTERNAL") {
        let why = "what belongs to the mesh is a Service";
        return imported.lose(
            &id,
            "spec.location",
            why,
            "make a Service, with EndpointSlices for machines without pods",
        );
    }
    let exported = texts(&mut spec, "exportTo");
    let mut fields = Map::new();
    let hosts = texts(&mut spec, "hosts");
    if !hosts.is_empty() {
        fields.insert("hosts".into(), hosts.into());
    }
    let networks = super::callers::networks(&texts(&mut spec, "addresses"));
    if !networks.is_empty() {
        fields.insert("ipAddresses".into(), networks.into());
    }
    let mut ports = Vec::new();
    for (number, mut port) in list(&mut spec, "ports").into_iter().enumerate() {
        let at = format!("spec.ports[{number}]");
        take(&mut port, "name");
        let own = take(&mut port, "number").unwrap_or_default();
        if let Some(target) = take(&mut port, "targetPort")
            && target != own
        {
            let why = "a connection goes to the port that the application has asked for";
            imported.lose(
                &id,
                &format!("{at}.targetPort"),
                why,
                "with `tls` an Egress has `tls.port`",
            );
        }
        let theirs = text(&mut port, "protocol").unwrap_or_default();
        let protocol = match theirs.to_uppercase().as_str() {
            "HTTP" | "HTTP2" | "GRPC" | "GRPC-WEB" => "http",
            "HTTPS" => "https",
            "TLS" => "tls",
            _ => "tcp",
        };
        ports.push(json!({ "number": own, "protocol": protocol }));
        lose_rest(imported, &id, &at, &port, SEE);
    }
    if !ports.is_empty() {
        fields.insert("ports".into(), ports.into());
    }
    // Names are looked up by the application, as without a mesh.
    let resolution = text(&mut spec, "resolution").unwrap_or_default();
    if resolution == "STATIC" {
        let why = "a connection goes to the address that the application has asked for";
        imported.lose(
            &id,
            "spec.resolution",
            why,
            "make a Service with EndpointSlices for addresses of your own",
        );
        take(&mut spec, "endpoints");
    }
    lose_rest(
        imported,
        &id,
        "spec",
        &spec,
        "what a server must prove is `tls` of an Egress",
    );
    let (whole_mesh, namespaces) = match exported_to(&exported, &source) {
        Ok(to) => to,
        Err(why) => {
            let instead = "write an Egress in each namespace whose workloads may call it: docs/manifests/egress.md";
            return imported.lose(&id, "spec.exportTo", why, instead);
        }
    };
    for namespace in namespaces {
        let name = match source.namespace() {
            Some(own) if namespace.as_deref() != Some(own) => format!("{own}-{}", source.name),
            _ => source.name.clone(),
        };
        let ours = fields.clone().into();
        let made = imported.make(&id, object("Egress", namespace.as_deref(), &name, ours));
        if whole_mesh {
            made.notes.push(format!(
                "it was exported to everybody, and an Egress in {EVERYBODY} is for everybody; in a namespace it is for that one"
            ));
        }
    }
}

/// Finds the namespaces that need an Egress, and whether it is for the whole mesh. Err: the reason why there is none.
fn exported_to(
    exported: &[String],
    source: &Source,
) -> Result<(bool, BTreeSet<Option<String>>), &'static str> {
    if exported.is_empty() || exported.iter().any(|to| to == "*") {
        return Ok((true, BTreeSet::from([Some(EVERYBODY.to_owned())])));
    }
    if exported.iter().any(|to| to == "~") {
        return Err(
            "it is exported to no namespace, and an Egress is for a namespace or for everybody",
        );
    }
    let namespaces = exported.iter().map(|to| match to.as_str() {
        "." => source.namespace.clone(),
        named => Some(named.to_owned()),
    });
    let namespaces: BTreeSet<Option<String>> = namespaces.collect();
    if namespaces.contains(&Some(EVERYBODY.to_owned())) {
        return Err(
            "it is exported to the controller's namespace, where an Egress is for everybody",
        );
    }
    Ok((false, namespaces))
}

//! Resolves references between objects: whether the target exists, and across namespaces whether its
//! owner agreed.
//!
//! Works on JSON: the target may be of a kind that the mesh does not know at all.

use super::state::State;
use crate::gateway::service_name;
use crate::gateway::view::View;
use crate::gateway_fields::Key;
use crate::grants::{From, Grants};
use crate::kinds::Kind;
use crate::object::{NO_BACKEND, text};
use serde_json::{Value, json};

/// Why a reference leads nowhere, as in `ResolvedRefs`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unresolved {
    /// `InvalidKind`, `BackendNotFound` or `RefNotPermitted`; of a policy's target `TargetNotFound`, of filters,
    /// groups of requests, Secrets and ConfigMaps `ReferenceNotFound`, or `ReferenceNotRead` without the right
    /// or if they are too many.
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// Looks at every backend of an object. One that must not be used is replaced by one that is none,
/// so that its share of the requests fails and does not go elsewhere.
pub(super) fn backends(
    spec: &mut Value,
    from: From<'_>,
    grants: &Grants,
    state: &State,
) -> Vec<Unresolved> {
    let mut found = Vec::new();
    let called = called_alone(spec, from.2);
    visit(spec, &mut |backend| {
        if let Err(unresolved) = backend_is_good(backend, from, grants, state) {
            // Back to the Service that was called, for which nobody needs a grant.
            let name = |reference: &Value| ["name", "namespace"].map(|f| reference[f].clone());
            if unresolved.reason == "RefNotPermitted" && called.contains(&name(backend)) {
                return;
            }
            if unresolved.reason != "BackendNotFound" {
                replace(backend);
            }
            found.push(unresolved);
        }
    });
    found
}

/// Names and namespaces of the Services of other namespaces that a route is about, if it is about nothing else: then it is for callers of
/// its own namespace alone. With a Gateway or a Service of its own among its parents it would lead others there, too.
fn called_alone(spec: &Value, own: &str) -> Vec<[Value; 2]> {
    let parents = list(&spec["parentRefs"]);
    let is_called = |parent: &&Value| {
        let group = parent.get("group").and_then(Value::as_str);
        matches!(group, Some("" | "core"))
            && text(parent, "kind") == "Service"
            && text_or(parent, "namespace", own) != own
    };
    match parents.iter().all(is_called) {
        true => parents
            .iter()
            .map(|parent| ["name", "namespace"].map(|f| parent[f].clone()))
            .collect(),
        false => Vec::new(),
    }
}

/// The configuration of a Plugin, which means nothing to anybody else, whatever names its fields have.
const FREE: &str = "config";

fn visit(value: &mut Value, f: &mut impl FnMut(&mut Value)) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut().filter(|(name, _)| *name != FREE) {
                match (name.as_str(), &mut *field) {
                    ("backendRefs", Value::Array(all)) => all.iter_mut().for_each(&mut *f),
                    ("backendRef", one) => f(one),
                    _ => {}
                }
                visit(field, f);
            }
        }
        Value::Array(all) => all.iter_mut().for_each(|item| visit(item, f)),
        _ => {}
    }
}

fn replace(backend: &mut Value) {
    let Value::Object(fields) = backend else {
        return;
    };
    for name in ["group", "kind", "namespace"] {
        fields.remove(name);
    }
    fields.insert("name".into(), NO_BACKEND.into());
    fields.entry("port").or_insert(json!(1));
}

fn backend_is_good(
    backend: &Value,
    from: From<'_>,
    grants: &Grants,
    state: &State,
) -> Result<(), Unresolved> {
    let unresolved = |reason, message| Err(Unresolved { reason, message });
    let (group, kind) = (text(backend, "group"), text_or(backend, "kind", "Service"));
    let (namespace, name) = (text_or(backend, "namespace", from.2), text(backend, "name"));
    // `core` is what some call the group without a name.
    if !matches!(group, "" | "core") || kind != "Service" {
        let message = format!("{kind} {name}: a backend must be a Service");
        return unresolved("InvalidKind", message);
    }
    if !grants.permits(from, "Service", namespace, name) {
        let message = no_grant("Service", name, namespace, from);
        return unresolved("RefNotPermitted", message);
    }
    let Some(mut ports) = state.ports(name, namespace) else {
        let message = format!("there is no Service {name} in the namespace {namespace}");
        return unresolved("BackendNotFound", message);
    };
    match backend["port"].as_u64() {
        Some(port) if !ports.any(|(_, p)| u64::from(p) == port) => {
            let message = format!("Service {name} of the namespace {namespace} has no port {port}");
            unresolved("BackendNotFound", message)
        }
        _ => Ok(()),
    }
}

/// The port of a Service that an Egress goes through, if it is not there. Until it is, the Egress lets nobody
/// out.
pub(super) fn egress_gateway(
    spec: &Value,
    namespace: &str,
    state: &State,
    view: &View,
) -> Option<Unresolved> {
    let gateway = spec.get("gateway")?;
    let (name, port) = (text(gateway, "service"), gateway["port"].as_u64());
    let message = match state.ports(name, namespace) {
        None => {
            let key = Key::new(namespace, name);
            let gateway = view.gateways.get(&key).filter(|g| g.is_egress());
            let hint = gateway.map(|_| {
                let service = service_name(&key);
                format!(" (that of the Gateway {name} is {service})")
            });
            let hint = hint.unwrap_or_default();
            format!("there is no Service {name} in the namespace {namespace}{hint}")
        }
        Some(mut ports) => {
            if ports.any(|(_, p)| Some(u64::from(p)) == port) {
                return None;
            }
            format!(
                "Service {name} of the namespace {namespace} has no port {}",
                port.unwrap_or_default()
            )
        }
    };
    Some(Unresolved {
        reason: "BackendNotFound",
        message: format!("{message}: nothing leaves the mesh by this Egress"),
    })
}

/// Services that a policy is about and that are not there. It holds as soon as they are.
pub(super) fn targets(spec: &Value, namespace: &str, state: &State) -> Vec<Unresolved> {
    let services = list(&spec["targetRefs"]).into_iter();
    let services = services.filter(|t| text_or(t, "kind", "Service") == "Service");
    // Whether something is in another namespace is nobody's business here; see `own`.
    let own = services.filter(|t| text_or(t, "namespace", namespace) == namespace);
    let missing = own.filter_map(|target| {
        let name = text(target, "name");
        let absent = state.ports(name, namespace).is_none();
        absent.then(|| Unresolved {
            reason: "TargetNotFound",
            message: format!("there is no Service {name} in the namespace {namespace}"),
        })
    });
    missing.collect()
}

/// Checks references to objects that only their own namespace decides about.
///
/// # Errors
/// The object is in another namespace, or in one without a grant.
pub(super) fn own(
    kind: &Kind,
    namespace: &str,
    spec: &Value,
    grants: &Grants,
) -> Result<(), String> {
    let mine = match kind.kind {
        "TrafficTarget" => vec![&spec["destination"]],
        "Egress" => list(&spec["sources"]),
        _ => list(&spec["targetRefs"]),
    };
    for reference in mine {
        let there = text_or(reference, "namespace", namespace);
        if there != namespace {
            return Err(format!(
                "{} is in the namespace {there}; a {} is about its own namespace, which is \
                 {namespace}: put it there",
                text(reference, "name"),
                kind.kind
            ));
        }
    }
    let mut missing = None;
    files(spec, &mut |reference, default| {
        let (there, name) = (
            text_or(reference, "namespace", namespace),
            text(reference, "name"),
        );
        let to = text_or(reference, "kind", default);
        let from = (kind.group, kind.kind, namespace);
        if !grants.permits(from, to, there, name) {
            missing = Some(no_grant(to, name, there, from));
        }
    });
    missing.map_or(Ok(()), Err)
}

/// Says that the owner of what is referred to did not agree.
pub(super) fn no_grant(kind: &str, name: &str, namespace: &str, from: From<'_>) -> String {
    format!(
        "{kind} {name} is in the namespace {namespace}, which has no ReferenceGrant for {}s of {}",
        from.1, from.2
    )
}

/// Secrets and ConfigMaps that an object refers to, with the kind that is meant when none is given.
pub(super) fn files<'a>(spec: &'a Value, f: &mut impl FnMut(&'a Value, &'static str)) {
    match spec {
        Value::Object(fields) => {
            for (name, field) in fields {
                match name.as_str() {
                    "jwksRef" | "caCertificateRef" | "sourceRef" => f(field, "ConfigMap"),
                    "caCertificateRefs" => list(field).into_iter().for_each(|r| f(r, "ConfigMap")),
                    "certificateRefs" => list(field).into_iter().for_each(|r| f(r, "Secret")),
                    FREE => {}
                    _ => files(field, f),
                }
            }
        }
        Value::Array(all) => all.iter().for_each(|item| files(item, f)),
        _ => {}
    }
}

pub(super) fn list(value: &Value) -> Vec<&Value> {
    value.as_array().into_iter().flatten().collect()
}

pub(super) fn text_or<'a>(value: &'a Value, field: &str, default: &'a str) -> &'a str {
    Some(text(value, field))
        .filter(|t| !t.is_empty())
        .unwrap_or(default)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Service;
    use tulle_model::namespaced::Namespaced;

    const FROM: From<'static> = ("gateway.networking.k8s.io", "HTTPRoute", "shop");

    fn state() -> State {
        let mut state = State::default();
        let service: Service =
            serde_json::from_value(json!({"spec": {"ports": [{"port": 80}]}})).unwrap();
        for name in ["web.shop", "web.other"] {
            state.service(Namespaced::parse(name).unwrap(), &service);
        }
        state
    }

    fn granted(to: Value) -> Grants {
        let mut grants = Grants::default();
        let from = json!([{ "group": FROM.0, "kind": FROM.1, "namespace": FROM.2 }]);
        let name = Namespaced::parse("g.other").unwrap();
        grants.put(name.into(), &json!({ "from": from, "to": to }));
        grants
    }

    fn reasons(spec: &mut Value, grants: &Grants) -> Vec<&'static str> {
        let found = backends(spec, FROM, grants, &state());
        found.into_iter().map(|u| u.reason).collect()
    }

    #[test]
    fn backends_of_other_namespaces_need_a_grant() {
        let spec = json!({ "rules": [{
            "backendRefs": [
                { "name": "web", "port": 80 },
                { "name": "web", "port": 80, "namespace": "other" },
            ],
            "filters": [{ "requestMirror": {
                "backendRef": { "name": "web", "port": 80, "namespace": "other" },
            } }],
        }] });
        let mut refused = spec.clone();
        let none = Grants::default();
        assert_eq!(reasons(&mut refused, &none), ["RefNotPermitted"; 2]);
        let names = |spec: &Value| {
            let rule = &spec["rules"][0];
            [
                rule["backendRefs"][0]["name"].clone(),
                rule["backendRefs"][1]["name"].clone(),
                rule["filters"][0]["requestMirror"]["backendRef"]["name"].clone(),
            ]
        };
        assert_eq!(names(&refused), ["web", NO_BACKEND, NO_BACKEND]);
        for to in [
            json!([{ "group": "", "kind": "Service" }]),
            json!([{ "group": "", "kind": "Service", "name": "web" }]),
        ] {
            let mut allowed = spec.clone();
            assert!(reasons(&mut allowed, &granted(to)).is_empty());
            assert_eq!(allowed, spec);
        }
        for to in [
            json!([{ "group": "", "kind": "Secret" }]),
            json!([{ "group": "core", "kind": "Service" }]),
            json!([{ "group": "", "kind": "Service", "name": "we" }]),
        ] {
            assert_eq!(reasons(&mut spec.clone(), &granted(to)).len(), 2);
        }
    }

    #[test]
    fn the_service_that_was_called_needs_no_grant_where_nothing_else_leads_to_it() {
        let called = json!({ "group": "", "kind": "Service", "name": "web", "namespace": "other" });
        let own = json!({ "group": "", "kind": "Service", "name": "web" });
        let gateway = json!({ "name": "edge", "namespace": "infra" });
        let no_service = json!({ "kind": "Service", "name": "web", "namespace": "other" });
        for (parents, refused) in [
            (json!([called]), 0),
            (json!([called, gateway]), 2),
            (json!([called, own]), 2),
            (json!([own]), 2),
            (json!([no_service]), 2),
            (json!([]), 2),
        ] {
            let backend = json!({ "name": "web", "port": 80, "namespace": "other" });
            let mut spec = json!({ "parentRefs": parents, "rules": [{
                "backendRefs": [backend],
                "filters": [{ "requestMirror": { "backendRef": backend } }],
            }] });
            let found = reasons(&mut spec, &Grants::default());
            assert_eq!(found.len(), refused, "{parents}");
            let name = &spec["rules"][0]["backendRefs"][0]["name"];
            assert_eq!(name == NO_BACKEND, refused > 0, "{parents}");
        }
    }

    #[test]
    fn backends_that_cannot_be_had() {
        let mut spec = json!({ "backendRefs": [
            { "name": "web", "port": 81 },
            { "name": "no", "port": 80 },
            { "name": "x", "group": "example.org", "kind": "Bucket" },
        ] });
        let none = Grants::default();
        let all = ["BackendNotFound", "BackendNotFound", "InvalidKind"];
        assert_eq!(reasons(&mut spec, &none), all);
        assert_eq!(
            spec["backendRefs"][2],
            json!({ "name": NO_BACKEND, "port": 1 })
        );
    }

    #[test]
    fn the_configuration_of_a_plugin_refers_to_nothing() {
        let there = json!({ "name": "web", "namespace": "other" });
        let mut spec =
            json!({ "config": { "backendRef": there, "all": { "certificateRefs": [there] } } });
        let before = spec.clone();
        assert_eq!(reasons(&mut spec, &Grants::default()), [""; 0]);
        assert_eq!(spec, before);
        let kind = crate::kinds::KINDS.iter().find(|k| k.kind == "Plugin");
        own(kind.unwrap(), "shop", &spec, &Grants::default()).unwrap();
        let source = json!({ "sourceRef": there, "config": {} });
        own(kind.unwrap(), "shop", &source, &Grants::default()).unwrap_err();
    }

    #[test]
    fn policies_are_about_their_own_namespace() {
        let none = Grants::default();
        let policy = |kind, spec: Value| {
            let kind = crate::kinds::KINDS.iter().find(|k| k.kind == kind).unwrap();
            own(kind, "shop", &spec, &none)
        };
        let target =
            |namespace| json!({ "targetRefs": [{ "name": "web", "namespace": namespace }] });
        assert!(policy("AuthorizationPolicy", target("shop")).is_ok());
        assert!(policy("AuthorizationPolicy", target("other")).is_err());
        let destination = json!({ "destination": { "name": "web", "namespace": "other" } });
        assert!(policy("TrafficTarget", destination).is_err());
        let jwks = json!({ "jwt": { "providers": [{
            "jwksRef": { "name": "keys", "namespace": "other" },
        }] } });
        assert!(policy("Authentication", jwks).is_err());
    }
}

//! Keeps a cluster's objects to their own namespace.
//!
//! `kube/source` judges objects before they get here and tells their authors the reason. This module
//! applies the same rule to everything that enters the index, so no other code in the index has to.

use tulle_model::manifest::{Object, ParentRef, TargetRef};
use tulle_model::namespaced::Namespaced;

/// Removes an object's references to what other namespaces own. Returns false if the object must not be
/// used at all: the rest of it would mean more than its author wrote.
pub(super) fn keep_within(object: &mut Object) -> bool {
    let namespace = |name: &str| Some(Namespaced::parse(name)?.namespace().to_owned());
    let of_object = namespace(object.name());
    let own = |name: &str| namespace(name) == of_object;
    let targets = |targets: &mut Vec<TargetRef>| targets.retain(|target| own(&target.name));
    // HTTP routes may be attached to Services of other namespaces: they hold for clients of their own
    // namespace only. TLS and TCP routes cannot tell clients apart. Gateways list their routes.
    let parents = |parents: &mut Vec<ParentRef>| {
        parents.retain(|p| !is_service(p) || own(&p.name));
    };
    match object {
        Object::TrafficPolicy(m) => targets(&mut m.spec.target_refs),
        Object::RateLimit(m) => targets(&mut m.spec.target_refs),
        Object::AuthorizationPolicy(m) => targets(&mut m.spec.target_refs),
        Object::Authentication(m) => targets(&mut m.spec.target_refs),
        Object::Plugin(m) => targets(&mut m.spec.target_refs),
        Object::IngressBackend(m) => m.spec.backends.retain(|b| own(&b.name)),
        Object::AccessControl(m) => m.spec.backends.retain(|b| own(&b.name)),
        Object::TlsRoute(m) => parents(&mut m.spec.parent_refs),
        Object::TcpRoute(m) => parents(&mut m.spec.parent_refs),
        Object::TrafficTarget(m) => return own(&m.spec.destination.name),
        Object::TrafficSplit(m) => return own(&m.spec.service),
        // An Egress without sources is for the whole namespace, so no source may be removed.
        Object::Egress(m) => {
            let mut gateways = m.spec.gateway.iter();
            return m.spec.sources.iter().all(|s| own(&s.name))
                && gateways.all(|gateway| own(&gateway.service));
        }
        // Backends across namespaces need a ReferenceGrant, which `kube/source/refs.rs` looks for.
        Object::HttpRoute(_) | Object::GrpcRoute(_) => {}
        // Only objects of the same namespace refer to these, by name.
        Object::HttpFilter(_) | Object::HttpRouteGroup(_) | Object::SmiTcpRoute(_) => {}
        // `kube/gateway` grants and reads these. Gateways come as `Edit::Gateway`.
        Object::Secret(_) | Object::ConfigMap(_) | Object::Gateway(_) => {}
        // There is one, which belongs to no namespace.
        Object::Mesh(_) => {}
        // A cluster has pods instead. A Workload could serve under any name.
        Object::Workload(_) => return false,
    }
    true
}

/// Whether the parent is a Service rather than a Gateway (the default).
pub(super) fn is_service(parent: &ParentRef) -> bool {
    parent.kind.as_deref() == Some("Service")
}

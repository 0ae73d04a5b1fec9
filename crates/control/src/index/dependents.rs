//! Which units an object has a part in, as things stand. An edit asks before and after it.

use super::inputs::{identity_name_of, service_of};
use super::{Inputs, Unit, bounds};
use std::collections::BTreeSet;
use tulle_model::manifest::{
    AccessSpec, EgressSpec, GatewaySpec, GrpcRouteSpec, HttpRouteSpec, JwtProviderSpec, JwtSpec,
    ObjectRef, ParentRef, RouteFilter, TargetRef,
};
use tulle_model::namespaced::Namespaced;

type Dirty = BTreeSet<Unit>;

/// Everything.
pub(super) fn all(inputs: &Inputs, dirty: &mut Dirty) {
    dirty.extend([Unit::Mesh, Unit::Egress]);
    for name in inputs.services.keys() {
        service(inputs, name, dirty);
    }
    if let Some(cluster) = &inputs.cluster {
        let services = cluster.services().map(|s| s.name.clone());
        dirty.extend(services.map(|name| Unit::Service(name.into())));
        dirty.extend(cluster.pods().map(|p| Unit::Pod(p.name.clone())));
    }
    for split in inputs.splits.values() {
        service(inputs, &split.service, dirty);
    }
    dirty.extend(inputs.gateways.keys().cloned().map(Unit::Gateway));
}

/// Marks the service that an object means by a name. In a cluster nothing has a name without a namespace.
fn service(inputs: &Inputs, name: &str, dirty: &mut Dirty) {
    dirty.extend(inputs.object_name(name).map(Unit::Service));
}

fn gateway(inputs: &Inputs, name: &str, dirty: &mut Dirty) {
    dirty.extend(inputs.object_name(name).map(Unit::Gateway));
}

pub(super) fn object(inputs: &Inputs, kind: &str, name: &str, dirty: &mut Dirty) {
    match kind {
        "Mesh" => all(inputs, dirty),
        "Workload" => workload(inputs, name, dirty),
        "Gateway" => gateway(inputs, name, dirty),
        "HTTPRoute" | "GRPCRoute" | "TLSRoute" | "TCPRoute" => {
            parents(inputs, parent_refs(inputs, kind, name), dirty);
        }
        "TrafficTarget" => target(inputs, name, dirty),
        "HTTPRouteGroup" => group(inputs, name, dirty),
        "TCPRoute.specs.smi-spec.io" => targets_with(inputs, "TCPRoute", name, dirty),
        "TrafficSplit" => {
            if let Some(split) = inputs.splits.get(name) {
                service(inputs, &split.service, dirty);
            }
        }
        "TrafficPolicy" => {
            targeted(
                inputs,
                inputs.traffic.get(name).map(|p| &p.target_refs),
                dirty,
            );
        }
        "RateLimit" => {
            targeted(
                inputs,
                inputs.rate_limits.get(name).map(|p| &p.target_refs),
                dirty,
            );
        }
        "AuthorizationPolicy" => match inputs.authorization.get(name) {
            Some(policy) if inputs.is_about_everything(policy) => all(inputs, dirty),
            policy => targeted(inputs, policy.map(|p| &p.target_refs), dirty),
        },
        "Plugin" => {
            targeted(
                inputs,
                inputs.plugins.get(name).map(|p| &p.target_refs),
                dirty,
            );
            filter(inputs, name, dirty);
        }
        "Authentication" => {
            targeted(
                inputs,
                inputs.authentication.get(name).map(|p| &p.target_refs),
                dirty,
            );
        }
        "IngressBackend" => access(inputs, inputs.ingress_backends.get(name), dirty),
        "AccessControl" => access(inputs, inputs.access_controls.get(name), dirty),
        "HTTPFilter" => filter(inputs, name, dirty),
        "Egress" => {
            dirty.insert(Unit::Egress);
            // The gateway's port takes CONNECT as long as an Egress names it.
            if let Some(gateway) = inputs.egress.get(name).and_then(|e| e.gateway.as_ref()) {
                service(inputs, &gateway.service, dirty);
            }
        }
        "Secret" | "ConfigMap" => text(inputs, kind, name, dirty),
        _ => {}
    }
}

fn targeted(inputs: &Inputs, refs: Option<&Vec<TargetRef>>, dirty: &mut Dirty) {
    for reference in refs.into_iter().flatten() {
        let name = &reference.name;
        match reference.kind() {
            kind @ ("Gateway" | "HTTPRoute" | "GRPCRoute") => object(inputs, kind, name, dirty),
            _ => service(inputs, name, dirty),
        }
    }
}

/// The parents of a route.
fn parent_refs<'a>(inputs: &'a Inputs, kind: &str, name: &str) -> Option<&'a Vec<ParentRef>> {
    match kind {
        "HTTPRoute" => inputs.routes.get(name).map(|r| &r.parent_refs),
        "GRPCRoute" => inputs.grpc_routes.get(name).map(|r| &r.parent_refs),
        "TLSRoute" => inputs.tls_routes.get(name).map(|r| &r.parent_refs),
        _ => inputs.tcp_routes.get(name).map(|r| &r.parent_refs),
    }
}

fn parents(inputs: &Inputs, parents: Option<&Vec<ParentRef>>, dirty: &mut Dirty) {
    for parent in parents.into_iter().flatten() {
        match bounds::is_service(parent) {
            true => service(inputs, &parent.name, dirty),
            false => gateway(inputs, &parent.name, dirty),
        }
    }
}

fn access(inputs: &Inputs, access: Option<&AccessSpec>, dirty: &mut Dirty) {
    for backend in access.into_iter().flat_map(|a| &a.backends) {
        service(inputs, &backend.name, dirty);
    }
}

fn workload(inputs: &Inputs, name: &str, dirty: &mut Dirty) {
    let Some(spec) = inputs.workloads.get(name) else {
        return;
    };
    let own = service_of(name, spec);
    service(inputs, own, dirty);
    // A service that only a split stands for has the ports of its backends.
    for split in inputs.splits.values() {
        if split.backends.iter().any(|b| b.service == own) {
            service(inputs, &split.service, dirty);
        }
    }
    called_from(inputs, own, dirty);
}

/// Marks all that a service may call: as a source it stands for the identities of its workloads or
/// pods.
pub(super) fn called_from(inputs: &Inputs, service: &str, dirty: &mut Dirty) {
    let ingress = inputs.ingress_backends.values();
    for access in ingress.chain(inputs.access_controls.values()) {
        let mut sources = access.sources.iter();
        if sources.any(|s| s.kind == "Service" && s.name == service) {
            self::access(inputs, Some(access), dirty);
        }
    }
}

fn target(inputs: &Inputs, name: &str, dirty: &mut Dirty) {
    let Some(target) = inputs.targets.get(name) else {
        return;
    };
    let destination = &target.destination.name;
    if let (Some(cluster), Some(account)) = (&inputs.cluster, Namespaced::parse(destination)) {
        let pods = cluster.pods().filter(|p| p.is_account(&account));
        dirty.extend(pods.map(|p| Unit::Pod(p.name.clone())));
    }
    for (workload, spec) in &inputs.workloads {
        if identity_name_of(workload, spec) == destination {
            service(inputs, service_of(workload, spec), dirty);
        }
    }
}

fn targets_with(inputs: &Inputs, kind: &str, name: &str, dirty: &mut Dirty) {
    for (target_name, target) in &inputs.targets {
        if target
            .rules
            .iter()
            .any(|r| r.kind == kind && r.name == name)
        {
            self::target(inputs, target_name.as_str(), dirty);
        }
    }
}

fn group(inputs: &Inputs, name: &str, dirty: &mut Dirty) {
    targets_with(inputs, "HTTPRouteGroup", name, dirty);
    for split in inputs.splits.values() {
        if split.matches.iter().any(|m| m.name == name) {
            service(inputs, &split.service, dirty);
        }
    }
    let mut egress = inputs.egress.values();
    if egress.any(|e| e.matches.iter().any(|m| m.name == name)) {
        dirty.insert(Unit::Egress);
    }
}

/// Marks what has routes that refer to an HTTPFilter or Plugin of this name.
fn filter(inputs: &Inputs, name: &str, dirty: &mut Dirty) {
    let named = |f: &&RouteFilter| f.extension_ref.as_ref().is_some_and(|r| r.name == name);
    for route in inputs.routes.values() {
        if http_filters(route).any(|f| named(&f)) {
            parents(inputs, Some(&route.parent_refs), dirty);
        }
    }
    for route in inputs.grpc_routes.values() {
        if grpc_filters(route).any(|f| named(&f)) {
            parents(inputs, Some(&route.parent_refs), dirty);
        }
    }
}

/// All filters of a route, also those of its backends.
pub(super) fn http_filters(route: &HttpRouteSpec) -> impl Iterator<Item = &RouteFilter> {
    let of_backends = |r| -> &Vec<_> { r };
    route.rules.iter().flat_map(move |r| {
        let backends = of_backends(&r.backend_refs).iter().flat_map(|b| &b.filters);
        r.filters.iter().chain(backends)
    })
}

/// All filters of a route, also those of its backends.
pub(super) fn grpc_filters(route: &GrpcRouteSpec) -> impl Iterator<Item = &RouteFilter> {
    route.rules.iter().flat_map(|r| {
        let backends = r.backend_refs.iter().flat_map(|b| &b.filters);
        r.filters.iter().chain(backends)
    })
}

/// Marks everything that refers to a Secret or ConfigMap.
fn text(inputs: &Inputs, kind: &str, name: &str, dirty: &mut Dirty) {
    let is = |r: &ObjectRef, default: &str| {
        r.name == name && r.kind.as_deref().unwrap_or(default) == kind
    };
    for (gateway, spec) in &inputs.gateways {
        if gateway_refs(spec).any(|(r, default)| is(r, default)) {
            dirty.insert(Unit::Gateway(gateway.clone()));
        }
    }
    let mut roots = inputs.egress.values().filter_map(roots_ref);
    if roots.any(|r| is(r, "ConfigMap")) {
        dirty.insert(Unit::Egress);
    }
    for (plugin_name, spec) in &inputs.plugins {
        if spec.source_ref.as_ref().is_some_and(|r| is(r, "ConfigMap")) {
            targeted(inputs, Some(&spec.target_refs), dirty);
            filter(inputs, plugin_name.as_str(), dirty);
        }
    }
    let named = |p: &JwtProviderSpec| p.jwks_ref.as_ref().is_some_and(|r| is(r, "ConfigMap"));
    providers(inputs, &named, dirty);
}

/// Marks everything that names a fetched set of keys.
pub(super) fn keys(inputs: &Inputs, address: &str, dirty: &mut Dirty) {
    providers(inputs, &|p| p.jwks_uri.as_deref() == Some(address), dirty);
}

/// Marks everything that checks tokens with a provider for which `meant` is true.
fn providers(inputs: &Inputs, meant: &dyn Fn(&JwtProviderSpec) -> bool, dirty: &mut Dirty) {
    let any = |jwt: Option<&JwtSpec>| jwt.is_some_and(|jwt| jwt.providers.iter().any(meant));
    for spec in inputs.authentication.values() {
        if any(spec.jwt.as_ref()) {
            targeted(inputs, Some(&spec.target_refs), dirty);
        }
    }
    for (filter_name, spec) in &inputs.filters {
        if any(spec.jwt.as_ref()) {
            filter(inputs, filter_name.as_str(), dirty);
        }
    }
}

/// Returns the references of a gateway, each with the kind that is meant when none is given.
pub(super) fn gateway_refs(spec: &GatewaySpec) -> impl Iterator<Item = (&ObjectRef, &'static str)> {
    let tls = spec.listeners.iter().filter_map(|l| l.tls.as_ref());
    tls.flat_map(|tls| {
        let roots = tls.frontend_validation.iter();
        let roots = roots.flat_map(|v| &v.ca_certificate_refs);
        let certificates = tls.certificate_refs.iter().map(|r| (r, "Secret"));
        certificates.chain(roots.map(|r| (r, "ConfigMap")))
    })
}

fn roots_ref(egress: &EgressSpec) -> Option<&ObjectRef> {
    egress.tls.as_ref()?.ca_certificate_ref.as_ref()
}

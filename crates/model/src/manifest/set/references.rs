//! Finds references to objects that do not exist.

use super::known::{Known, PortKnown};
use super::{Found, code};
use crate::manifest::names::is_dns_label;
use crate::manifest::{
    BackendRef, ExternalAuthSpec, GatewaySpec, HttpFilterSpec, JwtSpec, ListenerSpec, Manifest,
    Object, PLUGIN_KEY, ParentRef, RouteFilter, WorkloadSpec,
};

pub(super) fn check(known: &Known<'_>, object: &Object, found: &mut Found<'_>) {
    match object {
        Object::Workload(workload) => self::workload(known, workload, found),
        Object::Gateway(gateway) => self::gateway(known, gateway, found),
        Object::HttpRoute(route) => {
            parents(
                known,
                &route.spec.parent_refs,
                ListenerSpec::takes_http,
                found,
            );
            for (i, rule) in route.spec.rules.iter().enumerate() {
                let at = format!("spec.rules[{i}]");
                filters(known, &at, &rule.filters, found);
                backends(known, &at, &rule.backend_refs, found);
                let answers =
                    |f: &RouteFilter| ["RequestRedirect", "ExtensionRef"].contains(&&*f.kind);
                if !rule.filters.iter().any(answers) {
                    sends_somewhere(&at, &rule.backend_refs, found);
                }
            }
            let by_case = route
                .spec
                .restricted_in_one_case(|name| known.restricts(name));
            for (i, path) in by_case {
                let message = format!(
                    "its filters restrict {path} in this letter case alone, and another rule takes the \
                     path in others; an application that overlooks case answers there. Match by \
                     RegularExpression with `(?i)`, or restrict all requests of the route"
                );
                found.warn(code::LETTER_CASE, format!("spec.rules[{i}]"), message);
            }
        }
        Object::GrpcRoute(route) => {
            parents(
                known,
                &route.spec.parent_refs,
                ListenerSpec::takes_http,
                found,
            );
            for (i, rule) in route.spec.rules.iter().enumerate() {
                let at = format!("spec.rules[{i}]");
                filters(known, &at, &rule.filters, found);
                backends(known, &at, &rule.backend_refs, found);
                if !rule.filters.iter().any(|f| f.kind == "ExtensionRef") {
                    sends_somewhere(&at, &rule.backend_refs, found);
                }
            }
        }
        Object::TlsRoute(route) => {
            parents(
                known,
                &route.spec.parent_refs,
                ListenerSpec::takes_tls,
                found,
            );
            for (i, rule) in route.spec.rules.iter().enumerate() {
                backends(
                    known,
                    &format!("spec.rules[{i}]"),
                    &rule.backend_refs,
                    found,
                );
            }
        }
        Object::TcpRoute(route) => {
            parents(
                known,
                &route.spec.parent_refs,
                ListenerSpec::takes_tcp,
                found,
            );
            for (i, rule) in route.spec.rules.iter().enumerate() {
                backends(
                    known,
                    &format!("spec.rules[{i}]"),
                    &rule.backend_refs,
                    found,
                );
            }
        }
        Object::TrafficSplit(split) => {
            for (i, backend) in split.spec.backends.iter().enumerate() {
                let at = format!("spec.backends[{i}]");
                known.service(&at, "service", &backend.service, None, found);
            }
            for (i, m) in split.spec.matches.iter().enumerate() {
                if !known.has_group(&m.name) {
                    let message = format!(
                        "there is no HTTPRouteGroup `{}` (yet); its requests are not split",
                        m.name
                    );
                    found.warn(code::NO_GROUP, format!("spec.matches[{i}].name"), message);
                }
            }
        }
        Object::HttpFilter(filter) => http_filter(known, &filter.spec, found),
        Object::Authentication(authentication) => {
            jwt(known, authentication.spec.jwt.as_ref(), found);
            external_auth(known, authentication.spec.external_auth.as_ref(), found);
        }
        Object::Plugin(plugin) => {
            if let Some(reference) = &plugin.spec.source_ref {
                let then = "the last good module goes on; without one it fails";
                let at = "spec.sourceRef".to_owned();
                known.text(at, reference, "ConfigMap", PLUGIN_KEY, then, found);
            }
            for (i, service) in plugin.spec.services.iter().enumerate() {
                let field = format!("services[{i}]");
                known.service("spec", &field, service, None, found);
            }
        }
        Object::Egress(egress) => {
            let egress = &egress.spec;
            known.identities("spec.sources", &egress.sources, found);
            known.rules("spec.matches", &egress.matches, found);
            let tls = egress.tls.as_ref();
            if let Some(roots) = tls.and_then(|t| t.ca_certificate_ref.as_ref()) {
                let (at, then) = ("spec.tls.caCertificateRef".into(), "it allows nothing");
                known.text(at, roots, "ConfigMap", "ca.crt", then, found);
            }
            if let Some(gateway) = &egress.gateway {
                let port = Some(gateway.port);
                known.service("spec.gateway", "service", &gateway.service, port, found);
            }
        }
        _ => {}
    }
}

fn workload(known: &Known<'_>, workload: &Manifest<WorkloadSpec>, found: &mut Found<'_>) {
    let service = workload.service();
    for (i, port) in workload.spec.ports.iter().enumerate() {
        let first = known.services.get(service).and_then(|s| s.get(&port.port));
        if let Some(PortKnown {
            workload: other,
            protocol,
            ..
        }) = first
            && *protocol != port.app_protocol.as_deref()
        {
            let message = format!(
                "port {} of service {service} has `{}` here and `{}` in Workload/{other}; give \
                 both the same, the one of the first is used",
                port.port,
                port.app_protocol.as_deref().unwrap_or("no appProtocol"),
                protocol.unwrap_or("no appProtocol"),
            );
            let field = format!("spec.ports[{i}].appProtocol");
            found.warn(code::PROTOCOLS_DIFFER, field, message);
        }
    }
    for (i, upstream) in workload.spec.upstreams.iter().enumerate() {
        let at = format!("spec.upstreams[{i}]");
        known.service(
            &at,
            "service",
            &upstream.service,
            Some(upstream.port),
            found,
        );
    }
    if known.gateways.contains_key(workload.identity()) {
        let message = format!(
            "Gateway/{0} has the same identity `{0}`, so policies cannot tell them apart; \
             rename one",
            workload.identity()
        );
        found.warn(code::SAME_IDENTITY, "spec.identity", message);
    }
}

fn gateway(known: &Known<'_>, gateway: &Manifest<GatewaySpec>, found: &mut Found<'_>) {
    if !is_dns_label(&gateway.metadata.name) {
        // On a host the name becomes part of its identity, as a service's does, and of the path of
        // its socket.
        let message =
            "a gateway of a host is named by a DNS label: use 1 to 63 of a-z, 0-9 and `-`";
        found.refuse(code::NO_LABEL, "metadata.name", message.into());
    }
    let gateway = &gateway.spec;
    let class = &gateway.gateway_class_name;
    if class != "tulle" {
        let message =
            format!("the class is `{class}`, not `tulle`, so Tulle does not serve this gateway");
        found.warn(code::OTHER_CLASS, "spec.gatewayClassName", message);
        return;
    }
    let then = "the listener is not served";
    for (i, listener) in gateway.listeners.iter().enumerate() {
        let at = format!("spec.listeners[{i}].tls");
        let Some(tls) = &listener.tls else { continue };
        for (j, reference) in tls.certificate_refs.iter().enumerate() {
            for key in ["tls.crt", "tls.key"] {
                let at = format!("{at}.certificateRefs[{j}]");
                known.text(at, reference, "Secret", key, then, found);
            }
        }
        let roots = tls
            .frontend_validation
            .iter()
            .flat_map(|v| &v.ca_certificate_refs);
        for (j, reference) in roots.enumerate() {
            let at = format!("{at}.frontendValidation.caCertificateRefs[{j}]");
            known.text(at, reference, "ConfigMap", "ca.crt", then, found);
        }
    }
}

fn parents(
    known: &Known<'_>,
    parents: &[ParentRef],
    takes: fn(&ListenerSpec) -> bool,
    found: &mut Found<'_>,
) {
    for (i, parent) in parents.iter().enumerate() {
        let at = format!("spec.parentRefs[{i}]");
        if parent.kind.as_deref() == Some("Service") {
            known.service(&at, "name", &parent.name, parent.port, found);
            continue;
        }
        let name = &parent.name;
        let Some(listeners) = known.gateways.get(name.as_str()) else {
            let message = format!("there is no Gateway `{name}` (yet); the route has no effect");
            found.warn(code::NO_GATEWAY, format!("{at}.name"), message);
            continue;
        };
        let section = |l: &&ListenerSpec| parent.section_name.as_ref().is_none_or(|s| *s == l.name);
        let port = |l: &&ListenerSpec| parent.port.is_none_or(|p| p == l.port);
        let (field, message) = if !listeners.iter().any(|l| section(&l)) {
            let section = parent.section_name.as_deref().unwrap_or_default();
            (
                ".sectionName",
                format!("Gateway `{name}` has no listener `{section}`"),
            )
        } else if !listeners.iter().any(|l| port(&l)) {
            let port = parent.port.unwrap_or_default();
            (
                ".port",
                format!("Gateway `{name}` has no listener on port {port}"),
            )
        } else if !listeners.iter().filter(section).filter(port).any(takes) {
            (
                "",
                format!("no listener of Gateway `{name}` that it names takes such routes"),
            )
        } else {
            continue;
        };
        found.warn(
            code::NO_LISTENER,
            format!("{at}{field}"),
            format!("{message}; the route has no effect there"),
        );
    }
}

fn backends(known: &Known<'_>, at: &str, backends: &[BackendRef], found: &mut Found<'_>) {
    for (i, backend) in backends.iter().enumerate() {
        let at = format!("{at}.backendRefs[{i}]");
        known.service(&at, "name", &backend.name, Some(backend.port), found);
        filters(known, &at, &backend.filters, found);
    }
}

fn sends_somewhere(at: &str, backends: &[BackendRef], found: &mut Found<'_>) {
    if backends.iter().all(|b| b.weight == Some(0)) {
        // Gateway API defines the status (HTTPRouteRule `backendRefs`).
        let message = match backends.is_empty() {
            true => "the rule has no backend, so every request is answered with 500",
            false => "no backend has a weight, so every request is answered with 500",
        };
        found.warn(
            code::NO_BACKEND,
            format!("{at}.backendRefs"),
            message.into(),
        );
    }
}

fn filters(known: &Known<'_>, at: &str, filters: &[RouteFilter], found: &mut Found<'_>) {
    for (i, filter) in filters.iter().enumerate() {
        let at = format!("{at}.filters[{i}]");
        if let Some(mirror) = &filter.request_mirror {
            let at = format!("{at}.requestMirror.backendRef");
            let backend = &mirror.backend_ref;
            known.service(&at, "name", &backend.name, Some(backend.port), found);
        }
        if let Some(reference) = &filter.extension_ref
            && !known.has_filter(reference)
        {
            let kind = reference.kind.as_deref().unwrap_or("HTTPFilter");
            let message = format!(
                "there is no {kind} `{}` (yet); requests are answered with 500",
                reference.name
            );
            found.warn(code::NO_FILTER, format!("{at}.extensionRef.name"), message);
        }
    }
}

fn http_filter(known: &Known<'_>, filter: &HttpFilterSpec, found: &mut Found<'_>) {
    jwt(known, filter.jwt.as_ref(), found);
    external_auth(known, filter.external_auth.as_ref(), found);
    if let Some(mirror) = &filter.mirror {
        let (at, backend) = ("spec.mirror.backendRef", &mirror.backend_ref);
        known.service(at, "name", &backend.name, Some(backend.port), found);
    }
}

fn external_auth(known: &Known<'_>, auth: Option<&ExternalAuthSpec>, found: &mut Found<'_>) {
    if let Some(auth) = auth {
        let (at, backend) = ("spec.externalAuth.backendRef", &auth.backend_ref);
        known.service(at, "name", &backend.name, Some(backend.port), found);
    }
}

fn jwt(known: &Known<'_>, jwt: Option<&JwtSpec>, found: &mut Found<'_>) {
    for (i, provider) in jwt.iter().flat_map(|j| &j.providers).enumerate() {
        if let Some(reference) = &provider.jwks_ref {
            let at = format!("spec.jwt.providers[{i}].jwksRef");
            let then = "no token of this issuer is accepted";
            known.text(at, reference, "ConfigMap", "jwks", then, found);
        }
    }
}

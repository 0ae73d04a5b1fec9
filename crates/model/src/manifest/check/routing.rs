//! Checks a single Gateway or route, beyond its types.

use super::filters::route_filters;
use super::{
    MAX_TIMEOUT, duration, host, label, locality, metadata, not_empty, object_name, path, port,
    range, regex, spec, unique, word, word_or_later,
};
use crate::document::{Path, Report, shorten};
use crate::manifest::allowed::{
    AFFINITIES, BACKEND_KINDS, CORE_GROUPS, MAX_ATTEMPTS, MAX_WEIGHT, METHODS, PATH_MATCHES,
    TEXT_MATCHES,
};
use crate::manifest::meaning::{LOCALITY, PROXY_PROTOCOL};
use crate::manifest::names::is_token;
use crate::manifest::{
    BackendRef, GatewaySpec, GrpcMethodMatch, GrpcRouteSpec, HttpHeaderMatch, HttpPathMatch,
    HttpRouteMatch, HttpRouteSpec, HttpRouteTimeouts, ListenerSpec, Manifest, ObjectRef, ParentRef,
    RouteFilter, SessionPersistence, TcpRouteRule, TcpRouteSpec, TlsRouteSpec, parse_duration,
};
use std::collections::{HashMap, HashSet};
use std::time::Duration;

pub(super) const GATEWAY_GROUP: &str = "gateway.networking.k8s.io";

pub(in crate::manifest) fn gateway(gateway: &Manifest<GatewaySpec>, report: &mut Report) {
    metadata(&gateway.metadata, object_name, report);
    let at = spec().key("listeners");
    not_empty(&at, &gateway.spec.listeners, "listener", report);
    let (mut names, mut sockets) = (HashSet::new(), HashSet::new());
    // The kind of listeners of each port: HTTPS and TLS share one by server name, others do not
    // mix.
    let mut takes: HashMap<u16, &str> = HashMap::new();
    for (i, listener) in gateway.spec.listeners.iter().enumerate() {
        let at = at.index(i);
        object_name(&at.key("name"), &listener.name, report);
        unique(&at.key("name"), &listener.name, &mut names, report);
        port(&at.key("port"), listener.port, report);
        self::listener(&at, listener, report);
        if !sockets.insert((listener.port, listener.hostname.as_deref())) {
            report.add(
                &at.key("port"),
                format!(
                    "port {} is given twice for the same hostname",
                    listener.port
                ),
                "change the port or the hostname",
            );
        }
        let protocol = match listener.protocol.as_str() {
            "HTTPS" => "TLS",
            other => other,
        };
        let first = *takes.entry(listener.port).or_insert(protocol);
        if first != protocol {
            report.add(
                &at.key("protocol"),
                format!(
                    "port {} has {first} listeners already; one port cannot take {} too",
                    listener.port, listener.protocol
                ),
                "give it a port of its own",
            );
        }
    }
    infrastructure(&gateway.spec, report);
    for (i, address) in gateway.spec.addresses.iter().enumerate() {
        if let Some(kind) = &address.kind {
            let at = spec().key("addresses").index(i).key("type");
            word_or_later(
                &at,
                kind,
                &["IPAddress"],
                &["Hostname", "NamedAddress"],
                report,
            );
        }
    }
}

/// Checks the annotations that are read. Keys with this prefix are Tulle's own, so an unknown one
/// is a mistake.
fn infrastructure(gateway: &GatewaySpec, report: &mut Report) {
    let Some(infrastructure) = &gateway.infrastructure else {
        return;
    };
    let at = spec().key("infrastructure").key("annotations");
    for key in infrastructure.annotations.keys() {
        if key.starts_with("tulle.dev/") {
            word(&at, key, &[LOCALITY, PROXY_PROTOCOL], report);
        }
    }
    if let Some(text) = gateway.annotation(LOCALITY) {
        locality(&at.key(LOCALITY), text, report);
    }
    if gateway.annotation(PROXY_PROTOCOL).is_none() {
        return;
    }
    let at = at.key(PROXY_PROTOCOL);
    let proxied: HashSet<&str> = gateway.proxied().collect();
    if proxied.is_empty() {
        let hint = "separate several by commas, or remove the annotation";
        report.add(&at, "expected the name of a listener, found none", hint);
    }
    let names: Vec<&str> = gateway.listeners.iter().map(|l| l.name.as_str()).collect();
    let known: HashSet<&str> = names.iter().copied().collect();
    for name in gateway.proxied().filter(|name| !known.contains(name)) {
        // A message lists all names.
        if report.is_full() {
            break;
        }
        word(&at, name, &names, report);
    }
    // The PROXY protocol header comes before anything that could choose a listener, so it holds for
    // a whole port.
    let is_proxied = |listener: &ListenerSpec| proxied.contains(listener.name.as_str());
    let ports = gateway.listeners.iter().filter(|l| is_proxied(l));
    let ports: HashSet<u16> = ports.map(|l| l.port).collect();
    let mut listeners = gateway.listeners.iter();
    let differs = listeners.find(|l| !is_proxied(l) && ports.contains(&l.port));
    if let Some(listener) = differs {
        let problem = format!(
            "listener `{}` on port {} is not named and another one on that port is",
            listener.name, listener.port
        );
        report.add(&at, problem, "name all listeners of the port, or none");
    }
}

fn listener(at: &Path, listener: &ListenerSpec, report: &mut Report) {
    let protocol = listener.protocol.as_str();
    word_or_later(
        &at.key("protocol"),
        protocol,
        &["HTTP", "HTTPS", "TLS", "TCP"],
        &["UDP"],
        report,
    );
    if let Some(hostname) = &listener.hostname {
        host(&at.key("hostname"), hostname, report);
        if protocol == "TCP" {
            let problem = "a TCP listener has no hostname: the bytes name none";
            report.add(&at.key("hostname"), problem, "remove it");
        }
    }
    if let Some(routes) = &listener.allowed_routes
        && let Some(from) = routes.namespaces.as_ref().and_then(|n| n.from.as_ref())
    {
        let at = at.key("allowedRoutes").key("namespaces").key("from");
        word_or_later(&at, from, &["Same", "All"], &["Selector", "None"], report);
    }
    let at = at.key("tls");
    let Some(tls) = &listener.tls else {
        if matches!(protocol, "HTTPS" | "TLS") {
            let problem = format!("required for {protocol}");
            let hint = "add `tls: {certificateRefs: [{name: SECRET}]}`, or for TLS `tls: {mode: \
                        Passthrough}`";
            report.add(&at, problem, hint);
        }
        return;
    };
    if !matches!(protocol, "HTTPS" | "TLS") {
        let problem = format!("not used with protocol {protocol}");
        report.add(&at, problem, "remove it, or make the protocol HTTPS or TLS");
        return;
    }
    let mode = tls.mode.as_deref().unwrap_or("Terminate");
    word(&at.key("mode"), mode, &["Terminate", "Passthrough"], report);
    if mode == "Passthrough" {
        if protocol == "HTTPS" {
            let hint = "use protocol TLS with TLSRoutes";
            report.add(&at.key("mode"), "HTTPS cannot be passed through", hint);
        }
        if !tls.certificate_refs.is_empty() || tls.frontend_validation.is_some() {
            let problem = "what is passed through is not decrypted, so certificates are not used";
            report.add(
                &at,
                problem,
                "remove `certificateRefs` and `frontendValidation`",
            );
        }
        return;
    }
    let refs = at.key("certificateRefs");
    not_empty(&refs, &tls.certificate_refs, "Secret", report);
    for (i, reference) in tls.certificate_refs.iter().enumerate() {
        object_ref(&refs.index(i), reference, "Secret", &["Secret"], report);
    }
    if let Some(validation) = &tls.frontend_validation {
        let at = at.key("frontendValidation");
        let refs = at.key("caCertificateRefs");
        not_empty(&refs, &validation.ca_certificate_refs, "ConfigMap", report);
        for (i, reference) in validation.ca_certificate_refs.iter().enumerate() {
            let kinds = ["ConfigMap", "Secret"];
            object_ref(&refs.index(i), reference, "ConfigMap", &kinds, report);
        }
        if let Some(mode) = &validation.mode {
            let known = ["AllowValidOnly", "AllowInsecureFallback"];
            word(&at.key("mode"), mode, &known, report);
        }
    }
}

/// A reference to an object of one of a few kinds of the core group.
pub(super) fn object_ref(
    at: &Path,
    reference: &ObjectRef,
    default: &str,
    kinds: &[&str],
    report: &mut Report,
) {
    let kind = reference.kind.as_deref().unwrap_or(default);
    word(&at.key("kind"), kind, kinds, report);
    if let Some(group) = &reference.group {
        word(&at.key("group"), group, &CORE_GROUPS, report);
    }
    object_name(&at.key("name"), &reference.name, report);
}

pub(in crate::manifest) fn http_route(route: &Manifest<HttpRouteSpec>, report: &mut Report) {
    metadata(&route.metadata, object_name, report);
    let route = &route.spec;
    parents(&route.parent_refs, report);
    hostnames(&route.hostnames, report);
    let at = spec().key("rules");
    not_empty(&at, &route.rules, "rule", report);
    let mut names = HashSet::new();
    for (i, rule) in route.rules.iter().enumerate() {
        let at = at.index(i);
        rule_name(&at, rule.name.as_deref(), &mut names, report);
        for (i, m) in rule.matches.iter().enumerate() {
            route_match(&at.key("matches").index(i), m, report);
        }
        let prefixes = rule.matches.iter().all(|m| {
            let kind = m.path.as_ref().and_then(|p| p.kind.as_deref());
            kind.is_none_or(|kind| kind == "PathPrefix")
        });
        route_filters(&at.key("filters"), &rule.filters, prefixes, report);
        for (i, backend) in rule.backend_refs.iter().enumerate() {
            backend_ref(&at.key("backendRefs").index(i), backend, prefixes, report);
        }
        if !rule.backend_refs.is_empty() && rule.filters.iter().any(|f| f.kind == "RequestRedirect")
        {
            let problem = "a rule that redirects sends nothing to backends";
            report.add(
                &at.key("backendRefs"),
                problem,
                "remove them or the redirect",
            );
        }
        if let Some(timeouts) = &rule.timeouts {
            rule_timeouts(&at.key("timeouts"), timeouts, report);
        }
        if let Some(retry) = &rule.retry {
            let at = at.key("retry");
            for (i, code) in retry.codes.iter().enumerate() {
                range(&at.key("codes").index(i), (*code).into(), 400, 599, report);
            }
            if let Some(attempts) = retry.attempts {
                range(&at.key("attempts"), attempts, 1, MAX_ATTEMPTS, report);
            }
            duration(
                &at.key("backoff"),
                retry.backoff.as_deref(),
                Duration::from_millis(1),
                MAX_TIMEOUT,
                report,
            );
        }
        persistence(&at, rule.session_persistence.as_ref(), report);
    }
}

fn rule_timeouts(at: &Path, timeouts: &HttpRouteTimeouts, report: &mut Report) {
    for (name, text) in [
        ("request", &timeouts.request),
        ("backendRequest", &timeouts.backend_request),
    ] {
        let at = at.key(name);
        duration(&at, text.as_deref(), Duration::ZERO, MAX_TIMEOUT, report);
    }
    let read = |text: &Option<String>| text.as_deref().and_then(|t| parse_duration(t).ok());
    if let (Some(all), Some(each)) = (read(&timeouts.request), read(&timeouts.backend_request))
        && !all.is_zero()
        && each > all
    {
        report.add(
            &at.key("backendRequest"),
            "one try may not take longer than all tries together",
            "make it at most `request`",
        );
    }
}

fn persistence(at: &Path, persistence: Option<&SessionPersistence>, report: &mut Report) {
    let Some(persistence) = persistence else {
        return;
    };
    let at = at.key("sessionPersistence");
    let kind = persistence.kind.as_deref().unwrap_or("Cookie");
    word(&at.key("type"), kind, &AFFINITIES, report);
    if let Some(name) = &persistence.session_name {
        token(&at.key("sessionName"), name, report);
    }
    duration(
        &at.key("absoluteTimeout"),
        persistence.absolute_timeout.as_deref(),
        Duration::from_secs(1),
        MAX_TIMEOUT,
        report,
    );
    let cookie = persistence.cookie_config.as_ref();
    let lifetime = cookie.and_then(|c| c.lifetime_type.as_deref());
    if let Some(lifetime) = lifetime {
        let at = at.key("cookieConfig").key("lifetimeType");
        word(&at, lifetime, &["Session", "Permanent"], report);
    }
    if kind == "Header" && cookie.is_some() {
        let hint = "remove it, or make the type Cookie";
        report.add(&at.key("cookieConfig"), "not used with type Header", hint);
    }
    let permanent = kind == "Cookie" && lifetime == Some("Permanent");
    if permanent != persistence.absolute_timeout.is_some() {
        report.add(
            &at.key("absoluteTimeout"),
            "given with `lifetimeType: Permanent` and only then: it is the lifetime of the cookie",
            "",
        );
    }
}

pub(in crate::manifest) fn grpc_route(route: &Manifest<GrpcRouteSpec>, report: &mut Report) {
    metadata(&route.metadata, object_name, report);
    let route = &route.spec;
    parents(&route.parent_refs, report);
    hostnames(&route.hostnames, report);
    let at = spec().key("rules");
    not_empty(&at, &route.rules, "rule", report);
    let mut names = HashSet::new();
    for (i, rule) in route.rules.iter().enumerate() {
        let at = at.index(i);
        rule_name(&at, rule.name.as_deref(), &mut names, report);
        for (i, m) in rule.matches.iter().enumerate() {
            let at = at.key("matches").index(i);
            if let Some(method) = &m.method {
                grpc_method(&at.key("method"), method, report);
            }
            conditions(&at.key("headers"), &m.headers, true, report);
        }
        for (i, filter) in rule.filters.iter().enumerate() {
            grpc_filter(&at.key("filters").index(i), filter, report);
        }
        route_filters(&at.key("filters"), &rule.filters, false, report);
        for (i, backend) in rule.backend_refs.iter().enumerate() {
            let at = at.key("backendRefs").index(i);
            for (i, filter) in backend.filters.iter().enumerate() {
                grpc_filter(&at.key("filters").index(i), filter, report);
            }
            backend_ref(&at, backend, false, report);
        }
        persistence(&at, rule.session_persistence.as_ref(), report);
    }
}

fn grpc_filter(at: &Path, filter: &RouteFilter, report: &mut Report) {
    if ["RequestRedirect", "URLRewrite", "CORS"].contains(&filter.kind.as_str()) {
        let problem = format!("`{}` is no filter of a GRPCRoute", shorten(&filter.kind));
        report.add(&at.key("type"), problem, "use an HTTPRoute for it");
    }
}

fn grpc_method(at: &Path, method: &GrpcMethodMatch, report: &mut Report) {
    let kind = method.kind.as_deref().unwrap_or("Exact");
    word(&at.key("type"), kind, &TEXT_MATCHES, report);
    if method.service.is_none() && method.method.is_none() {
        let problem = "expected `service`, `method` or both, found neither";
        report.add(at, problem, "");
    }
    for (name, text) in [("service", &method.service), ("method", &method.method)] {
        let (at, Some(text)) = (at.key(name), text) else {
            continue;
        };
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"_.".contains(&b);
        if kind == "RegularExpression" {
            regex(&at, text, report);
        } else if text.is_empty() || !text.bytes().all(plain) {
            let problem = format!(
                "expected a name of gRPC such as `shop.Cart`, found `{}`",
                shorten(text)
            );
            report.add(&at, problem, "");
        }
    }
}

pub(in crate::manifest) fn tls_route(route: &Manifest<TlsRouteSpec>, report: &mut Report) {
    metadata(&route.metadata, object_name, report);
    parents(&route.spec.parent_refs, report);
    hostnames(&route.spec.hostnames, report);
    tcp_rules(&route.spec.rules, report);
}

pub(in crate::manifest) fn tcp_route(route: &Manifest<TcpRouteSpec>, report: &mut Report) {
    metadata(&route.metadata, object_name, report);
    parents(&route.spec.parent_refs, report);
    tcp_rules(&route.spec.rules, report);
}

fn tcp_rules(rules: &[TcpRouteRule], report: &mut Report) {
    let at = spec().key("rules");
    if rules.len() != 1 {
        let problem = format!("expected exactly one rule, found {}", rules.len());
        let hint = "only one rule can apply: nothing in a connection tells rules apart";
        report.add(&at, problem, hint);
    }
    for (i, rule) in rules.iter().enumerate() {
        let at = at.index(i);
        rule_name(&at, rule.name.as_deref(), &mut HashSet::new(), report);
        let refs = at.key("backendRefs");
        not_empty(&refs, &rule.backend_refs, "backend", report);
        for (i, backend) in rule.backend_refs.iter().enumerate() {
            backend_ref(&refs.index(i), backend, false, report);
            if !backend.filters.is_empty() {
                let at = refs.index(i).key("filters");
                report.add(&at, "filters are for HTTP", "remove them");
            }
        }
    }
}

fn parents(parents: &[ParentRef], report: &mut Report) {
    let at = spec().key("parentRefs");
    not_empty(&at, parents, "parent", report);
    for (i, parent) in parents.iter().enumerate() {
        parent_ref(&at.index(i), parent, report);
    }
}

fn hostnames(hostnames: &[String], report: &mut Report) {
    for (i, hostname) in hostnames.iter().enumerate() {
        host(&spec().key("hostnames").index(i), hostname, report);
    }
}

fn rule_name<'a>(
    at: &Path,
    name: Option<&'a str>,
    seen: &mut HashSet<&'a str>,
    report: &mut Report,
) {
    if let Some(name) = name {
        object_name(&at.key("name"), name, report);
        unique(&at.key("name"), name, seen, report);
    }
}

fn parent_ref(at: &Path, parent: &ParentRef, report: &mut Report) {
    let kind = parent.kind.as_deref().unwrap_or("Gateway");
    match kind {
        "Service" => label(&at.key("name"), &parent.name, report),
        _ => object_name(&at.key("name"), &parent.name, report),
    }
    word(&at.key("kind"), kind, &["Gateway", "Service"], report);
    if let Some(group) = &parent.group {
        let expected: &[&str] = match kind {
            "Service" => &CORE_GROUPS,
            _ => &[GATEWAY_GROUP],
        };
        word(&at.key("group"), group, expected, report);
    }
    if let Some(section) = &parent.section_name {
        object_name(&at.key("sectionName"), section, report);
        if kind == "Service" {
            let hint = "use `port` for a Service";
            report.add(&at.key("sectionName"), "not supported for a Service", hint);
        }
    }
    if let Some(number) = parent.port {
        port(&at.key("port"), number, report);
    }
}

fn route_match(at: &Path, m: &HttpRouteMatch, report: &mut Report) {
    if let Some(matched) = &m.path {
        path_match(&at.key("path"), matched, report);
    }
    conditions(&at.key("headers"), &m.headers, true, report);
    conditions(&at.key("queryParams"), &m.query_params, false, report);
    if let Some(method) = &m.method {
        word(&at.key("method"), method, &METHODS, report);
    }
}

pub(super) fn path_match(at: &Path, matched: &HttpPathMatch, report: &mut Report) {
    let kind = matched.kind.as_deref().unwrap_or("PathPrefix");
    word(&at.key("type"), kind, &PATH_MATCHES, report);
    let at = at.key("value");
    match (&matched.value, kind) {
        (Some(value), "RegularExpression") => regex(&at, value, report),
        (Some(value), _) => path(&at, value, report),
        (None, _) => {}
    }
}

/// Conditions for headers, or for parameters of the query.
pub(super) fn conditions(
    at: &Path,
    conditions: &[HttpHeaderMatch],
    headers: bool,
    report: &mut Report,
) {
    for (i, condition) in conditions.iter().enumerate() {
        let at = at.index(i);
        if headers {
            token(&at.key("name"), &condition.name, report);
        } else if condition.name.is_empty() {
            report.add(&at.key("name"), "expected a name, found ``", "");
        }
        let kind = condition.kind.as_deref().unwrap_or("Exact");
        word(&at.key("type"), kind, &TEXT_MATCHES, report);
        if kind == "RegularExpression" {
            regex(&at.key("value"), &condition.value, report);
        }
    }
}

pub(super) fn token(at: &Path, name: &str, report: &mut Report) {
    if !is_token(name) {
        let problem = format!("expected the name of a header, found `{}`", shorten(name));
        report.add(at, problem, "");
    }
}

pub(super) fn backend_ref(at: &Path, backend: &BackendRef, prefixes: bool, report: &mut Report) {
    route_filters(&at.key("filters"), &backend.filters, prefixes, report);
    if let Some(group) = &backend.group {
        word(&at.key("group"), group, &CORE_GROUPS, report);
    }
    if let Some(kind) = &backend.kind {
        word(&at.key("kind"), kind, &BACKEND_KINDS, report);
    }
    label(&at.key("name"), &backend.name, report);
    port(&at.key("port"), backend.port, report);
    if let Some(weight) = backend.weight
        && weight > MAX_WEIGHT
    {
        report.add(
            &at.key("weight"),
            format!("expected a number from 0 to {MAX_WEIGHT}, found the number {weight}"),
            "",
        );
    }
}

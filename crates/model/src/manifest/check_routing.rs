//! What a single Gateway, HTTPRoute, TrafficTarget or HTTPRouteGroup must fulfil beyond its types.

use super::check::{
    host, label, metadata, not_empty, path, port, regex, request_timeout, spec, unique, word,
    word_or_later,
};
use super::names::is_token;
use super::{
    BackendRef, GatewaySpec, HttpRouteGroupSpec, HttpRouteMatch, HttpRouteSpec, IdentityRef,
    Manifest, ParentRef, TrafficTargetSpec,
};
use crate::document::{Path, Report, shorten};
use std::collections::HashSet;

/// Methods of RFC 9110 and RFC 5789, as in Gateway API.
const METHODS: [&str; 9] = [
    "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH",
];

/// As in Gateway API.
const MAX_WEIGHT: u32 = 1_000_000;

const GATEWAY_GROUP: &str = "gateway.networking.k8s.io";

pub(super) fn gateway(gateway: &Manifest<GatewaySpec>, report: &mut Report) {
    metadata(&gateway.metadata, false, report);
    let at = spec().key("listeners");
    not_empty(&at, &gateway.spec.listeners, "listener", report);
    let (mut names, mut sockets) = (HashSet::new(), HashSet::new());
    for (i, listener) in gateway.spec.listeners.iter().enumerate() {
        let at = at.index(i);
        label(&at.key("name"), &listener.name, report);
        unique(&at.key("name"), &listener.name, &mut names, report);
        port(&at.key("port"), listener.port, report);
        word_or_later(
            &at.key("protocol"),
            &listener.protocol,
            &["HTTP"],
            &["HTTPS", "TLS", "TCP", "UDP"],
            report,
        );
        if let Some(hostname) = &listener.hostname {
            host(&at.key("hostname"), hostname, report);
        }
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
    }
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

pub(super) fn http_route(route: &Manifest<HttpRouteSpec>, report: &mut Report) {
    metadata(&route.metadata, false, report);
    let at = spec();
    let route = &route.spec;
    not_empty(&at.key("parentRefs"), &route.parent_refs, "parent", report);
    for (i, parent) in route.parent_refs.iter().enumerate() {
        parent_ref(&at.key("parentRefs").index(i), parent, report);
    }
    for (i, hostname) in route.hostnames.iter().enumerate() {
        host(&at.key("hostnames").index(i), hostname, report);
    }
    not_empty(&at.key("rules"), &route.rules, "rule", report);
    for (i, rule) in route.rules.iter().enumerate() {
        let at = at.key("rules").index(i);
        for (i, m) in rule.matches.iter().enumerate() {
            route_match(&at.key("matches").index(i), m, report);
        }
        for (i, backend) in rule.backend_refs.iter().enumerate() {
            backend_ref(&at.key("backendRefs").index(i), backend, report);
        }
        if let Some(timeouts) = &rule.timeouts {
            let at = at.key("timeouts").key("request");
            request_timeout(&at, timeouts.request.as_deref(), report);
        }
    }
}

fn parent_ref(at: &Path, parent: &ParentRef, report: &mut Report) {
    label(&at.key("name"), &parent.name, report);
    let kind = parent.kind.as_deref().unwrap_or("Gateway");
    word(&at.key("kind"), kind, &["Gateway", "Service"], report);
    if let Some(group) = &parent.group {
        let expected: &[&str] = match kind {
            "Service" => &["", "core"],
            _ => &[GATEWAY_GROUP],
        };
        word(&at.key("group"), group, expected, report);
    }
    if let Some(section) = &parent.section_name {
        label(&at.key("sectionName"), section, report);
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
        let kind = matched.kind.as_deref().unwrap_or("PathPrefix");
        let known = ["Exact", "PathPrefix", "RegularExpression"];
        word(&at.key("path").key("type"), kind, &known, report);
        let at = at.key("path").key("value");
        match (&matched.value, kind) {
            (Some(value), "RegularExpression") => regex(&at, value, report),
            (Some(value), _) => path(&at, value, report),
            (None, _) => {}
        }
    }
    for (i, header) in m.headers.iter().enumerate() {
        let at = at.key("headers").index(i);
        token(&at.key("name"), &header.name, report);
        let kind = header.kind.as_deref().unwrap_or("Exact");
        word(
            &at.key("type"),
            kind,
            &["Exact", "RegularExpression"],
            report,
        );
        if kind == "RegularExpression" {
            regex(&at.key("value"), &header.value, report);
        }
    }
    if let Some(method) = &m.method {
        word(&at.key("method"), method, &METHODS, report);
    }
}

fn token(at: &Path, name: &str, report: &mut Report) {
    if !is_token(name) {
        let problem = format!("expected the name of a header, found `{}`", shorten(name));
        report.add(at, problem, "");
    }
}

fn backend_ref(at: &Path, backend: &BackendRef, report: &mut Report) {
    if let Some(group) = &backend.group {
        word(&at.key("group"), group, &["", "core"], report);
    }
    if let Some(kind) = &backend.kind {
        word(&at.key("kind"), kind, &["Service"], report);
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

pub(super) fn traffic_target(target: &Manifest<TrafficTargetSpec>, report: &mut Report) {
    metadata(&target.metadata, false, report);
    let at = spec();
    let target = &target.spec;
    identity_ref(&at.key("destination"), &target.destination, report);
    not_empty(&at.key("sources"), &target.sources, "source", report);
    for (i, source) in target.sources.iter().enumerate() {
        let at = at.key("sources").index(i);
        identity_ref(&at, source, report);
        if source.port.is_some() {
            let hint = "put it on `destination`";
            report.add(&at.key("port"), "a source has no port", hint);
        }
    }
    for (i, rule) in target.rules.iter().enumerate() {
        let at = at.key("rules").index(i);
        word_or_later(
            &at.key("kind"),
            &rule.kind,
            &["HTTPRouteGroup"],
            &["TCPRoute", "UDPRoute"],
            report,
        );
        label(&at.key("name"), &rule.name, report);
        let mut seen = HashSet::new();
        for (i, name) in rule.matches.iter().enumerate() {
            unique(&at.key("matches").index(i), name, &mut seen, report);
        }
    }
}

fn identity_ref(at: &Path, identity: &IdentityRef, report: &mut Report) {
    word(&at.key("kind"), &identity.kind, &["ServiceAccount"], report);
    label(&at.key("name"), &identity.name, report);
    if let Some(number) = identity.port {
        port(&at.key("port"), number, report);
    }
}

pub(super) fn http_route_group(group: &Manifest<HttpRouteGroupSpec>, report: &mut Report) {
    metadata(&group.metadata, false, report);
    let at = spec().key("matches");
    not_empty(&at, &group.spec.matches, "match", report);
    let mut names = HashSet::new();
    for (i, m) in group.spec.matches.iter().enumerate() {
        let at = at.index(i);
        if m.name.is_empty() || m.name.len() > 253 {
            let problem = "expected a name of 1 to 253 characters";
            report.add(&at.key("name"), problem, "");
        }
        unique(&at.key("name"), &m.name, &mut names, report);
        for (i, method) in m.methods.iter().enumerate() {
            if method != "*" {
                word(&at.key("methods").index(i), method, &METHODS, report);
            }
        }
        if let Some(pattern) = &m.path_regex {
            regex(&at.key("pathRegex"), pattern, report);
        }
        for (name, pattern) in &m.headers {
            let at = at.key("headers").key(name);
            token(&at, name, report);
            regex(&at, pattern, report);
        }
    }
}

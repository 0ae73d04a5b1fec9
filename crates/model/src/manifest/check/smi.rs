//! Checks a single object of the Service Mesh Interface, beyond its types.

use super::routing::token;
use super::{
    free_name, label, metadata, not_empty, object_name, port, range, regex, spec, unique,
    unique_port, word, word_or_later,
};
use crate::document::{Path, Report};
use crate::manifest::allowed::{IDENTITY_KINDS, MAX_WEIGHT, METHODS, REQUEST_KINDS, RULE_KINDS};
use crate::manifest::{
    HttpRouteGroupSpec, IdentityRef, Manifest, SmiTcpRouteSpec, TrafficSplitSpec,
    TrafficTargetRule, TrafficTargetSpec,
};
use std::collections::HashSet;

pub(in crate::manifest) fn traffic_target(
    target: &Manifest<TrafficTargetSpec>,
    report: &mut Report,
) {
    metadata(&target.metadata, object_name, report);
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
    rules(&at.key("rules"), &target.rules, &RULE_KINDS, report);
}

/// References to kinds of request.
pub(super) fn rules(at: &Path, rules: &[TrafficTargetRule], kinds: &[&str], report: &mut Report) {
    for (i, rule) in rules.iter().enumerate() {
        let at = at.index(i);
        word_or_later(&at.key("kind"), &rule.kind, kinds, &["UDPRoute"], report);
        object_name(&at.key("name"), &rule.name, report);
        if rule.kind == "TCPRoute" && !rule.matches.is_empty() {
            let problem = "a TCPRoute has no named matches";
            report.add(&at.key("matches"), problem, "remove it");
        }
        let mut seen = HashSet::new();
        for (i, name) in rule.matches.iter().enumerate() {
            unique(&at.key("matches").index(i), name, &mut seen, report);
        }
    }
}

pub(super) fn identity_ref(at: &Path, identity: &IdentityRef, report: &mut Report) {
    word(&at.key("kind"), &identity.kind, &IDENTITY_KINDS, report);
    object_name(&at.key("name"), &identity.name, report);
    if let Some(number) = identity.port {
        port(&at.key("port"), number, report);
    }
}

pub(in crate::manifest) fn http_route_group(
    group: &Manifest<HttpRouteGroupSpec>,
    report: &mut Report,
) {
    metadata(&group.metadata, object_name, report);
    let at = spec().key("matches");
    not_empty(&at, &group.spec.matches, "match", report);
    let mut names = HashSet::new();
    for (i, m) in group.spec.matches.iter().enumerate() {
        let at = at.index(i);
        free_name(&at.key("name"), &m.name, report);
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

pub(in crate::manifest) fn tcp_route(route: &Manifest<SmiTcpRouteSpec>, report: &mut Report) {
    metadata(&route.metadata, object_name, report);
    let at = spec().key("matches").key("ports");
    let mut seen = HashSet::new();
    for (i, number) in route.spec.matches.iter().flat_map(|m| &m.ports).enumerate() {
        unique_port(&at.index(i), *number, &mut seen, report);
    }
}

pub(in crate::manifest) fn traffic_split(split: &Manifest<TrafficSplitSpec>, report: &mut Report) {
    metadata(&split.metadata, object_name, report);
    let at = spec();
    let old = split.api_version.ends_with("/v1alpha2");
    let split = &split.spec;
    label(&at.key("service"), &split.service, report);
    if old && !split.matches.is_empty() {
        let hint = "make the version v1alpha4";
        report.add(&at.key("matches"), "v1alpha2 has no `matches`", hint);
    }
    for (i, m) in split.matches.iter().enumerate() {
        let at = at.key("matches").index(i);
        word(&at.key("kind"), &m.kind, &REQUEST_KINDS, report);
        object_name(&at.key("name"), &m.name, report);
    }
    let at = at.key("backends");
    not_empty(&at, &split.backends, "backend", report);
    let mut seen = HashSet::new();
    for (i, backend) in split.backends.iter().enumerate() {
        let at = at.index(i);
        label(&at.key("service"), &backend.service, report);
        unique(&at.key("service"), &backend.service, &mut seen, report);
        range(&at.key("weight"), backend.weight, 0, MAX_WEIGHT, report);
    }
    if !split.backends.is_empty() && split.backends.iter().all(|b| b.weight == 0) {
        let hint = "give one of them a weight";
        report.add(
            &at,
            "every backend has weight 0, so none gets requests",
            hint,
        );
    }
}

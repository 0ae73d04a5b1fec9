//! Checks a single policy about who may call whom, beyond its types.

use super::filters::{external_auth, interval, jwt, request_limit};
use super::routing::{conditions, object_ref, path_match};
use super::smi::{identity_ref, rules};
use super::targets::{self, target_refs};
use super::{host, label, metadata, not_empty, object_name, port, spec, unique_port, word};
use crate::condition;
use crate::document::{Path, Report, shorten};
use crate::identity::SpiffeId;
use crate::manifest::allowed::{
    ACTIONS, EGRESS_PROTOCOLS, METHODS, MODES, REQUEST_KINDS, SOURCE_KINDS,
};
use crate::manifest::{
    AccessSpec, AuthenticationSpec, AuthorizationFrom, AuthorizationPolicySpec, AuthorizationRule,
    EgressSpec, HttpConditions, HttpPathMatch, Manifest, RateLimitSpec,
};
use crate::network::Network;
use crate::pattern;
use crate::resource::PathMatch;
use std::collections::HashSet;
use tulle_expression::{Error, Expression};

pub(in crate::manifest) fn authorization_policy(
    policy: &Manifest<AuthorizationPolicySpec>,
    report: &mut Report,
) {
    metadata(&policy.metadata, object_name, report);
    let at = spec();
    let policy = &policy.spec;
    target_refs(&policy.target_refs, &targets::KINDS, "", report);
    let outside = policy.target_refs.iter().any(|r| r.kind() != "Service");
    if let Some(action) = &policy.action {
        word(&at.key("action"), action, &ACTIONS, report);
    }
    if let Some(mode) = &policy.mode {
        word(&at.key("mode"), mode, &MODES, report);
    }
    let at = at.key("rules");
    not_empty(&at, &policy.rules, "rule", report);
    for (i, rule) in policy.rules.iter().enumerate() {
        let at = at.index(i);
        if let Some(from) = &rule.from {
            self::from(&at.key("from"), from, report);
            if outside {
                no_identities(&at.key("from"), from, report);
            }
        }
        if let Some(to) = &rule.to {
            http_conditions(&at.key("to"), to, condition::policy, report);
        }
        let denies = policy.action.as_deref() == Some("Deny");
        ignore_case(&at.key("ignoreCase"), rule, denies, report);
    }
}

fn ignore_case(at: &Path, rule: &AuthorizationRule, denies: bool, report: &mut Report) {
    if rule.ignore_case.is_some() && !denies {
        let problem = "only a policy with `action: Deny` can overlook letter case";
        return report.add(at, problem, "a rule that allows is exact: list the paths");
    }
    let paths = rule.to.as_ref().map_or(&[][..], |to| to.paths.as_slice());
    any_case(at, rule.ignore_case, paths, report);
}

/// Whether paths can be compared in any letter case, as a rule wants it.
fn any_case(at: &Path, wanted: Option<bool>, paths: &[HttpPathMatch], report: &mut Report) {
    if wanted.is_some() && paths.is_empty() {
        let problem = "there are no paths, so letter case has no effect";
        report.add(at, problem, "give `to.paths`, or remove it");
    }
    if wanted != Some(true) {
        return;
    }
    for path in paths {
        let Some(PathMatch::Regex(pattern)) = path.path() else {
            continue;
        };
        if let Err(why) = pattern::compile_any_case(&pattern) {
            let problem = format!("in any letter case, {why}");
            report.add(at, problem, "make the expression shorter");
        }
    }
}

/// Gateways and their routes are for clients outside the mesh.
fn no_identities(at: &Path, from: &AuthorizationFrom, report: &mut Report) {
    for (field, given) in [
        ("principals", !from.principals.is_empty()),
        ("serviceAccounts", !from.service_accounts.is_empty()),
    ] {
        if given {
            let problem = "clients of a gateway have no identity of the mesh";
            let hint = "use `networks`, or make a policy of its own for the Service";
            report.add(&at.key(field), problem, hint);
        }
    }
}

fn from(at: &Path, from: &AuthorizationFrom, report: &mut Report) {
    if *from == AuthorizationFrom::default() {
        report.add(
            at,
            "expected `principals`, `serviceAccounts` or `networks`, found none",
            "remove `from` to mean everyone",
        );
    }
    for (i, id) in from.principals.iter().enumerate() {
        principal(&at.key("principals").index(i), id, report);
    }
    for (i, name) in from.service_accounts.iter().enumerate() {
        object_name(&at.key("serviceAccounts").index(i), name, report);
    }
}

/// A SPIFFE id as it stands in a certificate.
fn principal(at: &Path, id: &str, report: &mut Report) {
    if id.contains('*') {
        report.add(
            at,
            format!(
                "`{}` has a `*`: identities are compared exactly",
                shorten(id)
            ),
            "name each identity, or leave `from` out to mean everyone",
        );
    } else if let Err(e) = SpiffeId::parse(id) {
        let hint = "write it as `spiffe://<trustDomain>/svc/<name>`";
        report.add(at, e.to_string(), hint);
    }
}

/// `compile` knows the names that `when` may use.
fn http_conditions(
    at: &Path,
    to: &HttpConditions,
    compile: fn(&str) -> Result<Expression, Error>,
    report: &mut Report,
) {
    if *to == HttpConditions::default() {
        let problem =
            "expected `ports`, `methods`, `paths`, `headers`, `hosts` or `when`, found none";
        report.add(at, problem, "remove it to mean everything");
    }
    let mut seen = HashSet::new();
    for (i, number) in to.ports.iter().enumerate() {
        unique_port(&at.key("ports").index(i), *number, &mut seen, report);
    }
    for (i, method) in to.methods.iter().enumerate() {
        word(&at.key("methods").index(i), method, &METHODS, report);
    }
    for (i, path) in to.paths.iter().enumerate() {
        path_match(&at.key("paths").index(i), path, report);
    }
    conditions(&at.key("headers"), &to.headers, true, report);
    for (i, name) in to.hosts.iter().enumerate() {
        host(&at.key("hosts").index(i), name, report);
    }
    if let Some(when) = &to.when {
        condition::check(&at.key("when"), compile(when), report);
    }
}

/// Advises how a route gets the effect that such a policy has for a port.
fn with_filter(field: &str) -> String {
    format!(
        "name an HTTPFilter with `{field}` in `filters` of the route's rules (ExtensionRef), or \
         target its Gateway or Service"
    )
}

pub(in crate::manifest) fn rate_limit(limit: &Manifest<RateLimitSpec>, report: &mut Report) {
    metadata(&limit.metadata, object_name, report);
    let at = spec();
    let limit = &limit.spec;
    let kinds = ["Service", "Gateway"];
    let instead = with_filter("rateLimit");
    target_refs(&limit.target_refs, &kinds, &instead, report);
    let gateway = limit.target_refs.iter().any(|r| r.kind() == "Gateway");
    if gateway && limit.connections.is_some() {
        let problem = "connections of a Gateway are not limited by rate";
        let hint = "limit `requests`, or use `sidecar.maxConnections` of the Mesh";
        report.add(&at.key("connections"), problem, hint);
    }
    if limit.connections.is_none() && limit.requests.is_none() && limit.rules.is_empty() {
        let problem = "expected `connections`, `requests` or `rules`, found none";
        report.add(&at, problem, "");
    }
    if let Some(connections) = &limit.connections {
        interval(&at.key("connections"), connections.per.as_deref(), report);
    }
    if let Some(requests) = &limit.requests {
        request_limit(&at.key("requests"), requests, report);
    }
    for (i, rule) in limit.rules.iter().enumerate() {
        let at = at.key("rules").index(i);
        http_conditions(&at.key("to"), &rule.to, condition::condition, report);
        any_case(
            &at.key("ignoreCase"),
            rule.ignore_case,
            &rule.to.paths,
            report,
        );
        request_limit(&at.key("requests"), &rule.requests, report);
    }
}

pub(in crate::manifest) fn authentication(
    authentication: &Manifest<AuthenticationSpec>,
    report: &mut Report,
) {
    metadata(&authentication.metadata, object_name, report);
    let at = spec();
    let authentication = &authentication.spec;
    let kinds = ["Service", "Gateway"];
    let instead = with_filter("jwt` or `externalAuth");
    target_refs(&authentication.target_refs, &kinds, &instead, report);
    if authentication.jwt.is_none() && authentication.external_auth.is_none() {
        report.add(&at, "expected `jwt` or `externalAuth`, found neither", "");
    }
    if let Some(spec) = &authentication.jwt {
        jwt(&at.key("jwt"), spec, report);
    }
    if let Some(spec) = &authentication.external_auth {
        external_auth(&at.key("externalAuth"), spec, report);
    }
}

/// An IngressBackend or AccessControl.
pub(in crate::manifest) fn access(access: &Manifest<AccessSpec>, report: &mut Report) {
    metadata(&access.metadata, object_name, report);
    let at = spec();
    let access = &access.spec;
    not_empty(&at.key("backends"), &access.backends, "service", report);
    for (i, backend) in access.backends.iter().enumerate() {
        let at = at.key("backends").index(i);
        label(&at.key("name"), &backend.name, report);
        if let Some(number) = backend.port {
            port(&at.key("port"), number, report);
        }
    }
    not_empty(&at.key("sources"), &access.sources, "source", report);
    for (i, source) in access.sources.iter().enumerate() {
        let at = at.key("sources").index(i);
        word(&at.key("kind"), &source.kind, &SOURCE_KINDS, report);
        let at = at.key("name");
        match source.kind.as_str() {
            "AuthenticatedPrincipal" => principal(&at, &source.name, report),
            "IPRange" => {
                if let Err(e) = source.name.parse::<Network>() {
                    report.add(&at, e.to_string(), "");
                }
            }
            _ => label(&at, &source.name, report),
        }
    }
}

pub(in crate::manifest) fn egress(egress: &Manifest<EgressSpec>, report: &mut Report) {
    metadata(&egress.metadata, object_name, report);
    let at = spec();
    let egress = &egress.spec;
    if egress.hosts.is_empty() && egress.ip_addresses.is_empty() {
        let problem = "expected `hosts`, `ipAddresses` or both, found neither";
        let hint = "to allow everything, set `allowEgress` of the Mesh";
        report.add(&at, problem, hint);
    }
    for (i, source) in egress.sources.iter().enumerate() {
        let at = at.key("sources").index(i);
        identity_ref(&at, source, report);
        if source.port.is_some() {
            report.add(
                &at.key("port"),
                "a source has no port",
                "put it into `ports`",
            );
        }
    }
    for (i, name) in egress.hosts.iter().enumerate() {
        host(&at.key("hosts").index(i), name, report);
    }
    let mut seen = HashSet::new();
    for (i, p) in egress.ports.iter().enumerate() {
        let at = at.key("ports").index(i);
        unique_port(&at.key("number"), p.number, &mut seen, report);
        if let Some(protocol) = &p.protocol {
            word(&at.key("protocol"), protocol, &EGRESS_PROTOCOLS, report);
        }
    }
    rules(&at.key("matches"), &egress.matches, &REQUEST_KINDS, report);
    if let Some(tls) = &egress.tls {
        let at = at.key("tls");
        if let Some(name) = &tls.server_name {
            host(&at.key("serverName"), name, report);
        }
        if let Some(reference) = &tls.ca_certificate_ref {
            let kinds = ["ConfigMap", "Secret"];
            object_ref(
                &at.key("caCertificateRef"),
                reference,
                "ConfigMap",
                &kinds,
                report,
            );
        }
        if let Some(number) = tls.port {
            port(&at.key("port"), number, report);
        }
    }
    if let Some(gateway) = &egress.gateway {
        label(&at.key("gateway").key("service"), &gateway.service, report);
        port(&at.key("gateway").key("port"), gateway.port, report);
    }
}

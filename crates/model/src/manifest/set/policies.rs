//! Policies that are about nothing, or do not do what their author must have meant.

use super::known::Known;
use super::{Found, code};
use crate::manifest::{
    AccessSpec, AuthorizationPolicySpec, Object, RateLimitSpec, RequestLimit, TrafficPolicySpec,
    TrafficTargetSpec,
};

pub(super) fn check(known: &Known<'_>, object: &Object, found: &mut Found<'_>) {
    match object {
        Object::TrafficTarget(target) => traffic_target(known, &target.spec, found),
        Object::TrafficPolicy(policy) => traffic_policy(known, &policy.spec, found),
        Object::RateLimit(limit) => rate_limit(known, &limit.spec, found),
        Object::HttpFilter(filter) => {
            zero("spec.rateLimit", filter.spec.rate_limit.as_ref(), found);
        }
        Object::AuthorizationPolicy(policy) => authorization(known, &policy.spec, found),
        Object::Authentication(authentication) => {
            let refs = &authentication.spec.target_refs;
            known.targets(refs, found);
            known.speaks_http(refs, "authentication is", found);
        }
        Object::Plugin(plugin) => {
            let refs = &plugin.spec.target_refs;
            known.targets(refs, found);
            known.speaks_http(refs, "plugins are", found);
        }
        Object::IngressBackend(access) | Object::AccessControl(access) => {
            self::access(known, &access.spec, found);
        }
        Object::Egress(_) if known.allow_egress => {
            let message = "the Mesh has allowEgress, so everything outside is allowed anyway";
            found.warn(code::IGNORED, "", message.into());
        }
        _ => {}
    }
}

fn permissive(known: &Known<'_>, found: &mut Found<'_>) {
    if known.permissive {
        let message = "the Mesh has permissiveMode, so this object is ignored".into();
        found.warn(code::IGNORED, "", message);
    }
}

fn traffic_target(known: &Known<'_>, target: &TrafficTargetSpec, found: &mut Found<'_>) {
    permissive(known, found);
    let destination = "spec.destination.name".to_owned();
    known.identity(destination, &target.destination.name, found);
    known.identities("spec.sources", &target.sources, found);
    known.rules("spec.rules", &target.rules, found);
}

fn traffic_policy(known: &Known<'_>, policy: &TrafficPolicySpec, found: &mut Found<'_>) {
    known.targets(&policy.target_refs, found);
    if let Some(retry) = &policy.retry
        && retry.on.is_empty()
        && retry.codes.is_empty()
        && retry.grpc_codes.is_empty()
    {
        let message = "it names no condition, so only connections that cannot be made are tried \
                       again; add `on`, `codes` or `grpcCodes`";
        found.warn(code::RETRY_NOTHING, "spec.retry", message.into());
    }
}

fn zero(at: &str, limit: Option<&RequestLimit>, found: &mut Found<'_>) {
    if limit.is_some_and(|l| l.count == 0) {
        let message = "a count of 0 refuses everything; use an AuthorizationPolicy to deny".into();
        found.warn(code::LIMIT_ZERO, format!("{at}.count"), message);
    }
}

fn rate_limit(known: &Known<'_>, limit: &RateLimitSpec, found: &mut Found<'_>) {
    known.targets(&limit.target_refs, found);
    zero("spec.requests", limit.requests.as_ref(), found);
    for (i, rule) in limit.rules.iter().enumerate() {
        let at = format!("spec.rules[{i}].requests");
        zero(&at, Some(&rule.requests), found);
        if let Some(path) = rule.path_in_one_case() {
            letter_case(i, "limits", path, found);
        }
    }
    if limit.connections.as_ref().is_some_and(|c| c.count == 0) {
        let message = "a count of 0 refuses every connection".into();
        found.warn(code::LIMIT_ZERO, "spec.connections.count", message);
    }
    if limit.requests.is_some() || !limit.rules.is_empty() {
        known.speaks_http(&limit.target_refs, "limits of requests are", found);
    }
}

fn authorization(known: &Known<'_>, policy: &AuthorizationPolicySpec, found: &mut Found<'_>) {
    // permissiveMode does not let clients of a gateway in, because they are no callers in the mesh.
    let inside = policy.target_refs.iter().all(|r| r.kind() == "Service");
    let allows = policy.action.as_deref() != Some("Deny");
    if inside && allows && policy.mode.as_deref() != Some("Audit") {
        permissive(known, found);
    }
    known.targets(&policy.target_refs, found);
    for (i, rule) in policy.rules.iter().enumerate() {
        let names = rule.from.iter().flat_map(|f| &f.service_accounts);
        for (j, name) in names.enumerate() {
            let field = format!("spec.rules[{i}].from.serviceAccounts[{j}]");
            known.identity(field, name, found);
        }
        if let Some(path) = rule.path_in_one_case().filter(|_| !allows) {
            letter_case(i, "denies", path, found);
        }
    }
}

/// Warns of a rule that restricts a path as it is written, where nothing says whether that is enough.
fn letter_case(rule: usize, does: &str, path: &str, found: &mut Found<'_>) {
    let message = format!(
        "it {does} {path} in this letter case alone; an application that overlooks case answers \
         for others. Say `ignoreCase: true`, or `false` if its paths have a case"
    );
    found.warn(code::LETTER_CASE, format!("spec.rules[{rule}]"), message);
}

fn access(known: &Known<'_>, access: &AccessSpec, found: &mut Found<'_>) {
    for (i, backend) in access.backends.iter().enumerate() {
        let at = format!("spec.backends[{i}]");
        known.service(&at, "name", &backend.name, backend.port, found);
    }
    for (i, source) in access.sources.iter().enumerate() {
        let name = source.name.as_str();
        let is_known = known.services.contains_key(name) || known.gateways.contains_key(name);
        if source.kind == "Service" && !is_known {
            let message = format!("there is no service or gateway `{name}` (yet)");
            found.warn(
                code::NO_IDENTITY,
                format!("spec.sources[{i}].name"),
                message,
            );
        }
    }
}

//! TrafficTargets and HTTPRouteGroups to allow rules.
//!
//! Everything here fails closed: a rule that names a group or match that does not exist allows
//! nothing, and a TrafficTarget whose rules all came to nothing gives no rule at all (a rule
//! without matches would allow everything).

use super::Inputs;
use tulle_model::identity::InvalidIdentity;
use tulle_model::manifest::{HttpRouteGroupMatch, TrafficTargetSpec};
use tulle_model::resource::{Policy, PolicyMatch, PolicyRule};

/// Who may call workloads of an identity (its last segment).
pub(super) fn policy(inputs: &Inputs, identity: &str) -> Policy {
    let permissive = inputs.mesh.as_ref().is_some_and(|m| m.permissive_mode);
    let targets = inputs
        .targets
        .iter()
        .filter(|(_, t)| t.destination.name == identity);
    let rules = targets.filter_map(|(name, target)| rule(inputs, name, target, &mut |_| {}));
    Policy {
        permissive,
        rules: rules.collect(),
    }
}

/// The rule of a TrafficTarget, if it allows anything. What is wrong with it goes to `report`.
pub(super) fn rule(
    inputs: &Inputs,
    name: &str,
    target: &TrafficTargetSpec,
    report: &mut dyn FnMut(String),
) -> Option<PolicyRule> {
    let sources: Result<Vec<_>, InvalidIdentity> = target
        .sources
        .iter()
        .map(|source| inputs.identity(&source.name))
        .collect();
    let sources = sources.map_err(|e| report(e.to_string())).ok()?;
    if sources.is_empty() {
        report("it lists no source".into());
        return None;
    }
    let mut matches = Vec::new();
    for rule in &target.rules {
        if rule.kind != "HTTPRouteGroup" {
            report(format!("rules of kind {} are not known", rule.kind));
            continue;
        }
        let Some(group) = inputs.groups.get(&rule.name) else {
            report(format!("HTTPRouteGroup/{} does not exist", rule.name));
            continue;
        };
        if rule.matches.is_empty() {
            matches.extend(group.matches.iter().map(convert));
        }
        for wanted in &rule.matches {
            match group.matches.iter().find(|m| m.name == *wanted) {
                Some(found) => matches.push(convert(found)),
                None => report(format!(
                    "HTTPRouteGroup/{} has no match named {wanted}",
                    rule.name
                )),
            }
        }
    }
    if matches.is_empty() && !target.rules.is_empty() {
        report("none of its rules allows anything".into());
        return None;
    }
    Some(PolicyRule {
        name: format!("TrafficTarget/{name}"),
        sources,
        ports: target.destination.port.into_iter().collect(),
        matches,
        ..Default::default()
    })
}

fn convert(m: &HttpRouteGroupMatch) -> PolicyMatch {
    let headers = m.headers.iter();
    PolicyMatch {
        name: m.name.clone(),
        methods: m.methods.clone(),
        path_regex: m.path_regex.clone().unwrap_or_default(),
        headers: headers
            .map(|(name, value)| (name.to_ascii_lowercase(), value.clone()))
            .collect(),
        ..Default::default()
    }
}

//! A call to a host or address outside the mesh.

use super::{Call, policies};
use crate::index::{Index, egress};
use std::net::IpAddr;
use tulle_api::v1;
use tulle_model::identity::SpiffeId;
use tulle_model::resource::{EgressRule, Protocol};

/// Whether a name can be that of a host outside, or its address: service names have no dot.
pub(super) fn is_outside(name: &str) -> bool {
    name.contains(['.', ':']) && !name.contains('/')
}

impl Index {
    /// Says which Egress lets `source` go to `host`, and how. A rule for networks is taken to hold
    /// for a name: which address that is remains to be seen. `http`: the call is known to be an HTTP
    /// request; otherwise only its first bytes will show the protocol.
    pub(super) fn explain_egress(
        &self,
        host: &str,
        call: &Call<'_>,
        http: bool,
    ) -> v1::Explanation {
        let inputs = &self.inputs;
        let mut answer = v1::Explanation {
            source_identity: call.source_text(),
            ..Default::default()
        };
        let Some(source) = &call.source else {
            answer.allowed = true;
            answer.reason = "it has no sidecar, so no policy limits what it reaches".into();
            return answer;
        };
        let mut found = None;
        for (name, spec) in &inputs.egress {
            let outcome = match egress::rule(inputs, name, spec) {
                Err(why) => format!("does not match: {why}"),
                Ok(rule) => match applies(&rule, source, host, call) {
                    Err(why) => format!("does not match: {why}"),
                    Ok(()) => {
                        found.get_or_insert(rule);
                        "allows".into()
                    }
                },
            };
            answer.considered.push(v1::Applied {
                kind: "Egress".into(),
                name: name.to_string(),
                outcome,
            });
        }
        let strict = source.service_account();
        let strict = strict.filter(|(namespace, _)| self.is_strict(namespace));
        let all = strict.is_none() && inputs.mesh.as_ref().is_some_and(|m| m.allow_egress);
        answer.allowed = found.is_some() || all;
        (answer.policy, answer.reason) = match &found {
            Some(rule) => (rule.name.clone(), format!("{} lets it out", rule.name)),
            None if all => (
                "Mesh/allowEgress".into(),
                "the mesh lets everything out".into(),
            ),
            None => {
                let strict = strict.map(|(namespace, _)| namespace);
                (String::new(), self.refused(strict, http))
            }
        };
        if let Some(rule) = &found {
            answer.route = way(rule);
            if host.parse::<IpAddr>().is_err() && !rule.networks.is_empty() {
                let networks: Vec<_> = rule.networks.iter().map(ToString::to_string).collect();
                answer
                    .limits
                    .push(format!("the address must be in {}", networks.join(" or ")));
            }
        }
        answer
    }

    /// Says why nothing lets a call out, and how its client sees that: proxies without any rule answer
    /// with another status than those whose rules do not match, and reset what is not HTTP.
    fn refused(&self, strict: Option<&str>, http: bool) -> String {
        let (why, answered) = match self.get("egress") {
            Some(_) => ("no Egress lets it out", "denied with 403"),
            None => ("no Egress lets anyone out", "answered with 502"),
        };
        let beside = match strict {
            Some(namespace) => format!(", and namespace {namespace} is strict"),
            None if self.get("egress").is_none() => ", and Mesh spec.allowEgress is false".into(),
            None => String::new(),
        };
        match http {
            true => format!("{why}{beside}: {answered}"),
            false => {
                format!("{why}{beside}: HTTP is {answered}, any other connection is reset")
            }
        }
    }
}

/// How a rule lets something out.
fn way(rule: &EgressRule) -> String {
    let tls = if rule.tls.is_some() { "as TLS, " } else { "" };
    match &rule.gateway {
        Some(gateway) => format!(
            "{tls}through the egress gateway {}:{}",
            gateway.service, gateway.port
        ),
        None => format!("{tls}directly"),
    }
}

fn applies(
    rule: &EgressRule,
    source: &SpiffeId,
    host: &str,
    call: &Call<'_>,
) -> Result<(), String> {
    if !rule.is_for(source) {
        return Err(match rule.namespace.is_empty() {
            true => "source not listed".into(),
            false => format!("it is for workloads of the namespace {}", rule.namespace),
        });
    }
    let address = host.parse::<IpAddr>().ok();
    if !rule.hosts.is_empty() && !rule.hosts.iter().any(|pattern| covers(pattern, host)) {
        return Err(format!("host {host} not listed"));
    }
    if let Some(address) = address
        && !rule.networks.is_empty()
        && !rule.networks.iter().any(|n| n.contains(address))
    {
        return Err(format!("address {address} not listed"));
    }
    let listed = rule
        .ports
        .iter()
        .find(|p| call.port == 0 || p.port == call.port);
    if !rule.ports.is_empty() && listed.is_none() {
        return Err(format!("port {} not listed", call.port));
    }
    if !rule.matches.is_empty() && listed.is_some_and(|p| p.protocol == Protocol::Tls) {
        return Err("it is for HTTP requests, which TLS hides".into());
    }
    policies::any_match(&rule.matches, call, false)
}

/// `example.com.` is `example.com`.
fn covers(pattern: &str, host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    match pattern.strip_prefix('*') {
        Some(suffix) => host.len() > suffix.len() && host.ends_with(suffix),
        None => host == pattern,
    }
}

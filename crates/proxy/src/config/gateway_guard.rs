//! Demands of a gateway on clients outside the mesh: policies about their addresses, and the rules
//! of a listener about their requests.

use crate::config::authz::{Caller, CallerPolicy, Policy, Request};
use crate::config::inbound_rules::InboundRules;
use crate::config::token_claims;
use crate::filter::Filters;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::reason::{Failure, Reason};
use std::net::IpAddr;
use std::sync::Arc;
use tulle_model::resource;

/// A client of a gateway.
pub struct GatewayClient<'a> {
    /// The gateway.
    pub gateway: &'a str,
    /// The port it came to.
    pub port: u16,
    /// Its address.
    pub address: Option<IpAddr>,
    /// The same for people.
    pub text: &'a [u8],
}

/// Demands of a listener.
pub struct Guard {
    policy: Option<Policy>,
    rules: Option<Arc<InboundRules>>,
}

impl Guard {
    /// Compiles the demands of a listener; `None`: it has none.
    ///
    /// # Errors
    /// A rule makes no sense.
    pub fn compile(
        gateway: &str,
        listener: &resource::GatewayListener,
    ) -> Result<Option<Box<Self>>, String> {
        let place = format!("gateway {gateway} {}", listener.name);
        let rules = InboundRules::compile(&place, &listener.rules)?;
        let policy = listener
            .policy
            .as_deref()
            .map(Policy::compile)
            .transpose()?;
        let demands = rules.is_some() || policy.is_some();
        Ok(demands.then(|| Box::new(Self { policy, rules })))
    }

    /// Returns the policy about clients.
    pub fn policy(&self) -> Option<&Policy> {
        self.policy.as_ref()
    }

    /// Checks whether the client may send this request here.
    ///
    /// # Errors
    /// It may not.
    pub fn admit(
        &self,
        metrics: &Metrics,
        client: &GatewayClient<'_>,
        request: &Request<'_>,
    ) -> Result<(), Failure> {
        match &self.policy {
            Some(policy) => judge_request(policy, Some(self), metrics, client, request),
            None => Ok(()),
        }
    }

    /// Checks whether the client may have a connection of opaque bytes.
    ///
    /// # Errors
    /// It may not, or there are rules that such a connection cannot meet.
    pub fn admit_opaque(
        &self,
        metrics: &Metrics,
        client: &GatewayClient<'_>,
    ) -> Result<(), Failure> {
        if let Some(policy) = &self.policy {
            let caller_policy = policy.caller_policy(&caller(client));
            judge(policy, &caller_policy, metrics, client, None)?;
        }
        match &self.rules {
            Some(rules) if rules.authenticate() => {
                let text = format!(
                    "the listener has rules for requests ({}), which a connection of opaque bytes \
                     cannot meet",
                    rules.names()
                );
                Err(Failure::new(Reason::Denied, text))
            }
            _ => Ok(()),
        }
    }

    /// Returns the filters for a request: the rules', then its route's.
    ///
    /// # Errors
    /// Whether a rule applies depends on how the application reads the request.
    pub fn filters(
        &self,
        request: &Request<'_>,
        of_route: Option<Arc<Filters>>,
    ) -> Result<Option<Arc<Filters>>, Failure> {
        let Some(rules) = &self.rules else {
            return Ok(of_route);
        };
        let found = rules.find(request);
        let first = found.map_err(|why| Failure::new(Reason::Denied, why))?;
        Ok(match (first, of_route) {
            (Some(first), Some(then)) => Some(then.after(first)),
            (first, then) => first.or(then),
        })
    }

    /// See [`InboundRules::claim_headers`].
    pub fn claim_headers(&self) -> &[String] {
        self.rules.as_ref().map_or(&[], |r| r.claim_headers())
    }

    /// Services that rules ask about requests.
    pub fn services(&self) -> impl Iterator<Item = &str> {
        self.rules.iter().flat_map(|r| r.services())
    }
}

/// Checks whether a policy admits a request: a listener's, or that of a route behind it. `guard`: the listener's demands,
/// which say how tokens are checked.
///
/// # Errors
/// It does not admit it.
pub fn judge_request(
    policy: &Policy,
    guard: Option<&Guard>,
    metrics: &Metrics,
    client: &GatewayClient<'_>,
    request: &Request<'_>,
) -> Result<(), Failure> {
    let caller_policy = policy.caller_policy(&caller(client));
    let rules = guard.and_then(|g| g.rules.as_deref());
    token_claims::judge(caller_policy.reads_claims(), rules, request, |request| {
        judge(policy, &caller_policy, metrics, client, Some(request))
    })
}

/// Checks whether a policy admits a client; `request` is `None` for opaque bytes.
fn judge(
    policy: &Policy,
    caller_policy: &CallerPolicy,
    metrics: &Metrics,
    client: &GatewayClient<'_>,
    request: Option<&Request<'_>>,
) -> Result<(), Failure> {
    for rule in caller_policy.audited(request) {
        metrics.audited(rule);
    }
    caller_policy.judge(request).map_err(|refusal| {
        let text = format!(
            "a client at {} may not come in by port {} of Gateway/{}: {}",
            String::from_utf8_lossy(client.text),
            client.port,
            client.gateway,
            refusal.explain(policy)
        );
        Failure::new(Reason::Denied, text)
    })
}

/// Adds the names of audit rules that match. See [`judge_request`].
pub fn audited(
    policy: &Policy,
    guard: Option<&Guard>,
    client: &GatewayClient<'_>,
    request: &Request<'_>,
    names: &mut String,
) {
    let caller_policy = policy.caller_policy(&caller(client));
    let rules = guard.and_then(|g| g.rules.as_deref());
    // A bad token is refused where the request is judged.
    let _ = token_claims::judge(caller_policy.reads_claims(), rules, request, |request| {
        for name in caller_policy.audited(Some(request)) {
            if !names.is_empty() {
                names.push_str(", ");
            }
            names.push_str(name);
        }
        Ok(())
    });
}

/// Describes a client of a gateway, which is known by its address alone.
fn caller(client: &GatewayClient<'_>) -> Caller<'static> {
    Caller {
        identity: None,
        address: client.address,
        port: client.port,
        strict: false,
        by_identity: false,
    }
}

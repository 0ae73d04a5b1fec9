//! Explains what applies to a call on its way: filters, limits, timeouts, retries.

use super::Call;
use crate::index::room::Room;
use crate::index::{Index, inbound, pods, services};
use std::time::Duration;
use tulle_api::v1;
use tulle_model::resource::{Breaker, Filter, RateLimit, Retry, RouteRule, Traffic};

/// Adds the filters, timeout and retries of a route's rule.
pub(super) fn of_rule(rule: &RouteRule, answer: &mut v1::Explanation) {
    answer.filters.extend(rule.filters.iter().map(filter));
    answer.timeout = match rule.request_timeout_ms {
        0 => String::new(),
        ms => format!("{} (route)", time(ms)),
    };
    if let Some(retry) = &rule.retry {
        answer.retry = format!("{} (route)", retries(retry, rule.try_timeout_ms));
    } else if rule.try_timeout_ms > 0 {
        answer.retry = format!("none; a try may take {}", time(rule.try_timeout_ms));
    }
}

/// How a rule without backends answers by itself.
pub(super) fn answers(rule: &RouteRule) -> Option<String> {
    let own = |f: &&Filter| matches!(f, Filter::Redirect(_) | Filter::Respond(_));
    rule.filters.iter().find(own).map(filter)
}

impl Index {
    /// Adds the limits, timeouts and retries of the destinations.
    pub(super) fn add_limits(
        &self,
        destinations: &[(String, u16)],
        call: &Call<'_>,
        answer: &mut v1::Explanation,
    ) {
        let inputs = &self.inputs;
        let several = destinations.len() > 1;
        for (name, port) in destinations {
            let Some(service) = inputs.object_name(name) else {
                continue;
            };
            let of = match several {
                true => format!("{name}:{port}: "),
                false => String::new(),
            };
            if let Some(traffic) = services::traffic(inputs, &service, *port) {
                limits(&of, &traffic, answer);
            }
            let places = pods::places(inputs, &service, *port);
            if let Some(limit) = inbound::connection_limit(inputs, &places) {
                let text = format!("{of}{}, of connections", rate(&limit));
                answer.limits.push(text);
            }
            if !call.opaque {
                // Demands that contradict each other close the port: a policy says so.
                let mut room = Room::of_workload(inputs, service.namespace());
                let rules = inbound::rules(inputs, &places, &mut room);
                for rule in rules.unwrap_or_default() {
                    let when = match rule.matches.is_empty() {
                        true => "",
                        false => ", of some requests",
                    };
                    let filters = rule.filters.iter();
                    let texts = filters.map(|f| format!("{of}{}{when}", filter(f)));
                    answer.limits.extend(texts);
                }
            }
        }
        answer.limits.dedup();
        if answer.timeout.is_empty() && !call.opaque {
            let mesh = inputs.mesh.as_ref().and_then(|m| m.settings().ok());
            let ms = mesh.unwrap_or_default().request_timeout_ms;
            answer.timeout = match ms {
                0 => "none".into(),
                ms => format!("{} (Mesh)", time(ms)),
            };
        }
    }
}

fn limits(of: &str, traffic: &Traffic, answer: &mut v1::Explanation) {
    let name = &traffic.name;
    if answer.timeout.is_empty() && traffic.request_timeout_ms > 0 {
        answer.timeout = format!("{} ({name})", time(traffic.request_timeout_ms));
    }
    if let (true, Some(retry)) = (answer.retry.is_empty(), &traffic.retry) {
        answer.retry = format!("{} ({name})", retries(retry, retry.try_timeout_ms));
    }
    let at_most = [
        (traffic.limits.connections, "connections at a time"),
        (traffic.limits.requests, "requests at a time"),
        (traffic.limits.pending, "requests that wait"),
        (traffic.limits.retries, "retries at a time"),
    ];
    for (count, what) in at_most.iter().filter(|(count, _)| *count > 0) {
        answer
            .limits
            .push(format!("{of}{name}: at most {count} {what}"));
    }
    if let Some(breaker) = &traffic.breaker {
        answer
            .limits
            .push(format!("{of}{name}: {}", opens(breaker)));
    }
    if let Some(outlier) = &traffic.outlier {
        let failures = or(outlier.consecutive, 5);
        let text =
            format!("{of}{name}: an endpoint is left out after {failures} failures in a row");
        answer.limits.push(text);
    }
}

fn opens(breaker: &Breaker) -> String {
    let percent = |ppm: u32| format!("{}.{}%", ppm / 10_000, ppm / 1000 % 10);
    let slow = time(or(breaker.slow_ms, 5000));
    let mut causes = Vec::new();
    if breaker.error_ppm > 0 {
        causes.push(format!("{} errors", percent(breaker.error_ppm)));
    }
    if breaker.error_amount > 0 {
        causes.push(format!("{} errors", breaker.error_amount));
    }
    if breaker.slow_ppm > 0 {
        causes.push(format!("{} slower than {slow}", percent(breaker.slow_ppm)));
    }
    if breaker.slow_amount > 0 {
        causes.push(format!("{} slower than {slow}", breaker.slow_amount));
    }
    format!(
        "circuit opens for {} at {} of the last {}",
        time(or(breaker.open_ms, 30_000)),
        causes.join(" or "),
        time(or(breaker.window_ms, 30_000))
    )
}

fn or(value: u32, default: u32) -> u32 {
    if value == 0 { default } else { value }
}

fn retries(retry: &Retry, try_timeout_ms: u32) -> String {
    let mut on: Vec<String> = Vec::new();
    let named = [
        (retry.connect_failure, "connect-failure"),
        (retry.reset, "reset"),
        (retry.timeout, "timeout"),
    ];
    on.extend(
        named
            .iter()
            .filter(|(given, _)| *given)
            .map(|(_, n)| (*n).to_owned()),
    );
    on.extend(retry.statuses.iter().map(u16::to_string));
    on.extend(retry.grpc_statuses.iter().map(|s| format!("grpc {s}")));
    let each = match try_timeout_ms {
        0 => String::new(),
        ms => format!(", each try {}", time(ms)),
    };
    format!("{} more on {}{each}", retry.attempts, on.join(", "))
}

/// A filter in a few words.
pub(super) fn filter(one: &Filter) -> String {
    match one {
        Filter::RequestHeaders(_) => "request headers".into(),
        Filter::ResponseHeaders(_) => "response headers".into(),
        Filter::Redirect(redirect) => format!("redirect {}", or(redirect.status.into(), 302)),
        Filter::Rewrite(_) => "rewrite".into(),
        Filter::Mirror(mirror) => format!("mirror to {}:{}", mirror.service, mirror.port),
        Filter::Cors(_) => "CORS".into(),
        Filter::Fault(_) => "fault injection".into(),
        Filter::When(when) => {
            let filters: Vec<String> = when.filters.iter().map(filter).collect();
            format!("{} where `{}`", filters.join(", "), when.condition)
        }
        Filter::RequestValues(values) => {
            let names: Vec<&str> = values.iter().map(|v| v.name.as_str()).collect();
            format!("request headers {}", names.join(", "))
        }
        Filter::Plugin(plugin) => format!("plugin {}", plugin.name),
        Filter::RateLimit(limit) => rate(limit),
        Filter::Respond(answer) => format!("answer {}", answer.status),
        Filter::ExternalAuth(auth) => format!("{}: asks {}:{}", auth.name, auth.service, auth.port),
        Filter::Jwt(jwt) => {
            // The strict one is what one expects.
            let lax = match jwt.providers.iter().any(|p| p.expiry_optional) {
                true => ", perhaps without expiry",
                false => "",
            };
            format!("{}: needs a token{lax}", jwt.name)
        }
    }
}

fn rate(limit: &RateLimit) -> String {
    let burst = match limit.burst {
        0 => String::new(),
        more => format!(" and {more} at once"),
    };
    format!(
        "{}: {} in {}{burst}",
        limit.name,
        limit.tokens,
        time(limit.per_ms)
    )
}

fn time(ms: u32) -> String {
    match ms {
        u32::MAX => "none".into(),
        ms => format!("{:?}", Duration::from_millis(ms.into())),
    }
}

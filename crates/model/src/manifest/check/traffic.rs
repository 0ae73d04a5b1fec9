//! Checks a single TrafficPolicy, beyond its types.

use super::filters::{percentage, status};
use super::routing::token;
use super::targets::target_refs;
use super::{MAX_TIMEOUT, duration, label, metadata, object_name, path, range, spec, word};
use crate::condition;
use crate::document::{Path, Report};
use crate::manifest::allowed::{AFFINITIES, BALANCERS, MAX_ATTEMPTS, METHODS, RETRY_ON};
use crate::manifest::{
    CircuitBreakerSpec, LoadBalancerSpec, Manifest, RetrySpec, TrafficPolicySpec,
};
use std::time::Duration;

/// A duration of at least a millisecond.
fn positive(at: &Path, text: Option<&str>, report: &mut Report) {
    duration(at, text, Duration::from_millis(1), MAX_TIMEOUT, report);
}

pub(in crate::manifest) fn traffic_policy(
    policy: &Manifest<TrafficPolicySpec>,
    report: &mut Report,
) {
    metadata(&policy.metadata, object_name, report);
    let at = spec();
    let policy = &policy.spec;
    let instead = "target the Service; a route itself sets how its requests are treated";
    target_refs(&policy.target_refs, &["Service"], instead, report);
    let nothing = TrafficPolicySpec {
        target_refs: policy.target_refs.clone(),
        ..Default::default()
    };
    if *policy == nothing {
        report.add(&at, "it has no settings", "add `retry`, `loadBalancer`, …");
    }
    if let Some(balancer) = &policy.load_balancer {
        load_balancer(&at.key("loadBalancer"), balancer, report);
    }
    if let Some(affinity) = &policy.session_affinity {
        let at = at.key("sessionAffinity");
        let kind = affinity.kind.as_deref().unwrap_or("Cookie");
        word(&at.key("type"), kind, &AFFINITIES, report);
        token(&at.key("name"), &affinity.name, report);
        let least = Duration::from_secs(1);
        duration(
            &at.key("maxAge"),
            affinity.max_age.as_deref(),
            least,
            MAX_TIMEOUT,
            report,
        );
        if kind == "Header" && affinity.max_age.is_some() {
            report.add(&at.key("maxAge"), "not used with type Header", "remove it");
        }
    }
    if let Some(limits) = &policy.connections {
        let at = at.key("connections");
        for (name, value) in [
            ("maxConnections", limits.max_connections),
            ("maxRequests", limits.max_requests),
            ("maxPendingRequests", limits.max_pending_requests),
            ("maxRetries", limits.max_retries),
            (
                "maxRequestsPerConnection",
                limits.max_requests_per_connection,
            ),
        ] {
            if let Some(value) = value {
                range(&at.key(name), value, 1, u32::MAX, report);
            }
        }
    }
    if let Some(timeouts) = &policy.timeouts {
        let at = at.key("timeouts");
        let request = timeouts.request.as_deref();
        duration(
            &at.key("request"),
            request,
            Duration::ZERO,
            MAX_TIMEOUT,
            report,
        );
        positive(&at.key("idle"), timeouts.idle.as_deref(), report);
        positive(&at.key("connect"), timeouts.connect.as_deref(), report);
    }
    if let Some(retry) = &policy.retry {
        self::retry(&at.key("retry"), retry, report);
    }
    if let Some(breaker) = &policy.circuit_breaker {
        circuit_breaker(&at.key("circuitBreaker"), breaker, report);
    }
    if let Some(outlier) = &policy.outlier_detection {
        let at = at.key("outlierDetection");
        if let Some(n) = outlier.consecutive_failures {
            range(&at.key("consecutiveFailures"), n, 1, u32::MAX, report);
        }
        let base = outlier.base_ejection_time.as_deref();
        positive(&at.key("baseEjectionTime"), base, report);
        let most = outlier.max_ejection_time.as_deref();
        positive(&at.key("maxEjectionTime"), most, report);
        if let Some(n) = outlier.max_ejection_percent {
            range(&at.key("maxEjectionPercent"), n, 1, 100, report);
        }
    }
    if let Some(check) = &policy.health_check {
        let at = at.key("healthCheck");
        if let Some(text) = &check.path {
            path(&at.key("path"), text, report);
        }
        positive(&at.key("interval"), check.interval.as_deref(), report);
        positive(&at.key("timeout"), check.timeout.as_deref(), report);
        for (name, value) in [
            ("healthyThreshold", check.healthy_threshold),
            ("unhealthyThreshold", check.unhealthy_threshold),
        ] {
            if let Some(value) = value {
                range(&at.key(name), value, 1, 100, report);
            }
        }
    }
    positive(&at.key("slowStart"), policy.slow_start.as_deref(), report);
    if let Some(locality) = &policy.locality {
        let at = at.key("locality");
        if let Some(n) = locality.min_healthy_percent {
            range(&at.key("minHealthyPercent"), n, 1, 100, report);
        }
        for (i, region) in locality.failover.iter().enumerate() {
            label(&at.key("failover").index(i), region, report);
        }
    }
}

fn load_balancer(at: &Path, balancer: &LoadBalancerSpec, report: &mut Report) {
    word(&at.key("type"), &balancer.kind, &BALANCERS, report);
    let Some(hash) = &balancer.hash else {
        if balancer.kind == "RingHash" {
            let hint = "add `hash: {header: x-user}`, `{cookie: user}` or `{sourceAddress: true}`";
            report.add(&at.key("hash"), "required for type `RingHash`", hint);
        }
        return;
    };
    let at = at.key("hash");
    if balancer.kind != "RingHash" {
        report.add(&at, "used with type `RingHash` only", "remove it");
    }
    let given = [
        hash.header.is_some(),
        hash.cookie.is_some(),
        hash.source_address,
    ];
    let given = given.iter().filter(|g| **g).count();
    if given != 1 {
        let problem = format!(
            "expected exactly one of `header`, `cookie` and `sourceAddress`, found {given}"
        );
        report.add(&at, problem, "");
    }
    for (name, text) in [("header", &hash.header), ("cookie", &hash.cookie)] {
        if let Some(text) = text {
            token(&at.key(name), text, report);
        }
    }
}

fn retry(at: &Path, retry: &RetrySpec, report: &mut Report) {
    if let Some(attempts) = retry.attempts {
        range(&at.key("attempts"), attempts, 1, MAX_ATTEMPTS, report);
    }
    for (i, on) in retry.on.iter().enumerate() {
        word(&at.key("on").index(i), on, &RETRY_ON, report);
    }
    for (i, code) in retry.codes.iter().enumerate() {
        range(&at.key("codes").index(i), (*code).into(), 400, 599, report);
    }
    for (i, code) in retry.grpc_codes.iter().enumerate() {
        range(&at.key("grpcCodes").index(i), (*code).into(), 1, 16, report);
    }
    for (i, method) in retry.methods.iter().enumerate() {
        word(&at.key("methods").index(i), method, &METHODS, report);
    }
    positive(
        &at.key("perTryTimeout"),
        retry.per_try_timeout.as_deref(),
        report,
    );
    positive(&at.key("backoff"), retry.backoff.as_deref(), report);
    positive(&at.key("maxBackoff"), retry.max_backoff.as_deref(), report);
    if let Some(source) = &retry.when {
        condition::check(&at.key("when"), condition::condition(source), report);
    }
    if let Some(budget) = &retry.budget {
        let at = at.key("budget");
        if let Some(percent) = budget.percent {
            range(&at.key("percent"), percent, 1, 100, report);
        }
        if let Some(n) = budget.min_per_second {
            range(&at.key("minPerSecond"), n, 1, u32::MAX, report);
        }
    }
}

fn circuit_breaker(at: &Path, breaker: &CircuitBreakerSpec, report: &mut Report) {
    positive(&at.key("window"), breaker.window.as_deref(), report);
    positive(&at.key("openFor"), breaker.open_for.as_deref(), report);
    if let Some(n) = breaker.min_requests {
        range(&at.key("minRequests"), n, 1, u32::MAX, report);
    }
    status(&at.key("status"), breaker.status, report);
    let mut opens = false;
    if let Some(slow) = &breaker.slow {
        let at = at.key("slow");
        positive(&at.key("threshold"), slow.threshold.as_deref(), report);
        percentage(&at, slow.percentage.as_deref(), report);
        opens |= slow.amount.is_some() || slow.percentage.is_some();
    }
    if let Some(errors) = &breaker.errors {
        percentage(&at.key("errors"), errors.percentage.as_deref(), report);
        opens |= errors.amount.is_some() || errors.percentage.is_some();
    }
    if !opens {
        let hint = "add `errors: {percentage: 50%}` or `slow: {percentage: 50%}`";
        report.add(at, "nothing opens it", hint);
    }
}

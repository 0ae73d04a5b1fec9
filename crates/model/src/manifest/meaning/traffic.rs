//! Turns TrafficPolicies into the settings of a proxy.

use super::super::{
    CircuitBreakerSpec, HashSpec, RetrySpec, RouteRetry, SessionAffinity, SessionPersistence,
    TrafficPolicySpec, parse_percent,
};
use super::{ms_or_0, ms_or_none, seconds_or_0};
use crate::resource::{
    Affinity, Balancer, Breaker, ConnectionLimits, HashKey, HealthCheck, Locality, Outlier, Retry,
    Traffic,
};

/// Statuses that Gateway API names for a retry that names none.
const USUAL_CODES: [u16; 3] = [502, 503, 504];

fn ppm(text: Option<&String>) -> u32 {
    text.map_or(0, |text| parse_percent(text).unwrap_or(0))
}

impl TrafficPolicySpec {
    /// How a proxy treats the port of a service.
    pub fn traffic(&self, name: String) -> Traffic {
        let timeouts = self.timeouts.clone().unwrap_or_default();
        let limits = self.connections.clone().unwrap_or_default();
        Traffic {
            name,
            balancer: match &self.load_balancer {
                None => Balancer::default(),
                Some(balancer) => match balancer.kind.as_str() {
                    "LeastRequest" => Balancer::LeastRequest,
                    "EWMA" => Balancer::Ewma,
                    "Random" => Balancer::Random,
                    "RingHash" => Balancer::RingHash(hash_key(balancer.hash.as_ref())),
                    _ => Balancer::RoundRobin,
                },
            },
            affinity: self.session_affinity.as_ref().map(affinity),
            limits: ConnectionLimits {
                connections: limits.max_connections.unwrap_or(0),
                requests: limits.max_requests.unwrap_or(0),
                pending: limits.max_pending_requests.unwrap_or(0),
                retries: limits.max_retries.unwrap_or(0),
                requests_per_connection: limits.max_requests_per_connection.unwrap_or(0),
            },
            retry: self.retry.as_ref().map(|r| Box::new(r.retry())),
            request_timeout_ms: ms_or_none(timeouts.request.as_ref()),
            idle_timeout_ms: ms_or_0(timeouts.idle.as_ref()),
            connect_timeout_ms: ms_or_0(timeouts.connect.as_ref()),
            breaker: self.circuit_breaker.as_ref().map(breaker),
            outlier: self.outlier_detection.as_ref().map(|o| {
                Box::new(Outlier {
                    consecutive: o.consecutive_failures.unwrap_or(0),
                    base_ms: ms_or_0(o.base_ejection_time.as_ref()),
                    max_ms: ms_or_0(o.max_ejection_time.as_ref()),
                    max_percent: o.max_ejection_percent.unwrap_or(0),
                })
            }),
            health_check: self.health_check.as_ref().map(|h| {
                Box::new(HealthCheck {
                    path: h.path.clone().unwrap_or_default(),
                    interval_ms: ms_or_0(h.interval.as_ref()),
                    timeout_ms: ms_or_0(h.timeout.as_ref()),
                    healthy: h.healthy_threshold.unwrap_or(0),
                    unhealthy: h.unhealthy_threshold.unwrap_or(0),
                })
            }),
            slow_start_ms: ms_or_0(self.slow_start.as_ref()),
            locality: self.locality.as_ref().map(|l| {
                Box::new(Locality {
                    healthy_percent: l.min_healthy_percent.unwrap_or(0),
                    failover: l.failover.clone(),
                })
            }),
        }
    }
}

fn hash_key(hash: Option<&HashSpec>) -> HashKey {
    match hash {
        Some(HashSpec {
            header: Some(name), ..
        }) => HashKey::Header(name.to_ascii_lowercase()),
        Some(HashSpec {
            cookie: Some(name), ..
        }) => HashKey::Cookie(name.clone()),
        _ => HashKey::Source,
    }
}

fn affinity(given: &SessionAffinity) -> Box<Affinity> {
    let header = given.kind.as_deref() == Some("Header");
    Box::new(Affinity {
        name: match header {
            true => given.name.to_ascii_lowercase(),
            false => given.name.clone(),
        },
        header,
        max_age_s: seconds_or_0(given.max_age.as_ref()),
    })
}

fn breaker(given: &CircuitBreakerSpec) -> Box<Breaker> {
    let slow = given.slow.clone().unwrap_or_default();
    let errors = given.errors.clone().unwrap_or_default();
    Box::new(Breaker {
        window_ms: ms_or_0(given.window.as_ref()),
        min_requests: given.min_requests.unwrap_or(0),
        slow_ms: ms_or_0(slow.threshold.as_ref()),
        slow_amount: slow.amount.unwrap_or(0),
        slow_ppm: ppm(slow.percentage.as_ref()),
        error_amount: errors.amount.unwrap_or(0),
        error_ppm: ppm(errors.percentage.as_ref()),
        open_ms: ms_or_0(given.open_for.as_ref()),
        status: given.status.unwrap_or(0),
        body: given.body.clone(),
    })
}

impl RetrySpec {
    /// Builds the retry settings. If no condition is given, requests that never reached the
    /// application are sent again.
    pub fn retry(&self) -> Retry {
        let on = |what: &str| self.on.iter().any(|o| o == what);
        let none = self.on.is_empty() && self.codes.is_empty() && self.grpc_codes.is_empty();
        let budget = self.budget.clone().unwrap_or_default();
        Retry {
            attempts: self.attempts.unwrap_or(1),
            try_timeout_ms: ms_or_0(self.per_try_timeout.as_ref()),
            statuses: self.codes.clone(),
            grpc_statuses: self.grpc_codes.clone(),
            connect_failure: none || on("connect-failure"),
            reset: on("reset"),
            timeout: on("timeout"),
            methods: self.methods.clone(),
            backoff_ms: ms_or_0(self.backoff.as_ref()),
            backoff_max_ms: ms_or_0(self.max_backoff.as_ref()),
            budget_percent: budget.percent.unwrap_or(0),
            budget_min_per_s: budget.min_per_second.unwrap_or(0),
            when: self.when.clone().unwrap_or_default(),
        }
    }
}

impl RouteRetry {
    /// Builds the retry settings: for the statuses named, and for every failure of the connection.
    pub fn retry(&self) -> Retry {
        Retry {
            attempts: self.attempts.unwrap_or(1),
            statuses: match self.codes.is_empty() {
                true => USUAL_CODES.to_vec(),
                false => self.codes.clone(),
            },
            connect_failure: true,
            reset: true,
            timeout: true,
            backoff_ms: ms_or_0(self.backoff.as_ref()),
            ..Default::default()
        }
    }
}

impl SessionPersistence {
    /// How a client is kept with an endpoint.
    pub fn affinity(&self) -> Affinity {
        let header = self.kind.as_deref() == Some("Header");
        let name = self.session_name.as_deref().unwrap_or("tulle-session");
        Affinity {
            name: match header {
                true => name.to_ascii_lowercase(),
                false => name.to_owned(),
            },
            header,
            max_age_s: seconds_or_0(self.absolute_timeout.as_ref()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn traffic(spec: serde_json::Value) -> Traffic {
        let spec: TrafficPolicySpec = serde_json::from_value(spec).unwrap();
        spec.traffic("TrafficPolicy/x".into())
    }

    #[test]
    fn texts_become_numbers() {
        let found = traffic(json!({
            "targetRefs": [{ "name": "a" }],
            "loadBalancer": { "type": "RingHash", "hash": { "header": "X-User" } },
            "sessionAffinity": { "name": "s", "maxAge": "90s" },
            "timeouts": { "request": "0s", "idle": "1m" },
            "retry": { "attempts": 2, "on": ["reset"], "codes": [503], "backoff": "50ms" },
            "circuitBreaker": { "errors": { "percentage": "12.5%" }, "openFor": "10s" },
            "slowStart": "30s",
        }));
        assert_eq!(
            found.balancer,
            Balancer::RingHash(HashKey::Header("x-user".into()))
        );
        assert_eq!(found.affinity.unwrap().max_age_s, 90);
        assert_eq!(
            (found.request_timeout_ms, found.idle_timeout_ms),
            (u32::MAX, 60_000)
        );
        let retry = found.retry.unwrap();
        assert!(retry.reset && !retry.connect_failure && !retry.timeout);
        assert_eq!((retry.attempts, retry.backoff_ms), (2, 50));
        let breaker = found.breaker.unwrap();
        assert_eq!((breaker.error_ppm, breaker.open_ms), (125_000, 10_000));
        assert_eq!(found.slow_start_ms, 30_000);
    }

    #[test]
    fn what_is_not_given_is_left_to_the_proxy() {
        let found = traffic(json!({ "targetRefs": [{ "name": "a" }], "retry": {} }));
        let retry = Retry {
            attempts: 1,
            connect_failure: true,
            ..Default::default()
        };
        let expected = Traffic {
            name: "TrafficPolicy/x".into(),
            retry: Some(Box::new(retry)),
            ..Default::default()
        };
        assert_eq!(found, expected);
    }
}

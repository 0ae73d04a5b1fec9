//! `tulle why`: whether one service may call another, by which policy and route, and what went
//! wrong last.
//!
//! The controller says what should happen; the two proxies say what did.

use crate::args::diagnosis::Why;
use crate::client::{Objects, Rpc};
use crate::failure::Result;
use crate::http;
use crate::output::{self, Columns, Mark, coarse, line, paint};
use crate::proxies::MeshName;
use crate::supervise::state::RunState;
use serde::Serialize;
use serde_json::Value;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tulle_api::v1::{ExplainRequest, Explanation};

const TIMEOUT: Duration = Duration::from_secs(2);
/// Seconds within which two sides tell of the same failure of a path.
const SAME: f64 = 1.0;

/// The output of `tulle why`.
#[derive(Serialize)]
struct Answer {
    #[serde(flatten)]
    mesh: MeshName,
    from: String,
    to: String,
    allowed: bool,
    reason: String,
    source_identity: String,
    destination_identities: Vec<String>,
    route: String,
    rule: String,
    filters: Vec<String>,
    /// `service:port share`, when there is more than one.
    split: Vec<String>,
    /// `service:port` of each that may get the request.
    destinations: Vec<String>,
    /// Routes that match as well and do not act.
    conflicts: Vec<String>,
    policy: String,
    /// Rate limits, connection limits, circuit breakers, authentication.
    limits: Vec<String>,
    timeout: String,
    retry: String,
    /// How the caller's proxies see what is called, where that is worth a look.
    now: Vec<String>,
    considered: Vec<Considered>,
    endpoints: Vec<String>,
    /// Workloads of the two that do not answer on this host, and why.
    not_ready: Vec<String>,
    mtls: String,
    last_error: Option<LastError>,
}

#[derive(Serialize)]
struct Considered {
    policy: String,
    outcome: String,
}

/// The newest failure between the two that a proxy remembers.
#[derive(Serialize)]
struct LastError {
    /// The proxy that reported the error.
    told_by: String,
    /// The error as the proxy reported it.
    error: Value,
}

/// Reports of the proxies on both sides, and the proxies that do not answer.
#[derive(Default)]
pub(crate) struct Told {
    /// `GET /errors` of the caller's proxies.
    pub(crate) from_errors: Vec<Value>,
    /// `GET /endpoints` of them.
    pub(crate) from_endpoints: Vec<Value>,
    /// `GET /errors` of the called side's, by the service that was asked.
    pub(crate) to_errors: Vec<(String, Vec<Value>)>,
    /// Workloads of the two that do not answer, and why.
    pub(crate) not_ready: Vec<String>,
}

/// Asks the controller.
pub(crate) async fn explain(objects: &mut Objects, args: &Why) -> Result<Explanation> {
    let request = ExplainRequest {
        from: args.from.clone(),
        to: args.to.clone(),
        path: args.path().to_owned(),
        method: args.method().to_owned(),
        port: args.port.into(),
        at_unix_seconds: args.at.unwrap_or_default(),
    };
    let explained = objects.explain(request).await;
    explained.rpc(|| format!("cannot explain {} → {}", args.from, args.to))
}

/// Prints the explanation; the exit code is 0 if the call is allowed.
pub(crate) fn why(
    args: &Why,
    mesh: MeshName,
    explanation: Explanation,
    told: &Told,
) -> Result<ExitCode> {
    // Proxies speak of now.
    let nothing = Told::default();
    let told = if args.at.is_some() { &nothing } else { told };
    let last_error = last_error(told, args, &explanation);
    let mut answer = answer(args, mesh, explanation, last_error);
    answer.not_ready.clone_from(&told.not_ready);
    answer.now = now(&told.from_endpoints, &answer);
    if !output::structured(&answer, args.format.output)? {
        show(&answer);
    }
    Ok(ExitCode::from(u8::from(!answer.allowed)))
}

/// Lists the services that a call may reach: the one named, and those that a route or split leads to.
pub(crate) fn called(args: &Why, explanation: &Explanation) -> Vec<String> {
    let mut called = vec![args.to.clone()];
    let places = explanation.destinations.iter();
    let services = places.filter_map(|place| Some(place.rsplit_once(':')?.0.to_owned()));
    for service in services {
        if !called.contains(&service) {
            called.push(service);
        }
    }
    called
}

/// Asks the proxies of both sides on this host.
pub(crate) async fn told(state: &RunState, args: &Why, explanation: &Explanation) -> Told {
    let called = called(args, explanation);
    let mut to_errors = Vec::new();
    for service in &called {
        to_errors.push((service.clone(), ask(state, service, "/errors").await));
    }
    Told {
        from_errors: ask(state, &args.from, "/errors").await,
        from_endpoints: ask(state, &args.from, "/endpoints").await,
        to_errors,
        not_ready: not_ready(state, &args.from, &called),
    }
}

/// Asks a service's sidecars, or a gateway. Those that do not answer are left out.
async fn ask(state: &RunState, name: &str, path: &'static str) -> Vec<Value> {
    let mut answers = Vec::new();
    for socket in sockets(state, name) {
        let asked = tokio::task::spawn_blocking(move || http::get_unix(&socket, path, TIMEOUT));
        if let Ok(Ok(response)) = asked.await {
            answers.push(serde_json::from_slice(&response.body).unwrap_or_default());
        }
    }
    answers
}

fn answer(args: &Why, mesh: MeshName, e: Explanation, last_error: Option<LastError>) -> Answer {
    let considered = e.considered.into_iter().map(|c| Considered {
        policy: if c.kind.is_empty() {
            c.name
        } else {
            format!("{}/{}", c.kind, c.name)
        },
        outcome: c.outcome,
    });
    Answer {
        mesh,
        from: args.from.clone(),
        to: args.to.clone(),
        allowed: e.allowed,
        reason: e.reason,
        source_identity: e.source_identity,
        destination_identities: e.destination_identities,
        route: e.route,
        rule: e.rule,
        filters: e.filters,
        split: e.split,
        destinations: e.destinations,
        conflicts: e.conflicts,
        policy: e.policy,
        limits: e.limits,
        timeout: e.timeout,
        retry: e.retry,
        now: Vec::new(),
        considered: considered.collect(),
        endpoints: e.endpoints,
        not_ready: Vec::new(),
        mtls: e.mtls,
        last_error,
    }
}

fn show(answer: &Answer) {
    let verdict = if answer.allowed {
        paint("√ allowed", Mark::Good)
    } else {
        paint("× denied", Mark::Bad)
    };
    line(&format!("{} → {}: {verdict}", answer.from, answer.to));
    let or_none = |text: &str| {
        if text.is_empty() {
            "none".to_owned()
        } else {
            text.to_owned()
        }
    };
    let rows = [
        ("reason", answer.reason.clone()),
        ("policy", or_none(&answer.policy)),
        (
            "route",
            or_none(format!("{} {}", answer.route, answer.rule).trim()),
        ),
        ("filters", answer.filters.join(", ")),
        ("split", answer.split.join(", ")),
        ("timeout", answer.timeout.clone()),
        ("retry", answer.retry.clone()),
        ("source", answer.source_identity.clone()),
        ("destination", answer.destination_identities.join(" ")),
        ("endpoints", or_none(&answer.endpoints.join(" "))),
        ("security", answer.mtls.clone()),
    ];
    // Default values are left out.
    for (name, value) in rows.iter().filter(|(_, value)| !value.is_empty()) {
        line(&format!("  {name:<12} {value}"));
    }
    for conflict in &answer.conflicts {
        let text = format!("  {:<12} {conflict}", "conflict");
        line(&paint(&text, Mark::Doubtful));
    }
    for limit in &answer.limits {
        line(&format!("  {:<12} {limit}", "limit"));
    }
    for state in &answer.now {
        line(&paint(&format!("  {:<12} {state}", "now"), Mark::Doubtful));
    }
    for unit in &answer.not_ready {
        line(&paint(
            &format!("  {:<12} {unit}", "not ready"),
            Mark::Doubtful,
        ));
    }
    match &answer.last_error {
        Some(last) => line(&format!(
            "  {:<12} {} (told by the proxy of {})",
            "last error",
            in_words(&last.error),
            last.told_by
        )),
        None => line(&format!("  {:<12} none remembered", "last error")),
    }
    let mut considered = Columns::new(&["POLICY CONSIDERED", "OUTCOME"]);
    for policy in &answer.considered {
        considered.row(vec![policy.policy.clone(), policy.outcome.clone()]);
    }
    if !considered.is_empty() {
        line(&format!("\n{}", considered.render()));
    }
}

/// `403 denied, 12s ago: GET /x: why`, as far as the proxy told.
fn in_words(error: &Value) -> String {
    let text = |name| error.get(name).and_then(Value::as_str).unwrap_or_default();
    let code = error.get("code").and_then(Value::as_u64);
    let code = code.map(|c| format!("{c} ")).unwrap_or_default();
    let mut words = format!("{code}{}", text("reason"));
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    if let (Some(time), Ok(now)) = (error.get("time").and_then(Value::as_f64), now) {
        #[allow(clippy::cast_possible_truncation)] // an age in seconds
        let age = (now.as_secs_f64() - time).max(0.0) as i64;
        words.push_str(&format!(", {} ago", coarse(age)));
    }
    for more in [text("path"), text("detail")] {
        if !more.is_empty() {
            words.push_str(&format!(": {more}"));
        }
    }
    words
}

/// How the caller's proxies see what is called: circuits that are not closed, endpoints that get
/// nothing.
fn now(endpoints: &[Value], answer: &Answer) -> Vec<String> {
    let mut found = Vec::new();
    for list in endpoints {
        for port in list.as_array().into_iter().flatten() {
            let service = port.get("service").and_then(Value::as_str);
            let called = |name: &str| {
                let mut places = answer.destinations.iter();
                name == answer.to || places.any(|p| is_of(p, name))
            };
            if let Some(service) = service.filter(|s| called(s)) {
                found.extend(unusual(service, port));
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Whether a `service:port` is of that service.
fn is_of(place: &str, service: &str) -> bool {
    place
        .rsplit_once(':')
        .is_some_and(|(name, _)| name == service)
}

/// Returns the abnormal states of a port in the answer to `GET /endpoints`.
fn unusual(service: &str, port: &Value) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(breaker) = port.get("breaker").and_then(Value::as_str)
        && breaker != "closed"
    {
        found.push(format!("circuit of {service} is {breaker}"));
    }
    let endpoints = port.get("endpoints").and_then(Value::as_array);
    for endpoint in endpoints.into_iter().flatten() {
        let text = |name| {
            endpoint
                .get(name)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let state = text("state");
        if !["", "ready"].contains(&state) {
            let left = endpoint.get("ejectedForMs").and_then(Value::as_u64);
            let left = left.filter(|ms| *ms > 0);
            let left = left.map_or_else(String::new, |ms| format!(" for {}s more", ms / 1000));
            found.push(format!(
                "endpoint {} of {service} is {state}{left}",
                text("address")
            ));
        }
    }
    found
}

/// Lists units of both sides that are not ready: an allowed request may still fail.
fn not_ready(state: &RunState, from: &str, called: &[String]) -> Vec<String> {
    let concerns = |name: &str| name == from || called.iter().any(|c| c == name);
    let workloads = state.workloads.iter().filter(|w| !w.ready);
    let workloads = workloads.filter(|w| concerns(&w.service) || concerns(&w.name));
    let gateways = state.gateways.iter().filter(|g| !g.proxy.ready);
    let gateways = gateways.filter(|g| concerns(&g.name));
    workloads
        .map(|w| format!("{}: {}", w.name, w.message))
        .chain(gateways.map(|g| format!("{}: {}", g.name, g.message)))
        .collect()
}

/// The newest failure. Both sides may tell of the same one: then the called side knows why.
fn last_error(told: &Told, args: &Why, e: &Explanation) -> Option<LastError> {
    let by = |name: &str, lists: &[Value]| {
        let found = lists
            .iter()
            .filter_map(|list| newest_between(list, args, e));
        let newest = found.max_by(|a, b| time(a).total_cmp(&time(b)));
        newest.map(|error| LastError {
            told_by: name.to_owned(),
            error,
        })
    };
    let seen = by(&args.from, &told.from_errors);
    let called = told.to_errors.iter();
    let called = called.filter_map(|(service, lists)| by(service, lists));
    let called = called.max_by(|a, b| time(&a.error).total_cmp(&time(&b.error)));
    match (called, seen) {
        (Some(told), Some(seen)) if is_later(&seen.error, &told.error) => Some(seen),
        (told, seen) => told.or(seen),
    }
}

/// Whether a failure is later than another, and not the same one told by both sides.
fn is_later(seen: &Value, told: &Value) -> bool {
    let same_path = seen.get("path") == told.get("path");
    let margin = if same_path { SAME } else { 0.0 };
    time(seen) > time(told) + margin
}

/// When a failure was, in seconds.
fn time(error: &Value) -> f64 {
    error
        .get("time")
        .and_then(Value::as_f64)
        .unwrap_or_default()
}

/// Admin sockets of a service's sidecars, or of the gateway of that name.
fn sockets(state: &RunState, name: &str) -> Vec<PathBuf> {
    let of_workload = |w: &&crate::supervise::state::Workload| w.service == name || w.name == name;
    let sidecars = state.workloads.iter().filter(of_workload);
    let gateways = state.gateways.iter().filter(|g| g.name == name);
    sidecars
        .filter_map(|w| Some(w.sidecar.as_ref()?.admin_socket.clone()))
        .chain(gateways.map(|g| g.proxy.admin_socket.clone()))
        .collect()
}

fn newest_between(list: &Value, args: &Why, e: &Explanation) -> Option<Value> {
    let concerns = |error: &&Value, field: &str, names: &[&str]| {
        let text = error.get(field).and_then(Value::as_str).unwrap_or_default();
        names.contains(&text) || names.iter().any(|n| text.ends_with(&format!("/{n}")))
    };
    let mut to: Vec<&str> = e
        .destination_identities
        .iter()
        .map(String::as_str)
        .collect();
    to.push(&args.to);
    let places = e.destinations.iter();
    to.extend(places.filter_map(|place| Some(place.rsplit_once(':')?.0)));
    let from = [e.source_identity.as_str(), &args.from];
    // Outside the mesh nobody has an identity: the text says where it was to go.
    let outside = |error: &&Value| {
        let text = error.get("detail").and_then(Value::as_str);
        e.destination_identities.is_empty() && text.is_some_and(|t| t.contains(&args.to))
    };
    let towards = |error: &&Value| concerns(error, "destination", &to) || outside(error);
    list.as_array()?
        .iter()
        .filter(|error| concerns(error, "source", &from) && towards(error))
        .max_by(|a, b| time(a).total_cmp(&time(b)))
        .cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn method_and_path_are_told_apart() {
        for (words, method, path) in [
            (&[][..], "GET", ""),
            (&["/x"], "GET", "/x"),
            (&["POST"], "POST", ""),
            (&["PUT", "/x"], "PUT", "/x"),
        ] {
            let args = Why::new("a", "b", words);
            assert_eq!((args.method(), args.path()), (method, path));
        }
    }

    #[test]
    fn the_later_failure_counts_unless_it_is_the_same() {
        let error = |time: f64, path: &str| serde_json::json!({ "time": time, "path": path });
        assert!(!is_later(&error(1.5, "/a"), &error(1.0, "/a")));
        assert!(is_later(&error(2.5, "/a"), &error(1.0, "/a")));
        assert!(is_later(&error(1.1, "/b"), &error(1.0, "/a")));
        assert!(!is_later(&error(0.9, "/b"), &error(1.0, "/a")));
    }

    #[test]
    fn only_what_is_unusual_is_said() {
        let port = serde_json::json!({
            "breaker": "open",
            "endpoints": [
                { "address": "10.0.0.1:1", "state": "ready", "ejectedForMs": 0 },
                { "address": "10.0.0.2:1", "state": "ejected", "ejectedForMs": 9500 },
            ],
        });
        assert_eq!(
            unusual("ratings", &port),
            [
                "circuit of ratings is open",
                "endpoint 10.0.0.2:1 of ratings is ejected for 9s more"
            ]
        );
        assert!(unusual("ratings", &serde_json::json!({ "breaker": null })).is_empty());
    }

    #[test]
    fn backends_of_a_split_are_asked_too() {
        let args = Why::new("client", "shop", &[]);
        let explanation = Explanation {
            destinations: vec!["shop:80".into(), "next:80".into()],
            ..Explanation::default()
        };
        assert_eq!(called(&args, &explanation), ["shop", "next"]);
        let denied = serde_json::json!([{
            "time": 1.5, "source": "spiffe://t/svc/client", "destination": "spiffe://t/svc/next",
            "reason": "denied",
        }]);
        let told = Told {
            to_errors: vec![("shop".into(), Vec::new()), ("next".into(), vec![denied])],
            ..Told::default()
        };
        let last = last_error(&told, &args, &explanation).unwrap();
        assert_eq!(
            (last.told_by.as_str(), &last.error["reason"]),
            ("next", &"denied".into())
        );
    }

    #[test]
    fn only_errors_between_the_two_count_and_the_newest_is_told() {
        let args = Why::new("gateway", "ratings", &[]);
        let explanation = Explanation {
            source_identity: "spiffe://t/svc/gateway".into(),
            destination_identities: vec!["spiffe://t/svc/ratings".into()],
            ..Explanation::default()
        };
        let list = serde_json::json!([
            {"time": 1.5, "source": "spiffe://t/svc/gateway", "destination": "ratings", "reason": "old"},
            {"time": 9.5, "source": "spiffe://t/svc/other", "destination": "ratings", "reason": "other"},
            {"time": 2.5, "source": "spiffe://t/svc/gateway", "destination": "spiffe://t/svc/ratings", "reason": "denied"},
        ]);
        let newest = newest_between(&list, &args, &explanation).unwrap();
        assert_eq!(newest["reason"], "denied");
        assert!(in_words(&newest).starts_with("denied, "));
        assert!(newest_between(&serde_json::json!("odd"), &args, &explanation).is_none());
    }
}

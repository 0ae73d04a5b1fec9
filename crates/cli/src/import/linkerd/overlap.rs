//! Requests that two HTTPRoutes of a Server match. Linkerd judges a request by the policies of the route that matches it
//! best; here a policy about any route that matches it is enough. So it is asked which one is the better match, and where
//! that is not certain the answer is: not this one.

use serde_json::{Map, Value};
use std::cmp::Ordering;
use tulle_model::pattern;

/// The conditions of a match, as a rule of ours has them in `to`.
type Request = Map<String, Value>;

/// Whether the other one may be the better match of a request that both match.
pub(super) fn may_lose(one: &Request, other: &Request) -> bool {
    may_meet(one, other) && order(one, other) != Some(Ordering::Greater)
}

/// Type and value of the path.
fn path(request: &Request) -> (&str, &str) {
    let path = request.get("paths").and_then(|paths| paths.get(0));
    let field = |name: &str| path.and_then(|path| path.get(name)?.as_str());
    (
        field("type").unwrap_or("PathPrefix"),
        field("value").unwrap_or("/"),
    )
}

fn items<'r>(request: &'r Request, name: &str) -> Vec<&'r Value> {
    let items = request.get(name).and_then(Value::as_array);
    items.into_iter().flatten().collect()
}

fn hosts(request: &Request) -> Vec<String> {
    let hosts = items(request, "hosts").into_iter();
    hosts
        .filter_map(|host| host.as_str().map(str::to_lowercase))
        .collect()
}

/// Whether a path is, or is below, a prefix: it goes by elements.
fn is_below(path: &str, prefix: &str) -> bool {
    let rest = path.strip_prefix(prefix.trim_end_matches('/'));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether some request could match both, as far as hosts, paths and methods say.
fn may_meet(one: &Request, other: &Request) -> bool {
    let (methods, others) = (items(one, "methods"), items(other, "methods"));
    if !methods.is_empty() && !others.is_empty() && !methods.iter().any(|m| others.contains(m)) {
        return false;
    }
    let (names, others) = (hosts(one), hosts(other));
    let is_host = |name: &String| others.iter().any(|other| may_be_both(name, other));
    if !names.is_empty() && !others.is_empty() && !names.iter().any(is_host) {
        return false;
    }
    match (path(one), path(other)) {
        (("Exact", one), ("Exact", other)) => one == other,
        (("Exact", exact), ("PathPrefix", prefix)) | (("PathPrefix", prefix), ("Exact", exact)) => {
            is_below(exact, prefix)
        }
        (("PathPrefix", one), ("PathPrefix", other)) => {
            is_below(one, other) || is_below(other, one)
        }
        (("RegularExpression", regex), ("Exact", exact))
        | (("Exact", exact), ("RegularExpression", regex)) => match pattern::compile(regex) {
            Ok(regex) => regex.is_match(exact.as_bytes()),
            Err(_) => true,
        },
        _ => true,
    }
}

/// Whether a host could be both; `*` is for the first labels.
fn may_be_both(one: &str, other: &str) -> bool {
    match (one.strip_prefix('*'), other.strip_prefix('*')) {
        (Some(one), Some(other)) => one.ends_with(other) || other.ends_with(one),
        (Some(end), None) => other.ends_with(end),
        (None, Some(end)) => one.ends_with(end),
        (None, None) => one == other,
    }
}

/// How two that meet compare, as Gateway API says it. None: it does not say.
fn order(one: &Request, other: &Request) -> Option<Ordering> {
    let by_host = match (hosts(one), hosts(other)) {
        (one, other) if one == other => Ordering::Equal,
        (one, other) if other.is_empty() && !one.is_empty() => Ordering::Greater,
        _ => return None,
    };
    let by_path = match (path(one), path(other)) {
        (("Exact", _), ("Exact", _)) => Ordering::Equal,
        (("Exact", _), _) => Ordering::Greater,
        (_, ("Exact", _)) => Ordering::Less,
        (("PathPrefix", one), ("PathPrefix", other)) => {
            let length = |prefix: &str| prefix.trim_end_matches('/').len();
            length(one).cmp(&length(other))
        }
        (one, other) if one == other => Ordering::Equal,
        _ if by_host == Ordering::Equal => return None,
        _ => Ordering::Equal,
    };
    let count = |request: &Request, name: &str| items(request, name).len();
    let by = |name: &str| count(one, name).cmp(&count(other, name));
    Some(
        by_host
            .then(by_path)
            .then_with(|| by("methods"))
            .then_with(|| by("headers")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn request(kind: &str, path: &str, more: &Value) -> Request {
        let mut request = Map::new();
        let paths = json!([{ "type": kind, "value": path }]);
        request.insert("paths".into(), paths);
        request.extend(more.as_object().unwrap().clone());
        request
    }

    #[test]
    fn the_better_match_is_known_or_nobody_wins() {
        let prefix = |path: &str| request("PathPrefix", path, &json!({}));
        let exact = |path: &str| request("Exact", path, &json!({}));
        let regex = |path: &str| request("RegularExpression", path, &json!({}));
        let get = |path: &str| request("PathPrefix", path, &json!({ "methods": ["GET"] }));
        let post = |path: &str| request("PathPrefix", path, &json!({ "methods": ["POST"] }));
        let host = |host: &str| request("PathPrefix", "/", &json!({ "hosts": [host] }));
        // Each pair: whether the first may lose to the second, and the other way round.
        for (one, other, loses, wins) in [
            (prefix("/"), prefix("/admin"), true, false),
            (prefix("/a"), prefix("/ab"), false, false),
            (prefix("/a/"), prefix("/a"), true, true),
            (exact("/a/b"), prefix("/a"), false, true),
            (exact("/ab"), prefix("/a"), false, false),
            (exact("/a"), exact("/b"), false, false),
            (regex("/a/[0-9]+"), exact("/a/7"), true, false),
            (regex("/a/[0-9]+"), exact("/ping"), false, false),
            (regex("/a/.*"), prefix("/a"), true, true),
            (get("/a"), prefix("/a"), false, true),
            (get("/a"), post("/a"), false, false),
            (get("/"), post("/a"), false, false),
            (host("a.example"), prefix("/"), false, true),
            (host("a.example"), host("b.example"), false, false),
            (host("*.example"), host("A.example"), true, true),
        ] {
            let found = (may_lose(&one, &other), may_lose(&other, &one));
            assert_eq!(found, (loses, wins), "{one:?} {other:?}");
        }
    }
}

//! Whether a rule that denies covers every request that another allows. It answers yes only where that is certain.

use super::statement::Requests;
use tulle_model::resource::{PathMatch, PolicyMatch};

/// Whether no request can be among those of the match and those of the statement.
pub(super) fn is_apart(allowed: &PolicyMatch, requests: &Requests) -> bool {
    let methods = methods(allowed);
    let apart = |methods: &[String]| !methods.iter().any(|m| requests.methods.contains(m));
    if !requests.methods.is_empty() && methods.is_some_and(apart) {
        return true;
    }
    let Some(path) = &requests.path else {
        return false;
    };
    match &allowed.path {
        Some(PathMatch::Exact(exact)) => !is_below(exact, path),
        Some(PathMatch::Prefix(prefix)) => !is_below(prefix, path) && !is_below(path, prefix),
        Some(PathMatch::Regex(_)) | None => false,
    }
}

/// Whether every request that matches `allowed`, and is among those of the statement, also matches `denied`.
pub(super) fn covers(denied: &PolicyMatch, allowed: &PolicyMatch, requests: &Requests) -> bool {
    covers_methods(denied, allowed, requests)
        && (denied.hosts.is_empty()
            || !allowed.hosts.is_empty()
                && allowed.hosts.iter().all(|host| denied.hosts.contains(host)))
        && denied
            .headers
            .iter()
            .all(|(name, value)| allowed.headers.get(name) == Some(value))
        && denied
            .header_matches
            .iter()
            .all(|header| allowed.header_matches.contains(header))
        && denied
            .when
            .iter()
            .all(|condition| allowed.when.contains(condition))
        && (denied.path_regex.is_empty() || denied.path_regex == allowed.path_regex)
        && denied.path.as_ref().is_none_or(|denied| {
            let requested = requests.path.clone().map(PathMatch::Prefix);
            let paths = allowed.path.iter().chain(&requested);
            { paths }.any(|path| covers_path(denied, path))
        })
}

/// The methods of a match; none: all.
pub(super) fn methods(of_match: &PolicyMatch) -> Option<&[String]> {
    let all = of_match.methods.is_empty() || of_match.methods.iter().any(|m| m == "*");
    (!all).then_some(&of_match.methods)
}

fn covers_methods(denied: &PolicyMatch, allowed: &PolicyMatch, requests: &Requests) -> bool {
    let Some(denied) = methods(denied) else {
        return true;
    };
    let within = |methods: &[String]| methods.iter().all(|m| denied.contains(m));
    let requested = Some(requests.methods.as_slice()).filter(|methods| !methods.is_empty());
    methods(allowed).is_some_and(within) || requested.is_some_and(within)
}

fn covers_path(denied: &PathMatch, path: &PathMatch) -> bool {
    match (denied, path) {
        (PathMatch::Prefix(denied), PathMatch::Prefix(path) | PathMatch::Exact(path)) => {
            is_below(path, denied)
        }
        (PathMatch::Exact(denied), PathMatch::Exact(path)) => denied == path,
        (PathMatch::Regex(denied), PathMatch::Regex(path)) => denied == path,
        _ => false,
    }
}

/// Whether a path is this one, or below it.
pub(crate) fn is_below(path: &str, prefix: &str) -> bool {
    let prefix = prefix.trim_end_matches('/');
    let rest = path.strip_prefix(prefix);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tulle_model::resource::HeaderMatch;

    fn of_path(path: PathMatch) -> PolicyMatch {
        PolicyMatch {
            path: Some(path),
            ..PolicyMatch::default()
        }
    }

    fn of_methods(methods: &[&str]) -> PolicyMatch {
        PolicyMatch {
            methods: methods.iter().map(ToString::to_string).collect(),
            ..PolicyMatch::default()
        }
    }

    #[test]
    fn a_wider_match_covers_a_narrower_one() {
        let prefix = |path: &str| of_path(PathMatch::Prefix(path.into()));
        let exact = |path: &str| of_path(PathMatch::Exact(path.into()));
        let all = Requests::default();
        let any = PolicyMatch::default();
        for (denied, allowed, covered) in [
            (&any, &prefix("/a"), true),
            (&prefix("/a"), &any, false),
            (&prefix("/a"), &prefix("/a/b"), true),
            (&prefix("/a/"), &exact("/a"), true),
            (&prefix("/a"), &prefix("/ab"), false),
            (&exact("/a"), &prefix("/a"), false),
            (&of_methods(&["GET"]), &any, false),
            (&of_methods(&["GET", "PUT"]), &of_methods(&["PUT"]), true),
            (&of_methods(&["*"]), &any, true),
        ] {
            assert_eq!(
                covers(denied, allowed, &all),
                covered,
                "{denied:?} {allowed:?}"
            );
        }
        let header = PolicyMatch {
            header_matches: vec![HeaderMatch {
                name: "x".into(),
                value: "1".into(),
                regex: false,
            }],
            ..PolicyMatch::default()
        };
        assert!(!covers(&header, &any, &all));
        assert!(covers(&header, &header, &all));
        assert!(covers(&any, &header, &all));
    }

    #[test]
    fn the_statement_narrows_what_is_allowed() {
        let any = PolicyMatch::default();
        let requests = Requests {
            methods: vec!["DELETE".into()],
            path: Some("/admin".into()),
        };
        let admin = of_path(PathMatch::Prefix("/admin".into()));
        assert!(covers(&admin, &any, &requests));
        assert!(covers(&of_methods(&["DELETE"]), &any, &requests));
        assert!(is_apart(&of_methods(&["GET"]), &requests));
        assert!(is_apart(
            &of_path(PathMatch::Prefix("/public".into())),
            &requests
        ));
        assert!(!is_apart(
            &of_path(PathMatch::Prefix("/".into())),
            &requests
        ));
        assert!(!is_apart(
            &of_path(PathMatch::Exact("/admin/x".into())),
            &requests
        ));
    }
}

//! Routes whose filters restrict requests by path, and the letter case of these paths.

use super::super::{HttpFilterSpec, HttpPathMatch, HttpRouteRule, HttpRouteSpec, RouteFilter};

impl HttpFilterSpec {
    /// Whether there is nothing that it does to requests.
    pub(in crate::manifest) fn is_bare(&self) -> bool {
        let conditions = Self {
            match_when: self.match_when.clone(),
            when: self.when.clone(),
            ..Self::default()
        };
        *self == conditions
    }

    /// Whether it refuses requests: without a token, by another service's answer, or beyond a limit.
    pub fn restricts(&self) -> bool {
        self.jwt.is_some() || self.external_auth.is_some() || self.rate_limit.is_some()
    }
}

impl HttpRouteSpec {
    /// Lists the rules whose filters restrict a path as it is written, where another rule without such a
    /// filter takes the path in other letter cases: the rule's number and the path. `restricts` tells
    /// whether the HTTPFilter of a name is one that restricts.
    pub fn restricted_in_one_case(&self, restricts: impl Fn(&str) -> bool) -> Vec<(usize, &str)> {
        let is_guarded = |rule: &HttpRouteRule| {
            let references = rule.filters.iter().filter_map(RouteFilter::http_filter);
            references.into_iter().any(|r| restricts(&r.name))
        };
        let mut found = Vec::new();
        for (number, rule) in self.rules.iter().enumerate() {
            if !is_guarded(rule) {
                continue;
            }
            let paths = rule.matches.iter().filter_map(|m| m.path.as_ref());
            let mut paths = paths.filter_map(HttpPathMatch::with_letters);
            let passes = |path: &&str| {
                let mut others = self.rules.iter();
                others.any(|other| !is_guarded(other) && other.takes_other_case(path))
            };
            found.extend(paths.find(passes).map(|path| (number, path)));
        }
        found
    }
}

impl HttpRouteRule {
    /// Whether it takes requests for a path whose letters have another case.
    fn takes_other_case(&self, path: &str) -> bool {
        let takes = |path_match: Option<&HttpPathMatch>| {
            let Some(path_match) = path_match else {
                return true;
            };
            let value = path_match.value.as_deref().unwrap_or("/");
            match path_match.kind.as_deref() {
                Some("Exact") => false,
                // Paths that an expression matches are not compared.
                Some("RegularExpression") => true,
                // The letters that may have another case are in the rest.
                _ => path
                    .strip_prefix(value.trim_end_matches('/'))
                    .is_some_and(|rest| {
                        rest.starts_with('/') && rest.chars().any(char::is_alphabetic)
                    }),
            }
        };
        self.matches.is_empty() || self.matches.iter().any(|m| takes(m.path.as_ref()))
    }
}

//! Rules of routes to rules of proxies.

use super::super::{
    BackendRef, GrpcMethodMatch, GrpcRouteMatch, GrpcRouteRule, HttpHeaderMatch,
    HttpRouteGroupMatch, HttpRouteMatch, HttpRouteRule, RouteFilter, TcpRouteRule,
};
use super::{FilterRefs, filters_of, ms_or_0, ms_or_none};
use crate::resource::{Backend, HeaderMatch, PathMatch, RouteMatch, RouteRule, Target};

impl HttpRouteRule {
    /// `None` when the rule has matches and none of them is understood: without them it would
    /// match every request.
    pub fn rule(&self, refs: &dyn FilterRefs) -> Option<RouteRule> {
        let matches: Vec<RouteMatch> = self.matches.iter().filter_map(route_match).collect();
        if matches.is_empty() && !self.matches.is_empty() {
            return None;
        }
        let matches = with_conditions(matches, &self.filters, refs);
        let timeouts = self.timeouts.clone().unwrap_or_default();
        let affinity = self.session_persistence.as_ref();
        Some(RouteRule {
            name: self.name.clone().unwrap_or_default(),
            matches,
            backends: backends(&self.backend_refs, refs),
            request_timeout_ms: ms_or_none(timeouts.request.as_ref()),
            try_timeout_ms: ms_or_0(timeouts.backend_request.as_ref()),
            filters: filters_of(&self.filters, refs),
            retry: self.retry.as_ref().map(|r| Box::new(r.retry())),
            affinity: affinity.map(|s| Box::new(s.affinity())),
            policy: None,
        })
    }
}

fn backends(given: &[BackendRef], refs: &dyn FilterRefs) -> Vec<Backend> {
    let backend = |backend: &BackendRef| Backend {
        service: backend.name.clone(),
        port: backend.port,
        weight: backend.weight.unwrap_or(1),
        filters: filters_of(&backend.filters, refs),
    };
    given.iter().map(backend).collect()
}

/// Adds the conditions of HTTPFilters, which the rule's requests must meet beside its matches.
fn with_conditions(
    mut matches: Vec<RouteMatch>,
    filters: &[RouteFilter],
    refs: &dyn FilterRefs,
) -> Vec<RouteMatch> {
    let named = filters.iter().filter_map(RouteFilter::http_filter);
    let conditions = named.filter_map(|r| refs.condition(&r.name));
    for condition in conditions {
        if matches.is_empty() {
            matches.push(RouteMatch::default());
        }
        matches
            .iter_mut()
            .for_each(|m| m.when.push(condition.clone()));
    }
    matches
}

fn headers(given: &[HttpHeaderMatch]) -> Option<Vec<HeaderMatch>> {
    given.iter().map(HttpHeaderMatch::header).collect()
}

fn route_match(m: &HttpRouteMatch) -> Option<RouteMatch> {
    let query: Option<Vec<HeaderMatch>> = m.query_params.iter().map(|q| q.parameter()).collect();
    Some(RouteMatch {
        path: match &m.path {
            Some(path) => path.path()?,
            None => PathMatch::default(),
        },
        headers: headers(&m.headers)?,
        query: query?,
        method: m.method.clone().unwrap_or_default(),
        when: Vec::new(),
    })
}

impl GrpcRouteRule {
    /// Builds the rule like [`HttpRouteRule::rule`]: a call is `POST /service/method`.
    pub fn rule(&self, refs: &dyn FilterRefs) -> Option<RouteRule> {
        let matches: Vec<RouteMatch> = self.matches.iter().filter_map(grpc_match).collect();
        if matches.is_empty() && !self.matches.is_empty() {
            return None;
        }
        let matches = with_conditions(matches, &self.filters, refs);
        let affinity = self.session_persistence.as_ref();
        Some(RouteRule {
            name: self.name.clone().unwrap_or_default(),
            matches,
            backends: backends(&self.backend_refs, refs),
            filters: filters_of(&self.filters, refs),
            affinity: affinity.map(|s| Box::new(s.affinity())),
            ..Default::default()
        })
    }
}

fn grpc_match(m: &GrpcRouteMatch) -> Option<RouteMatch> {
    Some(RouteMatch {
        path: match &m.method {
            Some(method) => grpc_path(method)?,
            None => PathMatch::default(),
        },
        headers: headers(&m.headers)?,
        method: "POST".into(),
        ..Default::default()
    })
}

fn grpc_path(m: &GrpcMethodMatch) -> Option<PathMatch> {
    let any = "[^/]+";
    let (service, method) = (m.service.as_deref(), m.method.as_deref());
    match m.kind.as_deref() {
        None | Some("Exact") => Some(match (service, method) {
            (Some(service), Some(method)) => PathMatch::Exact(format!("/{service}/{method}")),
            (Some(service), None) => PathMatch::Prefix(format!("/{service}")),
            // Names of gRPC have no character that means something in an expression but the dot.
            (None, Some(method)) => {
                PathMatch::Regex(format!("/{any}/{}", method.replace('.', "\\.")))
            }
            (None, None) => PathMatch::default(),
        }),
        Some("RegularExpression") => Some(PathMatch::Regex(format!(
            "/(?:{})/(?:{})",
            service.unwrap_or(any),
            method.unwrap_or(any)
        ))),
        Some(_) => None,
    }
}

impl TcpRouteRule {
    /// Where connections go.
    pub fn targets(&self) -> Vec<Target> {
        let target = |backend: &BackendRef| Target {
            service: backend.name.clone(),
            port: backend.port,
            weight: backend.weight.unwrap_or(1),
        };
        self.backend_refs.iter().map(target).collect()
    }
}

impl HttpRouteGroupMatch {
    /// The kind of request as conditions of a route: one for each method.
    pub fn route_matches(&self) -> Vec<RouteMatch> {
        let header = |(name, value): (&String, &String)| HeaderMatch {
            name: name.to_ascii_lowercase(),
            value: value.clone(),
            regex: true,
        };
        let one = |method: &str| RouteMatch {
            path: match &self.path_regex {
                Some(pattern) => PathMatch::Regex(pattern.clone()),
                None => PathMatch::default(),
            },
            headers: self.headers.iter().map(header).collect(),
            method: method.to_owned(),
            ..Default::default()
        };
        if self.methods.is_empty() || self.methods.iter().any(|m| m == "*") {
            return vec![one("")];
        }
        self.methods.iter().map(|m| one(m)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn method(kind: &str, service: &str, method: &str) -> PathMatch {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        grpc_path(&GrpcMethodMatch {
            kind: some(kind),
            service: some(service),
            method: some(method),
        })
        .unwrap()
    }

    #[test]
    fn calls_of_grpc_are_paths() {
        assert_eq!(
            method("", "shop.Cart", "Add"),
            PathMatch::Exact("/shop.Cart/Add".into())
        );
        assert_eq!(
            method("Exact", "shop.Cart", ""),
            PathMatch::Prefix("/shop.Cart".into())
        );
        assert_eq!(method("", "", "Add"), PathMatch::Regex("/[^/]+/Add".into()));
        assert_eq!(
            method("RegularExpression", "a|b", ""),
            PathMatch::Regex("/(?:a|b)/(?:[^/]+)".into())
        );
    }

    #[test]
    fn a_group_gives_a_condition_for_each_method() {
        let mut group = HttpRouteGroupMatch {
            methods: vec!["GET".into(), "HEAD".into()],
            path_regex: Some("/x".into()),
            ..Default::default()
        };
        let methods = |g: &HttpRouteGroupMatch| -> Vec<String> {
            g.route_matches().into_iter().map(|m| m.method).collect()
        };
        assert_eq!(methods(&group), ["GET", "HEAD"]);
        group.methods = vec!["*".into()];
        assert_eq!(methods(&group), [""]);
    }
}

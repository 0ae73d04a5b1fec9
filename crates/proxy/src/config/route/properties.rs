//! Compares the order of matches with a model: all that match, then Gateway API's rules one by one.

use super::{Entrance, Request, RouteTable};
use proptest::prelude::*;
use tulle_model::resource::{Backend, HeaderMatch, PathMatch, Route, RouteMatch, RouteRule};

const HOSTS: [&str; 4] = ["", "*.example.com", "*.b.example.com", "a.b.example.com"];
const PATHS: [&str; 6] = ["/", "/a", "/a/b", "/ab", "/a/b/", "/a/b/c/d"];
const REGEXES: [&str; 3] = ["/a", "/a/.*", ".*c"];
const METHODS: [&str; 3] = ["", "GET", "POST"];

fn condition(names: &'static [&'static str]) -> impl Strategy<Value = Vec<HeaderMatch>> {
    let one = (0..names.len(), 0..2u8).prop_map(|(name, value)| HeaderMatch {
        name: names[name].into(),
        value: value.to_string(),
        regex: false,
    });
    proptest::collection::vec(one, 0..3)
}

fn a_match() -> impl Strategy<Value = RouteMatch> {
    let path = prop_oneof![
        2 => prop::sample::select(&PATHS[..]).prop_map(|p| PathMatch::Exact(p.into())),
        3 => prop::sample::select(&PATHS[..]).prop_map(|p| PathMatch::Prefix(p.into())),
        1 => prop::sample::select(&REGEXES[..]).prop_map(|p| PathMatch::Regex(p.into())),
    ];
    let method = (0..METHODS.len()).prop_map(|m| METHODS[m].to_owned());
    (
        path,
        method,
        condition(&["x-a", "x-b"]),
        condition(&["q", "r"]),
    )
        .prop_map(|(path, method, headers, query)| RouteMatch {
            path,
            headers,
            query,
            method,
            when: Vec::new(),
        })
}

fn routes() -> impl Strategy<Value = Vec<Route>> {
    let rule = proptest::collection::vec(a_match(), 0..3);
    let route = (
        proptest::collection::vec(0..HOSTS.len(), 0..3),
        proptest::collection::vec(rule, 1..4),
        0..2u16,
    );
    proptest::collection::vec(route, 1..4).prop_map(|routes| {
        let routes = routes.into_iter().enumerate();
        let route = |(index, (hosts, rules, port)): (usize, (Vec<usize>, Vec<_>, u16))| Route {
            name: format!("r{index}"),
            hostnames: hosts.into_iter().map(|h| HOSTS[h].to_owned()).collect(),
            rules: rules
                .into_iter()
                .enumerate()
                .map(|(rule, matches)| RouteRule {
                    matches,
                    backends: vec![Backend {
                        service: format!("r{index}-{rule}"),
                        port: 80,
                        weight: 1,
                        filters: vec![],
                    }],
                    ..Default::default()
                })
                .collect(),
            port: port * 8080,
            listener: String::new(),
            clients: String::new(),
        };
        routes.map(route).collect()
    })
}

/// A request as words.
#[derive(Debug, Clone)]
struct Asked {
    host: &'static str,
    path: &'static str,
    method: &'static str,
    headers: Vec<(&'static str, u8)>,
    query: Vec<(&'static str, u8)>,
    port: u16,
}

fn asked() -> impl Strategy<Value = Asked> {
    let fields = |names: &'static [&'static str]| {
        let one = (0..names.len(), 0..2u8).prop_map(|(n, v)| (names[n], v));
        proptest::collection::vec(one, 0..3)
    };
    (
        prop::sample::select(&["x", "y.example.com", "c.b.example.com", "A.b.Example.com"][..]),
        prop::sample::select(
            &[
                "/",
                "/a",
                "/a/",
                "/a/b",
                "/a/b/c",
                "/a/b/c/d/e",
                "/ab",
                "/abc",
            ][..],
        ),
        prop::sample::select(&["GET", "POST", "PUT"][..]),
        fields(&["x-a", "x-b"]),
        fields(&["q", "r"]),
        prop::sample::select(&[80u16, 8080][..]),
    )
        .prop_map(|(host, path, method, headers, query, port)| Asked {
            host,
            path,
            method,
            headers,
            query,
            port,
        })
}

/// The model: whether a request matches, in plain code.
fn fits(host: &str, m: &RouteMatch, asked: &Asked) -> bool {
    let own = asked.host.to_ascii_lowercase();
    let host_fits = match host.strip_prefix('*') {
        _ if host.is_empty() => true,
        Some(suffix) => own.len() > suffix.len() && own.ends_with(suffix),
        None => own == host,
    };
    let elements = |path: &str| -> Vec<String> {
        let path = path.trim_end_matches('/');
        path.split('/').map(ToOwned::to_owned).collect()
    };
    let path_fits = match &m.path {
        PathMatch::Exact(path) => asked.path == path,
        PathMatch::Prefix(path) => elements(asked.path).starts_with(&elements(path)),
        PathMatch::Regex(regex) => match regex.as_str() {
            "/a" => asked.path == "/a",
            "/a/.*" => asked.path.starts_with("/a/"),
            ".*c" => asked.path.ends_with('c'),
            other => unreachable!("{other}"),
        },
    };
    let header_fits = |h: &HeaderMatch| {
        let mut values = asked.headers.iter().filter(|(n, _)| *n == h.name);
        let all = values.clone().all(|(_, v)| v.to_string() == h.value);
        values.next().is_some() && all
    };
    let query_fits = |q: &HeaderMatch| {
        let first = asked.query.iter().find(|(n, _)| *n == q.name);
        first.is_some_and(|(_, v)| v.to_string() == q.value)
    };
    host_fits
        && path_fits
        && (m.method.is_empty() || m.method == asked.method)
        && m.headers.iter().all(header_fits)
        && m.query.iter().all(query_fits)
}

/// The model: the best match; among equals the first.
fn expected(routes: &[Route], asked: &Asked) -> Option<String> {
    let mut best = None;
    for route in routes {
        if route.port != 0 && route.port != asked.port {
            continue;
        }
        for rule in &route.rules {
            let any = vec![RouteMatch::default()];
            let matches = if rule.matches.is_empty() {
                &any
            } else {
                &rule.matches
            };
            let everywhere = vec![String::new()];
            let hosts = if route.hostnames.is_empty() {
                &everywhere
            } else {
                &route.hostnames
            };
            for host in hosts {
                for m in matches.iter().filter(|m| fits(host, m, asked)) {
                    let (exact, length) = match &m.path {
                        PathMatch::Exact(path) => (true, path.len()),
                        PathMatch::Prefix(path) => (false, path.trim_end_matches('/').len()),
                        PathMatch::Regex(_) => (false, usize::MAX),
                    };
                    let precise = !host.is_empty() && !host.starts_with('*');
                    let rank = (
                        precise,
                        host.len(),
                        exact,
                        length,
                        !m.method.is_empty(),
                        m.headers.len(),
                        m.query.len(),
                    );
                    if best.as_ref().is_none_or(|(other, _)| rank > *other) {
                        best = Some((rank, rule.backends[0].service.clone()));
                    }
                }
            }
        }
    }
    best.map(|(_, service)| service)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..Default::default() })]

    #[test]
    fn the_table_finds_what_the_model_finds(routes in routes(), asked in asked()) {
        let table = RouteTable::compile(&routes).unwrap();
        let mut head = format!("{} {} HTTP/1.1\r\nHost: h\r\n", asked.method, asked.path);
        for (name, value) in &asked.headers {
            head.push_str(&format!("{}: {value}\r\n", name.to_ascii_uppercase()));
        }
        head.push_str("\r\n");
        let query: Vec<_> = asked.query.iter().map(|(n, v)| format!("{n}={v}")).collect();
        let target = format!("{}?{}", asked.path, query.join("&"));
        let request = Request {
            authority: asked.host.as_bytes(),
            path: asked.path.as_bytes(),
            target: target.as_bytes(),
            method: asked.method.as_bytes(),
            head: head.as_bytes(),
            parties: None,
        };
        let entrance = Entrance { port: asked.port, listener: "" };
        let found = table.find(entrance, &request).unwrap();
        let found = found.map(|f| f.rule.backends[0].service.clone());
        prop_assert_eq!(found, expected(&routes, &asked));
    }
}

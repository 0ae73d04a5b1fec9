//! Tests that no way to write a request slips past a denial or into a permission.

use super::*;
use resource::{HeaderMatch, PolicyMatch};

fn conditions(m: PolicyMatch) -> Conditions {
    Conditions::compile(&[m], tulle_model::condition::condition).unwrap()
}

fn get<'a>(path: &'a str, head: &'a [u8]) -> Request<'a> {
    Request::new(b"GET", path.as_bytes(), b"ratings:9080", head)
}

#[test]
fn a_path_pattern_matches_the_whole_path() {
    let conditions = conditions(PolicyMatch {
        methods: vec!["GET".into()],
        path_regex: "/ratings/[0-9a-f-]+".into(),
        headers: [("x-team".into(), "a|b".into())].into(),
        ..Default::default()
    });
    let head = b"GET /ratings/1 HTTP/1.1\r\nHost: r\r\nX-Team: a\r\n\r\n";
    let matches = |request: &Request<'_>| conditions.surely_match(request);
    assert!(matches(&get("/ratings/1", head)));
    assert!(!matches(&get("/x/ratings/1", head)));
    assert!(!matches(&get("/ratings/1/../../admin", head)));
    assert!(!matches(&Request {
        method: b"POST",
        ..get("/ratings/1", head)
    }));
    let alternation = b"GET /ratings/1 HTTP/1.1\r\nX-Team: bad\r\n\r\n";
    assert!(
        !matches(&get("/ratings/1", alternation)),
        "a|b is anchored as a whole"
    );
}

#[test]
fn several_fields_of_a_name_deceive_neither_kind_of_rule() {
    let conditions = conditions(PolicyMatch {
        header_matches: vec![HeaderMatch {
            name: "x-team".into(),
            value: "a".into(),
            regex: false,
        }],
        ..Default::default()
    });
    let ask = |fields: &str| {
        let head = format!("GET / HTTP/1.1\r\n{fields}\r\n");
        let request = get("/", head.as_bytes());
        (
            conditions.surely_match(&request),
            conditions.may_match(&request),
        )
    };
    assert_eq!(ask("X-Team: a\r\n"), (true, true));
    assert_eq!(ask("X-Team: a\r\nx-team: a\r\n"), (true, true));
    assert_eq!(ask("X-Team: a\r\nx-team: evil\r\n"), (false, true));
    assert_eq!(ask("x-team: evil\r\nx_team: a\r\n"), (false, true));
    assert_eq!(ask("x-team: evil\r\n"), (false, false));
    assert_eq!(ask(""), (false, false));
}

#[test]
fn an_encoded_path_is_read_both_ways() {
    let exact = conditions(PolicyMatch {
        path: Some(PathMatch::Exact("/v1/x:delete".into())),
        ..Default::default()
    });
    let encoded = get("/v1/x%3Adelete", b"");
    assert!(exact.may_match(&encoded) && !exact.surely_match(&encoded));
    let users = conditions(PolicyMatch {
        path_regex: "/users/[^/]+".into(),
        ..Default::default()
    });
    assert!(users.surely_match(&get("/users/a%40b", b"")));
}

#[test]
fn what_denies_covers_what_servers_take_for_the_same_path() {
    let by = |path: PathMatch| {
        conditions(PolicyMatch {
            path: Some(path),
            methods: vec!["GET".into()],
            ..Default::default()
        })
    };
    for rule in [
        by(PathMatch::Exact("/admin".into())),
        by(PathMatch::Exact("/admin/".into())),
        by(PathMatch::Regex("/adm[a-z]+".into())),
    ] {
        for path in ["/admin", "/admin/"] {
            assert!(rule.may_match(&get(path, b"")), "{path}");
            let lower = Request {
                method: b"get",
                ..get(path, b"")
            };
            assert!(
                rule.may_match(&lower) && !rule.surely_match(&lower),
                "{path}"
            );
        }
        for other in ["/admin/x", "/adm", "/", "/xadmin", "/ADMIN"] {
            assert!(!rule.may_match(&get(other, b"")), "{other}");
        }
    }
    let exact = by(PathMatch::Exact("/admin".into()));
    assert!(
        !exact.surely_match(&get("/admin/", b"")),
        "what allows is exact"
    );
    let any_case = by(PathMatch::Regex("(?i)/admin(/.*)?".into()));
    for path in ["/ADMIN", "/Admin/", "/admin/X"] {
        assert!(any_case.may_match(&get(path, b"")), "{path}");
    }
    let root = by(PathMatch::Exact("/".into()));
    assert!(root.may_match(&get("/", b"")) && !root.may_match(&get("/a/", b"")));
}

#[test]
fn letter_case_can_be_overlooked_by_what_denies() {
    let by = |path: PathMatch| {
        conditions(PolicyMatch {
            path: Some(path),
            ignore_case: true,
            ..Default::default()
        })
    };
    let exact = by(PathMatch::Exact("/Admin".into()));
    let prefix = by(PathMatch::Prefix("/admin/".into()));
    let regex = by(PathMatch::Regex("/Adm[a-z]n".into()));
    for rule in [&exact, &prefix, &regex] {
        for path in [
            "/Admin",
            "/ADMIN",
            "/admin",
            "/aDMIN/",
            "/adm%C4%B1n",
            "/ADM\u{130}N",
        ] {
            assert!(rule.may_match(&get(path, b"")), "{path}");
        }
        for other in ["/adm", "/", "/xadmin", "/admiin"] {
            assert!(!rule.may_match(&get(other, b"")), "{other}");
        }
    }
    assert!(prefix.may_match(&get("/ADMIN/x", b"")));
    assert!(!exact.may_match(&get("/ADMIN/x", b"")));
    assert!(
        exact.surely_match(&get("/Admin", b"")) && !exact.surely_match(&get("/admin", b"")),
        "what allows is exact"
    );
    assert!(
        exact.surely_demand(&get("/ADMIN", b"")) && prefix.surely_demand(&get("/Admin/x", b""))
    );
    assert!(
        !exact.surely_demand(&get("/admin/", b"")) && !exact.surely_demand(&get("/ADMIN/x", b"")),
        "what is demanded of a request must be sure"
    );
}

#[test]
fn prefixes_end_at_a_slash_and_hosts_at_their_port() {
    let conditions = conditions(PolicyMatch {
        path: Some(PathMatch::Prefix("/admin/".into())),
        hosts: vec!["ratings".into(), "*.example.com".into()],
        ..Default::default()
    });
    let ask = |path: &'static str, authority: &'static str| {
        conditions.surely_match(&Request {
            authority: authority.as_bytes(),
            ..get(path, b"")
        })
    };
    assert!(ask("/admin", "ratings") && ask("/admin/x", "RATINGS.:80"));
    assert!(ask("/admin", "a.example.com"));
    assert!(!ask("/admins", "ratings") && !ask("/admin", "ratings2"));
    assert!(!ask("/admin", "example.com"));
}

//! Tests which callers and requests a policy lets in, and what a refusal says.

use super::*;
use resource::{PolicyMatch, PolicyRule};

fn id(name: &str) -> SpiffeId {
    SpiffeId::parse(&format!("spiffe://tulle.local/svc/{name}")).unwrap()
}

fn policy(permissive: bool, rules: Vec<PolicyRule>) -> Policy {
    Policy::compile(&resource::Policy { permissive, rules }).unwrap()
}

fn judge(
    policy: &Policy,
    caller: &Caller<'_>,
    request: Option<&Request<'_>>,
) -> Result<(), Denial> {
    policy.caller_policy(caller).judge(request)
}

fn allow(source: &str) -> PolicyRule {
    PolicyRule {
        name: "TrafficTarget/t".into(),
        sources: vec![id(source)],
        ports: vec![8101],
        ..Default::default()
    }
}

fn caller(identity: &SpiffeId, port: u16) -> Caller<'_> {
    Caller {
        identity: Some(identity),
        address: Some([10, 0, 0, 1].into()),
        port,
        strict: true,
        by_identity: true,
    }
}

fn outside(address: [u8; 4], strict: bool) -> Caller<'static> {
    Caller {
        identity: None,
        address: Some(address.into()),
        port: 8101,
        strict,
        by_identity: true,
    }
}

fn get(path: &str) -> Request<'_> {
    let head = b"GET / HTTP/1.1\r\n\r\n";
    Request::new(b"GET", path.as_bytes(), b"ratings", head)
}

#[test]
fn a_tunnel_is_allowed_by_what_could_not_look_into_it_anyway() {
    let head = b"CONNECT db.example.com:5432 HTTP/1.1\r\n\r\n";
    let connect = Request::new(b"CONNECT", b"", b"db.example.com:5432", head);
    let by = |methods: &[&str], hosts: &[&str]| {
        let strings = |list: &[&str]| list.iter().map(|&s| s.to_owned()).collect();
        vec![PolicyMatch {
            methods: strings(methods),
            hosts: strings(hosts),
            ..Default::default()
        }]
    };
    let opens = |permissive, action, matches| {
        let conditioned = PolicyRule {
            action,
            matches,
            ..allow("gateway")
        };
        let mut rules = vec![conditioned];
        if action == Action::Deny {
            rules.push(allow("gateway"));
        }
        let policy = policy(permissive, rules);
        let id = id("gateway");
        let caller_policy = policy.caller_policy(&caller(&id, 8101));
        caller_policy.judge(Some(&connect)).is_ok() && caller_policy.judge_tunnel(&connect).is_ok()
    };
    let host = &["db.example.com"][..];
    for (action, methods, hosts, expected) in [
        (Action::Allow, &[][..], &[][..], false),
        (Action::Allow, &[], host, false),
        (Action::Allow, &["*"], host, false),
        (Action::Allow, &["GET"], &[], false),
        (Action::Allow, &["GET", "CONNECT"], host, true),
        (Action::Allow, &["CONNECT"], &["other.example.com"], false),
        (Action::Deny, &["GET"], &[], false),
        (Action::Deny, &[], &["other.example.com"], false),
        (
            Action::Deny,
            &["CONNECT", "GET"],
            &["other.example.com"],
            false,
        ),
        (Action::Deny, &["CONNECT"], &["other.example.com"], true),
        (Action::Deny, &["CONNECT"], host, false),
    ] {
        let opened = opens(false, action, by(methods, hosts));
        assert_eq!(opened, expected, "{action:?} {methods:?} {hosts:?}");
    }
    for action in [Action::Allow, Action::Deny] {
        let expected = action == Action::Allow;
        assert_eq!(opens(false, action, Vec::new()), expected);
        assert_eq!(opens(true, action, exact("/admin")), expected);
    }
}

fn exact(path: &str) -> Vec<PolicyMatch> {
    vec![PolicyMatch {
        path_regex: path.into(),
        ..Default::default()
    }]
}

#[test]
fn identity_is_compared_exactly() {
    let policy = policy(false, vec![allow("gateway")]);
    assert_eq!(judge(&policy, &caller(&id("gateway"), 8101), None), Ok(()));
    for name in ["gateway2", "gatewa", "Gateway", "gateway.x"] {
        let id = id(name);
        let refusal = judge(&policy, &caller(&id, 8101), None).unwrap_err();
        assert_eq!(refusal, Denial::NoRule, "{name}");
        assert_eq!(
            refusal.explain(&policy),
            "none of TrafficTarget/t allows it"
        );
    }
    assert!(judge(&policy, &outside([10, 0, 0, 1], false), None).is_err());
    assert_eq!(
        judge(&policy, &outside([10, 0, 0, 1], true), None),
        Err(Denial::Plaintext)
    );
    assert!(judge(&policy, &caller(&id("gateway"), 8102), None).is_err());
}

#[test]
fn a_rule_with_matches_allows_no_raw_tcp_and_one_that_denies_refuses_it() {
    let matches = exact("/a");
    let allows = policy(
        false,
        vec![PolicyRule {
            matches: matches.clone(),
            ..allow("gateway")
        }],
    );
    let gateway = id("gateway");
    let ask = caller(&gateway, 8101);
    assert_eq!(judge(&allows, &ask, Some(&get("/a"))), Ok(()));
    assert!(judge(&allows, &ask, None).is_err());
    let denies = policy(
        true,
        vec![PolicyRule {
            name: "AuthorizationPolicy/d".into(),
            action: Action::Deny,
            matches,
            ..Default::default()
        }],
    );
    assert_eq!(
        judge(&denies, &ask, None),
        Err(Denial::Rule("AuthorizationPolicy/d".into()))
    );
    assert!(judge(&denies, &ask, Some(&get("/a"))).is_err());
    assert_eq!(judge(&denies, &ask, Some(&get("/b"))), Ok(()));
}

#[test]
fn denials_come_first_also_where_anyone_may_call() {
    let deny = PolicyRule {
        name: "AuthorizationPolicy/d".into(),
        action: Action::Deny,
        ..allow("evil")
    };
    for permissive in [false, true] {
        let any = PolicyRule {
            name: "AuthorizationPolicy/a".into(),
            any_identity: true,
            ..Default::default()
        };
        let policy = policy(permissive, vec![any, deny.clone()]);
        assert_eq!(judge(&policy, &caller(&id("good"), 8101), None), Ok(()));
        assert_eq!(
            judge(&policy, &caller(&id("evil"), 8101), None),
            Err(Denial::Rule("AuthorizationPolicy/d".into()))
        );
        assert_eq!(judge(&policy, &caller(&id("evil"), 8102), None), Ok(()));
    }
}

#[test]
fn an_address_lets_in_without_a_certificate_and_nothing_else_does() {
    let rule = PolicyRule {
        name: "AccessControl/scraper".into(),
        networks: vec!["10.0.0.0/8".parse().unwrap()],
        ports: vec![8101],
        ..Default::default()
    };
    let any = PolicyRule {
        any_identity: true,
        ..Default::default()
    };
    for permissive in [false, true] {
        let policy = policy(permissive, vec![rule.clone(), any.clone()]);
        assert_eq!(judge(&policy, &outside([10, 1, 1, 1], true), None), Ok(()));
        assert_eq!(
            judge(&policy, &outside([11, 1, 1, 1], true), None),
            Err(Denial::Plaintext)
        );
        let unknown = Caller {
            address: None,
            ..outside([0; 4], true)
        };
        assert_eq!(judge(&policy, &unknown, None), Err(Denial::Plaintext));
        let other_port = Caller {
            port: 8102,
            ..outside([10, 1, 1, 1], true)
        };
        assert_eq!(judge(&policy, &other_port, None), Err(Denial::Plaintext));
    }
}

#[test]
fn rules_that_only_watch_change_nothing() {
    let gateway = id("gateway");
    let audits = |action| {
        let rule = PolicyRule {
            name: "AuthorizationPolicy/w".into(),
            action,
            ..allow("gateway")
        };
        policy(false, vec![rule])
    };
    for action in [Action::AuditAllow, Action::AuditDeny] {
        let policy = audits(action);
        let ask = caller(&gateway, 8101);
        assert_eq!(judge(&policy, &ask, None), Err(Denial::NoRule));
        let caller_policy = policy.caller_policy(&ask);
        let names: Vec<_> = caller_policy.audited(None).map(|n| &**n).collect();
        assert_eq!(names, ["AuthorizationPolicy/w"]);
    }
}

#[test]
fn a_path_of_two_meanings_is_refused_only_where_paths_matter() {
    let deny = PolicyRule {
        name: "AuthorizationPolicy/d".into(),
        action: Action::Deny,
        matches: exact("/admin"),
        ports: vec![8101],
        ..Default::default()
    };
    let policy = policy(true, vec![deny]);
    let gateway = id("gateway");
    for path in ["/x/../admin", "//admin", "/%61dmin", "/admin;x", "/a%2fb"] {
        assert_eq!(
            judge(&policy, &caller(&gateway, 8101), Some(&get(path))),
            Err(Denial::Path("AuthorizationPolicy/d".into())),
            "{path}"
        );
        let elsewhere = judge(&policy, &caller(&gateway, 8102), Some(&get(path)));
        assert_eq!(elsewhere, Ok(()), "{path}");
    }
}

#[test]
fn a_denial_is_not_escaped_by_what_servers_overlook() {
    let deny = PolicyRule {
        name: "AuthorizationPolicy/d".into(),
        action: Action::Deny,
        matches: exact("/admin"),
        ..Default::default()
    };
    let allow = PolicyRule {
        matches: exact("/admin"),
        ..allow("gateway")
    };
    let gateway = id("gateway");
    let denies = policy(true, vec![deny]);
    let allows = policy(false, vec![allow]);
    for path in ["/admin/", "/admin%20", "/admin%20/"] {
        for policy in [&denies, &allows] {
            let judged = judge(policy, &caller(&gateway, 8101), Some(&get(path)));
            assert!(judged.is_err(), "{path}");
        }
    }
    assert!(judge(&allows, &caller(&gateway, 8101), Some(&get("/admin"))).is_ok());
    assert!(judge(&denies, &caller(&gateway, 8101), Some(&get("/admins"))).is_ok());
}

#[test]
fn rules_of_one_object_are_told_apart() {
    let rule = |name: &str| PolicyRule {
        name: name.into(),
        action: Action::Deny,
        ..allow("a")
    };
    let names = names(&[rule("A/x"), rule("A/y"), rule("A/x")]);
    let names: Vec<_> = names.iter().map(|n| &**n).collect();
    assert_eq!(names, ["A/x rule 1", "A/y", "A/x rule 2"]);
}

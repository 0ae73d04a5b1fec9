//! The rule that a request takes, and its share of the backends.

use super::traffic::{made, virtual_service};
use super::*;

const TO: &str = "route: [{destination: {host: ratings}}]";

/// Rules of HTTP for ratings.
fn with_rules(rules: &str) -> String {
    virtual_service(&format!("{{hosts: [ratings], http: [{rules}]}}"))
}

/// Proxies try regular expressions before prefixes, all of them as equals, and conditions before none.
#[test]
fn a_later_rule_is_named_if_proxies_try_it_first() {
    let (long, short) = ("uri: {prefix: /api/internal}", "uri: {prefix: /a}");
    let regex = "uri: {regex: '/a.*'}";
    let any_case = "uri: {prefix: /a}, ignoreUriCase: true";
    let caller = "sourceNamespace: front";
    for (first, second, is_named) in [
        (long, regex, true),
        (regex, long, false),
        (long, any_case, true),
        (any_case, long, false),
        (regex, "uri: {regex: '/api/internal/.*'}", false),
        (regex, "uri: {exact: /api}", true),
        ("", caller, true),
        (caller, "", false),
        (long, caller, false),
        (short, "uri: {prefix: /a}, sourceNamespace: front", true),
        // Each condition more is a part of the same one.
        (
            caller,
            "sourceNamespace: front, withoutHeaders: {x: {}}",
            false,
        ),
        (short, "uri: {prefix: /a/}", false),
        ("", "uri: {prefix: /}", false),
    ] {
        let rule = |one: &str| match one {
            "" => format!("{{{TO}}}"),
            one => format!("{{match: [{{{one}}}], {TO}}}"),
        };
        let imported = imported(&with_rules(&format!("{}, {}", rule(first), rule(second))));
        let expected = [("VirtualService shop/v", "spec.http[1].match[0]")];
        let expected = &expected[..usize::from(is_named)];
        assert_eq!(lost(&imported), expected, "{first}; {second}");
    }
}

#[test]
fn an_authority_is_compared_without_its_case_and_port() {
    let with = |host: &str| with_rules(&format!("{{match: [{{authority: {{{host}}}}}], {TO}}}"));
    for (theirs, ours) in [
        ("exact: A.Example.com", r#"request.host == "a.example.com""#),
        ("prefix: Admin.", r#"request.host.startsWith("admin.")"#),
        (
            r"regex: 'Admin\.(?:a|b)'",
            r#"request.host.matches("^(?:(?i)Admin\\.(?:a|b))$")"#,
        ),
    ] {
        let made = made(&with(theirs));
        let filter = ("HTTPFilter v-1".to_owned(), json!({ "match": ours }));
        assert_eq!(made[1], filter, "{theirs}");
    }
    for theirs in [
        "exact: 'a.example.com:8080'",
        "exact: a.example.com.",
        "prefix: 'a.example.com:'",
        "regex: 'a.example.com:80(?:80)?'",
    ] {
        let imported = imported(&with(theirs));
        assert!(imported.objects.is_empty(), "{theirs}: {imported:?}");
        let expected = [("VirtualService shop/v", "spec.http[0].match[0].authority")];
        assert_eq!(lost(&imported), expected, "{theirs}");
    }
}

#[test]
fn a_destination_without_a_weight_gets_nothing_beside_others() {
    let subset = |name: &str| format!("destination: {{host: ratings, subset: {name}}}");
    let (one, other) = (subset("v1"), subset("v2"));
    let names = "match: [{sniHosts: [a.example]}]";
    for (field, names) in [("http", ""), ("tcp", ""), ("tls", names)] {
        let backends = |route: &str| {
            let rule = match names {
                "" => format!("{{route: [{route}]}}"),
                names => format!("{{{names}, route: [{route}]}}"),
            };
            let spec = format!("{{hosts: [ratings], {field}: [{rule}]}}");
            let made = made(&virtual_service(&spec));
            made[0].1["rules"][0]["backendRefs"].clone()
        };
        assert_eq!(
            backends(&format!("{{{one}, weight: 100}}, {{{other}}}")),
            json!([
                { "name": "ratings-v1", "port": 9080, "weight": 100 },
                { "name": "ratings-v2", "port": 9080, "weight": 0 },
            ]),
            "{field}"
        );
        // Alone it gets everything.
        for alone in [format!("{{{one}}}"), format!("{{{one}, weight: 0}}")] {
            let expected = json!([{ "name": "ratings-v1", "port": 9080 }]);
            assert_eq!(backends(&alone), expected, "{field}");
        }
    }
}

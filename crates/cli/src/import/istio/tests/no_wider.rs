//! A policy never lets in more than the object it was made from: one that would is not made, and its loss is named.

use super::*;

/// An object of Istio's security API after the Services.
fn security(kind: &str, namespace: &str, spec: &str) -> String {
    format!(
        "{SERVICES}apiVersion: security.istio.io/v1
kind: {kind}
metadata: {{name: p, namespace: {namespace}}}
spec: {spec}
"
    )
}

/// Namespace and name of each object that is made, and the Services that it is about.
fn about(imported: &Imported) -> Vec<(String, Vec<String>)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let one = |object: &Value| {
        let metadata = &object["metadata"];
        let refs = object["spec"]["targetRefs"].as_array().unwrap();
        (
            format!(
                "{}/{}",
                text(&metadata["namespace"]),
                text(&metadata["name"])
            ),
            refs.iter().map(|r| text(&r["name"])).collect(),
        )
    };
    imported.objects.iter().map(|m| one(&m.object)).collect()
}

#[test]
fn the_root_namespace_is_about_all_namespaces() {
    for (kind, body) in [
        ("AuthorizationPolicy", "action: DENY, rules: [{}]"),
        (
            "RequestAuthentication",
            "jwtRules: [{issuer: a, jwks: '{\"keys\": []}'}]",
        ),
    ] {
        let of = |selector: &str| {
            let spec = format!("{{{selector} {body}}}");
            imported(&security(kind, "istio-system", &spec))
        };
        let everywhere = of("");
        assert_eq!(everywhere.lost, []);
        let names = |all: &[&str]| all.iter().map(|&n| n.to_owned()).collect::<Vec<_>>();
        assert_eq!(
            about(&everywhere),
            [
                ("other/istio-system-p".to_owned(), names(&["reviews"])),
                (
                    "shop/istio-system-p".to_owned(),
                    names(&["reviews", "ratings"])
                ),
            ]
        );
        let notes = |made: &Made| made.notes.iter().any(|n| n.contains("later"));
        assert!(everywhere.objects.iter().all(notes));
        assert_eq!(
            about(&of("selector: {matchLabels: {app: ratings}},")),
            [("shop/istio-system-p".to_owned(), names(&["ratings"]))]
        );
        // References are to Services of the root namespace itself.
        let named = of("targetRefs: [{group: '', kind: Service, name: ratings}],");
        assert_eq!(named.lost.len(), 1);
        assert!(named.objects.is_empty());
    }
}

#[test]
fn path_templates_are_patterns_of_whole_paths() {
    let paths = |paths: &str| {
        let rule = format!("{{to: [{{operation: {{{paths}}}}}]}}");
        let spec = format!("{{action: DENY, rules: [{rule}]}}");
        imported(&security("AuthorizationPolicy", "shop", &spec))
    };
    let one = "[A-Za-z0-9._~%!$&'()+,;:@-]+";
    let any = "[A-Za-z0-9._~%!$&'()+,;:@/-]*";
    for (theirs, when) in [
        (
            "paths: ['/v1.0/{*}/admin']",
            format!(r#"request.path.matches("^/v1\\.0/{one}/admin$")"#),
        ),
        (
            "paths: [/a, '/b/*', '/c/{*}/{**}']",
            format!(
                r#"((request.path == "/a" || request.path.startsWith("/b/")) || request.path.matches("^/c/{one}/{any}$"))"#
            ),
        ),
        (
            "notPaths: ['/{**}/x-y']",
            format!(r#"!(request.path.matches("^/{any}/x\\-y$"))"#),
        ),
    ] {
        let imported = paths(theirs);
        assert_eq!(imported.lost, [], "{theirs}");
        let rules = &imported.objects[0].object["spec"]["rules"];
        assert_eq!(rules, &json!([{ "to": { "when": when } }]), "{theirs}");
    }
    for (theirs, field) in [
        ("paths: ['/a{*}']", "paths"),
        ("paths: ['/{id}/{*}']", "paths"),
        ("notPaths: ['/{*}/*']", "notPaths"),
    ] {
        let imported = paths(theirs);
        let field = format!("spec.rules[0].to[0].operation.{field}");
        let expected = [("AuthorizationPolicy shop/p", field.as_str())];
        assert_eq!(lost(&imported), expected, "{theirs}");
        assert!(imported.objects.is_empty(), "{theirs}");
    }
}

#[test]
fn an_egress_is_for_the_namespaces_that_a_host_was_exported_to() {
    let entry = |export: &str| {
        imported(&format!(
            "apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: api, namespace: shop}}
spec: {{hosts: [api.example.com], exportTo: [{export}]}}
"
        ))
    };
    for (export, objects) in [
        ("", vec!["tulle-system/shop-api"]),
        ("'*'", vec!["tulle-system/shop-api"]),
        ("a, '*'", vec!["tulle-system/shop-api"]),
        ("'.'", vec!["shop/api"]),
        ("shop", vec!["shop/api"]),
        ("b, a", vec!["a/shop-api", "b/shop-api"]),
        ("'.', shop, a", vec!["a/shop-api", "shop/api"]),
    ] {
        let imported = entry(export);
        assert_eq!(imported.lost, [], "{export}");
        let names: Vec<String> = imported
            .objects
            .iter()
            .map(|made| {
                let metadata = &made.object["metadata"];
                let text = |field: &str| metadata[field].as_str().unwrap();
                format!("{}/{}", text("namespace"), text("name"))
            })
            .collect();
        assert_eq!(names, objects, "{export}");
        for made in &imported.objects {
            let spec = json!({ "hosts": ["api.example.com"] });
            assert_eq!(made.object["spec"], spec, "{export}");
        }
    }
    for export in ["'~'", "tulle-system", "a, tulle-system"] {
        let imported = entry(export);
        let expected = [("ServiceEntry shop/api", "spec.exportTo")];
        assert_eq!(lost(&imported), expected, "{export}");
        assert!(imported.objects.is_empty(), "{export}");
    }
}

/// PeerAuthentications by their namespaces and specs.
fn peers(all: &[(&str, &str)]) -> String {
    let one = |(namespace, spec): &(&str, &str)| {
        format!(
            "apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {{name: default, namespace: {namespace}}}
spec: {{{spec}}}
---
"
        )
    };
    all.iter().map(one).collect()
}

#[test]
fn a_rule_without_callers_allows_plaintext_where_it_was_accepted() {
    let everywhere = json!({ "networks": ["0.0.0.0/0", "::/0"] });
    let (open, closed) = (json!([{ "from": everywhere }]), json!([{}]));
    let (strict, permissive) = ("mtls: {mode: STRICT}", "mtls: {mode: PERMISSIVE}");
    let one = "selector: {matchLabels: {app: a}}, mtls: {mode: STRICT}";
    let port = "selector: {matchLabels: {app: a}}, portLevelMtls: {'80': {mode: STRICT}}";
    let (as_before, unknown) = (Some("as before"), Some("no PeerAuthentication says"));
    for (theirs, rules, note) in [
        (vec![("istio-system", permissive)], &open, as_before),
        (vec![("shop", "mtls: {mode: DISABLE}")], &open, as_before),
        (
            vec![("istio-system", strict), ("shop", permissive)],
            &open,
            as_before,
        ),
        // The one of the mesh may not have been given.
        (vec![], &closed, unknown),
        (vec![("other", permissive)], &closed, unknown),
        (vec![("shop", "mtls: {mode: UNSET}")], &closed, unknown),
        (vec![("istio-system", strict)], &closed, None),
        (
            vec![("istio-system", strict), ("shop", "mtls: {mode: UNSET}")],
            &closed,
            None,
        ),
        (
            vec![("istio-system", permissive), ("shop", strict)],
            &closed,
            None,
        ),
        (vec![("shop", permissive), ("shop", strict)], &closed, None),
        (vec![("shop", one)], &closed, None),
        (vec![("shop", permissive), ("shop", port)], &closed, None),
    ] {
        let policy = security("AuthorizationPolicy", "shop", "{rules: [{}]}");
        let imported = imported(&(peers(&theirs) + &policy));
        let mut objects = imported.objects.iter();
        let is_policy = |made: &&Made| made.object["kind"] == "AuthorizationPolicy";
        let made = objects.find(is_policy).unwrap();
        assert_eq!(&made.object["spec"]["rules"], rules, "{theirs:?}");
        let said = made.notes.iter().find(|n| n.contains("a certificate"));
        assert_eq!(said.is_some(), note.is_some(), "{theirs:?}");
        if let (Some(said), Some(note)) = (said, note) {
            assert!(said.contains(note), "{theirs:?}: {said}");
        }
    }
    // A rule that names callers means them, and a denial without any is about everybody.
    for (spec, rules) in [
        (
            "{rules: [{from: [{source: {namespaces: [a]}}]}]}",
            json!([{ "to": { "when": "source.namespace == \"a\"" } }]),
        ),
        ("{action: DENY, rules: [{}]}", closed),
    ] {
        let policy = security("AuthorizationPolicy", "shop", spec);
        let imported = imported(&(peers(&[("shop", permissive)]) + &policy));
        let [made] = imported.objects.as_slice() else {
            panic!("{imported:?}");
        };
        assert_eq!(made.object["spec"]["rules"], rules);
    }
}

#[test]
fn an_address_needs_no_certificate_only_where_plaintext_was_accepted() {
    let networks = json!([{ "from": { "networks": ["10.0.0.0/8"] } }]);
    let when = "cidr(\"10.0.0.0/8\").containsIP(source.address)";
    let condition = json!([{ "to": { "when": when } }]);
    let (strict, permissive) = ("mtls: {mode: STRICT}", "mtls: {mode: PERMISSIVE}");
    let one = "selector: {matchLabels: {app: a}}, mtls: {mode: STRICT}";
    for (action, theirs, rules, notes) in [
        ("ALLOW", vec![("shop", permissive)], &networks, 0),
        ("ALLOW", vec![("istio-system", strict)], &condition, 1),
        ("ALLOW", vec![("shop", one)], &condition, 1),
        // The one of the mesh may not have been given.
        ("ALLOW", vec![], &condition, 2),
        ("DENY", vec![("istio-system", strict)], &networks, 0),
        ("DENY", vec![], &networks, 0),
    ] {
        let rule = "{from: [{source: {ipBlocks: [10.0.0.0/8]}}]}";
        let spec = format!("{{action: {action}, rules: [{rule}]}}");
        let policy = security("AuthorizationPolicy", "shop", &spec);
        let imported = imported(&(peers(&theirs) + &policy));
        let mut objects = imported.objects.iter();
        let is_policy = |made: &&Made| made.object["kind"] == "AuthorizationPolicy";
        let made = objects.find(is_policy).unwrap();
        assert_eq!(&made.object["spec"]["rules"], rules, "{action} {theirs:?}");
        let about =
            |note: &&String| note.contains("a certificate") || note.contains("no certificate");
        let said = made.notes.iter().filter(about).count();
        assert_eq!(said, notes, "{action} {theirs:?}");
    }
}

#[test]
fn a_permissive_namespace_of_a_strict_mesh_is_lost() {
    let (strict, permissive) = ("mtls: {mode: STRICT}", "mtls: {mode: PERMISSIVE}");
    // The order of the objects does not matter.
    let both = imported(&peers(&[("shop", permissive), ("istio-system", strict)]));
    let expected = [("PeerAuthentication shop/default", "spec.mtls.mode")];
    assert_eq!(lost(&both), expected);
    let alone = imported(&peers(&[
        ("shop", permissive),
        ("istio-system", permissive),
    ]));
    assert_eq!(alone.lost, []);
}

/// Enforced, the first would let in those whom no other policy lets in.
#[test]
fn a_dry_run_stays_one() {
    for action in ["ALLOW", "DENY", "AUDIT"] {
        for (said, is_dry) in [
            ("'true'", true),
            ("'1'", true),
            ("'false'", false),
            ("'yes'", false),
            // Without quotes, as somebody may have written them.
            ("true", true),
            ("false", false),
        ] {
            let spec =
                format!("{{action: {action}, rules: [{{to: [{{operation: {{paths: [/a]}}}}]}}]}}");
            let text = security("AuthorizationPolicy", "shop", &spec).replace(
                "namespace: shop}\nspec: {action",
                &format!(
                    "namespace: shop, annotations: {{istio.io/dry-run: {said}}}}}\nspec: {{action"
                ),
            );
            let imported = imported(&text);
            assert_eq!(imported.lost, [], "{action} {said}");
            let spec = &imported.objects[0].object["spec"];
            let mode = match is_dry || action == "AUDIT" {
                true => json!("Audit"),
                false => Value::Null,
            };
            assert_eq!(spec["mode"], mode, "{action} {said}");
            let ours = if action == "DENY" { "Deny" } else { "Allow" };
            assert_eq!(spec["action"], ours, "{action} {said}");
        }
    }
}

#[test]
fn a_policy_is_not_made_where_nobody_can_say_whether_it_is_a_dry_run() {
    for annotations in [
        "{istio.io/dry-run: 1}",
        "{istio.io/dry-run: [true]}",
        "[istio.io/dry-run]",
    ] {
        let text = security("AuthorizationPolicy", "shop", "{rules: [{}]}").replace(
            "namespace: shop}\nspec: {rules",
            &format!("namespace: shop, annotations: {annotations}}}\nspec: {{rules"),
        );
        let imported = imported(&text);
        let expected = [(
            "AuthorizationPolicy shop/p",
            "metadata.annotations.istio.io/dry-run",
        )];
        assert_eq!(lost(&imported), expected, "{annotations}");
        assert!(imported.objects.is_empty(), "{annotations}");
    }
}

/// Nothing is made, and each loss is of this place.
fn nothing_but_losses(imported: &Imported, place: &str, of: &str) {
    assert!(imported.objects.is_empty(), "{of}: {imported:?}");
    assert!(!imported.lost.is_empty(), "{of}");
    let mut lost = imported.lost.iter();
    assert!(
        lost.all(|l| l.field.starts_with(place)),
        "{of}: {imported:?}"
    );
}

/// Without the label, or without all of them, it would be about more Services.
#[test]
fn a_selector_with_what_is_no_text_makes_no_policy() {
    for selector in [
        "{matchLabels: {app: ratings, tier: 1}}",
        "{matchLabels: {app: ratings, tier: null}}",
        "{matchLabels: {app: 7}}",
        "{matchLabels: {app: null}}",
        "{matchLabels: {app: []}}",
        "{matchLabels: [app]}",
        "{matchLabels: [{}]}",
        "{matchLabels: []}",
        "{matchLabels: app}",
        "{matchLabels: {app: ratings}, matchExpressions: [{key: tier}]}",
        "{matchLabel: {app: ratings}}",
        "app",
        "7",
        "[]",
        "[{matchLabels: {app: ratings}}]",
    ] {
        for namespace in ["shop", "istio-system"] {
            for (kind, body) in [
                ("AuthorizationPolicy", "action: ALLOW, rules: [{}]"),
                (
                    "RequestAuthentication",
                    "jwtRules: [{issuer: a, jwks: '{\"keys\": []}'}]",
                ),
            ] {
                let spec = format!("{{selector: {selector}, {body}}}");
                let imported = imported(&security(kind, namespace, &spec));
                nothing_but_losses(&imported, "spec.selector", selector);
            }
        }
    }
    // These are about all Services in Istio, too.
    for selector in ["null", "{}", "{matchLabels: null}", "{matchLabels: {}}"] {
        let spec = format!("{{selector: {selector}, action: DENY, rules: [{{}}]}}");
        let imported = imported(&security("AuthorizationPolicy", "shop", &spec));
        assert_eq!(imported.lost, [], "{selector}");
        let both = ["reviews", "ratings"].map(str::to_owned).to_vec();
        assert_eq!(
            about(&imported),
            [("shop/p".to_owned(), both)],
            "{selector}"
        );
    }
}

#[test]
fn a_subset_with_a_label_that_is_no_text_is_not_made() {
    for labels in [
        "{version: 1}",
        "{version: v1, tier: null}",
        "{version: null}",
        "[version]",
        "[]",
        "v1",
    ] {
        let imported = imported(&format!(
            "{SERVICES}apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {{name: d, namespace: shop}}
spec: {{host: ratings, subsets: [{{name: v1, labels: {labels}}}]}}
"
        ));
        nothing_but_losses(&imported, "spec.subsets[0].labels", labels);
    }
}

//! Routes of Gateway API that have a Server for a parent: Linkerd obeys them as it does its own.

use super::*;

const GATEWAY: &str = "gateway.networking.k8s.io";
const LINKERD: &str = "policy.linkerd.io";

fn spec(matches: &str) -> String {
    format!(
        "{{parentRefs: [{{group: policy.linkerd.io, kind: Server, name: web}}], rules: [{{matches: [{matches}]}}]}}"
    )
}

fn route(kind: &str, name: &str, matches: &str) -> String {
    one(kind, &format!("{GATEWAY}/v1"), name, &spec(matches))
}

/// A policy that lets its namesake in.
fn about(name: &str, group: &str, kind: &str, target: &str) -> String {
    let spec = format!(
        "{{targetRef: {{group: {group}, kind: {kind}, name: {target}}}, requiredAuthenticationRefs: [{{kind: ServiceAccount, name: {name}}}]}}"
    );
    policy("AuthorizationPolicy", name, &spec)
}

#[test]
fn a_policy_is_about_what_a_route_of_gateway_api_matches() {
    let reads = server() + &route("HTTPRoute", "reads", "{method: GET}");
    let when = r#"source.namespace == "shop" && source.service == "client""#;
    let to = json!({ "methods": ["GET"], "ports": [80], "when": when });
    for (group, kind, target) in [
        (LINKERD, "Server", "web"),
        ("core", "Namespace", "shop"),
        (GATEWAY, "HTTPRoute", "reads"),
    ] {
        assert_eq!(
            rules(&(reads.clone() + &about("client", group, kind, target))),
            json!([{ "to": to }]),
            "{kind}"
        );
    }
    // It is none of Linkerd's own.
    let other = imported(&(reads + &about("client", LINKERD, "HTTPRoute", "reads")));
    assert!(other.objects.is_empty(), "{other:?}");
    let policy = ("AuthorizationPolicy shop/client", "spec.targetRef");
    assert_eq!(lost(&other), [policy, CLOSED]);
}

#[test]
fn a_policy_lets_nobody_send_what_a_route_of_gateway_api_guards() {
    // Two of one name are two all the same.
    for name in ["admin", "rest"] {
        let text = server()
            + &policy("HTTPRoute", "rest", &spec("{path: {value: /}}"))
            + &route("HTTPRoute", name, "{path: {value: /admin}}")
            + &about("everybody", LINKERD, "HTTPRoute", "rest")
            + &about("operator", GATEWAY, "HTTPRoute", name);
        let imported = imported(&text);
        let loss = ("AuthorizationPolicy shop/everybody", "spec.targetRef");
        assert_eq!(lost(&imported), [loss], "{name}");
        let why = &imported.lost[0].why;
        assert!(why.contains(&format!("HTTPRoute shop/{name}")), "{why}");
        let [made] = imported.objects.as_slice() else {
            panic!("{imported:?}");
        };
        assert_eq!(made.object["metadata"]["name"], "operator");
    }
}

/// Without the calls that it names a policy would be about all requests.
#[test]
fn a_server_with_calls_of_grpc_has_no_policies() {
    let calls = route("GRPCRoute", "calls", "{method: {service: a.B, method: C}}");
    let loss = ("GRPCRoute shop/calls", "spec.rules");
    let policy = ("AuthorizationPolicy shop/client", "spec.targetRef");
    for (group, kind, target) in [(LINKERD, "Server", "web"), (GATEWAY, "GRPCRoute", "calls")] {
        let imported = imported(&(server() + &calls + &about("client", group, kind, target)));
        assert!(imported.objects.is_empty(), "{kind}: {imported:?}");
        assert_eq!(lost(&imported), [loss, policy, CLOSED], "{kind}");
        let why = &imported.lost[1].why;
        assert!(why.contains("GRPCRoute shop/calls"), "{why}");
    }
    // It may be the better match of what another route matches.
    let text = server()
        + &calls
        + &route("HTTPRoute", "reads", "{method: GET}")
        + &about("client", GATEWAY, "HTTPRoute", "reads");
    let beside = imported(&text);
    assert!(beside.objects.is_empty(), "{beside:?}");
    assert_eq!(lost(&beside), [loss, policy, CLOSED]);
}

#[test]
fn a_route_of_gateway_api_without_policy_and_server_is_named() {
    let alone = imported(&route("HTTPRoute", "reads", "{method: GET}"));
    assert!(alone.objects.is_empty(), "{alone:?}");
    assert_eq!(lost(&alone), [("HTTPRoute shop/reads", "spec.parentRefs")]);
    // A Service's, or one with a Server of another group, is not theirs.
    for parent in [
        "{group: '', kind: Service, name: ratings}",
        "{group: example.com, kind: Server, name: web}",
        "{name: web}",
    ] {
        let spec = format!("{{parentRefs: [{parent}], rules: [{{matches: [{{method: GET}}]}}]}}");
        let kept = imported(&one("HTTPRoute", &format!("{GATEWAY}/v1"), "r", &spec));
        assert_eq!(kept.lost, [], "{parent}");
        let untouched = kept.untouched.last().map(String::as_str);
        assert_eq!(untouched, Some("HTTPRoute shop/r"), "{parent}");
    }
}

use super::super::Actor;
use super::*;
use crate::ca::Authority;
use crate::store::{Memory, Store};
use crate::tokens;
use serde_json::json;
use std::sync::Arc;
use std::time::SystemTime;
use tulle_model::identity::SpiffeId;
use tulle_model::manifest::MtlsSpec;
use tulle_model::resource::Resource;

const TULLE: &str = "tulle.dev/v1alpha1";
/// A version that is not known.
const NEWER: &str = "tulle.dev/v9";

fn manifest(version: &str, kind: &str, name: &str, spec: &Value) -> Value {
    json!({ "apiVersion": version, "kind": kind, "metadata": { "name": name }, "spec": spec })
}

/// A workload that `a` may call.
fn called(name: &str) -> [Value; 2] {
    let ports = json!([{ "port": 80, "appProtocol": "http" }]);
    let spec = json!({ "command": ["/bin/true"], "ports": ports });
    let account = |name: &str| json!({ "kind": "ServiceAccount", "name": name });
    let target = json!({ "destination": account(name), "sources": [account("a")] });
    [
        manifest(TULLE, "Workload", name, &spec),
        manifest(
            "access.smi-spec.io/v1alpha3",
            "TrafficTarget",
            name,
            &target,
        ),
    ]
}

fn text<'a>(object: &'a Value, place: &str) -> &'a str {
    object.pointer(place).and_then(Value::as_str).unwrap()
}

/// A mesh of `a`, `b`, `c` and a gateway, in whose store another version has left an object.
fn started(left: &Value) -> MeshState {
    started_with(std::slice::from_ref(left))
}

fn started_with(left: &[Value]) -> MeshState {
    let listeners = json!([{ "name": "web", "port": 8080, "protocol": "HTTP" }]);
    let gateway = json!({ "gatewayClassName": "tulle", "listeners": listeners });
    let version = "gateway.networking.k8s.io/v1";
    let mut all = vec![manifest(version, "Gateway", "g", &gateway)];
    all.extend_from_slice(left);
    all.extend(["a", "b", "c"].iter().flat_map(|name| called(name)));
    let writes = all.iter().map(|object| Write::Put {
        kind: text(object, "/kind").to_owned(),
        name: text(object, "/metadata/name").to_owned(),
        json: object.to_string(),
    });
    let writes: Vec<Write> = writes.collect();
    let store = Arc::new(Memory::new());
    store.commit(&writes).unwrap();
    let authority = Authority::open(&*store).unwrap();
    MeshState::load(store, authority).unwrap()
}

fn apply(state: &MeshState, objects: &[Value]) {
    let objects = objects.iter().map(|object| v1::Object {
        kind: text(object, "/kind").to_owned(),
        name: text(object, "/metadata/name").to_owned(),
        json: object.to_string(),
    });
    let asked = v1::ApplyRequest {
        objects: objects.collect(),
        ..Default::default()
    };
    state.apply(&Actor::Operator, &asked).unwrap();
}

fn explained(state: &MeshState, to: &str) -> v1::Explanation {
    let asked = v1::ExplainRequest {
        from: "a".into(),
        to: to.into(),
        ..Default::default()
    };
    state.explain(&asked).unwrap()
}

fn may_call(state: &MeshState, to: &str) -> bool {
    explained(state, to).allowed
}

/// Which services `a` may call, and whether the gateway lets clients in.
fn open(state: &MeshState) -> (Vec<&'static str>, bool) {
    let services = ["b", "c"].into_iter().filter(|to| may_call(state, to));
    let gateway = state.with_index(|index| {
        let entry = index.get("gateway/g").unwrap();
        match tulle_api::decode_body(&entry.body).unwrap() {
            Resource::Gateway(gateway) => gateway.listeners[0].policy.is_none(),
            _ => panic!("it is a gateway"),
        }
    });
    (services.collect(), gateway)
}

/// Lists the problems about an object, which a host's status shows as warnings.
fn problems(state: &MeshState, object: &str) -> Vec<String> {
    let begin = format!("{object}: this version cannot read it");
    let about = |mut all: Vec<String>| {
        all.retain(|text| text.starts_with(&begin));
        all
    };
    let problems = about(state.problems());
    assert_eq!(about(state.warnings()), problems);
    problems
}

#[test]
fn a_restriction_that_cannot_be_read_closes_its_targets_until_it_is_deleted() {
    let all = (vec!["b", "c"], true);
    let not_b = (vec!["c"], true);
    let nothing = (vec![], false);
    let b = json!([{ "kind": "Service", "name": "b" }]);
    let newer = json!([{ "name": "b", "newer": 1 }]);
    let gateway = json!([{ "kind": "Gateway", "name": "g" }]);
    let unknown = json!([{ "kind": "Newer", "name": "b" }]);
    let group = json!([{ "group": "newer.io", "kind": "Service", "name": "b" }]);
    let one_unknown = json!([{ "name": "b" }, { "kind": "Newer", "name": "c" }]);
    let authorization = "AuthorizationPolicy";
    for (kind, spec, expected) in [
        (
            authorization,
            json!({ "targetRefs": b, "action": "Deny" }),
            &not_b,
        ),
        (authorization, json!({ "targetRefs": newer }), &not_b),
        (
            authorization,
            json!({ "targetRefs": gateway }),
            &(vec!["b", "c"], false),
        ),
        ("Authentication", json!({ "targetRefs": b }), &not_b),
        ("Plugin", json!({ "targetRefs": b }), &not_b),
        // It is not known whom these are about.
        (authorization, json!({ "targets": b }), &nothing),
        (authorization, json!({ "targetRefs": unknown }), &nothing),
        (authorization, json!({ "targetRefs": group }), &nothing),
        (
            authorization,
            json!({ "targetRefs": one_unknown }),
            &nothing,
        ),
        ("Authentication", json!(null), &nothing),
        ("Plugin", json!({ "targetRefs": "b" }), &nothing),
        // These do not say who may call.
        (
            authorization,
            json!({ "targetRefs": b, "mode": "Audit" }),
            &all,
        ),
        (
            "Plugin",
            json!({ "targetRefs": b, "failurePolicy": "Open" }),
            &all,
        ),
        ("Plugin", json!({ "script": "" }), &all),
        ("RateLimit", json!({ "targetRefs": b }), &all),
    ] {
        let state = started(&manifest(NEWER, kind, "p", &spec));
        assert_eq!(&open(&state), expected, "{kind} {spec}");
        let object = format!("{kind}/p");
        let told = problems(&state, &object);
        assert_eq!(told.len(), 1, "{kind} {spec}");
        let cure = format!("`tulle delete {} p`", kind.to_lowercase());
        assert!(told[0].contains(&cure), "{told:?}");
        let closes = told[0].contains("so nobody may call");
        assert_eq!(closes, *expected != all, "{told:?}");

        assert!(state.delete(&Actor::Operator, kind, "p").unwrap());
        assert_eq!(open(&state), all, "{kind} {spec}");
        assert!(problems(&state, &object).is_empty());
    }
}

#[test]
fn what_an_unread_mesh_revokes_stays_revoked_and_all_else_of_it_is_strict() {
    let id = "spiffe://tulle.local/svc/c";
    let c = json!({ "identity": id, "newer": 1, "reason": [] });
    let both = json!({ "identity": id, "serial": "0a" });
    let serial = json!({ "serial": "0a:0b" });
    let unknown = json!({ "key": "0a" });
    // Revocations, whether an identity and a serial of theirs are refused, and whether all of them can be read.
    for (revoked, has_id, has_serial, is_all) in [
        (json!([c, serial]), true, true, true),
        (json!([]), false, false, true),
        (json!(null), false, false, true),
        (json!([unknown, serial]), false, true, false),
        (json!([both, c]), true, false, false),
        (json!([{ "crl": "none" }]), false, false, false),
        (json!({ "identity": id }), false, false, false),
    ] {
        let mut spec = json!({ "permissiveMode": true, "newer": 1, "revoked": revoked });
        spec["mtls"] = json!({ "mode": "permissive" });
        let state = started(&manifest(TULLE, "Mesh", "m", &spec));
        let refused = state.revoked();
        let known = refused.borrow().clone();
        assert_eq!(known.identities.len(), usize::from(has_id), "{revoked}");
        assert_eq!(known.serials.len(), usize::from(has_serial), "{revoked}");
        let mesh = state.with_index(|index| index.inputs().mesh.clone());
        let mesh = mesh.unwrap();
        assert_eq!(mesh.mtls, MtlsSpec::default(), "{revoked}");
        assert!(!mesh.permissive_mode, "{revoked}");

        assert_eq!(may_call(&state, "b"), is_all, "{revoked}");
        let b = SpiffeId::parse("spiffe://tulle.local/svc/b").unwrap();
        assert_eq!(state.may_renew(&b).is_ok(), is_all, "{revoked}");
        let asked = v1::JoinTokenRequest {
            identity: "svc/b".into(),
            ..Default::default()
        };
        let host = Actor::Node("n".to_owned());
        let token = state.join_token(&host, &asked, SystemTime::now(), || Ok(()));
        let why = token.map(drop).unwrap_err().to_string();
        assert_eq!(why.contains("cannot be read"), !is_all, "{why}");
        let told = problems(&state, "Mesh/m");
        assert_eq!(told.len(), 1, "{revoked}");
        assert!(told[0].contains("`tulle delete mesh m`"), "{told:?}");
        let closes = told[0].contains("so nobody may call anything");
        assert_eq!(closes, !is_all, "{told:?}");

        // The same, in a form that can be read.
        let spec = json!({ "revoked": [{ "identity": id }] });
        apply(&state, &[manifest(TULLE, "Mesh", "m", &spec)]);
        assert!(may_call(&state, "b") && state.may_renew(&b).unwrap());
        assert_eq!(refused.borrow().identities.len(), 1, "{revoked}");
        assert!(problems(&state, "Mesh/m").is_empty());
        assert!(state.delete(&Actor::Operator, "Mesh", "m").unwrap());
        assert!(refused.borrow().is_empty(), "{revoked}");
    }
}

#[test]
fn a_mesh_of_an_unknown_version_may_revoke_where_nobody_looks() {
    let b = SpiffeId::parse("spiffe://tulle.local/svc/b").unwrap();
    for (version, spec, is_all) in [
        (TULLE, json!({ "newer": 1 }), true),
        (TULLE, json!({ "newer": 1, "revoked": [] }), true),
        (NEWER, json!({}), false),
        (NEWER, json!({ "revoked": [] }), false),
        (NEWER, json!({ "revoked": [{ "serial": "0a:0b" }] }), true),
    ] {
        let state = started(&manifest(version, "Mesh", "m", &spec));
        assert_eq!(may_call(&state, "b"), is_all, "{version} {spec}");
        assert_eq!(state.may_renew(&b).is_ok(), is_all, "{version} {spec}");
    }
}

#[test]
fn what_several_unread_meshes_revoke_stays_revoked_until_each_is_deleted() {
    let mesh = |name: &str, revoked: Value| {
        let spec = json!({ "newer": 1, "revoked": [revoked] });
        manifest(TULLE, "Mesh", name, &spec)
    };
    let id = "spiffe://tulle.local/svc/c";
    let one = mesh("one", json!({ "identity": id }));
    let two = mesh("two", json!({ "serial": "0a:0b" }));
    for (first, then) in [("one", "two"), ("two", "one")] {
        let state = started_with(&[one.clone(), two.clone()]);
        let refused = state.revoked();
        let count = || {
            let refused = refused.borrow();
            (refused.identities.len(), refused.serials.len())
        };
        assert_eq!(count(), (1, 1));
        assert!(state.delete(&Actor::Operator, "Mesh", first).unwrap());
        let left = if then == "one" { (1, 0) } else { (0, 1) };
        assert_eq!(count(), left, "without {first}");
        assert!(state.delete(&Actor::Operator, "Mesh", then).unwrap());
        assert_eq!(count(), (0, 0));
    }
}

#[test]
fn certificates_are_renewed_again_once_what_the_mesh_revokes_is_in_force() {
    let spec = json!({ "newer": 1, "revoked": [{ "key": "0a" }] });
    let state = started(&manifest(TULLE, "Mesh", "m", &spec));
    let spec = json!({ "trustDomain": "other.local", "revoked": [{ "serial": "0a:0b" }] });
    let mended = manifest(TULLE, "Mesh", "m", &spec);
    let revoked = state.revoked();
    let refused = std::thread::scope(|scope| {
        // Revocations stay as they are as long as somebody looks at them.
        let looked_at = revoked.borrow();
        let applying = scope.spawn(|| apply(&state, &[mended]));
        // The trust domain is told just before.
        while state.trust_domain().as_str() != "other.local" && !applying.is_finished() {
            std::thread::yield_now();
        }
        let refused = state.check_revocations();
        drop(looked_at);
        refused
    });
    assert!(refused.is_err());
    assert_eq!(revoked.borrow().serials.len(), 1);
    assert!(state.check_revocations().is_ok());
}

#[test]
fn no_token_of_a_host_is_spent_while_a_revocation_cannot_be_read() {
    let spec = json!({ "newer": 1, "revoked": [{ "key": "0a" }] });
    let state = started(&manifest(TULLE, "Mesh", "m", &spec));
    let now = SystemTime::now();
    let token = |identity: &str, by: &str| {
        let id = SpiffeId::parse(&format!("spiffe://tulle.local/{identity}")).unwrap();
        tokens::create(&*state.store, &id, by, tokens::DEFAULT_TTL, now).unwrap()
    };
    // The operator has no certificate that could be revoked.
    state.spend(&token("node/n", ""), now).unwrap();
    let of_host = token("svc/b", "n");
    let refused = state.spend(&of_host, now).map(drop);
    let why = refused.unwrap_err().to_string();
    assert!(why.contains("cannot be read"), "{why}");

    apply(&state, &[manifest(TULLE, "Mesh", "m", &json!({}))]);
    let (id, membership) = state.spend(&of_host, now).unwrap();
    assert_eq!(id.name(), "b");
    assert!(membership.is_some());
}

#[test]
fn a_call_by_a_gateway_is_denied_where_a_policy_about_it_or_its_route_cannot_be_read() {
    let version = "gateway.networking.k8s.io/v1";
    let rules = json!([{ "backendRefs": [{ "name": "b", "port": 80 }] }]);
    let route = json!({ "parentRefs": [{ "name": "g" }], "rules": rules });
    let route = manifest(version, "HTTPRoute", "r", &route);
    let account = |name: &str| json!({ "kind": "ServiceAccount", "name": name });
    let target = json!({ "destination": account("b"), "sources": [account("g")] });
    let version = "access.smi-spec.io/v1alpha3";
    let target = manifest(version, "TrafficTarget", "g", &target);
    let objects = [route, target];
    for kind in ["Gateway", "HTTPRoute"] {
        let name = if kind == "Gateway" { "g" } else { "r" };
        let target = json!({ "group": "gateway.networking.k8s.io", "kind": kind, "name": name });
        let spec = json!({ "targetRefs": [target] });
        let state = started(&manifest(NEWER, "AuthorizationPolicy", "p", &spec));
        apply(&state, &objects);
        let told = problems(&state, "AuthorizationPolicy/p");
        let asked = v1::ExplainRequest {
            from: "g".into(),
            to: "b".into(),
            ..Default::default()
        };
        let answer = state.explain(&asked).unwrap();
        assert!(!answer.allowed, "{answer:?}");
        assert_eq!(answer.policy, "AuthorizationPolicy/p", "{kind}");
        let reason = "AuthorizationPolicy/p denies it: answered with 403";
        assert_eq!(answer.reason, format!("{reason}; {}", told[0]));
        // A workload does not come by it.
        let reason = explained(&state, "b").reason;
        assert!(!reason.contains("cannot read"), "{reason}");
        // Nothing else keeps the gateway from it.
        let deleted = state.delete(&Actor::Operator, "AuthorizationPolicy", "p");
        assert!(deleted.unwrap());
        let answer = state.explain(&asked).unwrap();
        assert!(answer.allowed, "{answer:?}");
    }
}

#[test]
fn a_denial_names_what_cannot_be_read() {
    let b = json!([{ "name": "b" }]);
    for (kind, denies) in [
        ("AuthorizationPolicy", "AuthorizationPolicy/p"),
        ("Authentication", "AuthorizationPolicy/authentication/p"),
    ] {
        let state = started(&manifest(NEWER, kind, "p", &json!({ "targetRefs": b })));
        let told = problems(&state, &format!("{kind}/p"));
        let answer = explained(&state, "b");
        assert_eq!(answer.policy, denies);
        let reason = answer.reason;
        let begins = format!("{denies} denies it: ");
        assert!(
            reason.starts_with(&begins) && reason.ends_with(&format!("; {}", told[0])),
            "{reason}"
        );
        // It is about no other service.
        let answer = explained(&state, "c");
        assert!(!answer.reason.contains("cannot read"), "{}", answer.reason);
    }
    // An object that has no effect is told of nobody.
    let limit = manifest(NEWER, "RateLimit", "p", &json!({ "targetRefs": b }));
    let answer = explained(&started(&limit), "b");
    assert!(!answer.reason.contains("cannot read"), "{}", answer.reason);
}

#[test]
fn no_command_is_named_that_does_not_know_the_kind() {
    let state = started(&manifest(NEWER, "Newer", "p", &json!({})));
    let told = problems(&state, "Newer/p");
    let [told] = told.as_slice() else {
        panic!("{told:?}");
    };
    assert!(!told.contains("tulle delete"), "{told}");
    assert!(told.ends_with("start the version that wrote it"), "{told}");
}

#[test]
fn an_object_that_is_applied_again_takes_the_place_of_what_denied_for_it() {
    let b = json!([{ "name": "b" }]);
    let rules = json!([{ "from": { "serviceAccounts": ["c"] } }]);
    let auth = json!({ "protocol": "HTTP", "backendRef": { "name": "c", "port": 80 } });
    for (kind, spec) in [
        (
            "AuthorizationPolicy",
            json!({ "targetRefs": b, "action": "Deny", "rules": rules }),
        ),
        (
            "Authentication",
            json!({ "targetRefs": b, "externalAuth": auth }),
        ),
    ] {
        for left in [json!({ "targetRefs": b }), json!({})] {
            let state = started(&manifest(NEWER, kind, "p", &left));
            assert!(!may_call(&state, "b"), "{kind} {left}");
            apply(&state, &[manifest(TULLE, kind, "p", &spec)]);
            let policies = state.with_index(|index| {
                let names = index.inputs().names().into_iter();
                let names = names.map(|(kind, name)| format!("{kind}/{name}"));
                let policies = names.filter(|name| name.starts_with("Auth"));
                policies.collect::<Vec<_>>()
            });
            assert_eq!(policies, [format!("{kind}/p")]);
            assert!(
                may_call(&state, "b") && may_call(&state, "c"),
                "{kind} {left}"
            );
            assert!(problems(&state, &format!("{kind}/p")).is_empty());
        }
    }
}

#[test]
fn what_is_closed_everywhere_is_closed_for_services_that_come_later() {
    let state = started(&manifest(NEWER, "AuthorizationPolicy", "p", &json!({})));
    apply(&state, &called("d"));
    assert!(!may_call(&state, "d"));
    let deleted = state.delete(&Actor::Operator, "AuthorizationPolicy", "p");
    assert!(deleted.unwrap());
    assert!(may_call(&state, "d"));
}

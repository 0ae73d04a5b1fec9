//! Pods of a namespace share the room of what their rules repeat: how large shares are, what closes ports, and what is
//! left out or said before.

use super::bounds::{a_pod, a_service, lead_to_a_thousand, of_shop};
use super::cluster::named;
use super::lengths::shop;
use super::repeated::{plugin_of, told};
use super::unions::{about, closed, port};
use super::*;
use tulle_model::resource::{Action, PolicyRule};

/// A pod that has nothing but its name and, perhaps, a sidecar.
fn another_pod(i: usize, namespace: &str, sidecar: bool) -> Edit {
    let ip = format!("10.245.{}.{}", i / 250, i % 250);
    let pod = a_pod(&format!("p{i}.{namespace}"), "p", &ip, &[]);
    Edit::Pod(Box::new(ClusterPod { sidecar, ..pod }))
}

/// A pod that no node has taken yet.
fn waiting_pod(i: usize) -> Edit {
    let pod = a_pod(&format!("w{i}.shop"), "p", "10.246.0.1", &[]);
    Edit::Pod(Box::new(ClusterPod {
        addresses: Vec::new(),
        ..pod
    }))
}

/// A Plugin of 130 KB, and a limit of which each of so many rules has it.
fn repeating(rules: usize) -> [Edit; 2] {
    let rule = |i: usize| {
        let to = json!({ "paths": [{ "type": "Exact", "value": format!("/{i}") }] });
        json!({ "to": to, "requests": { "count": 1 } })
    };
    let rules: Vec<Value> = (1..rules).map(rule).collect();
    let limit = json!({ "targetRefs": about("a"), "rules": rules });
    [
        plugin_of("shop", 130_000, about("a")),
        of_shop("RateLimit", "l", limit),
    ]
}

/// A policy that denies with 150 rules of 2.3 MB in all, about these ports; none: all.
fn long_policy(name: &str, mode: &str, ports: &[u16]) -> Edit {
    let networks: Vec<String> = (0..1000)
        .map(|i| format!("10.{}.{}.0/24", i / 250, i % 250))
        .collect();
    let mut rule = json!({ "from": { "networks": networks } });
    if !ports.is_empty() {
        rule["to"] = json!({ "ports": ports });
    }
    let spec = json!({
        "targetRefs": about("a"), "action": "Deny", "mode": mode, "rules": vec![rule; 150],
    });
    of_shop("AuthorizationPolicy", name, spec)
}

fn rules(index: &Index) -> Vec<PolicyRule> {
    inbound(index, "web-1.shop").policy.rules
}

/// The controller keeps a resource for each pod, so each more would be as much again.
#[test]
fn ports_of_pods_have_an_equal_share_of_what_their_namespace_may_have() {
    // These are 9 MB: more than a share of 9 pods, and less than one of 8.
    let mut index = shop(repeating(70));
    index.apply((1..8).map(|i| another_pod(i, "shop", true)));
    // Pods of other namespaces, and those without a sidecar or an address, have no share.
    index.apply((100..200).map(|i| another_pod(i, "bank", true)));
    index.apply((200..300).map(|i| another_pod(i, "shop", false)));
    index.apply((0..100).map(waiting_pod));
    assert_eq!(closed(&index), Vec::<String>::new());
    assert_eq!(port(&index).rules.len(), 70);
    index.apply([another_pod(8, "shop", true)]);
    let names = closed(&index);
    let share = "more than 8388608 bytes, which is a pod's share in a namespace of so many";
    assert!(names.len() == 1 && names[0].contains(share), "{names:?}");
    assert!(told(&index).iter().any(|t| t.contains(share)));
    assert_eq!(port(&index).rules.len(), 0);
    index.apply([another_pod(8, "shop", false)]);
    assert_eq!(closed(&index), Vec::<String>::new());
    index.apply([another_pod(8, "shop", true)]);
    assert_eq!(closed(&index).len(), 1);
    index.apply([Edit::RemovePod(named("p8.shop"))]);
    assert_eq!(closed(&index), Vec::<String>::new());
}

/// Whoever makes more pods may know nothing of the rules about those that run.
#[test]
fn it_is_said_before_a_smaller_share_closes_ports() {
    let said = |index: &Index| -> Vec<String> {
        let told = told(index).into_iter();
        told.filter(|t| t.contains("then ports of it are closed"))
            .collect()
    };
    let mut index = shop(repeating(70));
    index.apply((1..4).map(|i| another_pod(i, "shop", true)));
    // The next share is 16 MiB.
    assert_eq!(said(&index), Vec::<String>::new());
    // Two pods of a Service are one problem.
    let also = a_service(
        "a.shop",
        &[],
        &[(80, Some("http"), 8080)],
        &[("10.244.0.5", Some("web-1")), ("10.245.0.1", Some("p1"))],
    );
    index.apply([Edit::Service(Box::new(also)), another_pod(4, "shop", true)]);
    let text = "service/a.shop: rules about one of its pods have more than 8388608 bytes, which is a pod's share from 9 pods";
    let now = said(&index);
    assert!(now.len() == 1 && now[0].starts_with(text), "{now:?}");
    assert_eq!(closed(&index), Vec::<String>::new());
    index.apply([Edit::RemovePod(named("p4.shop"))]);
    assert_eq!(said(&index), Vec::<String>::new());
}

/// Policies are as long as their objects, and a pod without all of those that deny would be open.
#[test]
fn a_pod_whose_policies_are_too_long_is_closed() {
    // Shares of 32 pods are 4 MiB.
    let mut index = shop([long_policy("p", "Enforce", &[])]);
    index.apply((1..32).map(|i| another_pod(i, "shop", true)));
    assert_eq!(rules(&index).len(), 150);
    index.apply([another_pod(32, "shop", true)]);
    let left = rules(&index);
    assert_eq!((left.len(), left[0].action), (1, Action::Deny));
    assert!(left[0].any_identity && left[0].ports.is_empty() && left[0].networks.len() == 2);
    let told = told(&index);
    let text = "service/a.shop: all ports of its pods are closed: policies about one make rules of more than 2097152";
    assert!(told.iter().any(|t| t.starts_with(text)), "{told:?}");
}

/// A rule names one port of a Service, and has as many of the pod as the Service leads to from it.
#[test]
fn ports_that_rules_get_of_a_pod_count_in_its_share() {
    let mut service = a_service(
        "c.shop",
        &[],
        &[(80, None, 9000)],
        &[("10.244.0.5", Some("web-1"))],
    );
    lead_to_a_thousand(&mut service);
    let from = json!({ "serviceAccounts": ["front"] });
    let rule = json!({ "from": from, "to": { "ports": [80] } });
    let spec = json!({ "targetRefs": about("c"), "rules": vec![rule; 500] });
    // The rules are 60 KB, and their ports 2.5 MB.
    let mut index = shop([
        Edit::Service(Box::new(service)),
        of_shop("AuthorizationPolicy", "p", spec),
    ]);
    index.apply((1..32).map(|i| another_pod(i, "shop", true)));
    assert_eq!(rules(&index).len(), 500);
    index.apply([another_pod(32, "shop", true)]);
    assert_eq!(closed(&index).len(), 1);
}

/// An object that only watches closes nothing: it gets the room that all others leave.
#[test]
fn policies_that_only_audit_are_left_out_first() {
    let allow = json!({
        "targetRefs": about("a"), "rules": [{ "from": { "serviceAccounts": ["front"] } }],
    });
    // The one that watches is the first by name.
    let mut index = shop([
        long_policy("a", "Audit", &[]),
        of_shop("AuthorizationPolicy", "b", allow),
    ]);
    let left_out = |index: &Index| {
        let told = told(index).into_iter();
        told.filter(|t| t.contains("neither count nor log")).count()
    };
    index.apply((1..32).map(|i| another_pod(i, "shop", true)));
    assert_eq!((rules(&index).len(), left_out(&index)), (151, 0));
    // It alone is more than a share of 2 MiB.
    index.apply([another_pod(32, "shop", true)]);
    let left = rules(&index);
    assert_eq!((left.len(), left[0].action), (1, Action::Allow));
    assert_eq!(left_out(&index), 1);
    // With the rules of ports, of 2.7 MB, it is more than one of 4 MiB.
    index.apply([Edit::RemovePod(named("p32.shop"))]);
    index.apply(repeating(21));
    assert_eq!((rules(&index).len(), left_out(&index)), (1, 1));
    assert_eq!(port(&index).rules.len(), 21);
    index.apply((16..32).map(|i| Edit::RemovePod(named(&format!("p{i}.shop")))));
    assert_eq!((rules(&index).len(), left_out(&index)), (151, 0));
}

/// No rule is kept for it, so that its callers know the same ports however many pods have sidecars.
#[test]
fn a_pod_without_a_sidecar_has_no_share_to_lose() {
    let plain = ClusterPod {
        sidecar: false,
        ..a_pod("web-1.shop", "web", "10.244.0.5", &[8080])
    };
    let mut index = shop([
        Edit::Pod(Box::new(plain)),
        long_policy("p", "Enforce", &[9999]),
    ]);
    let ports = |index: &Index| -> Vec<u16> {
        let ports = service(index, "pod/web-1.shop").ports.into_iter();
        ports.map(|p| p.port).collect()
    };
    assert_eq!(ports(&index), [0, 8080, 9999]);
    // Then it is made anew with all others.
    index.apply((0..40).map(|i| another_pod(i, "shop", true)));
    index.apply([long_policy("p", "Enforce", &[9999])]);
    assert_eq!(ports(&index), [0, 8080, 9999]);
}

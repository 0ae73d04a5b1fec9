//! How pods are called: at any of their ports, and those that the Service says first.

use super::bounds::{a_pod, a_service};
use super::cluster::{cluster, named, object, pod, service_of};
use super::*;
use tulle_model::resource::{Action, Balancer, Endpoint, HashKey, Locality, Traffic};

/// `web.shop` at port 80, served by `web-1.shop` at 8080.
fn shop() -> Index {
    let mut index = cluster();
    index.apply([
        pod("web-1.shop", "web", "10.244.0.5", true),
        pod("web-2.shop", "web", "10.244.0.6", false),
        service_of(
            "web.shop",
            Some("10.96.0.20"),
            &[("web-1.shop", "10.244.0.5", true)],
        ),
    ]);
    index
}

fn inbound_of(index: &Index, pod: &str) -> Inbound {
    match resource(index, &format!("inbound/{pod}")) {
        Resource::Inbound(inbound) => inbound,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_pod_is_called_at_ports_that_nobody_declares() {
    let mut index = shop();
    let any = |index: &Index, pod: &str| {
        let pod = service(index, &format!("pod/{pod}"));
        let any = pod.ports.into_iter().find(|p| p.port == 0).unwrap();
        (any.protocol, any.endpoints)
    };
    let at = |ip: &str, mutual_tls| Endpoint {
        locality: "here/a".into(),
        ..Endpoint::new(format!("{ip}:0").parse().unwrap(), mutual_tls)
    };
    let expected = (Protocol::Detect, vec![at("10.244.0.5", true)]);
    assert_eq!(any(&index, "web-1.shop"), expected);
    let expected = (Protocol::Detect, vec![at("10.244.0.6", false)]);
    assert_eq!(any(&index, "web-2.shop"), expected);
    let inbound = inbound_of(&index, "web-1.shop");
    let any = inbound.ports.iter().find(|p| p.port == 0).unwrap();
    assert_eq!(any.target.to_string(), "10.244.0.5:0");
    assert_eq!(any.protocol, Protocol::Detect);

    // Its sidecar sees nothing of these, so there is no mutual TLS.
    let direct = ClusterPod {
        direct: vec![8080, 15020],
        ..a_pod("web-1.shop", "web", "10.244.0.5", &[8080])
    };
    index.apply([Edit::Pod(Box::new(direct))]);
    let mutual_tls = |name: &str| -> Vec<(u16, bool)> {
        let ports = service(&index, name).ports.into_iter();
        ports.map(|p| (p.port, p.endpoints[0].mutual_tls)).collect()
    };
    let all = [(0, true), (8080, false), (15020, false)];
    assert_eq!(mutual_tls("pod/web-1.shop"), all);
    assert_eq!(mutual_tls("web.shop"), [(80, false)]);
}

/// Else a port would be open that its author has closed.
#[test]
fn policies_hold_for_ports_that_nobody_declares() {
    let mut index = shop();
    let policy = |name: &str, service: &str, action: &str, ports: &[u16]| {
        let mut rule = json!({ "from": { "serviceAccounts": ["front"] } });
        if !ports.is_empty() {
            rule["to"] = json!({ "ports": ports });
        }
        let targets = json!([{ "kind": "Service", "name": service }]);
        let spec = json!({ "targetRefs": targets, "action": action, "rules": [rule] });
        object("tulle.dev/v1alpha1", "AuthorizationPolicy", name, spec)
    };
    index.apply([policy("closed", "web", "Deny", &[9999, 80])]);
    let inbound = inbound_of(&index, "web-1.shop");
    let numbers: Vec<u16> = inbound.ports.iter().map(|p| p.port).collect();
    assert_eq!(numbers, [0, 8080, 9100, 9999]);
    assert_eq!(inbound.policy.rules[0].ports, [8080, 9999]);

    // Each of two Services allows the ports it leads to, and those of no Service.
    let also = a_service(
        "also.shop",
        &[],
        &[(80, None, 9100)],
        &[("10.244.0.5", Some("web-1"))],
    );
    index.apply([
        Edit::Service(Box::new(also)),
        policy("closed", "web", "Allow", &[]),
    ]);
    assert_eq!(
        inbound_of(&index, "web-1.shop").policy.rules[0].ports,
        [0, 8080]
    );
}

#[test]
fn a_port_that_an_egress_goes_through_is_its_gateway() {
    let mut index = shop();
    let egress = |port: u16| {
        let gateway = json!({ "service": "web", "port": port });
        let spec = json!({ "hosts": ["books.test"], "gateway": gateway });
        object("tulle.dev/v1alpha1", "Egress", "books", spec)
    };
    let gateways = |index: &Index| -> Vec<u16> {
        let ports = inbound_of(index, "web-1.shop").ports.into_iter();
        ports.filter(|p| p.egress).map(|p| p.port).collect()
    };
    index.apply([egress(80)]);
    assert_eq!(gateways(&index), [8080]);
    assert!(index.get("egress").is_some());
    // Through what is not there nothing leaves, until it is.
    index.apply([egress(81)]);
    assert_eq!(gateways(&index), [0u16; 0]);
    assert!(index.get("egress").is_none());
    index.apply([egress(80), Edit::RemoveService(named("web.shop"))]);
    assert!(index.get("egress").is_none());
    index.apply([service_of(
        "web.shop",
        Some("10.96.0.20"),
        &[("web-1.shop", "10.244.0.5", true)],
    )]);
    assert!(index.get("egress").is_some());
    // One of another namespace makes nobody a gateway.
    let manifest = json!({
        "apiVersion": "tulle.dev/v1alpha1", "kind": "Egress",
        "metadata": { "name": "books", "namespace": "evil" },
        "spec": { "hosts": ["books.test"], "gateway": { "service": "web", "port": 80 } },
    });
    let mut evil = Object::from_json(&manifest.to_string()).unwrap();
    evil.qualify();
    index.apply([egress(81), Edit::Put(Box::new(evil))]);
    assert_eq!(gateways(&index), [0u16; 0]);

    // Demands on requests cannot be met there.
    let limit = json!({
        "targetRefs": [{ "kind": "Service", "name": "web" }], "requests": { "count": 1, "per": "1s" },
    });
    index.apply([
        egress(80),
        object("tulle.dev/v1alpha1", "RateLimit", "r", limit),
    ]);
    let inbound = inbound_of(&index, "web-1.shop");
    let port = inbound.ports.iter().find(|p| p.egress).unwrap();
    assert!(port.rules.is_empty());
    let closed = inbound
        .policy
        .rules
        .iter()
        .any(|r| r.action == Action::Deny && r.ports == [8080]);
    assert!(closed, "{:?}", inbound.policy);
}

/// Else a pod with nothing but a proxy would forward to itself.
#[test]
fn every_port_of_an_egress_gateway_takes_connect_and_nothing_else() {
    let mut index = cluster();
    let pod = ClusterPod {
        egress_gateway: true,
        direct: vec![15020],
        ..a_pod("out-1.shop", "out-tulle", "10.244.0.9", &[])
    };
    let endpoints = [("10.244.0.9", Some("out-1"))];
    let out = a_service("out-tulle.shop", &[], &[(443, None, 10443)], &endpoints);
    index.apply([Edit::Pod(Box::new(pod))]);
    let ports = |index: &Index| -> Vec<(u16, bool)> {
        let ports = inbound_of(index, "out-1.shop").ports.into_iter();
        ports.map(|p| (p.port, p.egress)).collect()
    };
    assert_eq!(ports(&index), [(0, true), (15020, true)]);
    index.apply([Edit::Service(Box::new(out))]);
    let all = [(0, true), (10443, true), (15020, true)];
    assert_eq!(ports(&index), all);
    // Callers find it in mutual TLS, by its own account.
    let seen = service(&index, "out-tulle.shop");
    assert!(seen.ports[0].endpoints[0].mutual_tls);
    let account = "spiffe://tulle.local/ns/shop/sa/out-tulle";
    assert_eq!(seen.identities[0].as_str(), account);
    // With an Egress and without one.
    let gateway = json!({ "service": "out-tulle", "port": 443 });
    let spec = json!({ "hosts": ["books.test"], "gateway": gateway });
    index.apply([object("tulle.dev/v1alpha1", "Egress", "books", spec)]);
    assert!(index.get("egress").is_some());
    assert_eq!(ports(&index), all);

    // Demands on requests close the port, as they cannot be met.
    let limit = json!({
        "targetRefs": [{ "kind": "Service", "name": "out-tulle" }],
        "requests": { "count": 1, "per": "1s" },
    });
    index.apply([object("tulle.dev/v1alpha1", "RateLimit", "r", limit)]);
    let closed =
        |r: &tulle_model::resource::PolicyRule| r.action == Action::Deny && r.ports == [10443];
    assert!(
        inbound_of(&index, "out-1.shop")
            .policy
            .rules
            .iter()
            .any(closed)
    );
}

/// Two endpoints in zone `a`, of which one is meant for zone `b`.
fn hinted(sticky: bool, node_local: bool, zones: [&str; 2]) -> Edit {
    let both = [("10.244.0.5", Some("web-1")), ("10.244.0.6", Some("web-2"))];
    let mut service = a_service("web.shop", &["10.96.0.20"], &[(80, None, 8080)], &both);
    (service.sticky, service.node_local) = (sticky, node_local);
    let endpoints = service.ports[0].endpoints.iter_mut();
    for ((endpoint, zone), node) in endpoints.zip(zones).zip(["n1", ""]) {
        endpoint.node = node.into();
        endpoint
            .zones
            .extend((!zone.is_empty()).then(|| zone.to_owned()));
    }
    Edit::Service(Box::new(service))
}

#[test]
fn clients_keep_to_what_a_service_says_of_endpoints() {
    let mut index = shop();
    let seen = |index: &Index| {
        let port = service(index, "web.shop").ports.remove(0);
        let places: Vec<String> = port.endpoints.into_iter().map(|e| e.locality).collect();
        (places, port.traffic.map(|t| *t))
    };
    let said = |balancer, locality: Option<Locality>| Traffic {
        name: "Service/web.shop".into(),
        balancer,
        locality: locality.map(Box::new),
        ..Default::default()
    };
    let (source, turn) = (Balancer::RingHash(HashKey::Source), Balancer::RoundRobin);
    let own = ["here/a".to_owned(), "here/a".to_owned()];
    index.apply([hinted(true, false, ["here/a", ""])]);
    // Hints count if all endpoints have one.
    assert_eq!(
        seen(&index),
        (own.to_vec(), Some(said(source.clone(), None)))
    );
    index.apply([hinted(false, false, ["here/a", "here/b"])]);
    let hints = vec!["here/a".to_owned(), "here/b".to_owned()];
    let zone = Locality {
        healthy_percent: 1,
        failover: Vec::new(),
    };
    assert_eq!(seen(&index), (hints, Some(said(turn.clone(), Some(zone)))));
    index.apply([hinted(true, true, ["here/a", "here/b"])]);
    let nodes = vec!["here/a/n1".to_owned(), "here/a".to_owned()];
    let node = Locality::same_node();
    let both = said(source.clone(), Some(node.clone()));
    assert_eq!(seen(&index), (nodes.clone(), Some(both)));

    // A TrafficPolicy may say another way, but not that of another node.
    let policy = |spec: Value| {
        let mut policy = json!({ "targetRefs": [{ "name": "web" }] });
        policy
            .as_object_mut()
            .unwrap()
            .extend(spec.as_object().unwrap().clone());
        object("tulle.dev/v1alpha1", "TrafficPolicy", "p", policy)
    };
    index.apply([policy(json!({ "locality": {}, "slowStart": "1s" }))]);
    let traffic = seen(&index).1.unwrap();
    assert_eq!((traffic.balancer, traffic.slow_start_ms), (source, 1000));
    assert_eq!(traffic.locality, Some(Box::new(node)));
    index.apply([
        policy(json!({ "loadBalancer": { "type": "RoundRobin" }, "locality": {} })),
        hinted(true, false, ["here/a", "here/b"]),
    ]);
    let traffic = seen(&index).1.unwrap();
    assert_eq!(traffic.balancer, turn);
    assert_eq!(traffic.locality, Some(Box::default()));
    index.apply([Edit::RemoveService(named("web.shop"))]);
    assert!(index.get("service/web.shop").is_none());
}

#[test]
fn a_sidecar_knows_its_node() {
    let mut index = shop();
    let mut place = |locality: &str, node: &str| {
        let pod = ClusterPod {
            locality: locality.into(),
            node: node.into(),
            ..a_pod("web-1.shop", "web", "10.244.0.5", &[8080])
        };
        assert_eq!(pod.name, named("web-1.shop"));
        index.apply([Edit::Pod(Box::new(pod))]);
        let known = service(&index, "pod/web-1.shop").ports[0].endpoints[0].clone();
        assert_eq!(known.locality, locality);
        inbound_of(&index, "web-1.shop").locality
    };
    assert_eq!(place("here/a", "n1"), "here/a/n1");
    assert_eq!(place("here", "n1"), "here//n1");
    assert_eq!(place("", "n1"), "//n1");
    assert_eq!(place("here/a", ""), "here/a");
}

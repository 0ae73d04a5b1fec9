//! Services and pods of a cluster.

use super::*;
use std::net::{IpAddr, SocketAddr};
use tulle_model::manifest::WorkloadPort;
use tulle_model::namespaced::Namespaced;
use tulle_model::resource::PolicyRule;

pub(super) fn cluster() -> Index {
    Index::of_cluster(TrustDomain::default(), "tulle-system")
}

pub(super) fn named(qualified: &str) -> Namespaced {
    Namespaced::parse(qualified).unwrap()
}

pub(super) fn number(port: u16, protocol: Option<&str>) -> WorkloadPort {
    let mut port = json!({ "port": port });
    if let Some(protocol) = protocol {
        port["appProtocol"] = protocol.into();
    }
    serde_json::from_value(port).unwrap()
}

/// A Service whose port 80 is served by pods at their port 8080.
pub(super) fn service_of(name: &str, ip: Option<&str>, pods: &[(&str, &str, bool)]) -> Edit {
    let endpoints = pods.iter().map(|(pod, ip, ready)| ClusterEndpoint {
        address: SocketAddr::new(ip.parse().unwrap(), 8080),
        pod: Some(named(pod).name().to_owned()),
        ready: *ready,
        node: String::new(),
        zones: Vec::new(),
    });
    Edit::Service(Box::new(ClusterService {
        name: named(name),
        created: String::new(),
        addresses: ip.iter().map(|ip| ip.parse().unwrap()).collect(),
        ports: vec![ClusterPort {
            port: number(80, Some("http")),
            endpoints: endpoints.collect(),
        }],
        sticky: false,
        node_local: false,
    }))
}

pub(super) fn pod(name: &str, account: &str, ip: &str, sidecar: bool) -> Edit {
    Edit::Pod(Box::new(ClusterPod {
        workload: std::sync::Arc::default(),
        name: named(name),
        created: String::new(),
        account: account.into(),
        addresses: vec![ip.parse::<IpAddr>().unwrap()],
        ports: vec![8080, 9100],
        opaque: Vec::new(),
        direct: Vec::new(),
        node: String::new(),
        sidecar,
        egress_gateway: false,
        locality: "here/a".into(),
    }))
}

/// An object of the namespace `shop`.
pub(super) fn object(api: &str, kind: &str, name: &str, spec: Value) -> Edit {
    let manifest = json!({
        "apiVersion": api, "kind": kind, "metadata": { "name": name, "namespace": "shop" }, "spec": spec,
    });
    let mut object = Object::from_json(&manifest.to_string()).unwrap();
    object.qualify();
    Edit::Put(Box::new(object))
}

/// `to` of the namespace `shop`, `from` as `(name, namespace)`.
fn target(to: &str, from: (&str, &str)) -> Edit {
    let spec = json!({
        "destination": { "kind": "ServiceAccount", "name": to },
        "sources": [{ "kind": "ServiceAccount", "name": from.0, "namespace": from.1 }],
        "rules": [],
    });
    object("access.smi-spec.io/v1alpha3", "TrafficTarget", "t", spec)
}

fn inbound(index: &Index, name: &str) -> Inbound {
    match resource(index, &format!("inbound/{name}")) {
        Resource::Inbound(inbound) => inbound,
        other => panic!("{other:?}"),
    }
}

/// web.shop with two pods, of which one has no sidecar and one is not ready.
fn shop() -> Index {
    let mut index = cluster();
    index.apply([
        pod("web-1.shop", "web", "10.244.0.5", true),
        pod("web-2.shop", "web", "10.244.0.6", false),
        pod("web-3.shop", "web", "10.244.0.7", true),
        service_of(
            "web.shop",
            Some("10.96.0.20"),
            &[
                ("web-1.shop", "10.244.0.5", true),
                ("web-2.shop", "10.244.0.6", true),
                ("web-3.shop", "10.244.0.7", false),
            ],
        ),
    ]);
    index
}

#[test]
fn a_service_has_its_ready_pods() {
    let index = shop();
    let web = service(&index, "web.shop");
    let ids: Vec<&str> = web.identities.iter().map(SpiffeId::as_str).collect();
    assert_eq!(ids, ["spiffe://tulle.local/ns/shop/sa/web"]);
    assert_eq!(web.addresses, ["10.96.0.20".parse::<IpAddr>().unwrap()]);
    assert_eq!(
        (web.ports[0].port, web.ports[0].protocol),
        (80, Protocol::Http)
    );
    let seen: Vec<_> = web.ports[0]
        .endpoints
        .iter()
        .map(|e| (e.address.to_string(), e.mutual_tls, e.locality.as_str()))
        .collect();
    assert_eq!(
        seen,
        [
            ("10.244.0.5:8080".to_owned(), true, "here/a"),
            ("10.244.0.6:8080".to_owned(), false, "here/a"),
        ]
    );
    for host in ["web.shop", "web.shop.svc", "web.shop.svc.cluster.local"] {
        let owner = resource(&index, &format!("host/{host}"));
        assert_eq!(owner, Resource::Host("web.shop".into()));
    }
    assert_eq!(
        resource(&index, "address/10.96.0.20"),
        Resource::Alias("web.shop".into())
    );
}

/// Or it would be called as one without a sidecar.
#[test]
fn nobody_is_told_of_a_pod_before_it_is_known() {
    let mut index = shop();
    let four = ("web-4.shop", "10.244.0.8", true);
    index.apply([service_of("web.shop", None, &[four])]);
    assert_eq!(service(&index, "web.shop").ports[0].endpoints, []);
    index.apply([pod("web-4.shop", "web", "10.244.0.8", true)]);
    let endpoints = service(&index, "web.shop").ports.remove(0).endpoints;
    assert!(endpoints.len() == 1 && endpoints[0].mutual_tls);
    index.apply([Edit::RemovePod(named("web-4.shop"))]);
    assert_eq!(service(&index, "web.shop").ports[0].endpoints, []);
}

#[test]
fn a_pod_of_both_families_is_one_endpoint() {
    let both = |name: &str, ips: [&str; 2]| match pod(name, "web", ips[0], true) {
        Edit::Pod(mut pod) => {
            pod.addresses.push(ips[1].parse().unwrap());
            Edit::Pod(pod)
        }
        other => other,
    };
    let seen = |endpoints: &[(&str, &str, bool)]| {
        let mut index = cluster();
        index.apply([
            both("web-1.shop", ["10.244.0.5", "fd00::5"]),
            both("web-2.shop", ["fd00::6", "10.244.0.6"]),
            service_of("web.shop", Some("10.96.0.20"), endpoints),
        ]);
        let web = service(&index, "web.shop");
        let endpoints = web.ports[0].endpoints.iter();
        endpoints.map(|e| e.address.to_string()).collect::<Vec<_>>()
    };
    let all = [
        ("web-1.shop", "10.244.0.5", true),
        ("web-2.shop", "10.244.0.6", true),
        ("web-1.shop", "fd00::5", true),
        ("web-2.shop", "fd00::6", true),
    ];
    // Each pod appears with its first address, in the order of the endpoints.
    assert_eq!(seen(&all), ["10.244.0.5:8080", "[fd00::6]:8080"]);
    // A service with one address family gets its pods' addresses of that family, even if another
    // comes first.
    assert_eq!(seen(&all[2..]), ["[fd00::5]:8080", "[fd00::6]:8080"]);
    // An address that is not ready does not take the place of one that is.
    let unready = [("web-1.shop", "10.244.0.5", false), all[2]];
    assert_eq!(seen(&unready), ["[fd00::5]:8080"]);
}

#[test]
fn a_sidecar_accepts_at_the_ports_of_its_pod() {
    let index = shop();
    let entry = index.get("inbound/web-1.shop").unwrap();
    let owner = entry.owner.as_ref().map(SpiffeId::as_str);
    assert_eq!(owner, Some("spiffe://tulle.local/ns/shop/sa/web"));
    let inbound = inbound(&index, "web-1.shop");
    let ports: Vec<_> = inbound
        .ports
        .iter()
        .map(|p| (p.port, p.protocol, p.target.to_string()))
        .collect();
    assert_eq!(
        ports,
        [
            (0, Protocol::Detect, "10.244.0.5:0".into()),
            (8080, Protocol::Http, "10.244.0.5:8080".into()),
            (9100, Protocol::Detect, "10.244.0.5:9100".into()),
        ]
    );
    assert!(index.get("inbound/web-2.shop").is_none());
}

#[test]
fn a_pod_is_called_by_its_address() {
    let index = shop();
    assert_eq!(
        resource(&index, "address/10.244.0.6"),
        Resource::Alias("pod/web-2.shop".into())
    );
    let pod = service(&index, "pod/web-1.shop");
    let port = pod.ports.iter().find(|p| p.port == 8080).unwrap();
    assert_eq!(port.endpoints[0].address.to_string(), "10.244.0.5:8080");
    assert!(port.endpoints[0].mutual_tls);
    assert_eq!(pod.identities.len(), 1);
}

#[test]
fn policy_names_accounts_and_ports_of_services() {
    let mut index = shop();
    index.apply([
        object(
            "tulle.dev/v1alpha1",
            "AuthorizationPolicy",
            "only-front",
            json!({
                "targetRefs": [{ "kind": "Service", "name": "web" }],
                "rules": [{
                    "from": { "serviceAccounts": ["front"] },
                    "to": { "ports": [80] },
                }],
            }),
        ),
        target("web", ("other", "elsewhere")),
    ]);
    let mut rules: Vec<PolicyRule> = inbound(&index, "web-1.shop").policy.rules;
    rules.sort_by(|a, b| a.name.cmp(&b.name));
    let seen: Vec<_> = rules
        .iter()
        .map(|r| (r.sources[0].as_str(), r.ports.as_slice()))
        .collect();
    assert_eq!(
        seen,
        [
            ("spiffe://tulle.local/ns/shop/sa/front", [8080].as_slice()),
            ("spiffe://tulle.local/ns/elsewhere/sa/other", [].as_slice()),
        ]
    );
}

#[test]
fn an_answer_knows_policies_of_accounts() {
    let mut index = shop();
    let ask = |index: &Index, account: &str| {
        let asked = v1::ExplainRequest {
            from: format!("spiffe://tulle.local/ns/shop/sa/{account}"),
            to: "web.shop".into(),
            ..Default::default()
        };
        index.explain(&asked).unwrap()
    };
    assert!(!ask(&index, "client").allowed);
    index.apply([target("web", ("client", "shop"))]);
    let client = ask(&index, "client");
    assert_eq!(
        (client.allowed, client.policy.as_str()),
        (true, "TrafficTarget/t.shop")
    );
    let stranger = ask(&index, "stranger");
    assert!(!stranger.allowed);
    assert_eq!(stranger.reason, "no policy allows it: denied with 403");
}

#[test]
fn an_answer_knows_the_ports_of_pods() {
    let mut index = shop();
    for (port, allowed) in [(80, true), (8080, true), (81, false)] {
        index.apply([object(
            "tulle.dev/v1alpha1",
            "AuthorizationPolicy",
            "p",
            json!({
                "targetRefs": [{ "kind": "Service", "name": "web" }],
                "rules": [{ "from": { "serviceAccounts": ["front"] }, "to": { "ports": [port] } }],
            }),
        )]);
        let asked = v1::ExplainRequest {
            from: "spiffe://tulle.local/ns/shop/sa/front".into(),
            to: "web.shop".into(),
            port: 80,
            ..Default::default()
        };
        let rules = inbound(&index, "web-1.shop").policy.rules;
        // 81 may be another port of the pod.
        assert_eq!(rules[0].ports, [if port == 80 { 8080 } else { port }]);
        let answer = index.explain(&asked).unwrap();
        assert_eq!(answer.allowed, allowed, "{port}: {}", answer.reason);
    }
}

#[test]
fn a_pod_of_two_services_accepts_what_either_allows() {
    let mut index = shop();
    index.apply([service_of(
        "also.shop",
        None,
        &[("web-1.shop", "10.244.0.5", true)],
    )]);
    let rule = |service: &str, from: &str| {
        object(
            "tulle.dev/v1alpha1",
            "AuthorizationPolicy",
            from,
            json!({
                "targetRefs": [{ "kind": "Service", "name": service }],
                "rules": [{ "from": { "serviceAccounts": [from] } }],
            }),
        )
    };
    index.apply([rule("also", "one"), rule("web", "two")]);
    let policy = inbound(&index, "web-1.shop").policy;
    assert_eq!(policy.rules.len(), 2, "{policy:?}");
    index.apply([Edit::RemoveService(named("also.shop"))]);
    let policy = inbound(&index, "web-1.shop").policy;
    assert_eq!(policy.rules.len(), 1, "{policy:?}");
}

#[test]
fn what_is_gone_is_gone() {
    let mut index = shop();
    let changed = index.apply([
        Edit::RemovePod(named("web-1.shop")),
        Edit::RemoveService(named("web.shop")),
    ]);
    assert!(
        changed
            .iter()
            .any(|(n, e)| &**n == "inbound/web-1.shop" && e.is_none())
    );
    for name in [
        "service/web.shop",
        "address/10.96.0.20",
        "service/pod/web-1.shop",
    ] {
        assert!(index.get(name).is_none(), "{name}");
    }
}

#[test]
fn an_account_of_a_pod_is_an_identity() {
    let index = shop();
    let is = |id: &str| index.inputs().has_identity(&SpiffeId::parse(id).unwrap());
    assert!(is("spiffe://tulle.local/ns/shop/sa/web"));
    assert!(!is("spiffe://tulle.local/ns/web/sa/shop"));
    assert!(!is("spiffe://tulle.local/svc/web.shop"));
    assert!(!is("spiffe://elsewhere/ns/shop/sa/web"));
}

fn some_edit() -> impl Strategy<Value = Edit> {
    let name = || prop::sample::select(vec!["a.shop", "b.shop", "a.y"]);
    let plain = || prop::sample::select(vec!["a", "b"]);
    let ip = || prop::sample::select(vec!["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
    let pods = || prop::collection::vec((name(), ip(), any::<bool>()), 0..3);
    prop_oneof![
        (name(), prop::option::of(ip()), pods())
            .prop_map(|(name, ip, pods)| service_of(name, ip, &pods)),
        (name(), name(), ip(), any::<bool>()).prop_map(|(name, account, ip, sidecar)| pod(
            name,
            named(account).name(),
            ip,
            sidecar
        )),
        name().prop_map(|n| Edit::RemoveService(named(n))),
        name().prop_map(|n| Edit::RemovePod(named(n))),
        (plain(), plain()).prop_map(|(to, from)| target(to, (from, "y"))),
        (plain(), plain()).prop_map(|(to, from)| object(
            "tulle.dev/v1alpha1",
            "IngressBackend",
            "i",
            json!({
                "backends": [{ "name": to }],
                "sources": [{ "kind": "Service", "name": from }],
            }),
        )),
        any::<bool>().prop_map(|p| mesh(json!({ "permissiveMode": p }))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// An edit recomputes every unit that it is part of; `tests.rs` checks the same for objects.
    #[test]
    fn incremental_is_the_same_as_from_scratch(edits in prop::collection::vec(some_edit(), 1..40)) {
        let mut index = cluster();
        for edit in edits {
            index.apply([edit]);
        }
        let mut dirty = BTreeSet::new();
        dependents::all(index.inputs(), &mut dirty);
        let changed = index.recompute(dirty);
        prop_assert!(changed.is_empty(), "{:?}", names(&changed));
    }
}

fn edge(attached: &[(&str, &str)]) -> Edit {
    let spec = json!({ "listeners": [
        { "name": "web", "port": 80, "protocol": "HTTP" },
        { "name": "shop", "port": 80, "protocol": "HTTP", "hostname": "*.shop.example" },
        { "name": "tls", "port": 443, "protocol": "TLS", "hostname": "*.shop.example",
          "tls": { "mode": "Passthrough" } },
    ] });
    let attached = attached.iter().map(|(route, listener)| Attachment {
        route: (*route).into(),
        listener: (*listener).into(),
    });
    Edit::Gateway(Box::new(ClusterGateway {
        name: named("edge.infra"),
        account: "edge-tulle".into(),
        spec: serde_json::from_value(spec).unwrap(),
        attached: attached.collect(),
    }))
}

#[test]
fn a_gateway_has_the_routes_that_are_attached_and_no_others() {
    let api = "gateway.networking.k8s.io/v1";
    let parent = json!([{ "name": "edge", "namespace": "infra" }]);
    let spec = json!({ "parentRefs": parent, "rules": [{ "backendRefs": [{ "name": "web", "port": 80 }] }] });
    let mut index = shop();
    index.apply([object(api, "HTTPRoute", "web", spec.clone()), edge(&[])]);
    let mut tls = spec;
    tls["hostnames"] = json!(["*.example", "a.other"]);
    index.apply([object(
        "gateway.networking.k8s.io/v1alpha2",
        "TLSRoute",
        "web",
        tls,
    )]);
    let gateway = |index: &Index| match resource(index, "gateway/edge.infra") {
        Resource::Gateway(gateway) => gateway,
        other => panic!("{other:?}"),
    };
    let places = |index: &Index| -> Vec<(u16, String)> {
        let routes = gateway(index).routes.into_iter();
        routes.map(|r| (r.port, r.listener)).collect()
    };
    // The controller of Gateways judges what their listeners allow; the index attaches nothing by
    // itself.
    assert!(places(&index).is_empty());
    assert!(gateway(&index).tls_routes.is_empty());
    let owner = &index.get("gateway/edge.infra").unwrap().owner;
    let owner = owner.as_ref().map(SpiffeId::as_str);
    assert_eq!(owner, Some("spiffe://tulle.local/ns/infra/sa/edge-tulle"));
    index.apply([edge(&[("HTTPRoute/web.shop", "shop")])]);
    assert_eq!(places(&index), [(80, "shop".to_owned())]);
    let both = [
        ("HTTPRoute/web.shop", "shop"),
        ("HTTPRoute/web.shop", "web"),
        ("TLSRoute/web.shop", "tls"),
    ];
    index.apply([edge(&both)]);
    assert_eq!(places(&index), [(0, String::new())]);
    assert_eq!(gateway(&index).tls_routes.len(), 1);
    // An object that no controller has judged gives no gateway.
    let spec = json!({ "listeners": [{ "name": "x", "port": 1, "protocol": "HTTP" }] });
    index.apply([object(api, "Gateway", "other", spec)]);
    assert!(index.get("gateway/other.shop").is_none());
    index.apply([Edit::RemoveGateway(named("edge.infra"))]);
    assert!(index.get("gateway/edge.infra").is_none());
}

/// In the Service's own namespace a route is for everybody, elsewhere for those of that namespace.
#[test]
fn routes_of_other_namespaces_are_for_their_clients() {
    let mut index = shop();
    let spec = json!({
        "parentRefs": [{ "group": "", "kind": "Service", "name": "web", "namespace": "shop" }],
        "rules": [{ "backendRefs": [{ "name": "web", "namespace": "shop", "port": 80 }] }],
    });
    for namespace in ["shop", "other"] {
        let route = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": { "name": "r.v1", "namespace": namespace }, "spec": spec,
        });
        let mut route = Object::from_json(&route.to_string()).unwrap();
        route.qualify();
        index.apply([Edit::Put(Box::new(route))]);
    }
    let Resource::Service(web) = resource(&index, "service/web.shop") else {
        panic!("no service");
    };
    let clients: BTreeSet<_> = web.routes.iter().map(|r| (&*r.name, &*r.clients)).collect();
    assert_eq!(
        clients,
        BTreeSet::from([("r.v1.shop", ""), ("r.v1.other", "other")])
    );
}

/// The namespace is what comes after the last dot.
#[test]
fn names_may_have_dots() {
    let mut index = cluster();
    index.apply([
        pod("web-1.shop", "web.example", "10.244.0.5", true),
        service_of("web.shop", None, &[("web-1.shop", "10.244.0.5", true)]),
        target("web.example", ("cart.example", "other")),
    ]);
    let id = "spiffe://tulle.local/ns/shop/sa/web.example";
    assert!(index.inputs().has_identity(&SpiffeId::parse(id).unwrap()));
    let rules = inbound(&index, "web-1.shop").policy.rules;
    let sources = rules.iter().flat_map(|r| &r.sources);
    let sources: Vec<&str> = sources.map(SpiffeId::as_str).collect();
    assert_eq!(sources, ["spiffe://tulle.local/ns/other/sa/cart.example"]);
}

#[test]
fn hosts_in_common() {
    for (listener, route, common) in [
        ("", "", Some("")),
        ("", "a.b", Some("a.b")),
        ("a.b", "", Some("a.b")),
        ("A.b", "a.B", Some("a.b")),
        ("*.b", "a.b", Some("a.b")),
        ("*.b", "x.a.b", Some("x.a.b")),
        ("a.b", "*.b", Some("a.b")),
        ("*.b", "*.a.b", Some("*.a.b")),
        ("*.b", "b", None),
        ("*.b", "a.c", None),
        ("a.b", "ba", None),
    ] {
        let route: Vec<String> = [route]
            .iter()
            .filter(|r| !r.is_empty())
            .map(|r| (*r).into())
            .collect();
        let found = common_hosts(listener, &route).map(|c| c.join(" "));
        assert_eq!(found.as_deref(), common, "{listener} {route:?}");
    }
}

#[test]
fn of_equal_routes_the_oldest_is_first() {
    let mut index = shop();
    let made = |kind: &str, name: &str, created: &str| {
        let api = "gateway.networking.k8s.io/v1";
        let rules = json!([{ "backendRefs": [{ "name": "web", "port": 80 }] }]);
        let parent = json!({ "kind": "Service", "group": "", "name": "web", "port": 80 });
        let spec = json!({ "parentRefs": [parent], "rules": rules });
        let Edit::Put(mut route) = object(api, kind, name, spec) else {
            panic!("not an object");
        };
        route.metadata_mut().created = created.to_owned();
        Edit::Put(route)
    };
    let (late, early) = ("2026-02-01T00:00:00Z", "2026-01-31T00:00:00Z");
    index.apply([
        made("HTTPRoute", "a", late),
        made("HTTPRoute", "ba", early),
        made("HTTPRoute", "b", early),
        made("GRPCRoute", "c", "2025-12-31T00:00:00Z"),
        made("TCPRoute", "a", late),
        made("TCPRoute", "b", early),
        made("TLSRoute", "a", late),
        made("TLSRoute", "b", early),
    ]);
    let web = match resource(&index, "service/web.shop") {
        Resource::Service(service) => service,
        other => panic!("{other:?}"),
    };
    let names: Vec<&str> = web.routes.iter().map(|r| &*r.name).collect();
    assert_eq!(names, ["GRPCRoute/c.shop", "b.shop", "ba.shop", "a.shop"]);
    assert_eq!(web.tcp_routes[0].name, "TCPRoute/b.shop");
    assert_eq!(web.tls_routes[0].name, "TLSRoute/b.shop");
    index.apply([Edit::Delete {
        kind: "HTTPRoute".into(),
        name: "b.shop".into(),
    }]);
    index.apply([made("HTTPRoute", "b", late)]);
    let Resource::Service(web) = resource(&index, "service/web.shop") else {
        panic!("no service");
    };
    let names: Vec<&str> = web.routes.iter().map(|r| &*r.name).collect();
    assert_eq!(names, ["GRPCRoute/c.shop", "ba.shop", "a.shop", "b.shop"]);
}

#[test]
fn a_policy_about_no_service_is_a_problem() {
    let mut index = shop();
    let about = |service: &str| {
        let spec = json!({
            "targetRefs": [{ "kind": "Service", "name": service }],
            "rules": [{ "from": { "serviceAccounts": ["cart"] } }],
        });
        object("tulle.dev/v1alpha1", "AuthorizationPolicy", "p", spec)
    };
    index.apply([about("web")]);
    assert!(index.problems().is_empty(), "{:?}", index.problems());
    index.apply([about("wbe")]);
    let problems: Vec<String> = index.problems().iter().map(ToString::to_string).collect();
    assert_eq!(
        problems,
        ["AuthorizationPolicy/p.shop: service wbe.shop, which it is about, does not exist"]
    );
}

#[test]
fn a_strict_namespace_is_strict_for_its_own_workloads_and_no_others() {
    let mut index = shop();
    index.apply([
        mesh(json!({ "permissiveMode": true, "mtls": { "mode": "permissive" }, "allowEgress": true })),
        Edit::StrictNamespaces(BTreeSet::from(["shop".to_owned()])),
        pod("lone-1.apps", "lone", "10.244.0.9", true),
        service_of("lone.apps", None, &[("lone-1.apps", "10.244.0.9", true)]),
    ]);
    let Resource::Mesh(settings) = resource(&index, "mesh") else {
        panic!("no settings");
    };
    let of = |id: &str| {
        let own = settings.clone().of_workload(&SpiffeId::parse(id).unwrap());
        (own.strict_mtls, own.allow_egress)
    };
    assert_eq!(of("spiffe://tulle.local/ns/shop/sa/web"), (true, false));
    assert_eq!(of("spiffe://tulle.local/ns/apps/sa/lone"), (false, true));
    let why = |from: &str, to: &str| {
        let asked = v1::ExplainRequest {
            from: from.into(),
            to: to.into(),
            ..Default::default()
        };
        index.explain(&asked).unwrap()
    };
    let (web, lone) = (
        "spiffe://tulle.local/ns/shop/sa/web",
        "spiffe://tulle.local/ns/apps/sa/lone",
    );
    assert_eq!(why(lone, "web.shop").mtls, "strict");
    assert_eq!(why(web, "lone.apps").mtls, "permissive");
    assert!(why(lone, "api.example.com").allowed);
    let held = why(web, "api.example.com");
    assert!(
        !held.allowed && held.reason.contains("namespace shop is strict"),
        "{held:?}"
    );
    // The namespace is again as the mesh says.
    index.apply([Edit::StrictNamespaces(BTreeSet::new())]);
    assert!(why_allowed(&index, web));
}

fn why_allowed(index: &Index, from: &str) -> bool {
    let asked = v1::ExplainRequest {
        from: from.into(),
        to: "api.example.com".into(),
        ..Default::default()
    };
    index.explain(&asked).unwrap().allowed
}

/// A caller without a sidecar, by its address.
#[test]
fn explains_what_becomes_of_plaintext() {
    let mut index = shop();
    let open = |spec: Value| mesh(spec);
    let why = |index: &Index| {
        let asked = v1::ExplainRequest {
            from: "plaintext:10.244.3.3".into(),
            to: "web.shop".into(),
            path: "/admin".into(),
            ..Default::default()
        };
        index.explain(&asked).unwrap()
    };
    index.apply([open(
        json!({ "permissiveMode": true, "mtls": { "mode": "permissive" } }),
    )]);
    let answer = why(&index);
    assert!(
        answer.allowed && answer.reason.contains("in plaintext"),
        "{answer:?}"
    );
    assert_eq!(answer.mtls, "permissive");
    // A caller that shows no identity could be the one whose name is denied.
    let policy = |spec: Value| object("tulle.dev/v1alpha1", "AuthorizationPolicy", "p", spec);
    let refs = json!([{ "kind": "Service", "name": "web" }]);
    index.apply([policy(json!({
        "targetRefs": refs, "action": "Deny", "rules": [{ "from": { "principals": ["spiffe://t/ns/a/sa/b"] } }],
    }))]);
    let answer = why(&index);
    assert!(
        !answer.allowed && answer.policy.contains("AuthorizationPolicy/p"),
        "{answer:?}"
    );
    index.apply([
        policy(
            json!({ "targetRefs": refs, "rules": [{ "from": { "networks": ["10.244.3.0/24"] } }] }),
        ),
        open(json!({ "permissiveMode": true })),
    ]);
    assert!(
        why(&index).allowed,
        "let in by its address, also where mutual TLS is strict"
    );
    index.apply([
        Edit::Delete {
            kind: "AuthorizationPolicy".into(),
            name: "p.shop".into(),
        },
        open(json!({ "permissiveMode": true, "mtls": { "mode": "permissive" } })),
        Edit::StrictNamespaces(BTreeSet::from(["shop".to_owned()])),
    ]);
    let answer = why(&index);
    assert!(
        !answer.allowed && answer.reason.contains("plaintext_refused"),
        "{answer:?}"
    );
    assert_eq!(answer.mtls, "strict");
}

mod bounds;

use super::seen::SERVICE_OF_SLICE;
use super::*;
use crate::inject;
use crate::names::{
    EGRESS_GATEWAY, EXCLUDE_INBOUND_PORTS, HEALTH_PORT, METRICS_PORT, OPAQUE_PORTS, SIDECAR,
};
use serde_json::{Value, json};
use tulle_control::index::{ClusterService, Index};
use tulle_model::identity::TrustDomain;
use tulle_model::manifest::Object;

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn named(qualified: &str) -> Namespaced {
    Namespaced::parse(qualified).unwrap()
}

fn service(spec: Value) -> Service {
    from(json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": spec}))
}

fn slice(name: &str, endpoints: Value) -> EndpointSlice {
    from(json!({
        "metadata": {
            "name": name, "namespace": "shop", "labels": {SERVICE_OF_SLICE: "web"},
        },
        "addressType": "IPv4",
        "ports": [
            {"name": "http", "port": 8080, "protocol": "TCP"},
            {"name": "dns", "port": 5353, "protocol": "UDP"},
        ],
        "endpoints": endpoints,
    }))
}

fn pod(containers: Value, status: Value) -> Pod {
    from(json!({
        "metadata": {"name": "web-1", "namespace": "shop"},
        "spec": {"containers": containers, "nodeName": "n1", "serviceAccountName": "web"},
        "status": status,
    }))
}

fn endpoint(ip: &str, conditions: Value) -> Value {
    json!({
        "addresses": [ip], "conditions": conditions,
        "targetRef": {"kind": "Pod", "name": "web-1", "namespace": "shop"},
    })
}

fn one(edits: Vec<Edit>) -> Edit {
    let [edit] = <[Edit; 1]>::try_from(edits).unwrap_or_else(|all| panic!("{all:?}"));
    edit
}

#[test]
fn a_namespace_s_label_makes_it_strict_also_if_it_is_misspelt() {
    let mut state = State::default();
    let mut seen = |name: &str, profile: Option<&str>| {
        let labels = profile.map(|p| json!({ PROFILE: p })).unwrap_or_default();
        let namespace = from(json!({ "metadata": { "name": name, "labels": labels } }));
        state.namespace(name.into(), &namespace);
        state.edits()
    };
    let strict = |edits: Vec<Edit>| match one(edits) {
        Edit::StrictNamespaces(names) => names.into_iter().collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert!(seen("shop", None).is_empty());
    assert!(seen("other", Some("permissive")).is_empty());
    assert_eq!(strict(seen("shop", Some("strict"))), ["shop"]);
    assert!(seen("shop", Some("strict")).is_empty());
    assert_eq!(strict(seen("apps", Some("Strict"))), ["apps", "shop"]);
    assert_eq!(strict(seen("shop", None)), ["apps"]);
    state.remove_namespace("apps");
    assert!(strict(state.edits()).is_empty());
}

fn web(state: &mut State) -> ClusterService {
    match one(state.edits()) {
        Edit::Service(service) => *service,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_service_has_the_endpoints_of_all_its_slices() {
    let mut state = State::default();
    let ports = json!([
        {"name": "http", "port": 80, "appProtocol": "kubernetes.io/ws"},
        {"name": "dns", "port": 53, "protocol": "UDP"},
    ]);
    let spec = json!({"clusterIPs": ["10.96.0.9", "fd00::9"], "ports": ports});
    state.service(named("web.shop"), &service(spec));
    let ready = endpoint("10.244.0.5", json!({"ready": true}));
    state.slice(named("a.shop"), &slice("a", json!([ready])));
    let ended = endpoint("10.244.0.6", json!({"ready": false, "terminating": true}));
    let unsaid = endpoint("10.244.0.7", json!({}));
    state.slice(named("b.shop"), &slice("b", json!([ended, unsaid])));
    let web = web(&mut state);
    assert_eq!(web.addresses.len(), 2);
    let [port] = web.ports.as_slice() else {
        panic!("{web:?}");
    };
    assert_eq!(
        (port.port.port, port.port.app_protocol.as_deref()),
        (80, Some("http"))
    );
    let seen: Vec<_> = port
        .endpoints
        .iter()
        .map(|e| (e.address.to_string(), e.ready))
        .collect();
    assert_eq!(
        seen,
        [
            ("10.244.0.5:8080".to_owned(), true),
            ("10.244.0.6:8080".to_owned(), false),
            ("10.244.0.7:8080".to_owned(), true),
        ]
    );
    assert_eq!(port.endpoints[0].pod.as_deref(), Some("web-1"));
    state.remove_slice(&named("b.shop"));
    assert_eq!(self::web(&mut state).ports[0].endpoints.len(), 1);
    assert!(state.edits().is_empty());
}

#[test]
fn a_pod_of_its_nodes_network_is_an_address_and_no_more() {
    let mut state = State::default();
    let spec = json!({"clusterIPs": ["10.96.0.9"], "ports": [{"name": "http", "port": 80}]});
    state.service(named("web.shop"), &service(spec));
    let ready = endpoint("10.200.0.2", json!({"ready": true}));
    state.slice(named("a.shop"), &slice("a", json!([ready])));
    let endpoint = |edits: Vec<Edit>| match edits.into_iter().next_back() {
        Some(Edit::Service(service)) => service.ports[0].endpoints[0].clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(endpoint(state.edits()).pod.as_deref(), Some("web-1"));
    let mut of_node = pod(json!([{"name": "web"}]), json!({"phase": "Running"}));
    of_node.spec.as_mut().unwrap().host_network = Some(true);
    state.pod(named("web-1.shop"), &of_node);
    let edits = state.edits();
    assert!(matches!(&edits[0], Edit::RemovePod(name) if name.as_str() == "web-1.shop"));
    assert_eq!(endpoint(edits).pod, None);
    // The next pod of this name has an address of its own, and is seen after its endpoint.
    let next = pod(json!([{"name": "web"}]), json!({"phase": "Running"}));
    state.pod(named("web-1.shop"), &next);
    assert_eq!(endpoint(state.edits()).pod.as_deref(), Some("web-1"));
    state.pod(named("web-1.shop"), &of_node);
    assert_eq!(endpoint(state.edits()).pod, None);
    state.remove_pod(&named("web-1.shop"));
    assert_eq!(endpoint(state.edits()).pod.as_deref(), Some("web-1"));
}

/// The controller is told of each pod of a DaemonSet again and again, and of many that have a node's network.
#[test]
fn a_pod_of_its_nodes_network_costs_no_look_at_the_endpoints_of_others() {
    let mut state = State::default();
    let spec = json!({"clusterIPs": ["10.96.0.9"], "ports": [{"name": "http", "port": 80}]});
    state.service(named("web.shop"), &service(spec));
    for number in 0..300 {
        let mut ready = endpoint("10.200.0.2", json!({"ready": true}));
        ready["targetRef"]["name"] = format!("web-{number}").into();
        let name = format!("slice-{number}");
        state.slice(
            named(&format!("{name}.shop")),
            &slice(&name, json!([ready])),
        );
    }
    state.edits();
    let mut of_node = pod(json!([{"name": "web"}]), json!({"phase": "Running"}));
    of_node.spec.as_mut().unwrap().host_network = Some(true);
    for _ in 0..2 {
        state.looked_at.set(0);
        state.pod(named("web-1.shop"), &of_node);
        // Its own slice, and the entry behind it.
        assert_eq!(state.looked_at.replace(0), 2);
        assert_eq!(state.changed_services.len(), 1);
        assert_eq!(state.on_node["n1"].len(), 1);
        state.remove_pod(&named("web-1.shop"));
        assert_eq!(state.looked_at.get(), 2);
        assert!(state.on_node.is_empty());
        state.edits();
    }
    for number in 0..300 {
        state.remove_slice(&named(&format!("slice-{number}.shop")));
    }
    assert!(state.of_pod.is_empty());
    // A pod that was bound to a node after it was seen.
    let mut bound = of_node.clone();
    of_node.spec.as_mut().unwrap().node_name = None;
    state.pod(named("web-1.shop"), &of_node);
    state.pod(named("web-1.shop"), &bound);
    bound.spec.as_mut().unwrap().node_name = Some("n2".into());
    state.pod(named("web-1.shop"), &bound);
    assert_eq!(state.on_node.keys().collect::<Vec<_>>(), ["n2"]);
}

/// A Service and a slice that anybody can write into a namespace of their own, about a pod that is
/// not theirs.
#[test]
fn a_slice_says_nothing_of_pods_of_other_namespaces() {
    let object = |kind: &str, spec: Value| {
        let manifest = json!({
            "apiVersion": "tulle.dev/v1alpha1", "kind": kind,
            "metadata": { "name": "p", "namespace": "evil" }, "spec": spec,
        });
        let mut object = Object::from_json(&manifest.to_string()).unwrap();
        object.qualify();
        Edit::Put(Box::new(object))
    };
    let mut state = State::default();
    let mut index = Index::of_cluster(TrustDomain::default(), "tulle-system");
    let ports = json!([{"name": "http", "port": 80, "appProtocol": "http"}]);
    state.service(named("web.shop"), &service(json!({"ports": ports})));
    let ready = endpoint("10.244.0.5", json!({"ready": true}));
    state.slice(named("a.shop"), &slice("a", json!([ready])));
    let containers = json!([{"name": "web"}, {"name": SIDECAR}]);
    let running = json!({"phase": "Running", "podIPs": [{"ip": "10.244.0.5"}]});
    state.pod(named("web-1.shop"), &pod(containers, running));
    index.apply(state.edits());
    let all = |index: &Index| {
        let names = [
            "inbound/web-1.shop",
            "service/web.shop",
            "service/pod/web-1.shop",
        ];
        names.map(|name| index.get(name).cloned())
    };
    let before = all(&index);
    assert!(before.iter().all(Option::is_some));
    // A Service like `evil`'s would open port 9000, and port 8080 to `x`.
    let ports = json!([{"name": "http", "port": 80}, {"name": "more", "port": 81}]);
    let of_evil = |object: Value, metadata: Value| {
        let mut object = object;
        object["metadata"] = metadata;
        object
    };
    let metadata = json!({"name": "web", "namespace": "evil"});
    let service = of_evil(json!({"spec": {"ports": ports}}), metadata);
    state.service(named("web.evil"), &from(service));
    let mut target = ready.clone();
    target["targetRef"]["namespace"] = "shop".into();
    let labels = json!({SERVICE_OF_SLICE: "web"});
    let evil = of_evil(
        json!({
            "addressType": "IPv4", "endpoints": [target],
            "ports": [{"name": "http", "port": 8080}, {"name": "more", "port": 9000}],
        }),
        json!({"name": "a", "namespace": "evil", "labels": labels}),
    );
    state.slice(named("a.evil"), &from(evil));
    index.apply(state.edits());
    let policy = json!({
        "targetRefs": [{"kind": "Service", "name": "web"}],
        "rules": [{"from": {"serviceAccounts": ["x"]}}],
    });
    index.apply([object("AuthorizationPolicy", policy)]);
    assert!(all(&index) == before, "the victim is told something else");
    let evil = index.get("service/web.evil").unwrap();
    let evil = String::from_utf8_lossy(&evil.body);
    assert!(
        !evil.contains("10.244.0.5") && !evil.contains("ns/shop"),
        "{evil}"
    );
}

#[test]
fn headless_and_external_services() {
    let mut state = State::default();
    let spec = json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": [{"port": 80}]});
    state.service(named("web.shop"), &service(spec));
    assert!(web(&mut state).addresses.is_empty());
    let spec = json!({"type": "ExternalName", "externalName": "example.org"});
    state.service(named("web.shop"), &service(spec));
    assert!(matches!(one(state.edits()), Edit::RemoveService(name) if name.as_str() == "web.shop"));
}

#[test]
fn annotations_say_which_ports_are_opaque() {
    let mut state = State::default();
    let annotated = |mut object: Value, ports: &str| {
        object["metadata"] = json!({
            "name": "web", "namespace": "shop", "annotations": {OPAQUE_PORTS: ports},
        });
        object
    };
    let ports = json!([
        {"name": "a", "port": 80}, {"name": "b", "port": 81, "appProtocol": "http"},
        {"name": "c", "port": 82, "appProtocol": "tls"}, {"name": "d", "port": 83},
    ]);
    let spec = json!({"spec": {"ports": ports}});
    let mut said = |ports: &str| -> Vec<Option<String>> {
        state.service(named("web.shop"), &from(annotated(spec.clone(), ports)));
        let ports = web(&mut state).ports.into_iter();
        ports.map(|p| p.port.app_protocol).collect()
    };
    let texts = |all: [&str; 4]| all.map(|t| (!t.is_empty()).then(|| t.to_owned()));
    assert_eq!(said("80, 81,82"), texts(["tcp", "tcp", "tls", ""]));
    assert_eq!(said("80,nonsense"), texts(["", "http", "tls", ""]));

    let spec = json!({"spec": {"containers": [{"name": "web"}]}});
    state.pod(named("web-1.shop"), &from(annotated(spec, "8080,9090")));
    assert!(matches!(one(state.edits()), Edit::Pod(pod) if pod.opaque == [8080, 9090]));
}

#[test]
fn what_a_service_and_its_slices_say_of_near_endpoints() {
    let mut state = State::default();
    let node: Metadata = from(json!({"metadata": {"labels": {REGION: "r", ZONE: "a"}}}));
    state.node("n1".into(), &node);
    let spec = json!({
        "ports": [{"name": "http", "port": 80}], "sessionAffinity": "ClientIP",
        "internalTrafficPolicy": "Local",
    });
    state.service(named("web.shop"), &service(spec));
    let mut hinted = endpoint("10.244.0.5", json!({"ready": true}));
    hinted["nodeName"] = "n1".into();
    hinted["hints"] = json!({"forZones": [{"name": "a"}, {"name": "unknown"}]});
    state.slice(named("a.shop"), &slice("a", json!([hinted])));
    let seen = web(&mut state);
    assert!(seen.sticky && seen.node_local);
    let endpoint = &seen.ports[0].endpoints[0];
    assert_eq!(endpoint.node, "n1");
    assert_eq!(endpoint.zones, ["r/a", "unknown"]);
    // Its region was not known before.
    let node: Metadata = from(json!({"metadata": {"labels": {REGION: "s", ZONE: "unknown"}}}));
    state.node("n2".into(), &node);
    assert_eq!(
        web(&mut state).ports[0].endpoints[0].zones,
        ["r/a", "s/unknown"]
    );
    let spec = json!({"ports": [{"name": "http", "port": 80}], "sessionAffinity": "None"});
    state.service(named("web.shop"), &service(spec));
    let seen = web(&mut state);
    assert!(!seen.sticky && !seen.node_local);
}

#[test]
fn some_ports_of_a_pod_are_reached_without_its_sidecar() {
    let mut state = State::default();
    let mut seen = |containers: Value| {
        let mut pod = pod(containers, json!({"phase": "Running"}));
        let annotations = BTreeMap::from([(EXCLUDE_INBOUND_PORTS.to_owned(), "9443".to_owned())]);
        pod.metadata.annotations = Some(annotations);
        state.pod(named("web-1.shop"), &pod);
        match one(state.edits()) {
            Edit::Pod(pod) => pod.direct,
            other => panic!("{other:?}"),
        }
    };
    let ports = seen(json!([{"name": "web"}, {"name": SIDECAR}]));
    assert_eq!(ports, [9443, METRICS_PORT, HEALTH_PORT]);
    assert_eq!(seen(json!([{"name": "web"}])), [0; 0]);
}

#[test]
fn the_installation_s_ports_are_direct_for_the_pods_that_got_them() {
    use inject::{InjectionOutcome, InjectionSetting};
    let mut state = State::default();
    let mut seen = |init: Option<&str>, value: &[u16], annotations: Value| {
        let settings: inject::Settings = from(json!({
            "image": "proxy", "initImage": init, "controller": "controller:15010",
            "trustDomain": "td", "redirection": {"excludeInboundPorts": value},
        }));
        let pod = json!({
            "metadata": {"name": "web-1", "namespace": "shop", "annotations": annotations},
            "spec": {"containers": [{"name": "web", "args": ["--exclude-inbound-ports=1"]}]},
        });
        let injected = match inject::inject(&pod, InjectionSetting::Enabled, &settings).unwrap() {
            InjectionOutcome::Injected(pod) => pod,
            InjectionOutcome::Left(why) => panic!("{why}"),
        };
        state.pod(named("web-1.shop"), &from(injected));
        match one(state.edits()) {
            Edit::Pod(pod) => pod.direct,
            other => panic!("{other:?}"),
        }
    };
    // The init container makes the rules, or the CNI plugin.
    for init in [Some("init"), None] {
        let own = json!({EXCLUDE_INBOUND_PORTS: "9443, 9000"});
        assert_eq!(
            seen(init, &[9000, 9001], own),
            [9000, 9001, 9443, METRICS_PORT, HEALTH_PORT]
        );
        assert_eq!(
            seen(init, &[9000], json!({})),
            [9000, METRICS_PORT, HEALTH_PORT]
        );
        assert_eq!(seen(init, &[], json!({})), [METRICS_PORT, HEALTH_PORT]);
    }
}

#[test]
fn a_pod_with_its_account_and_place() {
    let mut state = State::default();
    let node = |zone: &str| from(json!({"metadata": {"labels": {REGION: "r", ZONE: zone}}}));
    state.node("n1".into(), &node("a"));
    let containers = json!([
        {"name": "web", "ports": [{"containerPort": 8080}, {"containerPort": 53, "protocol": "UDP"}]},
        {"name": SIDECAR, "ports": [{"containerPort": 15020}]},
    ]);
    let running = json!({"phase": "Running", "podIPs": [{"ip": "10.244.0.5"}]});
    state.pod(
        named("web-1.shop"),
        &pod(containers.clone(), running.clone()),
    );
    let Edit::Pod(seen) = one(state.edits()) else {
        panic!();
    };
    assert_eq!((seen.name.as_str(), &*seen.account), ("web-1.shop", "web"));
    assert_eq!(seen.ports, [8080]);
    assert_eq!(
        (seen.workload.kind(), &*seen.workload.name),
        ("Pod", "web-1")
    );
    assert!(seen.sidecar && !seen.egress_gateway);
    assert_eq!(seen.locality, "r/a");
    state.node("n1".into(), &node("b"));
    assert!(matches!(one(state.edits()), Edit::Pod(pod) if pod.locality == "r/b"));
    let ended = json!({"phase": "Succeeded", "podIPs": [{"ip": "10.244.0.5"}]});
    state.pod(named("web-1.shop"), &pod(containers, ended));
    assert!(matches!(one(state.edits()), Edit::RemovePod(name) if name.as_str() == "web-1.shop"));
    // A gateway for clients outside is no member; an egress gateway is one, with no ports of its own.
    let ports = json!([{"containerPort": 10080}]);
    for (name, member) in [("gateway", false), (EGRESS_GATEWAY, true)] {
        let containers = json!([{"name": name, "ports": ports}]);
        state.pod(named("out-1.shop"), &pod(containers, running.clone()));
        let Edit::Pod(seen) = one(state.edits()) else {
            panic!();
        };
        assert_eq!((seen.sidecar, seen.egress_gateway), (member, member));
        assert_eq!(seen.ports.is_empty(), member);
    }
}

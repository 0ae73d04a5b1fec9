use super::*;
use crate::gateway::view::{Kind, RouteKind};
use crate::names::CONTROLLER_NAME;
use kube::core::DynamicObject;
use serde_json::json;

const NOW: &str = "2026-01-01T00:00:00Z";

fn settings() -> Settings {
    let settings = json!({ "image": "tulle-proxy", "controller": "c:15010", "trustDomain": "td" });
    serde_json::from_value(settings).unwrap()
}

fn put(view: &mut View, kind: Kind, namespace: &str, name: &str, mut object: Value) {
    object["metadata"]["name"] = name.into();
    object["metadata"]["generation"] = 3.into();
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    view.put(kind, Key::new(namespace, name), object);
}

fn gateway(view: &mut View, spec: Value) {
    let mut spec = spec;
    spec["gatewayClassName"] = "tulle".into();
    let object = json!({ "metadata": { "uid": "u1" }, "spec": spec });
    put(view, Kind::Gateway, "infra", "edge", object);
}

fn view(spec: Value) -> View {
    let mut view = View::default();
    let class = json!({ "spec": { "controllerName": CONTROLLER_NAME } });
    put(&mut view, Kind::GatewayClass, "", "tulle", class);
    let foreign = json!({ "spec": { "controllerName": "example.org/other" } });
    put(&mut view, Kind::GatewayClass, "", "other", foreign);
    for (name, team) in [("infra", "edge"), ("shop", "shop")] {
        let object = json!({ "metadata": { "labels": { "team": team } } });
        put(&mut view, Kind::Namespace, "", name, object);
    }
    gateway(&mut view, spec);
    view
}

fn edge(view: &View) -> Planned {
    let mut plan = plan(view, &settings(), true, NOW);
    assert_eq!(plan.len(), 1);
    plan.remove(&Key::new("infra", "edge")).unwrap()
}

fn route(view: &mut View, kind: RouteKind, namespace: &str, parent: Value, hosts: &[&str]) {
    let mut parent = parent;
    parent["name"] = "edge".into();
    parent["namespace"] = "infra".into();
    let spec = json!({ "parentRefs": [parent], "hostnames": hosts });
    put(
        view,
        Kind::Route(kind),
        namespace,
        "r",
        json!({ "spec": spec }),
    );
}

/// `listener: condition=reason` of all that are not as they should be.
fn troubles(status: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut look = |name: &str, conditions: &Value| {
        for c in conditions.as_array().unwrap() {
            let wanted = if c["type"] == "Conflicted" {
                "False"
            } else {
                "True"
            };
            assert_eq!(c["observedGeneration"], 3);
            // Nothing runs in these tests.
            if c["status"] != wanted && c["type"] != "Programmed" {
                let text = |part: &str| c[part].as_str().unwrap().to_owned();
                found.push(format!("{name}{}={}", text("type"), text("reason")));
            }
        }
    };
    look("", &status["conditions"]);
    for listener in status["listeners"].as_array().unwrap() {
        let name = listener["name"].as_str().unwrap();
        look(&format!("{name}: "), &listener["conditions"]);
    }
    found
}

fn attached(planned: &Planned) -> Vec<String> {
    let told = planned.told.as_ref().unwrap();
    let all = told.attached.iter();
    all.map(|a| format!("{} {}", a.route, a.listener)).collect()
}

#[test]
fn what_a_gateway_runs_as() {
    let planned = edge(&view(json!({
        "listeners": [
            { "name": "http", "port": 80, "protocol": "HTTP" },
            { "name": "shop", "port": 80, "protocol": "HTTP", "hostname": "shop.example" },
            { "name": "high", "port": 8080, "protocol": "HTTP" },
        ],
        "infrastructure": {
            "labels": { "team": "edge" },
            "annotations": { "a": "b", "tulle.dev/service-type": "ClusterIP", "tulle.dev/cpu-limit": "2" },
        },
    })));
    let kinds: Vec<&str> = planned
        .objects
        .iter()
        .map(|o| o["kind"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds,
        [
            "ServiceAccount",
            "Service",
            "Deployment",
            "PodDisruptionBudget"
        ]
    );
    for object in &planned.objects {
        assert_eq!(object["metadata"]["name"], "edge-tulle");
        assert_eq!(object["metadata"]["namespace"], "infra");
        assert_eq!(object["metadata"]["ownerReferences"][0]["uid"], "u1");
        assert_eq!(object["metadata"]["labels"]["team"], "edge");
        assert_eq!(object["metadata"]["annotations"]["a"], "b");
    }
    let service = &planned.objects[1]["spec"];
    assert_eq!(service["type"], "ClusterIP");
    let ports = service["ports"].as_array().unwrap();
    let ports: Vec<_> = ports
        .iter()
        .map(|p| (p["port"].clone(), p["targetPort"].clone()))
        .collect();
    assert_eq!(
        ports,
        [(json!(80), json!(10080)), (json!(8080), json!(8080))]
    );
    let deployment = &planned.objects[2]["spec"];
    assert!(deployment.get("replicas").is_none());
    let pod = &deployment["template"];
    assert_eq!(pod["metadata"]["labels"]["tulle.dev/inject"], "disabled");
    let container = &pod["spec"]["containers"][0];
    // By its name the controller would take it for a sidecar.
    assert_ne!(container["name"], crate::names::SIDECAR);
    assert_eq!(container["securityContext"]["runAsUser"], 1500);
    assert_eq!(container["resources"]["limits"]["cpu"], "2");
    let config = container["env"][1]["value"].as_str().unwrap();
    let config: tulle_model::bootstrap::Bootstrap = serde_json::from_str(config).unwrap();
    assert_eq!(
        config.identity.as_str(),
        "spiffe://td/ns/infra/sa/edge-tulle"
    );
    assert_eq!(config.listeners.len(), 2);
    let told = planned.told.unwrap();
    assert_eq!(
        (told.name.as_str(), told.account.as_str()),
        ("edge.infra", "edge-tulle.infra")
    );
    assert_eq!(told.spec.listeners.len(), 3);
}

#[test]
fn others_gateways_are_let_be() {
    let mut view = view(json!({ "listeners": [] }));
    let spec = json!({ "gatewayClassName": "other" });
    put(
        &mut view,
        Kind::Gateway,
        "infra",
        "edge",
        json!({ "spec": spec }),
    );
    assert!(plan(&view, &settings(), true, NOW).is_empty());
}

#[test]
fn listeners_that_do_not_go_together() {
    let planned = edge(&view(json!({ "listeners": [
        { "name": "a", "port": 80, "protocol": "HTTP", "hostname": "x.example" },
        { "name": "b", "port": 80, "protocol": "HTTP", "hostname": "X.example" },
        { "name": "c", "port": 80, "protocol": "HTTP" },
        { "name": "d", "port": 81, "protocol": "HTTP" },
        { "name": "e", "port": 81, "protocol": "TCP" },
        { "name": "f", "port": 82, "protocol": "UDP" },
    ] })));
    assert_eq!(
        troubles(&planned.status),
        [
            "a: Accepted=HostnameConflict",
            "a: Conflicted=HostnameConflict",
            "b: Accepted=HostnameConflict",
            "b: Conflicted=HostnameConflict",
            "d: Accepted=ProtocolConflict",
            "d: Conflicted=ProtocolConflict",
            "e: Accepted=ProtocolConflict",
            "e: Conflicted=ProtocolConflict",
            "f: Accepted=UnsupportedProtocol",
        ]
    );
    assert_eq!(
        planned.status["conditions"][0]["reason"],
        "ListenersNotValid"
    );
    let told = planned.told.unwrap();
    let names: Vec<&str> = told
        .spec
        .listeners
        .iter()
        .map(|l| l.name.as_str())
        .collect();
    assert_eq!(names, ["c"]);
    let none = json!({ "listeners": [{ "name": "f", "port": 82, "protocol": "UDP" }] });
    let planned = edge(&view(none));
    assert_eq!(troubles(&planned.status)[0], "Accepted=ListenersNotValid");
    assert!(planned.told.is_none() && planned.objects.is_empty());
}

#[test]
fn routes_attach_where_they_may() {
    let listeners = json!({ "listeners": [
        { "name": "same", "port": 80, "protocol": "HTTP" },
        { "name": "all", "port": 81, "protocol": "HTTP", "hostname": "*.example",
          "allowedRoutes": { "namespaces": { "from": "All" } } },
        { "name": "some", "port": 82, "protocol": "HTTP",
          "allowedRoutes": { "namespaces": { "from": "Selector", "selector": {
              "matchExpressions": [{ "key": "team", "operator": "In", "values": ["shop"] }] } },
            "kinds": [{ "kind": "GRPCRoute" }] } },
        { "name": "raw", "port": 83, "protocol": "TCP",
          "allowedRoutes": { "namespaces": { "from": "All" } } },
    ] });
    let try_route = |kind, namespace: &str, parent: Value, hosts: &[&str]| {
        let mut view = view(listeners.clone());
        route(&mut view, kind, namespace, parent, hosts);
        let planned = edge(&view);
        let names = attached(&planned);
        let names = names
            .iter()
            .map(|a| a.split_once(' ').unwrap().1.to_owned());
        let names: Vec<String> = names.collect();
        for listener in planned.status["listeners"].as_array().unwrap() {
            let count = names.iter().filter(|n| **n == listener["name"]).count();
            assert_eq!(listener["attachedRoutes"], count);
        }
        names.join(" ")
    };
    let (http, grpc, tcp) = (RouteKind::Http, RouteKind::Grpc, RouteKind::Tcp);
    assert_eq!(try_route(http, "infra", json!({}), &[]), "all same");
    assert_eq!(try_route(http, "infra", json!({}), &["a.other"]), "same");
    assert_eq!(try_route(http, "shop", json!({}), &["a.example"]), "all");
    assert_eq!(try_route(http, "shop", json!({}), &["a.other"]), "");
    assert_eq!(try_route(grpc, "shop", json!({}), &[]), "all some");
    assert_eq!(try_route(grpc, "unknown", json!({ "port": 82 }), &[]), "");
    assert_eq!(
        try_route(grpc, "shop", json!({ "sectionName": "some" }), &[]),
        "some"
    );
    assert_eq!(
        try_route(
            grpc,
            "shop",
            json!({ "sectionName": "some", "port": 81 }),
            &[]
        ),
        ""
    );
    assert_eq!(try_route(tcp, "shop", json!({}), &[]), "raw");
    assert_eq!(
        try_route(
            http,
            "infra",
            json!({ "kind": "Service", "group": "" }),
            &[]
        ),
        ""
    );
}

fn text(name: &str, namespace: &str) -> TextKey {
    TextKey {
        secret: true,
        key: Key::new(namespace, name),
    }
}

#[test]
fn certificates_are_asked_for_and_need_a_grant() {
    let listener = |namespace: &str| {
        json!({ "listeners": [{
            "name": "https", "port": 443, "protocol": "HTTPS",
            "tls": { "certificateRefs": [{ "name": "cert", "namespace": namespace }] },
        }] })
    };
    let mut view = view(listener("infra"));
    let planned = edge(&view);
    // Nobody has looked yet.
    assert_eq!(planned.texts, BTreeSet::from([text("cert", "infra")]));
    assert!(planned.told.is_none());
    assert!(troubles(&planned.status).is_empty());
    // It is not there, or no certificate: the rest goes on without this listener.
    for held in [
        None,
        Some(BTreeMap::from([("tls.crt".to_owned(), "x".to_owned())])),
    ] {
        view.texts.insert(text("cert", "infra"), held);
        let planned = edge(&view);
        assert_eq!(
            troubles(&planned.status),
            ["https: ResolvedRefs=InvalidCertificateRef"]
        );
        assert!(planned.told.unwrap().spec.listeners.is_empty());
        assert!(!planned.objects.is_empty());
    }
    // That of another namespace is not even looked at.
    gateway(&mut view, listener("secrets"));
    let planned = edge(&view);
    assert_eq!(
        troubles(&planned.status),
        ["https: ResolvedRefs=RefNotPermitted"]
    );
    assert!(planned.texts.is_empty());
    let grant = |to: Value| {
        json!({ "spec": {
            "from": [{ "group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": "infra" }],
            "to": [to],
        } })
    };
    let other = grant(json!({ "group": "", "kind": "Secret", "name": "other" }));
    put(&mut view, Kind::ReferenceGrant, "secrets", "g", other);
    assert!(edge(&view).texts.is_empty());
    let right = grant(json!({ "group": "", "kind": "Secret" }));
    put(&mut view, Kind::ReferenceGrant, "infra", "g", right.clone());
    assert!(edge(&view).texts.is_empty());
    put(&mut view, Kind::ReferenceGrant, "secrets", "g", right);
    assert_eq!(edge(&view).texts, BTreeSet::from([text("cert", "secrets")]));
}

#[test]
fn kinds_that_a_listener_cannot_take() {
    let planned = edge(&view(json!({ "listeners": [{
        "name": "http", "port": 80, "protocol": "HTTP",
        "allowedRoutes": { "kinds": [{ "kind": "HTTPRoute" }, { "kind": "TCPRoute" }] },
    }] })));
    assert_eq!(
        troubles(&planned.status),
        ["http: ResolvedRefs=InvalidRouteKinds"]
    );
    let kinds = &planned.status["listeners"][0]["supportedKinds"];
    assert_eq!(
        kinds,
        &json!([{ "group": "gateway.networking.k8s.io", "kind": "HTTPRoute" }])
    );
}

#[test]
fn what_is_not_understood_is_said() {
    for (part, value, reason) in [
        (
            "addresses",
            json!([{ "type": "Hostname", "value": "x" }]),
            "UnsupportedAddress",
        ),
        (
            "infrastructure",
            json!({ "parametersRef": { "name": "x" } }),
            "InvalidParameters",
        ),
        (
            "infrastructure",
            json!({ "annotations": { "tulle.dev/replicas": "0" } }),
            "InvalidParameters",
        ),
        (
            "infrastructure",
            json!({ "annotations": { "tulle.dev/no-such": "0" } }),
            "Invalid",
        ),
    ] {
        let mut spec = json!({ "listeners": [{ "name": "a", "port": 80, "protocol": "HTTP" }] });
        spec[part] = value;
        let planned = edge(&view(spec));
        assert_eq!(troubles(&planned.status), [format!("Accepted={reason}")]);
        assert!(planned.told.is_none() && planned.objects.is_empty());
    }
}

#[test]
fn it_is_programmed_when_it_runs_and_has_an_address() {
    let mut view = view(json!({ "listeners": [{ "name": "a", "port": 80, "protocol": "HTTP" }] }));
    let programmed = |view: &View| {
        let status = edge(view).status;
        let condition = &status["conditions"][1];
        assert_eq!(condition["type"], "Programmed");
        assert_eq!(condition["lastTransitionTime"], NOW);
        (
            condition["reason"].as_str().unwrap().to_owned(),
            status["addresses"].clone(),
        )
    };
    assert_eq!(programmed(&view).0, "Pending");
    let deployment = json!({ "status": { "availableReplicas": 1 } });
    put(
        &mut view,
        Kind::Deployment,
        "infra",
        "edge-tulle",
        deployment,
    );
    assert_eq!(programmed(&view).0, "AddressNotAssigned");
    let mut service = json!({ "spec": { "type": "LoadBalancer", "clusterIPs": ["10.96.0.1"] } });
    put(
        &mut view,
        Kind::Service,
        "infra",
        "edge-tulle",
        service.clone(),
    );
    assert_eq!(programmed(&view).0, "AddressNotAssigned");
    service["status"] = json!({ "loadBalancer": { "ingress": [{ "ip": "192.0.2.1" }] } });
    put(&mut view, Kind::Service, "infra", "edge-tulle", service);
    let addresses = json!([{ "type": "IPAddress", "value": "192.0.2.1" }]);
    assert_eq!(programmed(&view), ("Programmed".to_owned(), addresses));
}

#[test]
fn a_condition_keeps_its_time() {
    let mut view = view(json!({ "listeners": [{ "name": "a", "port": 80, "protocol": "HTTP" }] }));
    let first = edge(&view).status;
    assert!(!status::covers(&Value::Null, &first));
    view.gateways
        .get_mut(&Key::new("infra", "edge"))
        .unwrap()
        .status = first.clone();
    let later = plan(&view, &settings(), true, "2027-01-01T00:00:00Z");
    let later = &later[&Key::new("infra", "edge")].status;
    assert_eq!(*later, first);
    assert!(status::covers(&first, later));
}

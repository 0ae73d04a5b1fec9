//! Gateways of the class for egress: what they run as, what they refuse and what their status says.

use super::tests::{World, edge, put, troubles, world};
use super::*;
use crate::gateway::{EGRESS_CLASS, Told, unserved_egress};
use crate::names::{CONTROLLER_NAME, EGRESS_GATEWAY};
use serde_json::json;
use tulle_control::index::Edit;
use tulle_model::bootstrap::{Bootstrap, ListenerKind};

/// The Gateway `edge` of the namespace `infra`, of the class for egress.
fn egress(spec: &Value) -> World {
    let mut world = world(json!({}));
    let class = json!({ "spec": { "controllerName": CONTROLLER_NAME } });
    put(&mut world, "GatewayClass", "", EGRESS_CLASS, class);
    let mut spec = spec.clone();
    spec["gatewayClassName"] = EGRESS_CLASS.into();
    let object = json!({ "metadata": { "uid": "u1" }, "spec": spec });
    put(&mut world, "Gateway", "infra", "edge", object);
    world
}

fn connect() -> Value {
    json!([{ "name": "connect", "port": 3128, "protocol": "tulle.dev/CONNECT" }])
}

#[test]
fn an_egress_gateway_runs_as_a_member_of_the_mesh() {
    let planned = edge(&egress(&json!({
        "listeners": [
            { "name": "connect", "port": 3128, "protocol": "tulle.dev/CONNECT" },
            { "name": "low", "port": 443, "protocol": "tulle.dev/CONNECT" },
        ],
        "infrastructure": { "annotations": {
            "tulle.dev/replicas": "2", "tulle.dev/memory-limit": "64Mi",
        } },
    })));
    assert_eq!(troubles(&planned.status), [""; 0]);
    // The index knows its pods, and no gateway with routes.
    assert!(planned.told.is_none() && planned.egress);
    let kinds: Vec<&Value> = planned.objects.iter().map(|o| &o["kind"]).collect();
    let expected = [
        "ServiceAccount",
        "Service",
        "Deployment",
        "PodDisruptionBudget",
    ];
    assert_eq!(kinds, expected);
    let service = &planned.objects[1];
    assert_eq!(service["metadata"]["name"], "edge-tulle");
    assert_eq!(service["spec"]["type"], "ClusterIP");
    let ports: Vec<_> = list(&service["spec"]["ports"])
        .map(|p| (p["port"].clone(), p["targetPort"].clone()))
        .collect();
    assert_eq!(
        ports,
        [(json!(443), json!(10443)), (json!(3128), json!(3128))]
    );
    let deployment = &planned.objects[2]["spec"];
    assert_eq!(deployment["replicas"], 2);
    let pod = &deployment["template"]["spec"];
    // One unprivileged container, and nobody redirects anything to it.
    assert!(pod.get("initContainers").is_none());
    let [container] = pod["containers"].as_array().unwrap().as_slice() else {
        panic!("{pod}");
    };
    assert_eq!(container["name"], EGRESS_GATEWAY);
    assert_eq!(container["resources"]["limits"]["memory"], "64Mi");
    let drop = &container["securityContext"]["capabilities"];
    assert_eq!(drop, &json!({ "drop": ["ALL"] }));
    let config = container["env"][1]["value"].as_str().unwrap();
    let config = config.replace("$(POD_NAME)", "edge-1");
    let config: Bootstrap = serde_json::from_str(&config).unwrap();
    let identity = "spiffe://td/ns/infra/sa/edge-tulle";
    assert_eq!(config.identity.as_str(), identity);
    // The controller knows each port by the number that the pod has for it.
    let listeners: Vec<_> = config
        .listeners
        .into_iter()
        .map(|l| (l.address.to_string(), l.kind))
        .collect();
    let port = |address: &str, port| (address.to_owned(), ListenerKind::InboundPort { port });
    assert_eq!(
        listeners,
        [port("[::]:10443", 10443), port("[::]:3128", 3128)]
    );
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[test]
fn the_status_says_how_an_egress_goes_through_it() {
    let mut world = egress(&json!({ "listeners": connect() }));
    let programmed = |world: &World| {
        let status = edge(world).status;
        let found = list(&status["conditions"]).find(|c| c["type"] == "Programmed");
        let condition = found.unwrap().clone();
        let holds = list(&status["listeners"][0]["conditions"])
            .any(|c| c["type"] == "Programmed" && c["status"] == "True");
        assert_eq!(holds, condition["status"] == "True");
        assert_eq!(status["listeners"][0]["attachedRoutes"], 0);
        assert_eq!(status["listeners"][0]["supportedKinds"], json!([]));
        (
            condition["status"].clone(),
            condition["message"].as_str().unwrap().to_owned(),
        )
    };
    let (status, why) = programmed(&world);
    assert_eq!(status, "False");
    assert!(why.contains("no pod"), "{why}");
    let service = json!({ "spec": { "type": "ClusterIP", "clusterIPs": ["10.96.0.9"] } });
    put(&mut world, "Service", "infra", "edge-tulle", service);
    let deployment = json!({ "status": { "availableReplicas": 1 } });
    put(&mut world, "Deployment", "infra", "edge-tulle", deployment);
    let expected = "an Egress of this namespace goes through it with `gateway: { service: edge-tulle, port: 3128 }`";
    assert_eq!(programmed(&world), (json!("True"), expected.to_owned()));
    let ended = json!({ "status": { "availableReplicas": 0 } });
    put(&mut world, "Deployment", "infra", "edge-tulle", ended);
    assert_eq!(programmed(&world).0, "False");
}

#[test]
fn listeners_that_are_none_of_an_egress_gateway() {
    let listeners = json!([
        { "name": "good", "port": 3128, "protocol": "tulle.dev/CONNECT" },
        { "name": "http", "port": 80, "protocol": "HTTP" },
        { "name": "https", "port": 443, "protocol": "HTTPS",
          "tls": { "certificateRefs": [{ "name": "c" }] } },
        { "name": "tls", "port": 3129, "protocol": "tulle.dev/CONNECT", "tls": { "mode": "Terminate" } },
        { "name": "host", "port": 3130, "protocol": "tulle.dev/CONNECT", "hostname": "a.test" },
        { "name": "kinds", "port": 3131, "protocol": "tulle.dev/CONNECT",
          "allowedRoutes": { "kinds": [{ "kind": "HTTPRoute" }] } },
        { "name": "twice", "port": 3132, "protocol": "tulle.dev/CONNECT" },
        { "name": "again", "port": 3132, "protocol": "tulle.dev/CONNECT" },
    ]);
    let planned = edge(&egress(&json!({ "listeners": listeners })));
    let found = troubles(&planned.status);
    for expected in [
        "http: Accepted=UnsupportedProtocol",
        "https: Accepted=UnsupportedProtocol",
        "tls: Accepted=Invalid",
        "host: Accepted=Invalid",
        "kinds: ResolvedRefs=InvalidRouteKinds",
        "twice: Conflicted=HostnameConflict",
        "again: Conflicted=HostnameConflict",
    ] {
        assert!(found.iter().any(|f| f == expected), "{expected}: {found:?}");
    }
    assert!(!found.iter().any(|f| f.starts_with("good")), "{found:?}");
    // No Secret is read for a listener that is refused.
    assert!(planned.texts.is_empty());
    let ports: Vec<&Value> = list(&planned.objects[1]["spec"]["ports"])
        .map(|p| &p["port"])
        .collect();
    assert_eq!(ports, [3128, 3131]);

    // The webhook warns of the first.
    let warned =
        unserved_egress(&json!({ "gatewayClassName": EGRESS_CLASS, "listeners": listeners }));
    let warned = warned.unwrap();
    assert!(
        warned.contains("http") && warned.contains("tulle.dev/CONNECT"),
        "{warned}"
    );
    let good = json!({ "gatewayClassName": EGRESS_CLASS, "listeners": connect() });
    assert_eq!(unserved_egress(&good), None);
    // Clients outside the mesh get no such listener.
    let outside = edge(&world(json!({ "listeners": connect() })));
    let found = troubles(&outside.status);
    assert_eq!(
        found.last().unwrap(),
        "connect: Accepted=UnsupportedProtocol"
    );
    let text = outside.status.to_string();
    assert!(
        text.contains("make a Gateway of the class tulle-egress"),
        "{text}"
    );
}

#[test]
fn annotations_that_an_egress_gateway_cannot_follow() {
    for (name, value, why) in [
        ("service-type", "LoadBalancer", "has ClusterIP"),
        ("proxy-protocol", "connect", "has no effect"),
        ("exclude-inbound-ports", "3128", "has no effect"),
    ] {
        let planned = edge(&egress(&json!({
            "listeners": connect(),
            "infrastructure": { "annotations": { format!("tulle.dev/{name}"): value } },
        })));
        assert_eq!(troubles(&planned.status), ["Accepted=InvalidParameters"]);
        let text = planned.status.to_string();
        assert!(text.contains(why), "{name}: {text}");
        assert!(planned.objects.is_empty());
    }
}

#[test]
fn a_gateway_that_becomes_one_for_egress_is_none_for_the_index_any_more() {
    let listeners = json!([{ "name": "http", "port": 80, "protocol": "HTTP" }]);
    let before = world(json!({ "listeners": listeners }));
    let after = egress(&json!({ "listeners": connect() }));
    let mut told = Told::default();
    let (edits, _) = told.edits(&before.view, |_| None);
    assert!(matches!(edits.as_slice(), [Edit::Gateway(_)]), "{edits:?}");
    let (edits, _) = told.edits(&after.view, |_| None);
    let [Edit::RemoveGateway(name)] = edits.as_slice() else {
        panic!("{edits:?}");
    };
    assert_eq!(name.as_str(), "edge.infra");
    assert!(told.edits(&after.view, |_| None).0.is_empty());
}

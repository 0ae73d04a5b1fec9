use super::*;
use crate::gateway::view::TextState;
use crate::gateway::write::wish_statuses;
use crate::gateway::{CLASS, GROUP};
use crate::kinds::Kind;
use crate::names::CONTROLLER_NAME;
use crate::status::StatusUpdates;
use kube::core::DynamicObject;
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tulle_control::index::Attachment;

/// 2030-01-01: the time of the tests.
const NOW: u64 = 1_893_456_000;

#[derive(Default)]
pub(super) struct World {
    pub(super) view: View,
    pub(super) own: Own,
}

fn settings() -> Settings {
    let settings = json!({
        "image": "tulle-proxy", "imagePullSecrets": [{ "name": "registry" }],
        "controller": "c:15010", "trustDomain": "td",
    });
    serde_json::from_value(settings).unwrap()
}

pub(super) fn put(world: &mut World, kind: &str, namespace: &str, name: &str, mut object: Value) {
    object["metadata"]["name"] = name.into();
    object["metadata"]["generation"] = 3.into();
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    let key = Key::new(namespace, name);
    let World { view, own } = world;
    match kind {
        "GatewayClass" => drop(view.classes.insert(key.name, Arc::new(object.into()))),
        "Gateway" => drop(view.gateways.insert(key, Arc::new(object.into()))),
        "ReferenceGrant" => view.grants.put(key.object_name(), &object.data["spec"]),
        "Service" => drop(own.services.insert(key, object.into())),
        "Deployment" => drop(own.deployments.insert(key, object.into())),
        other => panic!("{other}"),
    }
}

fn gateway(world: &mut World, spec: Value) {
    let mut spec = spec;
    spec["gatewayClassName"] = "tulle".into();
    let object = json!({ "metadata": { "uid": "u1" }, "spec": spec });
    put(world, "Gateway", "infra", "edge", object);
}

pub(super) fn world(spec: Value) -> World {
    let mut world = World::default();
    let class = json!({ "spec": { "controllerName": CONTROLLER_NAME } });
    put(&mut world, "GatewayClass", "", "tulle", class);
    let foreign = json!({ "spec": { "controllerName": "example.org/other" } });
    put(&mut world, "GatewayClass", "", "other", foreign);
    gateway(&mut world, spec);
    world
}

pub(super) fn planned(world: &World) -> BTreeMap<Key, Planned> {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(NOW);
    plan(&world.view, &world.own, &settings(), true, now)
}

pub(super) fn edge(world: &World) -> Planned {
    let mut plan = planned(world);
    assert_eq!(plan.len(), 1);
    plan.remove(&Key::new("infra", "edge")).unwrap()
}

/// `listener: condition=reason` of all that are not as they should be.
pub(super) fn troubles(status: &Value) -> Vec<String> {
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

#[test]
fn what_a_gateway_runs_as() {
    let planned = edge(&world(json!({
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
    assert_eq!(pod["spec"]["imagePullSecrets"][0]["name"], "registry");
    let container = &pod["spec"]["containers"][0];
    // The controller would take a container with the sidecar's name for a sidecar.
    assert_ne!(container["name"], crate::names::SIDECAR);
    assert_eq!(container["securityContext"]["runAsUser"], 1500);
    assert_eq!(container["resources"]["limits"]["cpu"], "2");
    // The kubelet replaces the pod's name like this.
    let config = container["env"][1]["value"].as_str().unwrap();
    let config = config.replace("$(POD_NAME)", "edge-1");
    let config: tulle_model::bootstrap::Bootstrap = serde_json::from_str(&config).unwrap();
    assert_eq!(
        config.identity.as_str(),
        "spiffe://td/ns/infra/sa/edge-tulle"
    );
    let workload = config.control.unwrap().service;
    assert_eq!(workload.as_deref(), Some("edge-1.infra"));
    assert_eq!(config.listeners.len(), 2);
    let told = planned.told.unwrap();
    assert_eq!(
        (told.name.as_str(), told.account.as_str()),
        ("edge.infra", "edge-tulle")
    );
    assert_eq!(told.spec.listeners.len(), 3);
}

#[test]
fn values_for_sidecars_are_none_for_gateways() {
    let mut settings = settings();
    settings.resources.cpu_request = "5m".into();
    settings.resources.cpu_limit = "50m".into();
    settings.resources.memory_limit = "16Mi".into();
    settings.log_level = "debug".into();
    settings.workers = 7;
    let World { view, own } = world(json!({
        "listeners": [{ "name": "a", "port": 80, "protocol": "HTTP" }],
    }));
    let plan = plan(&view, &own, &settings, true, SystemTime::UNIX_EPOCH);
    let deployment = &plan[&Key::new("infra", "edge")].objects[2];
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let expected = json!({
        "requests": { "cpu": "100m", "memory": "32Mi" }, "limits": { "memory": "512Mi" },
    });
    assert_eq!(container["resources"], expected);
    let env = container["env"].as_array().unwrap();
    let names: Vec<&Value> = env.iter().map(|e| &e["name"]).collect();
    assert_eq!(names, ["POD_NAME", "TULLE_CONFIG"]);
    let config: Value = serde_json::from_str(env[1]["value"].as_str().unwrap()).unwrap();
    assert_eq!(config["workers"], 0);
}

/// All objects can be created, and none belongs to another gateway.
#[test]
fn names_that_no_service_can_have() {
    let long = "a".repeat(253);
    let long_made = format!("{}-32859a3a-tulle", "a".repeat(48));
    let long_label = format!("{}-32859a3a", "a".repeat(54));
    let names = [
        ("edge", "edge-tulle", "edge"),
        (
            "shop.example",
            "shop-example-0f59463c-tulle",
            "shop.example",
        ),
        ("shop-example", "shop-example-tulle", "shop-example"),
        ("9edge", "gw-9edge-2c4f4bc4-tulle", "9edge"),
        (&long, &long_made, &long_label),
    ];
    for (name, made, label) in names {
        let mut world = world(json!({}));
        let spec = json!({
            "gatewayClassName": "tulle",
            "listeners": [{ "name": "web.1", "port": 80, "protocol": "HTTP" }],
        });
        world.view.gateways.clear();
        let object = json!({ "spec": spec });
        put(&mut world, "Gateway", "infra", name, object);
        let plan = planned(&world);
        let planned = &plan[&Key::new("infra", name)];
        let told = planned.told.as_ref().unwrap();
        assert_eq!(told.name.to_string(), format!("{name}.infra"));
        assert_eq!(&told.account, made);
        assert_eq!(told.spec.listeners[0].name, "web.1");
        for object in &planned.objects {
            assert_eq!(object["metadata"]["name"], made);
            assert_eq!(object["metadata"]["labels"][objects::GATEWAY_NAME], label);
            assert_eq!(object["metadata"]["ownerReferences"][0]["name"], name);
        }
        let service = &planned.objects[1]["spec"];
        assert_eq!(service["selector"][objects::GATEWAY_NAME], label);
        let deployment = &planned.objects[2]["spec"];
        let pods = &deployment["template"]["metadata"]["labels"];
        assert_eq!(pods[objects::GATEWAY_NAME], label);
    }
}

#[test]
fn others_gateways_are_let_be() {
    let mut world = world(json!({ "listeners": [] }));
    let spec = json!({ "gatewayClassName": "other" });
    put(
        &mut world,
        "Gateway",
        "infra",
        "edge",
        json!({ "spec": spec }),
    );
    assert!(planned(&world).is_empty());
}

#[test]
fn listeners_that_do_not_go_together() {
    let planned = edge(&world(json!({ "listeners": [
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
    let planned = edge(&world(none));
    assert_eq!(troubles(&planned.status)[0], "Accepted=ListenersNotValid");
    assert!(planned.told.is_none() && planned.objects.is_empty());
}

#[test]
fn routes_of_its_listeners() {
    let mut world = world(json!({ "listeners": [
        { "name": "a", "port": 80, "protocol": "HTTP" },
        { "name": "b", "port": 81, "protocol": "HTTP" },
    ] }));
    let attached = ["r.shop", "s.shop"].map(|route| Attachment {
        route: format!("HTTPRoute/{route}"),
        listener: "b".into(),
    });
    let attached = BTreeSet::from(attached);
    let edge_key = Key::new("infra", "edge");
    world.view.attached.insert(edge_key, attached.clone());
    let planned = edge(&world);
    assert_eq!(planned.told.unwrap().attached, attached);
    let counts = planned.status["listeners"].as_array().unwrap();
    let counts: Vec<&Value> = counts.iter().map(|l| &l["attachedRoutes"]).collect();
    assert_eq!(counts, [0, 2]);
}

fn text(name: &str, namespace: &str) -> TextKey {
    TextKey {
        secret: true,
        key: Key::new(namespace, name),
    }
}

/// Reason and message of the Gateway's condition `Programmed`.
fn programmed(status: &Value) -> (String, String) {
    let all = status["conditions"].as_array().unwrap();
    let one = all.iter().find(|c| c["type"] == "Programmed").unwrap();
    assert_eq!(one["status"], "False");
    let text = |part: &str| one[part].as_str().unwrap().to_owned();
    (text("reason"), text("message"))
}

#[test]
fn a_namespace_without_rights_is_said_and_left_alone() {
    let listeners = json!({ "listeners": [{ "name": "http", "port": 80, "protocol": "HTTP" }] });
    let mut world = world(listeners);
    world.own.deny("infra".into());
    let planned = edge(&world);
    let (reason, message) = programmed(&planned.status);
    assert_eq!(reason, "NotPermitted");
    assert!(message.contains("namespace infra"), "{message}");
    assert!(planned.objects.is_empty());
    // The Gateway itself is good, and proxies that still run for it get their configuration.
    assert!(troubles(&planned.status).is_empty());
    assert!(planned.told.is_some());

    // The rights come.
    world.own.list("infra".into(), BTreeMap::new());
    let planned = edge(&world);
    assert_eq!(programmed(&planned.status).0, "Pending");
    assert!(!planned.objects.is_empty());

    // The rights are taken away.
    world.own.deny("infra".into());
    let planned = edge(&world);
    assert_eq!(programmed(&planned.status).0, "NotPermitted");
    assert!(planned.objects.is_empty());

    // Some of them are missing: the API server says which.
    world.own.list("infra".into(), BTreeMap::new());
    let key = Key::new("infra", "edge");
    world.own.refused.insert(key, "no accounts for you".into());
    let planned = edge(&world);
    let told = ("NotPermitted".to_owned(), "no accounts for you".to_owned());
    assert_eq!(programmed(&planned.status), told);
    assert!(!planned.objects.is_empty());
}

#[test]
fn a_secret_that_was_read_stays_when_it_may_be_read_no_more() {
    let mut own = Own::default();
    own.hide(text("a", "infra"));
    assert_eq!(own.texts[&text("a", "infra")], TextState::Forbidden);
    let held = TextState::Held(BTreeMap::new());
    own.texts.insert(text("b", "infra"), held.clone());
    own.hide(text("b", "infra"));
    assert_eq!(own.texts[&text("b", "infra")], held);
}

#[test]
fn certificates_are_asked_for_and_need_a_grant() {
    let listener = |namespace: &str| {
        json!({ "listeners": [{
            "name": "https", "port": 443, "protocol": "HTTPS",
            "tls": { "certificateRefs": [{ "name": "cert", "namespace": namespace }] },
        }] })
    };
    let mut world = world(listener("infra"));
    let planned = edge(&world);
    // The Secret is not read yet.
    assert_eq!(planned.texts, BTreeSet::from([text("cert", "infra")]));
    assert!(planned.told.is_none());
    assert!(troubles(&planned.status).is_empty());
    // The Secret is absent, or no certificate: the rest goes on without this listener.
    let wrong = BTreeMap::from([("tls.crt".to_owned(), "x".to_owned())]);
    for (state, reason) in [
        (TextState::Absent, "InvalidCertificateRef"),
        (TextState::Held(wrong), "InvalidCertificateRef"),
        (TextState::Forbidden, "NotPermitted"),
    ] {
        world.own.texts.insert(text("cert", "infra"), state);
        let planned = edge(&world);
        assert_eq!(
            troubles(&planned.status),
            [format!("https: ResolvedRefs={reason}")]
        );
        let told = planned.told.unwrap().spec;
        assert!(told.listeners.is_empty());
        assert_eq!(told.gateway_class_name, CLASS);
        assert!(!planned.objects.is_empty());
    }
    // A Secret of another namespace is not even read.
    gateway(&mut world, listener("secrets"));
    let planned = edge(&world);
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
    put(&mut world, "ReferenceGrant", "secrets", "g", other);
    assert!(edge(&world).texts.is_empty());
    let right = grant(json!({ "group": "", "kind": "Secret" }));
    put(&mut world, "ReferenceGrant", "infra", "g", right.clone());
    assert!(edge(&world).texts.is_empty());
    put(&mut world, "ReferenceGrant", "secrets", "g", right);
    assert_eq!(
        edge(&world).texts,
        BTreeSet::from([text("cert", "secrets")])
    );
}

#[test]
fn a_name_that_no_secret_can_have_is_not_asked_for() {
    let world = world(json!({ "listeners": [{
        "name": "https", "port": 443, "protocol": "HTTPS",
        "tls": { "certificateRefs": [{ "name": "a,b" }] },
    }] }));
    let planned = edge(&world);
    assert!(planned.texts.is_empty());
    assert_eq!(
        troubles(&planned.status),
        ["https: ResolvedRefs=InvalidCertificateRef"]
    );
}

/// A chain and its key, valid until the first day of a year.
fn pair(until: i32) -> TextState {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["shop.example".to_owned()]).unwrap();
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(until, 1, 1);
    let certificate = params.self_signed(&key).unwrap();
    TextState::Held(BTreeMap::from([
        ("tls.crt".to_owned(), certificate.pem()),
        ("tls.key".to_owned(), key.serialize_pem()),
    ]))
}

#[test]
fn a_certificate_that_has_expired_is_told_and_still_presented() {
    let listener = |name: &str, port: u16| {
        json!({
            "name": name, "port": port, "protocol": "HTTPS",
            "tls": { "certificateRefs": [{ "name": name }] },
        })
    };
    let mut world = world(json!({ "listeners": [listener("old", 443), listener("new", 444)] }));
    let service = json!({ "spec": { "type": "ClusterIP", "clusterIPs": ["10.0.0.1"] } });
    let deployment = json!({ "status": { "availableReplicas": 1 } });
    let place = objects::place(&Key::new("infra", "edge"));
    put(
        &mut world,
        "Service",
        &place.namespace,
        &place.name,
        service,
    );
    put(
        &mut world,
        "Deployment",
        &place.namespace,
        &place.name,
        deployment,
    );
    world.own.texts.insert(text("old", "infra"), pair(2025));
    world.own.texts.insert(text("new", "infra"), pair(2031));
    let planned = edge(&world);
    assert_eq!(
        troubles(&planned.status),
        ["old: ResolvedRefs=InvalidCertificateRef"]
    );
    let is_programmed = |of: &Value| {
        let mut all = of["conditions"].as_array().unwrap().iter();
        let one = all.find(|c| c["type"] == "Programmed").unwrap();
        (one["status"] == "True", one["reason"].clone())
    };
    let listeners = &planned.status["listeners"];
    assert_eq!(is_programmed(&listeners[0]), (false, "Invalid".into()));
    assert_eq!(is_programmed(&listeners[1]), (true, "Programmed".into()));
    let conditions = planned.status["listeners"][0]["conditions"].as_array();
    let told = conditions
        .unwrap()
        .iter()
        .find(|c| c["type"] == "ResolvedRefs");
    let told = told.unwrap()["message"].as_str().unwrap();
    assert!(
        told.starts_with("Secret infra/old: the certificate expired on 2025-01-01"),
        "{told}"
    );
    assert_eq!(planned.told.unwrap().spec.listeners.len(), 2);
    // The other one is looked at again when it expires: a year later.
    let left = planned
        .until
        .unwrap()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap();
    assert_eq!(left.as_secs() - NOW, 365 * 86_400);
    assert_eq!(is_programmed(&planned.status), (true, "Programmed".into()));
    // Nobody is served when there is no other.
    world.own.texts.insert(text("new", "infra"), pair(2026));
    assert_eq!(programmed(&edge(&world).status).0, "Invalid");
}

#[test]
fn kinds_that_a_listener_cannot_take() {
    let planned = edge(&world(json!({ "listeners": [{
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
        let planned = edge(&world(spec));
        assert_eq!(troubles(&planned.status), [format!("Accepted={reason}")]);
        assert!(planned.told.is_none() && planned.objects.is_empty());
    }
}

#[test]
fn it_is_programmed_when_it_runs_and_has_an_address() {
    let mut world =
        world(json!({ "listeners": [{ "name": "a", "port": 80, "protocol": "HTTP" }] }));
    let programmed = |world: &World| {
        let status = edge(world).status;
        let condition = &status["conditions"][1];
        assert_eq!(condition["type"], "Programmed");
        assert_eq!(condition["lastTransitionTime"], Value::Null);
        (
            condition["reason"].as_str().unwrap().to_owned(),
            status["addresses"].clone(),
        )
    };
    assert_eq!(programmed(&world).0, "Pending");
    let deployment = json!({ "status": { "availableReplicas": 1 } });
    put(&mut world, "Deployment", "infra", "edge-tulle", deployment);
    assert_eq!(programmed(&world).0, "AddressNotAssigned");
    let mut service = json!({ "spec": { "type": "LoadBalancer", "clusterIPs": ["10.96.0.1"] } });
    put(
        &mut world,
        "Service",
        "infra",
        "edge-tulle",
        service.clone(),
    );
    assert_eq!(programmed(&world).0, "AddressNotAssigned");
    service["status"] = json!({ "loadBalancer": { "ingress": [{ "ip": "192.0.2.1" }] } });
    put(&mut world, "Service", "infra", "edge-tulle", service);
    let addresses = json!([{ "type": "IPAddress", "value": "192.0.2.1" }]);
    assert_eq!(programmed(&world), ("Programmed".to_owned(), addresses));
}

#[test]
fn a_status_that_is_so_already_is_not_written() {
    let mut world =
        world(json!({ "listeners": [{ "name": "a", "port": 80, "protocol": "HTTP" }] }));
    let wished = |world: &World| {
        let wishes = StatusUpdates::default();
        wish_statuses(&world.view, &planned(world), &wishes);
        let gateway = Kind::find(GROUP, "Gateway").unwrap();
        wishes.get(&(gateway, Key::new("infra", "edge").object_name()))
    };
    let first = wished(&world).unwrap();
    assert_eq!((&*first.namespace, &*first.name), ("infra", "edge"));
    let mut status = first.status.value().clone();
    let since =
        |status: &Value| status["listeners"][0]["conditions"][0]["lastTransitionTime"].clone();
    assert!(since(&status).is_string());
    status["listeners"][0]["conditions"][0]["lastTransitionTime"] = "2000-01-01T00:00:00Z".into();
    // An empty list is left out by the API server, and others say something, too.
    status.as_object_mut().unwrap().remove("addresses");
    status["theirs"] = 1.into();
    let seen = |world: &mut World, generation| {
        let key = Key::new("infra", "edge");
        let mut gateway = Gateway::clone(&world.view.gateways[&key]);
        gateway.status = status.clone();
        gateway.generation = generation;
        world.view.gateways.insert(key, Arc::new(gateway));
    };
    seen(&mut world, 3);
    assert_eq!(wished(&world), None);
    seen(&mut world, 4);
    let second = wished(&world).unwrap();
    assert_eq!(since(second.status.value()), "2000-01-01T00:00:00Z");
}

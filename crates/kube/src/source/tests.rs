//! Nothing that anybody writes into one namespace changes anything for the others, from the objects of the API
//! server to the resources of proxies. `tulle-control` has the same property of the index alone.

#[path = "../../../control/tests/properties/manifests.rs"]
#[allow(dead_code)] // the index is given Secrets in another way
mod manifests;
#[path = "../../../control/tests/properties/told.rs"]
mod told;

use super::Known;
use super::objects::Objects;
use super::state::State;
use crate::gateway::view::Text;
use crate::gateway::{CLASS, Told};
use crate::gateway_fields::TextKey;
use crate::kinds::{KINDS, Kind};
use crate::names::{CONTROLLER_NAME, PROFILE, SIDECAR};
use crate::status::StatusUpdates;
use kube::api::DynamicObject;
use manifests::{EVIL, MADE, made};
use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use tulle_control::index::Index;
use tulle_model::identity::TrustDomain;
use tulle_model::namespaced::ObjectName;

#[test]
fn the_controller_does_without_kinds_of_newer_roles_only() {
    let missing = |kinds: &[&'static str]| kinds.iter().copied().collect();
    assert!(super::is_enough(&missing(&["Ingress", "IngressClass"])));
    assert!(!super::is_enough(&missing(&[
        "Ingress",
        "AuthorizationPolicy"
    ])));
    assert!(!super::is_enough(&super::all_missing()));
}

/// The controller from its watches to its index.
struct Controller {
    known: Known,
    wishes: StatusUpdates,
    gateways: Told,
    index: Index,
}

impl Controller {
    fn new() -> Self {
        let mesh = json!({
            "apiVersion": "tulle.dev/v1alpha1", "kind": "Mesh", "metadata": { "name": "mesh" },
            "spec": { "permissiveMode": true },
        });
        Self {
            known: Known {
                state: State::default(),
                objects: Objects::new(crate::object::read(&mesh).unwrap()),
            },
            wishes: StatusUpdates::default(),
            gateways: Told::default(),
            index: Index::of_cluster(TrustDomain::default(), "tulle-system"),
        }
    }

    /// Shows an object, as the watch of its kind does.
    fn see(&mut self, object: &Value) {
        let name = object["metadata"]["name"].as_str().unwrap();
        let namespace = object["metadata"]["namespace"].as_str();
        let key = ObjectName::in_namespace(name, namespace.unwrap_or_default());
        let own = || key.namespaced().unwrap().clone();
        let known = &mut self.known;
        match object["kind"].as_str().unwrap() {
            "Service" => known.state.service(own(), &read(object)),
            "EndpointSlice" => known.state.slice(own(), &read(object)),
            "Pod" => known.state.pod(own(), &read(object)),
            "Namespace" => known.state.namespace(name.to_owned(), &read(object)),
            kind => {
                let group = object["apiVersion"].as_str().unwrap().split('/').next();
                let kind = Kind::find(group.unwrap(), kind).unwrap();
                known
                    .objects
                    .apply(kind, key, read::<DynamicObject>(object));
            }
        }
    }

    /// Applies the edits to the index.
    ///
    /// # Errors
    /// A gateway of `evil` gets an object that is not `evil`'s.
    fn tell(&mut self) -> Result<(), String> {
        let (edits, _) = self.known.edits(&self.wishes);
        self.index.apply(edits);
        let (edits, texts) = self.gateways.edits(&self.known.objects.view(), text);
        self.index.apply(edits);
        let mut texts = texts.into_iter().filter(|(key, _)| key.namespace == EVIL);
        match texts.find_map(|(_, texts)| texts.into_iter().find(|t| t.key.namespace != EVIL)) {
            Some(text) => Err(format!("a gateway of {EVIL} is given {text:?}")),
            None => Ok(()),
        }
    }
}

fn read<T: DeserializeOwned>(object: &Value) -> T {
    serde_json::from_value(object.clone()).unwrap()
}

/// Returns the Secrets and ConfigMaps of the API server: one of each in each namespace.
fn text(key: &TextKey) -> Option<Text> {
    let text = format!("text of {}", key.key.namespace);
    let parts = ["tls.crt", "tls.key", "ca.crt", "jwks"];
    let all = parts.map(|part| (part.to_owned(), text.clone()));
    (key.key.name == "x").then(|| BTreeMap::from(all))
}

fn service(namespace: &str, name: &str, made_at: &str, ips: &[&str], ports: Value) -> Value {
    let spec = json!({ "clusterIPs": ips, "ports": ports });
    let mut service = made(namespace, "v1", "Service", name, spec);
    service["metadata"]["creationTimestamp"] = made_at.into();
    service
}

fn pod(namespace: &str, name: &str, made_at: &str, account: &str, ip: &str, port: u16) -> Value {
    let spec = json!({
        "serviceAccountName": account,
        "containers": [
            { "name": "app", "ports": [{ "containerPort": port }] }, { "name": SIDECAR },
        ],
    });
    let mut pod = made(namespace, "v1", "Pod", name, spec);
    pod["metadata"]["creationTimestamp"] = made_at.into();
    pod["status"] = json!({ "phase": "Running", "podIPs": [{ "ip": ip }] });
    pod
}

/// A slice of a Service of the namespace. Endpoints are `(address, pod)`, the pod with its namespace.
fn slice(
    namespace: &str,
    service: &str,
    port: u16,
    ends: &[(&str, Option<(&str, &str)>)],
) -> Value {
    let ends = ends.iter().map(|(ip, pod)| {
        let target = pod.map(
            |(name, namespace)| json!({ "kind": "Pod", "name": name, "namespace": namespace }),
        );
        json!({ "addresses": [ip], "targetRef": target, "conditions": { "ready": true } })
    });
    let labels = json!({ "kubernetes.io/service-name": service });
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "name": format!("{service}-a"), "namespace": namespace, "labels": labels },
        "endpoints": ends.collect::<Vec<_>>(), "ports": [{ "name": "http", "port": port }],
    })
}

fn namespace(name: &str, labels: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": labels } })
}

fn http_port(number: u16) -> Value {
    json!([{ "name": "http", "port": number, "appProtocol": "http" }])
}

fn victims() -> Vec<Value> {
    let class = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
        "metadata": { "name": CLASS }, "spec": { "controllerName": CONTROLLER_NAME },
    });
    let ingress_class = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "IngressClass",
        "metadata": { "name": "tulle" }, "spec": { "controller": "tulle.dev/ingress-controller" },
    });
    let mut all = manifests::victims();
    all.extend([
        class,
        ingress_class,
        ingress("shop", "x", "shop.example", "web", 80),
        namespace("shop", json!({ "team": "shop", PROFILE: "strict" })),
        namespace("infra", json!({})),
        pod("shop", "web-1", MADE, "web", "10.244.0.5", 8080),
        pod("shop", "front-1", MADE, "front", "10.244.0.6", 8080),
        service("shop", "web", MADE, &["10.96.0.20"], http_port(80)),
        service("shop", "front", MADE, &["10.96.0.21"], http_port(80)),
        slice(
            "shop",
            "web",
            8080,
            &[("10.244.0.5", Some(("web-1", "shop")))],
        ),
        slice(
            "shop",
            "front",
            8080,
            &[("10.244.0.6", Some(("front-1", "shop")))],
        ),
    ]);
    all
}

/// An Ingress of the class `tulle`, with a certificate of its own namespace.
fn ingress(namespace: &str, name: &str, host: &str, service: &str, port: u16) -> Value {
    let backend = json!({ "service": { "name": service, "port": { "number": port } } });
    let path = json!({ "path": "/", "pathType": "Prefix", "backend": backend });
    let spec = json!({
        "ingressClassName": "tulle",
        "defaultBackend": backend,
        "rules": [{ "host": host, "http": { "paths": [path] } }],
        "tls": [{ "hosts": [host], "secretName": "x" }],
    });
    made(namespace, "networking.k8s.io/v1", "Ingress", name, spec)
}

/// Services, slices, pods, Ingresses and the label of `evil`.
fn core() -> impl Strategy<Value = Value> {
    use manifests::{address, age, name, port};
    let reference = prop::option::of((name(), manifests::namespace()));
    let ends = prop::collection::vec((address(), reference), 0..3);
    let addresses = prop::collection::vec(address(), 0..2);
    let profile = prop::sample::select(vec!["strict", "permissive", "strcit"]);
    prop_oneof![
        (name(), age(), addresses, port()).prop_map(|(name, age, ips, port)| service(
            EVIL,
            name,
            age,
            &ips,
            http_port(port)
        )),
        (name(), port(), ends).prop_map(|(name, port, ends)| slice(EVIL, name, port, &ends)),
        (name(), age(), name(), address(), port())
            .prop_map(|(name, age, account, ip, port)| pod(EVIL, name, age, account, ip, port)),
        (name(), age(), name(), port()).prop_map(|(name, age, service, port)| {
            let mut ingress = ingress(EVIL, name, "shop.example", service, port);
            ingress["metadata"]["creationTimestamp"] = age.into();
            ingress
        }),
        profile.prop_map(|profile| namespace(EVIL, json!({ PROFILE: profile }))),
    ]
}

/// The others' objects in any order, and between them random ones of `evil`.
fn histories() -> impl Strategy<Value = Vec<Value>> {
    let own = prop_oneof![1 => core(), 2 => manifests::object()];
    let own = prop::collection::vec((own, any::<prop::sample::Index>()), 1..24);
    (Just(victims()).prop_shuffle(), own).prop_map(|(others, own)| {
        let mut placed: Vec<(usize, Value)> = others.into_iter().enumerate().collect();
        let count = placed.len();
        placed.extend(
            own.into_iter()
                .map(|(object, at)| (at.index(count + 1), object)),
        );
        placed.sort_by_key(|(at, _)| *at);
        placed.into_iter().map(|(_, object)| object).collect()
    })
}

/// Addresses that `evil` has because its object is not younger than the others'.
fn older_addresses(object: &Value) -> Vec<String> {
    let metadata = &object["metadata"];
    let older =
        metadata["namespace"] == EVIL && metadata["creationTimestamp"].as_str() <= Some(MADE);
    let of_service = object["spec"]["clusterIPs"]
        .as_array()
        .into_iter()
        .flatten();
    let of_pod = object["status"]["podIPs"].as_array().into_iter().flatten();
    let all = of_service
        .chain(of_pod.map(|ip| &ip["ip"]))
        .filter(|_| older);
    let all = all.filter_map(Value::as_str);
    all.map(|ip| format!("address/{ip}")).collect()
}

/// No resource that `evil` receives holds text of others.
fn tells_no_secret(index: &Index) -> Result<(), String> {
    let held = |body: &[u8], text: &str| body.windows(text.len()).any(|w| w == text.as_bytes());
    for (name, entry) in index.entries() {
        let owner = entry.owner.as_ref().and_then(|id| id.service_account());
        let of_evil = owner.is_some_and(|(namespace, _)| namespace == EVIL);
        let seen = of_evil || name.ends_with(".evil") || &**name == "egress";
        for text in ["text of shop", "text of infra"] {
            if seen && held(&entry.body, text) {
                return Err(format!("{name} holds {text}"));
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_namespace_changes_nothing_for_the_others(history in histories(), singly in any::<bool>()) {
        let mut alone = Controller::new();
        victims().iter().for_each(|object| alone.see(object));
        alone.tell().map_err(TestCaseError::fail)?;
        let lost: BTreeSet<String> = history.iter().flat_map(older_addresses).collect();
        let mut controller = Controller::new();
        for object in &history {
            controller.see(object);
            if singly {
                controller.tell().map_err(TestCaseError::fail)?;
            }
        }
        controller.tell().map_err(TestCaseError::fail)?;
        let before = told::told_to_others(&alone.index);
        let after = told::told_to_others(&controller.index);
        told::compare(&before, &after, &lost).map_err(TestCaseError::fail)?;
        tells_no_secret(&controller.index).map_err(TestCaseError::fail)?;
    }
}

/// A kind that the random objects lack would be open by default.
#[test]
fn the_random_objects_are_of_all_kinds() {
    // No tenant writes the first three; `core` has Ingresses.
    let apart = ["GatewayClass", "IngressClass", "Mesh", "Ingress"];
    for kind in KINDS.iter().filter(|kind| !apart.contains(&kind.kind)) {
        let mut random = manifests::KINDS.iter();
        let is = |(api, name): &(&str, &str)| {
            api.split('/').next() == Some(kind.group) && *name == kind.kind
        };
        assert!(random.any(is), "{kind:?}");
    }
}

/// The property holds nothing if nothing comes through.
#[test]
fn the_objects_of_those_who_mean_well_are_in_force() {
    let mut controller = Controller::new();
    victims().iter().for_each(|object| controller.see(object));
    controller.tell().unwrap();
    let told = told::told_to_others(&controller.index);
    for name in [
        "gateway/edge.infra",
        "gateway/ingress_tulle.shop",
        "service/web.shop",
        "inbound/web-1.shop",
        "egress",
    ] {
        assert!(told.contains_key(name), "{name}: {:?}", told.keys());
    }
    let refused = controller.known.objects.refused();
    assert!(refused.values().all(|count| *count == 0), "{refused:?}");
    assert!(controller.index.refused_objects().is_empty());
}

#[test]
fn the_index_is_told_which_objects_are_refused_and_when_none_is_any_more() {
    let mut controller = Controller::new();
    let spec = json!({ "targetRefs": [{ "name": "web" }], "rules": 1 });
    controller.see(&made("shop", "tulle.dev/v1alpha1", "RateLimit", "a", spec));
    controller.tell().unwrap();
    let [refused] = controller.index.refused_objects() else {
        panic!("{:?}", controller.index.refused_objects());
    };
    let start = "RateLimit/a.shop: it is refused (";
    assert!(refused.text.starts_with(start), "{refused:?}");

    let kind = Kind::find("tulle.dev", "RateLimit").unwrap();
    let gone = ObjectName::in_namespace("a", "shop");
    controller.known.objects.remove(kind, &gone);
    controller.tell().unwrap();
    assert!(controller.index.refused_objects().is_empty());
}

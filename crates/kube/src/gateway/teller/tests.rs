use super::*;
use crate::names::CONTROLLER_NAME;
use kube::core::DynamicObject;
use serde_json::{Value, json};
use std::sync::Arc;

/// The cluster that the index is told of.
struct World {
    view: View,
    told: Told,
    /// The content of each Secret.
    pair: Text,
}

impl World {
    fn new() -> Self {
        let mut view = View::default();
        let class = read(&json!({ "spec": { "controllerName": CONTROLLER_NAME } }));
        view.classes.insert("tulle".into(), Arc::new(class.into()));
        Self {
            view,
            told: Told::default(),
            pair: pair(),
        }
    }

    fn see(&mut self, namespace: &str, spec: &Value) {
        let gateway = read(&json!({ "metadata": { "uid": namespace }, "spec": spec }));
        let key = Key::new(namespace, "edge");
        self.view.gateways.insert(key, Arc::new(gateway.into()));
    }

    /// Lets Gateways of `shop` refer to Secrets of `infra`, or ends it.
    fn grant(&mut self, permits: bool) {
        let name = Key::new("infra", "g").object_name();
        let spec = json!({
            "from": [{ "group": super::super::GROUP, "kind": "Gateway", "namespace": "shop" }],
            "to": [{ "group": "", "kind": "Secret" }],
        });
        match permits {
            true => self.view.grants.put(name, &spec),
            false => self.view.grants.remove(&name),
        }
    }

    /// Tells the index; returns the gateways that it is told of with their listeners, and the other edits.
    fn tell(&mut self) -> (Vec<(String, Vec<String>)>, Vec<Edit>) {
        let Self { view, told, pair } = self;
        let (edits, _) = told.edits(view, |text| text.secret.then(|| pair.clone()));
        let (mut gateways, mut others) = (Vec::new(), Vec::new());
        for edit in edits {
            match edit {
                Edit::Gateway(told) => {
                    let names = told.spec.listeners.iter().map(|l| l.name.clone());
                    gateways.push((told.name.to_string(), names.collect()));
                }
                other => others.push(other),
            }
        }
        (gateways, others)
    }
}

fn read(object: &Value) -> DynamicObject {
    let mut object = object.clone();
    object["metadata"]["name"] = "edge".into();
    serde_json::from_value(object).unwrap()
}

/// A chain and its key.
fn pair() -> Text {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["shop.example".to_owned()]).unwrap();
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(2100, 1, 1);
    let certificate = params.self_signed(&key).unwrap();
    BTreeMap::from([
        ("tls.crt".to_owned(), certificate.pem()),
        ("tls.key".to_owned(), key.serialize_pem()),
    ])
}

/// The certificate of an authority.
fn authority() -> String {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.self_signed(&key).unwrap().pem()
}

/// A Gateway that shows the certificate of `infra/wildcard`, and has a listener without TLS.
fn spec() -> Value {
    let wildcard = json!({ "name": "wildcard", "namespace": "infra" });
    json!({
        "gatewayClassName": "tulle",
        "listeners": [
            { "name": "http", "port": 80, "protocol": "HTTP" },
            { "name": "https", "port": 443, "protocol": "HTTPS", "tls": { "certificateRefs": [wildcard] } },
        ],
    })
}

/// Mistakes for which a Gateway is refused as a whole.
fn refused() -> [Value; 2] {
    let mut addresses = spec();
    addresses["addresses"] = json!([{ "value": "10.0.0.1" }, { "value": "10.0.0.2" }]);
    let mut replicas = spec();
    replicas["infrastructure"] = json!({ "annotations": { "tulle.dev/replicas": "x" } });
    [addresses, replicas]
}

fn told(namespace: &str, listeners: &[&str]) -> (String, Vec<String>) {
    let listeners = listeners.iter().map(|name| (*name).to_owned());
    (format!("edge.{namespace}"), listeners.collect())
}

#[test]
fn a_refused_gateway_keeps_no_key_that_its_owner_takes_back() {
    for refused in refused() {
        let mut world = World::new();
        world.grant(true);
        world.see("infra", &spec());
        world.see("shop", &spec());
        let both = ["infra", "shop"].map(|namespace| told(namespace, &["http", "https"]));
        assert_eq!(world.tell().0, both);
        // Its last valid form stays in force.
        world.see("shop", &refused);
        let (gateways, others) = world.tell();
        assert!(gateways.is_empty() && others.is_empty(), "{others:?}");
        // The owner's own Gateway keeps the Secret, and the other has no part in it, nor in a new key.
        world.grant(false);
        let (gateways, others) = world.tell();
        assert_eq!(gateways, [told("shop", &["http"])]);
        assert!(others.is_empty(), "{others:?}");
        world.pair = pair();
        let (gateways, others) = world.tell();
        assert!(gateways.is_empty(), "{gateways:?}");
        assert!(matches!(&*others, [Edit::Put(_)]), "{others:?}");
        // A permission that comes back holds as before.
        world.grant(true);
        assert_eq!(world.tell().0, [told("shop", &["http", "https"])]);
    }
}

#[test]
fn a_refused_gateway_keeps_no_authorities_that_their_owner_takes_back() {
    let roots = json!({ "kind": "Secret", "name": "roots", "namespace": "infra" });
    let validation = json!({ "validation": { "caCertificateRefs": [roots] } });
    let with_roots = |mut spec: Value| {
        spec["listeners"][1]["tls"]["certificateRefs"] = json!([{ "name": "own" }]);
        spec["tls"] = json!({ "frontend": { "default": validation } });
        spec
    };
    let mut world = World::new();
    world.pair.insert("ca.crt".into(), authority());
    world.grant(true);
    world.see("shop", &with_roots(spec()));
    assert_eq!(world.tell().0, [told("shop", &["http", "https"])]);
    let [refused, _] = refused();
    world.see("shop", &with_roots(refused));
    world.grant(false);
    assert_eq!(world.tell().0, [told("shop", &["http"])]);
}

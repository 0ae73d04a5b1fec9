//! The objects that are made for Ingresses, and the statuses of Ingresses.

use super::*;
use crate::gateway::ingress::wish_statuses;
use crate::gateway::view::TextState;
use crate::kinds::Kind;
use crate::status::StatusUpdates;

fn text(name: &str) -> TextKey {
    TextKey {
        secret: true,
        key: Key::new("shop", name),
    }
}

/// A Secret with a certificate.
fn certificate(host: &str) -> TextState {
    let made = rcgen::generate_simple_self_signed([host.to_owned()]).unwrap();
    let text = [
        ("tls.crt", made.cert.pem()),
        ("tls.key", made.signing_key.serialize_pem()),
    ];
    TextState::Held(text.map(|(key, text)| (key.to_owned(), text)).into())
}

#[test]
fn tls_ends_with_the_secrets_of_the_namespace() {
    let mut cluster = Cluster::new();
    let rule =
        |host: &str, name: &str| json!({ "host": host, "http": paths(&[("Prefix", "/", name)]) });
    let spec = json!({
        "tls": [
            { "hosts": ["A.example"], "secretName": "one" },
            { "hosts": ["*.b.example"], "secretName": "two" },
            { "secretName": "rest" },
        ],
        "rules": [rule("a.example", "a"), rule("*.b.example", "b"), rule("c.example", "c")],
        "defaultBackend": service("default"),
    });
    cluster.world.ingress("old.shop", 0, ingress(spec));
    let spec = json!({ "tls": [{ "hosts": ["a.example", "10.0.0.1"], "secretName": "three" }], "rules": [rule("d.example", "d")] });
    cluster.world.ingress("young.shop", 1, ingress(spec));
    let key = ingress::key("shop", "tulle");
    let asked = cluster.plan().remove(&key).unwrap();
    // The plan asks for no other Secrets, and the index gets no gateway before their content is known.
    assert_eq!(asked.texts, ["one", "two", "rest"].map(text).into());
    assert!(asked.told.is_none());
    cluster
        .own
        .texts
        .insert(text("one"), certificate("a.example"));
    cluster.own.texts.insert(text("two"), TextState::Absent);
    cluster
        .own
        .texts
        .insert(text("rest"), certificate("c.example"));
    for (name, state) in &cluster.own.texts {
        if let TextState::Held(data) = state {
            let secret = json!({
                "apiVersion": "v1", "kind": "Secret",
                "metadata": { "name": name.key.name, "namespace": "shop" }, "stringData": data,
            });
            let mut secret = tulle_model::manifest::Object::from_json(&secret.to_string()).unwrap();
            secret.qualify();
            cluster.index.apply([Edit::Put(Box::new(secret))]);
        }
    }
    let mut ask = |name: &str, host: &str| cluster.ask("shop", Some(name), host, "/");
    assert_eq!(ask("a.example", "a.example"), "a:80");
    assert_eq!(ask("c.example", "c.example"), "c:80");
    assert_eq!(ask("d.example", "d.example"), "d:80");
    assert_eq!(ask("x.example", "x.example"), "default:80");
    // Without its certificate this part alone is not served, and the plain port goes on.
    assert_eq!(cluster.ask("shop", None, "x.b.example", "/"), "b:80");
    let expected = [
        "Ingress/young.shop: the certificate of Secret three is not shown for a.example: old names one for it, and is older",
        "Ingress/young.shop: 10.0.0.1 has no TLS: no client can ask for this name",
        "Ingress/old.shop: its `tls` is not served: Secret shop/two does not exist",
    ];
    assert_eq!(cluster.problems(), expected);
}

#[test]
fn the_ingresses_of_a_namespace_and_class_share_pods_that_no_gateway_object_can_claim() {
    let mut cluster = Cluster::new();
    let annotations = json!({ "tulle.dev/service-type": "NodePort", "tulle.dev/replicas": "2" });
    cluster
        .world
        .class("edge.v2", CONTROLLER_NAME, &annotations);
    for (name, class) in [
        ("one.shop", "tulle"),
        ("two.shop", "tulle"),
        ("three.shop", "edge.v2"),
    ] {
        let mut object = ingress(json!({ "defaultBackend": service("web") }));
        object["spec"]["ingressClassName"] = class.into();
        cluster.world.ingress(name, 0, object);
    }
    let plan = cluster.plan();
    assert_eq!(plan.len(), 2);
    let planned = &plan[&ingress::key("shop", "tulle")];
    let find = |planned: &Planned, kind: &str| {
        let found = planned.objects.iter().find(|o| o["kind"] == kind);
        found.unwrap().clone()
    };
    let deployment = find(planned, "Deployment");
    assert_eq!(deployment["metadata"]["name"], "tulle-ingress");
    let owners = deployment["metadata"]["ownerReferences"]
        .as_array()
        .unwrap();
    let owners: Vec<_> = owners
        .iter()
        .map(|o| (o["kind"].as_str().unwrap(), o["uid"].as_str().unwrap()))
        .collect();
    assert_eq!(owners, [("Ingress", "uid-1"), ("Ingress", "uid-2")]);
    // The first certificate of a namespace must not start the pods again.
    let ports = find(planned, "Service")["spec"]["ports"].clone();
    let ports: Vec<_> = ports
        .as_array()
        .unwrap()
        .iter()
        .map(|p| p["port"].clone())
        .collect();
    assert_eq!(ports, [80, 443]);
    // A Gateway `tulle` or `ingress_tulle` (which the API server refuses) has other pods.
    let selector = &deployment["spec"]["selector"]["matchLabels"];
    assert_eq!(selector[objects::GATEWAY_NAME], "ingress_tulle");
    assert_ne!(
        objects::place(&Key::new("shop", "tulle")).name,
        "tulle-ingress"
    );
    let told = planned.told.as_ref().unwrap();
    assert_eq!(told.account, "tulle-ingress");
    let other = &plan[&ingress::key("shop", "edge.v2")];
    assert_eq!(find(other, "Service")["spec"]["type"], "NodePort");
    assert_eq!(find(other, "Deployment")["spec"]["replicas"], 2);
    let place = objects::place(&ingress::key("shop", "edge.v2")).name;
    assert!(
        place.starts_with("edge-v2-") && place.ends_with("-ingress"),
        "{place}"
    );
}

#[test]
fn an_ingress_has_the_addresses_of_what_serves_it() {
    let mut cluster = Cluster::new();
    let mut object = ingress(json!({ "defaultBackend": service("web") }));
    object["metadata"]["uid"] = "one".into();
    cluster.world.ingress("i.shop", 0, object.clone());
    let place = Key::new("shop", "tulle-ingress");
    let wish = |cluster: &mut Cluster| {
        let plan = cluster.plan();
        let wishes = StatusUpdates::default();
        wish_statuses(&cluster.view(), &plan, &wishes);
        let kind = Kind::find(ingress::GROUP, "Ingress").unwrap();
        let wish = wishes.get(&(kind, Key::new("shop", "i").object_name()))?;
        Some(wish.status.value()["loadBalancer"].clone())
    };
    cluster.own.access.insert("shop".into(), Access::Granted);
    assert_eq!(wish(&mut cluster), None);
    let pending = cluster.problems();
    let expected = "Ingress/i.shop: it is not served yet: no pod of its Deployment is ready yet";
    assert_eq!(pending, [expected]);
    let as_object =
        |value: Value| serde_json::from_value::<kube::core::DynamicObject>(value).unwrap();
    let deployment = as_object(json!({ "metadata": {}, "status": { "availableReplicas": 1 } }));
    cluster
        .own
        .deployments
        .insert(place.clone(), deployment.into());
    let service = |ingress: Value| {
        let service = json!({
            "metadata": {}, "spec": { "type": "LoadBalancer" },
            "status": { "loadBalancer": { "ingress": ingress } },
        });
        serde_json::from_value::<kube::core::DynamicObject>(service)
            .unwrap()
            .into()
    };
    cluster
        .own
        .services
        .insert(place.clone(), service(json!([])));
    assert_eq!(wish(&mut cluster), None);
    let problems = cluster.problems().join("\n");
    assert!(
        problems.contains("annotations of its IngressClass"),
        "{problems}"
    );
    let addresses = json!([{ "ip": "192.0.2.1" }, { "hostname": "lb.example" }]);
    cluster
        .own
        .services
        .insert(place.clone(), service(addresses.clone()));
    assert_eq!(wish(&mut cluster), Some(json!({ "ingress": addresses })));
    assert!(cluster.problems().is_empty());
    // A status that is correct already is not written, and stays while the gateway's pods come and
    // go.
    object["status"] = json!({ "loadBalancer": { "ingress": addresses } });
    cluster.world.ingress("i.shop", 0, object.clone());
    cluster.own.deployments.remove(&place);
    assert_eq!(wish(&mut cluster), None);
    // Without the rights nothing more is made, and it is said.
    cluster.own.access.insert("shop".into(), Access::Denied);
    let problems = cluster.problems().join("\n");
    assert!(problems.contains("gateways.namespaces"), "{problems}");
    assert!(
        cluster.plan()[&ingress::key("shop", "tulle")]
            .objects
            .is_empty()
    );
    // An Ingress of which nothing can be served has no address.
    cluster.own.access.insert("shop".into(), Access::Granted);
    object["spec"] = json!({ "ingressClassName": "tulle" });
    cluster.world.ingress("i.shop", 0, object);
    assert_eq!(wish(&mut cluster), Some(json!({ "ingress": null })));
}

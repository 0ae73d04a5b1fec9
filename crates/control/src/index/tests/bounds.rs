//! An object of one namespace changes nothing for the others: examples. The property is in
//! `tests/properties/tenants.rs`.

use super::cluster::{cluster, named, number};
use super::*;
use std::net::SocketAddr;

/// When the victim's objects were made, and the others'.
const EARLY: &str = "2026-01-01T00:00:00Z";
const LATE: &str = "2026-02-01T00:00:00Z";

/// Ports as `(number, protocol, own number)`, endpoints as `(address, pod)`.
pub(super) fn a_service(
    name: &str,
    ips: &[&str],
    ports: &[(u16, Option<&str>, u16)],
    endpoints: &[(&str, Option<&str>)],
) -> ClusterService {
    let port = |(port, protocol, own): &(u16, Option<&str>, u16)| ClusterPort {
        port: number(*port, *protocol),
        endpoints: endpoints
            .iter()
            .map(|(ip, pod)| ClusterEndpoint {
                address: SocketAddr::new(ip.parse().unwrap(), *own),
                pod: pod.map(str::to_owned),
                ready: true,
                node: String::new(),
                zones: Vec::new(),
            })
            .collect(),
    };
    ClusterService {
        name: named(name),
        created: created_in(name),
        addresses: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
        ports: ports.iter().map(port).collect(),
        sticky: false,
        node_local: false,
    }
}

/// Has the first port of a service lead to a thousand of its pod, the first of which is 9000.
pub(super) fn lead_to_a_thousand(service: &mut ClusterService) {
    let endpoints = &mut service.ports[0].endpoints;
    let first = endpoints[0].clone();
    endpoints.extend((9001..10_000).map(|own| {
        let mut endpoint = first.clone();
        endpoint.address.set_port(own);
        endpoint
    }));
}

pub(super) fn a_pod(name: &str, account: &str, ip: &str, ports: &[u16]) -> ClusterPod {
    ClusterPod {
        workload: std::sync::Arc::default(),
        name: named(name),
        created: created_in(name),
        account: account.into(),
        addresses: vec![ip.parse().unwrap()],
        ports: ports.to_vec(),
        opaque: Vec::new(),
        direct: Vec::new(),
        node: String::new(),
        sidecar: true,
        egress_gateway: false,
        locality: String::new(),
    }
}

fn created_in(name: &str) -> String {
    let late = named(name).namespace() == "evil";
    if late { LATE } else { EARLY }.to_owned()
}

/// A cluster's object.
pub(super) fn object_of(namespace: &str, api: &str, kind: &str, name: &str, spec: Value) -> Edit {
    let manifest = json!({
        "apiVersion": api, "kind": kind, "metadata": { "name": name, "namespace": namespace },
        "spec": spec,
    });
    let mut object = Object::from_json(&manifest.to_string()).unwrap();
    object.metadata_mut().created = created_in(&format!("x.{namespace}"));
    object.qualify();
    Edit::Put(Box::new(object))
}

pub(super) const TULLE: &str = "tulle.dev/v1alpha1";

pub(super) fn of_shop(kind: &str, name: &str, spec: Value) -> Edit {
    object_of("shop", TULLE, kind, name, spec)
}

/// web.shop and api.shop, which need tokens, are limited and let `front` in; a gateway; egress.
fn victims() -> Index {
    let mut index = cluster();
    let about = |service: &str| json!([{ "kind": "Service", "name": service }]);
    index.apply([
        Edit::Pod(Box::new(a_pod("web-1.shop", "web", "10.244.0.5", &[8080, 9100]))),
        Edit::Pod(Box::new(a_pod("front-1.shop", "front", "10.244.0.6", &[8080]))),
        Edit::Service(Box::new(a_service(
            "web.shop",
            &["10.96.0.20"],
            &[(80, Some("http"), 8080)],
            &[("10.244.0.5", Some("web-1"))],
        ))),
        Edit::Service(Box::new(a_service(
            "front.shop",
            &["10.96.0.21"],
            &[(80, Some("http"), 8080)],
            &[("10.244.0.6", Some("front-1"))],
        ))),
        of_shop(
            "AuthorizationPolicy",
            "web",
            json!({
                "targetRefs": about("web"),
                "rules": [{ "from": { "serviceAccounts": ["front"] }, "to": { "ports": [80] } }],
            }),
        ),
        of_shop(
            "IngressBackend",
            "web",
            json!({
                "backends": [{ "name": "web" }],
                "sources": [{ "kind": "Service", "name": "front" }],
            }),
        ),
        of_shop(
            "Authentication",
            "web",
            json!({
                "targetRefs": about("web"),
                "externalAuth": { "backendRef": { "name": "front", "port": 80 }, "protocol": "HTTP" },
            }),
        ),
        of_shop(
            "Egress",
            "books",
            json!({ "hosts": ["books.example"], "ports": [{ "number": 443 }] }),
        ),
        gateway("edge.infra", &[]),
    ]);
    index
}

fn gateway(name: &str, attached: &[&str]) -> Edit {
    let spec = json!({ "listeners": [{ "name": "web", "port": 80, "protocol": "HTTP" }] });
    let attached = attached.iter().map(|route| Attachment {
        route: (*route).into(),
        listener: "web".into(),
    });
    Edit::Gateway(Box::new(ClusterGateway {
        name: named(name),
        account: "edge-tulle".into(),
        spec: serde_json::from_value(spec).unwrap(),
        attached: attached.collect(),
    }))
}

/// Objects about another namespace's services that came past `bounds`: the index finds them by their own
/// namespace.
#[test]
fn an_object_says_nothing_about_what_is_of_another_namespace() {
    let mut index = victims();
    let told = |index: &Index| {
        let all = index.entries();
        let all = all.map(|(name, entry)| (name.to_string(), entry.body.clone()));
        all.collect::<BTreeMap<_, _>>()
    };
    let before = told(&index);
    let auth = json!({ "backendRef": { "name": "front", "port": 80 }, "protocol": "HTTP" });
    let intruders = [
        ("AuthorizationPolicy", json!({ "rules": [{}] })),
        ("RateLimit", json!({ "requests": { "count": 1 } })),
        ("Authentication", json!({ "externalAuth": auth })),
        ("TrafficPolicy", json!({ "slowStart": "1s" })),
    ];
    let put = |index: &mut Index, namespace: Option<&str>| {
        for (about, name) in [("Service", "web.shop"), ("Gateway", "edge.infra")] {
            let of_name = named(name);
            let namespace = namespace.unwrap_or(of_name.namespace());
            for (kind, spec) in &intruders {
                if (about, *kind) == ("Gateway", "TrafficPolicy") {
                    continue;
                }
                let mut spec = spec.clone();
                spec["targetRefs"] = json!([{ "kind": about, "name": "x" }]);
                let Edit::Put(mut object) = object_of(namespace, TULLE, kind, "x", spec) else {
                    panic!("it is put");
                };
                let targets = match &mut *object {
                    Object::AuthorizationPolicy(m) => &mut m.spec.target_refs,
                    Object::RateLimit(m) => &mut m.spec.target_refs,
                    Object::Authentication(m) => &mut m.spec.target_refs,
                    Object::TrafficPolicy(m) => &mut m.spec.target_refs,
                    other => panic!("{other:?}"),
                };
                targets[0].name = name.into();
                object.metadata_mut().name = format!("{about}.{namespace}").to_lowercase();
                index.inputs.put_unbounded(*object);
            }
        }
        let mut dirty = BTreeSet::new();
        dependents::all(&index.inputs, &mut dirty);
        index.recompute(dirty);
    };
    put(&mut index, Some("evil"));
    assert_eq!(told(&index), before);
    // The same objects of their own namespaces do.
    put(&mut index, None);
    let after = told(&index);
    for changed in [
        "inbound/web-1.shop",
        "gateway/edge.infra",
        "service/web.shop",
    ] {
        assert_ne!(after[changed], before[changed], "{changed}");
    }
}

/// A slice may list shop's pod by its address alone. Clients would call it without an identity to expect.
#[test]
fn an_endpoint_that_is_another_namespaces_pod_is_told_to_nobody() {
    let mut index = victims();
    let bare = |pod| a_service("x.evil", &[], &[(80, None, 8080)], &[("10.244.0.5", pod)]);
    index.apply([Edit::Service(Box::new(bare(None)))]);
    let x = service(&index, "x.evil");
    assert_eq!((x.ports[0].endpoints.len(), x.identities.len()), (0, 0));
    let problems: Vec<String> = index.problems().iter().map(ToString::to_string).collect();
    assert_eq!(
        problems,
        [
            "service/x.evil: its endpoint 10.244.0.5 is pod web-1.shop of another namespace: clients \
          do not use it. A Service is for pods of its own namespace"
        ]
    );
    // The same holds with a pod of its own as a pretext, and if the other pod comes later.
    let own = a_pod("web-1.evil", "web", "10.244.9.9", &[8080]);
    index.apply([
        Edit::RemovePod(named("web-1.shop")),
        Edit::Pod(Box::new(own)),
        Edit::Service(Box::new(bare(Some("web-1")))),
    ]);
    assert_eq!(service(&index, "x.evil").ports[0].endpoints.len(), 1);
    let victim = a_pod("web-1.shop", "web", "10.244.0.5", &[8080]);
    index.apply([Edit::Pod(Box::new(victim.clone()))]);
    assert_eq!(service(&index, "x.evil").ports[0].endpoints, []);
    // A pod without a sidecar is an address like any other.
    let plain = ClusterPod {
        sidecar: false,
        ..victim
    };
    index.apply([Edit::Pod(Box::new(plain))]);
    assert_eq!(service(&index, "x.evil").ports[0].endpoints.len(), 1);
    assert!(index.problems().is_empty());
}

#[test]
fn an_address_is_whose_it_was_first() {
    let mut index = victims();
    let alias = |index: &Index| resource(index, "address/10.244.0.5");
    let thief = a_service(
        "a.evil",
        &["10.244.0.5", "10.96.0.20"],
        &[(80, None, 80)],
        &[],
    );
    index.apply([Edit::Service(Box::new(thief))]);
    assert_eq!(alias(&index), Resource::Alias("pod/web-1.shop".into()));
    let of_service = resource(&index, "address/10.96.0.20");
    assert_eq!(of_service, Resource::Alias("web.shop".into()));
    index.apply([Edit::RemovePod(named("web-1.shop"))]);
    assert_eq!(alias(&index), Resource::Alias("a.evil".into()));
}

#[test]
fn an_egress_is_about_its_own_namespace() {
    let mut index = cluster();
    let egress = |namespace: &str, sources: Value| {
        let spec = json!({ "hosts": ["x.example"], "sources": sources });
        object_of(namespace, TULLE, "Egress", "e", spec)
    };
    let lets_out = |index: &Index, of: &str| {
        let asked = v1::ExplainRequest {
            from: format!("spiffe://tulle.local/ns/{of}/sa/any"),
            to: "x.example".into(),
            ..Default::default()
        };
        let explained = index.explain(&asked).unwrap().allowed;
        let Resource::Egress(egress) = resource(index, "egress") else {
            panic!("not egress");
        };
        let id = SpiffeId::parse(&asked.from).unwrap();
        let told = egress.rules.iter().any(|rule| rule.is_for(&id));
        assert_eq!(told, explained, "{of}");
        told
    };
    index.apply([egress("evil", json!([]))]);
    assert!(lets_out(&index, "evil"));
    assert!(!lets_out(&index, "shop"));
    // The same holds if the sources also name an account.
    let account = json!({ "kind": "ServiceAccount", "name": "any" });
    index.apply([egress("evil", json!([account]))]);
    assert!(lets_out(&index, "evil"));
    assert!(!lets_out(&index, "shop"));
    // Only an Egress of the mesh's own namespace counts for everybody.
    index.apply([egress("tulle-system", json!([]))]);
    assert!(lets_out(&index, "evil") && lets_out(&index, "shop"));
}

/// References are qualified where an object is read. One that names another namespace nevertheless makes the
/// whole Egress void.
#[test]
fn an_egress_names_nothing_of_another_namespace() {
    let changes: [fn(&mut tulle_model::manifest::EgressSpec); 2] = [
        |spec| spec.sources[0].name = "front.shop".into(),
        |spec| {
            let gateway = json!({ "service": "web.shop", "port": 80 });
            spec.gateway = serde_json::from_value(gateway).unwrap();
        },
    ];
    for change in changes {
        let account = json!({ "kind": "ServiceAccount", "name": "x" });
        let spec = json!({ "hosts": ["x.example"], "sources": [account] });
        let Edit::Put(mut object) = object_of("evil", TULLE, "Egress", "e", spec) else {
            panic!("it is put");
        };
        let mut index = victims();
        let rules = |index: &Index| match resource(index, "egress") {
            Resource::Egress(egress) => egress.rules.len(),
            other => panic!("{other:?}"),
        };
        let before = rules(&index);
        index.apply([Edit::Put(object.clone())]);
        assert_eq!(rules(&index), before + 1);
        let Object::Egress(egress) = &mut *object else {
            panic!("it is an Egress");
        };
        change(&mut egress.spec);
        index.apply([Edit::Put(object)]);
        assert_eq!(rules(&index), before);
    }
}

#[test]
fn a_host_has_no_namespaces() {
    let mut index = index();
    let spec = json!({ "hosts": ["x.example"] });
    index.apply([object(TULLE, "Egress", "e.v1", spec)]);
    let Resource::Egress(egress) = resource(&index, "egress") else {
        panic!("not egress");
    };
    let id = SpiffeId::parse("spiffe://tulle.local/svc/any").unwrap();
    assert!(egress.rules[0].is_for(&id));
}

//! Names of workloads go beside the bodies of resources.

use super::cluster::{cluster, named, service_of};
use super::*;
use std::sync::Arc;
use tulle_model::resource::Workload;

fn pod_of(name: &str, ip: &str, workload: Option<&str>) -> Edit {
    let Edit::Pod(mut pod) = super::cluster::pod(name, "web", ip, true) else {
        unreachable!("it is a pod");
    };
    pod.workload = Arc::new(Workload {
        name: workload.unwrap_or_default().into(),
        ..Default::default()
    });
    Edit::Pod(pod)
}

fn labelled(index: &Index, name: &str) -> Resource {
    let entry = index.get(name).unwrap_or_else(|| panic!("no {name}"));
    let body = String::from_utf8_lossy(&entry.body);
    // Version 0.1 refuses a body with a field that it does not know.
    assert!(!body.contains("workload"), "{body}");
    tulle_api::decode(&entry.body, &entry.labels).unwrap()
}

fn table(index: &Index, name: &str) -> (Vec<String>, Vec<Vec<u16>>) {
    let Resource::Service(service) = labelled(index, name) else {
        panic!("{name} is no service");
    };
    let known = service.workloads.known.into_iter();
    let known = known.map(|k| format!("{} {}", k.workload.name, k.identity));
    (known.collect(), service.workloads.endpoints)
}

fn own(index: &Index, name: &str) -> Option<Box<Workload>> {
    match labelled(index, name) {
        Resource::Inbound(inbound) => inbound.workload,
        Resource::Gateway(gateway) => gateway.workload,
        other => panic!("{other:?}"),
    }
}

#[test]
fn pods_are_of_workloads() {
    let mut index = cluster();
    let pods = [
        ("web-1.shop", "10.244.0.5", true),
        ("web-2.shop", "10.244.0.6", true),
        ("web-3.shop", "10.244.0.7", true),
    ];
    index.apply([
        pod_of("web-1.shop", "10.244.0.5", Some("web-v1")),
        pod_of("web-2.shop", "10.244.0.6", Some("web-v1")),
        service_of("web.shop", None, &pods[..2]),
    ]);
    assert_eq!(
        table(&index, "service/web.shop"),
        (vec!["web-v1 0".into()], vec![])
    );
    assert_eq!(table(&index, "service/pod/web-1.shop").0, ["web-v1 0"]);
    assert_eq!(own(&index, "inbound/web-1.shop").unwrap().name, "web-v1");
    let before = index.get("service/web.shop").unwrap().clone();
    index.apply([
        pod_of("web-2.shop", "10.244.0.6", Some("web-v2")),
        pod_of("web-3.shop", "10.244.0.7", None),
        service_of("web.shop", None, &pods),
    ]);
    let known = vec!["web-v1 0".into(), "web-v2 0".into()];
    assert_eq!(
        table(&index, "service/web.shop"),
        (known, vec![vec![1, 2, 0]])
    );
    assert_ne!(
        index.get("service/web.shop").unwrap().version,
        before.version
    );
    // The names alone make another version, too.
    let before = index.get("service/web.shop").unwrap().clone();
    let changed = index.apply([pod_of("web-2.shop", "10.244.0.6", Some("web-v3"))]);
    assert!(
        changed
            .iter()
            .any(|(name, _)| &**name == "service/web.shop")
    );
    let after = index.get("service/web.shop").unwrap();
    assert_eq!(after.body, before.body);
    assert_ne!(after.version, before.version);
    assert_eq!(own(&index, "inbound/web-3.shop"), None);
    index.apply([Edit::RemovePod(named("web-3.shop"))]);
    assert_eq!(table(&index, "service/web.shop").1, [[1, 2]]);
}

#[test]
fn workloads_of_a_host_are_of_their_service() {
    let mut index = Index::new(TrustDomain::default());
    index.apply([
        workload("reviews-v1", "reviews", 9080, None),
        workload("reviews-v2", "reviews", 9080, None),
        place("reviews-v1", 9080, "127.0.0.1:20001"),
        place("reviews-v2", 9080, "127.0.0.1:20002"),
        gateway("edge"),
    ]);
    let (known, endpoints) = table(&index, "service/reviews");
    assert_eq!(known, ["reviews-v1 0", "reviews-v2 0"]);
    assert_eq!(endpoints, [[1, 2]]);
    let own_of = own(&index, "inbound/reviews-v2").unwrap();
    assert_eq!(
        (&*own_of.name, own_of.canonical_service()),
        ("reviews-v2", "reviews")
    );
    assert_eq!(own(&index, "gateway/edge").unwrap().name, "edge");
}

//! Objects as edits of the index.

use super::manifests::EVIL;
use serde_json::Value;
use std::net::SocketAddr;
use tulle_control::index::{
    Attachment, ClusterEndpoint, ClusterGateway, ClusterPod, ClusterPort, ClusterService, Edit,
    Index,
};
use tulle_model::identity::TrustDomain;
use tulle_model::manifest::{GatewaySpec, Object};
use tulle_model::namespaced::Namespaced;

/// A cluster of which nothing is known yet.
pub(crate) fn cluster() -> Index {
    Index::of_cluster(TrustDomain::default(), "tulle-system")
}

pub(crate) fn named(name: &str, namespace: &str) -> Namespaced {
    Namespaced::new(name, namespace).expect("a name and a namespace")
}

/// An object as `tulle-kube` gives it to the index; `None` for one that cannot be read or that the index does not
/// know.
pub(crate) fn edit(object: &Value) -> Option<Edit> {
    let metadata = &object["metadata"];
    let word = |field: &str| metadata[field].as_str().unwrap_or_default();
    if object["kind"] == "Gateway" {
        let takes = |kind: &str, route: &str, listener: &str| Attachment {
            route: format!("{kind}/{route}"),
            listener: listener.into(),
        };
        let mut gateway = Object::from_json(&bare(object)).ok()?;
        gateway.qualify();
        let Object::Gateway(gateway) = gateway else {
            return None;
        };
        let spec: GatewaySpec = gateway.spec;
        // A Gateway of `evil` says that routes of others are attached to it, too.
        let attached = match word("namespace") {
            EVIL => vec![
                takes("HTTPRoute", "web.shop", "web"),
                takes("HTTPRoute", "x.evil", "web"),
            ],
            _ => vec![takes("HTTPRoute", "edge.shop", "web")],
        };
        return Some(Edit::Gateway(Box::new(ClusterGateway {
            name: named(word("name"), word("namespace")),
            account: format!("{}-tulle", word("name")),
            spec,
            attached: attached.into_iter().collect(),
        })));
    }
    let mut read = Object::from_json(&bare(object)).ok()?;
    read.metadata_mut().created = word("creationTimestamp").to_owned();
    read.qualify();
    Some(Edit::Put(Box::new(read)))
}

/// The text that an author could have written for a host.
fn bare(object: &Value) -> String {
    let mut object = object.clone();
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("creationTimestamp");
    }
    // Which routes a listener takes, `tulle-kube` decides: see `attached`.
    let listeners = object.pointer_mut("/spec/listeners");
    let listeners = listeners.and_then(Value::as_array_mut);
    for listener in listeners.into_iter().flatten() {
        listener.as_object_mut().map(|l| l.remove("allowedRoutes"));
    }
    object.to_string()
}

/// A Service of the namespace and age. Ports are `(number, protocol, own number)`, endpoints `(address, pod)`.
pub(crate) fn service(
    (name, namespace, created): (&str, &str, &str),
    ips: &[&str],
    ports: &[(u16, Option<&str>, u16)],
    endpoints: &[(&str, Option<&str>)],
) -> Edit {
    let port = |(port, protocol, own): &(u16, Option<&str>, u16)| {
        let endpoints = endpoints.iter().map(|(ip, pod)| ClusterEndpoint {
            address: SocketAddr::new(ip.parse().expect("an address"), *own),
            pod: pod.map(str::to_owned),
            ready: true,
            node: String::new(),
            zones: Vec::new(),
        });
        let mut number = serde_json::json!({ "port": port });
        if let Some(protocol) = protocol {
            number["appProtocol"] = (*protocol).into();
        }
        ClusterPort {
            port: serde_json::from_value(number).expect("a port"),
            endpoints: endpoints.collect(),
        }
    };
    Edit::Service(Box::new(ClusterService {
        name: named(name, namespace),
        created: created.to_owned(),
        addresses: ips
            .iter()
            .map(|ip| ip.parse().expect("an address"))
            .collect(),
        ports: ports.iter().map(port).collect(),
        sticky: false,
        node_local: false,
    }))
}

/// A pod.
pub(crate) fn pod(
    (name, namespace, created): (&str, &str, &str),
    account: &str,
    ip: &str,
    ports: &[u16],
    sidecar: bool,
) -> Edit {
    Edit::Pod(Box::new(ClusterPod {
        workload: std::sync::Arc::default(),
        name: named(name, namespace),
        created: created.to_owned(),
        account: account.into(),
        addresses: vec![ip.parse().expect("an address")],
        ports: ports.to_vec(),
        sidecar,
        egress_gateway: false,
        locality: String::new(),
        opaque: Vec::new(),
        direct: Vec::new(),
        node: String::new(),
    }))
}

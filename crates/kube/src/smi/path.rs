//! Parses the path of a request. Pure.

use super::{GROUP, VERSION};
use kube::api::ApiResource;

/// A kind of resource that has traffic.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Resource {
    /// The plural, as in URLs.
    pub(super) plural: &'static str,
    pub(super) kind: &'static str,
    pub(super) namespaced: bool,
    /// Group and version of the objects themselves.
    pub(super) group: &'static str,
}

const fn resource(plural: &'static str, kind: &'static str, group: &'static str) -> Resource {
    Resource {
        plural,
        kind,
        // No other kind has pods and no namespace.
        namespaced: !matches!(plural.as_bytes(), b"namespaces" | b"nodes"),
        group,
    }
}

/// The resources of the specification, apart from trafficsplits.
pub(super) static RESOURCES: [Resource; 10] = [
    resource("daemonsets", "DaemonSet", "apps"),
    resource("deployments", "Deployment", "apps"),
    resource("jobs", "Job", "batch"),
    resource("namespaces", "Namespace", ""),
    resource("nodes", "Node", ""),
    resource("pods", "Pod", ""),
    resource("replicasets", "ReplicaSet", "apps"),
    resource("replicationcontrollers", "ReplicationController", ""),
    resource("services", "Service", ""),
    resource("statefulsets", "StatefulSet", "apps"),
];

impl Resource {
    fn named(plural: &str) -> Option<&'static Self> {
        RESOURCES.iter().find(|r| r.plural == plural)
    }

    /// Where the objects are.
    pub(super) fn api(&self) -> ApiResource {
        let api_version = match self.group {
            "" => "v1".to_owned(),
            group => format!("{group}/v1"),
        };
        ApiResource {
            group: self.group.into(),
            version: "v1".into(),
            api_version,
            kind: self.kind.into(),
            plural: self.plural.into(),
        }
    }
}

/// A document that describes the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Document {
    Groups,
    Group,
    Resources,
    OpenApi,
}

/// A resource, the namespace if there is one, and the name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RequestedPath {
    Discovery(Document),
    List(&'static Resource, Option<String>),
    One(&'static Resource, Option<String>, String),
    Edges(&'static Resource, Option<String>, String),
}

/// Reads a path. Names of the API server need no escapes.
pub(super) fn parse(path: &str) -> Option<RequestedPath> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let rest = match parts.as_slice() {
        ["openapi", "v2"] => return Some(RequestedPath::Discovery(Document::OpenApi)),
        ["apis"] => return Some(RequestedPath::Discovery(Document::Groups)),
        ["apis", group] if *group == GROUP => {
            return Some(RequestedPath::Discovery(Document::Group));
        }
        ["apis", group, version, rest @ ..] if *group == GROUP && *version == VERSION => rest,
        _ => return None,
    };
    let (namespace, rest) = match rest {
        [] => return Some(RequestedPath::Discovery(Document::Resources)),
        // These paths name the namespace itself.
        ["namespaces", _] | ["namespaces", _, "edges"] => (None, rest),
        ["namespaces", namespace, rest @ ..] => (Some((*namespace).to_owned()), rest),
        rest => (None, rest),
    };
    let (plural, rest) = rest.split_first()?;
    let resource = Resource::named(plural)?;
    match (rest, &namespace) {
        ([], None) => Some(RequestedPath::List(resource, None)),
        _ if resource.namespaced == namespace.is_none() => None,
        ([], Some(_)) => Some(RequestedPath::List(resource, namespace)),
        ([name], _) => Some(RequestedPath::One(resource, namespace, (*name).to_owned())),
        ([name, "edges"], _) => Some(RequestedPath::Edges(
            resource,
            namespace,
            (*name).to_owned(),
        )),
        _ => None,
    }
}

/// A parameter of a query.
pub(super) fn query(query: &str, name: &str) -> Option<String> {
    let each = query.split('&').filter_map(|pair| pair.split_once('='));
    let mut found = each.filter(|(key, _)| *key == name);
    found.next().map(|(_, value)| decoded(value))
}

/// Without `%XX` and `+`.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|d| std::str::from_utf8(d).ok());
        let byte = digits.and_then(|d| u8::from_str_radix(d, 16).ok());
        (rest, _) = match (first, byte) {
            (b'%', Some(byte)) => (&after[2..], bytes.push(byte)),
            (b'+', _) => (after, bytes.push(b' ')),
            (other, _) => (after, bytes.push(*other)),
        };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const API: &str = "/apis/metrics.smi-spec.io/v1alpha1";

    fn read(rest: &str) -> Option<RequestedPath> {
        parse(&format!("{API}{rest}"))
    }

    #[test]
    fn paths_of_the_specification() {
        let resource = |plural| Resource::named(plural).unwrap();
        let (pods, namespaces) = (resource("pods"), resource("namespaces"));
        let shop = || Some("shop".to_owned());
        assert_eq!(
            read("/"),
            Some(RequestedPath::Discovery(Document::Resources))
        );
        assert_eq!(read("/pods"), Some(RequestedPath::List(pods, None)));
        assert_eq!(
            read("/namespaces"),
            Some(RequestedPath::List(namespaces, None))
        );
        assert_eq!(
            read("/namespaces/shop/pods/"),
            Some(RequestedPath::List(pods, shop()))
        );
        assert_eq!(
            read("/namespaces/shop"),
            Some(RequestedPath::One(namespaces, None, "shop".into()))
        );
        assert_eq!(
            read("/namespaces/shop/edges"),
            Some(RequestedPath::Edges(namespaces, None, "shop".into()))
        );
        assert_eq!(
            read("/namespaces/shop/pods/web-1"),
            Some(RequestedPath::One(pods, shop(), "web-1".into()))
        );
        assert_eq!(
            read("/namespaces/shop/pods/web-1/edges"),
            Some(RequestedPath::Edges(pods, shop(), "web-1".into()))
        );
        assert_eq!(
            read("/nodes/n1"),
            Some(RequestedPath::One(resource("nodes"), None, "n1".into()))
        );
        for nothing in [
            "/secrets",
            "/pods/web-1",
            "/namespaces/shop/nodes/n1",
            "/namespaces/shop/pods/web-1/edges/more",
            "/namespaces/shop/pods/web-1/log",
        ] {
            assert_eq!(read(nothing), None, "{nothing}");
        }
        assert_eq!(parse("/api/v1/pods"), None);
        assert_eq!(parse("/apis/apps/v1/deployments"), None);
    }

    #[test]
    fn queries_are_decoded() {
        let selector = query(
            "limit=5&labelSelector=app%3Dweb%2Ctier+in%28a%29",
            "labelSelector",
        );
        assert_eq!(selector.as_deref(), Some("app=web,tier in(a)"));
        assert_eq!(
            query("labelSelector=%zz%", "labelSelector").as_deref(),
            Some("%zz%")
        );
        assert_eq!(query("a=b", "labelSelector"), None);
    }
}

//! The fields of the cluster's objects that decide about gateways. All others are dropped when an object
//! is seen.
//!
//! Read leniently: the API server has checked these objects already, and a field of a newer release of
//! Gateway API is no reason to drop one.

use crate::ingress::Served;
use crate::source::Grants;
use kube::core::DynamicObject;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use tulle_control::index::Attachment;
use tulle_model::namespaced::ObjectName;

pub(crate) type Labels = BTreeMap<String, String>;

/// Where an object is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Key {
    /// Empty for an object without a namespace.
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Key {
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    /// Returns the name that the index uses.
    pub(crate) fn object_name(&self) -> ObjectName {
        ObjectName::in_namespace(&self.name, &self.namespace)
    }
}

impl From<&ObjectName> for Key {
    fn from(name: &ObjectName) -> Self {
        Self::new(name.namespace(), name.name())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Kinds of routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RouteKind {
    Http,
    Grpc,
    Tls,
    Tcp,
}

impl RouteKind {
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        let all = [Self::Http, Self::Grpc, Self::Tls, Self::Tcp];
        all.into_iter().find(|kind| kind.name() == name)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Http => "HTTPRoute",
            Self::Grpc => "GRPCRoute",
            Self::Tls => "TLSRoute",
            Self::Tcp => "TCPRoute",
        }
    }
}

/// A Secret or ConfigMap that a gateway or a policy refers to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TextKey {
    pub(crate) secret: bool,
    pub(crate) key: Key,
}

impl TextKey {
    pub(super) fn kind(&self) -> &'static str {
        if self.secret { "Secret" } else { "ConfigMap" }
    }
}

/// The content of a Secret or ConfigMap, by key.
pub(crate) type Text = BTreeMap<String, String>;

/// The state of gateways, as the one watch of Gateway API's kinds ([`crate::source`]) shows it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct View {
    pub(crate) classes: BTreeMap<String, Arc<Class>>,
    /// How often classes were listed. The first time the API server has their kind, and ours can be made.
    pub(crate) classes_listed: u64,
    pub(crate) gateways: BTreeMap<Key, Arc<Gateway>>,
    pub(crate) grants: Grants,
    /// The routes that each gateway's listeners take.
    pub(crate) attached: BTreeMap<Key, BTreeSet<Attachment>>,
    /// Secrets and ConfigMaps that policies refer to.
    pub(crate) texts: BTreeSet<TextKey>,
    /// The gateways that serve Ingresses.
    pub(crate) ingresses: BTreeMap<Key, Arc<Served>>,
}

impl View {
    /// The class of a gateway, if it is one of ours.
    pub(crate) fn class(&self, gateway: &Gateway) -> Option<&Class> {
        let class = self.classes.get(&gateway.spec.gateway_class_name)?;
        (class.spec.controller_name == super::CONTROLLER_NAME).then_some(class)
    }

    /// Whether a Gateway may refer to this.
    pub(super) fn is_granted(&self, gateway: &Key, text: &TextKey) -> bool {
        let from = (super::GROUP, "Gateway", gateway.namespace.as_str());
        let TextKey { key, .. } = text;
        self.grants
            .permits(from, text.kind(), &key.namespace, &key.name)
    }
}

/// A Secret or ConfigMap, once the API server has answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TextState {
    Held(Text),
    Absent,
    /// The controller has no right to read it.
    Forbidden,
}

/// Whether the controller may keep Deployments in a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Access {
    Granted,
    Denied,
}

/// The state that only gateways need.
#[derive(Debug, Default)]
pub(super) struct Own {
    pub(super) services: BTreeMap<Key, Service>,
    pub(super) deployments: BTreeMap<Key, Deployment>,
    /// Secrets and ConfigMaps; absent until they are read for the first time.
    pub(super) texts: BTreeMap<TextKey, TextState>,
    /// Access by namespace; absent where nobody has asked for Deployments yet.
    pub(super) access: BTreeMap<String, Access>,
    /// Gateways whose objects the API server refused to write, and why.
    pub(super) refused: BTreeMap<Key, String>,
}

impl Own {
    /// The Deployments of a namespace were listed.
    pub(super) fn list(&mut self, namespace: String, all: BTreeMap<Key, Deployment>) {
        self.deployments.retain(|key, _| key.namespace != namespace);
        self.deployments.extend(all);
        self.access.insert(namespace, Access::Granted);
    }

    /// Records that the API server refuses to list the Deployments of a namespace.
    pub(super) fn deny(&mut self, namespace: String) {
        self.access.insert(namespace, Access::Denied);
    }

    /// Drops a namespace that is no longer watched.
    pub(super) fn forget(&mut self, namespace: &str) {
        self.deployments.retain(|key, _| key.namespace != namespace);
        self.access.remove(namespace);
    }

    /// Notes that the API server refused to show a Secret or ConfigMap. Its known content stays.
    pub(super) fn hide(&mut self, text: TextKey) {
        self.texts.entry(text).or_insert(TextState::Forbidden);
    }
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Class {
    pub(super) resource_version: String,
    pub(super) generation: i64,
    pub(super) annotations: Labels,
    pub(super) spec: ClassSpec,
    pub(super) status: Value,
}

impl Class {
    /// Makes a class of which only the annotations are known.
    pub(super) fn with_annotations(annotations: &Labels) -> Self {
        Self {
            annotations: annotations.clone(),
            ..Self::default()
        }
    }
}

impl From<DynamicObject> for Class {
    fn from(mut object: DynamicObject) -> Self {
        Self {
            spec: part(&mut object, "spec"),
            status: object.data["status"].take(),
            resource_version: object.metadata.resource_version.unwrap_or_default(),
            generation: object.metadata.generation.unwrap_or_default(),
            annotations: object.metadata.annotations.unwrap_or_default(),
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ClassSpec {
    pub(super) controller_name: String,
    pub(super) parameters_ref: Option<Value>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Gateway {
    pub(super) uid: String,
    pub(super) resource_version: String,
    pub(super) generation: i64,
    pub(crate) spec: GatewaySpec,
    pub(super) status: Value,
}

impl Gateway {
    /// Whether it is for callers in the mesh whose requests leave it.
    pub(crate) fn is_egress(&self) -> bool {
        self.spec.gateway_class_name == super::EGRESS_CLASS
    }

    /// A gateway that is no object: with this spec, and without a status of its own.
    pub(crate) fn with_spec(spec: Value) -> Self {
        Self {
            spec: serde_json::from_value(spec).unwrap_or_default(),
            ..Self::default()
        }
    }
}

impl From<DynamicObject> for Gateway {
    fn from(mut object: DynamicObject) -> Self {
        Self {
            spec: part(&mut object, "spec"),
            status: object.data["status"].take(),
            uid: object.metadata.uid.unwrap_or_default(),
            resource_version: object.metadata.resource_version.unwrap_or_default(),
            generation: object.metadata.generation.unwrap_or_default(),
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct GatewaySpec {
    pub(crate) gateway_class_name: String,
    pub(crate) listeners: Vec<Listener>,
    pub(super) addresses: Vec<Address>,
    pub(super) infrastructure: Infrastructure,
    pub(super) tls: GatewayTls,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Infrastructure {
    pub(super) labels: Labels,
    pub(super) annotations: Labels,
    pub(super) parameters_ref: Option<Value>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Address {
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
    pub(super) value: Option<String>,
}

/// TLS settings of all listeners.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct GatewayTls {
    pub(super) frontend: Option<Frontend>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Frontend {
    pub(super) default: FrontendOfPort,
    pub(super) per_port: Vec<PerPort>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PerPort {
    pub(super) port: u16,
    pub(super) tls: FrontendOfPort,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct FrontendOfPort {
    pub(super) validation: Option<Validation>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Validation {
    pub(super) ca_certificate_refs: Vec<Reference>,
    pub(super) mode: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Listener {
    pub(crate) name: String,
    pub(super) port: u16,
    pub(super) protocol: String,
    pub(super) hostname: Option<String>,
    pub(super) tls: Option<ListenerTls>,
    pub(super) allowed_routes: AllowedRoutes,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ListenerTls {
    pub(super) mode: Option<String>,
    pub(super) certificate_refs: Vec<Reference>,
    pub(super) frontend_validation: Option<Validation>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Reference {
    pub(super) group: Option<String>,
    pub(super) kind: Option<String>,
    pub(crate) name: String,
    pub(super) namespace: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AllowedRoutes {
    pub(super) namespaces: AllowedNamespaces,
    pub(super) kinds: Vec<GroupKind>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AllowedNamespaces {
    pub(super) from: Option<String>,
    pub(super) selector: Option<Selector>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct GroupKind {
    pub(super) group: Option<String>,
    pub(super) kind: String,
}

/// A selector of labels, as everywhere in Kubernetes.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Selector {
    match_labels: Labels,
    match_expressions: Vec<Expression>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Expression {
    key: String,
    operator: String,
    values: Vec<String>,
}

impl Selector {
    pub(super) fn selects(&self, labels: &Labels) -> bool {
        let equal = self.match_labels.iter();
        let mut equal = equal.map(|(key, value)| labels.get(key) == Some(value));
        let holds = |e: &Expression| {
            let found = labels.get(&e.key);
            match e.operator.as_str() {
                "In" => found.is_some_and(|v| e.values.contains(v)),
                "NotIn" => found.is_none_or(|v| !e.values.contains(v)),
                "Exists" => found.is_some(),
                "DoesNotExist" => found.is_none(),
                _ => false,
            }
        };
        equal.all(|equal| equal) && self.match_expressions.iter().all(holds)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RouteSpec {
    pub(super) hostnames: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ParentRef {
    pub(super) section_name: Option<String>,
    pub(super) port: Option<u16>,
}

/// A Service of a gateway.
#[derive(Debug, Clone, Default)]
pub(super) struct Service {
    pub(super) kind: String,
    pub(super) cluster_ips: Vec<String>,
    /// The addresses that a load balancer has given it.
    pub(super) ingress: Vec<Ingress>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Ingress {
    pub(super) ip: Option<String>,
    pub(super) hostname: Option<String>,
}

impl From<DynamicObject> for Service {
    fn from(mut object: DynamicObject) -> Self {
        let ingress = object.data["status"]["loadBalancer"]["ingress"].take();
        let spec = &object.data["spec"];
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let ips = spec["clusterIPs"].as_array();
        Self {
            kind: text(&spec["type"]).unwrap_or_default(),
            cluster_ips: ips.into_iter().flatten().filter_map(text).collect(),
            ingress: serde_json::from_value(ingress).unwrap_or_default(),
        }
    }
}

/// A Deployment of a gateway.
#[derive(Debug, Clone, Default)]
pub(super) struct Deployment {
    pub(super) generation: i64,
    pub(super) available: i64,
}

impl From<DynamicObject> for Deployment {
    fn from(object: DynamicObject) -> Self {
        let available = &object.data["status"]["availableReplicas"];
        Self {
            generation: object.metadata.generation.unwrap_or_default(),
            available: available.as_i64().unwrap_or_default(),
        }
    }
}

/// A part of an object; one that is not as expected is as if it were empty.
fn part<T: DeserializeOwned + Default>(object: &mut DynamicObject, name: &str) -> T {
    serde_json::from_value(object.data[name].take()).unwrap_or_default()
}

//! The fields of Gateway API's objects that are looked at. All others are dropped when an object is seen.
//!
//! Read leniently: the API server has checked these objects already, and a field of a newer release of
//! Gateway API is no reason to drop one.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::DynamicObject;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use tulle_model::namespaced::ObjectName;

/// The class of egress gateways.
pub const EGRESS_CLASS: &str = "tulle-egress";

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
    pub(crate) fn kind(&self) -> &'static str {
        if self.secret { "Secret" } else { "ConfigMap" }
    }
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Class {
    pub(crate) resource_version: String,
    pub(crate) generation: i64,
    pub(crate) annotations: Labels,
    pub(crate) spec: ClassSpec,
    pub(crate) status: Value,
}

impl Class {
    /// Makes a class of which only the annotations are known.
    pub(crate) fn with_annotations(annotations: &Labels) -> Self {
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
    pub(crate) controller_name: String,
    pub(crate) parameters_ref: Option<Value>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Gateway {
    pub(crate) uid: String,
    /// When it was made, in a form that sorts.
    pub(crate) created: String,
    pub(crate) resource_version: String,
    pub(crate) generation: i64,
    pub(crate) spec: GatewaySpec,
    pub(crate) status: Value,
}

impl Gateway {
    /// Whether it is for callers in the mesh whose requests leave it.
    pub(crate) fn is_egress(&self) -> bool {
        self.spec.gateway_class_name == EGRESS_CLASS
    }

    /// A gateway that is no object: with this spec, and without a status of its own.
    pub(crate) fn with_spec(spec: Value) -> Self {
        Self {
            spec: Deserialize::deserialize(&spec).unwrap_or_default(),
            ..Self::default()
        }
    }
}

impl From<DynamicObject> for Gateway {
    fn from(mut object: DynamicObject) -> Self {
        Self {
            spec: part(&mut object, "spec"),
            status: object.data["status"].take(),
            created: created(object.metadata.creation_timestamp.as_ref()),
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
    pub(crate) addresses: Vec<Address>,
    pub(crate) infrastructure: Infrastructure,
    pub(crate) tls: GatewayTls,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Infrastructure {
    pub(crate) labels: Labels,
    pub(crate) annotations: Labels,
    pub(crate) parameters_ref: Option<Value>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Address {
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    pub(crate) value: Option<String>,
}

/// TLS settings of all listeners.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct GatewayTls {
    pub(crate) frontend: Option<Frontend>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Frontend {
    pub(crate) default: FrontendOfPort,
    pub(crate) per_port: Vec<PerPort>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PerPort {
    pub(crate) port: u16,
    pub(crate) tls: FrontendOfPort,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct FrontendOfPort {
    pub(crate) validation: Option<Validation>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Validation {
    pub(crate) ca_certificate_refs: Vec<Reference>,
    pub(crate) mode: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Listener {
    pub(crate) name: String,
    pub(crate) port: u16,
    pub(crate) protocol: String,
    pub(crate) hostname: Option<String>,
    pub(crate) tls: Option<ListenerTls>,
    pub(crate) allowed_routes: AllowedRoutes,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ListenerTls {
    pub(crate) mode: Option<String>,
    pub(crate) certificate_refs: Vec<Reference>,
    pub(crate) frontend_validation: Option<Validation>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Reference {
    pub(crate) group: Option<String>,
    pub(crate) kind: Option<String>,
    pub(crate) name: String,
    pub(crate) namespace: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AllowedRoutes {
    pub(crate) namespaces: AllowedNamespaces,
    pub(crate) kinds: Vec<GroupKind>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AllowedNamespaces {
    pub(crate) from: Option<String>,
    pub(crate) selector: Option<Selector>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct GroupKind {
    pub(crate) group: Option<String>,
    pub(crate) kind: String,
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
    pub(crate) fn selects(&self, labels: &Labels) -> bool {
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
    pub(crate) hostnames: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ParentRef {
    pub(crate) section_name: Option<String>,
    pub(crate) port: Option<u16>,
}

/// When an object was made, as the API server writes it.
pub(crate) fn created(at: Option<&Time>) -> String {
    let written = at.and_then(|at| serde_json::to_value(at).ok());
    written
        .as_ref()
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

/// A part of an object; one that is not as expected is as if it were empty.
fn part<T: DeserializeOwned + Default>(object: &mut DynamicObject, name: &str) -> T {
    T::deserialize(&object.data[name].take()).unwrap_or_default()
}

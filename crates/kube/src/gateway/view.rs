//! What of the cluster decides about gateways. Everything else of an object is dropped when it is seen.
//!
//! Read leniently: the API server has checked these objects already, and a field of a newer release
//! of Gateway API is no reason to drop one.

use kube::core::DynamicObject;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;

pub(crate) type Labels = BTreeMap<String, String>;

/// Where an object is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Key {
    /// Empty for what is in none.
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

    /// As it is called from the index on.
    pub(super) fn qualified(&self) -> String {
        format!("{}.{}", self.name, self.namespace)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Kinds that are watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    GatewayClass,
    Gateway,
    Route(RouteKind),
    ReferenceGrant,
    Namespace,
    Service,
    Deployment,
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
    pub(crate) fn of(name: &str) -> Option<Self> {
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
pub struct TextKey {
    pub(crate) secret: bool,
    pub(crate) key: Key,
}

impl TextKey {
    pub(super) fn kind(&self) -> &'static str {
        if self.secret { "Secret" } else { "ConfigMap" }
    }
}

/// What it holds, by key.
pub(super) type Text = BTreeMap<String, String>;

#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) classes: BTreeMap<String, Class>,
    pub(super) gateways: BTreeMap<Key, Gateway>,
    pub(super) routes: BTreeMap<(RouteKind, Key), Route>,
    pub(super) grants: BTreeMap<Key, GrantSpec>,
    pub(super) namespaces: BTreeMap<String, Labels>,
    pub(super) services: BTreeMap<Key, Service>,
    pub(super) deployments: BTreeMap<Key, Deployment>,
    /// `None`: it does not exist. Absent: nobody has looked yet.
    pub(super) texts: BTreeMap<TextKey, Option<Text>>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Class {
    pub(super) generation: i64,
    pub(super) annotations: Labels,
    pub(super) spec: ClassSpec,
    pub(super) status: Value,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ClassSpec {
    pub(super) controller_name: String,
    pub(super) parameters_ref: Option<Value>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Gateway {
    pub(super) uid: String,
    pub(super) generation: i64,
    pub(super) spec: GatewaySpec,
    pub(super) status: Value,
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

/// What holds for all listeners.
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

/// Of labels, as everywhere in Kubernetes.
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

#[derive(Debug, Clone, Default)]
pub(super) struct Route {
    pub(super) spec: RouteSpec,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RouteSpec {
    pub(super) parent_refs: Vec<ParentRef>,
    pub(super) hostnames: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ParentRef {
    pub(super) group: Option<String>,
    pub(super) kind: Option<String>,
    pub(crate) name: String,
    pub(super) namespace: Option<String>,
    pub(super) section_name: Option<String>,
    pub(super) port: Option<u16>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct GrantSpec {
    from: Vec<GrantFrom>,
    to: Vec<GrantTo>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
struct GrantFrom {
    group: String,
    kind: String,
    namespace: String,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
struct GrantTo {
    group: String,
    kind: String,
    name: Option<String>,
}

/// A Service of a gateway.
#[derive(Debug, Clone, Default)]
pub(super) struct Service {
    pub(super) kind: String,
    pub(super) cluster_ips: Vec<String>,
    /// What a load balancer has given it.
    pub(super) ingress: Vec<Ingress>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Ingress {
    pub(super) ip: Option<String>,
    pub(super) hostname: Option<String>,
}

/// A Deployment of a gateway.
#[derive(Debug, Clone, Default)]
pub(super) struct Deployment {
    pub(super) generation: i64,
    pub(super) available: i64,
}

impl View {
    pub(super) fn put(&mut self, kind: Kind, key: Key, object: DynamicObject) {
        let mut object = object;
        let generation = object.metadata.generation.unwrap_or_default();
        match kind {
            Kind::GatewayClass => {
                let seen = Class {
                    generation,
                    annotations: object.metadata.annotations.take().unwrap_or_default(),
                    spec: part(&mut object, "spec"),
                    status: object.data["status"].take(),
                };
                self.classes.insert(key.name, seen);
            }
            Kind::Gateway => {
                let seen = Gateway {
                    uid: object.metadata.uid.take().unwrap_or_default(),
                    generation,
                    spec: part(&mut object, "spec"),
                    status: object.data["status"].take(),
                };
                self.gateways.insert(key, seen);
            }
            Kind::Route(kind) => {
                let spec = part(&mut object, "spec");
                self.routes.insert((kind, key), Route { spec });
            }
            Kind::ReferenceGrant => {
                self.grants.insert(key, part(&mut object, "spec"));
            }
            Kind::Namespace => {
                let labels = object.metadata.labels.take().unwrap_or_default();
                self.namespaces.insert(key.name, labels);
            }
            Kind::Service => {
                let ingress = object.data["status"]["loadBalancer"]["ingress"].take();
                let spec = &object.data["spec"];
                let text = |value: &Value| value.as_str().map(str::to_owned);
                let ips = spec["clusterIPs"].as_array();
                let seen = Service {
                    kind: text(&spec["type"]).unwrap_or_default(),
                    cluster_ips: ips.into_iter().flatten().filter_map(text).collect(),
                    ingress: serde_json::from_value(ingress).unwrap_or_default(),
                };
                self.services.insert(key, seen);
            }
            Kind::Deployment => {
                let available = &object.data["status"]["availableReplicas"];
                let seen = Deployment {
                    generation,
                    available: available.as_i64().unwrap_or_default(),
                };
                self.deployments.insert(key, seen);
            }
        }
    }

    pub(super) fn remove(&mut self, kind: Kind, key: &Key) {
        match kind {
            Kind::GatewayClass => drop(self.classes.remove(&key.name)),
            Kind::Gateway => drop(self.gateways.remove(key)),
            Kind::Route(kind) => drop(self.routes.remove(&(kind, key.clone()))),
            Kind::ReferenceGrant => drop(self.grants.remove(key)),
            Kind::Namespace => drop(self.namespaces.remove(&key.name)),
            Kind::Service => drop(self.services.remove(key)),
            Kind::Deployment => drop(self.deployments.remove(key)),
        }
    }

    /// The class of a gateway, if it is one of ours.
    pub(super) fn class(&self, gateway: &Gateway) -> Option<&Class> {
        let class = self.classes.get(&gateway.spec.gateway_class_name)?;
        (class.spec.controller_name == super::CONTROLLER_NAME).then_some(class)
    }

    /// Whether a Gateway may refer to what is in another namespace.
    pub(super) fn is_granted(&self, gateway: &Key, text: &TextKey) -> bool {
        if gateway.namespace == text.key.namespace {
            return true;
        }
        let mut grants = self.grants.iter();
        grants.any(|(key, grant)| {
            let from = grant.from.iter().any(|from| {
                from.group == super::GROUP
                    && from.kind == "Gateway"
                    && from.namespace == gateway.namespace
            });
            let to = grant.to.iter().any(|to| {
                let name = to.name.as_deref().filter(|name| !name.is_empty());
                to.group.is_empty()
                    && to.kind == text.kind()
                    && name.is_none_or(|name| name == text.key.name)
            });
            key.namespace == text.key.namespace && from && to
        })
    }
}

/// A part of an object; one that is not as expected is as if it were empty.
fn part<T: DeserializeOwned + Default>(object: &mut DynamicObject, name: &str) -> T {
    serde_json::from_value(object.data[name].take()).unwrap_or_default()
}

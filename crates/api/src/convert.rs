//! Conversions between the types of `tulle_model::resource` and their messages on the wire.
//!
//! Into the wire cannot fail. From the wire everything that has a form is checked (identities,
//! addresses, port numbers, known enum values) so that the rest of a proxy never meets a bad value;
//! whether the values make sense together is not decided here.

use crate::v1;
use bytes::Bytes;
use prost::Message;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use tulle_model::identity::{SpiffeId, TrustDomain};
use tulle_model::resource as model;

/// A message from the other plane that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidWire {
    /// Path of the field, such as `service.ports[0].endpoints[2].address`; empty: the whole message.
    pub field: String,
    /// What is wrong with it.
    pub problem: String,
}

impl InvalidWire {
    fn new(field: &str, problem: impl Into<String>) -> Self {
        Self {
            field: field.to_owned(),
            problem: problem.into(),
        }
    }

    /// The same problem seen from the message around it.
    fn inside(mut self, outer: &str) -> Self {
        self.field = if self.field.is_empty() {
            outer.to_owned()
        } else {
            format!("{outer}.{}", self.field)
        };
        self
    }
}

impl fmt::Display for InvalidWire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() {
            write!(f, "invalid message: {}", self.problem)
        } else {
            write!(f, "invalid message: {}: {}", self.field, self.problem)
        }
    }
}

impl std::error::Error for InvalidWire {}

/// The body of a resource, as carried in [`v1::Resource::body`].
pub fn encode_body(resource: &model::Resource) -> Bytes {
    v1::ResourceBody::from(resource).encode_to_vec().into()
}

/// The resource in a body.
///
/// # Errors
/// The bytes are not a `ResourceBody`, its kind is unknown here or a field has no valid value.
pub fn decode_body(body: &[u8]) -> Result<model::Resource, InvalidWire> {
    v1::ResourceBody::decode(body)
        .map_err(|e| InvalidWire::new("", format!("it cannot be decoded: {e}")))?
        .try_into()
}

fn list<T, U>(
    field: &str,
    items: Vec<T>,
    convert: impl Fn(T) -> Result<U, InvalidWire>,
) -> Result<Vec<U>, InvalidWire> {
    let convert = |(i, item)| convert(item).map_err(|e| e.inside(&format!("{field}[{i}]")));
    items.into_iter().enumerate().map(convert).collect()
}

fn wire<'a, T: 'a, U: From<&'a T>>(items: &'a [T]) -> Vec<U> {
    items.iter().map(U::from).collect()
}

fn texts<T: fmt::Display>(items: &[T]) -> Vec<String> {
    items.iter().map(T::to_string).collect()
}

fn port(field: &str, number: u32) -> Result<u16, InvalidWire> {
    match u16::try_from(number) {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(InvalidWire::new(
            field,
            format!("expected a port from 1 to 65535, found {number}"),
        )),
    }
}

/// 0 means every port.
fn port_or_all(field: &str, number: u32) -> Result<u16, InvalidWire> {
    if number == 0 {
        Ok(0)
    } else {
        port(field, number)
    }
}

fn ip(text: String) -> Result<IpAddr, InvalidWire> {
    text.parse()
        .map_err(|_| InvalidWire::new("", format!("expected an IP address, found {text:?}")))
}

fn socket(field: &str, text: &str) -> Result<SocketAddr, InvalidWire> {
    text.parse()
        .map_err(|_| InvalidWire::new(field, format!("expected ip:port, found {text:?}")))
}

fn identity(text: String) -> Result<SpiffeId, InvalidWire> {
    SpiffeId::parse(&text).map_err(|e| InvalidWire::new("", e.to_string()))
}

fn protocol(field: &str, number: i32) -> Result<model::Protocol, InvalidWire> {
    use v1::Protocol as P;
    match P::try_from(number) {
        Ok(P::Detect) => Ok(model::Protocol::Detect),
        Ok(P::Http) => Ok(model::Protocol::Http),
        Ok(P::Tcp) => Ok(model::Protocol::Tcp),
        Ok(P::Http2) => Ok(model::Protocol::Http2),
        Ok(P::Grpc) => Ok(model::Protocol::Grpc),
        Ok(P::Tls) => Ok(model::Protocol::Tls),
        Err(_) => Err(InvalidWire::new(
            field,
            format!("protocol number {number} is unknown to this version"),
        )),
    }
}

impl From<model::Protocol> for v1::Protocol {
    fn from(protocol: model::Protocol) -> Self {
        match protocol {
            model::Protocol::Detect => Self::Detect,
            model::Protocol::Http => Self::Http,
            model::Protocol::Tcp => Self::Tcp,
            model::Protocol::Http2 => Self::Http2,
            model::Protocol::Grpc => Self::Grpc,
            model::Protocol::Tls => Self::Tls,
        }
    }
}

impl From<&model::Resource> for v1::ResourceBody {
    fn from(resource: &model::Resource) -> Self {
        use v1::resource_body::Kind;
        let kind = match resource {
            model::Resource::Mesh(mesh) => Kind::Mesh(mesh.into()),
            model::Resource::Service(service) => Kind::Service(service.into()),
            model::Resource::Inbound(inbound) => Kind::Inbound(inbound.into()),
            model::Resource::Gateway(gateway) => Kind::Gateway(gateway.into()),
            model::Resource::Alias(service) => Kind::Alias(v1::Alias {
                service: service.clone(),
            }),
            model::Resource::Catalog(services) => Kind::Catalog(v1::Catalog {
                services: services.clone(),
            }),
        };
        Self { kind: Some(kind) }
    }
}

impl TryFrom<v1::ResourceBody> for model::Resource {
    type Error = InvalidWire;
    fn try_from(body: v1::ResourceBody) -> Result<Self, InvalidWire> {
        use v1::resource_body::Kind;
        match body.kind {
            Some(Kind::Mesh(mesh)) => mesh
                .try_into()
                .map(Self::Mesh)
                .map_err(|e: InvalidWire| e.inside("mesh")),
            Some(Kind::Service(service)) => service
                .try_into()
                .map(Self::Service)
                .map_err(|e: InvalidWire| e.inside("service")),
            Some(Kind::Inbound(inbound)) => inbound
                .try_into()
                .map(Self::Inbound)
                .map_err(|e: InvalidWire| e.inside("inbound")),
            Some(Kind::Gateway(gateway)) => gateway
                .try_into()
                .map(Self::Gateway)
                .map_err(|e: InvalidWire| e.inside("gateway")),
            Some(Kind::Alias(alias)) => Ok(Self::Alias(alias.service)),
            Some(Kind::Catalog(catalog)) => Ok(Self::Catalog(catalog.services)),
            None => Err(InvalidWire::new(
                "kind",
                "it is missing or unknown to this version",
            )),
        }
    }
}

impl From<&model::MeshSettings> for v1::MeshSettings {
    fn from(mesh: &model::MeshSettings) -> Self {
        Self {
            trust_domain: mesh.trust_domain.to_string(),
            strict_mtls: mesh.strict_mtls,
            log_level: mesh.log_level.clone(),
            access_log: mesh.access_log,
            detect_timeout_ms: mesh.detect_timeout_ms,
            header_timeout_ms: mesh.header_timeout_ms,
            idle_timeout_ms: mesh.idle_timeout_ms,
            request_timeout_ms: mesh.request_timeout_ms,
            connect_timeout_ms: mesh.connect_timeout_ms,
            max_header_bytes: mesh.max_header_bytes,
            max_headers: mesh.max_headers,
            allow_egress: mesh.allow_egress,
        }
    }
}

impl TryFrom<v1::MeshSettings> for model::MeshSettings {
    type Error = InvalidWire;
    fn try_from(mesh: v1::MeshSettings) -> Result<Self, InvalidWire> {
        Ok(Self {
            trust_domain: TrustDomain::parse(&mesh.trust_domain)
                .map_err(|e| InvalidWire::new("trust_domain", e.to_string()))?,
            strict_mtls: mesh.strict_mtls,
            log_level: mesh.log_level,
            access_log: mesh.access_log,
            detect_timeout_ms: mesh.detect_timeout_ms,
            header_timeout_ms: mesh.header_timeout_ms,
            idle_timeout_ms: mesh.idle_timeout_ms,
            request_timeout_ms: mesh.request_timeout_ms,
            connect_timeout_ms: mesh.connect_timeout_ms,
            max_header_bytes: mesh.max_header_bytes,
            max_headers: mesh.max_headers,
            allow_egress: mesh.allow_egress,
        })
    }
}

impl From<&model::Service> for v1::Service {
    fn from(service: &model::Service) -> Self {
        Self {
            name: service.name.clone(),
            hostnames: service.hostnames.clone(),
            addresses: texts(&service.addresses),
            identities: texts(&service.identities),
            ports: wire(&service.ports),
            routes: wire(&service.routes),
            least_request: service.least_request,
        }
    }
}

impl TryFrom<v1::Service> for model::Service {
    type Error = InvalidWire;
    fn try_from(service: v1::Service) -> Result<Self, InvalidWire> {
        Ok(Self {
            name: service.name,
            addresses: list("addresses", service.addresses, ip)?,
            hostnames: service.hostnames,
            identities: list("identities", service.identities, identity)?,
            ports: list("ports", service.ports, TryInto::try_into)?,
            routes: list("routes", service.routes, TryInto::try_into)?,
            least_request: service.least_request,
        })
    }
}

impl From<&model::ServicePort> for v1::ServicePort {
    fn from(port: &model::ServicePort) -> Self {
        Self {
            port: port.port.into(),
            protocol: v1::Protocol::from(port.protocol).into(),
            endpoints: wire(&port.endpoints),
        }
    }
}

impl TryFrom<v1::ServicePort> for model::ServicePort {
    type Error = InvalidWire;
    fn try_from(p: v1::ServicePort) -> Result<Self, InvalidWire> {
        Ok(Self {
            port: port("port", p.port)?,
            protocol: protocol("protocol", p.protocol)?,
            endpoints: list("endpoints", p.endpoints, TryInto::try_into)?,
        })
    }
}

impl From<&model::Endpoint> for v1::Endpoint {
    fn from(endpoint: &model::Endpoint) -> Self {
        Self {
            address: endpoint.address.to_string(),
            mutual_tls: endpoint.mutual_tls,
        }
    }
}

impl TryFrom<v1::Endpoint> for model::Endpoint {
    type Error = InvalidWire;
    fn try_from(endpoint: v1::Endpoint) -> Result<Self, InvalidWire> {
        Ok(Self {
            address: socket("address", &endpoint.address)?,
            mutual_tls: endpoint.mutual_tls,
        })
    }
}

impl From<&model::Inbound> for v1::Inbound {
    fn from(inbound: &model::Inbound) -> Self {
        Self {
            service: inbound.service.clone(),
            ports: wire(&inbound.ports),
            policy: Some((&inbound.policy).into()),
        }
    }
}

impl TryFrom<v1::Inbound> for model::Inbound {
    type Error = InvalidWire;
    fn try_from(inbound: v1::Inbound) -> Result<Self, InvalidWire> {
        // An absent policy is the default one, which allows nothing.
        let policy = inbound.policy.unwrap_or_default();
        Ok(Self {
            service: inbound.service,
            ports: list("ports", inbound.ports, TryInto::try_into)?,
            policy: policy
                .try_into()
                .map_err(|e: InvalidWire| e.inside("policy"))?,
        })
    }
}

impl From<&model::InboundPort> for v1::InboundPort {
    fn from(port: &model::InboundPort) -> Self {
        Self {
            port: port.port.into(),
            protocol: v1::Protocol::from(port.protocol).into(),
            target: port.target.to_string(),
        }
    }
}

impl TryFrom<v1::InboundPort> for model::InboundPort {
    type Error = InvalidWire;
    fn try_from(p: v1::InboundPort) -> Result<Self, InvalidWire> {
        Ok(Self {
            port: port("port", p.port)?,
            protocol: protocol("protocol", p.protocol)?,
            target: socket("target", &p.target)?,
        })
    }
}

impl From<&model::Policy> for v1::Policy {
    fn from(policy: &model::Policy) -> Self {
        Self {
            permissive: policy.permissive,
            rules: wire(&policy.rules),
        }
    }
}

impl TryFrom<v1::Policy> for model::Policy {
    type Error = InvalidWire;
    fn try_from(policy: v1::Policy) -> Result<Self, InvalidWire> {
        Ok(Self {
            permissive: policy.permissive,
            rules: list("rules", policy.rules, TryInto::try_into)?,
        })
    }
}

impl From<&model::PolicyRule> for v1::PolicyRule {
    fn from(rule: &model::PolicyRule) -> Self {
        Self {
            name: rule.name.clone(),
            sources: texts(&rule.sources),
            ports: rule.ports.iter().copied().map(u32::from).collect(),
            matches: wire(&rule.matches),
        }
    }
}

impl TryFrom<v1::PolicyRule> for model::PolicyRule {
    type Error = InvalidWire;
    fn try_from(rule: v1::PolicyRule) -> Result<Self, InvalidWire> {
        Ok(Self {
            name: rule.name,
            sources: list("sources", rule.sources, identity)?,
            ports: list("ports", rule.ports, |p| port("", p))?,
            matches: list("matches", rule.matches, |m| Ok(m.into()))?,
        })
    }
}

impl From<&model::PolicyMatch> for v1::PolicyMatch {
    fn from(m: &model::PolicyMatch) -> Self {
        Self {
            name: m.name.clone(),
            methods: m.methods.clone(),
            path_regex: m.path_regex.clone(),
            headers: m.headers.clone(),
        }
    }
}

impl From<v1::PolicyMatch> for model::PolicyMatch {
    fn from(m: v1::PolicyMatch) -> Self {
        Self {
            name: m.name,
            methods: m.methods,
            path_regex: m.path_regex,
            headers: m.headers,
        }
    }
}

impl From<&model::Gateway> for v1::Gateway {
    fn from(gateway: &model::Gateway) -> Self {
        Self {
            name: gateway.name.clone(),
            listeners: wire(&gateway.listeners),
            routes: wire(&gateway.routes),
        }
    }
}

impl TryFrom<v1::Gateway> for model::Gateway {
    type Error = InvalidWire;
    fn try_from(gateway: v1::Gateway) -> Result<Self, InvalidWire> {
        Ok(Self {
            name: gateway.name,
            listeners: list("listeners", gateway.listeners, TryInto::try_into)?,
            routes: list("routes", gateway.routes, TryInto::try_into)?,
        })
    }
}

impl From<&model::GatewayListener> for v1::GatewayListener {
    fn from(listener: &model::GatewayListener) -> Self {
        Self {
            name: listener.name.clone(),
            port: listener.port.into(),
            hostname: listener.hostname.clone(),
        }
    }
}

impl TryFrom<v1::GatewayListener> for model::GatewayListener {
    type Error = InvalidWire;
    fn try_from(listener: v1::GatewayListener) -> Result<Self, InvalidWire> {
        Ok(Self {
            name: listener.name,
            port: port("port", listener.port)?,
            hostname: listener.hostname,
        })
    }
}

impl From<&model::Route> for v1::Route {
    fn from(route: &model::Route) -> Self {
        Self {
            name: route.name.clone(),
            hostnames: route.hostnames.clone(),
            rules: wire(&route.rules),
            port: route.port.into(),
        }
    }
}

impl TryFrom<v1::Route> for model::Route {
    type Error = InvalidWire;
    fn try_from(route: v1::Route) -> Result<Self, InvalidWire> {
        Ok(Self {
            name: route.name,
            hostnames: route.hostnames,
            rules: list("rules", route.rules, TryInto::try_into)?,
            port: port_or_all("port", route.port)?,
        })
    }
}

impl From<&model::RouteRule> for v1::RouteRule {
    fn from(rule: &model::RouteRule) -> Self {
        Self {
            matches: wire(&rule.matches),
            backends: wire(&rule.backends),
            request_timeout_ms: rule.request_timeout_ms,
        }
    }
}

impl TryFrom<v1::RouteRule> for model::RouteRule {
    type Error = InvalidWire;
    fn try_from(rule: v1::RouteRule) -> Result<Self, InvalidWire> {
        Ok(Self {
            matches: list("matches", rule.matches, TryInto::try_into)?,
            backends: list("backends", rule.backends, TryInto::try_into)?,
            request_timeout_ms: rule.request_timeout_ms,
        })
    }
}

impl From<&model::RouteMatch> for v1::RouteMatch {
    fn from(m: &model::RouteMatch) -> Self {
        Self {
            path: Some((&m.path).into()),
            headers: wire(&m.headers),
            method: m.method.clone(),
        }
    }
}

impl TryFrom<v1::RouteMatch> for model::RouteMatch {
    type Error = InvalidWire;
    fn try_from(m: v1::RouteMatch) -> Result<Self, InvalidWire> {
        let path = match m.path {
            None => model::PathMatch::default(),
            Some(path) => path.try_into().map_err(|e: InvalidWire| e.inside("path"))?,
        };
        Ok(Self {
            path,
            headers: list("headers", m.headers, |h| Ok(h.into()))?,
            method: m.method,
        })
    }
}

impl From<&model::PathMatch> for v1::PathMatch {
    fn from(path: &model::PathMatch) -> Self {
        use v1::path_match::Kind;
        let kind = match path {
            model::PathMatch::Exact(text) => Kind::Exact(text.clone()),
            model::PathMatch::Prefix(text) => Kind::Prefix(text.clone()),
            model::PathMatch::Regex(text) => Kind::Regex(text.clone()),
        };
        Self { kind: Some(kind) }
    }
}

impl TryFrom<v1::PathMatch> for model::PathMatch {
    type Error = InvalidWire;
    fn try_from(path: v1::PathMatch) -> Result<Self, InvalidWire> {
        use v1::path_match::Kind;
        match path.kind {
            Some(Kind::Exact(text)) => Ok(Self::Exact(text)),
            Some(Kind::Prefix(text)) => Ok(Self::Prefix(text)),
            Some(Kind::Regex(text)) => Ok(Self::Regex(text)),
            // Never "any path": a newer kind of match must not become a wider one.
            None => Err(InvalidWire::new(
                "kind",
                "it is missing or unknown to this version",
            )),
        }
    }
}

impl From<&model::HeaderMatch> for v1::HeaderMatch {
    fn from(m: &model::HeaderMatch) -> Self {
        Self {
            name: m.name.clone(),
            value: m.value.clone(),
            regex: m.regex,
        }
    }
}

impl From<v1::HeaderMatch> for model::HeaderMatch {
    fn from(m: v1::HeaderMatch) -> Self {
        Self {
            name: m.name,
            value: m.value,
            regex: m.regex,
        }
    }
}

impl From<&model::Backend> for v1::Backend {
    fn from(backend: &model::Backend) -> Self {
        Self {
            service: backend.service.clone(),
            port: backend.port.into(),
            weight: backend.weight,
        }
    }
}

impl TryFrom<v1::Backend> for model::Backend {
    type Error = InvalidWire;
    fn try_from(backend: v1::Backend) -> Result<Self, InvalidWire> {
        Ok(Self {
            service: backend.service,
            port: port("port", backend.port)?,
            weight: backend.weight,
        })
    }
}

//! Whether a gateway's listeners are in order. Pure.

use super::certificate;
use super::view::{MOST_TEXTS, Own, Text, TextRoom, TextState, View};
use super::{CLASS, CONNECT, EGRESS_CLASS, NOT_PERMITTED, no_rights};
use crate::gateway_fields::{Gateway, Key, Listener, Reference, RouteKind, TextKey, Validation};
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::SystemTime;
use tulle_control::index;
use tulle_model::manifest::is_object_name;

/// A reason of Gateway API, and a message for the user.
pub(crate) type Trouble = (&'static str, String);

/// The verdict on a listener.
#[derive(Debug, Clone)]
pub(super) struct Judged<'a> {
    pub(super) listener: &'a Listener,
    /// Kinds of routes that it takes.
    pub(super) kinds: Vec<RouteKind>,
    pub(super) conflict: Option<Trouble>,
    /// The listener is not possible as it is.
    pub(super) refused: Option<Trouble>,
    /// An object that it refers to does not exist, or may not be used.
    pub(super) unresolved: Option<Trouble>,
    /// Its certificate has expired. It is still presented: clients decide whether to accept it.
    pub(super) expired: Option<Trouble>,
    /// When the first of its certificates expires that has not yet.
    pub(super) until: Option<SystemTime>,
    /// Certificates of clients' authorities.
    pub(super) validation: Option<&'a Validation>,
    /// Secrets and ConfigMaps that it may use.
    pub(super) texts: BTreeSet<TextKey>,
}

impl Judged<'_> {
    /// Whether the listener serves clients.
    pub(super) fn is_good(&self) -> bool {
        self.is_accepted() && self.unresolved.is_none()
    }

    /// Whether the listener is possible.
    pub(super) fn is_accepted(&self) -> bool {
        self.conflict.is_none() && self.refused.is_none()
    }
}

/// The state that gateways are judged by.
#[derive(Clone, Copy)]
pub(super) struct Cluster<'a> {
    pub(super) view: &'a View,
    pub(super) own: &'a Own,
    pub(super) now: SystemTime,
}

/// Judges each listener of a gateway, in their order. `room` is that of the gateway's namespace.
pub(super) fn judge<'a>(
    cluster: Cluster<'_>,
    key: &Key,
    gateway: &'a Gateway,
    room: &mut TextRoom,
) -> Vec<Judged<'a>> {
    let listeners = gateway.spec.listeners.iter();
    let judged = listeners.map(|listener| {
        let frontend = gateway.spec.tls.frontend.as_ref();
        let of_port = frontend.map(|f| {
            let mut ports = f.per_port.iter();
            let this = ports.find(|p| p.port == listener.port);
            this.map_or(&f.default, |p| &p.tls)
        });
        let of_port = of_port.and_then(|f| f.validation.as_ref());
        let tls = listener.tls.as_ref();
        let of_listener = tls.and_then(|tls| tls.frontend_validation.as_ref());
        let (kinds, bad_kind) = kinds(listener);
        let (kinds, refused) = match gateway.is_egress() {
            true => (Vec::new(), refused_egress(gateway, listener)),
            false => (kinds, refused(listener)),
        };
        let mut judged = Judged {
            listener,
            kinds,
            conflict: conflict(listener, &gateway.spec.listeners),
            refused,
            unresolved: bad_kind,
            expired: None,
            until: None,
            validation: of_listener.or(of_port.filter(|_| listener.protocol == "HTTPS")),
            texts: BTreeSet::new(),
        };
        if judged.refused.is_none() {
            references(&mut judged, cluster, key, room);
        }
        judged
    });
    judged.collect()
}

fn refused(listener: &Listener) -> Option<Trouble> {
    match (listener.protocol.as_str(), &listener.tls) {
        ("HTTP" | "TCP" | "HTTPS" | "TLS", None) | ("HTTPS" | "TLS", Some(_)) => None,
        ("HTTP" | "TCP", Some(_)) => {
            let text = format!("protocol {} has no `tls`: remove it", listener.protocol);
            Some(("Invalid", text))
        }
        (CONNECT, _) => {
            let text = format!(
                "protocol {CONNECT} is that of egress gateways: make a Gateway of the class {EGRESS_CLASS}"
            );
            Some(("UnsupportedProtocol", text))
        }
        (other, _) => Some((
            "UnsupportedProtocol",
            format!("protocol {other} is not supported: use HTTP, HTTPS, TLS or TCP"),
        )),
    }
}

/// Returns why the first listener that an egress gateway cannot have is not served; `spec` is its Gateway's.
pub(crate) fn unserved_egress(spec: &Value) -> Option<String> {
    let gateway = Gateway::with_spec(spec.clone());
    let mut listeners = gateway.spec.listeners.iter();
    listeners.find_map(|listener| {
        let (_, why) = refused_egress(&gateway, listener)?;
        Some(format!("listener {}: {why}", listener.name))
    })
}

/// Returns why an egress gateway cannot have a listener as it is. Its callers show certificates of the mesh, and
/// Egresses say where they may go, so a listener is a port and nothing else.
fn refused_egress(gateway: &Gateway, listener: &Listener) -> Option<Trouble> {
    let Listener { protocol, .. } = listener;
    if protocol != CONNECT {
        let text = format!(
            "protocol {protocol} is not that of an egress gateway: use {CONNECT}, or the class {CLASS} for clients \
             outside the mesh"
        );
        return Some(("UnsupportedProtocol", text));
    }
    let field = match listener {
        _ if listener.tls.is_some() => "tls",
        _ if listener.hostname.as_ref().is_some_and(|h| !h.is_empty()) => "hostname",
        _ if gateway.spec.tls.frontend.is_some() => "spec.tls.frontend",
        _ => return None,
    };
    let text = format!(
        "an egress gateway has no `{field}`: callers show a certificate of the mesh, and Egresses name the hosts; \
         remove it"
    );
    Some(("Invalid", text))
}

/// Returns the protocol that a port's connections begin with; two protocols on one port cannot be
/// distinguished.
fn family(listener: &Listener) -> &str {
    match listener.protocol.as_str() {
        "HTTPS" | "TLS" => "TLS",
        other => other,
    }
}

fn conflict(listener: &Listener, all: &[Listener]) -> Option<Trouble> {
    let others = || {
        let others = all.iter().filter(|l| l.name != listener.name);
        others.filter(|l| l.port == listener.port)
    };
    if let Some(other) = others().find(|l| family(l) != family(listener)) {
        let text = format!(
            "listener {} takes {} on the same port {}",
            other.name, other.protocol, listener.port
        );
        return Some(("ProtocolConflict", text));
    }
    let host = |l: &Listener| l.hostname.as_deref().unwrap_or_default().to_lowercase();
    let other = others().find(|l| family(l) == "TCP" || host(l) == host(listener))?;
    let text = format!(
        "listener {} has the same port {} and hostname",
        other.name, listener.port
    );
    Some(("HostnameConflict", text))
}

fn passes_through(listener: &Listener) -> bool {
    let mode = listener.tls.as_ref().and_then(|tls| tls.mode.as_deref());
    mode == Some("Passthrough")
}

/// Kinds of routes that a listener takes, and the trouble if it asks for others.
pub(super) fn kinds(listener: &Listener) -> (Vec<RouteKind>, Option<Trouble>) {
    let possible: &[RouteKind] = match listener.protocol.as_str() {
        "HTTP" | "HTTPS" => &[RouteKind::Http, RouteKind::Grpc],
        "TLS" if passes_through(listener) => &[RouteKind::Tls],
        "TLS" => &[RouteKind::Tls, RouteKind::Tcp],
        "TCP" => &[RouteKind::Tcp],
        _ => &[],
    };
    let wanted = &listener.allowed_routes.kinds;
    if wanted.is_empty() {
        return (possible.to_vec(), None);
    }
    let mut taken = Vec::new();
    let mut trouble = None;
    for wanted in wanted {
        let group = wanted.group.as_deref().unwrap_or(super::GROUP);
        let known = possible.iter().find(|kind| kind.name() == wanted.kind);
        match known.filter(|_| group == super::GROUP) {
            Some(kind) if taken.contains(kind) => {}
            Some(kind) => taken.push(*kind),
            None => {
                let text = format!(
                    "a listener of protocol {} takes no {}.{group}",
                    listener.protocol, wanted.kind
                );
                trouble = Some(("InvalidRouteKinds", text));
            }
        }
    }
    (taken, trouble)
}

fn references(judged: &mut Judged<'_>, cluster: Cluster<'_>, gateway: &Key, room: &mut TextRoom) {
    let listener = judged.listener;
    if !matches!(listener.protocol.as_str(), "HTTPS" | "TLS") || passes_through(listener) {
        return;
    }
    let certificates = listener.tls.as_ref().map(|tls| &tls.certificate_refs);
    let certificates = certificates.into_iter().flatten();
    if certificates.clone().next().is_none() {
        let text = "TLS ends here, and there is no certificate: give `tls.certificateRefs`";
        trouble(judged, "InvalidCertificateRef", text.into());
    }
    for reference in certificates {
        let check = certificate::check;
        let found = resolve(judged, cluster, (gateway, room), reference, "Secret", check);
        match found {
            Err((reason, text)) => {
                trouble(judged, reason.unwrap_or("InvalidCertificateRef"), text);
            }
            Ok(Some(until)) => match index::expired(until, cluster.now) {
                Some(why) => {
                    let namespace = reference.namespace.as_deref();
                    let namespace = namespace.unwrap_or(&gateway.namespace);
                    let text = format!("Secret {namespace}/{}: {why}", reference.name);
                    let trouble = ("InvalidCertificateRef", text);
                    judged.expired.get_or_insert(trouble);
                }
                None => judged.until = Some(judged.until.map_or(until, |at| at.min(until))),
            },
            Ok(None) => {}
        }
    }
    let roots = judged.validation.map(|v| &v.ca_certificate_refs);
    for reference in roots.into_iter().flatten() {
        let check = certificate::check_roots;
        let found = resolve(
            judged,
            cluster,
            (gateway, room),
            reference,
            "ConfigMap",
            check,
        );
        if let Err((reason, text)) = found {
            trouble(judged, reason.unwrap_or("InvalidCACertificateRef"), text);
        }
    }
}

/// Notes a trouble. Only the first one is reported.
fn trouble(judged: &mut Judged<'_>, reason: &'static str, text: String) {
    judged.unresolved.get_or_insert((reason, text));
}

/// Resolves a reference. An object that was not read yet is no trouble: it will be read.
fn resolve(
    judged: &mut Judged<'_>,
    cluster: Cluster<'_>,
    (gateway, room): (&Key, &mut TextRoom),
    reference: &Reference,
    default: &str,
    check: fn(&Text) -> Result<Option<SystemTime>, String>,
) -> Result<Option<SystemTime>, (Option<&'static str>, String)> {
    let kind = reference.kind.as_deref().unwrap_or(default);
    let group = reference.group.as_deref().unwrap_or_default();
    let known = group.is_empty() && (kind == "Secret" || kind == default);
    if !known {
        return Err((None, format!("a {kind}.{group} cannot hold a certificate")));
    }
    let namespace = reference.namespace.as_deref();
    let text = TextKey {
        secret: kind == "Secret",
        key: Key::new(namespace.unwrap_or(&gateway.namespace), &reference.name),
    };
    if !cluster.view.is_granted(gateway, &text) {
        let Key { namespace, name } = text.key;
        let text = format!(
            "no ReferenceGrant in namespace {namespace} lets Gateways of namespace {} refer to {kind} {name}",
            gateway.namespace
        );
        return Err((Some("RefNotPermitted"), text));
    }
    let key = text.key.clone();
    let absent = || Err((None, format!("{kind} {key} does not exist")));
    // The API server refuses to look for such a name, each time anew, so an answer would be waited for in vain.
    if !is_object_name(&key.name) {
        return absent();
    }
    if !room.take(&text) {
        let text = format!(
            "{kind} {key} is not read: the Gateways of the namespace {} refer to more than {MOST_TEXTS} Secrets and \
             ConfigMaps, of which those of older Gateways are read",
            gateway.namespace
        );
        return Err((Some("ReferenceNotRead"), text));
    }
    let found = cluster.own.texts.get(&text);
    judged.texts.insert(text);
    match found {
        None => Ok(None),
        Some(TextState::Absent) => absent(),
        Some(TextState::Forbidden) => {
            let text = format!("{kind} {key} is not read: {}", no_rights(&key.namespace));
            Err((Some(NOT_PERMITTED), text))
        }
        Some(TextState::Held(held)) => {
            check(held).map_err(|why| (None, format!("{kind} {key}: {why}")))
        }
    }
}

//! Makes all decisions about gateways from what is known. No I/O.

use super::gateway_spec;
use super::listeners::{self, Cluster, Judged, Trouble};
use super::objects::{self, GatewayParameters};
use super::status::{self, Known};
use super::view::{Access, Own, TextRoom, View};
use super::{ingress, no_rights};
use crate::gateway_fields::{Class, Gateway, Key, TextKey};
use crate::inject::Settings;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;
use tulle_control::index::{Attachment, ClusterGateway, ObjectProblem};
use tulle_model::manifest::GatewaySpec;
use tulle_model::namespaced::Namespaced;

/// The decision about a gateway of ours.
#[derive(Debug)]
pub(super) struct Planned {
    /// The gateway for the index; `None`: the index keeps what it has.
    pub(super) told: Option<ClusterGateway>,
    /// An egress gateway is none for the index, which knows its pods.
    pub(super) egress: bool,
    /// The objects that shall exist; empty: nothing new.
    pub(super) objects: Vec<Value>,
    pub(super) status: Value,
    /// The Secrets and ConfigMaps that it refers to.
    pub(super) texts: BTreeSet<TextKey>,
    /// When the status changes by itself, because a certificate expires.
    pub(super) until: Option<SystemTime>,
    /// The parts of its Ingresses that cannot be served, and why.
    pub(super) problems: Vec<ObjectProblem>,
}

/// A gateway of ours: a Gateway object, or what serves Ingresses.
pub(super) struct Subject<'a> {
    pub(super) gateway: &'a Gateway,
    pub(super) class: Class,
    /// The owners of its objects (`ownerReferences`).
    pub(super) owners: Value,
    pub(super) attached: BTreeSet<Attachment>,
    /// Ports that it has whatever its listeners are.
    pub(super) ports: &'static [u16],
}

/// Decides about each gateway of ours. Of too many Secrets and ConfigMaps of a namespace's gateways those of older ones
/// are read, so that a new gateway takes none from the others, and all replicas read the same.
pub(super) fn plan(
    view: &View,
    own: &Own,
    settings: &Settings,
    pause: bool,
    now: SystemTime,
) -> BTreeMap<Key, Planned> {
    let cluster = Cluster { view, own, now };
    let ours = view.gateways.iter().filter_map(|(key, gateway)| {
        let subject = Subject {
            gateway,
            class: view.class(gateway)?.clone(),
            owners: objects::owner(key, gateway),
            attached: view.attached.get(key).cloned().unwrap_or_default(),
            ports: &[],
        };
        Some((key, subject, None))
    });
    let ingresses = view.ingresses.iter();
    let ingresses = ingresses.map(|(key, served)| (key, ingress::subject(served), Some(served)));
    let mut by_age: Vec<_> = ours.chain(ingresses).collect();
    by_age.sort_by(|(key, subject, _), (other_key, other, _)| {
        let made = (&subject.gateway.created, key);
        made.cmp(&(&other.gateway.created, other_key))
    });
    let mut rooms: BTreeMap<&str, TextRoom> = BTreeMap::new();
    let each = by_age.into_iter().map(|(key, subject, served)| {
        let room = rooms.entry(key.namespace.as_str()).or_default();
        let mut planned = one(cluster, key, &subject, (settings, pause), room);
        if let Some(served) = served {
            ingress::judge(key, served, own, &mut planned);
        }
        (key.clone(), planned)
    });
    each.collect()
}

fn one(
    cluster: Cluster<'_>,
    key: &Key,
    subject: &Subject<'_>,
    (settings, pause): (&Settings, bool),
    room: &mut TextRoom,
) -> Planned {
    let own = cluster.own;
    let (gateway, attached) = (subject.gateway, &subject.attached);
    let listeners = listeners::judge(cluster, key, gateway, room);
    let place = objects::place(key);
    let texts: BTreeSet<TextKey> = listeners.iter().flat_map(|l| l.texts.clone()).collect();
    let mut routes: BTreeMap<&str, usize> = BTreeMap::new();
    for attachment in attached {
        let known = listeners
            .iter()
            .find(|l| l.listener.name == attachment.listener);
        if let Some(known) = known {
            *routes.entry(&known.listener.name).or_default() += 1;
        }
    }
    let wishes = wishes(&subject.class, gateway, settings);
    let mut told = None;
    let mut made = Vec::new();
    let mut trouble = None;
    let denied = own.access.get(&key.namespace) == Some(&Access::Denied);
    let accepted = listeners.iter().filter(|l| l.is_accepted());
    let ports = accepted.map(|l| l.listener.port);
    let ports: BTreeSet<u16> = ports.chain(subject.ports.iter().copied()).collect();
    match &wishes {
        Err(why) => trouble = Some(why.clone()),
        Ok(_) if ports.is_empty() => {
            let text = "none of its listeners can be served: see their conditions";
            trouble = Some(("ListenersNotValid", text.to_owned()));
        }
        Ok(wishes) => match spec(key, gateway, &listeners, wishes) {
            Err(why) => trouble = Some(why),
            Ok(spec) => {
                let seen = |text| own.texts.contains_key(text);
                // A gateway whose Secrets are not all read yet would look as if they did not exist.
                if let Some(spec) = spec
                    && texts.iter().all(seen)
                    && let Some(name) = Namespaced::new(&key.name, &key.namespace)
                {
                    told = Some(ClusterGateway {
                        name,
                        account: place.name.clone(),
                        spec,
                        attached: attached.clone(),
                    });
                }
                // Objects that the API server is known to refuse are not made.
                if !denied {
                    let made_for = (key, gateway, &subject.owners);
                    made = objects::objects(made_for, &ports, wishes, settings, pause);
                }
            }
        },
    }
    let denied = denied.then(|| no_rights(&key.namespace));
    let denied = denied.or_else(|| own.refused.get(key).cloned());
    let status = status::gateway(&Known {
        gateway,
        listeners: &listeners,
        trouble: trouble.as_ref(),
        denied: denied.as_deref(),
        attached: &routes,
        name: &place.name,
        service: own.services.get(&place),
        deployment: own.deployments.get(&place),
    });
    Planned {
        told,
        egress: gateway.is_egress(),
        objects: made,
        status,
        texts,
        until: listeners.iter().filter_map(|l| l.until).min(),
        problems: Vec::new(),
    }
}

/// Returns what the index shall know of a gateway; nothing of one for egress.
fn spec(
    key: &Key,
    gateway: &Gateway,
    listeners: &[Judged<'_>],
    wishes: &GatewayParameters,
) -> Result<Option<GatewaySpec>, Trouble> {
    match gateway.is_egress() {
        true => Ok(None),
        false => gateway_spec::spec(key, listeners, wishes).map(Some),
    }
}

fn wishes(
    class: &Class,
    gateway: &Gateway,
    settings: &Settings,
) -> Result<GatewayParameters, Trouble> {
    if gateway.spec.infrastructure.parameters_ref.is_some() {
        let text = "infrastructure.parametersRef is not read: use annotations there";
        return Err(("InvalidParameters", text.into()));
    }
    let foreign = gateway.spec.addresses.iter().find(|address| {
        address
            .kind
            .as_deref()
            .is_some_and(|kind| kind != "IPAddress")
    });
    if let Some(foreign) = foreign {
        let kind = foreign.kind.as_deref().unwrap_or_default();
        let text = format!("addresses of type {kind} are not supported: use IPAddress");
        return Err(("UnsupportedAddress", text));
    }
    if gateway.spec.addresses.len() > 1 {
        let text = "more than one address is not supported";
        return Err(("UnsupportedAddress", text.into()));
    }
    GatewayParameters::from_gateway(class, gateway, settings)
        .map_err(|why| ("InvalidParameters", why))
}

#[cfg(test)]
mod egress_tests;
#[cfg(test)]
mod ingress_tests;
#[cfg(test)]
mod room_tests;
#[cfg(test)]
mod tests;

//! Computes what the sidecar of a cluster's pod accepts, and the pod as a destination of its own.

use super::cluster::{Cluster, called_by_address, endpoint, on_node};
use super::policy::About;
use super::room::Room;
use super::{ClusterPod, ClusterService, Inputs, ObjectProblem, Output};
use super::{egress, inbound, policy, protocols};
use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use tulle_model::manifest::WorkloadPort;
use tulle_model::namespaced::{Namespaced, ObjectName};
use tulle_model::resource::{
    Inbound, InboundPort, InboundRule, Policy, PolicyRule, Protocol, Resource, Service,
    ServicePort, Workload, Workloads,
};

/// Stands for all ports that nobody declares: a pod may listen on any.
const ANY: u16 = 0;

/// Most ports of a pod that are known because rules name them: an object may name nearly as many as there are, and each
/// is a port of the pod for its sidecar and for all who call it.
const MOST_NAMED: usize = 1000;

/// Lists the services that lead to a port, each with its own number for it. On a host there is one; in a
/// cluster several Services may lead to one port of a pod, and the first pod tells.
pub(super) fn places(inputs: &Inputs, service: &ObjectName, port: u16) -> Vec<inbound::Place> {
    let of_pod = inputs.cluster.as_ref().and_then(|cluster| {
        let (pod, own) = cluster.served_by(service.as_str(), port).next()?;
        // A port that a service leads to is known without the rules.
        Some(served(cluster, pod, &[]).remove(&own)?.places)
    });
    of_pod.unwrap_or_else(|| vec![(service.clone(), port)])
}

/// Returns the policy of the first pod with this account that serves the service's port, and the number
/// that the port has at the pod.
pub(super) fn pod_policy_at(
    inputs: &Inputs,
    cluster: &Cluster,
    service: &str,
    account: &Namespaced,
    port: u16,
) -> Option<(Policy, u16)> {
    let mut pods = cluster.served_by(service, port);
    let (pod, own) = pods.find(|(pod, _)| pod.is_account(account))?;
    let rules = rules(inputs, cluster, pod);
    let served = served(cluster, pod, &rules);
    let accepted = accepts(inputs, cluster, pod, &served, rules, &mut Vec::new());
    Some((accepted.policy, own))
}

/// A pod's own resources: what its sidecar accepts, and the pod itself as a destination for those who
/// call it by its address (as with a headless service).
pub(super) fn pod_outputs(
    inputs: &Inputs,
    cluster: &Cluster,
    name: &Namespaced,
    problems: &mut Vec<ObjectProblem>,
) -> Vec<Output> {
    let Some(pod) = cluster.pod(name) else {
        return Vec::new();
    };
    let Ok(owner) = inputs.identity(&pod.account().into()) else {
        return Vec::new();
    };
    let rules = rules(inputs, cluster, pod);
    let served = served(cluster, pod, &rules);
    let mut outputs = Vec::new();
    if pod.sidecar {
        outputs.push(Output {
            name: format!("inbound/{name}"),
            rank: 0,
            owner: Some(owner.clone()),
            resource: Resource::Inbound(accepts(inputs, cluster, pod, &served, rules, problems)),
            awaits_keys: inputs.awaited_keys(),
        });
    }
    let own_name = called_by_address(name).to_string();
    outputs.extend(pod.addresses.iter().map(|ip| Output {
        name: format!("address/{ip}"),
        // The address of a Service is a Service's.
        rank: 1,
        owner: None,
        resource: Resource::Alias(own_name.clone()),
        awaits_keys: false,
    }));
    let ports = served.into_iter().map(|(port, served)| ServicePort {
        port,
        protocol: protocols::protocol(served.protocol, port),
        endpoints: pod
            .addresses
            .first()
            .into_iter()
            .map(|ip| endpoint(SocketAddr::new(*ip, port), Some(pod)))
            .collect(),
        ..Default::default()
    });
    outputs.push(Output {
        name: format!("service/{own_name}"),
        rank: 0,
        owner: None,
        resource: Resource::Service(Service {
            name: own_name,
            addresses: pod.addresses.clone(),
            identities: vec![owner],
            ports: ports.collect(),
            workloads: Workloads::new(&[vec![()]], |()| Some((&pod.workload, 0))),
            ..Default::default()
        }),
        awaits_keys: false,
    });
    outputs
}

/// A port that a pod listens on.
struct Served {
    /// The protocol that all of its services agree on.
    protocol: Protocol,
    /// Why its services do not agree, if so.
    conflict: Option<String>,
    /// The services it is a port of, with the number it has there.
    places: Vec<inbound::Place>,
}

impl Served {
    /// Whether an Egress goes through it.
    fn is_egress_gateway(&self, inputs: &Inputs) -> bool {
        let mut places = self.places.iter();
        places.any(|(service, port)| egress::is_gateway(inputs, service, *port))
    }

    /// The rules of all of its services together.
    ///
    /// # Errors
    /// They contradict each other, or there is no room for them; the text says which.
    fn held(&self, inputs: &Inputs, room: &mut Room) -> Result<Vec<InboundRule>, String> {
        match &self.conflict {
            Some(why) => Err(why.clone()),
            None => inbound::rules(inputs, &self.places, room),
        }
    }
}

/// The protocol of a port that its pod says is opaque. If a Service says that it is HTTP the port stays so
/// and is closed, as where two Services disagree: nothing passes unread that somebody wants read.
fn opaque(
    pod: &ClusterPod,
    number: u16,
    of_services: Protocol,
    conflict: Option<String>,
) -> (Protocol, Option<String>) {
    match of_services {
        Protocol::Detect => (Protocol::Tcp, conflict),
        other if other.is_opaque() => (other, conflict),
        other => {
            let why = format!(
                "pod {} says by tulle.dev/opaque-ports that nobody reads port {number}, and a Service of it says \
                 by appProtocol that it is HTTP: take one of them away",
                pod.name,
            );
            (other, Some(conflict.unwrap_or(why)))
        }
    }
}

/// Returns the ports that are known of a pod: its services lead to them, the pod says something of them, or one of
/// these rules is about them. Port 0 stands for all others, also for those of rules if these are too many.
fn served(cluster: &Cluster, pod: &ClusterPod, rules: &[OfObject]) -> BTreeMap<u16, Served> {
    let mut said: BTreeMap<u16, Vec<(&ClusterService, &WorkloadPort)>> = BTreeMap::new();
    for service in cluster.services_of(pod) {
        for port in &service.ports {
            let own = port.endpoints.iter();
            let own = own.filter(|e| e.pod.as_deref() == Some(pod.name.name()));
            // Slices that somebody writes may lead to several ports of a pod, and each is this Service's.
            let numbers: BTreeSet<u16> = own.map(|e| e.address.port()).collect();
            for number in numbers {
                said.entry(number).or_default().push((service, &port.port));
            }
        }
    }
    // A rule may be about a port that nobody declares. Of others it is known that they are any.
    let known = [&*pod.ports, &*pod.opaque, &*pod.direct, &[ANY]].concat();
    for port in known {
        said.entry(port).or_default();
    }
    let declared: BTreeSet<u16> = cluster.services_of(pod).flat_map(numbers).collect();
    let of_rules = named(rules).filter(|p| !declared.contains(p) && !said.contains_key(p));
    let of_rules: BTreeSet<u16> = of_rules.collect();
    if of_rules.len() <= MOST_NAMED {
        said.extend(of_rules.into_iter().map(|port| (port, Vec::new())));
    }
    let opaque_ports: BTreeSet<u16> = pod.opaque.iter().copied().collect();
    let served = said.into_iter().map(|(number, said)| {
        let (mut protocol, mut conflict) = protocols::common_protocol(&said);
        if opaque_ports.contains(&number) {
            (protocol, conflict) = opaque(pod, number, protocol, conflict);
        }
        let places = said.iter();
        let places = places.map(|(service, port)| (service.name.clone().into(), port.port));
        let served = Served {
            protocol,
            conflict,
            places: places.collect(),
        };
        (number, served)
    });
    served.collect()
}

/// Computes what a pod's sidecar accepts. If the services of a port contradict each other, a rule that
/// denies everybody closes it; the rule's name is the reason.
fn accepts(
    inputs: &Inputs,
    cluster: &Cluster,
    pod: &ClusterPod,
    served: &BTreeMap<u16, Served>,
    rules: Vec<OfObject>,
    problems: &mut Vec<ObjectProblem>,
) -> Inbound {
    // The sidecar calls the application at the pod's address, not loopback: ports that it does not show
    // its clients stay hidden.
    let address = pod.addresses.first().copied();
    let address = address.unwrap_or(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));
    let service = cluster.services_of(pod).next().map(|s| &s.name);
    let mut room = Room::of_ports();
    let object = format!("service/{}", service.unwrap_or(&pod.name));
    let own = OwnPorts::new(cluster, pod, served);
    problems.extend(own.too_many(&rules).map(|text| ObjectProblem {
        object: object.clone(),
        text,
    }));
    let mut policy = pod_policy(inputs, &own, rules);
    let mut ports = Vec::with_capacity(served.len());
    for (number, served) in served {
        let egress = pod.egress_gateway || served.is_egress_gateway(inputs);
        let mut held = served.held(inputs, &mut room);
        if let Some(rule) = held.iter().flatten().next().filter(|_| egress) {
            let gateway = match pod.egress_gateway {
                true => "it is an egress gateway's",
                false => "an Egress makes it an egress gateway",
            };
            held = Err(format!(
                "{gateway}, and {} is about requests, which tunnels hide: take one of them away",
                rule.name
            ));
        }
        let (rules, deny) = policy::or_closing(held, *number, &object, problems);
        policy.rules.extend(deny);
        ports.push(InboundPort {
            egress,
            connection_limit: inbound::connection_limit(inputs, &served.places),
            rules,
            ..InboundPort::new(*number, served.protocol, SocketAddr::new(address, *number))
        });
    }
    // A label for logs and metrics; no decision depends on it.
    Inbound {
        service: service.unwrap_or(&pod.name).to_string(),
        ports,
        policy,
        locality: on_node(&pod.locality, &pod.node),
        workload: (pod.workload.is_valid()).then(|| Box::new(Workload::clone(&pod.workload))),
    }
}

/// The rules of an object with the services of a pod that it is about; `None`: they are about the pod's account.
type OfObject = (Option<About>, Vec<PolicyRule>);

/// Returns the rules of a pod's account and of its services.
fn rules(inputs: &Inputs, cluster: &Cluster, pod: &ClusterPod) -> Vec<OfObject> {
    let of_account = policy::of_identity(inputs, &pod.account().into());
    let services = cluster.services_of(pod);
    let services: Vec<ObjectName> = services.map(|s| s.name.clone().into()).collect();
    let of_account = of_account.into_iter().map(|rule| (None, vec![rule]));
    let of_services = policy::of_services(inputs, &services).into_iter();
    let of_services = of_services.map(|(about, rules)| (Some(about), rules));
    of_account.chain(of_services).collect()
}

/// The port numbers that objects name, each as its service or the pod has it.
fn named(rules: &[OfObject]) -> impl Iterator<Item = u16> {
    rules.iter().flat_map(|(about, rules)| {
        // Where an object is about parts of services alone, its rules name none but these.
        let also = about.as_ref();
        let also = also.is_none_or(|about| about.values().any(BTreeSet::is_empty));
        let parts = about.iter().flat_map(|about| about.values().flatten());
        let of_rules = rules.iter().filter(move |_| also);
        parts.chain(of_rules.flat_map(|rule| &rule.ports)).copied()
    })
}

/// The numbers that a service has for its ports.
fn numbers(service: &ClusterService) -> impl Iterator<Item = u16> {
    service.ports.iter().map(|p| p.port.port)
}

/// Computes who may call a pod: each of its services decides about its own ports, policies of the
/// service account about all of them.
fn pod_policy(inputs: &Inputs, ports: &OwnPorts<'_>, rules: Vec<OfObject>) -> Policy {
    let rules = rules.into_iter();
    let rules = rules.flat_map(|(about, rules)| ports.rules(about.as_ref(), rules));
    Policy {
        permissive: policy::is_permissive(inputs),
        rules: rules.collect(),
    }
}

/// Translates ports of services, which objects name, into the ports that the pod listens on. Objects may have very many
/// rules and ports, and make as many ports known, so no rule looks at all ports for each that it names.
struct OwnPorts<'a> {
    served: &'a BTreeMap<u16, Served>,
    /// Port numbers of all its services.
    declared: BTreeSet<u16>,
    /// The services that lead to ports, with the pod's own number, by the number that a service has for it.
    places: BTreeMap<u16, Vec<(&'a ObjectName, u16)>>,
    /// The services whose rules may be about all ports.
    whole: BTreeSet<&'a str>,
}

impl<'a> OwnPorts<'a> {
    fn new(cluster: &'a Cluster, pod: &'a ClusterPod, served: &'a BTreeMap<u16, Served>) -> Self {
        let mut places: BTreeMap<u16, Vec<(&ObjectName, u16)>> = BTreeMap::new();
        for (number, served) in served {
            for (name, port) in &served.places {
                places.entry(*port).or_default().push((name, *number));
            }
        }
        let names = cluster.services_of(pod).map(|s| s.name.as_str());
        let is_whole = |service: &str| {
            let mut served = served.values();
            served.all(|served| is_of(served, |name| name.as_str() == service))
        };
        Self {
            served,
            declared: cluster.services_of(pod).flat_map(numbers).collect(),
            places,
            whole: names.filter(|name| is_whole(name)).collect(),
        }
    }

    /// Why rules about ports that nobody declares are about all or none of these; `None`: each that they name is known.
    fn too_many(&self, rules: &[OfObject]) -> Option<String> {
        let is_unknown = |p: &u16| !self.declared.contains(p) && !self.served.contains_key(p);
        let counted = rules.iter().map(|object| {
            let unknown = named(std::slice::from_ref(object)).filter(is_unknown);
            (unknown.collect::<BTreeSet<u16>>().len(), &object.1)
        });
        let (most, rules) = counted.max_by_key(|(count, _)| *count)?;
        let name = &rules.first().filter(|_| most > 0)?.name;
        let (name, _) = name.split_once(" rules[").unwrap_or((name, ""));
        Some(format!(
            "rules about its pods name more than {MOST_NAMED} ports that neither a Service nor the pod declares (most of \
             them {name}), so those that allow are about none of these, and those that deny are about all that nobody \
             declares: name fewer"
        ))
    }

    /// Translates the rules of an object, which all allow or all deny, for its services together: a rule says the same of
    /// each. Leaves out those that are about no port of the pod.
    fn rules(&self, about: Option<&About>, rules: Vec<PolicyRule>) -> Vec<PolicyRule> {
        let denies = rules.iter().any(|rule| rule.action.denies());
        let all = LazyCell::new(|| self.all(about, denies));
        let translated = rules.into_iter().filter_map(|mut rule| {
            if rule.ports.is_empty() {
                let Some(all) = &*all else {
                    return Some(rule);
                };
                rule.ports.clone_from(all);
            } else {
                let wanted: BTreeSet<u16> = rule.ports.iter().copied().collect();
                let own = wanted.into_iter();
                let own = own.flat_map(|w| self.meant(w, about, denies));
                let own: BTreeSet<u16> = own.collect();
                rule.ports = own.into_iter().collect();
            }
            (!rule.ports.is_empty()).then_some(rule)
        });
        translated.collect()
    }

    /// The ports of the pod that a rule means which names none; `None`: all that there may be.
    fn all(&self, about: Option<&About>, denies: bool) -> Option<Vec<u16>> {
        let about = about?;
        let mut whole = about.iter().filter(|(_, ports)| ports.is_empty());
        if whole.any(|(service, _)| denies || self.whole.contains(service.as_str())) {
            return None;
        }
        // Most services have the same few ports, and each of these leads to all of them.
        let parts: BTreeSet<u16> = about.values().flatten().copied().collect();
        let own = parts.into_iter();
        let own = own.flat_map(|w| self.meant(w, Some(about), denies));
        let mut own: BTreeSet<u16> = own.collect();
        if about.values().any(BTreeSet::is_empty) {
            let is_whole = |name: &ObjectName| about.get(name).is_some_and(BTreeSet::is_empty);
            let served = self.served.iter();
            let served = served.filter(|(_, served)| is_of(served, is_whole));
            own.extend(served.map(|(number, _)| *number));
        }
        Some(own.into_iter().collect())
    }

    /// The ports of the pod that a rule means which names the port `wanted`. A rule may name the pod's
    /// own number only if no service of the pod has a port of that number. Where rules name too many of these, one that
    /// denies means all that nobody declares, and one that allows none.
    fn meant(&self, wanted: u16, about: Option<&About>, denies: bool) -> impl Iterator<Item = u16> {
        let is_meant = move |ports: &BTreeSet<u16>| ports.is_empty() || ports.contains(&wanted);
        let is_about = move |service: &ObjectName| {
            about.is_none_or(|about| about.get(service).is_some_and(is_meant))
        };
        let own = match self.served.get(&wanted) {
            _ if self.declared.contains(&wanted) => None,
            Some(own) => is_of(own, is_about).then_some(wanted),
            None => denies.then_some(ANY),
        };
        let own = own.filter(|_| about.is_none_or(|about| about.values().any(is_meant)));
        let led = self.places.get(&wanted).into_iter().flatten();
        let led = led.filter(move |(service, _)| is_about(service));
        own.into_iter().chain(led.map(|(_, number)| *number))
    }
}

/// Whether rules about some services may be about a port: one of these leads to it, or no service does.
fn is_of(served: &Served, is_about: impl Fn(&ObjectName) -> bool) -> bool {
    let mut places = served.places.iter();
    served.places.is_empty() || places.any(|(name, _)| is_about(name))
}

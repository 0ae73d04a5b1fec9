//! Computes what the sidecar of a cluster's pod accepts, and the pod as a destination of its own.

mod own_ports;

use super::cluster::{Cluster, called_by_address, endpoint, on_node};
use super::policy::About;
use super::room::{self, NoRoom, Room};
use super::{ClusterPod, ClusterService, Inputs, ObjectProblem, Output};
use super::{egress, inbound, policy, protocols};
use own_ports::{MOST_OF_RULES, OwnPorts};
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

/// Returns the policy of the first pod with this account that serves the service's port, without what closes other ports, and
/// the number that the port has at the pod.
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
    let served = served(cluster, pod, known(&rules));
    let mut accepted = accepts(inputs, cluster, pod, &served, rules, &mut Vec::new());
    let told = &mut accepted.policy.rules;
    told.retain(|rule| !policy::closes_others(rule, own));
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
    let served = served(cluster, pod, known(&rules));
    let mut outputs = Vec::new();
    if pod.sidecar {
        // A pod without an address may get too little room, and then more as soon as somebody can call it.
        let mut untold = Vec::new();
        let problems = match pod.addresses.is_empty() {
            true => &mut untold,
            false => problems,
        };
        outputs.push(Output {
            name: format!("inbound/{name}"),
            rank: 0,
            owner: Some(owner.clone()),
            resource: Resource::Inbound(accepts(inputs, cluster, pod, &served, rules, problems)),
            is_incomplete: inputs.awaited_keys(),
        });
    }
    let own_name = called_by_address(name).to_string();
    outputs.extend(pod.addresses.iter().map(|ip| Output {
        name: format!("address/{ip}"),
        // The address of a Service is a Service's.
        rank: 1,
        owner: None,
        resource: Resource::Alias(own_name.clone()),
        is_incomplete: false,
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
        is_incomplete: false,
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
    rules: Result<Rules, NoRoom>,
    problems: &mut Vec<ObjectProblem>,
) -> Inbound {
    // The sidecar calls the application at the pod's address, not loopback: ports that it does not show
    // its clients stay hidden.
    let address = pod.addresses.first().copied();
    let address = address.unwrap_or(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));
    let service = cluster.services_of(pod).next().map(|s| &s.name);
    let mut room = cluster.shares.room(pod);
    let object = format!("service/{}", service.unwrap_or(&pod.name));
    let own = OwnPorts::new(cluster, pod, served);
    let rules = rules.map(|rules| translated(&own, rules, &object, problems));
    let (rules, watching) = match rules {
        Ok((deciding, watching)) if room.take(deciding.bytes) => (Ok(deciding.rules), watching),
        // Nothing comes in, so there is nothing to watch.
        _ => (Err(NoRoom), Some(Counted::default())),
    };
    let rules = policy::or_closing_all(rules, &room, &object, problems);
    // Each of its services decides about its own ports, policies of the service account about all of them.
    let mut policy = Policy {
        permissive: policy::is_permissive(inputs),
        rules,
    };
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
    let mut report = |text| {
        problems.push(ObjectProblem {
            object: object.clone(),
            text,
        });
    };
    let shares = &cluster.shares;
    if let Some((next, pods)) = shares.too_small_next(pod.name.namespace(), room.taken()) {
        report(format!(
            "rules about one of its pods have more than {next} bytes, which is a pod's share from {pods} pods with sidecars \
             in the namespace on: then ports of it are closed. Make fewer or shorter rules"
        ));
    }
    match watching.filter(|watching| room.take(watching.bytes)) {
        Some(watching) => policy.rules.extend(watching.rules),
        None => report(format!(
            "policies with `mode: Audit` about one of its pods neither count nor log: with all others they make rules of more \
             than {}: make fewer or shorter ones",
            room.most_in_words()
        )),
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

/// Rules as a sidecar is told them, and their bytes.
#[derive(Default)]
struct Counted {
    rules: Vec<PolicyRule>,
    bytes: usize,
}

impl Counted {
    /// Adds the bytes of their ports to those that the rules had before: they may have many more ports of the pod than
    /// they name.
    fn new(rules: Vec<PolicyRule>, before: usize) -> Self {
        let ports: Vec<&Vec<u16>> = rules.iter().map(|rule| &rule.ports).collect();
        let bytes = before + room::bytes(&ports);
        Self { rules, bytes }
    }
}

/// Gives rules their ports of the pod, and reports it where these are too many. Returns those that decide, and those that
/// only watch.
fn translated(
    own: &OwnPorts<'_>,
    rules: Rules,
    object: &str,
    problems: &mut Vec<ObjectProblem>,
) -> (Counted, Option<Counted>) {
    let Rules {
        objects,
        deciding,
        watching,
    } = rules;
    let ports = own.of_rules(&objects);
    let too_long = ports.is_none().then(|| {
        format!(
            "rules about its pods have more than {MOST_OF_RULES} ports together, so those that allow some ports allow \
             none, and those that deny some deny all: name fewer"
        )
    });
    let told = own.too_many(&objects).into_iter().chain(too_long);
    problems.extend(told.map(|text| ObjectProblem {
        object: object.to_owned(),
        text,
    }));
    let rules = match ports {
        Some(ports) => with_ports(objects, ports),
        None => own.without_ports(objects),
    };
    let rules = rules.into_iter();
    let (watch, decide): (Vec<_>, Vec<_>) = rules.partition(|rule| rule.action.audits());
    let watching = watching.map(|bytes| Counted::new(watch, bytes));
    (Counted::new(decide, deciding), watching)
}

/// The rules of an object with the services of a pod that it is about; `None`: they are about the pod's account.
type OfObject = (Option<About>, Vec<PolicyRule>);

/// The rules of a pod's account and of its services, with the ports that they name.
struct Rules {
    /// Objects that only watch come last.
    objects: Vec<OfObject>,
    /// The bytes of those that decide.
    deciding: usize,
    /// The bytes of those that only watch; `None`: there is no room for them, and they were left out.
    watching: Option<usize>,
}

/// Returns the rules by object; none where there is no room for them.
fn known(rules: &Result<Rules, NoRoom>) -> &[OfObject] {
    match rules {
        Ok(rules) => &rules.objects,
        Err(NoRoom) => &[],
    }
}

/// Returns the rules of a pod's account and of its services.
///
/// # Errors
/// Those that decide have more bytes than the pod has room for. None is made after the first that does not fit.
fn rules(inputs: &Inputs, cluster: &Cluster, pod: &ClusterPod) -> Result<Rules, NoRoom> {
    let most = cluster.shares.room(pod).left();
    let mut left = most;
    let account: ObjectName = pod.account().into();
    let of_account = room::fitting(policy::of_identity(inputs, &account), &mut left)?;
    let of_account = of_account.into_iter().map(|rule| (None, vec![rule]));
    let mut objects: Vec<OfObject> = of_account.collect();
    let services = cluster.services_of(pod);
    let services: Vec<ObjectName> = services.map(|s| s.name.clone().into()).collect();
    let mut watching = Vec::new();
    for (about, action, rules) in policy::of_services(inputs, &services) {
        match action.audits() {
            true => watching.push((about, rules)),
            false => objects.push((Some(about), room::fitting(rules, &mut left)?)),
        }
    }
    let deciding = most - left;
    let fit = |(about, rules): (About, policy::Made<'_>)| -> Result<OfObject, NoRoom> {
        Ok((Some(about), room::fitting(rules, &mut left)?))
    };
    let watching: Result<Vec<OfObject>, NoRoom> = watching.into_iter().map(fit).collect();
    let watching = watching.ok().map(|watching| {
        objects.extend(watching);
        most - deciding - left
    });
    Ok(Rules {
        objects,
        deciding,
        watching,
    })
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

/// Gives rules, object by object, their ports of the pod. Leaves out those that are about none.
fn with_ports(objects: Vec<OfObject>, ports: Vec<Option<Vec<u16>>>) -> Vec<PolicyRule> {
    let rules = objects.into_iter().flat_map(|(_, rules)| rules);
    let rules = rules.zip(ports).filter_map(|(rule, ports)| match ports {
        None => Some(rule),
        Some(ports) => (!ports.is_empty()).then_some(PolicyRule { ports, ..rule }),
    });
    rules.collect()
}

//! The protocol of a port, where one object declares it, several do, or none.

use super::ClusterService;
use std::collections::BTreeMap;
use tulle_model::manifest::{WorkloadPort, WorkloadSpec};
use tulle_model::resource::Protocol;

/// Ports whose server speaks first when nothing says otherwise: waiting for the client's first
/// bytes to detect the protocol would only delay them (SMTP, MySQL, PostgreSQL, Redis, ...).
const SERVER_FIRST: [u16; 9] = [25, 587, 3306, 4444, 5432, 6379, 9300, 11211, 27017];

/// Returns the protocol that clients assume for a port. The server's sidecar uses the declared one
/// instead: a well-known number is no reason for it to leave a request unread.
pub(super) fn protocol(declared: Protocol, port: u16) -> Protocol {
    match declared {
        Protocol::Detect if SERVER_FIRST.contains(&port) => Protocol::Tcp,
        given => given,
    }
}

/// Finds the protocol of a port that several Services lead to. A Service without `appProtocol` agrees
/// with the others; among kinds of HTTP the most specific wins. If some say HTTP and others opaque TCP,
/// the protocol is HTTP, so that nothing passes unread, and the second value says why they conflict.
pub(super) fn common_protocol(
    said: &[(&ClusterService, &WorkloadPort)],
) -> (Protocol, Option<String>) {
    // The first of these protocols that some Service names, and the Service that names it.
    let first = |protocols: &[Protocol]| {
        protocols.iter().find_map(|protocol| {
            let mut said = said.iter();
            let (service, port) = said.find(|(_, port)| port.protocol() == *protocol)?;
            Some((service, port, *protocol))
        })
    };
    let http = first(&[Protocol::Grpc, Protocol::Http2, Protocol::Http]);
    let opaque = first(&[Protocol::Tcp, Protocol::Tls]);
    match (http, opaque) {
        (Some((one, here, http)), Some((other, there, opaque))) => {
            let why = format!(
                "{}:{} is {} and {}:{} is {}: give both the same appProtocol",
                one.name,
                here.port,
                protocol_name(http),
                other.name,
                there.port,
                protocol_name(opaque),
            );
            (http, Some(why))
        }
        (Some((_, _, protocol)), None) | (None, Some((_, _, protocol))) => (protocol, None),
        (None, None) => (Protocol::Detect, None),
    }
}

/// Returns two replicas of a service that say different things about one port.
pub(crate) fn port_conflict<'a>(
    service: &str,
    workloads: impl Iterator<Item = (&'a str, &'a WorkloadSpec)>,
) -> Option<String> {
    let mut seen: BTreeMap<u16, (&str, Protocol)> = BTreeMap::new();
    for (workload, spec) in workloads {
        for port in &spec.ports {
            let here = protocol(port.protocol(), port.port);
            let (first, there) = *seen.entry(port.port).or_insert((workload, here));
            if here != there {
                return Some(format!(
                    "port {} of service {service} is {} in Workload/{first} and {} in \
                     Workload/{workload}: give both the same appProtocol",
                    port.port,
                    protocol_name(there),
                    protocol_name(here),
                ));
            }
        }
    }
    None
}

/// A protocol as manifests name it.
pub(super) fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Detect => "not set",
        Protocol::Http => "http",
        Protocol::Tcp => "tcp",
        Protocol::Http2 => "http2",
        Protocol::Grpc => "grpc",
        Protocol::Tls => "tls",
    }
}

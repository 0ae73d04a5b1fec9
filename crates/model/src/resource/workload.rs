//! The workload behind a proxy or an endpoint: labels of metrics. No decision depends on it.

use super::{Resource, is_default};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Longest part of a workload's description in bytes: names of Kubernetes' objects have at most so many.
const LONGEST_PART: usize = 253;
/// Parts of the form in which sidecars tell each other.
const PARTS: usize = 6;

/// A Deployment, StatefulSet, Job or the like of a cluster, or a Workload of a host.
///
/// The namespace is not part of it: it comes from the identity, which is verified.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Workload {
    /// Its name.
    pub name: String,
    /// Its kind; empty: `Deployment`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub kind: String,
    /// The application it belongs to; empty: unknown.
    #[serde(default, skip_serializing_if = "is_default")]
    pub app: String,
    /// Version of the application; empty: unknown.
    #[serde(default, skip_serializing_if = "is_default")]
    pub version: String,
    /// Istio's name for what it serves; empty: the workload's name.
    #[serde(default, skip_serializing_if = "is_default")]
    pub canonical_service: String,
    /// Istio's name for the version of that; empty: `latest`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub canonical_revision: String,
}

impl Workload {
    /// Longest form for peers in bytes.
    pub const MAX_WIRE_BYTES: usize = 512;

    /// Returns its kind.
    pub fn kind(&self) -> &str {
        or(&self.kind, "Deployment")
    }

    /// Returns the canonical service.
    pub fn canonical_service(&self) -> &str {
        or(&self.canonical_service, &self.name)
    }

    /// Returns the canonical revision.
    pub fn canonical_revision(&self) -> &str {
        or(&self.canonical_revision, "latest")
    }

    fn parts(&self) -> [&str; PARTS] {
        [
            &self.name,
            &self.kind,
            &self.app,
            &self.version,
            &self.canonical_service,
            &self.canonical_revision,
        ]
    }

    /// Whether anything but the name is known of it.
    pub fn is_more_than_a_name(&self) -> bool {
        self.parts()
            .into_iter()
            .skip(1)
            .any(|part| !part.is_empty())
    }

    /// Whether it has a name and all of it is plain text, which needs no escape anywhere.
    pub fn is_valid(&self) -> bool {
        !self.name.is_empty() && self.parts().into_iter().all(is_part)
    }

    /// Returns a copy to be shared, if it can be shown in labels.
    pub fn shown(workload: Option<&Self>) -> Option<Arc<Self>> {
        let valid = workload.filter(|workload| workload.is_valid());
        valid.map(|workload| Arc::new(workload.clone()))
    }

    /// Encodes it for peers: its parts separated by spaces, which none of them has. `None`: it is too long
    /// or not valid, and peers are not told.
    pub fn to_wire(&self) -> Option<String> {
        let text = self.parts().join(" ");
        (self.is_valid() && text.len() <= Self::MAX_WIRE_BYTES).then_some(text)
    }

    /// Decodes what a peer says of itself. Further parts are those of a later version.
    pub fn from_wire(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut parts = text.split(' ').map(str::to_owned);
        let told = Self {
            name: parts.next()?,
            kind: parts.next()?,
            app: parts.next()?,
            version: parts.next()?,
            canonical_service: parts.next()?,
            canonical_revision: parts.next()?,
        };
        (bytes.len() <= Self::MAX_WIRE_BYTES && told.is_valid()).then_some(told)
    }
}

fn or<'a>(value: &'a str, default: &'a str) -> &'a str {
    match value {
        "" => default,
        value => value,
    }
}

/// Names and labels of Kubernetes have only these bytes.
fn is_part(part: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    part.len() <= LONGEST_PART && part.bytes().all(plain)
}

/// The workloads behind a service's endpoints.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Workloads {
    /// Each of them once.
    #[serde(default, skip_serializing_if = "is_default")]
    pub known: Vec<KnownWorkload>,
    /// For each port of the service, in its order, and for each of its endpoints: the place in `known`
    /// counted from 1; 0: unknown. Empty: all endpoints are of the first.
    #[serde(default, skip_serializing_if = "is_default")]
    pub endpoints: Vec<Vec<u16>>,
}

/// A workload with its identity.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KnownWorkload {
    /// The workload.
    pub workload: Workload,
    /// Place of its identity among the service's identities.
    #[serde(default, skip_serializing_if = "is_default")]
    pub identity: u16,
}

impl Workloads {
    /// Makes the table: `find` looks up the workload of each endpoint of each port, with the place of its
    /// identity.
    pub fn new<'a, E>(ports: &[Vec<E>], find: impl Fn(&E) -> Option<(&'a Workload, u16)>) -> Self {
        let mut known: Vec<KnownWorkload> = Vec::new();
        let mut index = |endpoint: &E| {
            let found = find(endpoint).filter(|(workload, _)| workload.is_valid());
            let Some((workload, identity)) = found else {
                return 0;
            };
            // A service has a few workloads, so a scan will do.
            let same = |k: &KnownWorkload| k.identity == identity && k.workload == *workload;
            let place = known.iter().position(same).unwrap_or_else(|| {
                known.push(KnownWorkload {
                    workload: workload.clone(),
                    identity,
                });
                known.len() - 1
            });
            u16::try_from(place + 1).unwrap_or(0)
        };
        let ports = ports.iter();
        let endpoints: Vec<Vec<u16>> = ports.map(|p| p.iter().map(&mut index).collect()).collect();
        let single = endpoints.iter().flatten().all(|place| *place == 1);
        Self {
            endpoints: if single { Vec::new() } else { endpoints },
            known,
        }
    }

    /// Returns the places of the workloads of a port's endpoints, as in `endpoints`; none if all of them
    /// are of the first.
    pub fn of_port(&self, port: usize) -> &[u16] {
        match self.endpoints.get(port) {
            Some(places) => places,
            None if self.endpoints.is_empty() => &[],
            None => &[0],
        }
    }

    /// Returns the place in `known` of an endpoint's workload, given those of its port.
    pub fn place(of_port: &[u16], endpoint: usize) -> Option<usize> {
        let place = match of_port {
            [] => 1,
            places => usize::from(*places.get(endpoint)?),
        };
        place.checked_sub(1)
    }
}

/// The part of a resource that only names workloads. It travels beside the body: a proxy of version 0.1,
/// which refuses a body with a field that it does not know, passes it over.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceLabels {
    /// The workload of the proxy that the resource is for.
    #[serde(skip_serializing_if = "is_default")]
    pub workload: Option<Box<Workload>>,
    /// The workloads of a service's endpoints.
    #[serde(skip_serializing_if = "is_default")]
    pub workloads: Workloads,
}

impl Resource {
    /// Takes out the part that only names workloads.
    pub fn take_labels(&mut self) -> ResourceLabels {
        let mut labels = ResourceLabels::default();
        self.swap_labels(&mut labels);
        labels
    }

    /// Puts that part back.
    pub fn put_labels(&mut self, mut labels: ResourceLabels) {
        self.swap_labels(&mut labels);
    }

    fn swap_labels(&mut self, labels: &mut ResourceLabels) {
        match self {
            Self::Service(service) => std::mem::swap(&mut service.workloads, &mut labels.workloads),
            Self::Inbound(inbound) => std::mem::swap(&mut inbound.workload, &mut labels.workload),
            Self::Gateway(gateway) => std::mem::swap(&mut gateway.workload, &mut labels.workload),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(name: &str) -> Workload {
        Workload {
            name: name.into(),
            ..Default::default()
        }
    }

    #[test]
    fn peers_are_told_in_a_few_plain_words() {
        let told = Workload {
            kind: "StatefulSet".into(),
            app: "reviews".into(),
            version: "v1".into(),
            ..workload("reviews-v1")
        };
        let text = told.to_wire().unwrap();
        assert_eq!(text, "reviews-v1 StatefulSet reviews v1  ");
        assert_eq!(Workload::from_wire(text.as_bytes()), Some(told));
        let later = Workload::from_wire(b"a     r more of it").unwrap();
        assert_eq!((&*later.name, &*later.canonical_revision), ("a", "r"));
        assert_eq!(later.kind(), "Deployment");
        assert_eq!(later.canonical_service(), "a");
        assert_eq!(workload("a").canonical_revision(), "latest");
        let long = "a".repeat(LONGEST_PART + 1);
        let wide = vec!["a".repeat(LONGEST_PART); PARTS].join(" ");
        for bad in [
            "",
            "a",
            "a b c d e",
            "      ",
            "a\"     ",
            "a\n     ",
            "ä     ",
            &wide,
            &format!("{long}     "),
        ] {
            assert_eq!(Workload::from_wire(bad.as_bytes()), None, "{bad:?}");
        }
        assert_eq!(workload("a b").to_wire(), None);
        assert_eq!(workload("").to_wire(), None);
    }

    #[test]
    fn a_service_of_one_workload_needs_no_index() {
        let all = ["", "v1", "v2"].map(workload);
        let find = |endpoint: &u8| Some((all.get(usize::from(*endpoint))?, 0));
        let one = Workloads::new(&[vec![1, 1], vec![1]], find);
        assert_eq!((one.known.len(), one.endpoints.len()), (1, 0));
        assert_eq!(Workloads::place(one.of_port(1), 0), Some(0));
        let more = Workloads::new(&[vec![1, 2], vec![0]], find);
        assert_eq!(more.endpoints, [vec![1, 2], vec![0]]);
        let places = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)];
        let places = places.map(|(port, endpoint)| Workloads::place(more.of_port(port), endpoint));
        assert_eq!(places, [Some(0), Some(1), None, None, None]);
        let none = Workloads::new(&[vec![0_u8]], find);
        assert_eq!(Workloads::place(none.of_port(0), 0), None);
    }
}

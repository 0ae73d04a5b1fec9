//! The labels of traffic as text. Identities, workloads and names of services are validated and hold nothing to
//! escape.

use super::series::{Labels, Reporter};
use std::borrow::Cow;
use std::fmt::Write;
use std::sync::Arc;
use tulle_model::identity::SpiffeId;
use tulle_model::namespaced::Namespaced;
use tulle_model::resource::Workload;
use tulle_model::samples::CLUSTER_DOMAIN;

/// Value of a label whose value is not known, as Istio has it.
pub(super) const UNKNOWN: &str = "unknown";
/// Istio's name of the only cluster of a mesh.
const CLUSTER: &str = "Kubernetes";

impl Labels {
    /// Leaves of the workloads what compact labels show.
    pub(super) fn shorten(&mut self) {
        for workload in [&mut self.source_workload, &mut self.destination_workload] {
            if let Some(known) = workload
                && known.is_more_than_a_name()
            {
                *workload = Some(Arc::new(Workload {
                    name: known.name.clone(),
                    ..Workload::default()
                }));
            }
        }
    }

    /// Whether the proxy that reports is a cluster's.
    fn of_cluster(&self) -> bool {
        let own = match self.reporter {
            Reporter::Source => &self.source,
            Reporter::Destination => &self.destination,
        };
        own.as_ref()
            .is_some_and(|id| id.service_account().is_some())
    }

    /// Appends the labels that requests and connections share, all of Istio's or only the compact ones.
    pub(super) fn write(&self, protocol: &str, compact: bool, out: &mut String) {
        let service = ServiceName::new(&self.destination_service, self.of_cluster());
        let source = Peer::new(self.source.as_ref(), self.source_workload.as_deref());
        let mut destination = Peer::new(
            self.destination.as_ref(),
            self.destination_workload.as_deref(),
        );
        // A pod without a sidecar has no identity; it is in the namespace of its service.
        if destination.identity.is_none()
            && self.destination_workload.is_some()
            && self.of_cluster()
        {
            destination.namespace = service.namespace;
        }
        let reporter = match self.reporter {
            Reporter::Source => "source",
            Reporter::Destination => "destination",
        };
        let _ = write!(out, "reporter=\"{reporter}\"");
        source.write("source", compact, out);
        destination.write("destination", compact, out);
        let mut label = |name: &str, value: &str| {
            let _ = write!(out, ",{name}=\"{value}\"");
        };
        label("destination_service", &service.host);
        label("destination_service_name", service.name);
        if !compact {
            label("destination_service_namespace", service.namespace);
        }
        label("request_protocol", protocol);
        let policy = if self.mutual_tls {
            "mutual_tls"
        } else {
            "none"
        };
        label("connection_security_policy", policy);
    }
}

/// One side of a hop.
pub(super) struct Peer<'a> {
    identity: Option<&'a SpiffeId>,
    workload: Option<&'a Workload>,
    pub(super) name: &'a str,
    pub(super) namespace: &'a str,
}

impl<'a> Peer<'a> {
    pub(super) fn new(identity: Option<&'a SpiffeId>, workload: Option<&'a Workload>) -> Self {
        let account = identity.and_then(SpiffeId::service_account);
        // Without a cluster the identity is the service's, which is known where the workload is not.
        let of_host = identity.filter(|_| account.is_none()).map(SpiffeId::name);
        let name = workload.map_or(of_host, |w| Some(&w.name));
        // As with Istio all of it is known or nothing. Kiali passes over a namespace without a workload.
        let namespace = account
            .filter(|_| name.is_some())
            .map(|(namespace, _)| namespace);
        Self {
            identity,
            workload,
            name: name.unwrap_or(UNKNOWN),
            namespace: namespace.unwrap_or(UNKNOWN),
        }
    }

    pub(super) fn kind(&self) -> &'a str {
        self.workload.map_or(UNKNOWN, Workload::kind)
    }

    fn write(&self, side: &str, compact: bool, out: &mut String) {
        let mut label = |name: &str, value: &str| {
            let value = if value.is_empty() { UNKNOWN } else { value };
            let _ = write!(out, ",{side}_{name}=\"{value}\"");
        };
        label("workload", self.name);
        label("principal", self.identity.map_or(UNKNOWN, SpiffeId::as_str));
        if compact {
            return;
        }
        label("workload_namespace", self.namespace);
        let cluster = if self.namespace == UNKNOWN {
            UNKNOWN
        } else {
            CLUSTER
        };
        label("cluster", cluster);
        label("app", self.workload.map_or(UNKNOWN, |w| &w.app));
        label("version", self.workload.map_or(UNKNOWN, |w| &w.version));
        let service = self.workload.map_or(self.name, Workload::canonical_service);
        label("canonical_service", service);
        let revision = match self.name {
            UNKNOWN => UNKNOWN,
            _ => self.workload.map_or("latest", Workload::canonical_revision),
        };
        label("canonical_revision", revision);
    }
}

/// A service as metrics name it.
pub(crate) struct ServiceName<'a> {
    /// In a cluster `<name>.<namespace>.svc.cluster.local`.
    pub(crate) host: Cow<'a, str>,
    name: &'a str,
    namespace: &'a str,
}

impl<'a> ServiceName<'a> {
    pub(crate) fn new(service: &'a str, of_cluster: bool) -> Self {
        let parts = Namespaced::split(service).filter(|_| of_cluster);
        let (name, namespace) = parts.unwrap_or((service, UNKNOWN));
        // A name after a kind is no service's: an Egress, a pod that is called by its address.
        let host = match parts.is_some() && !service.contains('/') {
            true => format!("{service}{CLUSTER_DOMAIN}").into(),
            false => service.into(),
        };
        Self {
            host,
            name,
            namespace,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_has_its_host_name_in_a_cluster() {
        for (service, of_cluster, host, name, namespace) in [
            (
                "web.shop",
                true,
                "web.shop.svc.cluster.local",
                "web",
                "shop",
            ),
            ("web.v1", false, "web.v1", "web.v1", UNKNOWN),
            (
                "pod/web-0.shop",
                true,
                "pod/web-0.shop",
                "pod/web-0",
                "shop",
            ),
            (
                "Egress/books.shop",
                true,
                "Egress/books.shop",
                "Egress/books",
                "shop",
            ),
            (UNKNOWN, true, UNKNOWN, UNKNOWN, UNKNOWN),
        ] {
            let found = ServiceName::new(service, of_cluster);
            assert_eq!(
                (&*found.host, found.name, found.namespace),
                (host, name, namespace)
            );
        }
    }
}

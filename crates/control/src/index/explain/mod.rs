//! Why a call is allowed or not, and where it goes, by the rules proxies apply.
//!
//! Regular expressions hold for the whole path without its query. Conditions on headers cannot be
//! judged, because a question has no headers: such a match counts as not met and says so.

mod closings;
mod conditions;
mod egress;
mod entrance;
mod limits;
mod policies;
mod revoked;
mod routes;
mod verdict;

use super::inputs::{identity_name_of, service_of};
use super::{Index, services};
use closings::Closings;
use std::fmt;
use std::net::IpAddr;
use tulle_api::v1;
use tulle_model::identity::SpiffeId;
use tulle_model::namespaced::ObjectName;
use verdict::Way;

/// Why a question has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExplainError {
    /// No caller has this name.
    UnknownSource(String),
    /// No destination has this name.
    UnknownDestination(String),
    /// The service has no such port.
    UnknownPort {
        /// Service.
        service: String,
        /// Port asked for; 0: none, and the service has none either.
        port: u16,
        /// Ports it has.
        ports: Vec<u16>,
    },
}

impl fmt::Display for ExplainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownSource(name) => write!(
                f,
                "{name:?} is no workload, service, gateway or SPIFFE id of this mesh: see \
                 `tulle get Workload`, in a cluster `kubectl get pods`"
            ),
            Self::UnknownDestination(name) => {
                write!(
                    f,
                    "there is no service {name:?}: see `tulle get Workload`, in a cluster `kubectl get services`"
                )
            }
            Self::UnknownPort {
                service, port: 0, ..
            } => {
                write!(f, "service {service} has no ports")
            }
            Self::UnknownPort {
                service,
                port,
                ports,
            } => write!(f, "service {service} has no port {port}; it has {ports:?}"),
        }
    }
}

impl std::error::Error for ExplainError {}

/// Prefix of the address of a client without a sidecar, in place of a caller's name.
const PLAINTEXT: &str = "plaintext:";

/// The request asked about.
struct Call<'a> {
    /// `None`: a client without a sidecar, which calls in plaintext.
    source: Option<SpiffeId>,
    /// Where such a client is.
    address: Option<IpAddr>,
    port: u16,
    /// The number that rules are compared with: in a cluster the one that its pods listen on.
    own_port: u16,
    /// Raw TCP: nothing is known of paths and methods.
    opaque: bool,
    method: &'a str,
    path: &'a str,
    /// As they were found for this and earlier questions.
    closings: &'a Closings,
}

impl Call<'_> {
    /// Empty for a client without one.
    fn source_text(&self) -> String {
        self.source
            .as_ref()
            .map(SpiffeId::to_string)
            .unwrap_or_default()
    }
}

impl Index {
    /// Says which route a request takes, who decides about it and why.
    ///
    /// # Errors
    /// Source, destination or port do not exist.
    pub fn explain(&self, asked: &v1::ExplainRequest) -> Result<v1::Explanation, ExplainError> {
        let closings = Closings::default();
        let (mut answer, judged) = self.explain_call(asked, &closings)?;
        if let Some((way, call)) = judged {
            self.add_limits(&way.destinations, &call, &mut answer);
        }
        self.refuse_revoked(&mut answer);
        Ok(answer)
    }

    /// Answers whether calls are allowed. For many this is less work than to explain them: rules, which may be megabytes, are
    /// made once for each port that is called, and not for the limits.
    pub(crate) fn allows(&self) -> impl Fn(&v1::ExplainRequest) -> Result<bool, ExplainError> {
        let closings = Closings::default();
        move |asked: &v1::ExplainRequest| -> Result<bool, ExplainError> {
            let (mut answer, _) = self.explain_call(asked, &closings)?;
            self.refuse_revoked(&mut answer);
            Ok(answer.allowed)
        }
    }

    /// Explains a call without its limits. Returns its way, too, if it stays in the mesh.
    fn explain_call<'a>(
        &self,
        asked: &'a v1::ExplainRequest,
        closings: &'a Closings,
    ) -> Result<(v1::Explanation, Option<(Way, Call<'a>)>), ExplainError> {
        let inputs = &self.inputs;
        let unknown = || ExplainError::UnknownSource(asked.from.clone());
        let (source, address) = match asked.from.strip_prefix(PLAINTEXT) {
            Some(address) => (None, Some(address.parse().map_err(|_| unknown())?)),
            None => (Some(self.source(&asked.from).ok_or_else(unknown)?), None),
        };
        let to = match inputs.workloads.get(&asked.to) {
            Some(spec) if !inputs.has_service(&asked.to) => service_of(&asked.to, spec),
            _ => asked.to.as_str(),
        };
        let wanted = u16::try_from(asked.port).unwrap_or(u16::MAX);
        let method = match asked.method.as_str() {
            "" => "GET",
            method => method,
        };
        let path = match asked.path.split('?').next().unwrap_or_default() {
            "" => "/",
            path => path,
        };
        if !inputs.knows_service(to) && egress::is_outside(to) {
            let call = Call {
                source,
                address,
                port: wanted,
                own_port: wanted,
                opaque: false,
                method,
                path,
                closings,
            };
            // `tulle why` asks about GET unless it is told otherwise, so GET alone says nothing.
            let http = !asked.path.is_empty() || method != "GET";
            return Ok((self.explain_egress(to, &call, http), None));
        }
        let unknown = || ExplainError::UnknownDestination(to.to_owned());
        let known = Some(to).filter(|to| inputs.knows_service(to));
        let known = known.and_then(|to| inputs.object_name(to));
        let name = known.ok_or_else(unknown)?;
        let service = services::service(inputs, &name, &mut Vec::new());
        let port = service
            .ports
            .iter()
            .find(|p| wanted == 0 || p.port == wanted)
            .ok_or_else(|| ExplainError::UnknownPort {
                service: to.to_owned(),
                port: wanted,
                ports: service.ports.iter().map(|p| p.port).collect(),
            })?;
        let call = Call {
            source,
            address,
            port: port.port,
            own_port: port.port, // at each destination its own
            opaque: port.protocol.is_opaque(),
            method,
            path,
            closings,
        };
        let mut answer = v1::Explanation {
            source_identity: call.source_text(),
            mtls: self.mtls(&name).to_owned(),
            ..Default::default()
        };
        let way = match call.source {
            // Routes are what sidecars of callers do.
            None => Way::straight(&service.name, call.port),
            Some(_) => self.way(&asked.from, &service, &call, &mut answer),
        };
        self.judge(&way, &call, &mut answer);
        Ok((answer, Some((way, call))))
    }

    fn mtls(&self, service: &ObjectName) -> &'static str {
        if self.is_strict(service.namespace()) {
            return "strict";
        }
        let spec = self.inputs.mesh.as_ref();
        match spec.map(|m| m.mtls.mode).unwrap_or_default() {
            tulle_model::manifest::MtlsMode::Strict => "strict",
            tulle_model::manifest::MtlsMode::Permissive => "permissive",
        }
    }

    /// Whether a namespace is strict, whatever the mesh is.
    fn is_strict(&self, namespace: &str) -> bool {
        self.inputs.cluster.is_some() && self.inputs.strict_namespaces.contains(namespace)
    }

    fn source(&self, name: &str) -> Option<SpiffeId> {
        let inputs = &self.inputs;
        if name.starts_with("spiffe://") {
            return SpiffeId::parse(name).ok();
        }
        if let Some(spec) = inputs.workloads.get(name) {
            return inputs.identity_named(identity_name_of(name, spec)).ok();
        }
        if let Some((workload, spec)) = inputs.workloads_of(name).next() {
            return inputs.identity_named(identity_name_of(workload, spec)).ok();
        }
        let (gateway, _) = inputs.gateways.get_key_value(name)?;
        inputs.identity(gateway).ok()
    }
}

//! Errors for features that Envoy lacks, as texts for the operator.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Why a configuration has no counterpart in Envoy. Names the object and the field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Untranslatable {
    /// A gateway's listener.
    Gateway {
        /// The gateway's name.
        gateway: String,
    },
    /// A regular expression that Envoy's RE2 does not support, or reads differently.
    Pattern {
        /// Such as `HTTPRoute/reviews`.
        object: String,
        /// Such as `path`.
        field: String,
        /// The expression.
        pattern: String,
        /// The difference in RE2.
        why: &'static str,
    },
    /// A path prefix with a character that is never in a path.
    Prefix {
        /// Such as `HTTPRoute/reviews`.
        object: String,
        /// The prefix.
        prefix: String,
    },
    /// Weights whose sum does not fit.
    Weights {
        /// Such as `HTTPRoute/reviews`.
        object: String,
    },
    /// A service behind sidecars that names no identity: Envoy would accept any.
    NoIdentity {
        /// The service's name.
        service: String,
    },
    /// HTTP/2 to a service with endpoints both with and without mutual TLS.
    MixedEndpoints {
        /// The service's name.
        service: String,
        /// Its port.
        port: u16,
    },
    /// Two services with one address and port: a connection there could be for either.
    SharedAddress {
        /// The address.
        address: IpAddr,
        /// The port.
        port: u16,
        /// Both services' names.
        services: [String; 2],
    },
    /// A listener for an unknown service or port.
    Missing {
        /// The listener's address.
        listener: SocketAddr,
        /// The missing object.
        what: String,
    },
    /// A feature that Tulle has and the translation lacks.
    Feature {
        /// Such as `HTTPRoute/reviews`.
        object: String,
        /// The feature.
        what: &'static str,
    },
    /// A stand-alone configuration needs certificates in files.
    NoCertificates,
}

impl fmt::Display for Untranslatable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gateway { gateway } => write!(
                f,
                "Gateway/{gateway}: gateways are not translated for Envoy; run tulle-proxy for it"
            ),
            Self::Feature { object, what } => write!(
                f,
                "{object}: not translated for Envoy: {what}; remove it, or run tulle-proxy"
            ),
            Self::Pattern {
                object,
                field,
                pattern,
                why,
            } => write!(
                f,
                "{object}: {field}: Envoy cannot use the regular expression {pattern:?}: {why}; \
                 write it without"
            ),
            Self::Prefix { object, prefix } => write!(
                f,
                "{object}: path: the prefix {prefix:?} has `?` or `#`, which Envoy refuses and no \
                 path has; remove the match"
            ),
            Self::Weights { object } => write!(
                f,
                "{object}: backends: the sum of the weights is above {}, Envoy's largest; \
                 use smaller ones",
                u32::MAX
            ),
            Self::NoIdentity { service } => write!(
                f,
                "service {service}: identities: there are none, and Envoy would take that for \
                 any; name those its servers may present"
            ),
            Self::MixedEndpoints { service, port } => write!(
                f,
                "service {service}: port {port}: endpoints with and without mutual TLS cannot be \
                 mixed with HTTP/2 between sidecars; use HTTP/1.1"
            ),
            Self::SharedAddress {
                address,
                port,
                services: [a, b],
            } => write!(
                f,
                "services {a} and {b}: addresses: both have {address} with port {port}, and Envoy \
                 could not tell them apart; give each its own"
            ),
            Self::Missing { listener, what } => write!(f, "listener {listener}: {what}"),
            Self::NoCertificates => f.write_str(
                "certificates: an Envoy without a controller takes its certificate from files; \
                 name them",
            ),
        }
    }
}

impl std::error::Error for Untranslatable {}

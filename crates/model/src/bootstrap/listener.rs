//! A listener in the file: one mapping whose `kind` decides which other fields it has.
//!
//! Written by hand because serde's `flatten` would let unknown fields pass.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::net::SocketAddr;

/// One listening socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// Where to listen.
    pub address: SocketAddr,
    /// The kind of connections that arrive here.
    pub kind: ListenerKind,
}

/// The kind of connections that arrive on a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenerKind {
    /// The application's connections, redirected here: the original destination says where to.
    Outbound,
    /// The application's connections to one service (loopback mode).
    Upstream {
        /// Service name.
        service: String,
        /// Service port.
        port: u16,
    },
    /// Connections to the application, redirected here.
    Inbound,
    /// Connections to one port of the application (loopback mode).
    InboundPort {
        /// Service port.
        port: u16,
    },
    /// Clients outside the mesh.
    Gateway {
        /// Gateway name.
        gateway: String,
        /// Its listener's port.
        port: u16,
    },
}

/// Every field a listener can have.
#[derive(Serialize, Deserialize)]
#[serde(rename = "Listener", rename_all = "camelCase", deny_unknown_fields)]
struct Fields {
    address: SocketAddr,
    kind: Kind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    service: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gateway: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Kind {
    Outbound,
    Upstream,
    Inbound,
    InboundPort,
    Gateway,
}

impl Serialize for Listener {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (kind, service, gateway, port) = match &self.kind {
            ListenerKind::Outbound => (Kind::Outbound, None, None, None),
            ListenerKind::Inbound => (Kind::Inbound, None, None, None),
            ListenerKind::InboundPort { port } => (Kind::InboundPort, None, None, Some(*port)),
            ListenerKind::Upstream { service, port } => {
                (Kind::Upstream, Some(service.clone()), None, Some(*port))
            }
            ListenerKind::Gateway { gateway, port } => {
                (Kind::Gateway, None, Some(gateway.clone()), Some(*port))
            }
        };
        let fields = Fields {
            address: self.address,
            kind,
            service,
            gateway,
            port,
        };
        fields.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Listener {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = Fields::deserialize(deserializer)?;
        let kind = fields.kind().map_err(D::Error::custom)?;
        Ok(Self {
            address: fields.address,
            kind,
        })
    }
}

impl Fields {
    fn kind(&self) -> Result<ListenerKind, String> {
        let (service, gateway, port) = (self.service.clone(), self.gateway.clone(), self.port);
        match (self.kind, service, gateway, port) {
            (Kind::Outbound, None, None, None) => Ok(ListenerKind::Outbound),
            (Kind::Inbound, None, None, None) => Ok(ListenerKind::Inbound),
            (Kind::InboundPort, None, None, Some(port)) => Ok(ListenerKind::InboundPort { port }),
            (Kind::Upstream, Some(service), None, Some(port)) => {
                Ok(ListenerKind::Upstream { service, port })
            }
            (Kind::Gateway, None, Some(gateway), Some(port)) => {
                Ok(ListenerKind::Gateway { gateway, port })
            }
            (Kind::Outbound, ..) => Err("kind `outbound` has no field but `address`".into()),
            (Kind::Inbound, ..) => Err("kind `inbound` has no field but `address`".into()),
            (Kind::InboundPort, ..) => {
                Err("kind `inboundPort` has the fields `address` and `port`".into())
            }
            (Kind::Upstream, ..) => {
                Err("kind `upstream` has the fields `address`, `service` and `port`".into())
            }
            (Kind::Gateway, ..) => {
                Err("kind `gateway` has the fields `address`, `gateway` and `port`".into())
            }
        }
    }
}

//! Where a workload runs and how others reach it: in a namespace of its own, or on the host behind
//! a listener of its sidecar.

use super::context::{Context, placed};
use super::ports::{self, Reserved};
use super::state::Mode;
use super::user;
use crate::failure::{Failure, OrFail, Result};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use tulle_api::v1::PlacedPort;
use tulle_model::bootstrap::{Dns, Listener, ListenerKind};
use tulle_model::manifest::WorkloadSpec;
use tulle_redirect::{FilterBackend, Namespace, Redirection, apply_direct, apply_redirection};

const OUTBOUND: u16 = 15001;
const INBOUND: u16 = 15006;
const METRICS: u16 = 15020;
const ADMIN: u16 = 15000;
const DNS: u16 = 15053;
const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Where a workload runs and how it is reached, decided before anything is started.
pub(crate) struct WorkloadPlan {
    /// Its namespace; none: on the host.
    pub(crate) namespace: Option<Namespace>,
    pub(super) number: Option<u16>,
    /// Where its sidecar answers DNS.
    pub(crate) dns: Option<Dns>,
    /// Where its sidecar listens.
    pub(crate) listeners: Vec<Listener>,
    /// The ports to report to the controller.
    pub(crate) ports: Vec<PlacedPort>,
    /// The service's addresses, then the workload's own.
    pub(crate) addresses: Vec<IpAddr>,
    /// Where other sidecars reach it.
    pub(crate) endpoints: Vec<SocketAddr>,
    /// The address of the sidecar's metrics.
    pub(crate) metrics: SocketAddr,
    /// Where this host reaches them.
    pub(crate) scraped: SocketAddr,
    /// The sidecar's admin address.
    pub(crate) admin: SocketAddr,
    /// Holds the ports that were chosen here, until the sidecar takes them over.
    pub(crate) reserved: Vec<Reserved>,
    /// Environment variable to address, from the declared upstreams.
    pub(crate) upstreams: BTreeMap<String, String>,
    /// Where the application listens.
    pub(crate) app: IpAddr,
}

/// Finds and leaves the site of one workload.
pub(crate) struct Planner {
    /// Shared by all units.
    pub(crate) context: Rc<Context>,
    /// The workload.
    pub(crate) name: String,
    /// Its service.
    pub(crate) service: String,
    /// The workload's spec.
    pub(crate) spec: WorkloadSpec,
}

impl Planner {
    /// Decides where it runs and makes its namespace.
    pub(crate) async fn settle(&self) -> Result<WorkloadPlan> {
        if !self.context.data_plane.has_sidecars() {
            return self.settle_directly().await;
        }
        let mut plan = match (self.context.mode, self.spec.address) {
            (Mode::Namespaces, None) => self.settle_in_namespace().await?,
            (_, address) => self.settle_on_host(address.unwrap_or(LOCALHOST))?,
        };
        let service = match self.context.service_addresses(&self.service) {
            Ok(service) => service,
            Err(failure) => {
                self.leave(plan).await;
                return Err(failure);
            }
        };
        plan.addresses.splice(0..0, service);
        Ok(plan)
    }

    /// The workload's number and namespace; with a sidecar, what the workload sends and gets is
    /// redirected.
    pub(super) async fn make_namespace(&self) -> Result<(u16, Namespace)> {
        let redirected = self.context.data_plane.has_sidecars();
        let ports = self.spec.ports.iter();
        let ports: Vec<(u16, u16)> = ports
            .map(|p| (p.port, p.target_port.unwrap_or(p.port)))
            .collect();
        let network = self
            .context
            .network
            .clone()
            .ok_or_else(|| Failure::new("the mesh has no network"))?;
        let dns = self.context.answers_dns();
        let sidecar = user::of_sidecar(&self.context, &self.name)?;
        let number = self.context.numbers.borrow_mut().take();
        let name = self.name.clone();
        let made = tokio::task::spawn_blocking(move || {
            let make = || -> Result<Namespace> {
                let namespace = network
                    .add_workload(&name, number)
                    .or_fail(|| format!("cannot make the network namespace of {name}"))?;
                if !redirected {
                    apply_direct(&namespace, &ports)
                        .or_fail(|| format!("cannot redirect calls to the ports of {name}"))?;
                    return Ok(namespace);
                }
                let dns_port = dns.then_some(DNS);
                // A workload has no ports of its own past the sidecar: only its metrics.
                let usual = Redirection::default();
                let redirection = Redirection {
                    sidecar_uid: sidecar.unwrap_or(usual.sidecar_uid),
                    exclude_inbound_ports: vec![METRICS],
                    exclude_outbound_ports: Vec::new(),
                    dns_port,
                    // Out of the mesh goes what the sidecar has judged.
                    keep_within: network.plan().networks(),
                    ..usual
                };
                apply_redirection(&namespace, FilterBackend::Auto, &redirection)
                    .or_fail(|| format!("cannot redirect the connections of {name}"))?;
                network
                    .lead_out(&namespace)
                    .or_fail(|| format!("cannot route {name} to networks outside the mesh"))?;
                Ok(namespace)
            };
            let made = make();
            if made.is_err() {
                // A part of it may be there, and the workload may be gone before the next try. That would say again
                // what is wrong.
                let _ = network.remove_workload(&name);
            }
            made
        });
        match made.await {
            Ok(Ok(namespace)) => Ok((number, namespace)),
            Ok(Err(failure)) => {
                self.context.numbers.borrow_mut().give_back(number);
                Err(failure)
            }
            Err(e) => Err(Failure::new("cannot make a network namespace").because(e)),
        }
    }

    async fn settle_in_namespace(&self) -> Result<WorkloadPlan> {
        let (number, namespace) = self.make_namespace().await?;
        let listen = |ip: IpAddr, port, kind| Listener {
            address: SocketAddr::new(ip, port),
            kind,
        };
        let mut listeners = vec![listen(LOCALHOST, OUTBOUND, ListenerKind::Outbound)];
        if namespace.v6.is_some() {
            let any = Ipv6Addr::UNSPECIFIED.into();
            listeners.push(listen(
                Ipv6Addr::LOCALHOST.into(),
                OUTBOUND,
                ListenerKind::Outbound,
            ));
            listeners.push(listen(any, INBOUND, ListenerKind::Inbound));
        } else {
            let any = Ipv4Addr::UNSPECIFIED.into();
            listeners.push(listen(any, INBOUND, ListenerKind::Inbound));
        }
        let own = IpAddr::from(namespace.v4);
        let v6 = namespace.v6.map(|_| Ipv6Addr::LOCALHOST.into());
        let dns = self.context.answers_dns().then(|| Dns {
            addresses: [Some(LOCALHOST), v6]
                .into_iter()
                .flatten()
                .map(|ip| SocketAddr::new(ip, DNS))
                .collect(),
            resolvers: Vec::new(),
        });
        let endpoints: Vec<SocketAddr> = self
            .spec
            .ports
            .iter()
            .map(|p| SocketAddr::new(own, p.port))
            .collect();
        let upstreams = self.spec.upstreams.iter();
        Ok(WorkloadPlan {
            number: Some(number),
            dns,
            listeners,
            ports: self.placed_ports(&endpoints, LOCALHOST),
            addresses: [Some(own), namespace.v6.map(IpAddr::from)]
                .into_iter()
                .flatten()
                .collect(),
            endpoints,
            metrics: SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), METRICS),
            scraped: SocketAddr::new(own, METRICS),
            admin: SocketAddr::new(LOCALHOST, ADMIN),
            reserved: Vec::new(),
            // Upstreams are given by name, as to any other client in a namespace: one manifest serves both
            // modes.
            upstreams: upstreams
                .filter_map(|u| Some((u.env.clone()?, format!("{}:{}", u.service, u.port))))
                .collect(),
            app: LOCALHOST,
            namespace: Some(namespace),
        })
    }

    fn settle_on_host(&self, app: IpAddr) -> Result<WorkloadPlan> {
        if !self.spec.command.is_empty() {
            // Else its probe would be answered by a stranger.
            for port in &self.spec.ports {
                ports::free(SocketAddr::new(app, port.target_port.unwrap_or(port.port)))?;
            }
        }
        if let Some(known) = &self.context.last_known {
            let ports: Vec<u16> = self.spec.ports.iter().map(|p| p.port).collect();
            known.keep_ports(&self.name, &ports);
        }
        let mut reserved = Vec::new();
        let (mut listeners, mut endpoints) = (Vec::new(), Vec::new());
        for port in &self.spec.ports {
            let inbound = self.context.inbound_port(&self.name, port.port)?;
            endpoints.push(inbound.address());
            listeners.push(Listener {
                address: inbound.address(),
                kind: ListenerKind::InboundPort { port: port.port },
            });
            reserved.push(inbound);
        }
        let mut choose = |ip| {
            let port = self.context.free_port(ip)?;
            let address = port.address();
            reserved.push(port);
            Ok(address)
        };
        let mut upstreams = BTreeMap::new();
        for upstream in &self.spec.upstreams {
            let address = match upstream.local_port {
                Some(port) => {
                    let address = SocketAddr::new(LOCALHOST, port);
                    ports::free(address)?;
                    address
                }
                None => choose(LOCALHOST)?,
            };
            listeners.push(Listener {
                address,
                kind: ListenerKind::Upstream {
                    service: upstream.service.clone(),
                    port: upstream.port,
                },
            });
            if let Some(variable) = &upstream.env {
                upstreams.insert(variable.clone(), address.to_string());
            }
        }
        let (metrics, admin) = (choose(LOCALHOST)?, choose(LOCALHOST)?);
        Ok(WorkloadPlan {
            namespace: None,
            number: None,
            dns: None,
            listeners,
            ports: self.placed_ports(&endpoints, app),
            addresses: Vec::new(),
            endpoints,
            metrics,
            scraped: metrics,
            admin,
            reserved,
            upstreams,
            app,
        })
    }

    fn placed_ports(&self, endpoints: &[SocketAddr], app: IpAddr) -> Vec<PlacedPort> {
        let ports = self.spec.ports.iter();
        ports
            .zip(endpoints)
            .map(|(port, endpoint)| {
                let target = SocketAddr::new(app, port.target_port.unwrap_or(port.port));
                placed(port.port, *endpoint, target)
            })
            .collect()
    }

    /// Removes its namespace and gives its addresses back.
    pub(crate) async fn leave(&self, plan: WorkloadPlan) {
        if plan.namespace.is_some()
            && let Some(network) = self.context.network.clone()
        {
            let name = self.name.clone();
            let removed = tokio::task::spawn_blocking(move || network.remove_workload(&name)).await;
            if let Ok(Err(e)) = removed {
                self.context.warn(format!("{e}"));
            }
        }
        let known = self.context.direct.borrow_mut().leave(&self.name);
        if known && let Err(failure) = self.context.write_hosts() {
            self.context.warn(failure.to_string());
        }
        if let Some(number) = plan.number {
            self.context.numbers.borrow_mut().give_back(number);
        }
    }
}

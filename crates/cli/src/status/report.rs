//! Gathers everything known about a running mesh.

use super::away::Away;
use crate::client;
use crate::data_plane::DataPlane;
use crate::failure::Result;
use crate::findings;
use crate::http;
use crate::metrics::{self, Edge, Unreached};
use crate::paths::Paths;
use crate::proc;
use crate::proxies::SHORT_METRICS;
use crate::supervise::state::{self, Mode, Phase, Process, ProcessPhase, RunState};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use tulle_api::v1::{ConnectedProxy, ControllerStatus, HostedWorkload, StatusRequest};
use tulle_model::manifest::Problem;
use tulle_model::samples::{self, MetricSample};

const TIMEOUT: Duration = Duration::from_secs(2);

/// A running mesh.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Report {
    /// The mesh as a whole.
    pub(crate) mesh: Mesh,
    /// The controller.
    pub(crate) controller: Controller,
    /// Services by name.
    pub(crate) services: Vec<Service>,
    /// Gateways by name.
    pub(crate) gateways: Vec<Gateway>,
    /// Sidecars and gateways' proxies.
    pub(crate) proxies: Vec<Proxy>,
    /// Callers and services that talked inside the mesh.
    pub(crate) edges: Vec<Edge>,
    /// Requests that reached nobody.
    pub(crate) unreached: Vec<Unreached>,
    /// Problems with certificates of gateways.
    pub(crate) findings: Vec<Problem>,
    /// Counts of hosts from while they could not reach the controller.
    pub(crate) away: Vec<Away>,
    /// Warnings for the operator.
    pub(crate) warnings: Vec<String>,
    /// Something was left out because it was not asked for.
    #[serde(skip)]
    pub(crate) narrowed: bool,
}

/// The mesh as a whole.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Mesh {
    /// Its name.
    pub(crate) name: String,
    /// Name of this host if it joined another host's mesh; its controller is then asked there.
    pub(crate) node: String,
    /// How workloads are separated.
    pub(crate) mode: Mode,
    /// The sidecars' program.
    pub(crate) data_plane: DataPlane,
    /// The phase of its life.
    pub(crate) phase: Phase,
    /// Every service and gateway answers.
    pub(crate) ready: bool,
    /// Trust domain of its identities.
    pub(crate) trust_domain: String,
    /// SHA-256 of the CA's certificate.
    pub(crate) ca_fingerprint: String,
    /// The supervisor's process.
    pub(crate) supervisor_pid: i32,
    /// Where logs and sockets are.
    pub(crate) run_directory: PathBuf,
    /// Where Prometheus finds the proxies of this host.
    pub(crate) metrics_targets: PathBuf,
}

/// The controller.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Controller {
    /// It answers.
    pub(crate) ready: bool,
    /// This host joined, and has not heard it for a while.
    pub(crate) away: bool,
    /// Where sidecars connect to.
    pub(crate) address: SocketAddr,
    /// Its process.
    pub(crate) pid: Option<i32>,
    /// How often it was started again.
    pub(crate) restarts: u32,
    /// Address of the dashboard, which `tulle dashboard` opens a session of; none: there is none here.
    pub(crate) dashboard: Option<String>,
    /// Objects stored.
    pub(crate) objects: u32,
    /// Proxies connected.
    pub(crate) proxies_connected: usize,
}

/// A service: what its workloads are together.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Service {
    /// Name.
    pub(crate) name: String,
    /// At least one workload answers.
    pub(crate) ready: bool,
    /// Addresses clients connect to.
    pub(crate) addresses: Vec<IpAddr>,
    /// Where its sidecars listen.
    pub(crate) endpoints: Vec<SocketAddr>,
    /// Its workloads.
    pub(crate) workloads: Vec<Workload>,
}

/// A workload of a service.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Workload {
    /// Name.
    pub(crate) name: String,
    /// It answers.
    pub(crate) ready: bool,
    /// The reason why it is not ready.
    pub(crate) message: String,
    /// Its process, if it is one of ours.
    pub(crate) pid: Option<i32>,
    /// Life of its process.
    pub(crate) state: Option<ProcessPhase>,
    /// How often it was started again.
    pub(crate) restarts: u32,
    /// How it ended last.
    pub(crate) last_exit: Option<String>,
    /// Its network namespace.
    pub(crate) namespace: Option<String>,
    /// The joined host it runs on; empty: the controller's.
    pub(crate) host: String,
    /// Where its sidecar listens.
    pub(crate) endpoints: Vec<SocketAddr>,
}

/// A gateway.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Gateway {
    /// Name.
    pub(crate) name: String,
    /// It answers, and clients can use each of its listeners.
    pub(crate) ready: bool,
    /// The reason why it is not ready.
    pub(crate) message: String,
    /// Where it listens.
    pub(crate) listeners: Vec<SocketAddr>,
}

/// A proxy.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Proxy {
    /// Workload, or `gateway.<name>`.
    pub(crate) workload: String,
    /// SPIFFE id.
    pub(crate) identity: String,
    /// Its process.
    pub(crate) pid: Option<i32>,
    /// Life of its process.
    pub(crate) state: ProcessPhase,
    /// It has certificate and configuration.
    pub(crate) ready: bool,
    /// How often it was started again.
    pub(crate) restarts: u32,
    /// How it ended last.
    pub(crate) last_exit: Option<String>,
    /// Resident memory.
    pub(crate) rss_bytes: u64,
    /// User and system time.
    pub(crate) cpu_seconds: f64,
    /// The controller sees it.
    pub(crate) connected: bool,
    /// End of its certificate, seconds since 1970.
    pub(crate) certificate_not_after: Option<i64>,
    /// Why it refused its last configuration; none: it did not.
    pub(crate) last_nack: Option<String>,
    /// The parts of its configuration that it cannot apply, and why; none if all is in force.
    pub(crate) faults: Option<String>,
    /// Where it is asked.
    pub(crate) admin_socket: PathBuf,
    /// Where its administration is; that of a workload in a namespace is within the namespace.
    pub(crate) admin: Option<SocketAddr>,
    /// Where this host reaches its metrics.
    pub(crate) metrics: Option<SocketAddr>,
}

/// Asks everyone.
pub(crate) async fn collect(paths: &Paths) -> Result<Report> {
    let state = RunState::of_running(paths)?;
    let (controller, samples, certificates) = tokio::join!(
        controller_status(paths),
        scrape(&state),
        certificates(&state)
    );
    let connected = connected(controller.as_ref());
    let mut warnings = state.warnings.clone();
    warnings.extend(controller.iter().flat_map(|c| c.warnings.iter().cloned()));
    let proxies: Vec<Proxy> = named_proxies(&state)
        .zip(certificates)
        .map(|((name, p), not_after)| proxy(name, p, not_after, &connected))
        .collect();
    let findings = controller.iter().flat_map(|c| c.findings.iter().cloned());
    let findings = findings::known(findings.collect());
    let gateways = state.gateways.iter();
    let gateways: Vec<Gateway> = gateways.map(|g| gateway(g, &proxies, &findings)).collect();
    Ok(Report {
        mesh: Mesh {
            name: state.mesh.clone(),
            node: state.node.clone(),
            mode: state.mode,
            data_plane: state.data_plane,
            phase: state.phase,
            ready: state.all_ready() && gateways.iter().all(|g| g.ready),
            trust_domain: controller
                .as_ref()
                .map(|c| c.trust_domain.clone())
                .unwrap_or_default(),
            ca_fingerprint: state.ca_fingerprint.clone(),
            supervisor_pid: state.supervisor.pid,
            run_directory: paths.run.clone(),
            metrics_targets: paths.metrics_targets(),
        },
        controller: Controller {
            ready: controller.is_some(),
            away: state.controller_away,
            address: state.controller_address,
            pid: state.controller.id.map(|id| id.pid),
            restarts: state.controller.restarts,
            dashboard: state.console.map(|at| format!("http://{at}/")),
            objects: controller.as_ref().map_or(0, |c| c.objects),
            proxies_connected: controller.as_ref().map_or(0, |c| c.proxies.len()),
        },
        services: services(&state, controller.as_ref()),
        gateways,
        proxies,
        edges: metrics::edges(&samples),
        unreached: metrics::unreached(&samples),
        findings,
        away: controller
            .iter()
            .flat_map(|c| c.away.clone())
            .map(Away::read)
            .collect(),
        warnings,
        narrowed: false,
    })
}

async fn controller_status(paths: &Paths) -> Option<ControllerStatus> {
    let mut objects = client::lazy(&paths.socket());
    let call = objects.status(StatusRequest::default());
    let answer = tokio::time::timeout(TIMEOUT, call).await.ok()?;
    answer.ok().map(tonic::Response::into_inner)
}

/// End of each proxy's certificate, as it says itself.
async fn certificates(state: &RunState) -> Vec<Option<i64>> {
    let mut found = Vec::new();
    for answer in ask_all(state, "/certificates").await {
        let parsed = answer.and_then(|a| serde_json::from_slice::<Value>(&a.body).ok());
        found.push(parsed.and_then(|v| v.get("not_after")?.as_i64()));
    }
    found
}

/// Every proxy's metrics together. One that does not answer has none.
async fn scrape(state: &RunState) -> Vec<MetricSample> {
    let answers = ask_all(state, SHORT_METRICS).await;
    let answers = answers.iter().flatten();
    answers.flat_map(|a| samples::parse(&a.text())).collect()
}

/// Every proxy's answer, in their order; none from one that does not answer.
async fn ask_all(state: &RunState, path: &'static str) -> Vec<Option<http::Response>> {
    let mut asked = Vec::new();
    for (_, proxy) in named_proxies(state) {
        let socket = proxy.admin_socket.clone();
        asked.push(tokio::task::spawn_blocking(move || {
            http::get_unix(&socket, path, TIMEOUT)
        }));
    }
    let mut answers = Vec::new();
    for answer in asked {
        let answer = answer.await.ok().and_then(std::io::Result::ok);
        answers.push(answer.filter(|a| a.status == 200));
    }
    answers
}

fn named_proxies(state: &RunState) -> impl Iterator<Item = (String, &state::Proxy)> {
    let workloads = state.workloads.iter();
    let sidecars = workloads.filter_map(|w| Some((w.name.clone(), w.sidecar.as_ref()?)));
    let gateways = state.gateways.iter();
    sidecars.chain(gateways.map(|g| (format!("gateway.{}", g.name), &g.proxy)))
}

/// Maps identities to connected proxies. Replicas share an identity and the controller cannot tell them
/// apart, so an error of one is shown for all.
fn connected(status: Option<&ControllerStatus>) -> BTreeMap<&str, ConnectedProxy> {
    let mut connected: BTreeMap<&str, ConnectedProxy> = BTreeMap::new();
    for proxy in status.iter().flat_map(|s| &s.proxies) {
        let entry = connected
            .entry(&proxy.spiffe_id)
            .or_insert_with(|| proxy.clone());
        if entry.last_error.is_empty() {
            entry.last_error.clone_from(&proxy.last_error);
        }
    }
    connected
}

fn proxy(
    name: String,
    proxy: &state::Proxy,
    not_after: Option<i64>,
    connected: &BTreeMap<&str, ConnectedProxy>,
) -> Proxy {
    let usage = proxy.process.id.and_then(proc::usage).unwrap_or_default();
    let seen = connected.get(proxy.identity.as_str());
    let told = |text: fn(&ConnectedProxy) -> &String| {
        seen.map(|p| text(p).clone()).filter(|t| !t.is_empty())
    };
    Proxy {
        workload: name,
        identity: proxy.identity.clone(),
        pid: pid(&proxy.process),
        state: proxy.process.phase,
        ready: proxy.ready,
        restarts: proxy.process.restarts,
        last_exit: proxy.process.last_exit.clone(),
        rss_bytes: usage.rss_bytes,
        cpu_seconds: usage.cpu_seconds,
        connected: seen.is_some(),
        certificate_not_after: not_after,
        last_nack: told(|p| &p.last_error),
        faults: told(|p| &p.faults),
        admin_socket: proxy.admin_socket.clone(),
        admin: proxy.admin,
        metrics: proxy.metrics,
    }
}

fn services(state: &RunState, controller: Option<&ControllerStatus>) -> Vec<Service> {
    let mut services: BTreeMap<&str, Service> = BTreeMap::new();
    let mut add = |service, workload: Workload, addresses: &[IpAddr]| {
        let service = services.entry(service).or_insert_with_key(|name| Service {
            name: (*name).to_owned(),
            ready: false,
            addresses: Vec::new(),
            endpoints: Vec::new(),
            workloads: Vec::new(),
        });
        service.ready |= workload.ready;
        service.endpoints.extend(&workload.endpoints);
        for address in addresses {
            if !service.addresses.contains(address) {
                service.addresses.push(*address);
            }
        }
        service.workloads.push(workload);
    };
    for workload in &state.workloads {
        let shown = self::workload(workload, &state.node);
        add(&workload.service, shown, &workload.addresses);
    }
    for workload in controller.iter().flat_map(|c| &c.hosted) {
        add(&workload.service, hosted(workload), &[]);
    }
    services.into_values().collect()
}

/// A workload on another host: only what that host has reported is known here.
fn hosted(workload: &HostedWorkload) -> Workload {
    let endpoints = workload.endpoints.iter();
    Workload {
        name: workload.name.clone(),
        ready: workload.ready,
        message: match (workload.ready, workload.host_away) {
            (true, _) => String::new(),
            (false, true) => format!("its host {} is away", workload.host),
            (false, false) => format!("not ready; `tulle status` on {} says why", workload.host),
        },
        pid: None,
        state: None,
        restarts: 0,
        last_exit: None,
        namespace: None,
        host: workload.host.clone(),
        endpoints: endpoints.filter_map(|e| e.parse().ok()).collect(),
    }
}

fn workload(workload: &state::Workload, host: &str) -> Workload {
    let app = workload.app.as_ref();
    Workload {
        name: workload.name.clone(),
        ready: workload.ready,
        message: workload.message.clone(),
        pid: app.and_then(pid),
        state: app.map(|a| a.phase),
        restarts: app.map_or(0, |a| a.restarts),
        last_exit: app.and_then(|a| a.last_exit.clone()),
        namespace: workload.namespace.clone(),
        host: host.to_owned(),
        endpoints: workload.endpoints.clone(),
    }
}

fn gateway(gateway: &state::Gateway, proxies: &[Proxy], findings: &[Problem]) -> Gateway {
    let object = format!("Gateway/{}", gateway.name);
    let proxy = proxies
        .iter()
        .find(|p| p.identity == gateway.proxy.identity);
    let wrong = findings.iter().filter(|p| p.object == object);
    let messages = [&gateway.message]
        .into_iter()
        .chain(wrong.map(|p| &p.message));
    let messages: Vec<&str> = messages
        .map(String::as_str)
        .filter(|m| !m.is_empty())
        .collect();
    let served = messages.is_empty() && proxy.is_none_or(|p| p.faults.is_none());
    Gateway {
        name: gateway.name.clone(),
        ready: gateway.proxy.ready && served,
        message: messages.join("; "),
        listeners: gateway.listeners.clone(),
    }
}

fn pid(process: &Process) -> Option<i32> {
    process.id.map(|id| id.pid)
}

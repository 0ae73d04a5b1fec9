//! The proxies of a host: sidecars of its workloads, and its gateways, as the supervisor's file has them.
//!
//! Workloads of other hosts are known by name alone: the administration of their proxies can be reached on their
//! host only, and commands say so.

use crate::args::cluster::Within;
use crate::client;
use crate::failure::{Failure, OrFail, Result};
use crate::output;
use crate::paths::Paths;
use crate::proxies::{MeshName, Meshed, Owners, Pipe, ProxySource, Target};
use crate::supervise::state::{self, ProcessPhase, RunState};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;
use tulle_api::v1::StatusRequest;

/// How long the controller may take to say what other hosts run.
const PATIENCE: Duration = Duration::from_secs(2);
/// The label that has the service of a workload.
const SERVICE: &str = "service";

/// The mesh of this host.
#[derive(Debug, Clone)]
pub(crate) struct HostMesh {
    state: Arc<RunState>,
    /// Workloads on other hosts, each with its host.
    elsewhere: Arc<Vec<(String, String)>>,
}

impl HostMesh {
    /// The mesh that is up.
    pub(crate) async fn open(paths: &Paths) -> Result<Self> {
        let state = RunState::of_running(paths)?;
        let elsewhere = match state.node.as_str() {
            "" => elsewhere(paths).await,
            // Its controller is on another host.
            _ => Vec::new(),
        };
        Ok(Self {
            state: Arc::new(state),
            elsewhere: Arc::new(elsewhere),
        })
    }

    /// Says on standard error whose proxies are not asked.
    pub(crate) fn say_elsewhere(&self) {
        if let Some(note) = not_asked(&self.state.node, &self.elsewhere) {
            output::progress(&note);
        }
    }
}

async fn elsewhere(paths: &Paths) -> Vec<(String, String)> {
    let mut objects = client::lazy(&paths.socket());
    let asked = objects.status(StatusRequest::default());
    // Without a controller nobody here knows of other hosts, and the proxies of this one answer all the same.
    let Ok(Ok(status)) = tokio::time::timeout(PATIENCE, asked).await else {
        return Vec::new();
    };
    let hosted = status.into_inner().hosted.into_iter();
    hosted.map(|w| (w.name, w.host)).collect()
}

fn not_asked(node: &str, elsewhere: &[(String, String)]) -> Option<String> {
    if !node.is_empty() {
        return Some(format!(
            "note: this host joined as {node}; only its own proxies are asked"
        ));
    }
    let mut hosts: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (workload, host) in elsewhere {
        hosts.entry(host).or_default().push(workload);
    }
    let hosts = hosts.into_iter();
    let hosts: Vec<String> = hosts
        .map(|(host, workloads)| format!("{} on host {host}", workloads.join(", ")))
        .collect();
    (!hosts.is_empty()).then(|| {
        format!(
            "note: not asked: {}; run the command there",
            hosts.join("; ")
        )
    })
}

impl ProxySource for HostMesh {
    fn mesh(&self) -> MeshName {
        MeshName::Host {
            name: self.state.mesh.clone(),
        }
    }

    fn no_proxies(&self) -> String {
        match self.state.data_plane.has_sidecars() {
            true => "no workload has a sidecar yet; `tulle status` says why".to_owned(),
            false => "this mesh has no sidecars (`--data-plane none`)".to_owned(),
        }
    }

    async fn proxies(&self, _: &Within) -> Result<Vec<Meshed>> {
        Ok(proxies(&self.state))
    }

    async fn select(&self, target: &str, _: &Within) -> Result<Vec<Meshed>> {
        select(&self.state, &self.elsewhere, target)
    }

    async fn connect(&self, proxy: &Meshed) -> Result<Pipe> {
        let what = || format!("cannot reach {}", proxy.subject());
        let socket = socket(&self.state, &proxy.name);
        let socket = socket.ok_or_else(|| Failure::new(what()).because("it is gone"))?;
        let stream = UnixStream::connect(&socket).await;
        let stream = stream.or_fail(what).map_err(|failure| {
            failure.fix(format!(
                "`tulle logs {} --sidecar` shows its output",
                proxy.name
            ))
        })?;
        Ok(Box::new(stream))
    }

    async fn owners(&self) -> Result<Owners> {
        Ok(owners(&self.state))
    }
}

/// Sidecars and gateways, each with its socket.
fn all(state: &RunState) -> impl Iterator<Item = (Meshed, PathBuf)> {
    let workloads = state.workloads.iter().filter_map(|workload| {
        let proxy = workload.sidecar.as_ref()?;
        let service = (SERVICE.to_owned(), workload.service.clone());
        let meshed = Meshed {
            name: workload.name.clone(),
            workload: format!("workload/{}", workload.name),
            labels: vec![service],
            ready: workload.ready,
            ..meshed(state, proxy)
        };
        Some((meshed, proxy.admin_socket.clone()))
    });
    let gateways = state.gateways.iter().map(|gateway| {
        let proxy = &gateway.proxy;
        let meshed = Meshed {
            name: format!("gateway.{}", gateway.name),
            workload: format!("gateway/{}", gateway.name),
            gateway: true,
            ..meshed(state, proxy)
        };
        (meshed, proxy.admin_socket.clone())
    });
    workloads.chain(gateways)
}

fn meshed(state: &RunState, proxy: &state::Proxy) -> Meshed {
    let account = proxy.identity.rsplit_once('/').map(|(_, name)| name);
    Meshed {
        namespace: String::new(),
        name: String::new(),
        workload: String::new(),
        account: account.unwrap_or_default().to_owned(),
        labels: Vec::new(),
        ready: proxy.ready,
        sidecar_ready: proxy.ready,
        sidecar_runs: proxy.process.phase == ProcessPhase::Running,
        version: state.version.clone(),
        restarts: proxy.process.restarts.into(),
        gateway: false,
    }
}

fn proxies(state: &RunState) -> Vec<Meshed> {
    all(state).map(|(proxy, _)| proxy).collect()
}

fn socket(state: &RunState, name: &str) -> Option<PathBuf> {
    let mut all = all(state);
    all.find_map(|(proxy, socket)| (proxy.name == name).then_some(socket))
}

fn select(state: &RunState, elsewhere: &[(String, String)], target: &str) -> Result<Vec<Meshed>> {
    let parsed = Target::parse(target)?;
    let service = match parsed {
        Target::Service(name) | Target::Any(name) => Some(name),
        _ => None,
    };
    let serves = |proxy: &Meshed| {
        let mut labels = proxy.labels.iter();
        labels.any(|(key, value)| key == SERVICE && Some(value.as_str()) == service)
    };
    let mut found = proxies(state);
    let known: Vec<String> = found.iter().map(|proxy| proxy.workload.clone()).collect();
    found.retain(|proxy| parsed.takes(proxy) || serves(proxy));
    if found.is_empty() {
        let name = target.rsplit_once('/').map_or(target, |(_, name)| name);
        let what = format!("nothing on this host is {target}, or it has no sidecar");
        let fix = match elsewhere.iter().find(|(workload, _)| workload == name) {
            Some((_, host)) => format!("it runs on host {host}: run the command there"),
            None => format!("there are: {}", known.join(", ")),
        };
        return Err(Failure::new(what).fix(fix));
    }
    found.sort_by_key(|proxy| !proxy.sidecar_ready);
    Ok(found)
}

/// In loopback mode all have the same address, which says nothing.
fn owners(state: &RunState) -> Owners {
    let mut names: BTreeMap<IpAddr, Vec<&state::Workload>> = BTreeMap::new();
    for workload in &state.workloads {
        for address in workload.addresses.iter().filter(|a| !a.is_loopback()) {
            names.entry(*address).or_default().push(workload);
        }
    }
    let name = |workloads: &[&state::Workload]| match workloads {
        [workload] => format!("workload/{}", workload.name),
        // The address of a service with several.
        [first, ..] => format!("service/{}", first.service),
        [] => String::new(),
    };
    let named = names
        .into_iter()
        .map(|(address, all)| (address, (name(&all), 0)));
    let mut owners = Owners {
        workloads: named.collect(),
        ..Owners::default()
    };
    let own = state.controller_address.ip();
    if !own.is_loopback() && !own.is_unspecified() {
        owners.nodes.insert(own, "this host".to_owned());
    }
    owners
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_plane::DataPlane;
    use crate::proc::ProcessId;
    use crate::supervise::state::{Gateway, Mode, Phase, Process, Proxy, Workload};

    fn proxy(identity: &str, ready: bool) -> Proxy {
        Proxy {
            process: Process {
                phase: ProcessPhase::Running,
                restarts: 2,
                ..Process::default()
            },
            ready,
            identity: format!("spiffe://t/svc/{identity}"),
            admin_socket: format!("/run/{identity}.sock").into(),
            ..Proxy::default()
        }
    }

    fn workload(name: &str, service: &str, ready: bool, addresses: &[&str]) -> Workload {
        Workload {
            name: name.into(),
            service: service.into(),
            sidecar: Some(proxy(service, ready)),
            ready,
            addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
            ..Workload::default()
        }
    }

    fn state() -> RunState {
        RunState {
            version: "1.2.3".into(),
            mesh: "m".into(),
            supervisor: ProcessId::current(),
            janitor: Process::default(),
            node: String::new(),
            mode: Mode::Namespaces,
            data_plane: DataPlane::Tulle,
            phase: Phase::Running,
            controller_address: "10.77.0.1:15010".parse().unwrap(),
            controller_away: false,
            console: None,
            address_for_hosts: "10.77.0.1:15010".parse().unwrap(),
            ca_fingerprint: String::new(),
            controller: Process::default(),
            workloads: vec![
                workload("web-1", "web", false, &["10.77.2.1", "10.77.1.1"]),
                workload("web-2", "web", true, &["10.77.2.1", "10.77.1.2"]),
                workload("db", "db", true, &["127.0.0.1"]),
                Workload {
                    name: "bare".into(),
                    ..Workload::default()
                },
            ],
            gateways: vec![Gateway {
                name: "web".into(),
                proxy: proxy("in", true),
                ..Gateway::default()
            }],
            warnings: Vec::new(),
        }
    }

    #[test]
    fn proxies_have_the_fields_of_a_clusters() {
        let all = proxies(&state());
        let names: Vec<String> = all.iter().map(Meshed::shown).collect();
        assert_eq!(names, ["web-1", "web-2", "db", "gateway.web"]);
        let web = &all[0];
        assert_eq!(
            (web.workload.as_str(), web.account.as_str()),
            ("workload/web-1", "web")
        );
        assert_eq!((web.version.as_str(), web.restarts), ("1.2.3", 2));
        assert!(web.sidecar_runs && !web.ready && !web.gateway);
        assert_eq!(all[3].workload, "gateway/web");
        assert!(all[3].gateway);
        assert_eq!(socket(&state(), "gateway.web"), Some("/run/in.sock".into()));
    }

    #[test]
    fn a_target_is_a_workload_a_gateway_a_service_or_a_name() {
        let elsewhere = [("far".to_owned(), "edge".to_owned())];
        let found = |target: &str| {
            let found = select(&state(), &elsewhere, target);
            found
                .map(|all| all.iter().map(Meshed::shown).collect::<Vec<_>>())
                .map_err(|failure| failure.to_string())
        };
        assert_eq!(found("web-1").unwrap(), ["web-1"]);
        assert_eq!(found("workload/web-2").unwrap(), ["web-2"]);
        // Ready proxies come first.
        assert_eq!(found("svc/web").unwrap(), ["web-2", "web-1"]);
        assert_eq!(found("gateway/web").unwrap(), ["gateway.web"]);
        assert_eq!(found("gateway.web").unwrap(), ["gateway.web"]);
        assert_eq!(found("web").unwrap(), ["web-2", "gateway.web", "web-1"]);
        assert_eq!(found("sa/db").unwrap(), ["db"]);
        assert!(found("bare").unwrap_err().contains("workload/db"));
        assert!(found("workload/far").unwrap_err().contains("host edge"));
        assert!(found("node/a").is_err());
    }

    #[test]
    fn addresses_belong_to_workloads_services_and_the_host() {
        let owners = owners(&state());
        let name = |address: &str| owners.name(address.parse().unwrap(), 1).unwrap();
        assert_eq!(name("10.77.1.1"), "workload/web-1");
        assert_eq!(name("10.77.2.1"), "service/web");
        assert_eq!(name("10.77.0.1"), "this host");
        for same in ["127.0.0.1", "192.0.2.1"] {
            assert_eq!(name(same), same);
        }
    }

    #[test]
    fn proxies_of_other_hosts_are_named() {
        let pair = |workload: &str, host: &str| (workload.to_owned(), host.to_owned());
        assert_eq!(not_asked("", &[]), None);
        let note = not_asked("", &[pair("a", "x"), pair("b", "y"), pair("c", "x")]).unwrap();
        assert!(note.contains("a, c on host x; b on host y"), "{note}");
        assert!(not_asked("edge", &[]).unwrap().contains("joined as edge"));
    }
}

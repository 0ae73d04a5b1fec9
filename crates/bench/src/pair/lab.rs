//! Holds what every measurement needs: the server, a place for each peer, CPUs.

use super::Options;
use super::scenario::Shape;
use crate::cpus;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::janitor::TemporaryDirectory;
use crate::load::Server;
use crate::peer::{Mode, Peer, Ports, Running, Topology, http};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use tulle_model::resource::Protocol;

/// Below the range that connections take their own ports from.
const PORTS: std::ops::Range<u16> = 15_100..31_000;
/// Ports of each peer.
const PORTS_EACH: u16 = 8;
/// Open files of each process: idle connections, twice where a sidecar relays each.
const FILES: u64 = 65_536;

/// The parts that all measurements share.
pub(super) struct Lab<'a> {
    pub(super) interrupt: &'a Interrupt,
    pub(super) sidecar_cpus: Vec<usize>,
    pub(super) load_cpus: Vec<usize>,
    pub(super) server: Server,
    /// Each peer with its place.
    pub(super) places: Vec<(Box<dyn Peer>, Topology)>,
    /// Further places of some: scenario, index of the peer, topology.
    opaque: Vec<(String, usize, Topology)>,
    directory: TemporaryDirectory,
}

impl<'a> Lab<'a> {
    /// Makes the places and starts the server.
    pub(super) fn prepare(
        options: &Options,
        peers: Vec<Box<dyn Peer>>,
        shapes: &[Shape],
        interrupt: &'a Interrupt,
    ) -> Result<Self> {
        let most = shapes.iter().map(|shape| shape.workers).max();
        let (sidecar_cpus, load_cpus) = options.cpus(most.unwrap_or(1));
        for (sidecar, load) in sidecar_cpus.iter().zip(load_cpus.iter().cycle()) {
            cpus::check(*sidecar, *load)?;
        }
        let directory = TemporaryDirectory::new("pair")?;
        let count = u16::try_from(peers.len() + 1).unwrap_or(u16::MAX);
        let base = free_ports(count.saturating_mul(PORTS_EACH))?;
        let (mut places, mut opaque) = (Vec::new(), Vec::new());
        for (number, peer) in (1..).zip(peers) {
            let mode = if peer.name() == crate::results::stats::NO_MESH {
                Mode::Baseline
            } else {
                Mode::Both
            };
            let ports = Ports {
                app: base,
                ..Ports::from(base + number * PORTS_EACH)
            };
            let place = directory.path().join(peer.name());
            let topology = Topology {
                workers: options.workers,
                ..Topology::new(&place, mode, Protocol::Http, ports)?
            };
            for shape in shapes.iter().filter(|_| peer.relays_tcp()) {
                if let Some(both) = shape.opaque() {
                    let mode = if mode == Mode::Both { both } else { mode };
                    let place = place.join(&shape.name);
                    let topology = Topology::new(&place, mode, Protocol::Tcp, ports)?;
                    opaque.push((shape.name.clone(), places.len(), topology));
                }
            }
            places.push((peer, topology));
        }
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, base));
        let log = directory.path().join("server.log");
        Ok(Self {
            interrupt,
            server: Server::start(listen, &load_cpus, &log)?,
            sidecar_cpus,
            load_cpus,
            places,
            opaque,
            directory,
        })
    }

    /// Those who take part in a scenario of load, each with its place.
    pub(super) fn takers<'b>(
        &'b self,
        shape: &'b Shape,
    ) -> Box<dyn Iterator<Item = (&'b dyn Peer, &'b Topology)> + 'b> {
        if shape.opaque().is_none() {
            let places = self.places.iter();
            return Box::new(places.map(|(peer, topology)| (peer.as_ref(), topology)));
        }
        let opaque = self.opaque.iter();
        let here = opaque.filter(|(scenario, ..)| *scenario == shape.name);
        Box::new(here.map(|(_, peer, topology)| (self.places[*peer].0.as_ref(), topology)))
    }

    /// Starts the sidecars of a peer.
    pub(super) fn start(&self, peer: &dyn Peer, topology: &Topology) -> Result<Running> {
        self.interrupt.check()?;
        let port = topology.entry().port();
        Running::start(peer, topology, &self.sidecar_cpus, || {
            http::get(port, "/bytes/0").map(drop)
        })
    }

    /// Where the generator says what is wrong with it.
    pub(super) fn load_log(&self) -> PathBuf {
        self.directory.path().join("load.log")
    }

    /// Returns the version of every peer.
    pub(super) fn versions(&self) -> Result<BTreeMap<String, String>> {
        let with_one = self.places.iter().filter(|(_, t)| t.mode == Mode::Both);
        with_one
            .map(|(peer, _)| Ok((peer.name().to_owned(), peer.version()?)))
            .collect()
    }

    /// Returns the configurations of every peer, by file name.
    pub(super) fn configurations(&self) -> Result<BTreeMap<String, String>> {
        let mut all = BTreeMap::new();
        for (peer, topology) in &self.places {
            for sidecar in peer.sidecars(topology)? {
                let named = sidecar.files.into_iter();
                all.extend(named.map(|(file, text)| (format!("{}/{file}", peer.name()), text)));
            }
        }
        for (scenario, peer, topology) in &self.opaque {
            let peer = &self.places[*peer].0;
            for sidecar in peer.sidecars(topology)? {
                let place = format!("{}/{scenario}", peer.name());
                let named = sidecar.files.into_iter();
                all.extend(named.map(|(file, text)| (format!("{place}/{file}"), text)));
            }
        }
        Ok(all)
    }
}

/// Lets this process, and what it starts, open as many files as it may: how many.
pub(super) fn raise_files() -> u64 {
    let now = getrlimit(Resource::Nofile);
    let most = now.maximum.map_or(FILES, |most| most.max(FILES));
    let set = |most: u64| {
        let limit = Rlimit {
            current: Some(most.min(FILES)),
            maximum: Some(most),
        };
        setrlimit(Resource::Nofile, limit).is_ok()
    };
    // Only root may go beyond the hard limit, and not everywhere.
    let _ = set(most) || now.maximum.is_some_and(set);
    getrlimit(Resource::Nofile).current.unwrap_or(FILES)
}

/// So many in a row that nobody listens on; another run beside this one looks elsewhere first.
fn free_ports(count: u16) -> Result<u16> {
    let block = usize::from(count.max(1));
    let blocks = PORTS.len() / block;
    let first = std::process::id() as usize % blocks.max(1);
    let free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    (0..blocks)
        .map(|n| (first + n) % blocks * block)
        .filter_map(|offset| PORTS.start.checked_add(u16::try_from(offset).ok()?))
        .find(|base| (*base..base + count).all(free))
        .ok_or_else(|| Failure::failed(format!("no {count} free ports in a row on 127.0.0.1")))
}

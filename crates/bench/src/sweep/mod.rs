//! Study 2, `tulle bench sweep`: Fortio client → Fortio server with and without sidecars, as
//! Istio's own benchmark measures: 1 KB echo, a fixed rate and the highest one, 2 to 64
//! connections, modes baseline, clientsidecar, serversidecar and both.
//!
//! Files in the order of a measurement: `plan` (what is measured), `measure` (one scenario for one
//! peer, once) or `cluster` (the same between pods), `csv` (Istio's columns).

mod cluster;
mod csv;
mod measure;
mod plan;

use crate::args::Common;
use crate::cpus;
use crate::failure::{Failure, FailureKind, Result};
use crate::fortio::{Fortio, Rate, rate};
use crate::interrupt::Interrupt;
use crate::janitor::TemporaryDirectory;
use crate::kubernetes;
use crate::peer::{self, Mode, Ports, Topology};
use crate::report::{Recorder, Study};
use crate::run::{self, Cell};
use crate::tools;
use clap::Args;
use measure::Bench;
use std::cell::RefCell;
use std::collections::BTreeMap;
use tulle_model::resource::Protocol;

/// `tulle bench sweep`
#[derive(Debug, Clone, Args, serde::Serialize)]
pub struct Options {
    /// Options of every study
    #[command(flatten)]
    #[serde(flatten)]
    pub common: Common,
    /// Peers to compare with Tulle, such as envoy,envoy-wasmless-h2,nginx,haproxy,haproxy-tcp; the baseline
    /// needs no peer
    #[arg(long, value_name = "PEERS", default_value = "envoy")]
    pub vs: String,
    /// Protocol between client and server
    #[arg(long, value_name = "PROTOCOL", default_value = "http", value_parser = plan::protocol)]
    pub protocol: Protocol,
    /// Modes to measure: baseline, clientsidecar, serversidecar, both [default: all; --quick:
    /// baseline,both]
    #[arg(long, value_name = "MODES", value_delimiter = ',', value_parser = plan::mode)]
    pub modes: Option<Vec<Mode>>,
    /// Numbers of connections [default: 2,4,8,16,32,64; --quick: 2,64]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    pub connections: Option<Vec<u32>>,
    /// Requests per second, or max
    #[arg(long, value_name = "RATES", value_delimiter = ',', default_value = "1000,max", value_parser = rate)]
    pub qps: Vec<Rate>,
    /// Options of a measurement in a cluster
    #[command(flatten)]
    #[serde(flatten)]
    pub cluster: kubernetes::ClusterOptions,
    /// CPU of the sidecars [default: 0]
    #[arg(long, value_name = "CPU")]
    pub sidecar_cpu: Option<usize>,
    /// CPU of Fortio's client and server [default: 1]
    #[arg(long, value_name = "CPU")]
    pub load_cpu: Option<usize>,
}

/// Runs the study.
///
/// # Errors
/// As [`crate::run`].
pub fn run(options: &Options) -> Result<()> {
    if options.cluster.kubernetes {
        return cluster::run(options);
    }
    let fortio = Fortio::new(tools::fortio()?);
    let peers = peer::parse(&format!("none,{}", options.vs), &options.common)?;
    let interrupt = Interrupt::catch()?;
    let scenes = plan::scenes(options);
    let load = plan::load(options);
    let (sidecar_cpu, load_cpu) = cpus::chosen(options.sidecar_cpu, options.load_cpu);
    cpus::check(sidecar_cpu, load_cpu)?;
    let directory = TemporaryDirectory::new("sweep")?;
    let ports = Ports::free()?;

    let mut versions = BTreeMap::from([("fortio".to_owned(), fortio.version()?)]);
    let mut notes = plan::notes(options, &load, sidecar_cpu, load_cpu);
    let mut configurations = BTreeMap::new();
    let mut topologies = BTreeMap::new();
    for peer in &peers {
        let name = peer.name();
        versions.insert(name.to_owned(), peer.version()?);
        notes.extend(peer.notes());
        for mode in plan::modes(options) {
            let path = directory.path().join(format!("{name}-{}", mode.name()));
            let topology = Topology::new(&path, mode, options.protocol, ports)?;
            for sidecar in peer.sidecars(&topology)? {
                let files = sidecar.files.into_iter();
                configurations
                    .extend(files.map(|(file, text)| (format!("{}/{file}", mode.name()), text)));
            }
            topologies.insert((name, mode.name()), topology);
        }
    }
    let server = fortio.serve(options.protocol, ports.app, &[load_cpu], directory.path())?;
    let study = Study {
        name: "sweep",
        options: serde_json::to_value(options)
            .map_err(|e| Failure::new(FailureKind::Usage, format!("the options: {e}")))?,
        versions,
        notes,
        configurations,
        scenarios: scenes.iter().map(|s| s.scenario(options)).collect(),
    };
    let mut recorder = Recorder::new(study, options.common.out.as_deref())?;
    let bench = Bench {
        fortio: &fortio,
        server: RefCell::new(server),
        interrupt: &interrupt,
        load,
        sidecar_cpus: vec![sidecar_cpu],
        load_cpus: vec![load_cpu],
        rows: RefCell::default(),
    };
    let mut cells = Vec::new();
    for scene in &scenes {
        let of_mode = |name: &str| (name == "none") == (scene.mode == Mode::Baseline);
        for peer in peers.iter().filter(|peer| of_mode(peer.name())) {
            let Some(topology) = topologies.get(&(peer.name(), scene.mode.name())) else {
                continue;
            };
            let bench = &bench;
            cells.push(Cell {
                name: format!("{} {}", scene.name(), peer.name()),
                group: scene.name(),
                estimate: bench.load.estimate(),
                measure: Box::new(move |repeat| {
                    let sample = bench.measure(scene, peer.as_ref(), topology, repeat)?;
                    Ok(vec![sample])
                }),
            });
        }
    }
    let repeats = options.common.repeats();
    let outcome = run::interleaved(&mut cells, repeats, &interrupt, &mut recorder);
    drop(cells);
    recorder.attach("sweep.csv", &csv::text(&bench.rows.borrow()))?;
    let (results, _) = recorder.conclude(outcome)?;
    if results.samples.iter().all(|s| s.invalid.is_some()) {
        return Err(Failure::failed(
            "no sample is valid: the reason of each is above",
        ));
    }
    Ok(())
}

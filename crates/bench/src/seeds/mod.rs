//! The study `seeds`: two paths through bookinfo, with the sidecars limited to a share of a core.
//!
//! A round is one mesh: no sidecars, or the sidecars of one data plane with one limit. Both paths
//! are measured in it. Rounds of a repeat follow each other, another one first each time, and only
//! one mesh is up at a time. The meshes are started by `tulle up`, as anybody would start them.
//!
//! Files in the order of a measurement: `tools` (programs), `app` (manifests), `mesh` (up, down),
//! `load` with `oha` and `jmeter`, `watch` (CPU and memory), `limit` (quotas), `proof`, `envoy` (its
//! own proof), `sample`; or `cluster`, the same between pods, with `pods` (applications), `way_in` (the Ingress) and `pod_load`.

mod app;
mod cluster;
mod envoy;
mod jmeter;
mod limit;
mod load;
mod mesh;
mod oha;
mod plane;
mod pod_load;
mod pods;
mod proof;
mod round;
mod sample;
mod tools;
mod watch;
mod way_in;

use crate::args::Common;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::kubernetes;
use crate::report::{Recorder, Study};
use crate::results::Scenario;
use crate::run::{self, Cell};
use clap::{Args, ValueEnum};
use round::{Lab, Round};
pub use way_in::{IngressOptions, MeshIngress};

/// `tulle bench seeds`
#[derive(Debug, Clone, Args, serde::Serialize)]
pub struct Options {
    /// Options of every study
    #[command(flatten)]
    #[serde(flatten)]
    pub common: Common,
    /// Implementation of bookinfo: the small services, or Spring Boot and Spring Cloud Gateway
    #[arg(long, value_enum, default_value = "native")]
    pub app: App,
    /// Program that sends the requests. In a cluster Fortio takes the place of oha
    #[arg(long, value_enum, default_value = "oha")]
    pub load: Tool,
    /// Shares of a core to limit sidecars to [default: 0.5,0.25, or 2,1 from 8 CPUs on]
    #[arg(long, value_name = "CORES", value_delimiter = ',', value_parser = share)]
    pub cpu: Vec<f64>,
    /// Connections of clients, each with one request at a time
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub connections: u32,
    /// Options of a measurement in a cluster
    #[command(flatten)]
    #[serde(flatten)]
    pub cluster: kubernetes::ClusterOptions,
    /// The way in
    #[command(flatten)]
    #[serde(flatten)]
    pub ways: IngressOptions,
    /// Image of Java with the Spring applications, JMeter and Fortio, for a cluster with `--app spring` or `--load jmeter`
    #[arg(
        long,
        value_name = "IMAGE",
        requires = "kubernetes",
        default_value = concat!("localhost/bench-java:", env!("CARGO_PKG_VERSION"))
    )]
    pub java_image: String,
    /// Peers to compare with Tulle; `none` is no sidecar at all
    #[arg(
        long,
        value_name = "PEERS",
        value_enum,
        value_delimiter = ',',
        default_value = "none,envoy"
    )]
    pub vs: Vec<Peer>,
}

/// The application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum App {
    /// demo/bookinfo
    Native,
    /// demo/bookinfo-spring
    Spring,
}

/// The load generator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tool {
    /// oha, from the Rust registry
    Oha,
    /// Apache JMeter, from Maven Central
    Jmeter,
}

/// A mesh that Tulle is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Peer {
    /// No sidecars.
    None,
    /// The same mesh with Envoy sidecars.
    Envoy,
}

/// The published id of a rating that both applications have; part of every right answer.
const SEEDED: &str = "2099a055-1e21-46ef-825e-9e0de93554ea";

/// A way through bookinfo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Path {
    /// ingress → gateway → ratings.
    GatewayRatings,
    /// ingress → ratings.
    Ratings,
}

impl Path {
    /// Both paths, in the order of the report.
    const ALL: [Self; 2] = [Self::GatewayRatings, Self::Ratings];

    /// Returns the name in the published study.
    fn name(self) -> &'static str {
        match self {
            Self::GatewayRatings => "gateway-ratings",
            Self::Ratings => "ratings",
        }
    }

    /// The published one.
    fn url_path(self) -> &'static str {
        match self {
            Self::GatewayRatings => {
                "/bookinfo-ratings/ratings/2099a055-1e21-46ef-825e-9e0de93554ea"
            }
            Self::Ratings => "/ratings/2099a055-1e21-46ef-825e-9e0de93554ea",
        }
    }

    /// Name and port of the service that clients call.
    fn entry(self) -> (&'static str, u16) {
        match self {
            Self::GatewayRatings => pods::GATEWAY,
            Self::Ratings => pods::RATINGS,
        }
    }

    /// Returns the path's hops as pairs of caller and called.
    fn hops(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::GatewayRatings => &[("ingress", "gateway"), ("gateway", "ratings")],
            Self::Ratings => &[("ingress", "ratings")],
        }
    }
}

impl Options {
    fn shares(&self) -> Vec<f64> {
        if !self.cpu.is_empty() {
            return self.cpu.clone();
        }
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        if cpus < 8 {
            vec![0.5, 0.25]
        } else {
            vec![2.0, 1.0]
        }
    }

    fn repeats(&self) -> u32 {
        let quick = match self.app {
            App::Native => 5,
            App::Spring => 1,
        };
        let otherwise = if self.common.quick { quick } else { 5 };
        self.common.repeats.unwrap_or(otherwise)
    }

    /// Returns the seconds of load before the measurement. JMeter's and the published value is 120.
    fn warmup(&self) -> u64 {
        let otherwise = match (self.common.quick, self.load, self.app) {
            (true, _, App::Native) => 1,
            (true, _, App::Spring) => 10,
            (false, Tool::Jmeter, _) => 120,
            (false, _, App::Native) => 5,
            (false, _, App::Spring) => 60,
        };
        self.common.warmup.unwrap_or(otherwise)
    }

    /// Returns the seconds of the measurement. JMeter's and the published value is 300.
    fn seconds(&self) -> u64 {
        let otherwise = match (self.common.quick, self.load, self.app) {
            (true, Tool::Oha, App::Native) => 1,
            (true, ..) => 10,
            (false, Tool::Jmeter, _) => 300,
            (false, ..) => 30,
        };
        self.common.seconds.unwrap_or(otherwise)
    }

    fn generator(&self) -> String {
        match (self.cluster.kubernetes, self.load) {
            (true, Tool::Oha) => "fortio".to_owned(),
            _ => name(self.load),
        }
    }

    fn scenarios(&self) -> Vec<Scenario> {
        let of_share = |share: f64| Path::ALL.map(|path| self.scenario(path, share));
        self.shares().into_iter().flat_map(of_share).collect()
    }

    fn scenario(&self, path: Path, share: f64) -> Scenario {
        let way: Vec<&str> = path.hops().iter().map(|hop| hop.1).collect();
        let way_in = match (self.cluster.kubernetes, self.ways.ingress) {
            (true, false) => "the Services, by the client's sidecar",
            (true, true) => "a Kubernetes Ingress",
            (false, _) => "Tulle's ingress",
        };
        let labels = [
            ("way_in", way_in.to_owned()),
            ("app", name(self.app)),
            ("load", self.generator()),
            ("path", path.name().to_owned()),
            ("cpu", share.to_string()),
            ("connections", self.connections.to_string()),
        ];
        Scenario {
            name: scenario_name(path, share),
            title: format!(
                "ingress → {}, each sidecar limited to {share} of a core",
                way.join(" → ")
            ),
            labels: labels.map(|(k, v)| (k.to_owned(), v)).into(),
        }
    }
}

/// Returns a value's name on the command line.
fn name(value: impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |v| v.get_name().to_owned())
}

/// A share of a core, on the command line.
fn share(text: &str) -> std::result::Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.05..=64.0).contains(&share) => Ok(share),
        _ => Err("expected cores from 0.05 to 64, such as 0.5".into()),
    }
}

fn scenario_name(path: Path, share: f64) -> String {
    format!("{}@{share}", path.name())
}

/// Runs the study.
///
/// # Errors
/// As [`crate::run`].
pub fn run(options: &Options) -> Result<()> {
    if options.cluster.kubernetes {
        return cluster::run(options);
    }
    let interrupt = Interrupt::catch()?;
    let lab = Lab::prepare(options, &interrupt)?;
    let study = Study {
        name: "seeds",
        options: serde_json::to_value(options).unwrap_or_default(),
        versions: lab.versions()?,
        notes: notes(options),
        configurations: lab.configurations(),
        scenarios: options.scenarios(),
    };
    let mut recorder = Recorder::new(study, options.common.out.as_deref())?;
    let mut cells: Vec<Cell<'_>> = rounds(options)
        .into_iter()
        .map(|round| cell(&lab, round, &interrupt))
        .collect();
    let done = run::interleaved(&mut cells, options.repeats(), &interrupt, &mut recorder);
    let (results, _) = recorder.conclude(done)?;
    if results.samples.iter().all(|s| s.invalid.is_some()) {
        return Err(Failure::failed(
            "no sample is valid: the reason of each is above",
        ));
    }
    Ok(())
}

/// Tulle and Envoy with each share, and no sidecars once: there is nothing to limit.
fn rounds(options: &Options) -> Vec<Round> {
    let limited = |plane: plane::Plane| {
        let shares = options.shares().into_iter();
        shares.map(move |share| Round {
            plane,
            shares: vec![share],
        })
    };
    let mut rounds: Vec<Round> = limited(plane::Plane::Tulle).collect();
    if options.vs.contains(&Peer::Envoy) {
        rounds.extend(limited(plane::Plane::Envoy));
    }
    if options.vs.contains(&Peer::None) {
        rounds.push(Round {
            plane: plane::Plane::None,
            shares: options.shares(),
        });
    }
    rounds
}

fn cell<'a>(lab: &'a Lab, round: Round, interrupt: &'a Interrupt) -> Cell<'a> {
    Cell {
        name: round.name(),
        group: "seeds".into(),
        estimate: lab.estimate(),
        measure: Box::new(move |repeat| round.measure(lab, repeat, interrupt)),
    }
}

fn too_short_a_warmup(options: &Options) -> String {
    format!(
        "{} s are too short a warm-up for Java: the applications were still compiling themselves, and their latencies say little. Runs of the published length warm up for 120 s.",
        options.warmup()
    )
}

fn notes(options: &Options) -> Vec<String> {
    let mut notes = vec![
        "The mesh is as published: permissive mode and mutual TLS on, all else default, access logs off. The clients speak plaintext to the ingress.".to_owned(),
        "The ingress is Tulle's in every round, also without sidecars and with Envoy's, and not limited: it is the door, not what is measured. Without sidecars it speaks plaintext to the applications.".to_owned(),
        "Sidecars are limited by control groups (CPU quota, 100 ms periods). Nothing is pinned: load generator, applications, ingress and sidecars share the machine's CPUs, and the quota alone holds the sidecars down. The quota is for the sidecar's whole group: with Envoy also for the agent that brings it its configuration.".to_owned(),
        "Every proxy, the ingress too, has as many worker threads in every round: what the largest share needs.".to_owned(),
        "cpu_us_per_request counts both sidecars, the API gateway's and that of ratings, not the ingress. On the path gateway-ratings a transaction is three proxied requests in them: into the gateway, out of it, into ratings. The gateway_… and ratings_… figures are of one sidecar, the app_… figures of the applications.".to_owned(),
        "Envoy's figures are of the `envoy` process; its agent is apart (agents_cpu_us_per_request).".to_owned(),
        "Idle memory is read before any load, as soon as the mesh is up. Tulle's sidecars give back what only their start needed some seconds later: `bench pair` reads it then.".to_owned(),
        "Which path is measured first in a round changes every repeat; every round starts the applications anew.".to_owned(),
        "The round without sidecars is measured once in a repeat and stands in the table of every limit.".to_owned(),
        "Each sample that counts has lost no request, its sidecars had their quota, and every answered request is known to the sidecars as mutual TLS between the identities of its hops.".to_owned(),
    ];
    if options.app == App::Spring && options.warmup() < 60 {
        notes.push(too_short_a_warmup(options));
    }
    notes.push(match options.load {
        Tool::Oha => "oha does not look at bodies; their lengths, added up, must be those of the right answer. It opens its connections anew after the warm-up: opening them is in the measurement. It waits for the answers that are outstanding at the end.",
        Tool::Jmeter => "JMeter looks for the rating's id in each answer. Its warm-up and measurement are one run; a sample counts when it ends within the measurement. Its latencies are whole milliseconds.",
    }.to_owned());
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(words: &[&str]) -> Options {
        crate::args::parse(words)
    }

    #[test]
    fn five_rounds_as_published_and_a_scenario_for_each_path_and_share() {
        let options = options(&["--cpu", "0.5,0.25"]);
        let names: Vec<String> = rounds(&options).iter().map(Round::name).collect();
        assert_eq!(
            names,
            ["tulle@0.5", "tulle@0.25", "envoy@0.5", "envoy@0.25", "none"]
        );
        let scenarios = options.scenarios();
        let names: Vec<&str> = scenarios.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "gateway-ratings@0.5",
                "ratings@0.5",
                "gateway-ratings@0.25",
                "ratings@0.25"
            ]
        );
        assert_eq!(scenarios[0].labels["load"], "oha");
        assert_eq!(scenarios[0].labels["path"], "gateway-ratings");
    }

    #[test]
    fn published_times_with_jmeter() {
        let options = options(&["--load", "jmeter", "--app", "spring"]);
        assert_eq!((options.warmup(), options.seconds()), (120, 300));
        assert_eq!((options.connections, options.repeats()), (200, 5));
    }

    #[test]
    fn a_share_that_is_none_is_refused() {
        for text in ["0", "-1", "nan", "inf", "x", "0.5,x"] {
            assert!(
                crate::args::try_parse::<Options>(&[&format!("--cpu={text}")]).is_err(),
                "{text}"
            );
        }
    }
}

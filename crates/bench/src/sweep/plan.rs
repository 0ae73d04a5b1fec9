//! Plans the measurements: the options' scenarios, durations and CPUs.

use super::Options;
use crate::cpus;
use crate::fortio::{PAYLOAD, Rate};
use crate::peer::Mode;
use crate::results::Scenario;
use std::time::Duration;
use tulle_model::resource::Protocol;

/// The published duration of each measurement.
const PUBLISHED: Duration = Duration::from_secs(240);
/// Starting and ending sidecars and Fortio, for the time left.
const OVERHEAD: Duration = Duration::from_millis(450);

/// Parses a mode of the command line.
pub(super) fn mode(text: &str) -> Result<Mode, String> {
    let mut all = ALL_MODES.into_iter();
    all.find(|mode| mode.name() == text).ok_or_else(|| {
        let names = ALL_MODES.map(Mode::name).join(", ");
        format!("there are {names}")
    })
}

/// Parses a protocol of the command line.
pub(super) fn protocol(text: &str) -> Result<Protocol, String> {
    match text {
        "http" => Ok(Protocol::Http),
        "tcp" => Ok(Protocol::Tcp),
        "grpc" => Ok(Protocol::Grpc),
        _ => Err("http, tcp or grpc".into()),
    }
}

const ALL_MODES: [Mode; 4] = [
    Mode::Both,
    Mode::ClientSidecar,
    Mode::ServerSidecar,
    Mode::Baseline,
];

/// Modes to measure, each once.
pub(super) fn modes(options: &Options) -> Vec<Mode> {
    let quick = [Mode::Both, Mode::Baseline];
    let wanted = match &options.modes {
        Some(modes) => modes.as_slice(),
        None if options.common.quick => &quick,
        None => &ALL_MODES,
    };
    let wanted = |mode: &Mode| wanted.contains(mode);
    ALL_MODES.into_iter().filter(wanted).collect()
}

/// One scenario.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Scene {
    pub(super) mode: Mode,
    pub(super) rate: Rate,
    pub(super) connections: u32,
}

impl Scene {
    /// Returns the name in results.
    pub(super) fn name(&self) -> String {
        let Self {
            mode,
            rate,
            connections,
        } = self;
        format!("{}-qps{rate}-c{connections}", mode.name())
    }

    pub(super) fn scenario(&self, options: &Options) -> Scenario {
        let rate = match self.rate {
            Rate::Fixed(rate) => format!("{rate} requests/s"),
            Rate::Max => "as many requests as there can be".into(),
        };
        let labels = [
            ("mode", self.mode.name().to_owned()),
            ("qps", self.rate.to_string()),
            ("connections", self.connections.to_string()),
            ("protocol", protocol_name(options.protocol).to_owned()),
        ];
        Scenario {
            name: self.name(),
            title: format!(
                "{}: {rate}, {} connections",
                self.mode.name(),
                self.connections
            ),
            labels: labels.map(|(k, v)| (k.to_owned(), v)).into(),
        }
    }
}

fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Grpc => "grpc",
        Protocol::Tcp => "tcp",
        _ => "http",
    }
}

/// All scenarios; the headline first: most connections at the first rate, with both sidecars if
/// that is measured.
pub(super) fn scenes(options: &Options) -> Vec<Scene> {
    let counts: &[u32] = match &options.connections {
        Some(counts) => counts,
        None if options.common.quick => &[2, 64],
        None => &[2, 4, 8, 16, 32, 64],
    };
    let mut scenes = Vec::new();
    for mode in modes(options) {
        for rate in &options.qps {
            for connections in counts {
                let scene = Scene {
                    mode,
                    rate: *rate,
                    connections: *connections,
                };
                if !scenes.contains(&scene) {
                    scenes.push(scene);
                }
            }
        }
    }
    let same = |scene: &Scene| scene.mode == scenes[0].mode && scene.rate == scenes[0].rate;
    let count = scenes.iter().take_while(|scene| same(scene)).count();
    let most = (0..count).max_by_key(|index| scenes[*index].connections);
    if let Some(most) = most {
        scenes[..=most].rotate_right(1);
    }
    scenes
}

/// How long each measurement loads.
pub(super) struct Load {
    pub(super) warmup: Duration,
    pub(super) time: Duration,
}

impl Load {
    /// Estimates the time of a measurement with everything around it.
    pub(super) fn estimate(&self) -> Duration {
        self.warmup + self.time + OVERHEAD
    }
}

pub(super) fn load(options: &Options) -> Load {
    let common = &options.common;
    let (warmup, time) = if common.quick {
        (Duration::from_millis(250), Duration::from_millis(1000))
    } else {
        (Duration::from_secs(5), PUBLISHED)
    };
    Load {
        warmup: common.warmup.map_or(warmup, Duration::from_secs),
        time: common.seconds.map_or(time, Duration::from_secs),
    }
}

/// Says what is sent.
pub(super) fn payload(protocol: Protocol) -> String {
    match protocol {
        Protocol::Tcp => format!("{PAYLOAD} bytes that the server sends back over TCP"),
        Protocol::Grpc => format!("gRPC pings of {PAYLOAD} bytes"),
        _ => format!("HTTP/1.1, answers of {PAYLOAD} bytes, keep-alive"),
    }
}

/// Notes that readers need about all peers.
pub(super) fn notes(
    options: &Options,
    load: &Load,
    sidecar_cpu: usize,
    load_cpu: usize,
) -> Vec<String> {
    let mut what = payload(options.protocol);
    if options.protocol == Protocol::Grpc {
        what.push_str(", which every peer but HAProxy carries as bytes");
    }
    let mut notes = vec![
        format!(
            "Fortio's client and server on CPU {load_cpu}, both sidecars on CPU {sidecar_cpu}; {what}; {:?} of load after {:?} of warm-up, jitter on; the sidecars are started anew for each measurement.",
            load.time, load.warmup
        ),
        "Percentiles are Fortio's, interpolated within buckets of at least 10 µs. It counts latency from the moment it sends, not from the one it should have sent at: at a fixed rate, a stall hides the requests that it held back.".to_owned(),
        "baseline has no sidecars; clientsidecar and serversidecar have one, which speaks plaintext to the other side; both have mutual TLS between them.".to_owned(),
        "CPU and memory are averages over the measurement, in thousandths of a core and MiB.".to_owned(),
    ];
    notes.extend(cpus::note(sidecar_cpu, load_cpu));
    if load.time < PUBLISHED {
        notes.push(format!(
            "{:?} instead of {PUBLISHED:?} for each measurement: p99.9 at a low rate rests on one or two requests.",
            load.time
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fortio::rate;

    fn options(words: &[&str]) -> Options {
        crate::args::parse(words)
    }

    fn names(words: &[&str]) -> Vec<String> {
        scenes(&options(words)).iter().map(Scene::name).collect()
    }

    #[test]
    fn published_scenarios_are_the_default() {
        let names = names(&[]);
        assert_eq!(names.len(), 4 * 2 * 6);
        assert_eq!(names[0], "both-qps1000-c64");
        assert_eq!(names[1], "both-qps1000-c2");
        assert_eq!(names.last().unwrap(), "baseline-qpsmax-c64");
        let load = load(&options(&[]));
        assert_eq!(load.time, PUBLISHED);
    }

    #[test]
    fn quick_is_a_part_of_it_and_options_win() {
        let quick = names(&["--quick"]);
        assert_eq!(quick.len(), 2 * 2 * 2);
        let few = names(&[
            "--quick",
            "--qps",
            "50",
            "--modes",
            "baseline",
            "--connections",
            "3,3,1",
        ]);
        assert_eq!(few, ["baseline-qps50-c3", "baseline-qps50-c1"]);
        let load = load(&options(&["--quick", "--seconds", "7"]));
        assert_eq!(load.time, Duration::from_secs(7));
    }

    #[test]
    fn labels_say_what_a_name_says() {
        let options = options(&["--protocol", "tcp"]);
        let scenario = scenes(&options)[0].scenario(&options);
        let label = |key: &str| scenario.labels[key].as_str();
        assert_eq!(
            ["mode", "qps", "connections", "protocol"].map(label),
            ["both", "1000", "64", "tcp"]
        );
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(rate("0").is_err() && rate("-1").is_err() && rate("fast").is_err());
        assert!(mode("sidecar").unwrap_err().contains("clientsidecar"));
        assert!(protocol("udp").is_err());
    }
}

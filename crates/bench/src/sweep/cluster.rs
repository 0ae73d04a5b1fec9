//! The study in a cluster: Fortio's client and server in two pods.

use super::csv::{self, Average, Row};
use super::plan::{self, Scene};
use super::{Mode, Options};
use crate::failure::{Failure, FailureKind, Result};
use crate::fortio::PAYLOAD;
use crate::interrupt::Interrupt;
use crate::kubernetes::{
    self, App, Asked, Kubectl, Loaded, Mesh, Nodes, ReadyNamespace, SidecarUsage, StrangerRequest,
    Used,
};
use crate::report::{Recorder, Study};
use crate::results::Sample;
use crate::run::{self, Cell};
use serde_json::json;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;
use tulle_model::resource::Protocol;

/// Counts requests, or connections of bytes.
const REQUESTS: &str = "istio_requests_total";
const CONNECTIONS: &str = "istio_tcp_connections_opened_total";

/// State that every measurement needs.
struct Bench<'a> {
    options: &'a Options,
    load: plan::Load,
    interrupt: Interrupt,
    rows: RefCell<Vec<Row>>,
}

/// Runs the study.
///
/// # Errors
/// As [`crate::run`].
pub(super) fn run(options: &Options) -> Result<()> {
    let kubectl = Kubectl::new(&options.cluster.kubectl)?;
    let bench = Bench {
        options,
        load: plan::load(options),
        interrupt: Interrupt::catch()?,
        rows: RefCell::default(),
    };
    let nodes = Nodes::find(&kubectl)?;
    let mut places = Vec::new();
    for mode in plan::modes(options) {
        for mesh in meshes(options, mode)? {
            bench.interrupt.check()?;
            let place = place(options, &kubectl, &nodes, &mesh, mode)?;
            places.push((mode, mesh, place));
        }
    }
    let mut notes = kubernetes::notes();
    notes.push(kubernetes::FORTIO_NOTE.to_owned());
    notes.push(nodes.note());
    notes.push(format!(
        "{}; {:?} of load after {:?} of warm-up. baseline has no sidecars; clientsidecar and serversidecar have one, which speaks plaintext to the other side; both have mutual TLS between them.",
        plan::payload(options.protocol), bench.load.time, bench.load.warmup
    ));
    let scenes = plan::scenes(options);
    let study = Study {
        name: "sweep",
        options: serde_json::to_value(options)
            .map_err(|e| Failure::new(FailureKind::Usage, format!("the options: {e}")))?,
        versions: BTreeMap::from([("kubernetes".to_owned(), kubectl.version()?)]),
        notes,
        configurations: BTreeMap::new(),
        scenarios: scenes.iter().map(|s| s.scenario(options)).collect(),
    };
    let mut recorder = Recorder::new(study, options.common.out.as_deref())?;
    let mut cells = Vec::new();
    for scene in &scenes {
        for (_, mesh, place) in places.iter().filter(|(mode, ..)| *mode == scene.mode) {
            let bench = &bench;
            cells.push(Cell {
                name: format!("{} {}", scene.name(), mesh.name),
                group: scene.name(),
                estimate: bench.load.estimate() + Duration::from_secs(3),
                measure: Box::new(move |repeat| {
                    Ok(vec![bench.measure(scene, mesh, place, repeat)?])
                }),
            });
        }
    }
    let repeats = options.common.repeats();
    let outcome = run::interleaved(&mut cells, repeats, &bench.interrupt, &mut recorder);
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

/// Returns the meshes that have this mode. Other meshes put sidecars into whole namespaces.
fn meshes(options: &Options, mode: Mode) -> Result<Vec<Mesh>> {
    Ok(match mode {
        Mode::Baseline => vec![Mesh::none()],
        Mode::Both => options.cluster.meshes()?,
        Mode::ClientSidecar | Mode::ServerSidecar => vec![Mesh::tulle()],
    })
}

fn protocol(options: &Options) -> &'static str {
    match options.protocol {
        Protocol::Tcp => "tcp",
        Protocol::Grpc => "grpc",
        _ => "http",
    }
}

/// The request of a stranger to Fortio's server.
fn stranger_request(options: &Options) -> StrangerRequest {
    match options.protocol {
        Protocol::Grpc => StrangerRequest::GrpcPing,
        _ => StrangerRequest::Path("/echo"),
    }
}

fn place(
    options: &Options,
    kubectl: &Kubectl,
    nodes: &Nodes,
    mesh: &Mesh,
    mode: Mode,
) -> Result<ReadyNamespace> {
    let image = &options.cluster.fortio_image;
    let mut apps = vec![
        App::fortio(image, protocol(options), mode.has_server()).on(nodes.of_application(0)),
        App::client(image, mode.has_client()).on(nodes.of_load()),
    ];
    let mut objects = Vec::new();
    match mode {
        Mode::Both => apps.push(App::stranger(image).on(nodes.of_load())),
        // Lets the client in, which a server of the mesh would otherwise refuse.
        Mode::ServerSidecar => objects.push(json!({
            "apiVersion": "tulle.dev/v1alpha1", "kind": "IngressBackend",
            "metadata": { "name": "server" },
            "spec": {
                "backends": [{ "name": "server", "port": 8080 }],
                "sources": [{ "kind": "IPRange", "name": "0.0.0.0/0" }, { "kind": "IPRange", "name": "::/0" }],
            },
        })),
        Mode::Baseline | Mode::ClientSidecar => {}
    }
    let cell = format!("{}-{}", mode.name(), mesh.name);
    ReadyNamespace::make(kubectl, &cell, mesh, apps, &objects)
}

impl Bench<'_> {
    fn measure(
        &self,
        scene: &Scene,
        mesh: &Mesh,
        place: &ReadyNamespace,
        repeat: u32,
    ) -> Result<Sample> {
        let target = match self.options.protocol {
            Protocol::Tcp | Protocol::Grpc => "server:8080".to_owned(),
            _ => format!("server:8080/echo?size={PAYLOAD}"),
        };
        let asked = |time| Asked {
            protocol: self.options.protocol,
            target: target.clone(),
            rate: scene.rate,
            connections: scene.connections,
            time,
        };
        let mut sample = Sample {
            scenario: scene.name(),
            peer: mesh.name.clone(),
            repeat,
            ..Sample::default()
        };
        let proof = match scene.mode {
            Mode::Both => {
                let request = stranger_request(self.options);
                Some(place.proof("client", "server", self.counter(), request)?)
            }
            _ => None,
        };
        let mut warm = None;
        if !self.load.warmup.is_zero() {
            warm = place.load(&asked(self.load.warmup), &self.interrupt)?.ok();
        }
        let loaded = match place.load(&asked(self.load.time), &self.interrupt)? {
            Ok(loaded) => loaded,
            Err(why) => {
                sample.invalid = Some(why);
                return Ok(sample);
            }
        };
        self.figures(&mut sample, scene, &loaded);
        let evidence = match proof {
            Some(proof) => {
                let all = [Some(&loaded), warm.as_ref()].into_iter().flatten();
                place.prove(&proof, all.map(|loaded| self.counted(scene, loaded)).sum())
            }
            None => Ok(vec![format!(
                "{}: no mutual TLS to prove",
                scene.mode.name()
            )]),
        };
        match evidence {
            Ok(evidence) => sample.evidence = evidence,
            Err(why) => sample.invalid = Some(why),
        }
        if loaded.report.errors() > 0 {
            let codes = loaded.report.codes();
            sample
                .remarks
                .push(format!("Fortio's return codes: {codes}"));
        }
        sample.judge();
        if sample.invalid.is_none() {
            let average = |role: &str| {
                Some(Average {
                    cpu_milli: sample.figure(&format!("{role}_cpu_milli"))?,
                    rss_mib: sample.figure(&format!("{role}_rss_mib"))?,
                })
            };
            self.rows.borrow_mut().push(Row {
                peer: mesh.name.clone(),
                mode: scene.mode.name(),
                rate: scene.rate.to_string(),
                client: average("client"),
                server: average("server"),
                report: loaded.report,
            });
        }
        Ok(sample)
    }

    fn figures(&self, sample: &mut Sample, scene: &Scene, loaded: &Loaded) {
        loaded.report.tell(sample);
        let used = |role: &str| loaded.usage.used(role);
        tell_usage(sample, scene.mode, self.load.time, used);
    }

    fn counter(&self) -> &'static str {
        match self.options.protocol {
            Protocol::Tcp => CONNECTIONS,
            _ => REQUESTS,
        }
    }

    /// How many the counter must have counted.
    fn counted(&self, scene: &Scene, loaded: &Loaded) -> u64 {
        match self.options.protocol {
            Protocol::Tcp => u64::from(scene.connections),
            _ => loaded.report.answered(),
        }
    }
}

/// Each sidecar's usage, and that of all together if it is known of each. Each one without is remarked: a reader would
/// else take the reason of one for that of both.
fn tell_usage(
    sample: &mut Sample,
    mode: Mode,
    time: Duration,
    usage: impl Fn(&str) -> Option<Used>,
) {
    let sidecars = [("client", mode.has_client()), ("server", mode.has_server())];
    let (mut cores, mut peak) = (0.0, 0.0_f64);
    let mut all = mode != Mode::Baseline;
    for (role, _) in sidecars.into_iter().filter(|(_, has)| *has) {
        let Some(used) = usage(role) else {
            sample.remarks.push(format!(
                "no CPU and memory of the {role}'s sidecar: its kubelet looked less than twice in {time:?}; load for longer (--seconds)"
            ));
            all = false;
            continue;
        };
        let mut set = |name: &str, value: f64| {
            sample.figures.insert(format!("{role}_{name}"), value);
        };
        set("cpu_milli", used.cores * 1e3);
        set("rss_mib", used.mib);
        cores += used.cores;
        peak = peak.max(used.peak_mib);
        sample.series.push(used.series);
    }
    if all {
        SidecarUsage::sidecars(sample, cores, peak);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Series, figure};

    #[test]
    fn each_sidecar_without_figures_is_remarked_and_the_other_has_its_own() {
        let told = |known: &[&str]| {
            let mut sample = Sample::default();
            tell_usage(&mut sample, Mode::Both, Duration::from_secs(16), |role| {
                known.contains(&role).then(|| Used {
                    cores: 0.5,
                    mib: 4.0,
                    peak_mib: 5.0,
                    series: Series::default(),
                })
            });
            sample
        };
        let missing = |role: &str| {
            format!(
                "no CPU and memory of the {role}'s sidecar: its kubelet looked less than twice in 16s; load for longer (--seconds)"
            )
        };
        assert_eq!(told(&[]).remarks, ["client", "server"].map(missing));
        let server = told(&["server"]);
        assert_eq!(server.remarks, [missing("client")]);
        assert_eq!(server.figure("server_cpu_milli"), Some(500.0));
        assert_eq!(server.figure(figure::SIDECAR_CORES), None);
        let both = told(&["client", "server"]);
        assert!(both.remarks.is_empty());
        assert_eq!(both.figure(figure::SIDECAR_CORES), Some(1.0));
    }
}

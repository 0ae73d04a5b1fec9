//! The study in a cluster: bookinfo's gateway and ratings in pods, and a client whose own sidecar, which
//! nothing limits, takes the place of the ingress.

use super::{App as Application, Options, Path, scenario_name};
use crate::failure::{Failure, FailureKind, Result};
use crate::fortio::Rate;
use crate::interrupt::Interrupt;
use crate::kubernetes::{self, App, Asked, Kubectl, Loaded, Mesh, Nodes, ReadyNamespace};
use crate::report::{Recorder, Study};
use crate::results::{Sample, figure};
use crate::run::{self, Cell};
use std::collections::BTreeMap;
use std::time::Duration;
use tulle_model::resource::Protocol;

const COUNTER: &str = "istio_requests_total";
/// Applications whose sidecars are limited.
const LIMITED: [(&str, u16); 2] = [("gateway", 10000), ("ratings", 8101)];

/// One mesh, with one limit.
struct Round {
    mesh: Mesh,
    /// Shares of a core for each sidecar; without sidecars, the shares in whose tables this round appears.
    shares: Vec<f64>,
    place: ReadyNamespace,
}

/// Runs the study.
///
/// # Errors
/// As [`crate::run`].
pub(super) fn run(options: &Options) -> Result<()> {
    if options.app != Application::Native {
        let text = "--app: in a cluster there is only the application `native`";
        return Err(Failure::new(FailureKind::Usage, text));
    }
    let kubectl = Kubectl::new(&options.cluster.kubectl)?;
    let interrupt = Interrupt::catch()?;
    let nodes = Nodes::find(&kubectl)?;
    let rounds = rounds(options, &kubectl, &nodes, &interrupt)?;
    let mut notes = kubernetes::notes();
    notes.push(nodes.note());
    notes.push("The client has a sidecar of its own where there is a mesh, which nothing limits; it takes the place of the published study's ingress and is not counted. CPU for a request is that of the sidecars of gateway and ratings.".to_owned());
    notes.push("The load is Fortio's, as fast as it is answered. Each round is a namespace; the one without sidecars stands in the table of every limit.".to_owned());
    let study = Study {
        name: "seeds",
        options: serde_json::to_value(options).unwrap_or_default(),
        versions: BTreeMap::from([("kubernetes".to_owned(), kubectl.version()?)]),
        notes,
        configurations: BTreeMap::new(),
        scenarios: options.scenarios(),
    };
    let mut recorder = Recorder::new(study, options.common.out.as_deref())?;
    let each = Duration::from_secs(options.warmup() + options.seconds() + 3);
    let cell = |round| Cell {
        name: name(round),
        group: "seeds".into(),
        estimate: 2 * each,
        measure: Box::new(|repeat| measure(options, round, repeat, &interrupt)),
    };
    let mut cells: Vec<Cell<'_>> = rounds.iter().map(cell).collect();
    let done = run::interleaved(&mut cells, options.repeats(), &interrupt, &mut recorder);
    let (results, _) = recorder.conclude(done)?;
    if results.samples.iter().all(|s| s.invalid.is_some()) {
        return Err(Failure::failed(
            "no sample is valid: the reason of each is above",
        ));
    }
    Ok(())
}

fn name(round: &Round) -> String {
    match (round.mesh.label.is_some(), round.shares.first()) {
        (true, Some(share)) => format!("{}@{share}", round.mesh.name),
        _ => round.mesh.name.clone(),
    }
}

/// Each mesh with each share, and no sidecars once.
fn rounds(
    options: &Options,
    kubectl: &Kubectl,
    nodes: &Nodes,
    interrupt: &Interrupt,
) -> Result<Vec<Round>> {
    let mut rounds = Vec::new();
    let none = (Mesh::none(), options.shares());
    let meshes = options.cluster.meshes()?.into_iter();
    let limited = meshes.flat_map(|mesh| {
        let shares = options.shares().into_iter();
        shares.map(move |share| (mesh.clone(), vec![share]))
    });
    for (mesh, shares) in limited.chain([none]) {
        interrupt.check()?;
        let share = mesh
            .label
            .is_some()
            .then(|| shares.first().copied())
            .flatten();
        let cell = match share {
            Some(share) => format!("{}-{}m", mesh.name, share * 1000.0),
            None => mesh.name.clone(),
        };
        let apps = apps(options, nodes, mesh.label.is_some(), share);
        let place = ReadyNamespace::make(kubectl, &cell, &mesh, apps, &[])?;
        rounds.push(Round {
            mesh,
            shares,
            place,
        });
    }
    Ok(rounds)
}

fn apps(options: &Options, nodes: &Nodes, sidecar: bool, share: Option<f64>) -> Vec<App> {
    let fortio = &options.cluster.fortio_image;
    let limited = LIMITED
        .iter()
        .enumerate()
        .map(|(number, (name, port))| App {
            name,
            image: options.cluster.bookinfo_image.clone(),
            args: vec![
                (*name).to_owned(),
                "--bind".to_owned(),
                "0.0.0.0".to_owned(),
            ],
            env: vec![("RATINGS_URL".to_owned(), "http://ratings:8101".to_owned())],
            port: Some((*port, "http")),
            sidecar,
            share,
            node: nodes.of_application(number),
        });
    let mut apps: Vec<_> = limited.collect();
    apps.push(App::client(fortio, sidecar).on(nodes.of_load()));
    if sidecar {
        apps.push(App::stranger(fortio).on(nodes.of_load()));
    }
    apps
}

/// Both paths, another one first each time.
fn measure(
    options: &Options,
    round: &Round,
    repeat: u32,
    interrupt: &Interrupt,
) -> Result<Vec<Sample>> {
    let mut paths = Path::ALL;
    let turn = repeat as usize % paths.len();
    paths.rotate_left(turn);
    let mut samples = Vec::new();
    for path in paths {
        let sample = of_path(options, round, path, interrupt)?;
        samples.extend(round.shares.iter().map(|share| Sample {
            scenario: scenario_name(path, *share),
            peer: round.mesh.name.clone(),
            repeat,
            ..sample.clone()
        }));
    }
    Ok(samples)
}

fn of_path(options: &Options, round: &Round, path: Path, interrupt: &Interrupt) -> Result<Sample> {
    let (host, port) = match path {
        Path::GatewayRatings => LIMITED[0],
        Path::Ratings => LIMITED[1],
    };
    let asked = |seconds| Asked {
        protocol: Protocol::Http,
        target: format!("{host}:{port}{}", path.url_path()),
        rate: Rate::Max,
        connections: options.connections,
        time: Duration::from_secs(seconds),
    };
    // The client takes the ingress's place as a caller.
    let caller = |name| if name == "ingress" { "client" } else { name };
    let hops = path.hops().iter().map(|(from, to)| (caller(from), *to));
    let mut proofs = Vec::new();
    if round.mesh.label.is_some() {
        for (from, to) in hops {
            let asked = match to {
                "gateway" => Path::GatewayRatings,
                _ => Path::Ratings,
            };
            proofs.push(round.place.proof(from, to, COUNTER, asked.url_path())?);
        }
    }
    let warm = match options.warmup() {
        0 => None,
        seconds => round.place.load(&asked(seconds), interrupt)?.ok(),
    };
    let loaded = match round.place.load(&asked(options.seconds()), interrupt)? {
        Ok(loaded) => loaded,
        Err(why) => return Ok(Sample::invalid(why)),
    };
    let mut sample = Sample::default();
    loaded.report.tell(&mut sample);
    if proofs.is_empty() {
        sample.evidence = vec!["no mutual TLS: there are no sidecars".to_owned()];
        return Ok(sample);
    }
    let used = sidecars(&mut sample, &loaded, path);
    if !used {
        sample.remarks.push(format!(
            "no CPU and memory of a sidecar: its kubelet looked less than twice in {} s; load for longer (--seconds)",
            options.seconds()
        ));
    }
    let answered = loaded.report.answered() + warm.map_or(0, |warm| warm.report.answered());
    for proof in &proofs {
        match round.place.prove(proof, answered) {
            Ok(evidence) => sample.evidence.extend(evidence),
            Err(why) => sample.invalid = Some(why),
        }
    }
    if loaded.report.errors() > 0 {
        let codes = loaded.report.codes();
        sample
            .remarks
            .push(format!("Fortio's return codes: {codes}"));
    }
    Ok(sample)
}

/// CPU and memory of the sidecars on a path; whether they are known.
fn sidecars(sample: &mut Sample, loaded: &Loaded, path: Path) -> bool {
    let (mut cores, mut peak) = (0.0, 0.0_f64);
    for (place, (_, app)) in path.hops().iter().enumerate() {
        let Some(used) = loaded.used(app) else {
            return false;
        };
        let mut set = |name: String, value: f64| {
            sample.figures.insert(name, value);
        };
        let each = used.cores * 1e6 / loaded.report.actual_qps.max(f64::MIN_POSITIVE);
        set(format!("{app}_cpu_us_per_request"), each);
        set(format!("{app}_cpu_cores"), used.cores);
        set(format!("{app}_rss_peak_mib"), used.peak_mib);
        // The one that the published table shows: before the service that clients call.
        if place == 0 {
            set("sidecar_cpu_percent".to_owned(), used.cores * 100.0);
            set("sidecar_mib".to_owned(), used.peak_mib);
        }
        cores += used.cores;
        peak = peak.max(used.peak_mib);
        sample.series.push(used.series);
    }
    loaded.sidecars(sample, cores, peak);
    sample.figure(figure::SIDECAR_CORES).is_some()
}

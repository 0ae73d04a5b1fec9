//! The study in a cluster: bookinfo's gateway and ratings in pods, and a client, which calls an Ingress, or by its own
//! sidecar, which nothing limits, the Services.

use super::way_in::{ReadyClass, WayIn};
use super::{
    App as Application, Options, Path, Tool, pod_load, pods, sample, scenario_name, tools,
};
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::kubernetes::{
    self, Kubectl, Mesh, Nodes, ReadyNamespace, SidecarUsage, StrangerRequest,
};
use crate::report::{Recorder, Study};
use crate::results::{Sample, figure};
use crate::run::{self, Cell};
use std::collections::BTreeMap;
use std::time::Duration;

const COUNTER: &str = "istio_requests_total";

/// One mesh, with one limit.
struct Round {
    mesh: Mesh,
    /// Shares of a core for each sidecar; without sidecars, the shares in whose tables this round appears.
    shares: Vec<f64>,
    /// Its name among namespaces.
    cell: String,
    way: WayIn,
    place: ReadyNamespace,
}

/// Runs the study.
///
/// # Errors
/// As [`crate::run`].
pub(super) fn run(options: &Options) -> Result<()> {
    let kubectl = Kubectl::new(&options.cluster.kubectl)?;
    let interrupt = Interrupt::catch()?;
    let nodes = Nodes::find(&kubectl)?;
    let class = options.ways.ingress.then(|| ReadyClass::make(&kubectl));
    // It goes after the rounds, whose Ingresses are of it.
    let _class = class.transpose()?;
    let rounds = rounds(options, &kubectl, &nodes, &interrupt)?;
    let mut notes = kubernetes::notes();
    notes.push(nodes.note());
    notes.extend(self::notes(options));
    for round in &rounds {
        notes.extend(round.way.note(&kubectl, &name(round))?);
    }
    let study = Study {
        name: "seeds",
        options: serde_json::to_value(options).unwrap_or_default(),
        versions: versions(options, &kubectl)?,
        notes,
        configurations: configurations(options),
        scenarios: options.scenarios(),
    };
    let mut recorder = Recorder::new(study, options.common.out.as_deref())?;
    // JMeter begins and ends more slowly.
    let besides = match options.load {
        Tool::Oha => 3,
        Tool::Jmeter => 12,
    };
    let each = Duration::from_secs(options.warmup() + options.seconds() + besides);
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

fn notes(options: &Options) -> Vec<String> {
    let mut notes = vec![
        "CPU for a request is that of the sidecars of gateway and ratings.".to_owned(),
        "Each round is a namespace; the one without sidecars stands in the table of every limit."
            .to_owned(),
    ];
    notes.push(match options.ways.ingress {
        true => "The way in is a Kubernetes Ingress, outside the sidecars' limits and not counted; the client has no sidecar. Tulle's proxies serve it for no mesh, Tulle and Open Service Mesh: towards Tulle's sidecars in mutual TLS, else in plaintext, for which Open Service Mesh has an IngressBackend. Another mesh has its own gateway. So on the path ratings Open Service Mesh has no mutual TLS at all, which favours it.",
        false => "The client has a sidecar of its own where there is a mesh, which nothing limits; it takes the place of the published study's ingress and is not counted.",
    }.to_owned());
    match options.load {
        Tool::Oha => {
            notes.push(kubernetes::FORTIO_NOTE.to_owned());
            notes.push("The load is Fortio's, as fast as it is answered.".to_owned());
        }
        Tool::Jmeter => notes.push("JMeter runs in the client's container (`kubectl exec`), with a heap of 1 GiB, and looks for the rating's id in each answer. Its warm-up and measurement are one run; a sample counts when it ends within the measurement. Its latencies are whole milliseconds.".to_owned()),
    }
    if options.app == Application::Spring {
        notes.push("Each Spring application has a heap of 256 MiB, as on a host, and no limit of its container. All rounds' applications run all the time, on the CPUs that the load has, too.".to_owned());
        if options.warmup() < 60 {
            notes.push(super::too_short_a_warmup(options));
        }
    }
    notes
}

fn versions(options: &Options, kubectl: &Kubectl) -> Result<BTreeMap<String, String>> {
    let mut versions = BTreeMap::from([("kubernetes".to_owned(), kubectl.version()?)]);
    if options.load == Tool::Jmeter {
        versions.insert("jmeter".to_owned(), tools::JMETER_VERSION.to_owned());
    }
    if options.app == Application::Spring {
        versions.insert("spring".to_owned(), tools::SPRING_VERSION.to_owned());
    }
    Ok(versions)
}

fn configurations(options: &Options) -> BTreeMap<String, String> {
    let files = super::jmeter::configurations();
    let files = files.into_iter().filter(|_| options.load == Tool::Jmeter);
    files
        .map(|(n, text)| (n.to_owned(), text.to_owned()))
        .collect()
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
        let way = WayIn::find(options, &mesh, &cell)?;
        let apps = pods::apps(options, nodes, mesh.label.is_some(), share, &way);
        let objects = [way.objects(&cell), pods::plan(options)].concat();
        let place = ReadyNamespace::make(kubectl, &cell, &mesh, apps, &objects)?;
        let round = Round {
            mesh,
            shares,
            cell,
            way,
            place,
        };
        for path in Path::ALL {
            let (host, port) = round.way.entry(path, &round.cell);
            let url = format!("http://{host}:{port}{}", path.url_path());
            round.place.await_answer(&url, super::SEEDED, interrupt)?;
        }
        rounds.push(round);
    }
    Ok(rounds)
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
    let caller = |name: &'static str| match name {
        "ingress" => round.way.caller(),
        other => other,
    };
    let hops = path.hops().iter().map(|(from, to)| (caller(from), *to));
    let mut proofs = Vec::new();
    if round.mesh.label.is_some() {
        for (from, to) in hops {
            let asked = match to {
                "gateway" => Path::GatewayRatings,
                _ => Path::Ratings,
            };
            let asked = StrangerRequest::Path(asked.url_path());
            let proof = round.place.proof(from, to, COUNTER, asked)?;
            proofs.push((from, proof));
        }
    }
    let (host, port) = round.way.entry(path, &round.cell);
    let loaded = match pod_load::run(options, &round.place, (&host, port), path, interrupt)? {
        Ok(loaded) => loaded,
        Err(why) => return Ok(Sample::invalid(why)),
    };
    let mut sample = sample::from_client(&loaded.measured);
    if proofs.is_empty() {
        sample.evidence = vec!["no mutual TLS: there are no sidecars".to_owned()];
        return Ok(sample);
    }
    let used = sidecars(&mut sample, &loaded.usage, path);
    if !used {
        sample.remarks.push(format!(
            "no CPU and memory of a sidecar: its kubelet looked less than twice in {} s; load for longer (--seconds)",
            options.seconds()
        ));
    }
    let answered = loaded.measured.answered + loaded.measured.answered_besides;
    for (from, proof) in &proofs {
        match round.place.prove(proof, answered) {
            Ok(evidence) => sample.evidence.extend(evidence),
            Err(why) => sample.invalid = Some(why),
        }
        sample.evidence.extend(round.way.evidence(from));
    }
    Ok(sample)
}

/// CPU and memory of the sidecars on a path; whether they are known.
fn sidecars(sample: &mut Sample, usage: &SidecarUsage, path: Path) -> bool {
    let rate = sample.figure(figure::RPS).unwrap_or_default();
    let (mut cores, mut peak) = (0.0, 0.0_f64);
    for (place, (_, app)) in path.hops().iter().enumerate() {
        let Some(used) = usage.used(app) else {
            return false;
        };
        let mut set = |name: String, value: f64| {
            sample.figures.insert(name, value);
        };
        let each = used.cores * 1e6 / rate.max(f64::MIN_POSITIVE);
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
    SidecarUsage::sidecars(sample, cores, peak);
    sample.figure(figure::SIDECAR_CORES).is_some()
}

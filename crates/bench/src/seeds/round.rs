//! One round: a mesh comes up, both paths are measured, it goes down.

use super::app::{self, Programs, Settings};
use super::load::{Generator, Order};
use super::mesh::{self, Mesh, Start, Status};
use super::plane::{Plane, SIDECARS};
use super::sample;
use super::watch::{Target, Watch};
use super::{
    App, Options, Path, Peer, SEEDED, Tool, envoy, jmeter, limit, proof, scenario_name, tools,
};
use crate::failure::{Failure, FailureKind, OrFail, Result};
use crate::interrupt::Interrupt;
use crate::janitor::TemporaryDirectory;
use crate::peer::{Envoy, Peer as _, http};
use crate::process::{family, usage_of_one};
use crate::results::{Sample, figure};
use crate::tools::version;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// The ingress's proxy in `tulle status`.
const INGRESS: &str = "gateway.ingress";
/// How long the first request through a path may take to be answered.
const FIRST_ANSWER: Duration = Duration::from_secs(30);

/// One mesh.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Round {
    /// Its sidecars.
    pub(super) plane: Plane,
    /// Shares of a core for each sidecar; without sidecars, the shares in whose tables this round appears.
    pub(super) shares: Vec<f64>,
}

/// State that all rounds share.
pub(super) struct Lab {
    options: Options,
    tulle: PathBuf,
    envoy: Option<PathBuf>,
    generator: Generator,
    programs: Programs,
    place: TemporaryDirectory,
}

impl Lab {
    /// Finds, fetches and builds what is needed.
    pub(super) fn prepare(options: &Options, interrupt: &Interrupt) -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            let text = "only root can limit sidecars to a share of a core, which is what this study is about: run it as root";
            return Err(Failure::new(FailureKind::Usage, text));
        }
        let tulle = tools::beside("tulle")?;
        let with_envoy = options.vs.contains(&Peer::Envoy);
        let envoy = with_envoy.then(|| crate::tools::envoy(options.common.envoy.as_deref()));
        let envoy = envoy.transpose()?;
        let program = match options.load {
            Tool::Oha => crate::tools::oha()?,
            Tool::Jmeter => tools::jmeter()?,
        };
        interrupt.check()?;
        let place = TemporaryDirectory::new("seeds")?;
        // Applications are users of their own and pass through it.
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o711))
            .or_fail(|| format!("cannot open {} to others", place.path().display()))?;
        let programs = Programs::prepare(options.app, place.path())?;
        Ok(Self {
            options: options.clone(),
            tulle,
            envoy,
            generator: Generator {
                tool: options.load,
                program,
            },
            programs,
            place,
        })
    }

    /// Returns the versions of the programs that take part.
    pub(super) fn versions(&self) -> Result<BTreeMap<String, String>> {
        let mut versions = BTreeMap::new();
        let tulle = version(Command::new(&self.tulle).arg("--version"))?;
        versions.insert("tulle".to_owned(), tulle);
        if let Some(envoy) = &self.envoy {
            let version = Envoy::http1(envoy.clone()).version()?;
            versions.insert("envoy".to_owned(), version);
        }
        versions.extend(tools::versions(self.options.load, self.options.app)?);
        Ok(versions)
    }

    /// Returns the configurations by file name.
    pub(super) fn configurations(&self) -> BTreeMap<String, String> {
        let mut all = vec![app::manifests(self.options.app)];
        if self.options.load == Tool::Jmeter {
            all.extend(jmeter::configurations());
        }
        let owned = |(name, text): (&str, &str)| (name.to_owned(), text.to_owned());
        all.into_iter().map(owned).collect()
    }

    /// How long a round takes.
    pub(super) fn estimate(&self) -> Duration {
        let (start, each) = match self.options.app {
            App::Native => (6, 2),
            App::Spring => (25, 4),
        };
        let path = self.options.warmup() + self.options.seconds() + each;
        Duration::from_secs(start + 2 * path)
    }

    /// Proxies have as many threads in every round: what the largest share needs.
    fn workers(&self) -> u32 {
        let shares = self.options.shares();
        let largest = shares.into_iter().fold(1.0, f64::max);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // 1 to 64
        let workers = largest.ceil() as u32;
        workers
    }
}

impl Round {
    /// Returns the name for the progress line.
    pub(super) fn name(&self) -> String {
        match (self.plane, self.shares.as_slice()) {
            (Plane::None, _) | (_, []) => self.plane.name().to_owned(),
            (plane, [share, ..]) => format!("{}@{share}", plane.name()),
        }
    }

    /// Returns the CPU limit of each sidecar; none if there are no sidecars.
    fn share(&self) -> Option<f64> {
        let limited = self.plane != Plane::None;
        self.shares.first().copied().filter(|_| limited)
    }

    /// Measures both paths. What cannot be measured is an invalid sample, so that the other rounds
    /// go on.
    pub(super) fn measure(
        &self,
        lab: &Lab,
        repeat: u32,
        interrupt: &Interrupt,
    ) -> Result<Vec<Sample>> {
        let ingress = mesh::free_port()?;
        let settings = Settings {
            ingress,
            share: self.share(),
            workers: lab.workers(),
        };
        let manifest = lab.programs.manifest(&settings)?;
        let start = Start {
            tulle: &lab.tulle,
            envoy: lab.envoy.as_deref(),
            plane: self.plane,
            manifest: &manifest,
        };
        let mut samples = Vec::new();
        let mesh = match Mesh::up(&start, lab.place.path(), interrupt) {
            Ok(mesh) => mesh,
            Err(failure) => {
                for path in Path::ALL {
                    samples.extend(self.finish(path, repeat, Err(unless_ended(&failure)?)));
                }
                return Ok(samples);
            }
        };
        let idle = self.idle(&mesh);
        // The application is warmer for the second path.
        let mut paths = Path::ALL;
        paths.rotate_left(repeat as usize % Path::ALL.len());
        for path in paths {
            let sample = match self.measure_path(lab, &mesh, path, ingress, interrupt) {
                Ok(mut sample) => {
                    let figures = &mut sample.figures;
                    figures.extend(idle.map(|mib| (figure::RSS_IDLE_MIB.to_owned(), mib)));
                    Ok(sample)
                }
                Err(failure) => Err(unless_ended(&failure)?),
            };
            samples.extend(self.finish(path, repeat, sample));
        }
        mesh.down()?;
        Ok(samples)
    }

    /// Resident memory of the larger sidecar before any load.
    fn idle(&self, mesh: &Mesh) -> Option<f64> {
        let sidecars = self.sidecars(&mesh.status().ok()?).ok()?;
        let proxies = sidecars.iter().filter(|s| !s.agent);
        let resident = proxies.map(|s| usage_of_one(s.process).rss_mib);
        resident.max_by(f64::total_cmp)
    }

    /// A sample for each table that it stands in.
    fn finish(
        &self,
        path: Path,
        repeat: u32,
        sample: std::result::Result<Sample, String>,
    ) -> Vec<Sample> {
        let sample = sample.unwrap_or_else(Sample::invalid);
        let in_table = |share: &f64| Sample {
            scenario: scenario_name(path, *share),
            peer: self.plane.name().to_owned(),
            repeat,
            ..sample.clone()
        };
        self.shares.iter().map(in_table).collect()
    }

    fn measure_path(
        &self,
        lab: &Lab,
        mesh: &Mesh,
        path: Path,
        ingress: u16,
        interrupt: &Interrupt,
    ) -> Result<Sample> {
        let body = first_answer(ingress, path, interrupt)?;
        let before = mesh.status()?;
        let ingress_process = before.proxy(INGRESS)?;
        limit::lift(ingress_process).map_err(Failure::failed)?;
        let sidecars = self.sidecars(&before)?;
        let mut targets = vec![Target {
            name: sample::INGRESS.into(),
            processes: vec![ingress_process],
        }];
        for sidecar in &sidecars {
            targets.push(Target {
                name: sidecar.target(),
                processes: vec![sidecar.process],
            });
        }
        for name in SIDECARS {
            targets.push(Target {
                name: sample::app(name),
                processes: before.app(name),
            });
        }
        let order = Order {
            port: ingress,
            path: path.url_path(),
            body: &body,
            connections: lab.options.connections,
            warmup: lab.options.warmup(),
            seconds: lab.options.seconds(),
            directory: lab.place.path(),
        };
        let watch = |load| {
            targets.push(Target {
                name: sample::LOAD.into(),
                processes: vec![load],
            });
            Watch::start(targets)
        };
        let seen = self.seen(path, &before)?;
        let (measured, record) = lab.generator.run(&order, interrupt, watch)?;
        let after = mesh.status()?;

        let mut sample = sample::from_measured(&measured, &record, path, self.plane);
        let answered = measured.answered + measured.answered_besides;
        let own = self.seen(path, &after)?;
        let own = own
            .iter()
            .zip(&seen)
            .map(|(after, before)| after.prove(before, answered));
        let own: std::result::Result<Vec<String>, String> = own.collect();
        let proof = self.proof(path, &before, &after, answered, &sidecars);
        match proof.and_then(|proof| Ok([proof, own?].concat())) {
            Ok(evidence) => sample.evidence = evidence,
            Err(why) => sample.invalid = Some(why),
        }
        Ok(sample)
    }

    /// Returns Envoy's counters so far before each service that the path calls.
    fn seen(&self, path: Path, status: &Status) -> Result<Vec<envoy::Seen>> {
        let called = path.hops().iter().map(|hop| hop.1);
        let seen = called.map(|workload| {
            let metrics = status.metrics(workload).map_err(Failure::failed)?;
            Ok(envoy::Seen::from_metrics(workload, &metrics))
        });
        if self.plane == Plane::Envoy {
            seen.collect()
        } else {
            Ok(Vec::new())
        }
    }

    /// Proves that the sidecars had the stated limits and used mutual TLS between the right identities.
    fn proof(
        &self,
        path: Path,
        before: &Status,
        after: &Status,
        answered: u64,
        sidecars: &[Sidecar],
    ) -> std::result::Result<Vec<String>, String> {
        if let Some(name) = restarted(before, after) {
            return Err(format!("the proxy of {name} ended and was started again"));
        }
        let ingress = after.proxy(INGRESS).map_err(|f| f.to_string())?;
        if let Some(cores) = limit::cores(ingress)? {
            return Err(format!(
                "the ingress is limited to {cores} cores and should not be"
            ));
        }
        let Some(share) = self.share() else {
            return Ok(Vec::new());
        };
        let mut evidence = proof::prove(path, before, after, answered)?;
        for sidecar in sidecars {
            match limit::cores(sidecar.process)? {
                Some(cores) if (cores - share).abs() < 0.01 => {}
                other => {
                    let has = other.map_or("no limit".to_owned(), |c| format!("{c} cores"));
                    return Err(format!(
                        "the sidecar of {} should be limited to {share} of a core and has {has}{}",
                        sidecar.workload,
                        after
                            .warnings
                            .first()
                            .map(|w| format!(" ({w})"))
                            .unwrap_or_default()
                    ));
                }
            }
        }
        evidence.push(format!(
            "each sidecar had a quota of {share} of a core, the ingress none"
        ));
        Ok(evidence)
    }

    /// The processes of the sidecars.
    fn sidecars(&self, status: &Status) -> Result<Vec<Sidecar>> {
        let mut found = Vec::new();
        for workload in SIDECARS {
            if self.plane == Plane::None {
                if status.proxies.iter().any(|p| p.workload == workload) {
                    return Err(Failure::failed(format!(
                        "{workload} has a sidecar, and should not"
                    )));
                }
                continue;
            }
            let process = status.proxy(workload)?;
            let sidecar = |process, agent| Sidecar {
                workload,
                process,
                agent,
            };
            if self.plane == Plane::Tulle {
                found.push(sidecar(process, false));
                continue;
            }
            let envoy = family(process).into_iter().find(|id| is_envoy(*id));
            let envoy = envoy.ok_or_else(|| {
                Failure::failed(format!("the sidecar of {workload} runs no Envoy"))
            })?;
            found.push(sidecar(envoy, false));
            found.push(sidecar(process, true));
        }
        Ok(found)
    }
}

/// A process of a sidecar.
struct Sidecar {
    workload: &'static str,
    process: u32,
    /// It only brings Envoy its configuration.
    agent: bool,
}

impl Sidecar {
    fn target(&self) -> String {
        if self.agent {
            sample::agent(self.workload)
        } else {
            self.workload.to_owned()
        }
    }
}

fn is_envoy(id: u32) -> bool {
    let name = fs::read_to_string(format!("/proc/{id}/comm"));
    name.is_ok_and(|name| name.trim().starts_with("envoy"))
}

/// Its words, for an invalid sample; an error when the whole study is to end.
fn unless_ended(failure: &Failure) -> Result<String> {
    if failure.kind == FailureKind::Interrupted {
        return Err(Failure::new(failure.kind, failure.to_string()));
    }
    Ok(failure.to_string())
}

fn restarted<'a>(before: &Status, after: &'a Status) -> Option<&'a str> {
    let changed = after.proxies.iter().find(|now| {
        let earlier = before.proxies.iter().find(|p| p.workload == now.workload);
        earlier.is_none_or(|p| p.restarts != now.restarts || p.pid != now.pid)
    });
    changed.map(|p| p.workload.as_str())
}

/// Waits until a request is answered as it must be: a wrong answer would be a fast one.
fn first_answer(port: u16, path: Path, interrupt: &Interrupt) -> Result<String> {
    let until = Instant::now() + FIRST_ANSWER;
    loop {
        let answer = http::get(port, path.url_path());
        let what = match answer {
            Ok(body) if body.contains(SEEDED) => return Ok(body),
            Ok(body) => format!("the answer is {body:?}"),
            Err(why) => why,
        };
        if Instant::now() > until {
            return Err(Failure::failed(format!(
                "no right answer on the path {}: {what}",
                path.name()
            )));
        }
        interrupt.sleep(Duration::from_millis(100))?;
    }
}

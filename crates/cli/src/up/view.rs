//! Shows the progress of `tulle up` until every service answers. Then it shows a live status on a terminal,
//! or one line per change in a pipe.

use super::verify;
use crate::output::{self, Mark, Screen, line, paint, progress};
use crate::paths::Paths;
use crate::status::{collect, live};
use crate::supervise::state::{Phase, RunState};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::watch;
use tokio::time::sleep;

/// A state that lasts this long is worth a line.
const LASTING: Duration = Duration::from_secs(3);

/// Shows the mesh until it is aborted.
pub(crate) async fn run(
    paths: Paths,
    timeout: Duration,
    verified: bool,
    phases: watch::Receiver<Phase>,
) {
    let mut shown = Progress::new();
    let patience = Instant::now() + timeout;
    let mut told = false;
    while *phases.borrow() == Phase::Starting {
        if let Ok(Some(state)) = RunState::read(&paths) {
            if !told && Instant::now() >= patience {
                told = true;
                let missing = state.not_ready().join("; ");
                shown.say(&format!("still waiting: {missing}"));
            }
            shown.show(&state);
        }
        sleep(Duration::from_millis(100)).await;
    }
    if let Ok(Some(state)) = RunState::read(&paths) {
        shown.show(&state);
    }
    shown.finish();
    if *phases.borrow() == Phase::Stopping {
        return;
    }
    progress(&paint("every service answers", Mark::Good));
    if verified {
        match verify::verify(&paths).await {
            // The edges are in the live view below.
            Ok(proof) if output::is_terminal() => line(&format!("\n{}\n", proof.answers)),
            Ok(proof) => line(&proof.text()),
            Err(failure) => anstream::eprintln!("error: {failure}"),
        }
    }
    say_dashboard(&paths);
    if output::is_terminal() {
        draw(&paths, &phases).await;
    } else {
        changes(&paths, shown).await;
    }
}

/// Says where the dashboard is, if there is one.
pub(super) fn say_dashboard(paths: &Paths) {
    let state = RunState::read(paths).ok().flatten();
    if let Some(console) = state.and_then(|state| state.console) {
        progress(&format!(
            "the dashboard is at http://{console}/ (`tulle dashboard` opens a session)"
        ));
    }
}

/// Draws the status over itself, below what was printed before, until the mesh stops.
async fn draw(paths: &Paths, phases: &watch::Receiver<Phase>) {
    let mut screen = Screen::default();
    while *phases.borrow() == Phase::Running {
        if let Ok(report) = collect(paths).await
            && report.mesh.phase == Phase::Running
        {
            let (mut lines, foot) = live(&report);
            lines.push("Ctrl-C stops the mesh.".into());
            screen.draw(&lines, foot + 1);
        }
        sleep(Duration::from_secs(1)).await;
    }
}

async fn changes(paths: &Paths, mut shown: Progress) {
    progress("the mesh is up; Ctrl-C stops it");
    let (mut state, mut version) = (None, None);
    loop {
        // It is replaced as a whole when something changes, which is seldom.
        let now = file_version(&paths.run_state());
        if now != version {
            state = RunState::read(paths).ok().flatten();
            version = now;
        }
        if let Some(state) = &state {
            shown.show(state);
        }
        sleep(Duration::from_millis(250)).await;
    }
}

/// Returns what differs between two versions of a file that is replaced as a whole.
fn file_version(path: &Path) -> Option<(u64, SystemTime)> {
    let metadata = path.metadata().ok()?;
    Some((metadata.ino(), metadata.modified().ok()?))
}

/// Progress of the start, on standard error: drawn over itself on a terminal, lines elsewhere.
pub(crate) struct Progress {
    screen: Option<Screen>,
    seen: BTreeMap<String, (bool, String)>,
    /// Units that are not ready: since when, and the last message.
    waiting: BTreeMap<String, (Instant, Option<String>)>,
}

impl Progress {
    /// Nothing shown yet.
    pub(crate) fn new() -> Self {
        Self {
            screen: output::is_progress_drawn().then(Screen::for_progress),
            seen: BTreeMap::new(),
            waiting: BTreeMap::new(),
        }
    }

    /// Shows what is new.
    pub(crate) fn show(&mut self, state: &RunState) {
        let units = units(state);
        if let Some(screen) = &mut self.screen {
            screen.draw(&starting(&units), 0);
            self.seen = units;
            return;
        }
        for (name, (ready, message)) in &units {
            let before = self.seen.get(name);
            let was_ready = before.is_some_and(|(ready, _)| *ready);
            if *ready {
                if !was_ready {
                    progress(&format!("{name} is ready"));
                }
                self.waiting.remove(name);
                continue;
            }
            // Start-up passes through many short states; only one that lasts is news.
            let now = Instant::now();
            let waiting = self.waiting.entry(name.clone()).or_insert((now, None));
            let told = waiting.1.as_ref() == Some(message);
            if was_ready || (!told && waiting.0.elapsed() >= LASTING) {
                progress(&format!("{name}: {}", output::one_line(message)));
                waiting.1 = Some(message.clone());
            }
        }
        for name in self.seen.keys().filter(|n| !units.contains_key(*n)) {
            progress(&format!("{name} is gone"));
        }
        self.seen = units;
    }

    /// Says something that stays.
    pub(crate) fn say(&mut self, text: &str) {
        if let Some(screen) = &mut self.screen {
            screen.clear();
        }
        progress(text);
    }

    /// Takes what was drawn away.
    pub(crate) fn finish(&mut self) {
        if let Some(screen) = &mut self.screen {
            screen.clear();
        }
    }
}

/// One line for each unit.
fn starting(units: &BTreeMap<String, (bool, String)>) -> Vec<String> {
    let ready = units.values().filter(|(ready, _)| *ready).count();
    let mut lines = vec![format!("starting: {ready} of {} ready", units.len())];
    let width = units.keys().map(String::len).max().unwrap_or(0);
    for (name, (ready, message)) in units {
        let (sign, mark) = if *ready {
            ("√", Mark::Good)
        } else {
            ("·", Mark::Doubtful)
        };
        let message = output::one_line(message);
        let text = format!("{} {name:<width$}  {message}", paint(sign, mark));
        lines.push(text.trim_end().to_owned());
    }
    lines
}

fn units(state: &RunState) -> BTreeMap<String, (bool, String)> {
    let workloads = state.workloads.iter().map(|w| {
        let restarts = w.app.as_ref().map_or(0, |a| a.restarts);
        let mut message = w.message.clone();
        if restarts > 0 {
            message = format!("{message} ({restarts} restarts)");
        }
        (format!("workload {}", w.name), (w.ready, message))
    });
    let gateways = state.gateways.iter().map(|g| {
        let key = format!("gateway {}", g.name);
        (key, (g.proxy.ready, g.message.clone()))
    });
    workloads.chain(gateways).collect()
}

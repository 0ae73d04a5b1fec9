//! What `tulle up` shows: progress until every service answers, then a live status on a terminal
//! or one line for each change in a pipe.

use super::verify;
use crate::args::Format;
use crate::output::{self, Mark, line, paint};
use crate::paths::Paths;
use crate::status::{collect, render};
use crate::supervise::state::{Phase, RunState};
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::BTreeMap;
use std::time::Duration;
use std::time::Instant;
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
    let mut progress = Progress::new();
    let patience = Instant::now() + timeout;
    let mut told = false;
    while *phases.borrow() == Phase::Starting {
        if let Ok(Some(state)) = RunState::read(&paths) {
            progress.show(&state);
            if !told && Instant::now() >= patience {
                told = true;
                let missing = state.not_ready().join("; ");
                progress.say(&format!("still waiting: {missing}"));
            }
        }
        sleep(Duration::from_millis(100)).await;
    }
    if let Ok(Some(state)) = RunState::read(&paths) {
        progress.show(&state);
    }
    progress.finish();
    if *phases.borrow() == Phase::Stopping {
        return;
    }
    line(&paint("every service answers", Mark::Good));
    if verified {
        match verify::verify(&paths).await {
            Ok((_, text)) => line(&text),
            Err(failure) => anstream::eprintln!("error: {failure}"),
        }
    }
    if output::is_terminal() {
        live(&paths, &phases).await;
    } else {
        changes(&paths, progress).await;
    }
}

/// Draws the status over itself, below what was printed before, until the mesh stops.
async fn live(paths: &Paths, phases: &watch::Receiver<Phase>) {
    let mut drawn = 0;
    while *phases.borrow() == Phase::Running {
        if let Ok(report) = collect(paths).await
            && report.mesh.phase == Phase::Running
        {
            let text = render(&report, Format::Table);
            let text = format!("{text}\n\nCtrl-C stops the mesh.");
            if drawn >= output::terminal_rows() {
                // What scrolled away cannot be drawn over.
                print!("\x1b[2J\x1b[H");
            } else if drawn > 0 {
                // Up over the last drawing, and clear from there on.
                print!("\x1b[{drawn}A\x1b[J");
            }
            line(&text);
            drawn = text.lines().count();
        }
        sleep(Duration::from_secs(1)).await;
    }
}

async fn changes(paths: &Paths, mut progress: Progress) {
    line("the mesh is up; Ctrl-C stops it");
    loop {
        if let Ok(Some(state)) = RunState::read(paths) {
            progress.show(&state);
        }
        sleep(Duration::from_millis(250)).await;
    }
}

/// Progress of the start: a spinner on a terminal, lines elsewhere.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    seen: BTreeMap<String, (bool, String)>,
    /// Since when a unit is not ready, and what was last said about it.
    waiting: BTreeMap<String, (Instant, Option<String>)>,
}

impl Progress {
    /// Nothing shown yet.
    pub(crate) fn new() -> Self {
        let bar = output::is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        Self {
            bar,
            seen: BTreeMap::new(),
            waiting: BTreeMap::new(),
        }
    }

    /// Shows what is new.
    pub(crate) fn show(&mut self, state: &RunState) {
        let units = units(state);
        if let Some(bar) = &self.bar {
            let ready = units.values().filter(|(ready, _)| *ready).count();
            let waiting = state.not_ready();
            let waiting = waiting.first().map_or("", String::as_str);
            bar.set_message(format!("{ready} of {} ready  {waiting}", units.len()));
            self.seen = units;
            return;
        }
        for (name, (ready, message)) in &units {
            let before = self.seen.get(name);
            let was_ready = before.is_some_and(|(ready, _)| *ready);
            if *ready {
                if !was_ready {
                    line(&format!("{name} is ready"));
                }
                self.waiting.remove(name);
                continue;
            }
            // Start-up passes through many short states; only one that lasts is news.
            let now = Instant::now();
            let waiting = self.waiting.entry(name.clone()).or_insert((now, None));
            let told = waiting.1.as_ref() == Some(message);
            if was_ready || (!told && waiting.0.elapsed() >= LASTING) {
                line(&format!("{name}: {message}"));
                waiting.1 = Some(message.clone());
            }
        }
        for name in self.seen.keys().filter(|n| !units.contains_key(*n)) {
            line(&format!("{name} is gone"));
        }
        self.seen = units;
    }

    /// Says something without disturbing the spinner.
    pub(crate) fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => line(text),
        }
    }

    /// Takes the spinner away.
    pub(crate) fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
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

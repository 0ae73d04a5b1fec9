//! `tulle check --fix` on a host: removes what a mesh left that ended without being told to.
//!
//! It is safe: it waits for nobody and cuts nothing. While a process of the mesh is there, it may serve, so
//! everything stays, and `tulle down` is the command that ends it. Durable files are never touched.

use crate::failure::Result;
use crate::paths::Paths;
use crate::supervise::leftovers::Leftovers;
use crate::supervise::state::RunState;
use crate::supervise::{Lock, janitor};
use serde::Serialize;

/// One thing that `--fix` fixed, would fix, or leaves as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Fix {
    /// How it went.
    pub(crate) outcome: FixOutcome,
    /// The object and what was done to it.
    pub(crate) what: String,
}

/// How it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FixOutcome {
    /// It was done.
    Done,
    /// It would be done without `--dry-run`.
    Would,
    /// It is not safe to do.
    Left,
}

impl Fix {
    /// One of these.
    pub(crate) fn new(outcome: FixOutcome, what: impl Into<String>) -> Self {
        Self {
            outcome,
            what: what.into(),
        }
    }

    /// A line for people.
    pub(crate) fn line(&self) -> String {
        let verb = match self.outcome {
            FixOutcome::Done => "fixed",
            FixOutcome::Would => "would fix",
            FixOutcome::Left => "left as it is",
        };
        format!("{verb}: {}", self.what)
    }
}

/// Removes what a mesh left, or says with `dry_run` what it would remove.
pub(super) fn fix(paths: &Paths, dry_run: bool) -> Result<Vec<Fix>> {
    if is_up(paths) {
        return Ok(Vec::new());
    }
    let left = Leftovers::find(paths);
    if let Some(decided) = decide(&left, dry_run) {
        return Ok(decided);
    }
    // Held until the end, so that nobody starts what is then cleared away.
    let _lock = paths.run.is_dir().then(|| Lock::take(paths)).transpose()?;
    let left = Leftovers::find(paths);
    if let Some(decided) = decide(&left, dry_run) {
        return Ok(decided);
    }
    janitor::clear(paths)?;
    Ok(vec![Fix::new(
        FixOutcome::Done,
        format!("removed {}", things(&left)),
    )])
}

/// Whether a supervisor or its janitor is at work.
fn is_up(paths: &Paths) -> bool {
    // A supervisor holds the lock for as long as it lives, of whichever version it is.
    if Lock::holder(paths).is_some() {
        return true;
    }
    let state = RunState::read(paths).ok().flatten();
    state.is_some_and(|state| {
        let janitor = state.janitor.id;
        state.supervisor.is_alive() || janitor.is_some_and(|id| id.is_alive())
    })
}

/// Returns what is said without doing anything; none: the leftovers are to be removed.
fn decide(left: &Leftovers, dry_run: bool) -> Option<Vec<Fix>> {
    if left.is_gone() && left.files.is_empty() {
        return Some(Vec::new());
    }
    if !left.processes.is_empty() {
        let pids: Vec<String> = left.processes.iter().map(ToString::to_string).collect();
        let what = format!(
            "processes {} of a mesh that is not up still run and may serve; `tulle down` ends them and removes the rest",
            pids.join(" ")
        );
        return Some(vec![Fix::new(FixOutcome::Left, what)]);
    }
    let would = || Fix::new(FixOutcome::Would, format!("remove {}", things(left)));
    dry_run.then(|| vec![would()])
}

fn things(left: &Leftovers) -> String {
    let files = left.files.iter().map(|file| file.display().to_string());
    let all: Vec<String> = left.kernel.iter().cloned().chain(files).collect();
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_serve_stays_and_a_dry_run_changes_nothing() {
        let outcome = |left: &Leftovers, dry_run| {
            decide(left, dry_run).map(|all| all.iter().map(|m| m.outcome).collect::<Vec<_>>())
        };
        let none = Leftovers::default();
        assert_eq!(outcome(&none, false), Some(vec![]));
        let kernel = Leftovers {
            kernel: vec!["network namespace tulle-a.web".into()],
            ..none.clone()
        };
        assert_eq!(outcome(&kernel, false), None);
        assert_eq!(outcome(&kernel, true), Some(vec![FixOutcome::Would]));
        let serving = Leftovers {
            processes: vec![7],
            ..kernel
        };
        for dry_run in [false, true] {
            assert_eq!(outcome(&serving, dry_run), Some(vec![FixOutcome::Left]));
        }
    }

    #[test]
    fn files_of_a_crash_go_and_durable_ones_stay() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths {
            name: format!("f{:05}", std::process::id() % 100_000),
            state: dir.path().join("state"),
            run: dir.path().join("run"),
        };
        paths.create().unwrap();
        let durable = paths.controller_state().join("ca");
        for file in [&paths.socket(), &paths.hosts(), &durable, &paths.log("a")] {
            std::fs::write(file, "x").unwrap();
        }
        let shown = fix(&paths, true).unwrap();
        assert!(
            shown[0].line().starts_with("would fix: remove "),
            "{shown:?}"
        );
        assert!(paths.socket().exists());
        let done = fix(&paths, false).unwrap();
        assert_eq!(done[0].outcome, FixOutcome::Done);
        assert!(!paths.socket().exists() && !paths.hosts().exists());
        assert!(durable.exists() && paths.log("a").exists());
        // It may be repeated.
        assert_eq!(fix(&paths, false).unwrap(), []);
        // A mesh that starts is none that left something.
        std::fs::write(paths.socket(), "x").unwrap();
        let _lock = Lock::take(&paths).unwrap();
        assert_eq!(fix(&paths, false).unwrap(), []);
        assert!(paths.socket().exists());
    }
}

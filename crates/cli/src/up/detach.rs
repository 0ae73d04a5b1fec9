//! `tulle up --detach`: starts the supervisor on its own and returns when every service answers.

use super::verify;
use super::view::Progress;
use crate::args::{Global, Up};
use crate::failure::{Failure, OrFail, Result};
use crate::output::line;
use crate::paths::Paths;
use crate::supervise::state::{Phase, RunState};
use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Starts and waits.
pub(crate) fn detach(paths: &Paths, global: &Global, args: &Up) -> Result<()> {
    let mut child = spawn(paths, global, args)?;
    let mut progress = Progress::new();
    let until = Instant::now() + args.timeout;
    loop {
        // The file of a mesh that was here before was removed when room was made.
        let state = RunState::read(paths)?;
        if let Some(state) = &state {
            progress.show(state);
        }
        if state.as_ref().is_some_and(|s| s.phase == Phase::Running) {
            progress.finish();
            line(&format!(
                "the mesh is up (supervisor: process {})",
                child.id()
            ));
            return finish(paths, args);
        }
        let ended = child
            .try_wait()
            .or_fail(|| "cannot wait for the supervisor".to_owned())?;
        if let Some(status) = ended {
            progress.finish();
            return Err(last_words(paths, &status.to_string()));
        }
        if Instant::now() >= until {
            progress.finish();
            let missing = state.map(|s| s.not_ready()).unwrap_or_default();
            return Err(Failure::new(format!(
                "not every service answers within {}s",
                args.timeout.as_secs()
            ))
            .because(missing.join("; "))
            .fix("the mesh stays up: `tulle status` and `tulle logs WORKLOAD` show more, `tulle down` stops it"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn spawn(paths: &Paths, global: &Global, args: &Up) -> Result<Child> {
    let what = || "cannot start the supervisor".to_owned();
    let own = std::env::current_exe().or_fail(what)?;
    let words = paths.log("up");
    let words = File::create(&words).or_fail(|| format!("cannot write {}", words.display()))?;
    let mut command = Command::new(own);
    command.arg("up").arg("--detached").args(&args.files);
    if let Some(state) = &global.state {
        command.arg("--state").arg(state);
    }
    if let Some(name) = &global.name {
        command.arg("--name").arg(name);
    }
    if args.loopback {
        command.arg("--loopback");
    }
    if args.keep {
        command.arg("--keep");
    }
    if let Some(listen) = args.listen {
        command.arg("--listen").arg(listen.to_string());
    }
    if let Some(advertise) = args.advertise {
        command.arg("--advertise").arg(advertise.to_string());
    }
    for (flag, time) in [("--for", args.run_for), ("--timeout", Some(args.timeout))] {
        if let Some(time) = time {
            command.arg(flag).arg(format!("{}ms", time.as_millis()));
        }
    }
    command
        .stdin(Stdio::null())
        .stdout(words.try_clone().or_fail(what)?)
        .stderr(words)
        .spawn()
        .or_fail(what)
}

/// What the supervisor said when it gave up.
fn last_words(paths: &Paths, status: &str) -> Failure {
    let words = std::fs::read_to_string(paths.log("up")).unwrap_or_default();
    let words = words.trim().trim_start_matches("error: ");
    if words.is_empty() {
        let log = paths.log("supervisor");
        return Failure::new(format!("the supervisor ended with {status}"))
            .fix(format!("see {}", log.display()));
    }
    Failure::new(words)
}

fn finish(paths: &Paths, args: &Up) -> Result<()> {
    crate::runtime()?.block_on(async {
        if args.verify {
            let (good, text) = verify::verify(paths).await?;
            line(&text);
            if !good {
                return Err(Failure::new("not every hop is mutual TLS")
                    .fix("the mesh stays up: `tulle check` shows more, `tulle down` stops it"));
            }
        } else {
            let report = crate::status::collect(paths).await?;
            line(&crate::status::render(&report, crate::args::Format::Table));
        }
        Ok(())
    })
}

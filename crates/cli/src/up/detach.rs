//! `tulle up --detach`: starts the supervisor on its own and returns when every service answers.

use super::signals::Signals;
use super::verify;
use super::view::{Progress, say_dashboard};
use crate::args::Global;
use crate::args::output::Format;
use crate::args::up::Up;
use crate::failure::{Exit, Failure, OrFail, Result};
use crate::output::{line, progress};
use crate::paths::Paths;
use crate::proc::ProcessId;
use crate::supervise::state::{Phase, RunState};
use rustix::process::Signal;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tokio::task::LocalSet;

/// Log of what the supervisor says before it has a log, and when it panics.
const WORDS: &str = "up";
/// Ending of that log's name until it is in place.
const NEW: &str = "new";
const LONGEST_WORDS: u64 = 64 << 10;
const LOOK: Duration = Duration::from_millis(50);

/// Starts and waits.
pub(crate) fn detach(paths: &Paths, global: &Global, args: &Up) -> Result<()> {
    paths.create()?;
    let (mut child, words) = spawn(paths, global, args)?;
    crate::run_to_end(LocalSet::new().run_until(async {
        // A Ctrl-C while it starts is the supervisor's to act on; here its end is awaited.
        let signals = Signals::listen()?;
        let mut shown = Progress::new();
        let answer = tokio::select! {
            answer = wait(paths, args, &mut child, &words, &mut shown) => answer,
            () = signals.first() => Ok(false),
        };
        shown.finish();
        if answer? {
            progress(&format!(
                "the mesh is up (supervisor: process {})",
                child.id()
            ));
            finish(paths, args).await?;
            say_dashboard(paths);
            return Ok(());
        }
        progress("interrupted: stopping the mesh");
        if let Some(id) = ProcessId::from_pid(child.id().cast_signed()) {
            id.signal(Signal::INT);
        }
        while ended(&mut child)?.is_none() {
            tokio::time::sleep(LOOK).await;
        }
        Err(Failure::new(
            "interrupted while it started; nothing is left of it",
        ))
    }))
}

/// True when every service answers.
async fn wait(
    paths: &Paths,
    args: &Up,
    child: &mut Child,
    words: &File,
    shown: &mut Progress,
) -> Result<bool> {
    let until = Instant::now() + args.timeout;
    loop {
        // Until the child has made room, the file may be that of a mesh that was here before, even
        // one that cannot be read; then the child says so.
        let own = |s: &RunState| u32::try_from(s.supervisor.pid) == Ok(child.id());
        let state = RunState::read(paths).ok().flatten().filter(own);
        if let Some(state) = &state {
            shown.show(state);
        }
        if state.as_ref().is_some_and(|s| s.phase == Phase::Running) {
            return Ok(true);
        }
        if let Some(status) = ended(child)? {
            return Err(last_words(paths, words, status));
        }
        if Instant::now() >= until {
            let missing = state.map(|s| s.not_ready()).unwrap_or_default();
            return Err(Failure::new(format!(
                "not every service answers within {}s",
                args.timeout.as_secs()
            ))
            .because(missing.join("; "))
            .fix("the mesh stays up: `tulle status` and `tulle logs WORKLOAD` show more, `tulle down` stops it"));
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn ended(child: &mut Child) -> Result<Option<ExitStatus>> {
    child
        .try_wait()
        .or_fail(|| "cannot wait for the supervisor".to_owned())
}

/// Whether a file has the words of a detached supervisor, or will have them in a moment.
pub(super) fn is_words(file: &Path, paths: &Paths) -> bool {
    file == paths.log(WORDS) || file.extension().is_some_and(|e| e == NEW)
}

/// The supervisor, and what it says.
fn spawn(paths: &Paths, global: &Global, args: &Up) -> Result<(Child, File)> {
    let what = || "cannot start the supervisor".to_owned();
    let own = std::env::current_exe().or_fail(what)?;
    let path = paths.log(WORDS);
    let what_words = || format!("cannot write {}", path.display());
    // A new file, put in place at once: that of a mesh which is up already stays its own, and another
    // that starts at this moment has its own, too.
    let new = path.with_extension(format!("{}.{NEW}", std::process::id()));
    // One of a process that had this number and was killed here.
    let _ = std::fs::remove_file(&new);
    let words = OpenOptions::new()
        .create_new(true)
        .read(true)
        .append(true)
        .mode(0o600)
        .open(&new)
        .or_fail(what_words)?;
    std::fs::rename(&new, &path).or_fail(what_words)?;
    let mut command = Command::new(own);
    command.arg("supervisor").args(&args.files);
    if let Some(state) = &global.state {
        command.arg("--state").arg(state);
    }
    if let Some(name) = &global.name {
        command.arg("--name").arg(name);
    }
    command.args(args.options.words());
    if args.keep {
        command.arg("--keep");
    }
    for (flag, time) in [("--for", args.run_for), ("--timeout", Some(args.timeout))] {
        if let Some(time) = time {
            command.arg(flag).arg(format!("{}ms", time.as_millis()));
        }
    }
    let child = command
        .stdin(Stdio::null())
        .stdout(words.try_clone().or_fail(what)?)
        .stderr(words.try_clone().or_fail(what)?)
        .spawn()
        .or_fail(what)?;
    Ok((child, words))
}

/// Returns the supervisor's last error as the cause of the failure.
fn last_words(paths: &Paths, mut file: &File, status: ExitStatus) -> Failure {
    let mut words = String::new();
    // An unreadable file counts as empty.
    let _ = file
        .seek(SeekFrom::Start(0))
        .and_then(|_| file.take(LONGEST_WORDS).read_to_string(&mut words));
    let words = words.trim().trim_start_matches("error: ");
    if words.is_empty() {
        let log = paths.log("supervisor");
        return Failure::new(format!("the supervisor ended with {status}"))
            .fix(format!("see {}", log.display()));
    }
    match status.code() {
        Some(code) if code == Exit::Usage as i32 => Failure::usage(words),
        Some(code) if code == Exit::Input as i32 => Failure::input(words),
        _ => Failure::new(words),
    }
}

async fn finish(paths: &Paths, args: &Up) -> Result<()> {
    if !args.verify {
        let report = crate::status::collect(paths).await?;
        line(&crate::status::render(&report, Format::Table));
        return Ok(());
    }
    let proof = verify::verify(paths).await?;
    line(&proof.text());
    if proof.good {
        return Ok(());
    }
    Err(Failure::new("not every hop is mutual TLS")
        .fix("the mesh stays up: `tulle check` shows more, `tulle down` stops it"))
}

//! `tulle down`: ends the mesh in order, and makes sure that nothing is left of it.

use crate::args::Down;
use crate::failure::{Failure, OrFail, Result};
use crate::output::line;
use crate::paths::Paths;
use crate::proc::ProcessId;
use crate::supervise::leftovers::Leftovers;
use crate::supervise::state::RunState;
use crate::supervise::{Lock, janitor};
use rustix::process::Signal;
use std::path::Path;
use std::time::{Duration, Instant};

const LOOK: Duration = Duration::from_millis(50);
/// How long the janitor may take after the supervisor's end.
const JANITOR_TIME: Duration = Duration::from_secs(30);

/// Stops the mesh, or clears up after one that crashed.
pub(crate) fn down(paths: &Paths, args: &Down) -> Result<()> {
    // An unreadable file of another version must not keep a mesh from being ended.
    let state = RunState::read(paths).unwrap_or_else(|failure| {
        anstream::eprintln!("warning: {failure}");
        None
    });
    // The lock knows a supervisor that has not written its state yet, or wrote it in another way.
    let supervisor = Lock::holder(paths).or(state.as_ref().map(|s| s.supervisor));
    let mut was_up = false;
    if let Some(supervisor) = supervisor {
        was_up = supervisor.is_alive();
        supervisor.signal(Signal::TERM);
        if !wait(args.timeout, || !supervisor.is_alive()) {
            anstream::eprintln!(
                "warning: requests in flight did not complete within {}s; closing them now",
                args.timeout.as_secs()
            );
            supervisor.signal(Signal::KILL);
            wait(JANITOR_TIME, || !supervisor.is_alive());
        }
    }
    if let Some(janitor) = state.and_then(|s| s.janitor.id) {
        wait(JANITOR_TIME, || !janitor.is_alive());
    }
    // Held until the end, so that nobody starts what is then cleared away. Without a directory
    // there is nothing to clear and nothing to hold. The last step of a service's stop also clears up.
    let ends = |holder| !is_supervisor(paths, holder);
    let lock = || Lock::take_within(paths, JANITOR_TIME, ends);
    let _lock = paths.run.is_dir().then(lock).transpose()?;
    // Nothing to do after an orderly end; all of it after a crash.
    let removed = janitor::clear(paths)?;
    left_over(paths)?;
    if args.purge {
        purge(paths)?;
    }
    match (was_up, removed.is_nothing()) {
        (true, true) => line("the mesh is down; nothing is left of it"),
        (true, false) => line(&format!("the mesh is down; also removed {removed}")),
        (false, true) => line("no mesh is up here, and nothing is left of one"),
        (false, false) => line(&format!(
            "no mesh was up here; removed what one had left: {removed}"
        )),
    }
    Ok(())
}

/// Whether a process that holds the lock keeps a mesh up.
fn is_supervisor(paths: &Paths, holder: ProcessId) -> bool {
    let state = RunState::read(paths).ok().flatten();
    state.is_some_and(|state| state.supervisor == holder)
}

/// Removes sockets and logs of a mesh that is not up; one that is up keeps them. Nothing durable is touched.
pub(crate) fn remove_run(paths: &Paths) -> Result<()> {
    clear_up(paths)?;
    if Lock::holder(paths).is_some_and(ProcessId::is_alive) {
        return Ok(());
    }
    remove_directory(&paths.run)
}

fn remove_directory(directory: &Path) -> Result<()> {
    match std::fs::remove_dir_all(directory) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).or_fail(|| format!("cannot remove {}", directory.display()))
        }
        _ => Ok(()),
    }
}

/// Clears up if no supervisor lives. One that does is left alone: an init system also comes here when its
/// own could not start because of another.
pub(crate) fn clear_up(paths: &Paths) -> Result<()> {
    if !paths.run.is_dir() || Lock::holder(paths).is_some_and(ProcessId::is_alive) {
        return Ok(());
    }
    // The next supervisor waits for it as well, but only while the file says that there is one.
    let state = RunState::read(paths).ok().flatten();
    if let Some(janitor) = state.and_then(|s| s.janitor.id) {
        wait(JANITOR_TIME, || !janitor.is_alive());
    }
    let _lock = Lock::take(paths)?;
    let removed = janitor::clear(paths)?;
    if !removed.is_nothing() {
        line(&format!("removed what the mesh had left: {removed}"));
    }
    Ok(())
}

fn wait(time: Duration, done: impl Fn() -> bool) -> bool {
    let until = Instant::now() + time;
    while !done() {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(LOOK);
    }
    true
}

/// Looks again, in another way than what removed it.
fn left_over(paths: &Paths) -> Result<()> {
    let left = Leftovers::find(paths).shown();
    if left.is_empty() {
        return Ok(());
    }
    Err(Failure::new(format!(
        "not everything was removed; left: {}",
        left.join(", ")
    ))
    .fix("run `tulle down` again; if that does not help, end or remove these by hand"))
}

fn purge(paths: &Paths) -> Result<()> {
    let directories = [
        &paths.run,
        &paths.controller_state(),
        &paths.data(),
        &paths.away(),
        &paths.last_known_sidecars(),
    ];
    for directory in directories {
        remove_directory(directory)?;
    }
    let files = [
        paths.fixed_ports(),
        paths.host_identity(),
        paths.host_token(),
        paths.host_authority(),
        paths.host_issued(),
        paths.brought(),
        paths.last_known(),
        paths.service_record(),
    ];
    for file in files {
        if let Err(e) = std::fs::remove_file(&file)
            && e.kind() != std::io::ErrorKind::NotFound
        {
            return Err(e).or_fail(|| format!("cannot remove {}", file.display()));
        }
    }
    // Only if nothing else is in it: it may be a directory of the user's own.
    let _ = std::fs::remove_dir(&paths.state);
    for parent in paths.shared_parents() {
        let _ = std::fs::remove_dir(parent);
    }
    line("removed the CA, the stored objects, what workloads kept, and the logs");
    Ok(())
}

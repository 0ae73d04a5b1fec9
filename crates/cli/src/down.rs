//! `tulle down`: ends the mesh in order, and makes sure that nothing is left of it.

use crate::args::up::Down;
use crate::failure::{Failure, OrFail, Result};
use crate::output::line;
use crate::paths::Paths;
use crate::proc::ProcessId;
use crate::remove_tree::remove_tree;
use crate::supervise::leftovers::Leftovers;
use crate::supervise::state::RunState;
use crate::supervise::{Lock, janitor};
use rustix::process::Signal;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

const LOOK: Duration = Duration::from_millis(50);

/// Stops the mesh, or clears up after one that crashed.
pub(crate) fn down(paths: &Paths, args: &Down) -> Result<()> {
    // An unreadable file of another version must not keep a mesh from being ended.
    let state = RunState::read(paths).unwrap_or_else(|failure| {
        anstream::eprintln!("warning: {failure}");
        None
    });
    // The lock knows a supervisor that has not written its state yet, or wrote it in another way. Who clears up is let finish.
    let supervisor = Lock::supervisor(paths).or(state.as_ref().map(|s| s.supervisor));
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
            wait(janitor::TIME, || !supervisor.is_alive());
        }
    }
    if let Some(janitor) = state.and_then(|s| s.janitor.id) {
        wait(janitor::TIME, || !janitor.is_alive());
    }
    // Held until the end, so that nobody starts what is then cleared away. Without a directory
    // there is nothing to clear and nothing to hold. The last step of a service's stop also clears up.
    let ends = |holder| !is_supervisor(paths, holder);
    let lock = || Lock::take_within(paths, janitor::TIME, ends);
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
    match cleared(paths)? {
        // Held until the directory is gone, so that nobody starts a mesh in it meanwhile.
        Some(_lock) => remove_held(paths),
        None => Ok(()),
    }
}

/// Removes the directory of a run, whose lock the caller holds. The lock's file goes last: from then on another mesh may have
/// one of its own there, and keeps what it makes.
fn remove_held(paths: &Paths) -> Result<()> {
    let what = || format!("cannot remove {}", paths.run.display());
    let lock = paths.lock();
    let entries = match std::fs::read_dir(&paths.run) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.or_fail(what)?,
    };
    for entry in entries {
        let entry = entry.or_fail(what)?;
        let path = entry.path();
        if path == lock {
            continue;
        }
        match entry.file_type().or_fail(what)?.is_dir() {
            true => remove_directory(&path)?,
            false => remove_file(&path)?,
        }
    }
    remove_file(&lock)?;
    match std::fs::remove_dir(&paths.run) {
        Err(e) if !matches!(e.kind(), ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty) => {
            Err(e).or_fail(what)
        }
        _ => Ok(()),
    }
}

fn remove_file(file: &Path) -> Result<()> {
    match std::fs::remove_file(file) {
        Err(e) if e.kind() != ErrorKind::NotFound => {
            Err(e).or_fail(|| format!("cannot remove {}", file.display()))
        }
        _ => Ok(()),
    }
}

fn remove_directory(directory: &Path) -> Result<()> {
    remove_tree(directory).or_fail(|| format!("cannot remove {}", directory.display()))
}

/// Clears up if no supervisor lives. One that does is left alone: an init system also comes here when its
/// own could not start because of another.
pub(crate) fn clear_up(paths: &Paths) -> Result<()> {
    cleared(paths).map(drop)
}

/// Clears up in the same way and returns the lock. None: a supervisor lives, or there is no directory.
fn cleared(paths: &Paths) -> Result<Option<Lock>> {
    let is_up = || Lock::holder(paths).is_some_and(ProcessId::is_alive);
    if !paths.run.is_dir() || is_up() {
        return Ok(None);
    }
    // The next supervisor waits for it as well, but only while the file says that there is one.
    let state = RunState::read(paths).ok().flatten();
    if let Some(janitor) = state.and_then(|s| s.janitor.id) {
        wait(janitor::TIME, || !janitor.is_alive());
    }
    let lock = match Lock::take(paths) {
        // One has been started since.
        Err(_) if is_up() => return Ok(None),
        lock => lock?,
    };
    let removed = janitor::clear(paths)?;
    if !removed.is_nothing() {
        line(&format!("removed what the mesh had left: {removed}"));
    }
    Ok(Some(lock))
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
        &paths.controller_state(),
        &paths.data(),
        &paths.away(),
        &paths.last_known_sidecars(),
    ];
    let directories = directories.map(|directory| remove_directory(directory));
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
    let files = files.map(|file| remove_file(&file));
    // One that stays is no reason to leave the others, which may be keys.
    directories
        .into_iter()
        .chain(files)
        .collect::<Result<()>>()?;
    // After all that belongs to its lock.
    remove_held(paths)?;
    // Only if nothing else is in it: it may be a directory of the user's own.
    let _ = std::fs::remove_dir(&paths.state);
    for parent in paths.shared_parents() {
        let _ = std::fs::remove_dir(parent);
    }
    line("removed the CA, the stored objects, what workloads kept, and the logs");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Meshes that are started while the directory is being removed.
    const STARTED: u64 = 40;

    /// Starts a mesh as far as its files. None: its directory was removed before it had the lock.
    fn start(paths: &Paths) -> Option<Lock> {
        paths.create().ok()?;
        let lock = Lock::take_within(paths, janitor::TIME, |_| true).ok()?;
        paths.create().ok()?;
        std::fs::write(paths.socket(), "").ok()?;
        Some(lock)
    }

    #[test]
    fn a_purge_goes_on_after_what_it_cannot_remove() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths {
            name: format!("p{:05}", std::process::id() % 100_000),
            state: dir.path().join("state"),
            run: dir.path().join("run"),
        };
        std::fs::create_dir_all(paths.controller_state()).unwrap();
        for file in [paths.data(), paths.host_authority()] {
            std::fs::write(file, "").unwrap();
        }
        let said = purge(&paths).unwrap_err().to_string();
        assert!(said.contains("state/data"), "{said}");
        assert!(!paths.controller_state().exists() && !paths.host_authority().exists());
    }

    #[test]
    fn the_directory_of_a_mesh_that_is_started_meanwhile_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths {
            name: format!("d{:05}", std::process::id() % 100_000),
            state: dir.path().join("state"),
            run: dir.path().join("run"),
        };
        let is_removed = AtomicBool::new(false);
        let (mut started, mut lost) = (0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_removed.load(Ordering::Relaxed) {
                    // It may be refused while the other starts.
                    let _ = remove_run(&paths);
                    std::thread::sleep(Duration::from_millis(3));
                }
            });
            let end = Instant::now() + janitor::TIME;
            while started < STARTED && Instant::now() < end {
                let Some(lock) = start(&paths) else {
                    continue;
                };
                started += 1;
                // Time for a removal that has looked before.
                std::thread::sleep(Duration::from_millis(2));
                let is_whole = paths.socket().exists() && paths.lock().exists();
                lost += u64::from(!is_whole);
                drop(lock);
                // Time for a removal to begin.
                std::thread::sleep(Duration::from_millis(started % 5));
            }
            is_removed.store(true, Ordering::Relaxed);
        });
        assert_eq!((started, lost), (STARTED, 0));
        // The lock is free now, but for a child that another test is starting, until it runs its own program.
        let end = Instant::now() + janitor::TIME;
        while paths.run.exists() && Instant::now() < end {
            let _ = remove_run(&paths);
        }
        assert!(!paths.run.exists());
        assert!(paths.state.exists());
    }
}

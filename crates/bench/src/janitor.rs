//! Leaves nothing behind, however the bench ends: a small process in a session of its own reads from
//! a pipe what was started, and clears that away when the pipe closes. The kernel closes it even
//! when the bench is killed with SIGKILL. A process that had been started but not yet told of then is
//! known by its environment.

use crate::failure::{OrFail, Result};
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a group may take to end after SIGTERM.
const PATIENCE: Duration = Duration::from_secs(3);

/// Environment variable of every process that is measured, and of the janitor: which bench started it.
const MARK: &str = "TULLE_BENCH";

/// Marks a command as one of this bench.
pub fn mark(command: &mut Command) {
    let id = std::process::id();
    let own = format!("{id}.{}", began(id).unwrap_or_default());
    command.env(MARK, own);
}

/// Something that must not stay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Thing {
    /// Processes, by the id of their group, and when its leader began.
    Group(u32, Option<u64>),
    /// A directory with all that is in it.
    Directory(PathBuf),
    /// A control group; what runs in it must be gone before.
    Cgroup(PathBuf),
    /// Run to clear up what is not of the three kinds above, such as `tulle down`.
    Command(Vec<String>),
}

impl Thing {
    /// The group that this process leads.
    pub fn group(leader: u32) -> Self {
        Self::Group(leader, began(leader))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Line {
    Keep(u64, Thing),
    Forget(u64),
}

/// The pipe; none before [`start`].
static PIPE: Mutex<Option<ChildStdin>> = Mutex::new(None);
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Starts the janitor: `tulle-bench internal janitor`.
///
/// # Errors
/// It cannot be started.
pub fn start() -> Result<()> {
    let what = || "cannot start the process that clears up".to_owned();
    let mut command = Command::new(std::env::current_exe().or_fail(what)?);
    command
        .args(["internal", "janitor"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .current_dir("/");
    mark(&mut command);
    let mut child = command.spawn().or_fail(what)?;
    // Nothing is started before the janitor is out of reach of the terminal's signals.
    if let Some(mut ready) = child.stdout.take() {
        ready.read_exact(&mut [0]).or_fail(what)?;
    }
    *PIPE.lock().unwrap_or_else(PoisonError::into_inner) = child.stdin.take();
    Ok(())
}

/// Clears `thing` away if the bench ends before the value that is returned. Does nothing before
/// [`start`].
pub fn watch(thing: Thing) -> JanitorWatch {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    tell(&Line::Keep(number, thing));
    JanitorWatch(number)
}

/// Something that is watched until this value ends.
#[derive(Debug)]
pub struct JanitorWatch(u64);

impl Drop for JanitorWatch {
    fn drop(&mut self) {
        tell(&Line::Forget(self.0));
    }
}

fn tell(line: &Line) {
    let mut pipe = PIPE.lock().unwrap_or_else(PoisonError::into_inner);
    if let (Some(pipe), Ok(mut text)) = (pipe.as_mut(), serde_json::to_vec(line)) {
        text.push(b'\n');
        // A janitor that somebody has killed clears nothing; the bench itself still does.
        let _ = pipe.write_all(&text);
    }
}

/// A new directory for files of a run, removed with this value.
#[derive(Debug)]
pub struct TemporaryDirectory {
    path: PathBuf,
    _watch: JanitorWatch,
}

impl TemporaryDirectory {
    /// Below the system's directory for such files.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn new(study: &str) -> Result<Self> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tulle-bench-{study}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let watch = watch(Thing::Directory(path.clone()));
        fs::create_dir(&path).or_fail(|| format!("cannot make {}", path.display()))?;
        Ok(Self {
            path,
            _watch: watch,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// `tulle-bench internal janitor`: reads what there is until the pipe closes, then clears it away.
pub fn main() {
    // Fails only for the leader of a group, which nobody makes of it.
    let _ = rustix::process::setsid();
    let mut out = std::io::stdout();
    let _ = out.write_all(b"\n").and_then(|()| out.flush());
    let mut things = BTreeMap::new();
    for line in BufReader::new(std::io::stdin()).lines() {
        // A broken pipe is a closed one.
        let Ok(line) = line else { break };
        match serde_json::from_str(&line) {
            Ok(Line::Keep(number, thing)) => drop(things.insert(number, thing)),
            Ok(Line::Forget(number)) => drop(things.remove(&number)),
            Err(_) => {}
        }
    }
    // The newest first: processes before the directories they were started in.
    for thing in things.values().rev() {
        clear(thing);
    }
    if let Ok(mark) = std::env::var(MARK) {
        end_marked(&mark);
    }
}

/// Ends the processes that were started in the moment in which the bench was killed. The janitor has the same
/// mark, and goes on.
fn end_marked(mark: &str) {
    let own = rustix::process::getpid();
    let mark = format!("{MARK}={mark}");
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        let is_ours = environment.split(|b| *b == 0).any(|v| v == mark.as_bytes());
        let id = entry.file_name().to_str().and_then(|n| n.parse().ok());
        let id = id.and_then(Pid::from_raw).filter(|_| is_ours);
        if let Some(id) = id.filter(|id| *id != own) {
            let _ = rustix::process::kill_process(id, Signal::KILL);
        }
    }
}

fn clear(thing: &Thing) {
    match thing {
        Thing::Group(leader, then) => {
            // Another process by the same number: ours is gone.
            if began(*leader).is_none_or(|now| Some(now) == *then) {
                end_group(*leader);
            }
        }
        Thing::Directory(path) => drop(fs::remove_dir_all(path)),
        Thing::Cgroup(path) => drop(fs::remove_dir(path)),
        Thing::Command(words) => {
            if let [program, arguments @ ..] = words.as_slice() {
                let mut command = Command::new(program);
                command.args(arguments).stdin(Stdio::null());
                let _ = command.stdout(Stdio::null()).status();
            }
        }
    }
}

fn end_group(leader: u32) {
    let Some(group) = i32::try_from(leader).ok().and_then(Pid::from_raw) else {
        return;
    };
    let _ = kill_process_group(group, Signal::TERM);
    let end = Instant::now() + PATIENCE;
    while test_kill_process_group(group).is_ok() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = kill_process_group(group, Signal::KILL);
}

/// When a process began, in ticks since the machine did; none: it is gone.
fn began(id: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The 22nd field; the second may hold spaces and ends with the last parenthesis.
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(19)?.parse().ok()
}

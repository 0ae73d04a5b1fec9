//! One budget of memory for the process: clients are refused, with a reason, before the kernel ends it.
//!
//! What one client can hold is bounded everywhere, and clients are many. So while the process uses
//! nearly what its cgroup allows, nothing new is let in, and peers that take nothing of what waits for
//! them go first: they hold most, and nobody waits for them. What moves goes on.
//!
//! The kernel is asked when somebody comes, a hundred times a second at the most: an idle process asks
//! nothing, and one without a limit never does.

use crate::reason::{Failure, Reason};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tulle_net::{Deadline, clock, memory};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(10);
/// Of the limit, in percent: above the first nothing new is let in, until it is below the second. The
/// rest is for what has been let in, and for the kernel's own.
const FULL: u64 = 80;
const ROOM: u64 = 70;
/// A cgroup without a limit says a number that no machine has, or a word.
const NO_LIMIT: u64 = 1 << 60;
/// How long a peer may take nothing while memory is short.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// Why whoever takes nothing is cut.
pub const STUCK: &str = "memory is short, and the peer took nothing of what waits for it";

struct Budget {
    limit: u64,
    usage: File,
    statistics: File,
    /// Names of what the kernel gives up before it ends a process.
    cache: [&'static str; 2],
    /// When to look again, in milliseconds.
    next: AtomicU64,
    short: AtomicBool,
}

static BUDGET: OnceLock<Option<Budget>> = OnceLock::new();

/// Reads the limit. Without this, or without a limit, memory is never short.
pub fn start() {
    let budget = BUDGET.get_or_init(|| {
        let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        groups
            .lines()
            .filter_map(of_hierarchy)
            .min_by_key(|b| b.limit)
    });
    if let Some(budget) = budget {
        tracing::debug!(bytes = budget.limit, "limit of memory");
    }
}

/// Whether nothing new may be let in.
pub fn is_short() -> bool {
    match BUDGET.get() {
        Some(Some(budget)) => budget.is_short(),
        _ => false,
    }
}

/// Whether to give up an exchange whose peer takes nothing of what waits for it. It began to wait when
/// `deadline` was armed with `idle`.
pub fn gives_up(deadline: &Deadline, idle: Duration) -> bool {
    is_short() && deadline.left().is_some_and(|left| left + PATIENCE <= idle)
}

/// What somebody is told who is not let in.
#[cold]
pub fn refusal() -> Failure {
    let limit = BUDGET.get().and_then(Option::as_ref).map_or(0, |b| b.limit);
    let text = format!(
        "this proxy uses over {FULL} % of the {} MiB of memory that its cgroup allows; nothing new is \
         taken until it has room, give it more (Mesh spec.sidecar.memoryLimit, or the container's limit)",
        limit >> 20
    );
    Failure::new(Reason::Overload, text)
}

impl Budget {
    fn is_short(&self) -> bool {
        let now = u64::try_from(clock::monotonic().as_millis()).unwrap_or(u64::MAX);
        let due = self.next.load(Ordering::Relaxed);
        let next = now + LOOK.as_millis() as u64;
        let looks = now >= due
            && self
                .next
                .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        let was = self.short.load(Ordering::Relaxed);
        if !looks {
            return was;
        }
        let mark = self.limit / 100 * if was { ROOM } else { FULL };
        let short = self.used().is_some_and(|used| used >= mark)
            && self.needed().is_some_and(|needed| needed >= mark);
        self.short.store(short, Ordering::Relaxed);
        if short {
            // What was freed since counts as long as it is kept.
            memory::release_free();
        }
        short
    }

    /// Bytes that count towards the limit.
    fn used(&self) -> Option<u64> {
        let mut text = [0; 32];
        let read = self.usage.read_at(&mut text, 0).ok()?;
        let text = std::str::from_utf8(text.get(..read)?).ok()?;
        text.trim().parse().ok()
    }

    /// The same without the cache of files. It takes longer to find out.
    fn needed(&self) -> Option<u64> {
        let mut text = [0; 8192];
        let read = self.statistics.read_at(&mut text, 0).ok()?;
        let text = std::str::from_utf8(text.get(..read)?).ok()?;
        let cache = text.lines().filter_map(|line| {
            let (name, bytes) = line.split_once(' ')?;
            let counts = self.cache.contains(&name);
            counts.then(|| bytes.parse::<u64>().ok())?
        });
        Some(self.used()?.saturating_sub(cache.sum()))
    }
}

/// One hierarchy's budget, if it limits memory: `ID:CONTROLLERS:PATH`, without controllers version 2
/// (cgroups(7)).
fn of_hierarchy(line: &str) -> Option<Budget> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next()?, fields.next()?);
    let (root, [limit, usage], cache) = match controllers {
        "" => (
            "/sys/fs/cgroup",
            ["memory.max", "memory.current"],
            ["inactive_file", "active_file"],
        ),
        v1 if v1.split(',').any(|c| c == "memory") => (
            "/sys/fs/cgroup/memory",
            ["memory.limit_in_bytes", "memory.usage_in_bytes"],
            ["total_inactive_file", "total_active_file"],
        ),
        _ => return None,
    };
    // In a container the path may be the host's: what there is of it counts, and the root does.
    let own = Path::new(path.trim_start_matches('/'));
    let groups = own.ancestors().map(|group| Path::new(root).join(group));
    let limits = groups.filter_map(|group| {
        let text = std::fs::read_to_string(group.join(limit)).ok()?;
        let bytes = text.trim().parse::<u64>().ok()?;
        (bytes < NO_LIMIT).then_some((bytes, group))
    });
    let (limit, group) = limits.min()?;
    Some(Budget {
        limit,
        usage: File::open(group.join(usage)).ok()?,
        statistics: File::open(group.join("memory.stat")).ok()?,
        cache,
        next: AtomicU64::new(0),
        short: AtomicBool::new(false),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(text: &str) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    fn budget(used: u64, cache: u64) -> Budget {
        Budget {
            limit: 1000,
            usage: file(&format!("{used}\n")),
            statistics: file(&format!("anon 7\nactive_file {cache}\ninactive_file 0\n")),
            cache: ["inactive_file", "active_file"],
            next: AtomicU64::new(0),
            short: AtomicBool::new(false),
        }
    }

    #[test]
    fn memory_is_short_from_one_mark_to_another() {
        assert!(!budget(799, 0).is_short());
        assert!(budget(800, 0).is_short());
        // The cache of files is given up first.
        assert!(!budget(900, 101).is_short());
        assert!(budget(900, 100).is_short());
        // Between the two marks it stays what it was.
        let between = budget(750, 0);
        assert!(!between.is_short());
        between.next.store(0, Ordering::Relaxed);
        between.short.store(true, Ordering::Relaxed);
        assert!(between.is_short());
        // It is not asked again at once.
        between.short.store(false, Ordering::Relaxed);
        assert!(!between.is_short());
        let below = budget(699, 0);
        below.short.store(true, Ordering::Relaxed);
        assert!(!below.is_short());
    }

    #[test]
    fn what_limits_nothing_has_no_budget() {
        for line in ["", "4:cpu,cpuacct:/a", "1:name=systemd:/", "nonsense", "0:"] {
            assert!(of_hierarchy(line).is_none(), "{line}");
        }
    }
}

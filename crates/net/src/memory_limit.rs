//! One budget of memory for the process: new work is refused, with a reason, before the kernel ends the process.
//!
//! The limit is that of the process's cgroup. The kernel is asked when new work arrives, and only so often: an idle
//! process asks nothing, and one without a limit never does.

use crate::clock;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Thresholds in percent of the limit: above the first nothing new is let in, until use is below the second. The
/// rest is for what has been let in, and for the kernel's own.
pub const FULL: u64 = 80;
const ROOM: u64 = 70;
/// A cgroup without a limit says a number that no machine has, or a word.
const NO_LIMIT: u64 = 1 << 60;

struct Budget {
    limit: u64,
    usage: File,
    statistics: File,
    /// Names of the memory that the kernel reclaims before it ends a process.
    cache: [&'static str; 2],
    /// Time between two looks.
    look: Duration,
    release: fn(),
    /// When to look again, in milliseconds.
    next: AtomicU64,
    short: AtomicBool,
}

static BUDGET: OnceLock<Option<Budget>> = OnceLock::new();

/// Reads the limit. Without this, or without a limit, memory is never short. The kernel is asked at most once in
/// `look`. `release` returns free memory to the kernel, because freed memory counts as long as the allocator keeps
/// it.
pub fn start(look: Duration, release: fn()) {
    BUDGET.get_or_init(|| {
        let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let all = groups.lines().filter_map(of_hierarchy);
        let tightest = all.min_by_key(|b| b.limit)?;
        Some(Budget {
            look,
            release,
            ..tightest
        })
    });
}

/// The limit in bytes, if there is one.
pub fn limit() -> Option<u64> {
    BUDGET.get()?.as_ref().map(|budget| budget.limit)
}

/// Whether nothing new may be let in.
pub fn is_short() -> bool {
    match BUDGET.get() {
        Some(Some(budget)) => budget.is_short(),
        _ => false,
    }
}

impl Budget {
    fn is_short(&self) -> bool {
        let now = u64::try_from(clock::monotonic().as_millis()).unwrap_or(u64::MAX);
        let due = self.next.load(Ordering::Relaxed);
        let next = now + self.look.as_millis() as u64;
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
        let mut short = self.is_over(mark);
        if short {
            (self.release)();
            short = self.is_over(mark);
        }
        self.short.store(short, Ordering::Relaxed);
        short
    }

    fn is_over(&self, mark: u64) -> bool {
        self.used().is_some_and(|used| used >= mark)
            && self.needed().is_some_and(|needed| needed >= mark)
    }

    /// Bytes that count towards the limit.
    fn used(&self) -> Option<u64> {
        let mut text = [0; 32];
        let read = self.usage.read_at(&mut text, 0).ok()?;
        let text = std::str::from_utf8(text.get(..read)?).ok()?;
        text.trim().parse().ok()
    }

    /// The use without the cache of files. It takes longer to find out.
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

/// Returns the budget of one hierarchy, if it limits memory: `ID:CONTROLLERS:PATH`, without controllers version 2
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
    // In a container the path may be the host's: the groups of it that exist count, and the root does.
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
        look: Duration::ZERO,
        release: || {},
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
            look: Duration::from_secs(60),
            release: || {},
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
        // Between the two thresholds the state stays the same.
        let between = budget(750, 0);
        assert!(!between.is_short());
        between.next.store(0, Ordering::Relaxed);
        between.short.store(true, Ordering::Relaxed);
        assert!(between.is_short());
        // The kernel is not asked again at once.
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

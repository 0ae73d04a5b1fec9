//! CPU and memory of processes over time, and how idle the machine was.

use crate::process::usage_of_one;
use crate::results::Series;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Between points of a series.
const PERIOD: Duration = Duration::from_millis(250);

/// A process to watch.
#[derive(Debug, Clone)]
pub(super) struct Target {
    /// The name of the series.
    pub(super) name: String,
    /// Added up.
    pub(super) processes: Vec<u32>,
}

/// Watches until it is stopped.
pub(super) struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Record>,
}

/// The recorded usage.
#[derive(Debug, Default)]
pub(super) struct Record {
    targets: Vec<String>,
    points: Vec<Point>,
}

#[derive(Debug, Clone)]
struct Point {
    /// Seconds since 1970.
    at: f64,
    /// CPU seconds and resident MiB of each target.
    used: Vec<(f64, f64)>,
    /// Ticks of the whole machine: idle, and all.
    machine: (f64, f64),
}

/// Usage of one target within the measurement.
#[derive(Debug, Clone, Default)]
pub(super) struct Used {
    /// CPU seconds.
    pub(super) cpu: f64,
    /// Cores, on average.
    pub(super) average: f64,
    /// Cores, at most between two points.
    pub(super) highest: f64,
    /// Resident, at most.
    pub(super) rss_peak: f64,
    /// Point by point.
    pub(super) series: Series,
}

/// Seconds since 1970.
pub(super) fn now() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
}

impl Watch {
    /// Begins.
    pub(super) fn start(targets: Vec<Target>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut points: Vec<Point> = Vec::new();
            loop {
                let last = stopped.load(Ordering::Relaxed);
                let mut point = look(&targets);
                if let Some(before) = points.last() {
                    point.keep(before);
                }
                points.push(point);
                if last {
                    break;
                }
                std::thread::park_timeout(PERIOD);
            }
            Record {
                targets: targets.into_iter().map(|t| t.name).collect(),
                points,
            }
        });
        Self { stop, thread }
    }

    /// Ends, with a last look.
    pub(super) fn stop(self) -> Record {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        self.thread.join().unwrap_or_default()
    }
}

impl Point {
    /// Keeps usage that has disappeared: a thread or process that ended in the meantime, such as a load
    /// generator's, still used it.
    fn keep(&mut self, before: &Self) {
        for (now, before) in self.used.iter_mut().zip(&before.used) {
            now.0 = now.0.max(before.0);
        }
    }
}

fn look(targets: &[Target]) -> Point {
    let used = |target: &Target| {
        let all = target.processes.iter();
        let usage: crate::process::Usage = all.map(|id| usage_of_one(*id)).sum();
        (usage.cpu.as_secs_f64(), usage.rss_mib)
    };
    Point {
        at: now(),
        used: targets.iter().map(used).collect(),
        machine: machine(&fs::read_to_string("/proc/stat").unwrap_or_default()),
    }
}

/// Idle and all ticks of the line `cpu`.
fn machine(stat: &str) -> (f64, f64) {
    let line = stat.lines().next().unwrap_or("");
    // Guests' time is already included in user and nice.
    let ticks = line.split_whitespace().skip(1).take(8);
    let ticks: Vec<f64> = ticks.filter_map(|t| t.parse().ok()).collect();
    let idle = ticks.iter().skip(3).take(2).sum();
    (idle, ticks.iter().sum())
}

impl Record {
    /// Returns the usage of a target from `begin` to `end`, in seconds since 1970.
    pub(super) fn used(&self, target: &str, begin: f64, end: f64) -> Used {
        let Some(index) = self.targets.iter().position(|t| t == target) else {
            return Used::default();
        };
        let cpu_at = |at| self.value(at, |p| p.used[index].0);
        let cpu = (cpu_at(end) - cpu_at(begin)).max(0.0);
        let mut used = Used {
            cpu,
            average: cpu / (end - begin).max(f64::MIN_POSITIVE),
            series: Series {
                sidecar: target.to_owned(),
                ..Series::default()
            },
            ..Used::default()
        };
        let mut before = (begin, cpu_at(begin));
        for point in self.points.iter().filter(|p| p.at > begin && p.at <= end) {
            let (cpu, rss) = point.used[index];
            let time = point.at - before.0;
            // Too short a time to say how much was used in it.
            if time < PERIOD.as_secs_f64() / 2.0 {
                continue;
            }
            let cores = ((cpu - before.1) / time).max(0.0);
            before = (point.at, cpu);
            used.highest = used.highest.max(cores);
            used.rss_peak = used.rss_peak.max(rss);
            used.series.at_s.push(round(point.at - begin, 3));
            used.series.cpu_cores.push(round(cores, 3));
            used.series.rss_mib.push(round(rss, 2));
        }
        used
    }

    /// Share of the machine's time in which no CPU had anything to do.
    pub(super) fn idle(&self, begin: f64, end: f64) -> f64 {
        let passed = |part: fn(&Point) -> f64| self.value(end, part) - self.value(begin, part);
        let all = passed(|p| p.machine.1);
        if all > 0.0 {
            passed(|p| p.machine.0) / all
        } else {
            0.0
        }
    }

    /// A sum that only grows, at a time between two points.
    fn value(&self, at: f64, part: impl Fn(&Point) -> f64) -> f64 {
        let after = self.points.partition_point(|p| p.at < at);
        match (
            after.checked_sub(1).map(|i| &self.points[i]),
            self.points.get(after),
        ) {
            (Some(a), Some(b)) if b.at > a.at => {
                let share = (at - a.at) / (b.at - a.at);
                part(a) + share * (part(b) - part(a))
            }
            (Some(only), _) | (_, Some(only)) => part(only),
            (None, None) => 0.0,
        }
    }
}

fn round(value: f64, digits: i32) -> f64 {
    let factor = 10f64.powi(digits);
    (value * factor).round() / factor
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn only_what_was_used_within_the_measurement_counts() {
        // Half a core before second 10, a whole one from then on; 20 MiB, then 30, then 40.
        let point = |at: f64, cpu: f64, rss: f64| Point {
            at,
            used: vec![(cpu, rss)],
            machine: (at * 10.0, at * 200.0),
        };
        let record = Record {
            targets: vec!["gateway".into()],
            points: vec![
                point(9.0, 4.5, 20.0),
                point(10.0, 5.0, 20.0),
                point(11.0, 6.0, 30.0),
                point(12.0, 7.0, 30.0),
                point(13.0, 8.0, 40.0),
            ],
        };
        let used = record.used("gateway", 10.0, 12.5);
        assert!(close(used.cpu, 2.5), "{used:?}");
        assert!(close(used.average, 1.0) && close(used.highest, 1.0));
        assert!(close(used.rss_peak, 30.0));
        assert_eq!(used.series.at_s, [1.0, 2.0]);
        assert!(close(record.used("gateway", 9.0, 13.0).average, 3.5 / 4.0));
        assert!(close(record.idle(10.0, 12.5), 0.05));
        assert!(close(record.used("nobody", 10.0, 12.0).cpu, 0.0));
    }

    /// Not this process: threads of other tests end meanwhile, and their time with them.
    fn busy() -> std::process::Child {
        std::process::Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .unwrap()
    }

    /// Waits until it has used some time: a busy machine may not run it at once.
    fn works(id: u32) {
        let before = usage_of_one(id).cpu;
        while usage_of_one(id).cpu < before + Duration::from_millis(50) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn watches_a_process() {
        let mut child = busy();
        let watch = Watch::start(vec![Target {
            name: "this".into(),
            processes: vec![child.id()],
        }]);
        let begin = now();
        std::thread::sleep(PERIOD * 3);
        works(child.id());
        let record = watch.stop();
        // This is later than the last sample.
        let end = now();
        child.kill().unwrap();
        child.wait().unwrap();
        let used = record.used("this", begin, end);
        assert!(used.cpu > 0.01 && used.rss_peak > 0.1, "{used:?}");
        assert!(!used.series.at_s.is_empty());
    }

    #[test]
    fn what_an_ended_process_used_is_kept() {
        let mut child = busy();
        let watch = Watch::start(vec![Target {
            name: "child".into(),
            processes: vec![child.id()],
        }]);
        let begin = now();
        works(child.id());
        // Somebody looks before it ends, also on a busy machine.
        std::thread::sleep(PERIOD * 8);
        child.kill().unwrap();
        child.wait().unwrap();
        let used = watch.stop().used("child", begin, now());
        assert!(used.cpu > 0.01, "{used:?}");
    }

    #[test]
    fn reads_the_machines_ticks() {
        let stat = "cpu  10 0 20 60 10 0 0 0 5 0\ncpu0 1 1 1 1 1\n";
        assert_eq!(machine(stat), (70.0, 100.0));
    }
}

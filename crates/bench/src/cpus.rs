//! Which CPUs sidecars and load run on.

use crate::failure::{Failure, FailureKind, OrFail, Result};

/// The CPUs of `--sidecar-cpu` (default: 0) and `--load-cpu` (default: 1; on a machine with one CPU
/// there is but that).
pub(crate) fn chosen(sidecar: Option<usize>, load: Option<usize>) -> (usize, usize) {
    let several = std::thread::available_parallelism().is_ok_and(|n| n.get() > 1);
    let load = load.unwrap_or(usize::from(several));
    (sidecar.unwrap_or(0), load)
}

/// Checks that both CPUs can be used here.
///
/// # Errors
/// One cannot.
pub(crate) fn check(sidecar: usize, load: usize) -> Result<()> {
    let set = rustix::thread::sched_getaffinity(None)
        .or_fail(|| "cannot read which CPUs may be used".to_owned())?;
    for (option, cpu) in [("--sidecar-cpu", sidecar), ("--load-cpu", load)] {
        if cpu >= rustix::thread::CpuSet::MAX_CPU || !set.is_set(cpu) {
            let text = format!("{option} {cpu}: this CPU cannot be used here; see `nproc`");
            return Err(Failure::new(FailureKind::Usage, text));
        }
    }
    Ok(())
}

/// Returns as many CPUs as the sidecars have workers, and the remaining ones for the load. If none remain,
/// all share all.
pub(crate) fn several(
    workers: usize,
    sidecar: Option<usize>,
    load: Option<usize>,
) -> (Vec<usize>, Vec<usize>) {
    let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let first = sidecar.unwrap_or(0);
    let sidecars: Vec<usize> = (first..count.max(first + 1)).take(workers).collect();
    let left = (0..count).filter(|cpu| !sidecars.contains(cpu));
    let loads: Vec<usize> = load.map_or_else(|| left.collect(), |load| vec![load]);
    let loads = if loads.is_empty() {
        sidecars.clone()
    } else {
        loads
    };
    (sidecars, loads)
}

/// `CPU 0`, `CPUs 0, 1`.
pub(crate) fn named(cpus: &[usize]) -> String {
    let numbers: Vec<String> = cpus.iter().map(usize::to_string).collect();
    let plural = if cpus.len() > 1 { "s" } else { "" };
    format!("CPU{plural} {}", numbers.join(", "))
}

/// A note for readers when sidecars and load share several CPUs.
pub(crate) fn note_several(sidecars: &[usize], loads: &[usize]) -> Option<String> {
    let shared = sidecars.iter().any(|cpu| loads.contains(cpu));
    shared.then(|| {
        "There were too few CPUs to keep load and sidecars apart: they waited for each other. CPU time per request can be compared between numbers of workers; requests/s and latencies say nothing about them.".to_owned()
    })
}

/// A note for readers when sidecars and load share one CPU.
pub(crate) fn note(sidecar: usize, load: usize) -> Option<String> {
    (sidecar == load).then(|| {
        "There was one CPU for everything: load, server and sidecars waited for each other, and the figures mean little.".to_owned()
    })
}

//! Which CPUs sidecars and load run on.

use crate::failure::{Failure, Kind, OrFail, Result};

/// The CPUs of `--sidecar-cpu` (default: 0) and `--load-cpu` (default: 1; on a machine with one CPU
/// there is but that).
pub(crate) fn chosen(sidecar: Option<usize>, load: Option<usize>) -> (usize, usize) {
    let several = std::thread::available_parallelism().is_ok_and(|n| n.get() > 1);
    let load = load.unwrap_or(usize::from(several));
    (sidecar.unwrap_or(0), load)
}

/// That both can be used here.
///
/// # Errors
/// One cannot.
pub(crate) fn check(sidecar: usize, load: usize) -> Result<()> {
    let set = rustix::thread::sched_getaffinity(None)
        .or_fail(|| "cannot read which CPUs may be used".to_owned())?;
    for (option, cpu) in [("--sidecar-cpu", sidecar), ("--load-cpu", load)] {
        if cpu >= rustix::thread::CpuSet::MAX_CPU || !set.is_set(cpu) {
            let text = format!("{option} {cpu}: this CPU cannot be used here; see `nproc`");
            return Err(Failure::new(Kind::Usage, text));
        }
    }
    Ok(())
}

/// What a reader must know when sidecars and load share a CPU.
pub(crate) fn note(sidecar: usize, load: usize) -> Option<String> {
    (sidecar == load).then(|| {
        "There was one CPU for everything: load, server and sidecars waited for each other, and the figures mean little.".to_owned()
    })
}

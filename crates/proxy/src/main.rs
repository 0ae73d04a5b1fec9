//! `tulle-proxy --config FILE`: one sidecar or gateway.

use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;
use tulle_proxy::arguments::{self, HELP, Task};

/// Few arenas and quick return of free memory keep a sidecar small.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Read by jemalloc at start.
#[allow(unsafe_code)]
// SAFETY: the name is jemalloc's own and nothing else in the program has it; jemalloc only reads.
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static MALLOC_CONF: &std::ffi::CStr =
    c"narenas:2,dirty_decay_ms:1000,muzzy_decay_ms:0,lg_tcache_max:15";

fn main() -> ExitCode {
    let task = match arguments::parse(std::env::args_os().skip(1)) {
        Ok(task) => task,
        Err(why) => {
            eprintln!("tulle-proxy: {why}\nFor more information, try '--help'.");
            return ExitCode::from(64);
        }
    };
    let (source, check) = match task {
        Task::Run(source) => (source, false),
        Task::Check(source) => (source, true),
        Task::WaitReady => return told(tulle_proxy::admin::wait::ready(), ExitCode::FAILURE),
        Task::CheckRedirect(own) => {
            return told(
                tulle_proxy::admin::redirected::check(own),
                ExitCode::from(79),
            );
        }
        #[cfg(not(feature = "plugins"))]
        Task::TryPlugin => return told(Err("it is built without plugins"), ExitCode::from(65)),
        #[cfg(feature = "plugins")]
        Task::TryPlugin => return told(tulle_proxy::plugin_trial::run(), ExitCode::from(65)),
        Task::Help => return print(HELP),
        Task::Version => return print(concat!("tulle-proxy ", env!("CARGO_PKG_VERSION"), "\n")),
    };
    // Set before any key is in memory or in a file: without root all processes of a mesh are one
    // user, and none may look into another, nor may a core dump hold a key.
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        eprintln!("tulle-proxy: cannot keep its memory to itself: {error}");
        return ExitCode::FAILURE;
    }
    if let Err(error) = tulle_proxy::telemetry::logging::start() {
        return told(Err(error), ExitCode::from(65));
    }
    let result = if check {
        source
            .read()
            .map(drop)
            .map_err(tulle_proxy::run::StartError::Config)
    } else {
        tulle_proxy::run::run(&source)
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tulle-proxy: {error}");
            let bad_input = matches!(error, tulle_proxy::run::StartError::Config(_));
            ExitCode::from(if bad_input { 65 } else { 1 })
        }
    }
}

/// Prints the result of a task other than running the proxy, and returns the exit code.
fn told(result: Result<(), impl Display>, failed: ExitCode) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("tulle-proxy: {why}");
            failed
        }
    }
}

fn print(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

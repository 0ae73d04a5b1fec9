//! `tulle-proxy --config FILE`: one sidecar or gateway.

use clap::Parser;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use std::path::PathBuf;
use std::process::ExitCode;
use tulle_proxy::config_file::Source;

/// Few arenas and quick return of free memory: a sidecar must stay small.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Read by jemalloc at start.
#[allow(unsafe_code)]
// SAFETY: the name is jemalloc's own and nothing else in the program has it; jemalloc only reads.
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static MALLOC_CONF: &std::ffi::CStr =
    c"narenas:2,dirty_decay_ms:1000,muzzy_decay_ms:0,lg_tcache_max:15";

/// A sidecar proxy or gateway of the Tulle mesh.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// What this proxy is, where it listens, and where its configuration comes from.
    #[arg(long, value_name = "FILE", required_unless_present_any = ["config_env", "wait_ready", "check_redirect"])]
    config: Option<PathBuf>,
    /// The same in a variable of the environment.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["config", "wait_ready"])]
    config_env: Option<String>,
    /// Check the configuration and exit.
    #[arg(long)]
    check: bool,
    /// Wait until the proxy of this pod is ready, for at most two minutes.
    #[arg(long, conflicts_with_all = ["config", "check"])]
    wait_ready: bool,
    /// Whether the traffic of the pod with this address is redirected; 79: it is not.
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["config", "config_env", "check", "wait_ready"])]
    check_redirect: Option<std::net::IpAddr>,
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Printing fails only when there is nobody to read it.
            let _ = error.print();
            return if error.use_stderr() {
                ExitCode::from(64)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    if arguments.wait_ready {
        return match tulle_proxy::wait::ready() {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => {
                eprintln!("tulle-proxy: {why}");
                ExitCode::FAILURE
            }
        };
    }
    if let Some(own) = arguments.check_redirect {
        return match tulle_proxy::redirected::check(own) {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => {
                eprintln!("tulle-proxy: {why}");
                ExitCode::from(79)
            }
        };
    }
    let source = match (arguments.config, arguments.config_env) {
        (Some(path), _) => Source::File(path),
        (None, name) => Source::Environment(name.unwrap_or_default()),
    };
    // Before there is a key in memory or as a file: all sidecars of a host are one user, and none
    // may look into another, nor may a core dump hold a key.
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        eprintln!("tulle-proxy: cannot keep its memory to itself: {error}");
        return ExitCode::FAILURE;
    }
    tulle_proxy::logging::start();
    let result = if arguments.check {
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

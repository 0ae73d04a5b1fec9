//! `tulle exec`: a command as if the application of a workload had started it, so that what it says
//! goes through the sidecar.

use crate::args::workloads::Exec;
use crate::failure::{Failure, OrFail, Result};
use crate::paths::Paths;
use crate::proc::MARK;
use crate::supervise::state::RunState;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use tulle_redirect::{LaunchSpec, exec_in};

/// Becomes the command; returns only if that failed.
pub(crate) fn exec(paths: &Paths, state: &RunState, args: &Exec) -> Result<()> {
    let name = &args.workload;
    let workload = state.workloads.iter().find(|w| w.name == *name);
    let workload = workload.ok_or_else(|| {
        let known: Vec<_> = state.workloads.iter().map(|w| w.name.as_str()).collect();
        Failure::new(format!("there is no workload {name} on this host"))
            .fix(format!("there are: {}", known.join(", ")))
    })?;
    let app = workload.app.as_ref().and_then(|app| app.id);
    let Some(app) = app.filter(|id| id.is_alive()) else {
        return Err(Failure::new(format!(
            "workload {name} has no process whose place a command could take"
        ))
        .fix("see `tulle status`; one with an `address` is not started by the mesh"));
    };
    let of_app = |file: &str| format!("/proc/{}/{file}", app.pid);
    let what = || format!("cannot look at the application of {name}");
    let started = std::fs::read(of_app("cmdline")).or_fail(what)?;
    if exec_in::is_on_its_way(&started) {
        return Err(
            Failure::new(format!("the application of {name} is just being started"))
                .fix("try again in a moment"),
        );
    }
    let environment = std::fs::read(of_app("environ")).or_fail(what)?;
    let status = std::fs::read_to_string(of_app("status")).or_fail(what)?;
    let directory = std::fs::read_link(of_app("cwd")).or_fail(what)?;
    let own = rustix::process::geteuid().as_raw();
    let namespaced = workload.namespace.is_some();
    let names = |file| {
        let path = paths.account_file(name, file);
        path.exists().then_some(path)
    };
    let user = ids(&status).filter(|(user, _)| *user != own);
    // The application sees its directory there if it has no way to where it is.
    let seen = user.map(|_| paths.data_mounts().join(name));
    let seen = seen.filter(|at| at.is_dir());
    let launch = LaunchSpec {
        namespace: workload.namespace.clone(),
        hosts: namespaced.then(|| paths.hosts()),
        resolv_conf: namespaced.then(|| paths.resolv_conf()),
        passwd: user.and_then(|_| names("passwd")),
        group: user.and_then(|_| names("group")),
        directory: seen.map(|at| (paths.data().join(name), at)),
        user,
        bind_low_ports: namespaced,
        // It takes the place of this very process.
        parent: None,
        ..LaunchSpec::default()
    };
    let (program, arguments) = args
        .command
        .split_first()
        .ok_or_else(|| Failure::usage("there is no command"))?;
    let mut variables: BTreeMap<_, _> = variables(&environment).collect();
    // The caller's values win for the terminal and for the search path of programs.
    for variable in ["PATH", "TERM", "COLUMNS", "LINES", "NO_COLOR"] {
        if let Some(value) = std::env::var_os(variable) {
            variables.insert(variable.into(), value);
        }
    }
    let mut command = launch
        .command(program, variables)
        .or_fail(|| format!("cannot start {}", program.display()))?;
    command.args(arguments).env(MARK, &paths.run);
    if directory.is_dir() {
        command.current_dir(directory);
    }
    let error = command.exec();
    Err(Failure::new(format!("cannot start {}", program.display())).because(error))
}

/// The effective user and group in `/proc/PID/status`.
fn ids(status: &str) -> Option<(u32, u32)> {
    let id = |name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().nth(1)?.parse().ok()
    };
    Some((id("Uid:")?, id("Gid:")?))
}

fn variables(environment: &[u8]) -> impl Iterator<Item = (OsString, OsString)> + '_ {
    let all = environment.split(|&byte| byte == 0);
    all.filter_map(|variable| {
        let equals = variable.iter().position(|&byte| byte == b'=')?;
        let (name, value) = variable.split_at(equals);
        let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        Some((text(name), text(value.get(1..)?)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_tells_of_a_process() {
        let status = "Name:\tx\nUid:\t1\t61184\t1\t1\nGid:\t2\t61185\t2\t2\n";
        assert_eq!(ids(status), Some((61184, 61185)));
        assert_eq!(ids("Name:\tx\n"), None);
        let found: Vec<_> = variables(b"A=1\0B=x=y\0none\0\0").collect();
        let pair = |name: &str, value: &str| (name.into(), value.into());
        assert_eq!(found, [pair("A", "1"), pair("B", "x=y")]);
    }
}

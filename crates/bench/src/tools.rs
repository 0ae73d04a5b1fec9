//! Where the programs are that Tulle is measured with and beside; for a missing one, how to get it.

use crate::failure::{Failure, FailureKind, OrFail, Result};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Envoy: the one given, else `TULLE_ENVOY`, else the one in `build/envoy-venv`, else in PATH.
///
/// # Errors
/// There is none.
pub fn envoy(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = given {
        let there = runnable(path).then(|| unwrapped(path));
        return there.ok_or_else(|| unusable("Envoy", path));
    }
    if let Some(path) = from_environment("TULLE_ENVOY", "Envoy")? {
        return Ok(unwrapped(&path));
    }
    let built = roots().find_map(|root| packaged(&root.join("build/envoy-venv")));
    built
        .or_else(|| in_path("envoy").map(|path| unwrapped(&path)))
        .ok_or_else(|| {
            missing(
                "Envoy",
                "run scripts/fetch-envoy.sh, or name one with --envoy",
            )
        })
}

/// nginx.
///
/// # Errors
/// There is none.
pub fn nginx() -> Result<PathBuf> {
    debian("nginx", "nginx")
}

/// nginx's module of JavaScript, as Debian has it.
///
/// # Errors
/// There is none.
pub fn njs() -> Result<PathBuf> {
    let path = Path::new("/usr/lib/nginx/modules/ngx_http_js_module.so");
    let found = path.exists().then(|| path.to_owned());
    found.ok_or_else(|| missing("nginx's njs", "apt-get install libnginx-mod-http-js"))
}

/// HAProxy.
///
/// # Errors
/// There is none.
pub fn haproxy() -> Result<PathBuf> {
    debian("haproxy", "HAProxy")
}

/// Pipy: only one that is given.
///
/// # Errors
/// None was given, or it is no program.
pub fn pipy(given: Option<&Path>) -> Result<PathBuf> {
    let path = given.ok_or_else(|| {
        missing(
            "Pipy",
            "build it from its sources and name it with --pipy-binary FILE; no registry of packages has it",
        )
    })?;
    let there = runnable(path).then(|| path.to_owned());
    there.ok_or_else(|| unusable("Pipy", path))
}

/// Fortio, the load of study 2: `TULLE_FORTIO`, else the one in `build/tools`, else in PATH.
///
/// # Errors
/// There is none.
pub fn fortio() -> Result<PathBuf> {
    fetched(
        "fortio",
        "Fortio",
        "TULLE_FORTIO",
        "scripts/fetch-fortio.sh",
    )
}

/// oha, the load of study 1: `TULLE_OHA`, else the one in `build/tools`, else in PATH.
///
/// # Errors
/// There is none.
pub fn oha() -> Result<PathBuf> {
    fetched("oha", "oha", "TULLE_OHA", "scripts/fetch-oha.sh")
}

/// Finds `tulle-proxy`: `TULLE_PROXY`, else beside this program, else in PATH.
///
/// # Errors
/// There is none.
pub fn tulle_proxy() -> Result<PathBuf> {
    if let Some(path) = from_environment("TULLE_PROXY", "tulle-proxy")? {
        return Ok(path);
    }
    let own = std::env::current_exe().ok();
    let directories = own.iter().flat_map(|path| path.ancestors().skip(1).take(2));
    // One further up for a test of this crate, which cargo puts into `deps`.
    directories
        .map(|directory| directory.join("tulle-proxy"))
        .find(|path| runnable(path))
        .or_else(|| in_path("tulle-proxy"))
        .ok_or_else(|| missing("tulle-proxy", "build it beside tulle: make build"))
}

fn debian(program: &str, name: &str) -> Result<PathBuf> {
    let get = format!("apt-get install {program}");
    in_path(program).ok_or_else(|| missing(name, &get))
}

fn fetched(program: &str, name: &str, variable: &str, script: &str) -> Result<PathBuf> {
    if let Some(path) = from_environment(variable, name)? {
        return Ok(path);
    }
    let built = roots().map(|root| root.join("build/tools/bin").join(program));
    let mut built = built.filter(|path| runnable(path));
    built
        .next()
        .or_else(|| in_path(program))
        .ok_or_else(|| missing(name, &format!("run {script}, or name one with {variable}")))
}

fn missing(name: &str, get: &str) -> Failure {
    Failure::new(FailureKind::Usage, format!("{name} is missing: {get}"))
}

fn unusable(name: &str, path: &Path) -> Failure {
    let path = path.display();
    Failure::new(
        FailureKind::Usage,
        format!("{path} is not an executable program, and {name} is needed"),
    )
}

fn from_environment(variable: &str, name: &str) -> Result<Option<PathBuf>> {
    match std::env::var_os(variable).filter(|value| !value.is_empty()) {
        None => Ok(None),
        Some(path) if runnable(Path::new(&path)) => Ok(Some(path.into())),
        Some(path) => Err(Failure::new(
            FailureKind::Usage,
            format!(
                "{variable} names {}, which is no program to run as {name}",
                Path::new(&path).display()
            ),
        )),
    }
}

/// The first line a program prints when asked for its version.
pub(crate) fn version(command: &mut Command) -> Result<String> {
    let output = run(command, "ask for a version")?;
    let line = output.lines().find(|line| !line.trim().is_empty());
    line.map(|line| line.trim().to_owned()).ok_or_else(|| {
        let program = command.get_program().to_string_lossy();
        Failure::failed(format!("{program} does not print its version"))
    })
}

/// Runs a command and returns its output of both streams; fails if the command fails.
pub(crate) fn run(command: &mut Command, to: &str) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .or_fail(|| format!("cannot {to}: cannot start {program}"))?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text += &String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        return Ok(text);
    }
    Err(Failure::failed(format!(
        "cannot {to}: {program} ended ({}): {}",
        output.status,
        text.trim()
    )))
}

/// Where a `build` may be: here, and above the place of this program (`target/release/tulle`).
pub(crate) fn roots() -> impl Iterator<Item = PathBuf> {
    let own = std::env::current_exe().unwrap_or_default();
    let above: Vec<PathBuf> = own.ancestors().skip(1).map(Path::to_owned).collect();
    std::env::current_dir().into_iter().chain(above)
}

fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Servers of Debian are where the PATH of a user may not go.
    let system = ["/usr/sbin", "/usr/local/sbin", "/sbin"].map(PathBuf::from);
    let mut found = std::env::split_paths(&path)
        .chain(system)
        .map(|directory| directory.join(program));
    found.find(|path| runnable(path))
}

fn runnable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// The program itself: the `envoy` of a Python environment is a script that starts it and would be
/// measured in its place.
fn unwrapped(path: &Path) -> PathBuf {
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let environment = real.parent().and_then(Path::parent);
    environment.and_then(packaged).unwrap_or(real)
}

/// `lib/python*/site-packages/envoy/_bin/envoy` of a Python environment.
fn packaged(environment: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(environment.join("lib")).ok()?.flatten();
    let python = |name: &OsStr| name.to_str().is_some_and(|n| n.starts_with("python"));
    entries
        .filter(|entry| python(&entry.file_name()))
        .map(|entry| entry.path().join("site-packages/envoy/_bin/envoy"))
        .find(|path| runnable(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn program(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn the_program_in_a_python_environment_is_taken_not_its_wrapper() {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        let wrapper = root.join("bin/envoy");
        program(&wrapper);
        assert_eq!(envoy(Some(&wrapper)).unwrap(), wrapper);
        let real = root.join("lib/python3.11/site-packages/envoy/_bin/envoy");
        program(&real);
        assert_eq!(envoy(Some(&wrapper)).unwrap(), real);
        assert_eq!(envoy(Some(&real)).unwrap(), real);
    }

    #[test]
    fn what_is_missing_is_said_with_the_way_to_get_it() {
        let text = debian("no-such-program", "NoSuch").unwrap_err().to_string();
        assert_eq!(text, "NoSuch is missing: apt-get install no-such-program");
        let text = fetched("no-such-program", "NoSuch", "TULLE_NO_SUCH", "scripts/x.sh");
        let text = text.unwrap_err().to_string();
        assert!(text.contains("run scripts/x.sh"), "{text}");
        assert!(text.contains("TULLE_NO_SUCH"), "{text}");
        let failure = pipy(None).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Usage);
        assert!(failure.to_string().contains("--pipy-binary"), "{failure}");
        let failure = envoy(Some(Path::new("/nowhere/envoy"))).unwrap_err();
        assert!(failure.to_string().contains("/nowhere/envoy"), "{failure}");
    }
}

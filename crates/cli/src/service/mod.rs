//! `tulle service`: a mesh that starts with its machine.
//!
//! The init system starts `tulle up --service`, or `tulle join --service` on a host of another's mesh, which says by `sd_notify` when it is ready and stops in order at
//! SIGTERM. Nothing here runs for as long as the mesh does.

mod init;
mod status;
mod unit;
mod upgrade;

use crate::apply::{judge_alone, outcome, warn};
use crate::args::Global;
use crate::args::service::{Init, Installed, Service, ServiceInstall, ServiceJoin, ServiceOptions};
use crate::data_plane::DataPlane;
use crate::down;
use crate::failure::{Failure, OrFail, Result};
use crate::findings;
use crate::join;
use crate::manifests;
use crate::new_file::NewFile;
use crate::output::{self, line, one_line, progress};
use crate::paths::{Paths, Surroundings};
use crate::programs::Program;
use crate::service_record::{self, ServiceRecord};
use crate::supervise::context;
use crate::supervise::preflight::Host;
use crate::supervise::state::{Phase, RunState};
use init::{Place, has_growing_pauses};
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use unit::{Author, Unit, joins};

/// Variables of this command that decide how the mesh runs.
const VARIABLES: [&str; 3] = ["TULLE_PROXY", "TULLE_ENVOY_AGENT", "TULLE_LOG"];
/// How long `--now` waits until every service answers.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(100);

/// Runs one of its commands.
pub(crate) fn service(paths: &Paths, global: &Global, command: &Service) -> Result<ExitCode> {
    match command {
        Service::Install(args) => install(paths, global, args)?,
        Service::Join(args) => join(paths, global, args)?,
        Service::Uninstall { installed, force } => uninstall(paths, global, installed, *force)?,
        Service::Status { installed, format } => return status::status(paths, installed, *format),
        Service::Reload => crate::run_to_end(reload(paths))?,
        Service::Upgrade { timeout } => crate::run_to_end(upgrade::upgrade(paths, *timeout))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn install(paths: &Paths, global: &Global, args: &ServiceInstall) -> Result<()> {
    // Bad manifests are found before anything is touched.
    let manifests = manifests::read_full(&args.files)?;
    let mut found = manifests.findings_beside(&[]);
    findings::add(&mut found, judge_alone(&manifests)?);
    let here = args.service.installed.root.is_none();
    if here && RunState::of_running(paths).is_err() {
        Host::starting(paths, None).check(&manifests)?;
    }
    let start = Start {
        command: "up",
        options: args.options.words(),
        files: &args.files,
        data_plane: args.options.sidecars.data_plane,
    };
    put(paths, global, &args.service, &start, || {
        warn(&found);
        Ok(())
    })
}

fn join(paths: &Paths, global: &Global, args: &ServiceJoin) -> Result<()> {
    let token = join::service::judge(paths, args)?;
    let start = Start {
        command: "join",
        options: args.options.words(),
        files: &args.files,
        data_plane: args.options.sidecars.data_plane,
    };
    let root = args.service.installed.root.as_deref();
    let booted = booted(global)?;
    put(paths, global, &args.service, &start, || match token {
        Some(token) => join::service::keep_token(&booted, root, &token),
        None => Ok(()),
    })
}

/// Paths of the service: root's, whoever writes it below another directory.
fn booted(global: &Global) -> Result<Paths> {
    let around = Surroundings {
        root: true,
        ..Surroundings::of_this_process()
    };
    Paths::choose(global.state.as_deref(), global.name.as_deref(), &around)
}

/// The command that a service runs.
struct Start<'a> {
    command: &'static str,
    options: Vec<OsString>,
    files: &'a [PathBuf],
    data_plane: DataPlane,
}

/// Writes a service, after what else has to be done first, and starts it if that is asked for.
fn put(
    paths: &Paths,
    global: &Global,
    args: &ServiceOptions,
    start: &Start<'_>,
    first: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let here = args.installed.root.is_none();
    let up = RunState::of_running(paths).ok();
    let place = Place::find(&paths.name, &args.installed)?;
    let text = unit_of(paths, global, args, start, &place)?.text(place.init)?;
    if args.dry_run {
        output::text(&text);
        return Ok(());
    }
    let file = place.file();
    must_be_root(here, &file)?;
    let before = may_replace(&file, args.force)?;
    let same = before.as_deref() == Some(&*text);
    let packaged = place.packaged().filter(|_| place.is_enabled());
    let (other, is_other) = match (before, packaged) {
        (Some(before), _) => (file.clone(), joins(&before) != joins(&text)),
        (None, Some(unit)) => (unit, joins(&text)),
        (None, None) => (file.clone(), false),
    };
    if is_other && !args.force {
        let is = if joins(&text) {
            "a mesh of its own"
        } else {
            "a host that joins"
        };
        return Err(Failure::new(format!("{} is left as it is", other.display()))
            .because(format!("it is the service of {is}"))
            .fix("`tulle service uninstall` first, give this one another --name, or replace that one with --force"));
    }
    first()?;
    if !same {
        write(&file, &text, place.init)?;
    }
    place.enable()?;
    place.reread()?;
    let done = match same {
        true => "is installed already",
        false => "installed",
    };
    line(&format!(
        "service {} {done}: {}",
        place.name,
        file.display()
    ));
    if args.now {
        return now(paths, &place, up.as_ref(), same);
    }
    let hint = match (place.runs, up) {
        (true, Some(_)) => "; `systemctl restart` or `rc-service restart` takes it at once",
        (true, None) => "; --now also starts it",
        (false, _) => "",
    };
    progress(&format!("it starts at the next boot{hint}"));
    Ok(())
}

/// Starts it and waits for the services.
fn now(paths: &Paths, place: &Place, up: Option<&RunState>, same: bool) -> Result<()> {
    if !place.runs {
        return Err(
            Failure::new("the service is installed, but cannot be started")
                .because("its init system does not run here")
                .fix("it starts at the next boot with it"),
        );
    }
    if let Some(state) = up {
        if place.activity().pid != Some(state.supervisor.pid) {
            let pid = state.supervisor.pid;
            return Err(Failure::new("the service is installed, but not started")
                .because(format!(
                    "the mesh is up already: its supervisor is process {pid}"
                ))
                .fix("`tulle down`, then start the service"));
        }
        let later = "restart it to run what was installed now";
        progress(if same { "it is active" } else { later });
        return Ok(());
    }
    place.start()?;
    let until = Instant::now() + PATIENCE;
    loop {
        let state = RunState::read(paths).ok().flatten();
        if state.as_ref().is_some_and(|s| s.phase == Phase::Running) {
            progress("it is active, and every service answers");
            return Ok(());
        }
        let activity = place.activity();
        if activity.state == "failed" || Instant::now() >= until {
            let missing = state.map(|s| s.not_ready().join("; "));
            return Err(
                Failure::new("the service is installed, but not every service answers")
                    .because(missing.unwrap_or_else(|| format!("it is {}", activity.state)))
                    .fix(format!(
                        "`tulle status` shows more; {}",
                        place.where_logs_are()
                    )),
            );
        }
        std::thread::sleep(LOOK);
    }
}

fn unit_of(
    paths: &Paths,
    global: &Global,
    args: &ServiceOptions,
    start: &Start<'_>,
    place: &Place,
) -> Result<Unit> {
    let own = std::env::current_exe().or_fail(|| "cannot find the program tulle".to_owned())?;
    let mut files = Vec::new();
    for file in start.files {
        let what = || format!("cannot use {}", file.display());
        files.push(file.canonicalize().or_fail(what)?);
    }
    if args.installed.root.is_none() {
        Program::PROXY.find()?;
        if start.data_plane == DataPlane::Envoy {
            Program::AGENT.find()?;
        }
        for file in files.iter().chain([&own]) {
            warn_of_owner(file);
        }
    }
    let mut which: Vec<OsString> = Vec::new();
    if let Some(state) = &global.state {
        let what = || format!("cannot use {}", state.display());
        let state = std::path::absolute(state).or_fail(what)?;
        which.extend(["--state".into(), state.into_os_string()]);
    }
    if let Some(name) = &global.name {
        which.extend(["--name".into(), name.into()]);
    }
    let variables = VARIABLES.iter();
    let variables = variables.filter_map(|name| Some((*name, std::env::var(name).ok()?)));
    let default_log = match place.init {
        Init::Systemd => None,
        Init::Openrc => Some(PathBuf::from(format!("/var/log/{}.log", place.name))),
    };
    let log_file = match &args.log_file {
        None => default_log,
        Some(file) => {
            let what = || format!("cannot use {}", file.display());
            Some(std::path::absolute(file).or_fail(what)?)
        }
    };
    Ok(Unit {
        mesh: paths.name.clone(),
        program: place.inside(&own),
        which,
        command: start.command,
        options: start.options.clone(),
        files: files.iter().map(|f| place.inside(f)).collect(),
        state: booted(global)?.state,
        log_file,
        variables: variables.collect(),
        growing_pauses: place.init == Init::Systemd && has_growing_pauses(),
    })
}

/// Whoever may change what root runs is root.
fn warn_of_owner(file: &Path) {
    let of_other = file.ancestors().find_map(|path| {
        let found = fs::metadata(path).ok()?;
        (found.uid() != 0).then_some((path, found.uid()))
    });
    if let Some((path, user)) = of_other {
        anstream::eprintln!(
            "warning: {} belongs to user {user}, who can change what the service runs as root; `install` it to a \
             directory of root's, such as /usr/local/bin or /etc/tulle",
            path.display()
        );
    }
}

fn must_be_root(here: bool, file: &Path) -> Result<()> {
    if !here || rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(
        Failure::new("a service of the machine is installed by root")
            .because(format!("{} is root's", file.display()))
            .fix("run it with sudo; --dry-run shows what would be written"),
    )
}

/// Returns the file's text, if there is one and it may be replaced or removed.
fn may_replace(file: &Path, force: bool) -> Result<Option<String>> {
    let text = match fs::read(file) {
        Ok(text) => String::from_utf8_lossy(&text).into_owned(),
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e).or_fail(|| format!("cannot read {}", file.display())),
    };
    let why = match Author::new(&text) {
        Author::Changed => "somebody has changed it since `tulle service install` wrote it",
        Author::SomebodyElse | Author::Package => "`tulle service install` has not written it",
        Author::Tulle => return Ok(Some(text)),
    };
    if force {
        return Ok(Some(text));
    }
    Err(Failure::new(format!("{} is left as it is", file.display()))
        .because(why)
        .fix("look at it; --force replaces or removes it all the same"))
}

fn write(file: &Path, text: &str, init: Init) -> Result<()> {
    let what = || format!("cannot write {}", file.display());
    if let Some(directory) = file.parent() {
        fs::create_dir_all(directory).or_fail(what)?;
    }
    let mut new = NewFile::create(file).or_fail(what)?;
    new.out.write_all(text.as_bytes()).or_fail(what)?;
    let mode = match init {
        Init::Systemd => 0o644,
        Init::Openrc => 0o755,
    };
    let permissions = Permissions::from_mode(mode);
    new.out.set_permissions(permissions).or_fail(what)?;
    new.replace_durably().or_fail(what)
}

fn uninstall(paths: &Paths, global: &Global, installed: &Installed, force: bool) -> Result<()> {
    let place = Place::find(&paths.name, installed)?;
    let file = place.file();
    let here = installed.root.is_none();
    let text = may_replace(&file, force)?;
    let there = text.is_some();
    let of_join = text.is_some_and(|text| joins(&text));
    let packaged = place.packaged();
    if !there && packaged.is_none() && !place.is_enabled() {
        line(&format!(
            "service {} is not installed: there is no {}",
            place.name,
            file.display()
        ));
        return Ok(());
    }
    must_be_root(here, &file)?;
    place.stop()?;
    has_stopped(paths, &place)?;
    place.disable()?;
    init::remove(&file)?;
    place.reread()?;
    if of_join {
        join::service::forget_token(&booted(global)?, installed.root.as_deref());
    }
    let joined = join::service::joined(paths).filter(|_| here && of_join);
    if here {
        ServiceRecord::forget(paths)?;
        down::remove_run(paths)?;
    }
    line(&match packaged {
        None => format!("service {} removed: {}", place.name, file.display()),
        Some(unit) => format!(
            "service {} does not start any more; {} stays, which is of the package",
            place.name,
            unit.display()
        ),
    });
    if let Some((controller, _)) = joined {
        return leave(paths, &controller);
    }
    if here && paths.state.exists() {
        progress(&format!(
            "CA and stored objects stay in {}; `tulle down --purge` removes them",
            paths.state.display()
        ));
    }
    Ok(())
}

/// Refuses to remove a service whose mesh goes on: an init system that has lost its process says that it has stopped it.
fn has_stopped(paths: &Paths, place: &Place) -> Result<()> {
    let Ok(state) = RunState::of_running(paths) else {
        return Ok(());
    };
    let pid = state.supervisor.pid;
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let of_service = words.split(|byte| *byte == 0).any(|w| w == b"--service");
    if !place.runs || !of_service {
        // Started by hand, or by another init system.
        return Ok(());
    }
    Err(
        Failure::new(format!("service {} is left as it is", place.name))
            .because(format!(
                "its init system has lost sight of the mesh, which goes on: its supervisor is process {pid}"
            ))
            .fix("`tulle down`, then uninstall it again"),
    )
}

/// Takes a host out of its mesh that does not run any more.
fn leave(paths: &Paths, controller: &str) -> Result<()> {
    if RunState::of_running(paths).is_ok() {
        // Started by hand.
        return Ok(());
    }
    let left = crate::run_to_end(join::service::leave(paths));
    progress(&match left {
        Ok(true) => format!(
            "this host has left its mesh; the identity to come back with stays in {}, and `tulle down --purge` removes it",
            paths.state.display()
        ),
        Ok(false) => format!(
            "the controller at {controller} does not answer and keeps the Workloads of this host; `tulle delete node` there removes them"
        ),
        Err(failure) => format!(
            "the mesh keeps the Workloads of this host ({}); `tulle delete node` on the controller's host removes them",
            one_line(&failure.to_string())
        ),
    });
    Ok(())
}

/// Makes the mesh that is up as its service's manifests are now.
async fn reload(paths: &Paths) -> Result<()> {
    let state = RunState::of_running(paths)?;
    if !state.node.is_empty() {
        return join::service::reload(paths, &state).await;
    }
    let record = ServiceRecord::read(paths).ok_or_else(|| {
        Failure::new("there are no manifests to apply again")
            .because("no service has started this mesh with manifests")
            .fix("`tulle apply FILE` applies any; `tulle service install FILE` installs a service")
    })?;
    let manifests = manifests::read_full(&record.files)?;
    let mut objects = context::objects(paths);
    let mut host = Host::running(paths, &state);
    host.stored = crate::apply::stored(&mut objects).await?;
    host.check(&manifests)?;
    warn(&manifests.findings_beside(&host.stored));
    let results = service_record::bring(&mut objects, paths, &record.files, &manifests).await?;
    results.iter().for_each(|r| line(&outcome(r)));
    Ok(())
}

//! `tulle`: starts, shows, changes and explains a mesh.
//!
//! Traffic never passes through this program; it starts `tulle-proxy` for that.

mod apply;
mod args;
mod browser;
mod bug_report;
mod ca;
mod check;
mod client;
mod controller;
mod data_plane;
mod docs;
mod down;
mod examples;
mod exec;
mod failure;
mod findings;
mod get;
mod host;
mod http;
mod identity;
mod import;
mod join;
mod kube;
mod kubeconfig_files;
mod learn;
mod logs;
mod manifests;
mod metrics;
mod new_file;
mod output;
mod paths;
mod plugin;
mod plugin_trial;
mod port_range;
mod proc;
mod programs;
mod prove;
mod proxies;
mod remove_tree;
mod restart;
mod secret;
mod service;
mod service_record;
mod status;
mod supervise;
mod token;
mod traffic;
mod up;
mod version;
mod which_mesh;
mod why;

use args::about::Shell;
use args::internal::Internal;
use args::{Cli, Command};
use clap::{CommandFactory, Parser};
use failure::{Exit, OrFail, Result};
use paths::Paths;
use programs::Program;
use std::pin::Pin;
use std::process::ExitCode;
use supervise::preflight::Host;
use tulle_net::memory;
use which_mesh::WhichMesh;

fn main() -> ExitCode {
    // These commands come first: a process that becomes another program must have one thread and its own
    // arguments.
    let mut words = std::env::args_os().skip(1);
    let first = words.next().unwrap_or_default();
    if first == tulle_redirect::exec_in::SUBCOMMAND {
        return exec_in(words);
    }
    memory::use_one_arena();
    let done = if Internal::begins_with(&first) {
        Internal::try_parse().map(|internal| run_internal(&internal))
    } else {
        Cli::try_parse().map(|cli| run(&cli))
    };
    match done {
        Ok(done) => end(done),
        Err(error) => {
            // Help and version are no errors.
            let code = if error.use_stderr() {
                Exit::Usage as u8
            } else {
                0
            };
            let _ = error.print();
            ExitCode::from(code)
        }
    }
}

fn end(done: Result<ExitCode>) -> ExitCode {
    match done {
        Ok(code) => code,
        Err(failure) => {
            output::progress(&format!("error: {failure}"));
            ExitCode::from(failure.exit as u8)
        }
    }
}

fn exec_in(words: impl Iterator<Item = std::ffi::OsString>) -> ExitCode {
    match tulle_redirect::exec_in::main(words) {
        Ok(never) => match never {},
        Err(error) => {
            anstream::eprintln!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

/// One thread does for every command; the controller makes its own runtime.
fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .or_fail(|| "cannot start the runtime".to_owned())
}

/// Runs a command to its end. Its future is boxed: the runtime has code for each type of future.
fn run_to_end<'a, T>(command: impl Future<Output = Result<T>> + 'a) -> Result<T> {
    let command: Pin<Box<dyn Future<Output = Result<T>> + 'a>> = Box::pin(command);
    runtime()?.block_on(command)
}

fn run_internal(internal: &Internal) -> Result<ExitCode> {
    match internal {
        Internal::Janitor { mesh, durable, run } => supervise::janitor::main(&Paths {
            name: mesh.clone(),
            state: durable.clone(),
            run: run.clone(),
        })?,
        Internal::Supervisor { global, up } => {
            let up = args::up::Up {
                detached: true,
                ..up.clone()
            };
            up::up(&which_mesh::paths(global)?, global, &up)?;
        }
        Internal::Controller(args) => controller::main(args)?,
        Internal::ClearUp { global } => down::clear_up(&which_mesh::paths(global)?)?,
        Internal::ClusterController { settings } => kube::controller::main(settings)?,
        Internal::Redirect(args) => kube::redirect::main(args)?,
        Internal::ControlStream => {
            let runtime = runtime()?;
            let done = runtime.block_on(kube::stream::main());
            // A thread of it still waits for input.
            runtime.shutdown_background();
            done?;
        }
        Internal::RemoveCni { once_updated } => {
            run_to_end(kube::uninstall::remove_cni(once_updated.as_deref()))?;
        }
        Internal::EnvoyAgent { words } => return Err(Program::AGENT.take_over(words)),
        Internal::AfterHelm { namespace } => run_to_end(kube::uninstall::after_helm(namespace))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn completions(shell: Shell) -> String {
    use clap_complete::{generate, shells};
    let (mut tulle, mut script) = (Cli::command(), Vec::new());
    match shell {
        Shell::Bash => generate(shells::Bash, &mut tulle, "tulle", &mut script),
        Shell::Fish => generate(shells::Fish, &mut tulle, "tulle", &mut script),
        Shell::Zsh => generate(shells::Zsh, &mut tulle, "tulle", &mut script),
    }
    String::from_utf8_lossy(&script).into_owned()
}

fn run(cli: &Cli) -> Result<ExitCode> {
    if let Command::Completions { shell } = &cli.command {
        output::text(&completions(*shell));
        return Ok(ExitCode::SUCCESS);
    }
    if let Command::Bench { words } = &cli.command {
        return Err(Program::LAB.take_over(words));
    }
    if let Command::Import(args) = &cli.command
        && !args.cluster
    {
        return import::import(args);
    }
    if let Command::Plugin(command) = &cli.command {
        return plugin::plugin(command);
    }
    if let Command::Docs(args) = &cli.command {
        docs::docs(args)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Command::Prove(args) = &cli.command
        && !args.files.is_empty()
    {
        return prove::of_files(args);
    }
    if let Command::Install(args) = &cli.command {
        run_to_end(kube::install::install(&cli.cluster, args))?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(code) = run_to_end(kube::run(cli))? {
        return Ok(code);
    }
    match which_mesh::choose(cli)? {
        Some(WhichMesh::Cluster(other)) => {
            return run_to_end(kube::run_shared(cli, other));
        }
        Some(WhichMesh::Host(other)) => {
            host::say_which(cli, &which_mesh::paths(&cli.global)?, other)
        }
        None => {}
    }
    let paths = which_mesh::paths(&cli.global)?;
    let objects = || supervise::context::objects(&paths);
    let up = || supervise::state::RunState::of_running(&paths);
    match &cli.command {
        Command::Up(args) => up::up(&paths, &cli.global, args)?,
        Command::Down(args) => down::down(&paths, args)?,
        Command::Exec(args) => exec::exec(&paths, &up()?, args)?,
        Command::Logs(args) => logs::logs(&paths, args)?,
        Command::Join(args) => join::join(&paths, args)?,
        Command::Status(args) => run_to_end(status::status(&paths, args))?,
        Command::Apply(args) => {
            let manifests = apply::read(&args.files)?;
            if args.dry_run {
                // A mesh that is up has more objects, and a host to run them; without one the
                // manifests stand alone.
                let host = up().map(|state| Host::running(&paths, &state)).ok();
                return run_to_end(async {
                    let mesh = host.map(|host| (objects(), host));
                    apply::dry_run(mesh, &manifests, args.output).await
                });
            }
            let host = Host::running(&paths, &up()?);
            run_to_end(async { apply::apply(objects(), host, &manifests).await })?;
        }
        Command::Service(command) => return service::service(&paths, &cli.global, command),
        Command::Restart(args) => {
            up()?;
            run_to_end(async { restart::restart(&paths, objects(), args).await })?;
        }
        Command::Secret(args) => {
            let manifests = secret::read(args)?;
            if !secret::print(args, &manifests) {
                let host = Host::running(&paths, &up()?);
                run_to_end(async { secret::apply(objects(), host, &manifests).await })?;
            }
        }
        Command::Delete(args) => {
            let named = apply::named(args)?;
            up()?;
            run_to_end(async { apply::delete(objects(), named).await })?;
        }
        Command::Get(args) => {
            let asked = get::asked(args)?;
            up()?;
            run_to_end(async { get::get(objects(), asked, args).await })?;
        }
        Command::Token(args) => {
            let state = up()?;
            run_to_end(async { token::token(objects(), &state, args).await })?;
        }
        Command::Ca(args) => {
            up()?;
            run_to_end(async { ca::ca(async || Ok(objects()), args, ca::HOLD).await })?;
        }
        Command::Identity(args) => {
            up()?;
            run_to_end(async { identity::identity(objects(), args).await })?;
        }
        Command::Version(args) => run_to_end(version::version(&paths, args))?,
        Command::Check(args) => return run_to_end(check::check(&paths, args)),
        Command::Why(args) => {
            let state = up()?;
            return run_to_end(async {
                let explanation = why::explain(&mut objects(), args).await?;
                let told = why::told(&state, args, &explanation).await;
                why::why(args, host::name(&paths), explanation, &told)
            });
        }
        Command::Learn(args) => {
            up()?;
            run_to_end(async {
                let mesh = host::HostMesh::open(&paths).await?;
                learn::learn(&mesh, &mut objects(), args).await
            })?;
        }
        Command::Prove(args) => {
            up()?;
            return run_to_end(async { prove::running(&mut objects(), args).await });
        }
        Command::Proxy(_)
        | Command::Stat(_)
        | Command::Edges(_)
        | Command::Tap(_)
        | Command::Top(_)
        | Command::Dashboard(_)
        | Command::Metrics(_)
        | Command::Support(_) => run_to_end(host::run(&paths, &cli.command))?,
        // Done above.
        Command::Bench { .. }
        | Command::Completions { .. }
        | Command::Import(_)
        | Command::Plugin(_)
        | Command::Docs(_)
        | Command::Install(_)
        | Command::Uninstall(_)
        | Command::Upgrade(_)
        | Command::Inject(_)
        | Command::Namespace(_)
        | Command::Harden(_) => {}
    }
    Ok(ExitCode::SUCCESS)
}

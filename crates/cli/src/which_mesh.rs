//! Which mesh a command asks: that of a cluster, or that of this host.
//!
//! Options decide before anything that is found, so that a script asks the same mesh on every machine.

use crate::args::cluster::Within;
use crate::args::proxies::Metrics;
use crate::args::{Cli, Command, Global};
use crate::failure::{Failure, Result};
use crate::kubeconfig_files;
use crate::paths::{Paths, Surroundings};
use crate::supervise::state::RunState;
use std::path::{Path, PathBuf};

/// The mesh that is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WhichMesh {
    /// The mesh of a cluster; how to ask that of this host instead, if one is up.
    Cluster(Option<&'static str>),
    /// The mesh of this host; how to ask a cluster's instead, if there is a kubeconfig.
    Host(Option<&'static str>),
}

const ASK_CLUSTER: &str = "--context NAME asks a cluster's";
const ASK_HOST: &str = "`tulle --name NAME` asks a mesh of this host";

/// The facts that decide.
#[derive(Debug, Clone, Copy, Default)]
struct Facts {
    /// An option that only a cluster has was given.
    cluster_asked: bool,
    /// `--name` or `--state`, or their variables.
    host_named: bool,
    /// Called as `kubectl tulle`.
    plugin: bool,
    /// A mesh of this host is up, or ended without being told to.
    host: bool,
    kubeconfig: bool,
}

/// None: there is no mesh to ask.
fn decide(facts: Facts) -> Option<WhichMesh> {
    let cluster = WhichMesh::Cluster(facts.host.then_some(ASK_HOST));
    let host = WhichMesh::Host(facts.kubeconfig.then_some(ASK_CLUSTER));
    match facts {
        Facts {
            cluster_asked: true,
            ..
        } => Some(WhichMesh::Cluster(None)),
        Facts {
            host_named: true, ..
        } => Some(WhichMesh::Host(None)),
        Facts { plugin: true, .. } => Some(cluster),
        Facts { host: true, .. } => Some(host),
        Facts {
            kubeconfig: true, ..
        } => Some(cluster),
        _ => None,
    }
}

/// Returns the mesh that a command asks which both a cluster and a host have; none for other commands.
pub(crate) fn choose(cli: &Cli) -> Result<Option<WhichMesh>> {
    let Some(within) = shared(&cli.command) else {
        return Ok(None);
    };
    let of_cluster = matches!(&cli.command, Command::Check(args) if args.pre || args.proxy);
    let paths = paths(&cli.global);
    let found = |paths: &Paths| {
        let is_report = matches!(cli.command, Command::Support(_));
        matches!(RunState::read(paths), Ok(Some(_)) | Err(_)) || is_report && paths.logs().is_dir()
    };
    let facts = Facts {
        cluster_asked: of_cluster
            || cli.cluster.context.is_some()
            || cli.cluster.kubeconfig.is_some()
            || within.is_some_and(|within| within.namespace.is_some()),
        host_named: cli.global.state.is_some() || cli.global.name.is_some(),
        plugin: is_plugin(),
        host: paths.as_ref().is_ok_and(found),
        kubeconfig: has_kubeconfig(),
    };
    match decide(facts) {
        Some(which) => Ok(Some(which)),
        // These two are of use before there is a mesh.
        None if matches!(cli.command, Command::Check(_) | Command::Version(_)) => {
            Ok(Some(WhichMesh::Host(None)))
        }
        None => Err(nothing(&paths?, &kubeconfig_files::list())),
    }
}

/// The namespace option of a command that both have; none for other commands.
fn shared(command: &Command) -> Option<Option<&Within>> {
    use crate::args::proxies::Proxy;
    Some(match command {
        Command::Stat(args) => Some(&args.within),
        Command::Edges(args) => Some(&args.within),
        Command::Tap(args) | Command::Top(args) => Some(&args.within),
        Command::Proxy(Proxy::Get { within, .. } | Proxy::List { within, .. }) => Some(within),
        // Namespaces to change are a cluster's.
        Command::Metrics(Metrics {
            change: None,
            within,
            ..
        }) => Some(within),
        Command::Why(args) => Some(&args.within),
        Command::Learn(args) => Some(&args.within),
        Command::Check(args) => Some(&args.within),
        Command::Dashboard(_)
        | Command::Support(_)
        | Command::Get(_)
        | Command::Ca(_)
        | Command::Identity(_)
        | Command::Prove(_)
        | Command::Status(_)
        | Command::Version(_) => None,
        _ => return None,
    })
}

fn nothing(paths: &Paths, kubeconfigs: &[PathBuf]) -> Failure {
    let looked = kubeconfigs.iter().map(|file| file.display().to_string());
    let looked: Vec<String> = looked.collect();
    let kubeconfig = match looked.as_slice() {
        [] => "neither KUBECONFIG nor HOME names a kubeconfig".to_owned(),
        files => format!("no kubeconfig is at {}", files.join(", ")),
    };
    Failure::new("there is no mesh to ask")
        .because(format!(
            "mesh {} is not up on this host (looked in {}), and {kubeconfig}",
            paths.name,
            paths.run.display()
        ))
        .fix(
            "start one with `tulle up FILE`, or name another of this host with --state or --name, or a cluster with \
             --kubeconfig or --context",
        )
}

/// The files of the mesh of this host that is meant.
pub(crate) fn paths(global: &Global) -> Result<Paths> {
    let around = Surroundings::of_this_process();
    let paths = Paths::choose(global.state.as_deref(), global.name.as_deref(), &around)?;
    paths.are_own()?;
    Ok(paths)
}

/// Whether the program was called as `kubectl tulle`.
fn is_plugin() -> bool {
    let name = std::env::args_os().next().unwrap_or_default();
    is_plugins(Path::new(&name))
}

fn is_plugins(name: &Path) -> bool {
    name.file_stem() == Some("kubectl-tulle".as_ref())
}

/// Whether a cluster is known.
pub(crate) fn has_kubeconfig() -> bool {
    kubeconfig_files::list().iter().any(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Exit;
    use clap::Parser;

    #[test]
    fn a_link_makes_it_a_plugin() {
        assert!(is_plugins(Path::new("/usr/local/bin/kubectl-tulle")));
        assert!(!is_plugins(Path::new("/usr/local/bin/tulle")));
    }

    #[test]
    fn options_decide_before_what_is_found_and_the_other_mesh_is_named() {
        let none = Facts::default();
        let both = Facts {
            host: true,
            kubeconfig: true,
            ..none
        };
        let host = Facts { host: true, ..none };
        let cluster = Facts {
            kubeconfig: true,
            ..none
        };
        assert_eq!(decide(none), None);
        assert_eq!(decide(both), Some(WhichMesh::Host(Some(ASK_CLUSTER))));
        assert_eq!(decide(host), Some(WhichMesh::Host(None)));
        assert_eq!(decide(cluster), Some(WhichMesh::Cluster(None)));
        for found in [none, both, host, cluster] {
            let named = Facts {
                host_named: true,
                plugin: true,
                ..found
            };
            assert_eq!(decide(named), Some(WhichMesh::Host(None)));
            let asked = Facts {
                cluster_asked: true,
                ..named
            };
            assert_eq!(decide(asked), Some(WhichMesh::Cluster(None)));
        }
        let plugin = Facts {
            plugin: true,
            ..both
        };
        assert_eq!(decide(plugin), Some(WhichMesh::Cluster(Some(ASK_HOST))));
    }

    #[test]
    fn an_option_or_a_command_of_a_cluster_means_the_cluster() {
        let chosen = |words: &[&str]| {
            let words = [&["tulle", "--name", "no-such-mesh"], words].concat();
            choose(&Cli::try_parse_from(words).unwrap()).unwrap()
        };
        let (cluster, host) = (Some(WhichMesh::Cluster(None)), Some(WhichMesh::Host(None)));
        for words in [
            &["stat"][..],
            &["edges"],
            &["tap", "web"],
            &["top", "web"],
            &["proxy", "list"],
            &["proxy", "get", "ready", "web"],
            &["metrics"],
            &["why", "a", "b"],
            &["check"],
        ] {
            assert_eq!(chosen(words), host, "{words:?}");
            let context = [words, &["--context", "c"]].concat();
            assert_eq!(chosen(&context), cluster, "{context:?}");
            let namespace = [words, &["-n", "shop"]].concat();
            assert_eq!(chosen(&namespace), cluster, "{namespace:?}");
        }
        assert_eq!(chosen(&["check", "--pre"]), cluster);
        assert_eq!(chosen(&["metrics", "enable", "shop"]), None);
        assert_eq!(chosen(&["namespace", "list"]), None);
    }

    #[test]
    fn where_there_is_none_the_failure_says_where_it_looked() {
        let paths = Paths {
            name: "tulle".into(),
            state: "/var/lib/tulle".into(),
            run: "/run/tulle".into(),
        };
        let failure = nothing(&paths, &["/root/.kube/config".into()]);
        assert_eq!(failure.exit, Exit::Failed);
        let text = failure.to_string();
        for part in [
            "/run/tulle",
            "/root/.kube/config",
            "tulle up",
            "--name",
            "--context",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert!(nothing(&paths, &[]).to_string().contains("KUBECONFIG"));
    }
}

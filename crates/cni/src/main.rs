//! `tulle-cni`: the node makes the rules that bring a pod's traffic to its sidecar, when it makes the
//! pod's network. So nothing in the pod needs a privilege.
//!
//! The program has two uses. A container runtime runs it as a CNI plugin ([`plugin`]), the last of a
//! chain. A DaemonSet runs it to install the plugin, keep it installed and remove it ([`node`]). It asks
//! no API server: all it needs to know of a pod is in its annotations, which the runtime passes on.

mod chain;
mod node;
mod plugin;

use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "\
tulle-cni: CNI plugin of the Tulle mesh. A container runtime sets CNI_COMMAND; by hand:

  tulle-cni keep CONFIGURATIONS PROGRAMS     add itself to the node's CNI configuration, and stay
  tulle-cni kept CONFIGURATIONS PROGRAMS     whether it is there
  tulle-cni remove CONFIGURATIONS PROGRAMS   take itself out again
  tulle-cni removed CONFIGURATIONS PROGRAMS  whether nothing of it is there

The directories are usually /etc/cni/net.d and /opt/cni/bin.";

fn main() -> ExitCode {
    if let Ok(command) = std::env::var("CNI_COMMAND") {
        return plugin::main(&command);
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [command, configurations, programs] = words.as_slice() else {
        eprintln!("{USAGE}");
        return ExitCode::from(64);
    };
    let node = node::Node {
        configurations: PathBuf::from(configurations),
        programs: PathBuf::from(programs),
    };
    let done = match *command {
        "keep" => node.keep(),
        "kept" => node.kept(),
        "remove" => node.remove(),
        "removed" => node.removed(),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(64);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("tulle-cni: {why}");
            ExitCode::FAILURE
        }
    }
}

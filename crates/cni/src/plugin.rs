//! The CNI plugin (specification 1.1): makes the rules of a pod if the webhook has asked for them.
//!
//! It comes after the plugins that make the pod's network and passes on their result. Any error fails
//! the pod, which the kubelet makes again. A runtime that does not pass on annotations lets every pod
//! pass; then the pod's own init container sees that the rules are missing.

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;
use tulle_redirect::{
    FilterBackend, PodRules, REDIRECTION, apply_redirection_here, find_redirection_here,
};

/// A chain passes on the result of the plugin before since 0.3.0.
const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
/// The pod's annotations, which a runtime passes on if a plugin declares it: containerd 1.5, CRI-O
/// 1.28.
pub(crate) const ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";
/// Annotations of a pod are 256 KiB at most.
const LONGEST_INPUT: u64 = 4 << 20;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Input {
    cni_version: String,
    prev_result: Option<Value>,
    #[serde(default)]
    runtime_config: Map<String, Value>,
}

/// An error, in the form of the specification.
struct Wrong {
    code: u16,
    message: String,
    details: String,
}

impl Wrong {
    fn new(code: u16, message: impl Into<String>, details: impl ToString) -> Self {
        Self {
            code,
            message: message.into(),
            details: details.to_string(),
        }
    }
}

/// The specification's own codes; from 100 on they are the plugin's.
const VERSION_UNKNOWN: u16 = 1;
const ENVIRONMENT: u16 = 4;
const INPUT: u16 = 6;
const CONFIGURATION: u16 = 7;
const NAMESPACE: u16 = 100;
const ANNOTATION: u16 = 101;
const RULES: u16 = 102;

pub(crate) fn main(command: &str) -> ExitCode {
    let mut text = String::new();
    let read = std::io::stdin()
        .take(LONGEST_INPUT)
        .read_to_string(&mut text);
    let read = read.map_err(|e| Wrong::new(INPUT, "the input cannot be read", e));
    let input = read.and_then(|_| {
        let read = serde_json::from_str::<Input>(&text);
        read.map_err(|e| Wrong::new(INPUT, "the input is not a network configuration", e))
    });
    let version = input
        .as_ref()
        .map_or("1.1.0", |i| &i.cni_version)
        .to_owned();
    match input.and_then(|input| run(command, input)) {
        Ok(answer) => {
            if let Some(answer) = answer {
                println!("{answer}");
            }
            ExitCode::SUCCESS
        }
        Err(wrong) => {
            let Wrong {
                code,
                message,
                details,
            } = wrong;
            let msg = format!("tulle-cni: {message}");
            println!(
                "{}",
                json!({ "cniVersion": version, "code": code, "msg": msg, "details": details })
            );
            ExitCode::FAILURE
        }
    }
}

fn run(command: &str, input: Input) -> Result<Option<Value>, Wrong> {
    let version = &input.cni_version;
    if command == "VERSION" {
        return Ok(Some(
            json!({ "cniVersion": version, "supportedVersions": VERSIONS }),
        ));
    }
    if !VERSIONS.contains(&version.as_str()) {
        let known = VERSIONS.join(", ");
        return Err(Wrong::new(
            VERSION_UNKNOWN,
            format!("version {version} of CNI is not known"),
            format!("there are {known}"),
        ));
    }
    match command {
        "ADD" => {
            let Some(result) = &input.prev_result else {
                return Err(Wrong::new(
                    CONFIGURATION,
                    "there is no prevResult",
                    "it makes no network of its own: another plugin must come before it",
                ));
            };
            if let Some(rules) = wanted(&input)? {
                let redirection = rules.redirection();
                let redirection =
                    redirection.map_err(|why| Wrong::new(ANNOTATION, REDIRECTION, why))?;
                enter()?;
                let made = apply_redirection_here(FilterBackend::Auto, &redirection);
                made.map_err(|e| Wrong::new(RULES, "the pod's rules cannot be made", e))?;
            }
            Ok(Some(result.clone()))
        }
        "CHECK" => {
            if wanted(&input)?.is_some() {
                enter()?;
                let found = find_redirection_here();
                found.map_err(|e| Wrong::new(RULES, "the pod's rules are missing", e))?;
            }
            Ok(None)
        }
        // The rules go with the pod's network.
        "DEL" | "GC" | "STATUS" => Ok(None),
        _ => Err(Wrong::new(ENVIRONMENT, "CNI_COMMAND is unknown", command)),
    }
}

/// Returns the rules that the webhook has written into the pod's annotations; `None`: the pod has no
/// sidecar.
fn wanted(input: &Input) -> Result<Option<PodRules>, Wrong> {
    let annotations = input.runtime_config.get(ANNOTATIONS);
    let Some(text) = annotations.and_then(|all| all.get(REDIRECTION)) else {
        return Ok(None);
    };
    let wrong = |why: &dyn ToString| {
        let message = format!("the annotation {REDIRECTION} is not understood");
        Wrong::new(ANNOTATION, message, why.to_string())
    };
    let text = text.as_str().ok_or_else(|| wrong(&"it is not text"))?;
    PodRules::parse(text).map(Some).map_err(|why| wrong(&why))
}

/// Goes into the pod's network namespace, with all that is run from here on.
fn enter() -> Result<(), Wrong> {
    let Some(path) = std::env::var_os("CNI_NETNS").filter(|path| !path.is_empty()) else {
        return Err(Wrong::new(
            ENVIRONMENT,
            "CNI_NETNS is not set",
            "the runtime names the pod's network in it",
        ));
    };
    let failed = |e: std::io::Error| {
        let message = format!("cannot enter {}", path.display());
        Wrong::new(NAMESPACE, message, e)
    };
    let namespace = File::open(&path).map_err(failed)?;
    let own = std::fs::metadata("/proc/self/ns/net").map_err(failed)?;
    let its = namespace.metadata().map_err(failed)?;
    if (own.dev(), own.ino()) == (its.dev(), its.ino()) {
        return Err(Wrong::new(
            NAMESPACE,
            format!("{} is the node's own network", path.display()),
            "rules there would redirect the whole node",
        ));
    }
    let entered = move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network));
    entered.map_err(|e| failed(e.into()))
}

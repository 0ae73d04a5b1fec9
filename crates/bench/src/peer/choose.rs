//! `--vs`: names become peers.

use super::feature::{FEATURES, With};
use super::{Envoy, HaProxy, Nginx, None, Peer, Pipy, Tulle};
use crate::args::Common;
use crate::failure::{Failure, FailureKind, Result};
use crate::tools;
use std::path::Path;

/// Values of `--vs`, each with how to get what it needs.
pub const NAMES: [(&str, &str); 12] = [
    ("none", "no sidecars; nothing to get"),
    ("envoy", "scripts/fetch-envoy.sh, or --envoy FILE"),
    ("envoy-wasmless-h2", "as envoy; HTTP/2 between the sidecars"),
    ("nginx", "apt-get install nginx"),
    ("haproxy", "apt-get install haproxy"),
    ("haproxy-tcp", "apt-get install haproxy"),
    ("envoy+lua", "as envoy; a script that sets headers"),
    (
        "envoy+lua-body",
        "as envoy; a script that rewrites responses",
    ),
    (
        "envoy+wasm",
        "as envoy; a module of WebAssembly that sets headers",
    ),
    (
        "haproxy+lua",
        "apt-get install haproxy; a script that sets headers",
    ),
    (
        "nginx+njs",
        "apt-get install libnginx-mod-http-js; a script that sets headers",
    ),
    (
        "pipy",
        "built from its sources; name it with --pipy-binary FILE",
    ),
];

/// Lists that a name stands for.
fn group(name: &str) -> Vec<&str> {
    match name {
        "features" => FEATURES.iter().map(|feature| feature.name).collect(),
        "plugins" => vec![
            "tulle+plugin",
            "tulle+plugin-body",
            "tulle+plugin-answers",
            "tulle+plugin-unused",
            "envoy",
            "envoy+lua",
            "envoy+lua-body",
            "envoy+wasm",
            "haproxy",
            "haproxy+lua",
            "nginx",
            "nginx+njs",
        ],
        one => vec![one],
    }
}

/// The peers of a list such as `none,envoy`, in its order, after Tulle, which is always measured.
///
/// # Errors
/// A name is unknown, or its program is missing.
pub fn parse(list: &str, options: &Common) -> Result<Vec<Box<dyn Peer>>> {
    let program = tools::tulle_proxy()?;
    let mut peers: Vec<Box<dyn Peer>> = vec![Box::new(Tulle {
        program: program.clone(),
    })];
    let names = list.split(',').map(str::trim).filter(|n| !n.is_empty());
    for name in names.flat_map(group) {
        if peers.iter().any(|peer| peer.name() == name) {
            continue;
        }
        if let Some(peer) = with(name, &program) {
            peers.push(peer);
            continue;
        }
        let peer = one(name, options)
            .map_err(|failure| Failure::new(failure.kind, format!("--vs {name}: {failure}")))?;
        peers.push(peer);
    }
    Ok(peers)
}

/// Tulle with a feature of that name.
fn with(name: &str, program: &Path) -> Option<Box<dyn Peer>> {
    let peer = With::named(name, program.to_owned())?;
    Some(Box::new(peer))
}

fn one(name: &str, options: &Common) -> Result<Box<dyn Peer>> {
    let envoy = || tools::envoy(options.envoy.as_deref());
    Ok(match name {
        "none" => Box::new(None),
        "envoy" => Box::new(Envoy::http1(envoy()?)),
        "envoy+lua" => Box::new(Envoy::lua(envoy()?)),
        "envoy+lua-body" => Box::new(Envoy::lua_body(envoy()?)),
        "envoy+wasm" => Box::new(Envoy::wasm(envoy()?)),
        "haproxy+lua" => Box::new(HaProxy::lua(tools::haproxy()?)),
        "nginx+njs" => Box::new(Nginx::njs(tools::nginx()?, tools::njs()?)),
        "envoy-wasmless-h2" => Box::new(Envoy::http2(envoy()?)),
        "nginx" => Box::new(Nginx::new(tools::nginx()?)),
        "haproxy" => Box::new(HaProxy::http(tools::haproxy()?)),
        "haproxy-tcp" => Box::new(HaProxy::tcp(tools::haproxy()?)),
        "pipy" => {
            let program = tools::pipy(options.pipy_binary.as_deref())?;
            Box::new(Pipy { program })
        }
        _ => return Err(unknown()),
    })
}

fn unknown() -> Failure {
    let mut text = "there is no such peer; there are".to_owned();
    for (name, get) in NAMES {
        text += &format!("\n  {name:<18} {get}");
    }
    text +=
        "\n  plugins            scripts that do the same, of all of these, beside those without";
    text += "\n  features           Tulle again, with one feature each:";
    for feature in &FEATURES {
        text += &format!(" {}", feature.name);
    }
    Failure::new(FailureKind::Usage, text)
}

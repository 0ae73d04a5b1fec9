//! Runs a plugin on one request, by the program of the sidecars, which alone has the engine.

use crate::failure::{Failure, OrFail, Result};
use crate::programs::Program;
use serde_json::{Value, json};
use std::io::Write;
use std::process::{Command, Stdio};
use tulle_model::manifest::{Manifest, Object, ObjectRef, PluginSpec};

/// Exit code of a plugin that does not compile or start.
const REFUSED: i32 = 65;

/// Runs a trial; its outcome.
pub(crate) fn run(trial: &Value) -> Result<Value> {
    let program = Program::PROXY.find()?;
    let what = || format!("cannot run {}", program.display());
    let mut child = Command::new(&program)
        .arg("--try-plugin")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .or_fail(what)?;
    if let Some(mut input) = child.stdin.take() {
        // A program that does not read says why.
        let _ = input.write_all(trial.to_string().as_bytes());
    }
    let done = child.wait_with_output().or_fail(what)?;
    if done.status.success() {
        return serde_json::from_slice(&done.stdout).or_fail(what);
    }
    let said = String::from_utf8_lossy(&done.stderr);
    let said = said.trim().trim_start_matches("tulle-proxy: ").to_owned();
    Err(match done.status.code() {
        Some(REFUSED) => Failure::input(said),
        _ => Failure::new(what()).because(said),
    })
}

/// A trial of a plugin of these objects, on a request that says nothing.
pub(crate) fn trial(plugin: &Manifest<PluginSpec>, objects: &[Object]) -> Value {
    let text = |reference: &ObjectRef, key: &str| text_among(objects, reference, key);
    json!({
        "plugin": plugin.spec.filter(plugin.metadata.name.clone(), text),
        "request": { "method": "GET", "path": "/", "headers": [] },
        "response": { "status": 200, "headers": [] },
    })
}

/// Why the sidecars would refuse a plugin; none: they would not, or their program is not here to ask.
pub(crate) fn refusal(plugin: &Manifest<PluginSpec>, objects: &[Object]) -> Option<String> {
    match run(&trial(plugin, objects)) {
        Err(failure) if failure.exit == crate::failure::Exit::Input => Some(failure.to_string()),
        _ => None,
    }
}

/// The text under a key of a ConfigMap (the default) or Secret among objects.
fn text_among(objects: &[Object], reference: &ObjectRef, key: &str) -> Option<String> {
    let secret = reference.kind.as_deref() == Some("Secret");
    objects.iter().find_map(|object| match object {
        Object::ConfigMap(map) if !secret && map.metadata.name == reference.name => map.text(key),
        Object::Secret(map) if secret && map.metadata.name == reference.name => map.text(key),
        _ => None,
    })
}

//! `tulle plugin`: tries a plugin before a mesh has it.

use crate::args::plugin::{Plugin, PluginTrial};
use crate::failure::{Failure, OrFail, Result};
use crate::{manifests, output, plugin_trial};
use serde_json::{Value, json};
use std::fmt::Write;
use std::fs;
use std::process::ExitCode;
use tulle_model::manifest::{Manifest, Metadata, Object, PluginSpec};

/// Findings: the plugin fails on this request.
const FAILS: u8 = 79;

/// Runs the command.
pub(crate) fn plugin(command: &Plugin) -> Result<ExitCode> {
    let (args, times) = match command {
        Plugin::Test(trial) => (trial, 0),
        Plugin::Bench(bench) => (&bench.trial, bench.times),
    };
    let (plugin, objects) = read(args)?;
    let mut trial = plugin_trial::trial(&plugin, &objects);
    let headers = |given: &[String]| given.iter().map(|h| header(h)).collect::<Result<Vec<_>>>();
    trial["request"] = json!({
        "method": args.method, "path": args.path, "headers": headers(&args.header)?,
        "body": args.body,
    });
    trial["response"] = json!({
        "status": args.status, "headers": headers(&args.response_header)?,
        "body": args.response_body,
    });
    trial["source"] = args.source.clone().into();
    trial["backends"] = json!(args.backend);
    trial["times"] = times.into();
    let fetches = args.fetch.iter().map(|f| {
        let parted = f.split_once('=');
        parted.ok_or_else(|| Failure::usage(format!("--fetch {f}: write TARGET=BODY")))
    });
    trial["fetches"] = json!(fetches.collect::<Result<Vec<_>>>()?);
    let outcome = plugin_trial::run(&trial)?;
    if !output::structured(&outcome, args.output.output)? {
        output::text(&told(&trial, &outcome));
    }
    Ok(match outcome["error"].is_string() {
        true => ExitCode::from(FAILS),
        false => ExitCode::SUCCESS,
    })
}

/// The plugin of a manifest, with the manifest's objects, or of a bare module.
fn read(args: &PluginTrial) -> Result<(Manifest<PluginSpec>, Vec<Object>)> {
    let file = &args.file;
    let is_module = file.extension().is_some_and(|e| e == "js" || e == "mjs");
    if is_module {
        let source = fs::read_to_string(file);
        let source = source.or_fail(|| format!("cannot read {}", file.display()))?;
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        let config = args.config.as_deref().map(serde_json::from_str);
        let config = config
            .transpose()
            .map_err(|e| Failure::usage("--config is no mapping in JSON").because(e))?;
        let plugin = Manifest {
            api_version: "tulle.dev/v1alpha1".to_owned(),
            kind: "Plugin".to_owned(),
            metadata: Metadata {
                name: name.into_owned(),
                ..Metadata::default()
            },
            spec: PluginSpec {
                source,
                config,
                ..PluginSpec::default()
            },
        };
        return Ok((plugin, Vec::new()));
    }
    let found = manifests::read(std::slice::from_ref(file))?;
    let plugins = found.objects.iter().filter_map(|object| match object {
        Object::Plugin(plugin) => Some(plugin.clone()),
        _ => None,
    });
    let named = |plugin: &Manifest<PluginSpec>| {
        args.name
            .as_ref()
            .is_none_or(|name| *name == plugin.metadata.name)
    };
    let mut plugins = plugins.filter(named);
    match (plugins.next(), plugins.next()) {
        (Some(plugin), None) => Ok((plugin, found.objects)),
        (Some(_), Some(_)) => Err(Failure::usage(format!(
            "{} has several Plugins",
            file.display()
        ))
        .fix("choose one with --name")),
        (None, _) => Err(Failure::input(format!(
            "{} has no such Plugin",
            file.display()
        ))),
    }
}

fn header(text: &str) -> Result<(String, String)> {
    let parted = text.split_once(':');
    let (name, value) = parted
        .ok_or_else(|| Failure::usage(format!("{text:?} is no header: write 'name: value'")))?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

/// Shows messages before and after the plugin, as a person reads them.
fn told(trial: &Value, outcome: &Value) -> String {
    let mut out = String::new();
    let mut part = |title: &str, before: &Value, after: &Value| {
        let _ = writeln!(out, "{title}");
        let old = lines(before);
        let new = lines(after);
        for line in old.iter().filter(|line| !new.contains(line)) {
            let _ = writeln!(out, "- {line}");
        }
        for line in &new {
            let mark = if old.contains(line) { ' ' } else { '+' };
            let _ = writeln!(out, "{mark} {line}");
        }
    };
    if outcome["answered"] == true {
        part("the plugin answers", &Value::Null, &outcome["response"]);
    } else if outcome["request"].is_object() {
        part("request", &trial["request"], &outcome["request"]);
        part("response", &trial["response"], &outcome["response"]);
    }
    if let Some(backend) = outcome["backend"].as_str() {
        let _ = writeln!(out, "backend: {backend}");
    }
    for (title, key) in [("tag", "tags"), ("counted", "counts")] {
        for pair in outcome[key].as_array().into_iter().flatten() {
            let name = pair[0].as_str().unwrap_or_default();
            let value = pair[1]
                .as_str()
                .map_or_else(|| pair[1].to_string(), str::to_owned);
            let _ = writeln!(out, "{title}: {name} {value}");
        }
    }
    for (title, key) in [("asked", "fetched"), ("console", "console")] {
        for line in outcome[key].as_array().into_iter().flatten() {
            let _ = writeln!(out, "{title}: {}", line.as_str().unwrap_or_default());
        }
    }
    if let Some(error) = outcome["error"].as_str() {
        let _ = writeln!(out, "failed: {error}");
    }
    let micros = |key: &str| outcome[key].as_f64().unwrap_or_default();
    let _ = write!(out, "time {:.0} us the first time", micros("firstUs"));
    if outcome["eachUs"].is_number() {
        let _ = write!(out, ", {:.2} us each then", micros("eachUs"));
    }
    let memory = outcome["memory"].as_u64().unwrap_or_default();
    let _ = writeln!(out, "; memory {}", output::bytes(memory));
    out
}

/// A message line by line.
fn lines(message: &Value) -> Vec<String> {
    let text = |key: &str| message[key].as_str().unwrap_or_default();
    let mut all = Vec::new();
    if let Some(status) = message["status"].as_u64() {
        all.push(status.to_string());
    } else if !text("method").is_empty() {
        all.push(format!("{} {}", text("method"), text("path")));
    }
    for header in message["headers"].as_array().into_iter().flatten() {
        let part = |at: usize| header[at].as_str().unwrap_or_default();
        all.push(format!("{}: {}", part(0).to_lowercase(), part(1)));
    }
    if let Some(body) = message["body"].as_str() {
        all.extend(body.lines().map(str::to_owned));
    }
    all
}

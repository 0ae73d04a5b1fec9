//! Checks a single plugin, beyond its types. Whether its source compiles, and starts, says the proxy that gets it.

use super::routing::object_ref;
use super::targets::target_refs;
use super::{label, metadata, object_name, spec, word};
use crate::document::Report;
use crate::manifest::quantity::{parse_duration, parse_memory};
use crate::manifest::{Manifest, PluginSpec};
use std::time::Duration;

const POLICIES: [&str; 2] = ["Closed", "Open"];
/// The longest source in bytes.
const LONGEST: usize = 256 << 10;
const MAX_CPU: Duration = Duration::from_secs(1);
/// The least memory in which the functions of plugins have room, and the most.
const MEMORY: [u64; 2] = [1 << 20, 256 << 20];
/// The least and the most of a body that a plugin sees whole.
const BODY: [u64; 2] = [1 << 10, 1 << 20];
const MAX_CALLS: u32 = 65_536;

pub(in crate::manifest) fn plugin(plugin: &Manifest<PluginSpec>, report: &mut Report) {
    metadata(&plugin.metadata, object_name, report);
    let at = spec();
    let plugin = &plugin.spec;
    let instead = "target the Service: its own sidecars run the plugin";
    // Routes may refer to it.
    if !plugin.target_refs.is_empty() {
        target_refs(&plugin.target_refs, &["Service"], instead, report);
    }
    let source = at.key("source");
    let here = !plugin.source.is_empty();
    let given = [
        here,
        plugin.source_ref.is_some(),
        plugin.source_file.is_some(),
    ];
    if given.iter().filter(|given| **given).count() > 1 {
        let problem = "expected exactly one of `source`, `sourceRef` and `sourceFile`";
        report.add(
            &at,
            problem,
            "give the module here, by reference or by its file",
        );
    }
    if let Some(reference) = &plugin.source_ref {
        let kinds = ["ConfigMap", "Secret"];
        object_ref(&at.key("sourceRef"), reference, "ConfigMap", &kinds, report);
    }
    if plugin.source.trim().is_empty() && (here || given == [false; 3]) {
        report.add(
            &source,
            "there is nothing in it",
            "write a module of JavaScript, or name a ConfigMap with `sourceRef`",
        );
    } else if plugin.source.len() > LONGEST {
        let problem = format!("a plugin has at most {LONGEST} bytes");
        report.add(
            &source,
            problem,
            "make it a service, and ask it with `mesh.fetch`",
        );
    }
    if let Some(policy) = &plugin.failure_policy {
        word(&at.key("failurePolicy"), policy, &POLICIES, report);
    }
    for (i, service) in plugin.services.iter().enumerate() {
        label(&at.key("services").index(i), service, report);
    }
    let Some(limits) = &plugin.limits else { return };
    let at = at.key("limits");
    if let Some(cpu) = &limits.cpu {
        let fits = |time: &Duration| !time.is_zero() && *time <= MAX_CPU;
        match parse_duration(cpu) {
            Ok(time) if !fits(&time) => {
                report.add(&at.key("cpu"), format!("`{cpu}` is not from 1ms to 1s"), "");
            }
            Ok(_) => {}
            Err(why) => report.add(&at.key("cpu"), why.to_string(), ""),
        }
    }
    let sizes = [
        ("memory", &limits.memory, MEMORY, "1Mi to 256Mi"),
        ("body", &limits.body, BODY, "1Ki to 1Mi"),
    ];
    for (field, size, [least, most], range) in sizes {
        let Some(size) = size else { continue };
        match parse_memory(size) {
            Ok(bytes) if bytes < least || bytes > most => {
                let problem = format!("`{size}` is not from {range}");
                report.add(&at.key(field), problem, "");
            }
            Ok(_) => {}
            Err(why) => report.add(&at.key(field), why.to_string(), ""),
        }
    }
    if limits
        .calls
        .is_some_and(|calls| calls == 0 || calls > MAX_CALLS)
    {
        let problem = format!("expected a number from 1 to {MAX_CALLS}");
        report.add(&at.key("calls"), problem, "");
    }
}

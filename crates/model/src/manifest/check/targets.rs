//! Checks the targets of a policy.

use super::routing::GATEWAY_GROUP;
use super::{label, not_empty, object_name, port, spec, word};
use crate::document::Report;
use crate::manifest::TargetRef;
use crate::manifest::allowed::CORE_GROUPS;
use serde::Deserialize;
use std::slice;

/// All kinds that some policy can be about, and an AuthorizationPolicy about each.
pub(super) const KINDS: [&str; 4] = ["Service", "Gateway", "HTTPRoute", "GRPCRoute"];

impl TargetRef {
    /// Reads one target of an AuthorizationPolicy, without the object that has it. `None`: it is none.
    pub fn read(given: &serde_json::Value) -> Option<Self> {
        let target = Self::deserialize(given).ok()?;
        let mut report = Report::default();
        target_refs(slice::from_ref(&target), &KINDS, "", &mut report);
        report.is_empty().then_some(target)
    }
}

/// The objects a policy is about, of some `kinds`. `instead`: what to do for the others.
pub(super) fn target_refs(refs: &[TargetRef], kinds: &[&str], instead: &str, report: &mut Report) {
    let at = spec().key("targetRefs");
    not_empty(&at, refs, "target", report);
    for (i, reference) in refs.iter().enumerate() {
        let at = at.index(i);
        let kind = reference.kind();
        if KINDS.contains(&kind) && !kinds.contains(&kind) {
            let article = if kind.starts_with('H') { "an" } else { "a" };
            let problem = format!("{article} {kind} cannot be the target of this kind of policy");
            report.add(&at.key("kind"), problem, instead);
        } else {
            word(&at.key("kind"), kind, kinds, report);
        }
        if let Some(group) = &reference.group {
            let known: &[&str] = match kind {
                "Service" => &CORE_GROUPS,
                _ => &[GATEWAY_GROUP],
            };
            word(&at.key("group"), group, known, report);
        }
        let name = at.key("name");
        match kind {
            "Service" => label(&name, &reference.name, report),
            _ => object_name(&name, &reference.name, report),
        }
        if let Some(number) = reference.port {
            port(&at.key("port"), number, report);
            if !matches!(kind, "Service" | "Gateway") {
                let hint = "use `sectionName` for one of its rules";
                report.add(&at.key("port"), "a route has no ports", hint);
            }
        }
        if let Some(section) = &reference.section_name {
            object_name(&at.key("sectionName"), section, report);
        }
    }
}

//! Does every part of the mesh that is up do its work?

use super::Findings;
use crate::paths::Paths;
use crate::status::{Proxy, Report, Service, Workload, collect};
use crate::supervise::leftovers::Leftovers;
use crate::supervise::state::RunState;
use std::time::{SystemTime, UNIX_EPOCH};
use tulle_model::manifest::{MtlsMode, NO_ENDPOINT, Object, validate_set};

pub(super) async fn check(paths: &Paths, findings: &mut Findings) {
    match RunState::read(paths) {
        Ok(None) => {
            left_over(paths, findings);
            return;
        }
        Err(failure) => {
            findings.error("mesh", failure.to_string(), "`tulle down` clears up");
            return;
        }
        Ok(Some(state)) if !state.supervisor.is_alive() => {
            findings.error(
                "mesh",
                "its supervisor ended without being told to",
                "`tulle check --fix` or `tulle down` clears up; `tulle logs supervisor` shows why it ended",
            );
            if !Leftovers::find(paths).is_gone() {
                left_over(paths, findings);
            }
            return;
        }
        Ok(Some(state)) => {
            findings.ok(
                "mesh",
                format!("up, supervisor is process {}", state.supervisor.pid),
            );
        }
    }
    let report = match collect(paths).await {
        Ok(report) => report,
        Err(failure) => {
            findings.error("mesh", failure.to_string(), "`tulle down`, then `tulle up`");
            return;
        }
    };
    controller(&report, findings);
    for proxy in &report.proxies {
        self::proxy(paths, proxy, &report, findings);
    }
    services(paths, &report, findings);
    let strict = objects(paths, &report, findings).await;
    edges(&report, strict, findings);
    for warning in &report.warnings {
        findings.warning("mesh", warning.clone(), "see the message");
    }
}

/// Reports problems between objects (docs/findings.md), and returns whether mutual TLS is known to be strict. A joined
/// host sees only its own objects.
async fn objects(paths: &Paths, report: &Report, findings: &mut Findings) -> bool {
    if !report.mesh.node.is_empty() || !report.controller.ready {
        return false;
    }
    let mut objects = crate::supervise::context::objects(paths);
    let stored = match crate::apply::stored(&mut objects).await {
        Ok(stored) => stored,
        Err(failure) => {
            findings.error("objects", failure.to_string(), "`tulle logs controller`");
            return false;
        }
    };
    let mut found = validate_set(stored.iter());
    crate::findings::add(&mut found, report.findings.clone());
    if found.is_empty() {
        let text = format!("{} fit together", stored.len());
        findings.ok("objects", text);
    }
    findings.objects = !found.is_empty();
    for problem in found {
        let cause = match problem.field.is_empty() {
            true => problem.message,
            false => format!("{}: {}", problem.field, problem.message),
        };
        let check = format!("{} {}", problem.code, problem.object);
        let see = format!("docs/findings.md says more about {}", problem.code);
        findings.warning(check, cause, &see);
    }
    is_strict(&stored)
}

/// Returns the advice about plaintext that was accepted.
fn plaintext_fix(strict: bool) -> &'static str {
    match strict {
        true => {
            "mutual TLS is strict and refuses plaintext now: what is named has no sidecar, or called before"
        }
        false => "set `mtls: {mode: strict}` in the Mesh when every caller has a sidecar",
    }
}

/// Whether plaintext is refused: without a Mesh that says otherwise it is.
fn is_strict(stored: &[Object]) -> bool {
    let permissive = |object: &Object| match object {
        Object::Mesh(mesh) => mesh.spec.mtls.mode == MtlsMode::Permissive,
        _ => false,
    };
    !stored.iter().any(permissive)
}

/// Finds processes and kernel objects of a mesh that is not up.
fn left_over(paths: &Paths, findings: &mut Findings) {
    let left = Leftovers::find(paths);
    if left.is_gone() {
        findings.ok("mesh", "none is up, and nothing is left of one");
        return;
    }
    let fix = match left.processes.is_empty() {
        true => "`tulle check --fix` or `tulle down` removes it",
        false => "`tulle down` ends processes and removes the rest",
    };
    let shown = left.shown().join(", ");
    findings.error("mesh", format!("none is up, but left are: {shown}"), fix);
}

fn controller(report: &Report, findings: &mut Findings) {
    let controller = &report.controller;
    // A joined host asks its own controller over mutual TLS, which this command has no part in.
    if !report.mesh.node.is_empty() {
        return;
    }
    if !controller.ready {
        findings.error(
            "controller",
            format!("it does not answer ({} restarts)", controller.restarts),
            "traffic goes on; `tulle logs controller` shows why",
        );
        return;
    }
    findings.ok(
        "controller",
        format!(
            "answers at {}, {} objects",
            controller.address, controller.objects
        ),
    );
    if report.mesh.ca_fingerprint.len() == 64 {
        findings.ok(
            "certificate authority",
            format!("SHA-256 {}", report.mesh.ca_fingerprint),
        );
    } else {
        findings.error(
            "certificate authority",
            "the controller names none",
            "`tulle logs controller` shows why",
        );
    }
}

fn proxy(paths: &Paths, proxy: &Proxy, report: &Report, findings: &mut Findings) {
    let name = format!("proxy of {}", proxy.workload);
    let see = see_log(paths, &proxy.workload, true);
    let local = report.mesh.node.is_empty();
    if proxy.pid.is_none() {
        let exit = proxy.last_exit.as_deref().unwrap_or("not started yet");
        findings.error(name, format!("it does not run: {exit}"), &see);
    } else if !proxy.ready {
        findings.error(name, "it is not ready", &see);
    } else if let Some(why) = &proxy.last_nack {
        findings.error(
            name,
            format!("it refused its last configuration and goes on with the one before: {why}"),
            "correct the object named",
        );
    } else if let Some(why) = &proxy.faults {
        findings.error(
            name,
            format!("not all of its configuration is in force: {why}"),
            "correct the object named",
        );
    } else if left(proxy).is_some_and(|s| s <= 0) {
        findings.error(
            name,
            "its certificate has expired",
            "look at the clock and at `tulle logs controller`",
        );
    } else if local && report.controller.ready && !proxy.connected {
        findings.warning(
            name,
            "it is not connected to the controller and goes on as last configured",
            &see,
        );
    } else {
        let valid = left(proxy).map(crate::output::coarse);
        let valid = valid.map_or_else(String::new, |v| format!(", certificate valid for {v}"));
        findings.ok(name, format!("ready, configuration accepted{valid}"));
    }
}

fn left(proxy: &Proxy) -> Option<i64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    Some(proxy.certificate_not_after? - i64::try_from(now.as_secs()).ok()?)
}

fn short(workload: &str) -> &str {
    workload.strip_prefix("gateway.").unwrap_or(workload)
}

/// Names the first log that exists: the process's, its sidecar's, or the supervisor's, which tells
/// why nothing was started.
fn see_log(paths: &Paths, workload: &str, sidecar: bool) -> String {
    let name = short(workload);
    let command = if !sidecar && paths.log(workload).exists() {
        format!("tulle logs {name}")
    } else if paths.log(&format!("{workload}.sidecar")).exists() {
        format!("tulle logs {name} --sidecar")
    } else {
        "tulle logs supervisor".to_owned()
    };
    format!("`{command}` shows more")
}

/// One finding for each service that nobody answers for, and for each workload that is missing
/// beside others that answer.
fn services(paths: &Paths, report: &Report, findings: &mut Findings) {
    let see = |workload: &Workload| match workload.state {
        _ if workload.host != report.mesh.node => {
            format!("run `tulle check` on host {}", workload.host)
        }
        Some(_) => see_log(paths, &workload.name, false),
        None => "start what is at the Workload's `address`; the mesh does not".to_owned(),
    };
    for service in &report.services {
        if !service.ready && !service.workloads.is_empty() {
            no_endpoint(service, see, findings);
            continue;
        }
        for workload in &service.workloads {
            let name = format!("workload {}", workload.name);
            if workload.ready {
                findings.ok(name, "answers");
            } else {
                findings.error(name, workload.message.clone(), &see(workload));
            }
        }
    }
}

/// Reports a service without a workload that is ready, with what is wrong with each.
fn no_endpoint(service: &Service, see: impl Fn(&Workload) -> String, findings: &mut Findings) {
    let check = format!("{} service {}", NO_ENDPOINT, service.name);
    let workloads: Vec<String> = service
        .workloads
        .iter()
        .map(|w| format!("{}: {}", w.name, w.message))
        .collect();
    let cause = format!(
        "none of its workloads is ready ({}); requests to it are answered with 503",
        workloads.join("; ")
    );
    let mut fixes: Vec<String> = Vec::new();
    for fix in service.workloads.iter().map(see) {
        if !fixes.contains(&fix) {
            fixes.push(fix);
        }
    }
    let fix = format!(
        "{}; docs/findings.md says more about {NO_ENDPOINT}",
        fixes.join("; ")
    );
    findings.error(check, cause, &fix);
}

fn edges(report: &Report, strict: bool, findings: &mut Findings) {
    let plain: Vec<String> = report
        .edges
        .iter()
        .filter(|e| e.security == "plaintext" && e.denied < e.requests + e.connections)
        .map(|e| {
            let source = if e.source.is_empty() {
                "outside the mesh"
            } else {
                &e.source
            };
            format!("{source} → {}", e.destination_service)
        })
        .collect();
    let hops = report.edges.iter().filter(|e| e.security == "mutual_tls");
    if plain.is_empty() {
        let count = hops.count();
        let text = match count {
            0 => "none between services yet".to_owned(),
            1 => "1 hop seen, mutual TLS".to_owned(),
            _ => format!("{count} hops seen, all mutual TLS"),
        };
        findings.ok("traffic", text);
    } else {
        findings.warning(
            "traffic",
            format!("plaintext was accepted: {}", plain.join(", ")),
            plaintext_fix(strict),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tulle_model::manifest::parse;

    #[test]
    fn who_is_strict_is_not_told_to_be() {
        let mesh = |spec: &str| {
            let text = format!(
                "apiVersion: tulle.dev/v1alpha1\nkind: Mesh\nmetadata: {{name: m}}\nspec: {spec}\n"
            );
            let objects = parse("f", &text).unwrap().into_iter().map(|o| o.object);
            objects.collect::<Vec<_>>()
        };
        assert!(is_strict(&[]) && is_strict(&mesh("{}")));
        assert!(is_strict(&mesh("{mtls: {mode: strict}}")));
        assert!(!is_strict(&mesh("{mtls: {mode: permissive}}")));
        for (strict, part) in [(true, "is strict"), (false, "set `mtls")] {
            assert!(plaintext_fix(strict).contains(part));
        }
    }
}

//! `tulle restart`: ends workloads or gateways in order and starts them again, one after another. `tulle service upgrade` has the
//! sidecars of workloads replaced alone.
//!
//! A mark on the stored object asks for it, so the host that runs the workload does it, whichever
//! that is.

use crate::args::workloads::Restart;
use crate::client::{Objects, Rpc};
use crate::failure::{Failure, Result};
use crate::output::line;
use crate::paths::Paths;
use crate::proc::ProcessId;
use crate::supervise::state::{RunState, Workload};
use crate::supervise::{NODE_LABEL, RESTART_MARK, SIDECAR_MARK};
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tulle_api::v1::ApplyRequest;
use tulle_model::manifest::{Metadata, Object};

const LOOK: Duration = Duration::from_millis(100);

/// The part of a unit that is restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// A workload with its sidecar, or a gateway.
    All,
    /// The sidecar of a workload: a new process takes over, and the application goes on.
    Sidecar,
}

/// Restarts what is named, each after the one before answers again.
pub(crate) async fn restart(paths: &Paths, mut objects: Objects, args: &Restart) -> Result<()> {
    let mut stored = crate::apply::stored(&mut objects).await?;
    let own = RunState::of_running(paths)?.node;
    if !own.is_empty() {
        // Nothing else is this host's to change.
        stored.retain(|object| node(object) == Some(&own));
    }
    let mut targets = Vec::new();
    for name in &args.names {
        targets.extend(named(&stored, name)?);
    }
    for target in targets {
        renew(paths, &mut objects, &target.id(), Part::All, args.timeout).await?;
    }
    Ok(())
}

/// Restarts a workload or gateway, or the part of it, and waits until that answers again. `id` is that of its object.
pub(crate) async fn renew(
    paths: &Paths,
    objects: &mut Objects,
    id: &str,
    part: Part,
    patience: Duration,
) -> Result<()> {
    // As it is now: it may have been changed while those before it restarted.
    let stored = crate::apply::stored(objects).await?;
    let target = stored.into_iter().find(|o| o.id() == id);
    let id = id.to_lowercase();
    let Some(target) = target else {
        line(&format!("{id} is gone"));
        return Ok(());
    };
    let state = RunState::of_running(paths)?;
    let elsewhere = node(&target).filter(|node| **node != state.node).cloned();
    let before = processes(&state, &target, part);
    let request = ApplyRequest {
        objects: vec![crate::manifests::to_api(&marked(target.clone(), part))],
        ..Default::default()
    };
    let asked = objects.apply(request).await;
    asked.rpc(|| format!("cannot restart {id}"))?;
    if let Some(node) = elsewhere {
        line(&format!("{id} is restarted by host {node}"));
        return Ok(());
    }
    wait(paths, &target, part, before, patience).await?;
    line(&match part {
        Part::All => format!("{id} restarted"),
        Part::Sidecar => format!("{id} has a new sidecar"),
    });
    Ok(())
}

/// The workload or gateway of that name, or all workloads of a service.
fn named(stored: &[Object], name: &str) -> Result<Vec<Object>> {
    let is_unit = |o: &&Object| matches!(o, Object::Workload(_) | Object::Gateway(_));
    let units = || stored.iter().filter(is_unit);
    let mut found: Vec<Object> = units().filter(|o| o.name() == name).cloned().collect();
    if found.is_empty() {
        let of_service = units().filter(|o| match o {
            Object::Workload(w) => w.spec.service.as_deref() == Some(name),
            _ => false,
        });
        found = of_service.cloned().collect();
    }
    if found.is_empty() {
        let known: Vec<&str> = units().map(Object::name).collect();
        let failure = Failure::new(format!(
            "there is no workload, gateway or service named {name}"
        ));
        return Err(failure.fix(format!("there are: {}", known.join(", "))));
    }
    Ok(found)
}

fn metadata(object: &mut Object) -> Option<&mut Metadata> {
    match object {
        Object::Workload(workload) => Some(&mut workload.metadata),
        Object::Gateway(gateway) => Some(&mut gateway.metadata),
        _ => None,
    }
}

/// The host that runs it, if that is one which joined.
fn node(object: &Object) -> Option<&String> {
    match object {
        Object::Workload(workload) => workload.metadata.labels.get(NODE_LABEL),
        _ => None,
    }
}

fn marked(mut object: Object, part: Part) -> Object {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default().as_millis();
    if let Some(metadata) = metadata(&mut object) {
        let annotations: &mut BTreeMap<String, String> = &mut metadata.annotations;
        let mark = match part {
            Part::All => RESTART_MARK,
            Part::Sidecar => SIDECAR_MARK,
        };
        annotations.insert(mark.to_owned(), now.to_string());
    }
    object
}

/// A unit's processes that are restarted, whether it is ready, and why not.
#[derive(Default)]
struct Unit {
    app: Option<ProcessId>,
    proxy: Option<ProcessId>,
    ready: bool,
    message: String,
}

fn processes(state: &RunState, object: &Object, part: Part) -> Unit {
    let name = object.name();
    if matches!(object, Object::Gateway(_)) {
        let found = state.gateways.iter().find(|g| g.name == name);
        return found.map_or_else(Unit::default, |g| Unit {
            app: None,
            proxy: g.proxy.process.id,
            ready: g.proxy.ready,
            message: g.message.clone(),
        });
    }
    let found = state.workloads.iter().find(|w| w.name == name);
    let app = |w: &Workload| w.app.as_ref().filter(|_| part == Part::All)?.id;
    found.map_or_else(Unit::default, |w| Unit {
        app: app(w),
        proxy: w.sidecar.as_ref().and_then(|s| s.process.id),
        // While a sidecar takes over the workload answers by the one before; whether its application is ready is not asked then.
        ready: (w.ready || part == Part::Sidecar) && w.sidecar.as_ref().is_none_or(|s| s.ready),
        message: w.message.clone(),
    })
}

/// Whether another process is there in the place of one.
fn renewed(old: Option<ProcessId>, new: Option<ProcessId>) -> bool {
    old.is_none() || (new.is_some() && old != new)
}

/// Waits until other processes are there and answer.
async fn wait(
    paths: &Paths,
    object: &Object,
    part: Part,
    before: Unit,
    patience: Duration,
) -> Result<()> {
    let until = Instant::now() + patience;
    loop {
        let now = processes(&RunState::of_running(paths)?, object, part);
        if now.ready && renewed(before.app, now.app) && renewed(before.proxy, now.proxy) {
            return Ok(());
        }
        if Instant::now() >= until {
            let name = object.name();
            let (unit, logs) = match part {
                Part::All => (name.to_owned(), format!("`tulle logs {name}`")),
                Part::Sidecar => (
                    format!("the new sidecar of {name}, which goes on with the old one,"),
                    format!("`tulle logs {name} --sidecar`"),
                ),
            };
            let what = format!("{unit} does not answer within {}s", patience.as_secs());
            return Err(Failure::new(what)
                .because(now.message)
                .fix(format!("{logs} shows its output")));
        }
        tokio::time::sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects(text: &str) -> Vec<Object> {
        let parsed = tulle_model::manifest::parse("x.yaml", text).unwrap();
        parsed.into_iter().map(|l| l.object).collect()
    }

    #[test]
    fn a_name_is_a_workload_or_a_whole_service() {
        let workload = |name: &str, service: &str| {
            format!(
                "apiVersion: tulle.dev/v1alpha1\nkind: Workload\nmetadata: {{name: {name}}}\n\
                 spec: {{command: [x], service: {service}}}\n---\n"
            )
        };
        let stored = objects(&(workload("web-1", "web") + &workload("web-2", "web")));
        let names = |name| {
            let found = named(&stored, name).map(|found| {
                let names = found.iter().map(|o| o.name().to_owned());
                names.collect::<Vec<_>>()
            });
            found.map_err(|f| f.to_string())
        };
        assert_eq!(names("web-2").unwrap(), ["web-2"]);
        assert_eq!(names("web").unwrap(), ["web-1", "web-2"]);
        let said = names("db").unwrap_err();
        assert!(said.contains("web-1, web-2"), "{said}");
        for (part, mark) in [(Part::All, RESTART_MARK), (Part::Sidecar, SIDECAR_MARK)] {
            let Object::Workload(marked) = marked(stored[0].clone(), part) else {
                panic!("not a workload")
            };
            let marks: Vec<&String> = marked.metadata.annotations.keys().collect();
            assert_eq!(marks, [mark]);
        }
    }
}

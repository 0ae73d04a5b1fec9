//! `tulle join`: this host runs workloads of a mesh whose controller is elsewhere.
//!
//! The token and the CA's fingerprint are all it needs: with them it gets a certificate as
//! `node/<name>`, which it keeps to come back without a token. It applies its own workloads over mutual TLS and reports where they run. Its
//! listeners are on the advertised address, as in loopback mode; there are no namespaces.

mod address;
mod away;
mod brought;
mod enrol;
mod kept;
mod way;

use crate::args::Join;
use crate::client;
use crate::failure::{Failure, Result};
use crate::manifests::{self, Manifests};
use crate::output::progress;
use crate::paths::Paths;
use crate::supervise::host_authority::HostCertifier;
use crate::supervise::last_known::{KnownController, LastKnown};
use crate::supervise::preflight::Host;
use crate::supervise::state::Mode;
use crate::supervise::{NODE_LABEL, Plan, Supervisor, envoy_programs, janitor, usable_proxy};
use crate::up::log::{self, Also};
use crate::up::signals::Signals;
use crate::up::{OfHost, context, end_early, fresh_logs, notify, stop, stopping};
use brought::Brought;
use enrol::{Controller, Node, OwnFiles, never_joined};
use kept::Kept;
use std::cell::Cell;
use std::fs::File;
use std::io::Read;
use std::net::IpAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::LocalSet;
use tulle_api::v1::Object;
use tulle_model::identity::TrustDomain;
use tulle_model::manifest;
use way::Way;

/// A token is far shorter.
const LONGEST_TOKEN: u64 = 4096;

/// Words at the end.
const LEFT: &str = "left the mesh; nothing is left of it here but the identity to come back with";
const STAYS: &str = "ended without leaving the mesh; the same command starts this host again";

/// Joins and runs until told to stop.
pub(crate) fn join(paths: &Paths, args: &Join) -> Result<()> {
    let manifests = manifests::read(&args.files)?;
    Host::starting(Some(Mode::Loopback)).check(&manifests)?;
    let trust_domain = TrustDomain::parse(&args.trust_domain)
        .map_err(|e| Failure::usage("--trust-domain").because(e))?;
    if !args.sidecars.data_plane.has_sidecars() {
        return Err(
            Failure::usage("a host cannot join without sidecars (--data-plane none)")
                .because("others know its workloads by the certificates of their sidecars"),
        );
    }
    let ca = fingerprint(&args.ca_fingerprint)?;
    let token = token(args)?;
    let kept = Kept::at(paths.host_identity());
    if token.is_none() && !kept.file().exists() {
        return Err(never_joined(&kept));
    }
    let last_known = Rc::new(LastKnown::read(paths)?);
    let way = Way::find(args, &ca, &kept, &last_known)?;
    let added = paths.missing();
    let _lock = Supervisor::make_room(paths)?;
    let begun = Cell::new(false);
    let how = How {
        controller: Controller {
            address: way.controller,
            fingerprint: ca,
            trust_domain,
            line: Arc::default(),
            may_be_away: way.may_be_away,
        },
        token,
        kept,
        own: way.own,
        away: way.away,
        last_known,
    };
    let joined = run(paths, args, &manifests, how, &begun);
    if !begun.get() {
        // Nothing of this attempt is worth keeping: its error says all.
        if let Err(failure) = janitor::clear(paths) {
            anstream::eprintln!("warning: {failure}");
        }
        paths.remove_added(&added);
    }
    joined
}

/// Everything that a host needs to know to join.
struct How {
    controller: Controller,
    token: Option<String>,
    kept: Kept,
    /// This host's address on the way to the controller.
    own: IpAddr,
    /// Why the controller was not reached.
    away: Option<Failure>,
    last_known: Rc<LastKnown>,
}

/// Enrols and runs the workloads. `begun` tells that the controller has accepted them, or is not there to.
fn run(
    paths: &Paths,
    args: &Join,
    manifests: &Manifests,
    how: How,
    begun: &Cell<bool>,
) -> Result<()> {
    let How {
        controller,
        token,
        kept,
        own,
        away,
        last_known,
    } = how;
    fresh_logs(paths)?;
    log::start(paths, Also::Nowhere)?;
    let plan = Plan {
        mode: Mode::Loopback,
        data_plane: args.sidecars.data_plane,
        network: None,
        claim: Cell::default(),
        listen: None,
        _reserved: None,
        console: None,
        console_actions: false,
        _console_reserved: None,
        controller: controller.address,
        for_hosts: controller.address,
        reachable: args.advertise.unwrap_or(own),
        inbound_ports: args.inbound_ports,
        proxy: usable_proxy(paths)?,
        envoy: envoy_programs(paths, &args.sidecars)?,
    };
    let local = LocalSet::new();
    crate::run_to_end(local.run_until(async {
        let ca = controller.fingerprint.clone();
        let line = Arc::clone(&controller.line);
        let certifier = HostCertifier::at(paths.host_authority(), paths.host_issued());
        let certifier = Rc::new(certifier);
        let own_files = OwnFiles {
            identity: kept,
            certifier: Rc::clone(&certifier),
            last_known: Rc::clone(&last_known),
        };
        let node = Node::enter(controller, token.as_deref(), away, own_files).await?;
        let is_alone = node.is_alone();
        progress(&match is_alone {
            true => format!(
                "no controller answers at {}: {} starts with what it knew last",
                plan.controller,
                node.identity()
            ),
            false => format!("joined as {}", node.identity()),
        });
        let objects = own_objects(manifests, node.name())?;
        let mut brought = Brought::read(paths.brought(), node.joins())?;
        let (new, known) = brought.divide(&objects);
        let client = node.objects();
        let renewing = tokio::task::spawn_local(Rc::clone(&node).renew());
        let name = node.name().to_owned();
        let of_host = OfHost {
            certifier,
            last_known: Rc::clone(&last_known),
        };
        let context = context(
            paths,
            &plan,
            name,
            node.objects(),
            Arc::clone(&line),
            Some(of_host),
        );
        if !is_alone {
            last_known.note_address(plan.reachable);
            last_known.note_controller(KnownController {
                name: args.controller.clone(),
                fingerprint: ca.clone(),
                address: plan.controller,
            });
        }
        let keeping = Rc::clone(&last_known).keep(Rc::clone(&context));
        let keeping = tokio::task::spawn_local(keeping);
        *context.ca_fingerprint.borrow_mut() = ca;
        let following = address::follow(Rc::clone(&context), args.advertise.is_some());
        let following = tokio::task::spawn_local(following);
        let counting = tokio::task::spawn_local(away::keep(Rc::clone(&context)));
        let signals = Signals::listen()?;
        let Some(mut supervisor) = Supervisor::start(context, &plan, signals.first()).await? else {
            progress("interrupted while it started; nothing is left of it here");
            return Ok(());
        };
        if is_alone {
            let all = brought::together(last_known.objects(), &new);
            let later = brought::bring_later(client.clone(), new, objects.clone(), brought);
            supervisor.begin_alone(all, later);
        } else {
            if let Err(status) = brought::bring(client.clone(), new).await {
                supervisor.give_up().await?;
                return Err(client::failure(brought::REFUSED, &status));
            }
            brought.keep(&objects);
            tokio::task::spawn_local(brought::name_deleted(client.clone(), known));
        }
        begun.set(true);
        let patience = Duration::from_secs(120);
        let stop = stop(args.run_for, patience, supervisor.phases(), signals.clone());
        let out = Rc::new(Cell::new(None));
        let put_out = Rc::clone(&out);
        let keeper = keeping.abort_handle();
        let stop = async move {
            tokio::select! {
                () = stop => {}
                failure = renewing => put_out.set(failure.ok()),
            }
            // From here on sidecars hear how the others of this host end.
            keeper.abort();
            stopping();
        };
        let follow = notify::follow(paths.clone(), patience, supervisor.phases());
        tokio::task::spawn_local(follow);
        let view = crate::up::view(paths.clone(), supervisor.phases());
        let view = tokio::task::spawn_local(view);
        let ended = end_early(paths, supervisor.run(stop), &signals).await;
        view.abort();
        following.abort();
        counting.abort();
        let leaves = !args.stay && !line.is_away();
        let has_left = leaves && brought::leave(client, paths.brought(), &objects).await;
        let dismissed = out.take();
        if has_left || dismissed.is_some() {
            last_known.forget();
        }
        ended?;
        if let Some(failure) = dismissed {
            return Err(failure);
        }
        progress(if has_left { LEFT } else { STAYS });
        Ok(())
    }))
}

/// Reads a fingerprint and returns it as the mesh writes it: other programs print capitals and colons.
fn fingerprint(text: &str) -> Result<String> {
    let text = text.replace(':', "").to_ascii_lowercase();
    if text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Ok(text);
    }
    Err(Failure::usage("--ca-fingerprint is invalid")
        .because("a SHA-256 fingerprint has 64 hexadecimal digits")
        .fix("take it from `tulle token create`, or from `tulle check` on the controller's host"))
}

/// The token, if there is one: an empty one is none.
fn token(args: &Join) -> Result<Option<String>> {
    let given = |text: &str| Some(text.trim().to_owned()).filter(|t| !t.is_empty());
    let Some(file) = &args.token_file else {
        return Ok(args.token.as_deref().and_then(given));
    };
    let mut text = String::new();
    let read = if file == Path::new("-") {
        std::io::stdin()
            .take(LONGEST_TOKEN)
            .read_to_string(&mut text)
    } else {
        File::open(file).and_then(|f| f.take(LONGEST_TOKEN).read_to_string(&mut text))
    };
    let what = || format!("cannot read the token in {}", file.display());
    read.map_err(|e| Failure::input(what()).because(e))?;
    Ok(given(&text))
}

/// The workloads, labelled as this host's: each host runs only its own.
fn own_objects(manifests: &Manifests, node: &str) -> Result<Vec<Object>> {
    let mut objects = Vec::new();
    for object in &manifests.objects {
        let manifest::Object::Workload(workload) = object else {
            return Err(Failure::input(format!(
                "{} is not a Workload; a host that joins brings only those",
                object.id()
            ))
            .fix("apply it on the controller's host"));
        };
        let mut workload = workload.clone();
        let labels = &mut workload.metadata.labels;
        labels.insert(NODE_LABEL.into(), node.to_owned());
        objects.push(manifests::to_api(&manifest::Object::Workload(workload)));
    }
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Manifests {
        let objects = manifest::parse("x.yaml", text).unwrap();
        Manifests::new(objects.into_iter().map(|l| l.object).collect())
    }

    #[test]
    fn a_host_brings_its_own_workloads_and_nothing_else() {
        let workload = "apiVersion: tulle.dev/v1alpha1\nkind: Workload\nmetadata: {name: a}\nspec: {command: [x]}\n";
        let objects = own_objects(&read(workload), "edge").unwrap();
        assert!(objects[0].json.contains(r#""tulle.dev/node":"edge""#));
        let mesh = "apiVersion: tulle.dev/v1alpha1\nkind: Mesh\nmetadata: {name: m}\nspec: {}\n";
        assert!(own_objects(&read(mesh), "edge").is_err());
    }

    #[test]
    fn fingerprints_in_any_notation() {
        let digits = "0a".repeat(32);
        assert_eq!(fingerprint(&digits).unwrap(), digits);
        assert_eq!(fingerprint(&["0A"; 32].join(":")).unwrap(), digits);
        assert!(fingerprint("abc").is_err() && fingerprint(&"x".repeat(64)).is_err());
    }
}

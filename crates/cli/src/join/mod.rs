//! `tulle join`: this host runs workloads of a mesh whose controller is elsewhere.
//!
//! The token and the CA's fingerprint are all it needs: with them it gets a certificate as
//! `node/<name>`, which it keeps to come back without a token. It applies its own workloads over mutual TLS and reports where they run. Its
//! listeners are on the advertised address, as in loopback mode; there are no namespaces.

mod address;
mod away;
mod brought;
mod enrol;
mod given;
mod kept;
pub(crate) mod service;
mod way;

use crate::args::join::{Join, JoinOptions};
use crate::client;
use crate::failure::{Failure, OrFail, Result};
use crate::output::{one_line, progress};
use crate::paths::Paths;
use crate::supervise::host_authority::HostCertifier;
use crate::supervise::last_known::{KnownController, LastKnown};
use crate::supervise::state::Mode;
use crate::supervise::{Plan, Supervisor, envoy_programs, janitor, usable_proxy};
use crate::up::log::{self, Also};
use crate::up::signals::Signals;
use crate::up::{OfHost, context, end_early, fresh_logs, notify, stop, stopping};
use brought::Brought;
use enrol::{Controller, Node, OwnFiles, never_joined};
use given::{Given, label};
use kept::Kept;
use std::cell::Cell;
use std::net::IpAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::LocalSet;
use tonic::Status;
use tulle_model::identity::TrustDomain;
use way::Way;

/// Words at the end.
const LEFT: &str = "left the mesh; nothing is left of it here but the identity to come back with";
const STAYS: &str = "ended without leaving the mesh; the same command starts this host again";

/// Joins and runs until told to stop.
pub(crate) fn join(paths: &Paths, args: &Join) -> Result<()> {
    let last_known = Rc::new(LastKnown::read(paths)?);
    let given = Given::read(args, &last_known)?;
    let (ca, trust_domain) = checked(&args.options)?;
    let token = match given::token(&args.options)? {
        None if args.service => given::waiting_token(paths)?,
        token => token,
    };
    let kept = Kept::at(paths.host_identity());
    if token.is_none() && !kept.file().exists() {
        return Err(never_joined(&kept));
    }
    let way = Way::find(&args.options, &ca, &kept, &last_known)?;
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
    let joined = run(paths, args, given, how, &begun);
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
fn run(paths: &Paths, args: &Join, given: Given, how: How, begun: &Cell<bool>) -> Result<()> {
    let How {
        controller,
        token,
        kept,
        own,
        away,
        last_known,
    } = how;
    fresh_logs(paths)?;
    log::start(paths, Also::named(args.service, args.log_file.as_deref())?)?;
    let options = &args.options;
    let plan = Plan {
        mode: Mode::Loopback,
        data_plane: options.sidecars.data_plane,
        network: None,
        claim: Cell::default(),
        listen: None,
        _reserved: None,
        console: None,
        console_actions: false,
        _console_reserved: None,
        controller: controller.address,
        for_hosts: controller.address,
        reachable: options.advertise.unwrap_or(own),
        inbound_ports: options.inbound_ports,
        proxy: usable_proxy(paths)?,
        envoy: envoy_programs(paths, &options.sidecars)?,
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
        let mut brought = match node.joins() {
            true => Brought::begin(paths.brought())?,
            false => Brought::read(paths.brought())?,
        };
        let news = match given {
            Given::Manifests(mut manifests) => brought.news(label(&mut manifests, node.name())),
            Given::Before(refused) => {
                let refused = one_line(&refused.to_string());
                tracing::error!("this host starts what it ran before: {refused}");
                brought.no_news()
            }
        };
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
        let has_run = !last_known.objects().is_empty();
        last_known.note_manifests(&of_service(args)?);
        if !is_alone {
            if args.service {
                given::remove_token(&paths.host_token());
            }
            last_known.note_address(plan.reachable);
            last_known.note_controller(KnownController {
                name: options.controller.clone(),
                fingerprint: ca.clone(),
                address: plan.controller,
            });
        }
        let keeping = Rc::clone(&last_known).keep(Rc::clone(&context));
        let keeping = tokio::task::spawn_local(keeping);
        *context.ca_fingerprint.borrow_mut() = ca;
        let following = address::follow(Rc::clone(&context), options.advertise.is_some());
        let following = tokio::task::spawn_local(following);
        let counting = tokio::task::spawn_local(away::keep(Rc::clone(&context)));
        let signals = Signals::listen()?;
        let Some(mut supervisor) = Supervisor::start(context, &plan, signals.first()).await? else {
            progress("interrupted while it started; nothing is left of it here");
            return Ok(());
        };
        if is_alone {
            let all = news.beside(last_known.objects());
            let later = brought::bring_later(client.clone(), news, brought);
            supervisor.begin_alone(all, later);
        } else {
            match brought.bring(client.clone(), &news).await {
                Ok(_) => {
                    tokio::task::spawn_local(brought::name_deleted(client.clone(), news.known));
                }
                Err(status) if args.service && has_run => {
                    tracing::error!(%status, "{}; this host starts what it ran before", brought::REFUSED);
                    tokio::task::spawn_local(brought::bring_again(client.clone(), news, brought));
                }
                Err(status) => {
                    supervisor.give_up().await?;
                    return Err(refused(&status));
                }
            }
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
                over = renewing => put_out.set(over.ok()),
            }
            // From here on sidecars hear how the others of this host end.
            keeper.abort();
            stopping();
        };
        let follow = notify::follow(paths.clone(), patience, supervisor.phases());
        tokio::task::spawn_local(follow);
        let view = (!args.service)
            .then(|| tokio::task::spawn_local(crate::up::view(paths.clone(), supervisor.phases())));
        let ended = end_early(paths, supervisor.run(stop), &signals).await;
        if let Some(view) = view {
            view.abort();
        }
        following.abort();
        counting.abort();
        let leaves = !args.stay && !args.service && !line.is_away();
        let has_left = leaves && brought::leave(client, paths.brought()).await;
        let over = out.take();
        if has_left || over.as_ref().is_some_and(|over| over.is_dismissed) {
            last_known.forget();
        }
        ended?;
        if let Some(over) = over {
            return Err(over.failure);
        }
        progress(if has_left { LEFT } else { STAYS });
        Ok(())
    }))
}

/// The fingerprint of the mesh's authority and its trust domain, of options that make sense.
fn checked(options: &JoinOptions) -> Result<(String, TrustDomain)> {
    let trust_domain = TrustDomain::parse(&options.trust_domain)
        .map_err(|e| Failure::usage("--trust-domain").because(e))?;
    if !options.sidecars.data_plane.has_sidecars() {
        return Err(
            Failure::usage("a host cannot join without sidecars (--data-plane none)")
                .because("others know its workloads by the certificates of their sidecars"),
        );
    }
    Ok((fingerprint(&options.ca_fingerprint)?, trust_domain))
}

/// Files of the manifests that a service has read, as any other command finds them.
fn of_service(args: &Join) -> Result<Vec<PathBuf>> {
    let files = args.files.iter().filter(|_| args.service);
    let absolute = files
        .map(|file| std::path::absolute(file).or_fail(|| format!("cannot use {}", file.display())));
    absolute.collect()
}

/// The controller does not take this host's workloads.
fn refused(status: &Status) -> Failure {
    client::failure(brought::REFUSED, status)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_in_any_notation() {
        let digits = "0a".repeat(32);
        assert_eq!(fingerprint(&digits).unwrap(), digits);
        assert_eq!(fingerprint(&["0A"; 32].join(":")).unwrap(), digits);
        assert!(fingerprint("abc").is_err() && fingerprint(&"x".repeat(64)).is_err());
    }
}

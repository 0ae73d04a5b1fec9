//! `tulle join`: this host runs workloads of a mesh whose controller is elsewhere.
//!
//! The token and the CA's fingerprint are all it needs: with them it gets a certificate as
//! `node/<name>`, which it keeps to come back without a token. It applies its own workloads over mutual TLS and reports where they run. Its
//! listeners are on the advertised address, as in loopback mode; there are no namespaces.
//!
//! In the order of a start: `given` and `way` (what it runs, and where the controller is), then `run`, the steps of its
//! life.

mod address;
mod away;
mod brought;
mod enrol;
mod given;
mod kept;
mod run;
pub(crate) mod service;
mod way;

use crate::args::join::{Join, JoinOptions};
use crate::client;
use crate::failure::{Failure, Result};
use crate::paths::Paths;
use crate::supervise::last_known::LastKnown;
use crate::supervise::{Supervisor, janitor};
use enrol::{Controller, never_joined};
use given::Given;
use kept::Kept;
use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use tonic::Status;
use tulle_model::identity::TrustDomain;
use way::Way;

/// Joins and runs until told to stop.
pub(crate) fn join(paths: &Paths, args: &Join) -> Result<()> {
    let last_known = Rc::new(LastKnown::read(paths)?);
    let given = Given::read(paths, args, &last_known)?;
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
    let joined = run::run(paths, args, given, how, &begun);
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

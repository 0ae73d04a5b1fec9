//! A joined host's own certificate: from the token or from the identity that the host kept, then
//! renewed for as long as it stays.
//!
//! The ways in are here. `connection` leads to the controller, `signing` asks it for a certificate, `refusal` says why
//! there is none. `certificate` is that of the moment, and `renewal` replaces it.

mod certificate;
mod connection;
mod refusal;
mod renewal;
mod signing;

use super::kept::Kept;
use super::way::resolve;
use crate::client::{Objects, objects_over};
use crate::failure::{Failure, OrFail, Result};
use crate::output::progress;
use crate::supervise::host_authority::HostCertifier;
use crate::supervise::last_known::{KnownController, LastKnown};
use certificate::Present;
use refusal::{Refused, advise, over};
use signing::sign;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use tonic::transport::Channel;
use tulle_model::identity::{SpiffeId, TrustDomain};
use tulle_tls::enrol::Enrolled;

pub(super) use connection::Controller;
pub(super) use refusal::{Over, never_joined};

/// The files by which a host is of its mesh.
pub(crate) struct OwnFiles {
    /// Its identity.
    pub(crate) identity: Kept,
    /// Its authority over its own workloads.
    pub(crate) certifier: Rc<HostCertifier>,
    /// The knowledge that it had last.
    pub(crate) last_known: Rc<LastKnown>,
}

/// Ways in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entrance {
    /// With a token.
    Joins,
    /// With the identity that was kept.
    ComesBack,
    /// With that, and no controller has said anything.
    Alone,
}

/// This host as the mesh knows it.
pub(crate) struct Node {
    controller: Controller,
    identity: SpiffeId,
    present: Arc<Mutex<Present>>,
    own: OwnFiles,
    entrance: Entrance,
    /// One connection for all: each costs a handshake and questions whether it is still there.
    channel: Channel,
}

impl Node {
    /// Joins with a token, or comes back with the identity that was kept; where no controller answers, without asking, if
    /// this host may. A token that is spent, as after a restart with the same arguments, is no reason to stay away.
    pub(crate) async fn enter(
        controller: Controller,
        token: Option<&str>,
        away: Option<Failure>,
        own: OwnFiles,
    ) -> Result<Rc<Self>> {
        if let Some(unreachable) = away {
            return match Self::go_alone(controller, own) {
                // It would be used if there were a controller.
                Err(_) if token.is_some() => Err(unreachable),
                entered => entered,
            };
        }
        let Some(token) = token else {
            let kept = &own.identity;
            let found = kept.read()?.ok_or_else(|| never_joined(kept))?;
            return Self::come_back(controller, found, own).await;
        };
        let address = controller.address;
        let refused = match Self::spend(controller.clone(), token).await {
            Ok(present) => return Self::begin(controller, present, own, Entrance::Joins),
            Err(refused) => refused,
        };
        if refused.is_absence() && controller.may_be_away {
            return Self::go_alone(controller, own).map_err(|_| advise(refused.failure(), address));
        }
        if refused.is_denied()
            && let Ok(Some(found)) = own.identity.read()
            && let Ok(node) = Self::come_back(controller, found, own).await
        {
            progress("the token is spent; this host goes on with the identity that it kept");
            return Ok(node);
        }
        Err(advise(refused.failure(), address))
    }

    /// Goes on with the identity that was kept, and asks nobody.
    fn go_alone(controller: Controller, own: OwnFiles) -> Result<Rc<Self>> {
        let kept = &own.identity;
        let found = kept.read()?.ok_or_else(|| never_joined(kept))?;
        let present = Present::kept(&controller.trust_domain, found, kept)?;
        Self::begin(controller, present, own, Entrance::Alone)
    }

    async fn spend(controller: Controller, token: &str) -> std::result::Result<Present, Refused> {
        // The controller decides the identity by the token; the request must only be well formed.
        let asked = format!("spiffe://{}/node/joining", controller.trust_domain);
        let asked = SpiffeId::parse(&asked)
            .or_fail(|| "the trust domain makes no identity".to_owned())
            .map_err(Refused::Here)?;
        let signed = sign(controller.channel(None), &asked, token, None).await?;
        Ok(signed.present)
    }

    /// Renews the certificate that was kept: that it is accepted proves that this is a host still.
    async fn come_back(controller: Controller, found: Enrolled, own: OwnFiles) -> Result<Rc<Self>> {
        let identity = found.identity.spiffe_id().clone();
        let present = Present::kept(&controller.trust_domain, found, &own.identity)?;
        let address = controller.address;
        let present = Arc::new(Mutex::new(present));
        let channel = controller.clone().channel(Some(present));
        match sign(channel, &identity, "", None).await {
            Ok(signed) => Self::begin(controller, signed.present, own, Entrance::ComesBack),
            Err(refused) if refused.is_denied() => {
                // It does not start alone later.
                own.certifier.give_up();
                own.last_known.forget();
                Err(over(&identity, refused, true).failure)
            }
            Err(refused) if refused.is_absence() && controller.may_be_away => {
                Self::go_alone(controller, own)
            }
            Err(refused) => Err(advise(refused.failure(), address)),
        }
    }

    fn begin(
        controller: Controller,
        present: Present,
        own: OwnFiles,
        entrance: Entrance,
    ) -> Result<Rc<Self>> {
        let identity = present.enrolled.identity.spiffe_id().clone();
        if identity.node().is_none() {
            return Err(
                Failure::input(format!("the token is for {identity}, not for a host"))
                    .fix("`tulle token create node/NAME` on the controller's host"),
            );
        }
        if entrance != Entrance::Alone {
            own.identity.write(&present.enrolled)?;
        }
        // One that cannot be used, such as that of a root which was replaced, is asked for anew.
        if let Err(failure) = own.certifier.read(&present.enrolled) {
            tracing::warn!("{failure}");
        }
        let present = Arc::new(Mutex::new(present));
        let channel = controller.clone().channel(Some(Arc::clone(&present)));
        Ok(Rc::new(Self {
            controller,
            identity,
            present,
            own,
            entrance,
            channel,
        }))
    }

    /// Its SPIFFE id.
    pub(crate) fn identity(&self) -> &SpiffeId {
        &self.identity
    }

    /// Whether it has joined with a token just now, and has not come back.
    pub(crate) fn joins(&self) -> bool {
        self.entrance == Entrance::Joins
    }

    /// Whether no controller has said that this is a host of the mesh.
    pub(crate) fn is_alone(&self) -> bool {
        self.entrance == Entrance::Alone
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        self.identity.name()
    }

    /// The objects service over mutual TLS, always with the present certificate.
    pub(crate) fn objects(&self) -> Objects {
        objects_over(self.channel())
    }

    /// The connection to the controller, likewise.
    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }
}

/// The objects service for a command beside the supervisor of this host, with the identity that it keeps.
pub(super) fn objects(known: &KnownController, kept: &Kept) -> Result<Objects> {
    let found = kept.read()?.ok_or_else(|| never_joined(kept))?;
    let trust_domain = TrustDomain::parse(found.identity.spiffe_id().trust_domain())
        .or_fail(|| "the identity of this host names no trust domain".to_owned())?;
    let controller = Controller {
        address: resolve(&known.name).unwrap_or(known.address),
        fingerprint: known.fingerprint.clone(),
        trust_domain,
        line: Arc::default(),
        may_be_away: false,
    };
    let present = Present::kept(&controller.trust_domain, found, kept)?;
    Ok(objects_over(
        controller.channel(Some(Arc::new(Mutex::new(present)))),
    ))
}

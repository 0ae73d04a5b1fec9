//! How a proxy gets its identity: with a token from the controller, and on a joined host from the host's authority, too.

use super::Maker;
use crate::failure::{Failure, OrFail, Result};
use crate::supervise::context::CONTROLLER_TIME;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tulle_model::bootstrap::Bootstrap;
use tulle_proxy::control::host::SidecarSocket;

/// How long a restart waits for a controller that hangs.
const RESTART_PATIENCE: Duration = Duration::from_millis(500);
/// Between tokens for a proxy without a valid certificate.
const ENROL_PERIOD: Duration = Duration::from_secs(10);
const NO_AUTHORITY: &str = "this host has no authority over its identity: `certificates.hostAuthority` of the Mesh gives it one";

impl Maker {
    /// Whether a sidecar of a host that joined starts without anybody to ask: its configuration is the one that was kept of the
    /// sidecar before it, and its certificate comes from the host's authority.
    pub(super) fn starts_alone(&self) -> Result<bool> {
        let context = &self.context;
        let is_first = self.identity.borrow().is_empty();
        let (Some(certifier), Some(known)) = (&context.certifier, &context.last_known) else {
            return Ok(false);
        };
        if !is_first || !context.line.is_away() || context.envoy.is_some() {
            return Ok(false);
        }
        let name = &self.description.identity;
        let what = || format!("{name} cannot start while no controller answers");
        if certifier.generation() == 0 {
            certifier.read_again()?;
        }
        let identity = certifier
            .identity(name)
            .ok_or_else(|| Failure::new(what()).because(NO_AUTHORITY))?;
        let configuration = known.sidecar(&self.description.name);
        let configuration = configuration
            .ok_or_else(|| Failure::new(what()).because("it has not run on this host before"))?;
        self.write(&self.snapshot(), &configuration)?;
        *self.identity.borrow_mut() = identity.to_string();
        Ok(true)
    }

    /// Writes a new join token. Without a controller a proxy that had its identity before starts
    /// from memory; one that never had must wait.
    pub(super) async fn enrol(&self, token: &Path) -> Result<()> {
        self.enrolled.set(Some(Instant::now()));
        let identity = format!("svc/{}", self.description.identity);
        // A restart is urgent, and most likely needs no token.
        let first = self.identity.borrow().is_empty();
        let patience = if first {
            CONTROLLER_TIME
        } else {
            RESTART_PATIENCE
        };
        match self.context.token(&identity, patience).await {
            Ok(answer) => {
                *self.identity.borrow_mut() = answer.spiffe_id;
                *self.context.ca_fingerprint.borrow_mut() = answer.ca_fingerprint;
                self.write(token, answer.token.as_bytes())
            }
            Err(failure) if first => Err(failure),
            Err(failure) => {
                tracing::warn!(
                    proxy = self.description.name,
                    "goes on from memory: {failure}"
                );
                Ok(())
            }
        }
    }

    /// Gives a token to a proxy that runs without a certificate: it expired while the controller was away,
    /// or the first token expired before it was used. The proxy looks for a token at each try.
    pub(super) async fn enrol_again(&self) {
        let lately = |t: Instant| t.elapsed() < ENROL_PERIOD;
        if self.enrolled.get().is_some_and(lately) {
            return;
        }
        tracing::info!(
            proxy = self.description.name,
            "has no valid certificate and gets a token"
        );
        if let Err(failure) = self.enrol(&self.directory.join("token")).await {
            tracing::warn!(proxy = self.description.name, "{failure}");
        }
    }

    /// Gives the sidecar of a joined host's workload a way to be certified while no controller answers. The
    /// socket is its own, so it is certified as this workload and no other.
    pub(super) fn certified_by_host(&self, bootstrap: &mut Bootstrap) -> Result<Option<OwnedFd>> {
        let certifier = self.context.certifier.as_ref();
        // The agent of an Envoy would pass on what Envoy's peers refuse.
        let (Some(certifier), None) = (certifier, &self.context.envoy) else {
            return Ok(None);
        };
        let what = || "cannot make the socket over which a sidecar is certified".to_owned();
        let (ours, theirs) = SidecarSocket::pair().or_fail(what)?;
        let theirs = OwnedFd::from(theirs);
        if let Some(control) = &mut bootstrap.control {
            control.host_authority = Some(u16::try_from(theirs.as_raw_fd()).or_fail(what)?);
        }
        let identity = bootstrap.identity.clone();
        let serving = Rc::clone(certifier).serve(ours, identity, Rc::clone(&self.context));
        let mut all = self.serving.borrow_mut();
        // One that goes on is the first. Others have ended.
        let going_on = self.process.get();
        let going_on = going_on.is_some_and(|process| process.borrow().before.is_some());
        let kept = all.len().min(usize::from(going_on));
        all.drain(kept..).for_each(|ended| ended.abort());
        all.push(tokio::task::spawn_local(serving));
        Ok(Some(theirs))
    }

    /// Certifies the present process and no other.
    pub(super) fn certify_only_last(&self) {
        let mut all = self.serving.borrow_mut();
        let before = all.len().saturating_sub(1);
        all.drain(..before).for_each(|ended| ended.abort());
    }
}

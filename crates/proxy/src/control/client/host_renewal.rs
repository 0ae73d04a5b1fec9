//! Renewal by the authority of a joined host, while no controller answers, and the way back to the controller's.

use super::certificate::{Proof, completed};
use super::error::ControlError;
use super::{ControlClient, Sink};
use std::fmt;
use tokio::time::Instant;
use tulle_tls::enrol::{Enrolled, SigningRequest};

impl<S: Sink> ControlClient<S> {
    /// While no controller answers, has the host's authority certify this proxy as soon as that is due, until
    /// the controller is tried again.
    pub(super) async fn renew_by_host(&mut self, until: Instant) {
        while self.host.is_some() {
            let due = match self.has_valid_certificate() {
                true => Instant::now() + self.until_renewal(),
                false => Instant::now(),
            };
            if due >= until {
                return;
            }
            tokio::time::sleep_until(due).await;
            let Err(error) = self.sign_by_host().await else {
                continue;
            };
            let error = error.to_string();
            if self.host_told != error {
                tracing::warn!(
                    error,
                    "this host's authority does not renew the certificate"
                );
                self.host_told = error;
            }
            return;
        }
    }

    async fn sign_by_host(&mut self) -> Result<(), ControlError> {
        let Some(host) = &mut self.host else {
            return Err(ControlError::Ended);
        };
        let id = self.publisher.identity().clone();
        let certificate = |e: &dyn fmt::Display| ControlError::Certificate(e.to_string());
        let request = SigningRequest::new(&id).map_err(|e| certificate(&e))?;
        let answer = host.sign(request.csr_der.clone()).await;
        let answer = answer.map_err(|e| certificate(&e))?;
        let signed = completed(request, answer, &id)?;
        let end = |e: &Enrolled| e.identity.not_after();
        let known = self.enrolled.as_ref().map(end);
        if known.is_some_and(|known| end(&signed.enrolled) <= known) {
            let why = "the authority of this host ends with the present one, and only a controller renews it";
            return Err(ControlError::Certificate(why.to_owned()));
        }
        self.adopt(signed);
        self.host_told.clear();
        tracing::info!("certificate renewed by this host's authority: no controller answers");
        Ok(())
    }

    /// Gets a certificate with a token where the controller is back, and takes none that the host's authority has
    /// signed: the host has lost that authority meanwhile, or its root was replaced.
    pub(super) async fn enrol_after_return(&mut self, error: &ControlError) -> bool {
        if !self.is_signed_by_host() || matches!(error, ControlError::Away(_)) {
            return false;
        }
        let Some(host) = &mut self.host else {
            return false;
        };
        let Ok(token) = host.join_token().await else {
            return false;
        };
        let signing = self.signing_as(Proof::JoinToken(token), None);
        let signed = match signing {
            Ok(signing) => signing.await,
            Err(error) => Err(error),
        };
        match signed {
            Ok(signed) => {
                self.adopt(signed);
                true
            }
            Err(error) => {
                tracing::warn!(%error, "the controller gives no certificate for a token");
                false
            }
        }
    }

    pub(super) fn is_signed_by_host(&self) -> bool {
        let enrolled = self.enrolled.as_ref();
        enrolled.is_some_and(|e| e.identity.is_signed_by_host())
    }
}

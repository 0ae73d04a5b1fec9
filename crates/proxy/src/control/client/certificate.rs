//! The certificate of this proxy: how it is asked for with a proof of identity, taken, and renewed.
//!
//! The rule of when it is renewed is in `renewal`.

use super::error::ControlError;
use super::renewal::{Signed, Signing, named_age, renewal_age, seconds, soon};
use super::timeout::within;
use super::{ControlClient, Sink, files};
use crate::control::backoff::FIRST;
use crate::control::random::fraction;
use std::fmt;
use std::path::Path;
use std::time::{Duration, SystemTime};
use tulle_api::v1;
use tulle_api::v1::certificates_client::CertificatesClient;
use tulle_model::identity::SpiffeId;
use tulle_tls::Identity;
use tulle_tls::enrol::{Enrolled, SigningRequest};

/// Proof of identity for a new certificate.
pub(super) enum Proof {
    /// The present certificate.
    Certificate,
    JoinToken(String),
    ServiceAccount(String),
}

impl<S: Sink> ControlClient<S> {
    pub(super) fn has_valid_certificate(&self) -> bool {
        self.enrolled
            .as_ref()
            .is_some_and(|e| e.identity.not_after() > SystemTime::now())
    }

    /// Returns the time until the certificate is renewed.
    pub(super) fn until_renewal(&self) -> Duration {
        let Some(enrolled) = &self.enrolled else {
            return FIRST;
        };
        let identity = &enrolled.identity;
        // Certificates are backdated, so the remaining time when ours was issued counts. It is
        // unknown after a restart: then a third of the whole validity is used, which is never
        // later.
        let validity = identity
            .not_after()
            .duration_since(identity.not_before())
            .unwrap_or_default();
        let left = identity
            .not_after()
            .duration_since(SystemTime::now())
            .unwrap_or_default();
        let lifetime = self.lifetime.unwrap_or(validity);
        let age = renewal_age(lifetime, self.renew_after, fraction());
        let passed = lifetime.saturating_sub(left);
        age.saturating_sub(passed).max(Duration::from_millis(200))
    }

    /// Returns the time until the renewal under new terms, or none if these are known. A certificate that is valid
    /// for longer than a new one would be is replaced at once: whoever shortens the lifetime wants that.
    pub(super) fn adopt_terms(&mut self, terms: v1::CertificateTerms) -> Option<Duration> {
        if self.terms.replace(terms) == Some(terms) {
            return None;
        }
        self.renew_after = named_age(terms.renew_after_seconds);
        let not_after = self.enrolled.as_ref()?.identity.not_after();
        let left = not_after.duration_since(SystemTime::now()).ok()?;
        // A tenth is for clocks that differ.
        let too_long = left > seconds(terms.lifetime_seconds).mul_f64(1.1);
        Some(match too_long {
            true => soon(),
            false => self.until_renewal(),
        })
    }

    /// Takes the answer to a renewal, and returns the time until the next one. Without a valid
    /// certificate only a token helps, which the next session looks for.
    pub(super) fn renewed(
        &mut self,
        answer: Result<Signed, ControlError>,
    ) -> Result<Duration, ControlError> {
        let error = match answer {
            Ok(signed) => {
                self.adopt(signed);
                tracing::info!("certificate renewed");
                return Ok(self.until_renewal());
            }
            Err(error) => error,
        };
        if !self.has_valid_certificate() {
            return Err(error);
        }
        let left = self.enrolled.as_ref().map(|e| e.identity.not_after());
        let left = left
            .and_then(|t| t.duration_since(SystemTime::now()).ok())
            .unwrap_or_default();
        let next = (left / 10).clamp(Duration::from_secs(1), Duration::from_secs(30));
        tracing::warn!(%error, retry_in = ?next, "the certificate is not renewed yet");
        Ok(next)
    }

    /// Renews by the pod's token in a cluster, so that a deleted pod is detected; elsewhere the
    /// present certificate is the proof.
    pub(super) fn sign_again(&self) -> Signing {
        let proof = match self.control.service_account_token {
            Some(_) => self.proof(),
            None => Ok(Proof::Certificate),
        };
        let signing = proof.and_then(|proof| self.signing(proof));
        signing.unwrap_or_else(|error| Box::pin(std::future::ready(Err(error))))
    }

    /// Asks for a certificate, on a connection of its own.
    pub(super) fn signing(&self, proof: Proof) -> Result<Signing, ControlError> {
        let identity = self
            .enrolled
            .as_ref()
            .filter(|_| self.has_valid_certificate());
        self.signing_as(proof, identity.map(|e| &e.identity))
    }

    /// Asks for a certificate over a connection with this one, or with none.
    pub(super) fn signing_as(
        &self,
        proof: Proof,
        identity: Option<&Identity>,
    ) -> Result<Signing, ControlError> {
        let certificate = |e: &dyn fmt::Display| ControlError::Certificate(e.to_string());
        let id = self.publisher.identity().clone();
        let request = SigningRequest::new(&id).map_err(|e| certificate(&e))?;
        let mut message = v1::SignRequest {
            csr_der: request.csr_der.clone(),
            ..Default::default()
        };
        match proof {
            Proof::Certificate => {}
            Proof::JoinToken(token) => message.join_token = token,
            Proof::ServiceAccount(token) => message.service_account_token = token,
        }
        let connecting = self.connect_as(identity)?;
        Ok(Box::pin(async move {
            let mut client = CertificatesClient::new(connecting.await?);
            let answer = within(client.sign(message)).await?.into_inner();
            completed(request, answer, &id)
        }))
    }

    /// Uses this certificate from now on.
    pub(super) fn adopt(&mut self, signed: Signed) {
        let Signed {
            enrolled,
            renew_after,
        } = signed;
        self.keep_identity(&enrolled);
        self.publisher.set_identity(&enrolled);
        self.lifetime = enrolled
            .identity
            .not_after()
            .duration_since(SystemTime::now())
            .ok();
        self.renew_after = renew_after;
        self.enrolled = Some(enrolled);
    }

    /// Returns the token that proves our identity without a certificate.
    pub(super) fn proof(&self) -> Result<Proof, ControlError> {
        let read = |path: &Path| match std::fs::read_to_string(path) {
            Ok(token) => Ok(token.trim().to_owned()),
            Err(e) => Err(ControlError::Token(format!("{}: {e}", path.display()))),
        };
        let control = &self.control;
        match (&control.service_account_token, &control.join_token_file) {
            (Some(path), _) => read(path).map(Proof::ServiceAccount),
            (None, Some(path)) => read(path).map(Proof::JoinToken),
            (None, None) => Err(ControlError::Token("no joinTokenFile is given".into())),
        }
    }

    /// Writes the identity to its cache, for a restart.
    pub(super) fn keep_identity(&self, enrolled: &Enrolled) {
        if let Some(path) = &self.control.identity_cache
            && !self.publisher.is_succeeded()
            && let Err(error) = files::write_cache(path, enrolled.to_cache())
        {
            tracing::warn!(path = %path.display(), %error, "cannot keep the identity for a restart");
        }
    }
}

/// Joins an answer to the key, if it is a certificate for this proxy.
pub(super) fn completed(
    request: SigningRequest,
    answer: v1::SignResponse,
    id: &SpiffeId,
) -> Result<Signed, ControlError> {
    let enrolled = request
        .complete(answer.chain_der, answer.trust_bundle_der)
        .map_err(|e| ControlError::Certificate(e.to_string()))?;
    if enrolled.identity.spiffe_id() != id {
        let text = format!("it is for {}, not {id}", enrolled.identity.spiffe_id());
        return Err(ControlError::Certificate(text));
    }
    Ok(Signed {
        enrolled,
        renew_after: named_age(answer.renew_after_seconds),
    })
}

//! The request for a certificate, and the controller's answer.

use super::certificate::Present;
use super::refusal::Refused;
use crate::failure::OrFail;
use tonic::transport::Channel;
use tulle_api::v1::certificates_client::CertificatesClient;
use tulle_api::v1::{HostAuthority, SignRequest};
use tulle_control::ca::host::HostKey;
use tulle_model::identity::SpiffeId;
use tulle_tls::enrol::SigningRequest;

/// The controller's answer.
pub(super) struct Signed {
    pub(super) present: Present,
    pub(super) authority: Option<HostAuthority>,
}

/// Asks for a certificate with a new key. `authority` is the key for an authority over this host's workloads, which is asked
/// for as well.
pub(super) async fn sign(
    channel: Channel,
    id: &SpiffeId,
    token: &str,
    authority: Option<&HostKey>,
) -> std::result::Result<Signed, Refused> {
    let request = SigningRequest::new(id)
        .or_fail(|| "cannot ask for a certificate".to_owned())
        .map_err(Refused::Here)?;
    let answer = CertificatesClient::new(channel)
        .sign(SignRequest {
            csr_der: request.csr_der.clone(),
            join_token: token.to_owned(),
            host_authority_csr_der: authority.map_or_else(Vec::new, |k| k.csr_der.clone()),
            ..Default::default()
        })
        .await
        .map_err(Refused::Rpc)?
        .into_inner();
    let enrolled = request
        .complete(answer.chain_der, answer.trust_bundle_der)
        .or_fail(|| "the controller's certificate cannot be used".to_owned())
        .map_err(Refused::Here)?;
    Ok(Signed {
        present: Present::new(enrolled, answer.renew_after_seconds),
        authority: answer.host_authority,
    })
}

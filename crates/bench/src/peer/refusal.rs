//! Checks who cannot reach the server: plaintext, no certificate and a certificate of somebody else, sent
//! straight to the port of the server's sidecar; and an identity that is only claimed.
//!
//! Each attempt is made a second time by the client's own certificate, which must get through:
//! otherwise a probe that is wrong itself would prove everything.

use super::topology::spiffe;
use super::{CLIENT, Mode, Peer, SERVER, STRANGER, Topology, http};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls12_signature,
    verify_tls13_signature,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme, StreamOwned,
};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use tulle_model::resource::Protocol;

/// A request that the server answers.
pub struct ProbeRequest<'a> {
    /// A path that it answers with 200.
    pub path: &'a str,
    /// A path that it answers with the request's `x-forwarded-client-cert` somewhere in the body.
    pub caller: Option<&'a str>,
}

/// First byte of an alert's record (RFC 8446, 5.1).
const TLS_ALERT: u8 = 21;

/// How somebody comes to the sidecar's port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attempt {
    Plaintext,
    NoCertificate,
    Certificate(&'static str),
}

/// Makes the attempts, with the sidecars running. To be called after the last
/// [`Peer::prove`]: sidecars count what they refuse, and a proof wants none of it.
///
/// # Errors
/// Somebody got through, or the client did not, in words.
pub fn prove(
    peer: &dyn Peer,
    topology: &Topology,
    probe: &ProbeRequest<'_>,
) -> Result<Vec<String>, String> {
    if topology.mode != Mode::Both {
        return Ok(vec![format!(
            "{}: without two sidecars nobody is refused",
            topology.mode.name()
        )]);
    }
    if matches!(topology.protocol, Protocol::Http2 | Protocol::Grpc) {
        return Ok(vec!["refusals are not tried with HTTP/2".into()]);
    }
    let name = peer.name();
    reach(topology, probe, Attempt::Certificate(CLIENT)).map_err(|e| {
        format!("{name}: the client's own certificate does not get to the server ({e}), so a refusal would prove nothing")
    })?;
    let mut evidence = Vec::new();
    for (attempt, who) in [
        (Attempt::Plaintext, "plaintext".to_owned()),
        (Attempt::NoCertificate, "TLS without a certificate".into()),
        (Attempt::Certificate(STRANGER), spiffe(STRANGER).to_string()),
    ] {
        match reach(topology, probe, attempt) {
            Ok(()) => return Err(format!("{name}: {who} reached the server")),
            Err(refusal) => evidence.push(format!("refused {who}: {refusal}")),
        }
    }
    if let (Some(told), Some(path)) = (peer.told_caller(), probe.caller)
        && topology.protocol == Protocol::Http
    {
        let forged = format!("URI={};Subject=\"CN={STRANGER}\"", spiffe(STRANGER));
        let (status, body) = http::get_with(
            topology.entry().port(),
            path,
            &[("x-forwarded-client-cert", &forged)],
        )?;
        // Those who write it may quote it.
        let plain = |text: &str| text.replace(['"', '\\'], "");
        if status != 200 || !plain(&body).contains(&plain(&told)) {
            return Err(format!(
                "{name}: the server is not told that the caller is {told}: {status} {body:?}"
            ));
        }
        if body.contains(STRANGER) {
            return Err(format!(
                "{name}: a forged identity reached the server: {body:?}"
            ));
        }
        evidence.push(format!(
            "the server is told {told}; a forged identity is removed"
        ));
    }
    Ok(evidence)
}

/// Whether the server's application answers; the error says what came instead.
fn reach(topology: &Topology, probe: &ProbeRequest<'_>, attempt: Attempt) -> Result<(), String> {
    let tcp = http::connect(topology.ports.server)?;
    if attempt == Attempt::Plaintext {
        return answered(topology, probe, tcp);
    }
    let config = tls(topology, attempt)?;
    let name = ServerName::try_from(SERVER).map_err(|e| e.to_string())?;
    let connection = ClientConnection::new(config, name).map_err(|e| e.to_string())?;
    answered(topology, probe, StreamOwned::new(connection, tcp))
}

fn answered(
    topology: &Topology,
    probe: &ProbeRequest<'_>,
    mut stream: impl Read + Write,
) -> Result<(), String> {
    if topology.protocol == Protocol::Http {
        return match http::exchange(&mut stream, SERVER, probe.path, &[])? {
            (200, _) => Ok(()),
            (status, _) => Err(format!("status {status}")),
        };
    }
    // Any byte of the server's answer proves that it was reached. A TLS alert, which refuses plaintext, is
    // no such byte. HTTP is not used, because a sidecar may answer it.
    let mut first = [0];
    let sent = stream.write_all(b"Is anybody there?\r\n");
    let sent = sent.and_then(|()| stream.flush());
    sent.map_err(|e| e.to_string())?;
    match stream.read(&mut first) {
        Ok(0) => Err("connection closed".into()),
        Ok(_) if first[0] == TLS_ALERT => Err("TLS alert".into()),
        Ok(_) => Ok(()),
        Err(e) => Err(e.to_string()),
    }
}

fn tls(topology: &Topology, attempt: Attempt) -> Result<Arc<ClientConfig>, String> {
    let name = match attempt {
        Attempt::Certificate(name) => Some(name),
        Attempt::Plaintext | Attempt::NoCertificate => None,
    };
    let http = topology.protocol == Protocol::Http;
    let provider = aws_lc_rs::default_provider();
    client_config(provider, &topology.directory, name, http).map(Arc::new)
}

/// TLS 1.3 with the certificate of this name, if any, to whatever server; `http`: HTTP/1.1 by ALPN.
///
/// # Errors
/// The certificate cannot be read, in words.
pub(crate) fn client_config(
    provider: CryptoProvider,
    directory: &Path,
    name: Option<&str>,
    http: bool,
) -> Result<ClientConfig, String> {
    let builder = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|e| e.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer));
    let mut config = match name {
        Some(name) => {
            let file = |kind: &str| directory.join(format!("{name}.{kind}"));
            let chain = CertificateDer::from_pem_file(file("crt")).map_err(|e| e.to_string())?;
            let key = PrivateKeyDer::from_pem_file(file("key")).map_err(|e| e.to_string())?;
            let with = builder.with_client_auth_cert(vec![chain], key);
            with.map_err(|e| e.to_string())?
        }
        None => builder.with_no_client_auth(),
    };
    if http {
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
    }
    Ok(config)
}

/// Accepts any server: these probes test whether the sidecar refuses the client.
#[derive(Debug)]
struct AnyServer;

fn algorithms() -> WebPkiSupportedAlgorithms {
    aws_lc_rs::default_provider().signature_verification_algorithms
}

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &algorithms())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &algorithms())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        algorithms().supported_schemes()
    }
}

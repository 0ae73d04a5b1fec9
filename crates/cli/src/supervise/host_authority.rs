//! The authority of a joined host over its own workloads' identities: where it is kept, and how it renews
//! their sidecars' certificates while no controller answers.
//!
//! A sidecar asks over a socket that only it has inherited, so the supervisor knows which workload it
//! certifies. It writes down what it has certified before the sidecar has it, and tells the controller
//! when that is back.

use super::context::{CONTROLLER_TIME, Context};
use crate::failure::{Failure, OrFail, Result};
use crate::new_file::write_durably;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tulle_api::v1::host_request::Ask;
use tulle_api::v1::host_response::Answer;
use tulle_api::v1::{self, IssuedByHost, SignResponse};
use tulle_control::CertificatePace;
use tulle_control::ca::VerifiedCsr;
use tulle_control::ca::host::{HostAuthority, HostKey};
use tulle_model::identity::SpiffeId;
use tulle_proxy::control::host::SidecarSocket;
use tulle_tls::enrol::Enrolled;

/// Certificates that are written down until the controller knows them; past it the oldest are forgotten.
const MAX_ISSUED: usize = 1_000;
/// Told in one call.
const AT_ONCE: usize = 64;

/// The authority as it is kept.
#[derive(Serialize, Deserialize)]
struct Stored {
    /// Key and certificate.
    pem: String,
    /// Seconds that certificates last, and after which they are renewed.
    lifetime: u64,
    renew_after: i64,
}

/// A certificate that was signed here.
#[derive(Clone, Serialize, Deserialize)]
struct Issued {
    serial: String,
    identity: String,
    not_after: i64,
}

struct Held {
    authority: HostAuthority,
    lifetime: Duration,
    renew_after: i64,
    roots: Vec<Vec<u8>>,
}

/// The authority of this host, if it has one.
pub(crate) struct HostCertifier {
    file: PathBuf,
    issued_file: PathBuf,
    held: RefCell<Option<Held>>,
    /// The host that it is of, and the roots that this host believes.
    host: RefCell<Option<(SpiffeId, Vec<CertificateDer<'static>>)>>,
    issued: RefCell<VecDeque<Issued>>,
    /// The controller's pace for each identity: a certificate costs a durable write, and a place in `issued`.
    pace: CertificatePace,
}

impl HostCertifier {
    /// Names the files; they need not exist.
    pub(crate) fn at(file: PathBuf, issued_file: PathBuf) -> Self {
        let issued = fs::read(&issued_file).unwrap_or_default();
        Self {
            issued: RefCell::new(serde_json::from_slice(&issued).unwrap_or_default()),
            file,
            issued_file,
            held: RefCell::default(),
            host: RefCell::default(),
            pace: CertificatePace::default(),
        }
    }

    /// Reads the authority that was kept, as far as the host's present roots have signed it.
    pub(crate) fn read(&self, host: &Enrolled) -> Result<()> {
        *self.host.borrow_mut() = Some((host.identity.spiffe_id().clone(), roots(host)?));
        self.read_again()
    }

    /// Reads it again: the clock may be right by now.
    pub(super) fn read_again(&self) -> Result<()> {
        let what = || {
            format!(
                "cannot use this host's authority in {}",
                self.file.display()
            )
        };
        let text = match fs::read(&self.file) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(e).or_fail(what),
        };
        let stored: Stored = serde_json::from_slice(&text).or_fail(what)?;
        let host = self.host.borrow().clone();
        let Some((host, roots)) = host else {
            return Ok(());
        };
        let authority = HostAuthority::from_pem(&stored.pem, &roots).or_fail(what)?;
        self.hold(
            authority,
            stored.lifetime,
            stored.renew_after,
            &roots,
            &host,
        )
    }

    fn hold(
        &self,
        authority: HostAuthority,
        lifetime: u64,
        renew_after: i64,
        roots: &[CertificateDer<'_>],
        host: &SpiffeId,
    ) -> Result<()> {
        let of = &authority.constraint().host;
        if of != host {
            return Err(Failure::new("cannot use this host's authority")
                .because(format!("it is the authority of {of}")));
        }
        *self.held.borrow_mut() = Some(Held {
            authority,
            lifetime: Duration::from_secs(lifetime),
            renew_after,
            roots: roots.iter().map(|r| r.to_vec()).collect(),
        });
        Ok(())
    }

    /// Takes what the controller has signed, and keeps it for its owner alone.
    pub(crate) fn adopt(
        &self,
        key: HostKey,
        given: v1::HostAuthority,
        host: &Enrolled,
    ) -> Result<()> {
        let what = || {
            format!(
                "cannot keep this host's authority in {}",
                self.file.display()
            )
        };
        let roots = roots(host)?;
        let authority = key.complete(given.certificate_der, &roots).or_fail(what)?;
        let stored = Stored {
            pem: authority.to_pem(),
            lifetime: u64::try_from(given.lifetime_seconds).unwrap_or_default(),
            renew_after: given.renew_after_seconds,
        };
        let text = serde_json::to_vec(&stored).or_fail(what)?;
        write_durably(&self.file, &text).or_fail(what)?;
        let host = host.identity.spiffe_id();
        self.hold(authority, stored.lifetime, stored.renew_after, &roots, host)
    }

    /// Forgets the authority: the controller gives none any more.
    pub(crate) fn give_up(&self) {
        if self.held.take().is_some() {
            tracing::info!("this host has no authority over its workloads any more");
        }
        match fs::remove_file(&self.file) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                tracing::warn!(file = %self.file.display(), error = %e, "cannot remove");
            }
            _ => {}
        }
    }

    /// The identity of a workload of this host, if it may certify that.
    pub(crate) fn identity(&self, name: &str) -> Option<SpiffeId> {
        let held = self.held.borrow();
        let mut identities = held.as_ref()?.authority.constraint().identities.iter();
        identities.find(|id| id.name() == name).cloned()
    }

    /// The number of its authority; 0: it has none.
    pub(crate) fn generation(&self) -> u64 {
        let held = self.held.borrow();
        held.as_ref()
            .map_or(0, |h| h.authority.constraint().generation)
    }

    /// Lists what the controller has not been told yet, oldest first, as much as goes into one call.
    pub(crate) fn untold(&self) -> Vec<IssuedByHost> {
        let issued = self.issued.borrow();
        let told = issued.iter().take(AT_ONCE).map(|i| IssuedByHost {
            serial: i.serial.clone(),
            spiffe_id: i.identity.clone(),
            not_after_unix_seconds: i.not_after,
        });
        told.collect()
    }

    /// The controller knows these now.
    pub(crate) fn forget(&self, told: &[IssuedByHost]) {
        if told.is_empty() {
            return;
        }
        let is_told = |i: &Issued| told.iter().any(|t| t.serial == i.serial);
        self.issued.borrow_mut().retain(|i| !is_told(i));
        self.write_issued();
    }

    fn write_issued(&self) {
        let write = || {
            let text = serde_json::to_vec(&*self.issued.borrow())?;
            write_durably(&self.issued_file, &text)
        };
        // The workloads go on without the record; the controller hears of it as long as this process lives.
        if let Err(error) = write() {
            let file = self.issued_file.display();
            tracing::warn!(%file, %error, "cannot write down what this host has certified");
        }
    }

    /// Refuses more than the controller would sign for one identity.
    fn keep_pace(&self, identity: &SpiffeId, at: Instant) -> std::result::Result<(), String> {
        match self.pace.take(identity, at) {
            true => Ok(()),
            false => Err(format!(
                "{identity} asks the supervisor of this host for certificates too often: it has to wait. If that goes on, \
                 look into its sidecar's log, and restart its workload"
            )),
        }
    }

    /// Certifies one of this host's workloads.
    fn sign(
        &self,
        csr_der: &[u8],
        identity: &SpiffeId,
        at: Instant,
    ) -> std::result::Result<SignResponse, String> {
        self.keep_pace(identity, at)?;
        let held = self.held.borrow();
        let Some(held) = held.as_ref() else {
            return Err(
                "this host has no authority over its workloads: `certificates.hostAuthority` of the \
                 Mesh gives it one"
                    .into(),
            );
        };
        let request = VerifiedCsr::parse(csr_der).map_err(|e| e.to_string())?;
        let now = SystemTime::now();
        let issued = held.authority.issue(&request, identity, held.lifetime, now);
        let (issued, serial) = issued.map_err(|e| e.to_string())?;
        let not_after = issued
            .not_after
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let not_after = i64::try_from(not_after.as_secs()).unwrap_or(i64::MAX);
        {
            let mut all = self.issued.borrow_mut();
            if all.len() >= MAX_ISSUED {
                all.pop_front();
            }
            all.push_back(Issued {
                serial: serial.as_str().to_owned(),
                identity: identity.to_string(),
                not_after,
            });
        }
        self.write_issued();
        tracing::info!(%identity, serial = serial.as_str(), "certified while no controller answers");
        Ok(SignResponse {
            chain_der: vec![
                issued.certificate.to_vec(),
                held.authority.certificate().to_vec(),
            ],
            trust_bundle_der: held.roots.clone(),
            not_after_unix_seconds: not_after,
            renew_after_seconds: held.renew_after,
            host_authority: None,
        })
    }

    /// Answers the sidecar of a workload for as long as it lives.
    pub(super) async fn serve(
        self: Rc<Self>,
        socket: SidecarSocket,
        identity: SpiffeId,
        context: Rc<Context>,
    ) {
        while let Ok(request) = socket.next().await {
            let answer = match request.ask {
                Some(Ask::CsrDer(csr)) => match self.sign(&csr, &identity, Instant::now()) {
                    Ok(signed) => Answer::Signed(signed),
                    Err(why) => Answer::Refused(why),
                },
                // The controller keeps a bounded number of tokens for this host: one sidecar must not use them all up.
                Some(Ask::JoinToken(_)) => match self.keep_pace(&identity, Instant::now()) {
                    Ok(()) => {
                        let name = format!("svc/{}", identity.name());
                        match context.token(&name, CONTROLLER_TIME).await {
                            Ok(token) => Answer::JoinToken(token.token),
                            Err(failure) => Answer::Refused(failure.to_string()),
                        }
                    }
                    Err(why) => Answer::Refused(why),
                },
                None => Answer::Refused("the sidecar is of a newer version".into()),
            };
            if socket.answer(request.id, answer).await.is_err() {
                return;
            }
        }
    }
}

fn roots(host: &Enrolled) -> Result<Vec<CertificateDer<'static>>> {
    let [_, _, bundle] = host.to_pem();
    let roots = CertificateDer::pem_slice_iter(bundle.as_bytes());
    let roots: std::result::Result<Vec<_>, _> = roots.collect();
    roots.or_fail(|| "cannot read the roots of this host".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use tulle_control::ca::Authority;
    use tulle_control::store::Memory;
    use tulle_tls::enrol::SigningRequest;
    use tulle_tls::host_authority::HostConstraint;

    fn id(path: &str) -> SpiffeId {
        SpiffeId::parse(&format!("spiffe://tulle.local/{path}")).unwrap()
    }

    fn host(root: &Authority) -> Enrolled {
        let request = SigningRequest::new(&id("node/edge")).unwrap();
        let csr = VerifiedCsr::parse(&request.csr_der).unwrap();
        let day = Duration::from_hours(24);
        let issued = root.issue(&csr, &id("node/edge"), None, day, SystemTime::now());
        let chain = vec![issued.unwrap().certificate.to_vec()];
        request.complete(chain, vec![root.root().to_vec()]).unwrap()
    }

    #[test]
    fn what_is_kept_is_the_owners_alone_and_outlives_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let files = || (dir.path().join("a.json"), dir.path().join("i.json"));
        let certifier = || HostCertifier::at(files().0, files().1);
        let root = Authority::open(&Memory::new()).unwrap();
        let host = host(&root);
        let first = certifier();
        let csr = SigningRequest::new(&id("svc/a")).unwrap().csr_der;
        let now = Instant::now();
        let refused = first.sign(&csr, &id("svc/a"), now).unwrap_err();
        assert!(refused.contains("hostAuthority"), "{refused}");
        let key = HostKey::generate().unwrap();
        let constraint = HostConstraint {
            host: id("node/edge"),
            generation: 4,
            identities: vec![id("svc/a")],
        };
        let request = VerifiedCsr::parse(&key.csr_der).unwrap();
        let month = Duration::from_hours(720);
        let signed = root.issue_host(&request, &constraint, month, SystemTime::now());
        let given = v1::HostAuthority {
            certificate_der: signed.unwrap().certificate.to_vec(),
            lifetime_seconds: 3600,
            renew_after_seconds: 0,
        };
        first.adopt(key, given, &host).unwrap();
        assert_eq!(fs::metadata(files().0).unwrap().mode() & 0o777, 0o600);

        let again = certifier();
        again.read(&host).unwrap();
        assert_eq!(again.identity("a"), Some(id("svc/a")));
        assert_eq!(again.identity("edge"), None);
        assert_eq!(again.generation(), 4);
        let signed = again.sign(&csr, &id("svc/a"), now).unwrap();
        assert_eq!(signed.chain_der.len(), 2);
        assert!(again.sign(&csr, &id("svc/b"), now).is_err());
        assert!(again.sign(b"x", &id("svc/a"), now).is_err());
        for _ in 0..2 {
            again.sign(&csr, &id("svc/a"), now).unwrap();
        }
        // The next process knows what was certified, until the controller knows it.
        let told = certifier().untold();
        assert_eq!(told.len(), 3);
        again.forget(&told[..2]);
        assert_eq!(certifier().untold().len(), 1);
        again.give_up();
        assert_eq!(again.generation(), 0);
        certifier().read(&host).unwrap();
        assert!(!files().0.exists());
    }

    #[test]
    fn a_sidecar_asks_no_more_often_than_of_the_controller() {
        let dir = tempfile::tempdir().unwrap();
        let certifier = HostCertifier::at(dir.path().join("a.json"), dir.path().join("i.json"));
        let csr = SigningRequest::new(&id("svc/a")).unwrap().csr_der;
        let now = Instant::now();
        let why = |of: &str, at: Instant| certifier.sign(&csr, &id(of), at).unwrap_err();
        // The controller's burst. This host has no authority, which makes no difference.
        for _ in 0..200 {
            assert!(why("svc/a", now).contains("hostAuthority"));
        }
        assert!(why("svc/a", now).contains("too often"));
        assert!(why("svc/b", now).contains("hostAuthority"), "others go on");
        let later = now + Duration::from_secs(1);
        assert!(why("svc/a", later).contains("hostAuthority"));
    }
}

//! A joined host's own certificate: from the token or from the identity that the host kept, then
//! renewed for as long as it stays.

use super::kept::Kept;
use super::way::resolve;
use crate::client::{Objects, failure, is_away, objects_over};
use crate::failure::{Failure, OrFail, Result};
use crate::output::{coarse, progress};
use crate::supervise::host_authority::HostCertifier;
use crate::supervise::last_known::{KnownController, LastKnown};
use crate::supervise::line::Line;
use rustls::pki_types::ServerName;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::io::{DuplexStream, copy_bidirectional, duplex};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tulle_api::v1;
use tulle_api::v1::certificates_client::CertificatesClient;
use tulle_api::v1::{CertificateTerms, SignRequest, StatusRequest, Trust, TrustReport, trust};
use tulle_control::ca::host::HostKey;
use tulle_model::identity::{SpiffeId, TrustDomain};
use tulle_net::socket::KeepAlive;
use tulle_proxy::control::dial::{self, Stream};
use tulle_tls::controller::{Anchor, client_config};
use tulle_tls::enrol::{Enrolled, SigningRequest};

const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// Between tries to renew while the controller is away.
const RETRY: Duration = Duration::from_secs(10);
/// The longest pause before another authority is asked for, where the one before could not be kept.
const LONGEST_RETRY: Duration = Duration::from_mins(10);
/// How often a host looks at the clock, and asks a controller of an earlier version whether it is still one of the mesh.
const LOOK_AGAIN: Duration = Duration::from_secs(15);
/// How often it asks one that says itself when to ask.
const ASK_ANYWAY: Duration = Duration::from_mins(30);
const BUFFER: usize = 64 * 1024;

/// How the controller is reached and known.
#[derive(Clone)]
pub(crate) struct Controller {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// Fingerprint of its authority.
    pub(crate) fingerprint: String,
    /// The mesh's trust domain.
    pub(crate) trust_domain: TrustDomain,
    /// The line to it.
    pub(crate) line: Arc<Line>,
    /// This host may start without its answer.
    pub(crate) may_be_away: bool,
}

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
    objects: Objects,
}

/// The certificate of the moment.
struct Present {
    enrolled: Enrolled,
    /// When it came. Certificates are backdated, so their age counts from here.
    came: SystemTime,
    /// The age at which it is renewed, if the Mesh names one that is earlier than two thirds of its life.
    renew_after: Option<Duration>,
}

/// When this host asks for another authority after one that it could not keep, as on a full disk. The controller signs and
/// stores each, so the pauses get longer.
#[derive(Default)]
struct AuthorityRetry {
    pause: Option<Duration>,
    at: Option<Instant>,
}

impl AuthorityRetry {
    /// Begins a pause, twice as long as the one before.
    fn failed(&mut self, now: Instant) {
        let pause = self.pause.map_or(RETRY, |last| last * 2).min(LONGEST_RETRY);
        (self.pause, self.at) = (Some(pause), Some(now + pause));
    }

    fn is_paused(&self, now: Instant) -> bool {
        self.at.is_some_and(|at| now < at)
    }

    /// Whether a pause has ended. It says so once.
    fn is_over(&mut self, now: Instant) -> bool {
        self.at.take_if(|at| now >= *at).is_some()
    }
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
        let present = Present::kept(&controller, found, kept)?;
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
        let present = Present::kept(&controller, found, &own.identity)?;
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
            objects: objects_over(channel),
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
        self.objects.clone()
    }

    /// Renews when the certificate is due, or when other roots or terms demand it, until that can
    /// succeed no more; then says why.
    pub(crate) async fn renew(self: Rc<Self>) -> Over {
        let mut objects = self.objects();
        let mut terms = None;
        let line = Arc::clone(&self.controller.line);
        let mut last = Instant::now();
        let mut retry = AuthorityRetry::default();
        loop {
            let due = lock(&self.present).due();
            let asked = tokio::select! {
                () = sleep(due.min(LOOK_AGAIN)) => false,
                () = line.asked() => true,
            };
            let asked = retry.is_over(Instant::now()) || asked;
            if due > LOOK_AGAIN || asked {
                if line.is_told() && !asked && last.elapsed() < ASK_ANYWAY {
                    continue;
                }
                last = Instant::now();
                let issued = self.own.certifier.untold();
                let request = StatusRequest {
                    trusts: Some(lock(&self.present).report()),
                    host_authority: self.own.certifier.generation(),
                    issued: issued.clone(),
                };
                match objects.status(request).await {
                    Err(status) if status.code() == Code::PermissionDenied => {
                        self.own.certifier.give_up();
                        return over(&self.identity, Refused::Rpc(status), true);
                    }
                    Ok(status) => {
                        let status = status.into_inner();
                        self.own.certifier.forget(&issued);
                        if !self.own.certifier.untold().is_empty() {
                            self.controller.line.ask();
                        }
                        let mut present = lock(&self.present);
                        let news = match status.certificates {
                            Some(new) if terms.replace(new) != Some(new) => present.adopt(new),
                            _ => false,
                        };
                        if news {
                            tracing::info!("the lifetime of certificates was shortened");
                        } else if present.is_outdated(status.trust.unwrap_or_default()) {
                            tracing::info!("the mesh's root is being replaced");
                        } else if status.host_authority_due && !retry.is_paused(Instant::now()) {
                            tracing::info!("this host's authority over its workloads is due");
                        } else {
                            continue;
                        }
                    }
                    // The controller may be away.
                    Err(_) => continue,
                }
            }
            let channel = self.controller.clone();
            let channel = channel.channel(Some(Arc::clone(&self.present)));
            let key = HostKey::generate().or_fail(|| "cannot make a key".to_owned());
            let key = key.map_err(|failure| tracing::warn!("{failure}")).ok();
            let refused = match sign(channel, &self.identity, "", key.as_ref()).await {
                Ok(Signed { present, authority }) => {
                    // Without the file the host still goes on; it could not come back later.
                    if let Err(failure) = self.own.identity.write(&present.enrolled) {
                        tracing::warn!("{failure}");
                    }
                    let adopted = match (key, authority) {
                        (Some(key), Some(given)) => {
                            self.own.certifier.adopt(key, given, &present.enrolled)
                        }
                        (Some(_), None) => {
                            self.own.certifier.give_up();
                            Ok(())
                        }
                        (None, _) => Ok(()),
                    };
                    *lock(&self.present) = present;
                    // The controller learns what certificate is in force here, and what was done while it was away.
                    line.ask();
                    tracing::info!("renewed the host's certificate");
                    match adopted {
                        Ok(()) => retry = AuthorityRetry::default(),
                        Err(failure) => {
                            tracing::warn!("{failure}");
                            // The controller says at once that the authority is due, still.
                            retry.failed(Instant::now());
                        }
                    }
                    continue;
                }
                Err(refused) => refused,
            };
            let left = lock(&self.present).left();
            let out = refused.is_denied();
            if out {
                self.own.certifier.give_up();
            }
            if out || left.is_zero() {
                return over(&self.identity, refused, out);
            }
            tracing::warn!("{}", refused.failure());
            sleep(RETRY.min(left)).await;
        }
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
    let present = Present::kept(&controller, found, kept)?;
    Ok(objects_over(
        controller.channel(Some(Arc::new(Mutex::new(present)))),
    ))
}

impl Present {
    /// Takes a certificate, with the age in seconds at which the controller wants it renewed. 0 is none.
    fn new(enrolled: Enrolled, renew_after: i64) -> Self {
        Self {
            enrolled,
            came: SystemTime::now(),
            renew_after: seconds(renew_after),
        }
    }

    /// Takes the certificate that was kept, as long as it is valid.
    fn kept(controller: &Controller, found: Enrolled, kept: &Kept) -> Result<Self> {
        let identity = found.identity.spiffe_id().clone();
        if identity.trust_domain() != controller.trust_domain.as_str() {
            return Err(Failure::input(format!(
                "this host's identity {identity} is not of the trust domain {}",
                controller.trust_domain
            ))
            .because(format!("it is kept in {}", kept.file().display()))
            .fix("give --trust-domain, or a token of the other mesh"));
        }
        let present = Self::new(found, 0);
        match present.left().is_zero() {
            true => Err(expired(&identity, &present, kept)),
            false => Ok(present),
        }
    }

    /// Takes other terms. Returns whether the certificate is valid for longer than a new one would be: whoever
    /// shortens the lifetime wants it replaced at once.
    fn adopt(&mut self, terms: CertificateTerms) -> bool {
        self.renew_after = seconds(terms.renew_after_seconds);
        // A tenth is for clocks that differ, as for sidecars.
        seconds(terms.lifetime_seconds).is_some_and(|l| self.left() > l + l / 10)
    }

    /// Builds the report to the controller about the certificates on this host.
    fn report(&self) -> TrustReport {
        let bundle = &self.enrolled.bundle;
        TrustReport {
            root_sha256: bundle.fingerprints().map(str::to_owned).collect(),
            own_root_sha256: self.enrolled.own_root().unwrap_or_default().to_owned(),
        }
    }

    /// Whether other roots are to be believed, or the certificate comes from one that goes. Renewing
    /// cures both.
    fn is_outdated(&self, trust: Trust) -> bool {
        let report = self.report();
        let stays = trust.roots.iter().filter(|r| !r.retiring);
        let print = |r: &trust::Root| tulle_tls::fingerprint(&r.certificate_der);
        let known = |r: &trust::Root| report.root_sha256.contains(&print(r));
        let same = trust.roots.iter().all(known) && trust.roots.len() == report.root_sha256.len();
        let stays = stays.map(print).any(|p| p == report.own_root_sha256);
        // A controller of an earlier version says nothing.
        !(trust.roots.is_empty() || (same && stays))
    }

    /// How long it serves until it is renewed.
    fn due(&self) -> Duration {
        let life = self.enrolled.identity.not_after().duration_since(self.came);
        let latest = life.unwrap_or_default() * 2 / 3;
        let age = self.renew_after.map_or(latest, |named| named.min(latest));
        let due = (self.came + age).duration_since(SystemTime::now());
        due.unwrap_or_default()
    }

    /// How long it is valid.
    fn left(&self) -> Duration {
        let not_after = self.enrolled.identity.not_after();
        not_after
            .duration_since(SystemTime::now())
            .unwrap_or_default()
    }
}

/// Reads a number of seconds of the controller, where 0 is none.
fn seconds(number: i64) -> Option<Duration> {
    let number = u64::try_from(number).ok().filter(|n| *n > 0);
    number.map(Duration::from_secs)
}

fn lock(present: &Mutex<Present>) -> MutexGuard<'_, Present> {
    present.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why this host's certificate is renewed no more.
pub(crate) struct Over {
    /// Why this host is no longer of the mesh.
    pub(crate) failure: Failure,
    /// Whether the controller says so. Where only the certificate has ended what this host knows is kept: the clock may be
    /// wrong.
    pub(crate) is_dismissed: bool,
}

/// Why this host is no longer of the mesh. Only a new token helps.
fn over(identity: &SpiffeId, refused: Refused, out: bool) -> Over {
    let why = match refused {
        Refused::Rpc(status) if out => status.message().to_owned(),
        _ => "its certificate expired before the controller was there to renew it".to_owned(),
    };
    Over {
        failure: Failure::new(format!("{identity} is no longer a host of the mesh"))
            .because(why)
            .fix(new_token(identity)),
        is_dismissed: out,
    }
}

/// Why a host that was away too long cannot come back by itself.
fn expired(identity: &SpiffeId, present: &Present, kept: &Kept) -> Failure {
    let not_after = present.enrolled.identity.not_after();
    let since = SystemTime::now().duration_since(not_after);
    let seconds = since.map_or(0, |since| {
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    });
    Failure::new(format!(
        "the identity that this host kept, {identity}, has expired"
    ))
    .because(format!(
        "the certificate in {} was valid until {} ago",
        kept.file().display(),
        coarse(seconds)
    ))
    .fix(new_token(identity))
}

/// Why a host that has never joined needs a token.
pub(crate) fn never_joined(kept: &Kept) -> Failure {
    Failure::usage("this host has no identity yet, and no token to get one")
        .because(format!("{} does not exist", kept.file().display()))
        .fix("set TULLE_TOKEN or --token-file; `tulle token create node/NAME` on the controller's host makes a token")
}

fn new_token(identity: &SpiffeId) -> String {
    format!(
        "`tulle token create node/{}` on the controller's host, and join again with its token",
        identity.name()
    )
}

/// Adds advice to a failure to obtain a certificate.
fn advise(failure: Failure, address: SocketAddr) -> Failure {
    if failure.to_string().contains("UnknownIssuer") {
        return Failure::new(format!(
            "the controller at {address} belongs to another mesh"
        ))
        .because("the certificate authority of its mesh has not the fingerprint given")
        .fix("compare --controller and --ca-fingerprint with what `tulle token create` printed");
    }
    failure.fix("`tulle token create node/NAME` on the controller's host prints the command with a new token")
}

/// Why there is no certificate.
enum Refused {
    /// The controller says so, or is not there.
    Rpc(Status),
    /// Something else.
    Here(Failure),
}

impl Refused {
    /// The controller refuses the token or the identity.
    fn is_denied(&self) -> bool {
        matches!(self, Self::Rpc(status) if status.code() == Code::PermissionDenied)
    }

    /// No controller has answered.
    fn is_absence(&self) -> bool {
        matches!(self, Self::Rpc(status) if is_away(status))
    }

    fn failure(self) -> Failure {
        match self {
            Self::Rpc(status) => failure("the controller gives no certificate", &status),
            Self::Here(failure) => failure,
        }
    }
}

/// The controller's answer.
struct Signed {
    present: Present,
    authority: Option<v1::HostAuthority>,
}

async fn sign(
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

impl Controller {
    /// Connects when used, with the certificate of that moment.
    fn channel(self, present: Option<Arc<Mutex<Present>>>) -> Channel {
        let connect = dial::connector(move || {
            let (controller, present) = (self.clone(), present.clone());
            async move { Ok(Box::new(controller.connect(present).await?) as Box<dyn Stream>) }
        });
        Endpoint::from_static("http://controller").connect_with_connector_lazy(connect)
    }

    async fn connect(self, present: Option<Arc<Mutex<Present>>>) -> io::Result<DuplexStream> {
        let (config, until) = {
            let present = present.as_ref().map(|p| lock(p));
            let identity = present.as_ref().map(|p| &p.enrolled.identity);
            let first = Anchor::Fingerprint(self.fingerprint.clone());
            // The root may have been replaced since this host joined.
            let anchor = match &present {
                Some(p) => Anchor::Any(vec![Anchor::Bundle(p.enrolled.bundle.clone()), first]),
                None => first,
            };
            let config =
                client_config(anchor, &self.trust_domain, identity).map_err(io::Error::other)?;
            // The controller takes nothing over a connection whose certificate has expired. Ending
            // it soon after the renewal makes the client connect again, with the new one.
            let until = present.map_or(HANDSHAKE_TIME, |p| (p.due() + RETRY * 3).min(p.left()));
            (config, until)
        };
        let changed = self.line.changed();
        let connector = TlsConnector::from(Arc::new(config));
        let name = ServerName::IpAddress(self.address.ip().into());
        let connecting = async {
            let tcp = TcpStream::connect(self.address).await?;
            tcp.set_nodelay(true)?;
            KeepAlive::HOST.apply(&tcp)?;
            connector.connect(name, tcp).await
        };
        let mut tls = timeout(HANDSHAKE_TIME, connecting).await??;
        let (near, mut far) = duplex(BUFFER);
        tokio::spawn(async move {
            // However it ends, the client sees the end of its side.
            tokio::select! {
                _ = timeout(until, copy_bidirectional(&mut tls, &mut far)) => {}
                () = changed => {}
            }
        });
        Ok(near)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_that_cannot_be_kept_is_asked_for_less_and_less() {
        let begun = Instant::now();
        let mut retry = AuthorityRetry::default();
        assert!(!retry.is_paused(begun) && !retry.is_over(begun));
        let mut pauses = Vec::new();
        let mut now = begun;
        while now < begun + Duration::from_hours(1) {
            retry.failed(now);
            let until = retry.at.unwrap();
            assert!(retry.is_paused(now) && !retry.is_over(now));
            assert!(!retry.is_paused(until) && retry.is_over(until));
            // It is asked for once.
            assert!(!retry.is_over(until));
            pauses.push((until - now).as_secs());
            now = until;
        }
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 600, 600, 600, 600, 600]);
    }
}

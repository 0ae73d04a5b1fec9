//! The stream to the controller: subscribes to resources, takes those sent in advance, and renews
//! certificates in time.
//!
//! Runs on the main thread. The workers see only finished snapshots. When the controller is away
//! the proxy keeps working with the configuration it has. The snapshot file and the identity cache
//! let it do so even after a restart.

use crate::control::backoff::{Backoff, FIRST, LONGEST};
use crate::control::dial::{self, Answering, Stream};
use crate::control::host::HostSocket;
use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::fmt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, Sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tulle_api::v1;
use tulle_api::v1::certificates_client::CertificatesClient;
use tulle_api::v1::config_client::ConfigClient;
use tulle_model::bootstrap::{Bootstrap, Control, Listener, ListenerKind};
use tulle_model::identity::{SpiffeId, TrustDomain};
use tulle_model::resource::Resource;
use tulle_net::socket::KeepAlive;
use tulle_net::task;
use tulle_tls::controller::Anchor;
use tulle_tls::enrol::{Enrolled, SigningRequest};
use tulle_tls::{Identity, TrustBundle};

pub use crate::context::lookups::lookups;

/// Most names a proxy subscribes to; an application that connects to ever new addresses must not
/// fill our memory.
const MAX_NAMES: usize = 10_000;
/// Longest wait for an answer.
const RPC_LIMIT: Duration = Duration::from_secs(10);
/// All proxies renew their certificates within this time when a root is replaced.
const SPREAD: Duration = Duration::from_secs(2);
/// Longest that updates wait for the services they refer to. A connection waits as long to learn
/// which service owns an address.
const REFERENCES: Duration = Duration::from_secs(5);
/// How long the ports of a deleted workload still serve callers that have not heard of it: as long as requests may take to end.
const LEAVING: Duration = Duration::from_secs(5);
/// How often the snapshot file is written at most.
const SAVE_EVERY: Duration = Duration::from_millis(250);
/// A session is not doubted this long.
const FRESH: Duration = Duration::from_secs(10);
/// Longest wait that a controller may ask for.
const LONGEST_SPREAD: Duration = Duration::from_secs(10);

/// Why the controller could not be used. The proxy keeps working with the configuration it has.
#[derive(Debug)]
enum ControlError {
    /// The controller's address has no listener.
    Away(String),
    Connect(String),
    Token(String),
    Refused(Box<tonic::Status>),
    Certificate(String),
    Ended,
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Away(why) | Self::Connect(why) => write!(f, "cannot reach the controller: {why}"),
            Self::Token(why) => write!(
                f,
                "no certificate and no token to ask for one: {why}; `tulle token create` makes one \
                 for a proxy outside a cluster"
            ),
            Self::Refused(status) => {
                write!(
                    f,
                    "the controller refused: {}: {}",
                    status.code(),
                    status.message()
                )
            }
            Self::Certificate(why) => write!(f, "the certificate is not usable: {why}"),
            Self::Ended => f.write_str("the controller ended the stream"),
        }
    }
}

impl ControlError {
    /// Whether the controller has decided against this proxy. Then nobody else may decide for it.
    fn is_verdict(&self) -> bool {
        use tonic::Code::{FailedPrecondition, InvalidArgument, PermissionDenied, Unauthenticated};
        let Self::Refused(status) = self else {
            return false;
        };
        matches!(
            status.code(),
            FailedPrecondition | InvalidArgument | PermissionDenied | Unauthenticated
        )
    }

    /// The time within which a controller that ends wants its proxies back.
    fn spread(&self) -> Option<Duration> {
        let Self::Refused(status) = self else {
            return None;
        };
        let told = status.metadata().get(tulle_api::RECONNECT_WITHIN)?;
        let millis = told.to_str().ok()?.parse().ok()?;
        Some(Duration::from_millis(millis).min(LONGEST_SPREAD))
    }
}

impl From<tonic::Status> for ControlError {
    fn from(status: tonic::Status) -> Self {
        Self::Refused(Box::new(status))
    }
}

/// The snapshot file.
#[derive(serde::Deserialize)]
struct Saved {
    held: HashMap<String, (u64, Resource)>,
    /// Names of addresses that belong to no service.
    unowned: Vec<String>,
    /// Names in `held` that the application has not used. A file of an earlier version has none.
    #[serde(default)]
    unused: BTreeSet<String>,
}

#[derive(serde::Serialize)]
struct SavedRef<'a> {
    held: HashMap<&'a str, (u64, Cow<'a, Resource>)>,
    unowned: Vec<String>,
    unused: &'a BTreeSet<String>,
}

/// Returns the workload or pod beside this proxy, or the name in its identity: what tells proxies of one identity apart.
pub(crate) fn instance(bootstrap: &Bootstrap) -> String {
    let control = bootstrap.control.as_ref();
    let workload = control.and_then(|c| c.service.as_deref());
    workload.unwrap_or(bootstrap.identity.name()).to_owned()
}

/// Receiver of the controller's configurations and of certificates.
pub trait Sink: Send + 'static {
    /// Returns our own SPIFFE id.
    fn identity(&self) -> &SpiffeId;
    /// Uses another certificate from now on.
    fn set_identity(&mut self, enrolled: &Enrolled);
    /// Takes an update as a whole, to be in force after `release` at the latest. If anything is
    /// wrong it changes nothing and returns the errors.
    fn update(&mut self, resources: &[(String, u64, Resource)], removed: &[String]) -> Vec<String>;
    /// Puts all updates in force.
    fn release(&mut self) {}
    /// Describes configuration that is only partly in force, and why; empty: all is in force.
    fn faults(&self) -> String {
        String::new()
    }
    /// Returns the part of a resource in force; `None`: the whole resource is.
    fn in_force(&self, _told: &Resource) -> Option<Resource> {
        None
    }
    /// Whether another process has taken over, whose files are those of this one.
    fn is_succeeded(&self) -> bool {
        false
    }
    /// Notes whether the newest update is in force; shown to operators.
    fn note_configuration(&self, result: Result<(), &str>);
    /// Services to subscribe to, beside those of the listeners.
    fn wanted_services(&self) -> Vec<String>;
    /// Names of addresses that belong to no service.
    fn unowned(&self) -> Vec<String>;
    /// Forgets the addresses that belong to no service and returns their names.
    fn forget_unowned(&mut self) -> Vec<String>;
    /// The controller has answered everything the proxy asked for at the start.
    fn settled(&mut self);
    /// Whether the controller may send services that nobody has asked for yet.
    fn anticipates(&self) -> bool {
        false
    }
    /// Notes the names that the controller sent unasked and that the application has not used.
    fn set_unused(&mut self, _names: &BTreeSet<String>) {}
    /// Forgets these names, without treating them as names of no service.
    fn forget(&mut self, _names: &[String]) {}
    /// Notes why the controller is unreachable; `None`: it is reachable, or the proxy is trying to
    /// reach it.
    fn set_away(&mut self, _why: Option<&str>) {}
}

/// Proof of identity for a new certificate.
enum Proof {
    /// The present certificate.
    Certificate,
    JoinToken(String),
    ServiceAccount(String),
}

/// A certificate that was signed for this proxy.
struct Signed {
    enrolled: Enrolled,
    /// The age at which it is to be renewed, where the controller named one.
    renew_after: Option<Duration>,
}

/// A request for a certificate, under way.
type Signing = Pin<Box<dyn Future<Output = Result<Signed, ControlError>> + Send>>;

/// The next renewal of the certificate. It runs beside the stream: an issuer that does not answer
/// must not keep configuration from this proxy.
enum Renewal {
    Due(Pin<Box<Sleep>>),
    UnderWay(Signing),
}

impl Renewal {
    fn after(wait: Duration) -> Self {
        Self::Due(Box::pin(tokio::time::sleep(wait)))
    }

    /// Returns `None` when it is time to ask, and later the answer. It may be dropped and called
    /// again.
    async fn step(&mut self) -> Option<Result<Signed, ControlError>> {
        match self {
            Self::Due(sleep) => {
                sleep.as_mut().await;
                None
            }
            Self::UnderWay(signing) => Some(signing.as_mut().await),
        }
    }
}

/// Returns the age at which a certificate is renewed: the one that the controller named, or two thirds of its
/// lifetime, less up to a tenth of the lifetime (of the named age, if that is less) so that proxies spread.
/// `fraction` is a random number from 0 to 1.
fn renewal_age(lifetime: Duration, named: Option<Duration>, fraction: f32) -> Duration {
    // The root may end before the certificate would: the named age can be longer than what is left.
    let latest = lifetime / 3 * 2;
    let age = named.map_or(latest, |named| named.min(latest));
    let spread = match named {
        Some(_) => age,
        None => lifetime,
    };
    age.saturating_sub(spread.mul_f64(f64::from(fraction) * 0.1))
}

/// Reads a number of seconds of the controller.
fn seconds(number: i64) -> Duration {
    Duration::from_secs(u64::try_from(number).unwrap_or_default())
}

/// Reads the age at which certificates are renewed; 0: the controller names none.
fn named_age(number: i64) -> Option<Duration> {
    Some(seconds(number)).filter(|age| !age.is_zero())
}

/// Returns a random time within which all proxies renew at once.
fn soon() -> Duration {
    SPREAD.mul_f64(f64::from(fraction()))
}

/// A controller that wants to be told what is counted, over the connection that brings the configuration.
#[derive(Clone)]
pub struct WantedReports {
    /// The connection.
    pub channel: Channel,
    /// How often.
    pub every: Duration,
}

/// The proxy's side of the control plane.
pub struct ControlClient<S: Sink> {
    control: Control,
    trust_domain: TrustDomain,
    publisher: S,
    /// Tells proxies of one identity apart.
    instance: String,
    /// Says whether the controller wants reports.
    reports: Option<watch::Sender<Option<WantedReports>>>,
    /// Somebody knows that the way to the controller is another now.
    nudges: Arc<Notify>,
    enrolled: Option<Enrolled>,
    /// How long the certificate was valid when it was issued to us.
    lifetime: Option<Duration>,
    /// The age at which it is to be renewed, where the controller named one.
    renew_after: Option<Duration>,
    /// The terms of certificates that the controller told last.
    terms: Option<v1::CertificateTerms>,
    names: BTreeSet<String>,
    /// Entries of `names` that the controller sent unasked and the application has not used.
    unused: BTreeSet<String>,
    /// Forms of names that the application's calls use; `None`: it makes none through this proxy.
    anticipates: Option<v1::Anticipation>,
    /// Another update follows at once.
    more: bool,
    /// A stream is open, or the last session had one.
    connected: bool,
    /// Names that the controller has not answered yet; `None` once it had answered all.
    unanswered: Option<BTreeSet<String>>,
    held: HashMap<String, (u64, Resource)>,
    /// Services that the newest updates refer to and that the controller has not sent yet. Requests
    /// to them would be refused as unknown.
    awaited: BTreeSet<String>,
    /// Time since when updates wait for them.
    waits_since: Option<Instant>,
    /// The own ports, which the controller has removed, and when they go.
    leaving: Option<(String, Instant)>,
    /// Configuration faults reported last; empty: none. A lasting fault is found again with each
    /// update, and is reported once.
    fault_told: String,
    /// Where the supervisor of a joined host certifies this proxy while no controller answers.
    host: Option<HostSocket>,
    /// Why it did not when it was asked last; empty: it did.
    host_told: String,
    /// When the snapshot file was written last.
    saved: Option<Instant>,
    /// When it is to be written next; `None`: it holds what is in force.
    save_due: Option<Instant>,
}

/// The next start finds the configuration that was in force last.
impl<S: Sink> Drop for ControlClient<S> {
    fn drop(&mut self) {
        self.save_what_is_due();
    }
}

impl<S: Sink> ControlClient<S> {
    /// A client that has not contacted the controller yet. The contents of the snapshot file and of
    /// the identity cache are in force at once.
    pub fn new(bootstrap: &Bootstrap, control: Control, mut publisher: S) -> Self {
        let trust_domain = TrustDomain::parse(bootstrap.identity.trust_domain())
            // An identity that was parsed has a valid trust domain.
            .unwrap_or_default();
        let enrolled = cached_identity(&control, &bootstrap.identity);
        if let Some(enrolled) = &enrolled {
            publisher.set_identity(enrolled);
        }
        let names = first_names(bootstrap, &control);
        let anticipates = publisher.anticipates().then(|| anticipation(bootstrap));
        let anticipates = anticipates.flatten();
        let host = control.host_authority.map(HostSocket::inherited);
        let host = host.and_then(|socket| match socket {
            Ok(socket) => Some(socket),
            Err(error) => {
                tracing::warn!(%error, "the socket of this host's supervisor is not usable");
                None
            }
        });
        let mut client = Self {
            host,
            host_told: String::new(),
            unanswered: Some(names.clone()),
            names,
            unused: BTreeSet::new(),
            anticipates,
            more: false,
            connected: false,
            control,
            trust_domain,
            publisher,
            instance: instance(bootstrap),
            reports: None,
            nudges: Arc::default(),
            enrolled,
            lifetime: None,
            renew_after: None,
            terms: None,
            held: HashMap::new(),
            awaited: BTreeSet::new(),
            waits_since: None,
            leaving: None,
            fault_told: String::new(),
            saved: None,
            save_due: None,
        };
        client.load_snapshot();
        client
    }

    /// Connects anew whenever it is told to, unless it has just done so.
    #[must_use]
    pub fn with_nudges(mut self, nudges: Arc<Notify>) -> Self {
        self.nudges = nudges;
        self
    }

    /// Says from now on whether the controller wants reports.
    #[must_use]
    pub fn with_reports(mut self, reports: watch::Sender<Option<WantedReports>>) -> Self {
        self.reports = Some(reports);
        self
    }

    fn want_reports(&self, wanted: Option<WantedReports>) {
        if let Some(reports) = &self.reports {
            reports.send_if_modified(|known| {
                let other = known.is_some() || wanted.is_some();
                *known = wanted;
                other
            });
        }
    }

    /// Runs until the process ends.
    pub async fn run(mut self, mut lookups: mpsc::Receiver<String>) {
        let mut backoff = Backoff::default();
        loop {
            let began = Instant::now();
            let Err(error) = self.session(&mut lookups).await;
            self.want_reports(None);
            if began.elapsed() > LONGEST {
                backoff = Backoff::default();
            }
            if self.enrol_after_return(&error).await {
                continue;
            }
            let wait = match error.spread() {
                // Another one is there, or will soon be.
                Some(spread) => spread.mul_f64(f64::from(fraction())),
                None => {
                    let is_away = matches!(error, ControlError::Away(_));
                    backoff.next(Instant::now(), is_away, fraction())
                }
            };
            tracing::warn!(controller = %self.control.address, %error, retry_in = ?wait, "control");
            // Most streams end because the controller is being replaced, so the proxy tries
            // once more.
            if !std::mem::take(&mut self.connected) {
                self.publisher.set_away(Some(&error.to_string()));
            }
            self.wait_no_longer();
            self.save_what_is_due();
            let again = Instant::now() + wait;
            let nudged = Arc::clone(&self.nudges);
            let renews = !error.is_verdict();
            tokio::select! {
                () = self.wait_for(again, renews) => {}
                () = nudged.notified() => {}
            }
        }
    }

    /// Waits until the controller is tried again; the host may renew the certificate meanwhile.
    async fn wait_for(&mut self, again: Instant, renews: bool) {
        if renews {
            self.renew_by_host(again).await;
        }
        tokio::time::sleep_until(again).await;
    }

    /// While no controller answers, has the host's authority certify this proxy as soon as that is due, until
    /// the controller is tried again.
    async fn renew_by_host(&mut self, until: Instant) {
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
    async fn enrol_after_return(&mut self, error: &ControlError) -> bool {
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

    fn is_signed_by_host(&self) -> bool {
        let enrolled = self.enrolled.as_ref();
        enrolled.is_some_and(|e| e.identity.is_signed_by_host())
    }

    /// One connection to the controller.
    async fn session(
        &mut self,
        lookups: &mut mpsc::Receiver<String>,
    ) -> Result<Infallible, ControlError> {
        if !self.has_valid_certificate() {
            let signed = self.signing(self.proof()?)?.await?;
            self.adopt(signed);
        }
        let channel = self.connect()?.await?;
        let (requests, stream) = mpsc::channel(16);
        let known =
            self.held.iter().map(
                |(name, (version, told))| match self.publisher.in_force(told) {
                    // Version 0 makes the controller send it again, and hear of the fault again.
                    Some(_) => (name.clone(), 0),
                    None => (name.clone(), *version),
                },
            );
        let first = v1::SubscribeRequest {
            subscribe: self.names.iter().cloned().collect(),
            known: known.collect(),
            trusts: self.enrolled.as_ref().map(report),
            anticipation: self.anticipates.clone().map(|forms| v1::Anticipation {
                unused: self.unused.iter().cloned().collect(),
                ..forms
            }),
            instance: self.instance.clone(),
            takes_patches: true,
            ..Default::default()
        };
        self.more = false;
        // The channel has room for the first message.
        let _ = requests.try_send(first);
        let mut client = ConfigClient::new(channel.clone()).max_decoding_message_size(64 << 20);
        let subscribing = client.subscribe(ReceiverStream::new(stream));
        let mut updates = within(subscribing).await?.into_inner();
        tracing::info!(controller = %self.control.address, "connected to the controller");
        self.connected = true;
        self.publisher.set_away(None);
        let mut renewal = Renewal::after(match self.is_signed_by_host() {
            // Only for as long as the controller is away.
            true => soon(),
            false => self.until_renewal(),
        });
        let began = Instant::now();
        let nudges = Arc::clone(&self.nudges);
        loop {
            tokio::select! {
                update = updates.message() => {
                    let mut update = update?.ok_or(ControlError::Ended)?;
                    let trust = update.trust.take();
                    if update.report_seconds > 0 {
                        let every = Duration::from_secs(update.report_seconds.into());
                        self.want_reports(Some(WantedReports { channel: channel.clone(), every }));
                    }
                    if let Some(terms) = update.certificates.take()
                        && let Some(wait) = self.adopt_terms(terms)
                    {
                        renewal = Renewal::after(wait);
                    }
                    let mut ack = self.apply(update);
                    let mut trusts = None;
                    if let Some(trust) = trust {
                        match self.believe(trust) {
                            Ok(renew) => {
                                trusts = self.enrolled.as_ref().map(report);
                                // A certificate requested before may still come with the old roots.
                                if renew || matches!(renewal, Renewal::UnderWay(_)) {
                                    renewal = Renewal::after(soon());
                                }
                            }
                            Err(error) => ack.error = error,
                        }
                    }
                    let answer = v1::SubscribeRequest { ack: Some(ack), trusts, ..Default::default() };
                    requests.send(answer).await.map_err(|_| ControlError::Ended)?;
                    self.subscribe_backends(&requests).await?;
                    self.release();
                    self.settle();
                }
                () = task::wait_until(self.waits_since.map(|since| since + REFERENCES)) => self.wait_no_longer(),
                () = task::wait_until(self.leaving.as_ref().map(|(_, when)| *when)) => self.leave(),
                () = task::wait_until(self.save_due) => self.save_what_is_due(),
                () = nudges.notified() => {
                    if began.elapsed() > FRESH {
                        return Err(ControlError::Ended);
                    }
                }
                Some(name) = lookups.recv() => self.subscribe([name], &requests).await?,
                step = renewal.step() => {
                    let Some(answer) = step else {
                        renewal = Renewal::UnderWay(self.sign_again());
                        continue;
                    };
                    renewal = Renewal::after(self.renewed(answer)?);
                    let trusts = self.enrolled.as_ref().map(report);
                    let request = v1::SubscribeRequest { trusts, ..Default::default() };
                    requests.send(request).await.map_err(|_| ControlError::Ended)?;
                }
            }
        }
    }

    fn apply(&mut self, update: v1::ConfigUpdate) -> v1::Ack {
        let mut decoded = Vec::new();
        let mut errors = Vec::new();
        // A refused resource counts as an answer, too.
        let answered = update.resources.iter().map(|r| &r.name);
        for name in answered.chain(&update.removed) {
            self.awaited.remove(name);
        }
        self.more = update.more;
        self.forget(update.forgotten);
        for resource in update.resources {
            match self.decode(&resource) {
                Ok((version, body)) => decoded.push((resource.name, version, body)),
                Err(error) => errors.push(format!("{}: {error}", resource.name)),
            }
        }
        let is_own = |name: &String| name.starts_with("inbound/") && self.held.contains_key(name);
        let (own, removed): (Vec<_>, Vec<_>) = update.removed.iter().cloned().partition(is_own);
        errors.extend(self.publisher.update(&decoded, &removed));
        if errors.is_empty() {
            if let Some(unanswered) = &mut self.unanswered {
                for (name, ..) in &decoded {
                    unanswered.remove(name);
                }
                // A gateway that does not exist may be created; without it there is nothing to
                // serve.
                unanswered.retain(|n| n.starts_with("gateway/") || !update.removed.contains(n));
            }
            self.leaving
                .take_if(|(own, _)| decoded.iter().any(|(name, ..)| name == own));
            for name in own {
                self.leaving = Some((name, Instant::now() + LEAVING));
            }
            let before = self.unused.len();
            for (name, version, body) in decoded {
                if !self.names.contains(&name) {
                    self.names.insert(name.clone());
                    self.unused.insert(name.clone());
                }
                self.held.insert(name, (version, body));
            }
            for name in &update.removed {
                self.held.remove(name);
            }
            if self.unused.len() != before {
                self.publisher.set_unused(&self.unused);
            }
            self.note_faults();
            self.waits_since.get_or_insert_with(Instant::now);
        } else {
            let errors = errors.join("; ");
            self.publisher.note_configuration(Err(&errors));
            self.fault_told.clone_from(&errors);
            tracing::warn!(
                errors,
                "the controller's update is refused; the last good one is kept"
            );
        }
        v1::Ack {
            nonce: update.nonce,
            error: errors.join("; "),
            faults: self.publisher.faults(),
        }
    }

    /// Decodes a resource, whole or as a patch of the one that is held; also its version.
    fn decode(&self, sent: &v1::Resource) -> Result<(u64, Resource), String> {
        let Some(patch) = &sent.patch else {
            let whole = tulle_api::decode(&sent.body, &sent.labels);
            return whole
                .map(|whole| (sent.version, whole))
                .map_err(|e| e.to_string());
        };
        let held = self.held.get(&sent.name);
        let whole = held
            .and_then(|(_, held)| tulle_api::apply_patch(&tulle_api::encode(held.clone()), patch));
        // A controller of another version may write resources otherwise.
        let (whole, version) =
            whole.ok_or("the patch does not fit what this proxy holds; it takes the whole")?;
        let whole = tulle_api::decode(&whole.body, &whole.labels);
        whole
            .map(|whole| (version, whole))
            .map_err(|e| e.to_string())
    }

    /// Forgets names that were sent unasked. Names that the application uses by now stay
    /// subscribed.
    fn forget(&mut self, mut forgotten: Vec<String>) {
        forgotten.retain(|name| self.unused.remove(name));
        if forgotten.is_empty() {
            return;
        }
        for name in &forgotten {
            self.names.remove(name);
            self.held.remove(name);
        }
        self.publisher.forget(&forgotten);
        self.publisher.set_unused(&self.unused);
        self.waits_since.get_or_insert_with(Instant::now);
    }

    /// Notes that the configuration is in force, except for the parts with faults.
    fn note_faults(&mut self) {
        let faults = self.publisher.faults();
        if faults == self.fault_told {
            return;
        }
        let result = match faults.is_empty() {
            true => Ok(()),
            false => Err(faults.as_str()),
        };
        self.publisher.note_configuration(result);
        if !faults.is_empty() {
            tracing::warn!(
                faults,
                "the configuration is in force except for these parts"
            );
        }
        self.fault_told = faults;
    }

    /// Trusts these roots from now on. Returns whether the certificate is to be renewed at once.
    fn believe(&mut self, trust: v1::Trust) -> Result<bool, String> {
        let Some(enrolled) = &self.enrolled else {
            return Ok(false);
        };
        let retiring = |r: &&v1::trust::Root| r.retiring;
        let retiring: Vec<_> = trust.roots.iter().filter(retiring).cloned().collect();
        let roots = trust.roots.into_iter().map(|r| r.certificate_der);
        let enrolled = enrolled
            .with_bundle(roots.collect())
            .map_err(|e| e.to_string())?;
        let renew = match enrolled.own_root() {
            Some(own) => retiring
                .iter()
                .any(|r| tulle_tls::fingerprint(&r.certificate_der) == own),
            None => true,
        };
        let roots = |of: &Enrolled| -> BTreeSet<String> {
            of.bundle.fingerprints().map(str::to_owned).collect()
        };
        if self.enrolled.as_ref().map(roots) != Some(roots(&enrolled)) {
            self.keep_identity(&enrolled);
            self.publisher.set_identity(&enrolled);
            tracing::info!(roots = ?enrolled.bundle, renew, "new roots are trusted");
            self.enrolled = Some(enrolled);
        }
        Ok(renew)
    }

    /// Writes the identity to its cache, for a restart.
    fn keep_identity(&self, enrolled: &Enrolled) {
        if let Some(path) = &self.control.identity_cache
            && !self.publisher.is_succeeded()
            && let Err(error) = write_cache(path, enrolled.to_cache())
        {
            tracing::warn!(path = %path.display(), %error, "cannot keep the identity for a restart");
        }
    }

    async fn subscribe(
        &mut self,
        names: impl IntoIterator<Item = String>,
        requests: &mpsc::Sender<v1::SubscribeRequest>,
    ) -> Result<(), ControlError> {
        let mut new = Vec::new();
        if self.names.len() >= MAX_NAMES {
            let gone = self.publisher.forget_unowned();
            for name in &gone {
                self.names.remove(name);
            }
            let request = v1::SubscribeRequest {
                unsubscribe: gone,
                ..Default::default()
            };
            requests
                .send(request)
                .await
                .map_err(|_| ControlError::Ended)?;
        }
        let unused = self.unused.len();
        for name in names {
            // The application uses it from now on; its siblings may, too.
            if self.unused.remove(&name) {
                new.push(name);
            } else if self.names.len() < MAX_NAMES && self.names.insert(name.clone()) {
                if let Some(unanswered) = &mut self.unanswered {
                    unanswered.insert(name.clone());
                }
                new.push(name);
            }
        }
        if self.unused.len() != unused {
            self.publisher.set_unused(&self.unused);
            self.save_snapshot();
        }
        if new.is_empty() {
            return Ok(());
        }
        let request = v1::SubscribeRequest {
            subscribe: new,
            ..Default::default()
        };
        requests
            .send(request)
            .await
            .map_err(|_| ControlError::Ended)
    }

    /// Reports that everything asked for at the start is answered. Backends of routes are asked for
    /// when the routes are known; requests before that answer would be refused as unknown.
    fn settle(&mut self) {
        if !self.more && self.unanswered.as_ref().is_some_and(BTreeSet::is_empty) {
            self.unanswered = None;
            self.publisher.settled();
        }
    }

    /// Closes the ports of a workload that was deleted.
    fn leave(&mut self) {
        if let Some((name, _)) = self.leaving.take() {
            self.publisher.update(&[], &[name]);
            self.waits_since.get_or_insert_with(Instant::now);
            self.release();
        }
    }

    /// Puts updates in force, together with the services they refer to.
    fn release(&mut self) {
        // The update that follows at once may bring the services this one refers to.
        if !self.more && self.awaited.is_empty() && self.waits_since.take().is_some() {
            self.publisher.release();
            self.save_snapshot();
        }
    }

    fn wait_no_longer(&mut self) {
        if !self.awaited.is_empty() {
            let services = &self.awaited;
            tracing::warn!(?services, "the controller has not sent these services");
        }
        self.awaited.clear();
        self.more = false;
        self.release();
    }

    /// Subscribes to the services that routes and addresses refer to.
    async fn subscribe_backends(
        &mut self,
        requests: &mpsc::Sender<v1::SubscribeRequest>,
    ) -> Result<(), ControlError> {
        if self.more {
            return Ok(());
        }
        let wanted = self.publisher.wanted_services();
        let names = wanted.into_iter().map(|s| format!("service/{s}"));
        let new: BTreeSet<String> = names.filter(|n| !self.names.contains(n)).collect();
        self.subscribe(new.iter().cloned(), requests).await?;
        // A name above the limit is never asked for.
        let asked = new.into_iter().filter(|n| self.names.contains(n));
        self.awaited.extend(asked);
        Ok(())
    }

    // Certificates.

    fn has_valid_certificate(&self) -> bool {
        self.enrolled
            .as_ref()
            .is_some_and(|e| e.identity.not_after() > SystemTime::now())
    }

    /// Returns the time until the certificate is renewed.
    fn until_renewal(&self) -> Duration {
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
    fn adopt_terms(&mut self, terms: v1::CertificateTerms) -> Option<Duration> {
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
    fn renewed(&mut self, answer: Result<Signed, ControlError>) -> Result<Duration, ControlError> {
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
    fn sign_again(&self) -> Signing {
        let proof = match self.control.service_account_token {
            Some(_) => self.proof(),
            None => Ok(Proof::Certificate),
        };
        let signing = proof.and_then(|proof| self.signing(proof));
        signing.unwrap_or_else(|error| Box::pin(std::future::ready(Err(error))))
    }

    /// Asks for a certificate, on a connection of its own.
    fn signing(&self, proof: Proof) -> Result<Signing, ControlError> {
        let identity = self
            .enrolled
            .as_ref()
            .filter(|_| self.has_valid_certificate());
        self.signing_as(proof, identity.map(|e| &e.identity))
    }

    /// Asks for a certificate over a connection with this one, or with none.
    fn signing_as(
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
    fn adopt(&mut self, signed: Signed) {
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
    fn proof(&self) -> Result<Proof, ControlError> {
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

    /// Returns the trust anchors for the controller: those from the start, and the roots received
    /// since.
    fn anchor(&self) -> Result<Anchor, ControlError> {
        let first = self.first_anchor();
        let Some(enrolled) = &self.enrolled else {
            return first;
        };
        let told = Anchor::Bundle(enrolled.bundle.clone());
        Ok(match first {
            Ok(first) => Anchor::Any(vec![told, first]),
            // The file may be in the middle of a replacement.
            Err(_) => told,
        })
    }

    fn first_anchor(&self) -> Result<Anchor, ControlError> {
        let Some(path) = &self.control.trust_bundle else {
            return Ok(Anchor::Fingerprint(self.control.ca_fingerprint.clone()));
        };
        let failed = |why: String| ControlError::Certificate(format!("{}: {why}", path.display()));
        let text = std::fs::read(path).map_err(|e| failed(e.to_string()))?;
        let bundle = TrustBundle::from_pem(&text).map_err(|e| failed(e.to_string()))?;
        Ok(Anchor::Bundle(bundle))
    }

    /// Connects with the present certificate, if it is valid.
    fn connect(
        &self,
    ) -> Result<impl Future<Output = Result<Channel, ControlError>> + Send + use<S>, ControlError>
    {
        let identity = self
            .enrolled
            .as_ref()
            .filter(|_| self.has_valid_certificate());
        self.connect_as(identity.map(|e| &e.identity))
    }

    /// Connects with this certificate, or with none.
    fn connect_as(
        &self,
        identity: Option<&Identity>,
    ) -> Result<impl Future<Output = Result<Channel, ControlError>> + Send + use<S>, ControlError>
    {
        let config =
            tulle_tls::controller::client_config(self.anchor()?, &self.trust_domain, identity)
                .map_err(|e| ControlError::Certificate(e.to_string()))?;
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let (address, sparing) = (self.control.address.clone(), self.control.sparing);
        let service = dial::connector(move || {
            let (connector, address) = (connector.clone(), address.clone());
            async move {
                let tcp = dial::tcp(&address).await?;
                tcp.set_nodelay(true)?;
                if sparing {
                    KeepAlive::PROXY_OF_HOST.apply(&tcp)?;
                }
                // The server name is not used: the SPIFFE id identifies the controller.
                let name = rustls::pki_types::ServerName::IpAddress(tcp.peer_addr()?.ip().into());
                let answering = Answering::new(tcp, sparing);
                let tls = connector.connect(name, answering).await?;
                Ok(Box::new(tls) as Box<dyn Stream>)
            }
        });
        let mut endpoint =
            Endpoint::from_static("http://controller").connect_timeout(Duration::from_secs(5));
        if !sparing {
            endpoint = endpoint
                .http2_keep_alive_interval(Duration::from_secs(10))
                .keep_alive_timeout(Duration::from_secs(5));
        }
        Ok(async move {
            let connected = endpoint.connect_with_connector(service).await;
            connected.map_err(|e| match dial::is_refused(&e) {
                true => ControlError::Away(causes(&e)),
                false => ControlError::Connect(causes(&e)),
            })
        })
    }

    // State that survives a restart.

    fn load_snapshot(&mut self) {
        let Some(path) = &self.control.snapshot else {
            return;
        };
        let Saved {
            held,
            unowned,
            unused,
        } = match read_json(path) {
            Ok(Some(saved)) => saved,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(path = %path.display(), error, "the snapshot is not usable");
                return;
            }
        };
        let resources: Vec<_> = held
            .into_iter()
            .map(|(name, (version, body))| (name, version, body))
            .collect();
        let errors = self.publisher.update(&resources, &unowned);
        self.publisher.release();
        if !errors.is_empty() {
            tracing::warn!(path = %path.display(), ?errors, "parts of the snapshot are not usable");
            return;
        }
        tracing::info!(
            resources = resources.len(),
            "started from the local snapshot"
        );
        self.note_faults();
        // The proxy has served with this snapshot before.
        self.unanswered = None;
        self.publisher.settled();
        self.names.extend(unowned);
        for (name, version, body) in resources {
            if unused.contains(&name) && !self.names.contains(&name) {
                self.unused.insert(name.clone());
            }
            self.names.insert(name.clone());
            self.held.insert(name, (version, body));
        }
        self.publisher.set_unused(&self.unused);
    }

    /// Writes the snapshot file, or soon if that was done a moment ago: a file has up to some hundred KiB, and
    /// in a large mesh updates follow each other.
    fn save_snapshot(&mut self) {
        let now = Instant::now();
        let due = self.saved.map_or(now, |saved| saved + SAVE_EVERY);
        let due = *self.save_due.get_or_insert(due);
        if due <= now {
            self.save_what_is_due();
        }
    }

    fn save_what_is_due(&mut self) {
        if self.save_due.take().is_some() {
            self.saved = Some(Instant::now());
            self.write_snapshot();
        }
    }

    fn write_snapshot(&self) {
        let Some(path) = &self.control.snapshot else {
            return;
        };
        if self.publisher.is_succeeded() {
            return;
        }
        let held = self.held.iter().map(|(name, (version, told))| {
            let saved = match self.publisher.in_force(told) {
                // No version: the controller sends this resource again.
                Some(in_force) => (0, Cow::Owned(in_force)),
                None => (*version, Cow::Borrowed(told)),
            };
            (name.as_str(), saved)
        });
        let saved = SavedRef {
            held: held.collect(),
            unowned: self.publisher.unowned(),
            unused: &self.unused,
        };
        let text = serde_json::to_vec(&saved).map_err(std::io::Error::from);
        if let Err(error) = text.and_then(|text| replace(path, &text)) {
            tracing::warn!(path = %path.display(), %error, "the snapshot is not written");
        }
    }
}

/// Joins an answer to the key, if it is a certificate for this proxy.
fn completed(
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

/// Reports the roots in force here.
fn report(enrolled: &Enrolled) -> v1::TrustReport {
    v1::TrustReport {
        root_sha256: enrolled.bundle.fingerprints().map(str::to_owned).collect(),
        own_root_sha256: enrolled.own_root().unwrap_or_default().to_owned(),
    }
}

/// Bounds a call by `RPC_LIMIT`, so that a controller that hangs does not block us.
async fn within<T>(
    call: impl Future<Output = Result<T, tonic::Status>>,
) -> Result<T, ControlError> {
    match tokio::time::timeout(RPC_LIMIT, call).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(ControlError::Connect(format!(
            "no answer within {RPC_LIMIT:?}"
        ))),
    }
}

/// Returns the names this proxy needs from the beginning.
fn first_names(bootstrap: &Bootstrap, control: &Control) -> BTreeSet<String> {
    let mut names = BTreeSet::from(["mesh".to_owned()]);
    for gateway in bootstrap.gateway_names() {
        names.insert(format!("gateway/{gateway}"));
    }
    for listener in &bootstrap.listeners {
        match &listener.kind {
            ListenerKind::Upstream { service, .. } => {
                names.insert(format!("service/{service}"));
            }
            ListenerKind::Gateway { .. } => {}
            ListenerKind::Inbound | ListenerKind::InboundPort { .. } => {
                let service = control
                    .service
                    .as_deref()
                    .unwrap_or(bootstrap.identity.name());
                names.insert(format!("inbound/{service}"));
                // The listener may belong to an egress gateway.
                names.insert("egress".to_owned());
            }
            ListenerKind::Outbound => {
                names.insert("egress".to_owned());
            }
        }
    }
    names
}

/// Returns the forms of names that the application's calls use, if it makes calls.
fn anticipation(bootstrap: &Bootstrap) -> Option<v1::Anticipation> {
    let calls = |l: &Listener| matches!(l.kind, ListenerKind::Outbound);
    bootstrap
        .listeners
        .iter()
        .any(calls)
        .then(|| v1::Anticipation {
            addresses: true,
            hosts: bootstrap.dns.is_some(),
            unused: Vec::new(),
        })
}

fn cached_identity(control: &Control, id: &SpiffeId) -> Option<Enrolled> {
    let path = control.identity_cache.as_ref()?;
    let text = std::fs::read_to_string(path)
        .ok()
        .filter(|text| !text.is_empty())?;
    match Enrolled::from_cache(&text) {
        Ok(enrolled) if enrolled.identity.spiffe_id() == id => Some(enrolled),
        Ok(_) => None,
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "the identity cache is not usable");
            None
        }
    }
}

/// An inherited memfd cannot be replaced by renaming, and has no disk to fill.
fn write_cache(path: &Path, text: &str) -> std::io::Result<()> {
    if path.starts_with("/proc") {
        return write_private(path, text.as_bytes());
    }
    replace(path, text.as_bytes())
}

/// Written beside and renamed, so that a crash leaves the old or the new file, never a part.
fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let beside = path.with_extension("new");
    write_private(&beside, bytes)?;
    std::fs::rename(beside, path)
}

fn write_private(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, String> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    serde_json::from_slice(&text)
        .map(Some)
        .map_err(|e| e.to_string())
}

/// Returns an error with its causes, because tonic's own text is just "transport error".
pub fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

/// A random number from 0 to 1.
pub(crate) fn fraction() -> f32 {
    use std::hash::{BuildHasher, RandomState};
    let bits = RandomState::new().hash_one(0) >> 48;
    f32::from(u16::try_from(bits).unwrap_or_default()) / f32::from(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::publish::Publisher;

    #[test]
    fn certificates_are_renewed_in_time_and_not_all_at_once() {
        let hours = Duration::from_hours;
        for (named, fraction, expected) in [
            (None, 0.0, hours(60)),
            (None, 1.0, hours(51)),
            (Some(hours(10)), 0.0, hours(10)),
            (Some(hours(10)), 1.0, hours(9)),
            // A root that ends soon shortens the certificates it signs.
            (Some(hours(80)), 0.0, hours(60)),
        ] {
            assert_eq!(renewal_age(hours(90), named, fraction), expected);
        }
    }

    /// The number that a file system gives a file: each writing makes another file.
    fn written(path: &Path) -> u64 {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(path).map_or(0, |m| m.ino())
    }

    #[tokio::test]
    async fn the_snapshot_is_written_at_once_and_then_not_for_each_update() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("snapshot");
        let id = "spiffe://tulle.local/svc/a";
        let bootstrap = serde_json::json!({ "identity": id });
        let bootstrap: Bootstrap = serde_json::from_value(bootstrap).unwrap();
        let control = Control {
            address: "127.0.0.1:1".into(),
            ca_fingerprint: String::new(),
            trust_bundle: None,
            service: None,
            join_token_file: None,
            service_account_token: None,
            snapshot: Some(path.clone()),
            identity_cache: None,
            host_authority: None,
            sparing: false,
        };
        let publisher = Publisher::new(bootstrap.identity.clone());
        let mut client = ControlClient::new(&bootstrap, control, publisher);
        client.save_snapshot();
        let first = written(&path);
        assert_ne!(first, 0);
        // However long this machine stands still, the last time was just now.
        let lately = Instant::now() + Duration::from_hours(1);
        client.saved = Some(lately);
        for _ in 0..100 {
            client.save_snapshot();
        }
        assert_eq!(written(&path), first);
        assert_eq!(client.save_due, Some(lately + SAVE_EVERY));
        client.save_what_is_due();
        let second = written(&path);
        assert_ne!(second, first);
        assert_eq!(client.save_due, None, "nothing is to be written");
        // The last one, when it ends.
        client.saved = Some(lately);
        client.save_snapshot();
        assert_eq!(written(&path), second);
        drop(client);
        assert_ne!(written(&path), second);
    }
    #[tokio::test]
    async fn a_deleted_workload_keeps_its_ports_for_a_while() {
        let bootstrap = serde_json::json!({ "identity": "spiffe://tulle.local/svc/a" });
        let bootstrap: Bootstrap = serde_json::from_value(bootstrap).unwrap();
        let control = serde_json::json!({ "address": "127.0.0.1:1", "service": "a-2" });
        let control: Control = serde_json::from_value(control).unwrap();
        let publisher = Publisher::new(bootstrap.identity.clone());
        let mut client = ControlClient::new(&bootstrap, control, publisher);
        let ports = |client: &ControlClient<Publisher>| client.publisher.latest().inbound.is_some();
        let told = || {
            let inbound = serde_json::json!({ "service": "a", "ports": [], "policy": {} });
            let inbound = Resource::Inbound(serde_json::from_value(inbound).unwrap());
            let told = v1::Resource {
                name: "inbound/a-2".into(),
                version: 1,
                body: tulle_api::encode_body(&inbound),
                ..Default::default()
            };
            v1::ConfigUpdate {
                resources: vec![told],
                ..Default::default()
            }
        };
        let removed = || v1::ConfigUpdate {
            removed: vec!["inbound/a-2".into()],
            ..Default::default()
        };
        // A workload that does not exist has nothing to keep.
        client.apply(removed());
        assert_eq!(client.leaving, None);
        assert_eq!(client.apply(told()).error, "");
        client.apply(removed());
        assert!(ports(&client) && client.leaving.is_some());
        client.apply(told());
        assert_eq!(client.leaving, None, "it is there again");
        client.apply(removed());
        client.leave();
        assert!(!ports(&client) && client.leaving.is_none());
    }
}

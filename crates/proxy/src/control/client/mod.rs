//! The client of the controller: its sessions follow each other, and in each of them configuration comes and
//! certificates are renewed in time.
//!
//! Runs on the main thread. The workers see only finished snapshots. When the controller is away
//! the proxy keeps working with the configuration it has. The snapshot file and the identity cache
//! let it do so even after a restart.
//!
//! A session needs a `certificate` and a connection (`connect`). `subscriptions` says what the controller is to send,
//! `updates` takes that and what it sends in advance, and tells the client's owner (`sink`), and `trust` takes new
//! roots. On a joined host `host_services` has services of the host's supervisor, and while no controller answers
//! `host_renewal` keeps the certificate valid.

mod certificate;
mod connect;
mod error;
mod files;
mod host_renewal;
mod host_services;
mod renewal;
mod sink;
mod snapshot_file;
mod subscriptions;
mod timeout;
mod trust;
mod updates;

use crate::control::backoff::{Backoff, LONGEST};
use crate::control::host::HostSocket;
use crate::control::random::fraction;
use error::ControlError;
use files::cached_identity;
use host_services::HostServices;
use renewal::{Renewal, soon};
use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use subscriptions::{anticipation, first_names};
use timeout::within;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tulle_api::v1;
use tulle_api::v1::config_client::ConfigClient;
use tulle_model::bootstrap::{Bootstrap, Control};
use tulle_model::identity::TrustDomain;
use tulle_model::resource::Resource;
use tulle_net::task;
use tulle_tls::enrol::Enrolled;

pub use crate::context::lookups::lookups;
pub use error::causes;
pub use sink::Sink;

/// Longest that updates wait for the services they refer to. A connection waits as long to learn
/// which service owns an address.
const REFERENCES: Duration = Duration::from_secs(5);
/// A session is not doubted this long.
const FRESH: Duration = Duration::from_secs(10);

/// Returns the workload or pod beside this proxy, or the name in its identity: what tells proxies of one identity apart.
pub(crate) fn instance(bootstrap: &Bootstrap) -> String {
    let control = bootstrap.control.as_ref();
    let workload = control.and_then(|c| c.service.as_deref());
    workload.unwrap_or(bootstrap.identity.name()).to_owned()
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
    /// Where that supervisor tells of services.
    services: Option<HostServices>,
    /// The controller has told of services in this session that were left to the supervisor.
    left_to_host: bool,
    /// When the snapshot file was written last.
    saved: Option<Instant>,
    /// When it is to be written next; `None`: it holds what is in force.
    save_due: Option<Instant>,
}

/// A socket of the supervisor of this host, or a warning that there is none.
fn usable<T>(socket: io::Result<T>) -> Option<T> {
    if let Err(error) = &socket {
        tracing::warn!(%error, "a socket of this host's supervisor is not usable");
    }
    socket.ok()
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
        let services = control.host_services.map(HostServices::inherited);
        let mut client = Self {
            host: host.and_then(usable),
            host_told: String::new(),
            services: services.and_then(usable),
            left_to_host: false,
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

    /// One connection to the controller.
    async fn session(
        &mut self,
        lookups: &mut mpsc::Receiver<String>,
    ) -> Result<Infallible, ControlError> {
        // The socket is not read while no controller answers.
        self.take_what_was_said().await;
        if !self.has_valid_certificate() {
            let signed = self.signing(self.proof()?)?.await?;
            self.adopt(signed);
        }
        let channel = self.connect()?.await?;
        self.take_what_was_said().await;
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
            trusts: self.trust_report(),
            anticipation: self.anticipates.clone().map(|forms| v1::Anticipation {
                unused: self.unused.iter().cloned().collect(),
                ..forms
            }),
            instance: self.instance.clone(),
            takes_patches: true,
            services_from: self.services_from().into(),
            ..Default::default()
        };
        self.more = false;
        self.left_to_host = false;
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
                    self.leave_services_to_host(&mut update);
                    let mut ack = self.apply(update);
                    let mut trusts = None;
                    if let Some(trust) = trust {
                        match self.believe(trust) {
                            Ok(renew) => {
                                trusts = self.trust_report();
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
                said = host_services::next(&mut self.services) => {
                    if let Some(request) = self.host_says(said) {
                        requests.send(request).await.map_err(|_| ControlError::Ended)?;
                    }
                    self.subscribe_backends(&requests).await?;
                    self.release();
                    self.settle();
                }
                () = task::wait_until(self.waits_since.map(|since| since + REFERENCES)) => {
                    self.wait_no_longer();
                    self.settle();
                }
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
                    let trusts = self.trust_report();
                    let request = v1::SubscribeRequest { trusts, ..Default::default() };
                    requests.send(request).await.map_err(|_| ControlError::Ended)?;
                }
            }
            if let Some(request) = self.tell_host().await {
                requests
                    .send(request)
                    .await
                    .map_err(|_| ControlError::Ended)?;
            }
            if self.has_missed_services() {
                return Err(ControlError::Ended);
            }
        }
    }
}

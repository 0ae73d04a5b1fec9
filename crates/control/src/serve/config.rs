//! The Config service: one stream per proxy, fed by its [`Session`] whenever something changed.

use super::peer::{self, Member};
use super::session::{AckResult, Session, Violation, bounded};
use crate::hub::{Forms, Stream};
use crate::memory_limit;
use crate::reports::{REPORT_SECONDS, plain};
use crate::state::MeshState;
use crate::state::rotation::{bounded_report, is_settled, trust};
use std::collections::BTreeSet;
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Request, Response, Status, Streaming};
use tulle_api::v1;

/// When the controller ends its proxies come back to another, or to the next one, so many a second: a handshake
/// takes it a few tenths of a millisecond.
const COMEBACKS_A_SECOND: usize = 1000;
/// Longest time that this may take: until then proxies hear of nothing.
const MOST_SPREAD: u64 = 5000;
/// How often a proxy's host may begin to tell it of services within that time.
const MOST_SWITCHES: u32 = 20;
const SWITCHES_WITHIN: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub(crate) struct ConfigService {
    state: Arc<MeshState>,
    shutdown: watch::Receiver<bool>,
    /// The streams that were open when the controller began to end.
    at_shutdown: Arc<OnceLock<usize>>,
}

impl ConfigService {
    pub(crate) fn new(state: &Arc<MeshState>, shutdown: &watch::Receiver<bool>) -> Self {
        Self {
            state: state.clone(),
            shutdown: shutdown.clone(),
            at_shutdown: Arc::default(),
        }
    }
}

/// Says that the controller ends, and within which time its proxies are to come back.
fn farewell(streams: usize) -> Status {
    let millis = streams.saturating_mul(1000) / COMEBACKS_A_SECOND;
    let millis = u64::try_from(millis).unwrap_or(MOST_SPREAD);
    let mut metadata = MetadataMap::new();
    let spread = MetadataValue::from(millis.min(MOST_SPREAD));
    metadata.insert(tulle_api::RECONNECT_WITHIN, spread);
    Status::with_metadata(
        Code::Unavailable,
        "the controller is shutting down",
        metadata,
    )
}

/// Updates on their way. The channel has room for 32 at once, so they are held by their address.
type Updates = Pin<Box<dyn tokio_stream::Stream<Item = Result<v1::ConfigUpdate, Status>> + Send>>;

#[tonic::async_trait]
impl v1::config_server::Config for ConfigService {
    type SubscribeStream = Updates;

    async fn subscribe(
        &self,
        request: Request<Streaming<v1::SubscribeRequest>>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let member = peer::proxy_or_host_of(&request, "configuration")?;
        let host = member.node();
        if let Some(host) = host.filter(|host| !self.state.is_node(host)) {
            return Err(super::objects::removed(host));
        }
        let joined = self.state.hub.join(member.id.clone(), member.not_after);
        let stream = joined.ok_or_else(|| {
            Status::resource_exhausted("too many configuration streams are open; try again later")
        })?;
        tracing::debug!(identity = %member.id, "connected");
        // One update in flight and at most one final error: sending never waits.
        let (sender, receiver) = mpsc::channel(2);
        tokio::spawn(serve(
            member,
            stream,
            request.into_inner(),
            sender,
            self.clone(),
        ));
        let updates = ReceiverStream::new(receiver);
        Ok(Response::new(Box::pin(updates.map(|u| u.map(|u| *u)))))
    }
}

/// Since when a proxy waits, for collected changes and for those it was sent.
#[derive(Default)]
struct Since {
    collected: Option<Instant>,
    in_flight: Option<Instant>,
}

impl Since {
    /// A message of the proxy: perhaps it wants more.
    fn heard(&mut self, now: Instant) {
        self.collected.get_or_insert(now);
    }

    fn changed(&mut self, at: Option<Instant>) {
        self.collected = match (self.collected, at) {
            (Some(known), Some(at)) => Some(known.min(at)),
            (known, at) => known.or(at),
        };
    }

    /// Every collected change is on its way, waits for the answer to an update, or is known already.
    fn sent(&mut self, is: bool) {
        if is {
            self.in_flight = self.collected.take();
        } else if self.in_flight.is_none() {
            self.collected = None;
        }
    }

    fn answered(&mut self) -> Option<Instant> {
        self.in_flight.take()
    }
}

/// How often a proxy has said lately that its host tells it of services.
#[derive(Default)]
struct Switches {
    since: Option<Instant>,
    count: u32,
}

impl Switches {
    /// Counts one; `false`: they are too many.
    fn take(&mut self, now: Instant) -> bool {
        let is_old = |since: Instant| now.duration_since(since) > SWITCHES_WITHIN;
        if self.since.is_none_or(is_old) {
            *self = Self {
                since: Some(now),
                count: 0,
            };
        }
        self.count += 1;
        self.count <= MOST_SWITCHES
    }
}

async fn serve(
    member: Member,
    stream: Arc<Stream>,
    mut incoming: Streaming<v1::SubscribeRequest>,
    sender: mpsc::Sender<Result<Box<v1::ConfigUpdate>, Status>>,
    service: ConfigService,
) {
    let ConfigService {
        state,
        mut shutdown,
        at_shutdown,
    } = service;
    let mut session = Session::new(stream.identity.clone());
    let mut since = Since::default();
    let mut switches = Switches::default();
    let mut is_heard = !stream.is_of_host();
    let mut expired = pin!(member.expired());
    let mut authorities = state.authorities();
    let mut terms = state.certificate_terms();
    session.certificates(*terms.borrow_and_update());
    if state.reports.are_wanted() && !stream.is_of_host() {
        session.want_reports(REPORT_SECONDS);
    }
    let end = loop {
        tokio::select! {
            message = incoming.message() => match message {
                Ok(Some(message)) => {
                    is_heard = true;
                    since.heard(Instant::now());
                    if let Err(status) = handle(&state, &stream, &mut session, (&mut since, &mut switches), message) {
                        break Some(status);
                    }
                }
                Ok(None) | Err(_) => break None,
            },
            () = stream.wake.notified() => {
                let changed = stream.take_changed();
                since.changed(changed.since);
                let again = changed.likely || session.anticipates(&changed.names);
                session.changed(changed.names);
                if again {
                    anticipate(&state, &stream, &mut session);
                }
            }
            // It fails only when the state ends, and everything else with it.
            Ok(()) = authorities.changed() => {
                let authority = authorities.borrow_and_update().clone();
                let report = stream.status().trusts;
                if report.is_some() && !is_settled(&authority, report.as_ref()) {
                    session.trust(trust(&authority));
                }
            }
            Ok(()) = terms.changed() => session.certificates(*terms.borrow_and_update()),
            () = sender.closed() => break None,
            status = &mut expired => break Some(status),
            () = stream.displaced.notified() => {
                break Some(Status::resource_exhausted(format!(
                    "too many configuration streams are open, and {} has the most: one ends for another identity",
                    stream.identity
                )));
            }
            _ = shutdown.wait_for(|down| *down) => {
                // Streams that see it later find fewer.
                let streams = at_shutdown.get_or_init(|| state.hub.streams().len());
                break Some(farewell(*streams));
            }
        }
        // A host takes the first update for all that has changed for it.
        let update = match is_heard {
            true => session.next(|name| state.hub.get(name)),
            false => None,
        };
        state.hub.unwatch(&stream, &session.take_dropped());
        since.sent(update.is_some());
        if let Some(update) = update {
            stream.update_status(|s| s.sent = update.nonce);
            state.metrics.pushes.add(1);
            if sender.send(Ok(Box::new(update))).await.is_err() {
                break None;
            }
        }
    };
    if !stream.is_of_host() && !is_settled(&state.authority(), stream.status().trusts.as_ref()) {
        state.lost();
    }
    state.hub.leave(&stream, session.subscriptions());
    tracing::debug!(identity = %stream.identity, "disconnected");
    tell(&state, &stream, "gone");
    if let Some(status) = end {
        tracing::info!(identity = %stream.identity, reason = status.message(), "stream ended");
        // The proxy may be gone already.
        let _ = sender.try_send(Err(status));
    }
}

/// Notes what happened to a proxy, for those who observe the mesh.
fn tell(state: &MeshState, stream: &Stream, verb: &'static str) {
    if stream.is_of_host() {
        return;
    }
    let status = stream.status();
    let name = match status.instance.is_empty() {
        true => stream.identity.name(),
        false => &status.instance,
    };
    let reports = &state.reports;
    reports.happened("proxy", name.to_owned(), verb, stream.identity.as_str());
}

fn handle(
    state: &MeshState,
    stream: &Stream,
    session: &mut Session,
    (since, switches): (&mut Since, &mut Switches),
    message: v1::SubscribeRequest,
) -> Result<(), Status> {
    if let Some(mut ack) = message.ack {
        let faults = bounded(std::mem::take(&mut ack.faults));
        if !faults.is_empty() && stream.status().faults != faults {
            tracing::warn!(identity = %stream.identity, faults, "a part of an update is not in force");
        }
        stream.update_status(|s| s.faults = faults);
        match session.acknowledged(ack) {
            AckResult::Applied(nonce) => {
                if let Some(since) = since.answered() {
                    state.metrics.push_seconds.observe(since.elapsed());
                }
                stream.update_status(|s| {
                    s.acked = nonce;
                    s.last_error.clear();
                });
            }
            AckResult::Refused(nonce, error) => {
                since.answered();
                state.metrics.nacks.add(1);
                tracing::warn!(identity = %stream.identity, nonce, error, "update refused");
                tell(state, stream, "refused");
                stream.update_status(|s| s.last_error = error);
            }
            AckResult::Stale => {}
        }
    }
    if !message.instance.is_empty() && stream.status().instance.is_empty() {
        stream.update_status(|s| s.instance = plain(&message.instance));
        tell(state, stream, "connected");
    }
    if message.takes_patches {
        session.send_patches();
    }
    if let Some(report) = message.trusts.map(bounded_report) {
        let authority = state.authority();
        // A report that is not as it should be is answered once; the next one comes when it is.
        let known = stream.status().trusts;
        if !is_settled(&authority, Some(&report)) && known.as_ref() != Some(&report) {
            session.trust(trust(&authority));
        }
        stream.update_status(|s| s.trusts = Some(report));
    }
    let gone = session.unsubscribe(&message.unsubscribe);
    state.hub.unwatch(stream, &gone);
    if !message.subscribe.is_empty() {
        let refusal = memory_limit::refusal();
        let may = session.may_add(message.subscribe.len(), refusal.is_some());
        if let (false, Some(why)) = (may, refusal) {
            return Err(Status::resource_exhausted(why));
        }
    }
    let anticipation = message.anticipation.as_ref();
    let unused = anticipation.iter().flat_map(|a| &a.unused);
    let unused: BTreeSet<&str> = unused.map(String::as_str).collect();
    let used = message.subscribe.iter().map(String::as_str);
    let used = used.filter(|name| !unused.contains(name));
    if !stream.is_of_host() {
        state.hub.used(stream, used);
    }
    let lookup = |name: &str| state.hub.get(name);
    let new = session.subscribe(message.subscribe, &message.known, &unused, lookup);
    let new = new.map_err(|violation| match violation {
        Violation::BadName(name) => Status::invalid_argument(format!(
            "{name:?} is no resource: use mesh, catalog, egress, or service/, address/, host/, inbound/ or gateway/ with a name"
        )),
        Violation::NoService(name) => Status::permission_denied(format!(
            "{} may not read {name}: a host reads services alone",
            stream.identity
        )),
        Violation::TooMany => Status::resource_exhausted(format!(
            "a proxy may subscribe to {} resources",
            super::session::MAX_SUBSCRIPTIONS
        )),
        Violation::NotYours(name) => Status::permission_denied(format!(
            "{} may not read {name}: it belongs to another identity",
            stream.identity
        )),
    })?;
    // Registered before the session looks the names up, so that no change falls in between.
    state.hub.watch(stream, &new);
    match v1::ServicesFrom::try_from(message.services_from) {
        Ok(v1::ServicesFrom::Host) => {
            // Taking it back looks at all names of the stream, for a message of two bytes.
            if !switches.take(Instant::now()) {
                return Err(Status::resource_exhausted(
                    "this proxy says too often who tells it of services: connect again",
                ));
            }
            session.services_from_host();
        }
        Ok(v1::ServicesFrom::Controller) => session.services_from_here(&message.known),
        Ok(v1::ServicesFrom::Unchanged) | Err(_) => {}
    }
    if let Some(anticipation) = anticipation.filter(|_| !stream.is_of_host()) {
        let forms = Forms {
            addresses: anticipation.addresses,
            hosts: anticipation.hosts,
        };
        state.hub.anticipate(stream, forms, &unused);
        anticipate(state, stream, session);
    }
    stream.update_status(|s| s.subscriptions = session.subscription_count());
    Ok(())
}

/// Tells the proxy of the services that its application is likely to call.
fn anticipate(state: &MeshState, stream: &Stream, session: &mut Session) {
    if let Some(likely) = state.hub.likely(stream) {
        let new = session.anticipate(likely);
        state.hub.watch(stream, &new);
        stream.update_status(|s| s.subscriptions = session.subscription_count());
    }
}

//! Services of a proxy of a joined host, as the supervisor tells them over a socket that the proxy has inherited: while
//! the supervisor hears of changes they come from there, and else from the controller.
//!
//! Both are subscribed to what the proxy wants; the controller is told who tells.

use super::{ControlClient, Sink};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout, timeout_at};
use tulle_api::v1::host_services::Say;
use tulle_api::{is_service, v1};
use tulle_net::messages::{self, Incoming, Outgoing};
use tulle_net::passing;

/// Longest message, as of the controller.
const MAX_BYTES: usize = 64 << 20;

/// Longest silence of the supervisor, which says every ten seconds that it is alive. One that hangs would otherwise keep
/// changes from this proxy; the socket is given up then.
const SILENCE: Duration = Duration::from_secs(30);

/// Longest wait until it reads; nothing else is done meanwhile.
const PATIENCE: Duration = Duration::from_secs(2);

/// The proxy's end of the socket.
pub(super) struct HostServices {
    incoming: Incoming,
    outgoing: Outgoing,
    /// The supervisor hears of changes.
    is_connected: bool,
    /// When it said something last.
    heard: Instant,
    /// The next message to it.
    request: v1::SubscribeRequest,
    /// Why its last update was refused; empty: it was not.
    refusal: String,
}

impl HostServices {
    /// Takes the socket that this process inherited under a number.
    pub(super) fn inherited(number: u16) -> io::Result<Self> {
        let socket = passing::inherited(number)?;
        socket.set_nonblocking(true)?;
        Ok(Self::over(UnixStream::from_std(socket)?))
    }

    fn over(socket: UnixStream) -> Self {
        let (incoming, outgoing) = messages::over(socket, MAX_BYTES);
        Self {
            incoming,
            outgoing,
            is_connected: false,
            heard: Instant::now(),
            request: v1::SubscribeRequest::default(),
            refusal: String::new(),
        }
    }

    async fn next(&mut self) -> Option<Say> {
        loop {
            let message = match timeout_at(self.heard + SILENCE, self.incoming.next()).await {
                Ok(message) => message,
                // This process may have been stopped as well: what was said meanwhile counts.
                Err(_) => at_once(self.incoming.next()).await?,
            };
            let message = message.ok()??;
            self.heard = Instant::now();
            // A supervisor of a later version may say more.
            match v1::HostServices::decode(message).ok()?.say {
                None | Some(Say::Alive(_)) => {}
                said => return said,
            }
        }
    }

    /// Says what there is to say; `false`: it is gone, or does not read.
    async fn flush(&mut self) -> bool {
        if self.request == v1::SubscribeRequest::default() {
            return true;
        }
        let request = std::mem::take(&mut self.request).encode_to_vec();
        let sent = timeout(PATIENCE, self.outgoing.send(request));
        matches!(sent.await, Ok(Ok(())))
    }
}

/// Asks the kernel, and returns what is ready then.
async fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        done = future => Some(done),
        () = tokio::task::yield_now() => None,
    }
}

/// Waits for what the supervisor says; `None`: it says nothing any more.
pub(super) async fn next(host: &mut Option<HostServices>) -> Option<Say> {
    match host {
        Some(host) => host.next().await,
        None => std::future::pending().await,
    }
}

impl<S: Sink> ControlClient<S> {
    /// The supervisor, while services come from it.
    fn host_in_charge(&mut self) -> Option<&mut HostServices> {
        self.services.as_mut().filter(|host| host.is_connected)
    }

    /// Names who tells this proxy of services.
    pub(super) fn services_from(&mut self) -> v1::ServicesFrom {
        match self.host_in_charge() {
            Some(_) => v1::ServicesFrom::Host,
            None => v1::ServicesFrom::Controller,
        }
    }

    /// Whether the controller is to be told anew what is held: it has told of services that were left to the supervisor, which
    /// tells of them no longer. One of an earlier version knows nothing of that.
    pub(super) fn has_missed_services(&mut self) -> bool {
        self.left_to_host && self.host_in_charge().is_none()
    }

    /// Takes what the supervisor has said already.
    pub(super) async fn take_what_was_said(&mut self) {
        while let Some(said) = at_once(next(&mut self.services)).await {
            self.host_says(said);
        }
        // The first request of a session says who tells of services.
        self.tell_host().await;
    }

    /// Takes what the supervisor says; returns what the controller is to be told of it.
    pub(super) fn host_says(&mut self, said: Option<Say>) -> Option<v1::SubscribeRequest> {
        let was = self.services_from();
        match said {
            Some(Say::Update(update)) => return self.take_of_host(update),
            Some(Say::Connected(is)) => self.set_host_connected(is),
            Some(Say::Alive(_)) => {}
            None => {
                tracing::warn!(
                    "this host's supervisor tells of services no longer: the controller does"
                );
                self.services = None;
            }
        }
        let is = self.services_from();
        let from_controller = is == v1::ServicesFrom::Controller;
        (is != was).then(|| v1::SubscribeRequest {
            services_from: is.into(),
            known: if from_controller {
                self.known_services()
            } else {
                Default::default()
            },
            ..Default::default()
        })
    }

    fn set_host_connected(&mut self, is: bool) {
        let (known, subscribe) = match is {
            true => {
                let names = self.names.iter().filter(|name| is_service(name));
                (self.known_services(), names.cloned().collect())
            }
            false => Default::default(),
        };
        if let Some(host) = &mut self.services {
            host.is_connected = is;
            host.refusal.clear();
            host.request = v1::SubscribeRequest {
                subscribe,
                known,
                anew: is,
                ..Default::default()
            };
        }
    }

    /// The services that are held, with their versions.
    fn known_services(&self) -> BTreeMap<String, u64> {
        let services = self.held.iter().filter(|(name, _)| is_service(name));
        services
            .map(|(name, (version, _))| (name.clone(), *version))
            .collect()
    }

    /// Takes an update of the supervisor; returns what the controller is to know of that.
    fn take_of_host(&mut self, mut update: v1::ConfigUpdate) -> Option<v1::SubscribeRequest> {
        // Others were on their way when the name was forgotten, or the controller took over.
        let is_wanted = |name: &String| is_service(name) && self.names.contains(name);
        update.resources.retain(|sent| is_wanted(&sent.name));
        update.removed.retain(is_wanted);
        update.more = self.more;
        self.host_in_charge()?;
        let before = self.all_faults();
        let ack = self.apply(update);
        let host = self.services.as_mut()?;
        host.refusal.clone_from(&ack.error);
        host.request.ack = Some(ack);
        let faults = self.all_faults();
        (faults != before).then(|| v1::SubscribeRequest {
            // It answers no update of the controller.
            ack: Some(v1::Ack {
                faults,
                ..Default::default()
            }),
            ..Default::default()
        })
    }

    /// Leaves out of the controller's update what the supervisor tells. What it has was on its way when that took over, or is the
    /// name of a service that the application is likely to call: of both the supervisor is asked.
    pub(super) fn leave_services_to_host(&mut self, update: &mut v1::ConfigUpdate) {
        let is_in_charge = self.host_in_charge().is_some();
        let is_hosts =
            |sent: &v1::Resource| sent.by_host || (is_in_charge && is_service(&sent.name));
        let sent = std::mem::take(&mut update.resources).into_iter();
        let (hosts, others): (Vec<_>, Vec<_>) = sent.partition(is_hosts);
        update.resources = others;
        self.left_to_host |= hosts.iter().any(|sent| !sent.by_host);
        self.anticipate(hosts);
        if is_in_charge {
            let before = update.removed.len();
            update.removed.retain(|name| !is_service(name));
            self.left_to_host |= update.removed.len() < before;
        }
    }

    fn anticipate(&mut self, named: Vec<v1::Resource>) {
        let before = self.unused.len();
        for v1::Resource { name, .. } in named {
            if self.names.insert(name.clone()) {
                self.unused.insert(name.clone());
                self.want_of_host([&name]);
            }
            if self.held.contains_key(&name) {
                continue;
            }
            if let Some(unanswered) = &mut self.unanswered {
                unanswered.insert(name.clone());
            }
            self.awaited.insert(name);
            self.waits_since.get_or_insert_with(Instant::now);
        }
        if self.unused.len() != before {
            self.publisher.set_unused(&self.unused);
        }
    }

    /// Asks the supervisor for services among these names, if they come from it.
    pub(super) fn want_of_host<'a>(&mut self, names: impl IntoIterator<Item = &'a String>) {
        if let Some(host) = self.host_in_charge() {
            let services = names.into_iter().filter(|name| is_service(name));
            host.request.subscribe.extend(services.cloned());
        }
    }

    /// The supervisor need not tell of these names any longer.
    pub(super) fn want_no_longer_of_host(&mut self, names: &[String]) {
        if let Some(host) = self.host_in_charge() {
            let gone: BTreeSet<&String> = names.iter().collect();
            host.request.subscribe.retain(|name| !gone.contains(name));
            let services = names.iter().filter(|name| is_service(name));
            host.request.unsubscribe.extend(services.cloned());
        }
    }

    /// Tells the supervisor what this proxy wants of it, and what became of an update; returns what the controller is to be
    /// told of that.
    pub(super) async fn tell_host(&mut self) -> Option<v1::SubscribeRequest> {
        let host = self.services.as_mut()?;
        match host.flush().await {
            true => None,
            false => self.host_says(None),
        }
    }

    /// Describes all that the proxy was told and does not carry out, and why.
    pub(super) fn all_faults(&self) -> String {
        let faults = self.publisher.faults();
        match self.services.as_ref().map(|host| host.refusal.as_str()) {
            None | Some("") => faults,
            Some(refusal) if faults.is_empty() => refusal.to_owned(),
            Some(refusal) => format!("{faults}; {refusal}"),
        }
    }
}

#[cfg(test)]
mod tests;

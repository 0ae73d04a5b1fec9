//! One proxy of the host, over the socket that it has inherited.

use super::HostServices;
use crate::hub::Stream;
use crate::serve::session::{AckResult, Session, check_name};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};
use tulle_api::v1::host_services::Say;
use tulle_api::{is_service, v1};
use tulle_model::identity::SpiffeId;
use tulle_net::messages::{self, Outgoing};

/// Longest message of a proxy: all names that it may want, with versions.
const MAX_BYTES: usize = 4 * 1024 * 1024;
/// Messages that wait for a proxy to read them: one update, and whether the controller and this host were there since.
/// One that does not read so many is left to the controller.
const MOST_UNREAD: usize = 16;
/// Most names of a proxy, and most bytes of them: one cannot have all that there is room for.
const MOST_NAMES: usize = 10_000;
const MOST_BYTES: usize = 256 * 1024;
/// Between signs of life, without which a proxy looks to the controller: whatever stops this process stops no news.
const BEAT: Duration = Duration::from_secs(10);

/// The names that a proxy wants and was told; nothing is left of them when this is dropped.
struct Told<'a> {
    services: &'a HostServices,
    stream: Arc<Stream>,
    session: Session,
}

impl Drop for Told<'_> {
    fn drop(&mut self) {
        let names = self.begin_again();
        self.services.want_no_longer(self.stream.id(), &names);
        self.services.hub.leave(&self.stream, std::iter::empty());
    }
}

impl Told<'_> {
    /// Forgets what the proxy wants, and returns it.
    fn begin_again(&mut self) -> Vec<Arc<str>> {
        let names = self.session.begin_again();
        self.services.hub.unwatch(&self.stream, &names);
        names
    }

    /// Takes what the proxy says; `false`: it asks for what it may not have here.
    fn heard(&mut self, mut request: v1::SubscribeRequest) -> bool {
        if request.anew {
            // It may have been written before what is in flight arrived, even if that is answered here.
            for name in self.session.in_flight() {
                request.known.remove(&**name);
            }
        }
        if let Some(ack) = request.ack
            && let AckResult::Refused(_, error) = self.session.acknowledged(ack)
        {
            tracing::warn!(identity = %self.stream.identity, error, "a sidecar refuses an update of services");
        }
        // They are wanted until what is wanted now is known, so that nothing is given up in between.
        let mut before = match request.anew {
            true => self.begin_again(),
            false => Vec::new(),
        };
        let gone = self.session.unsubscribe(&request.unsubscribe);
        self.services.hub.unwatch(&self.stream, &gone);
        self.services.want_no_longer(self.stream.id(), &gone);
        let fits = self.subscribe(request.subscribe, &request.known);
        before.retain(|name| !self.session.has(name));
        self.services.want_no_longer(self.stream.id(), &before);
        fits
    }

    fn subscribe(&mut self, names: Vec<String>, known: &BTreeMap<String, u64>) -> bool {
        let told = self.session.subscriptions().map(|name| name.len());
        let bytes: usize = told.chain(names.iter().map(String::len)).sum();
        let count = self.session.subscription_count() + names.len();
        let is_good = |name: &String| is_service(name) && check_name(name).is_ok();
        if count > MOST_NAMES || bytes > MOST_BYTES || !names.iter().all(is_good) {
            return false;
        }
        let new = (self.session).subscribe(names, known, &BTreeSet::new(), |_| None);
        // The session takes more, of any form.
        let Ok(new) = new else {
            return false;
        };
        // Before they are looked up, so that no change falls in between.
        self.services.hub.watch(&self.stream, &new);
        self.services.want(self.stream.id(), &new)
    }
}

impl HostServices {
    /// Tells a proxy of services for as long as it has the other end of this socket.
    pub async fn serve(self: Arc<Self>, proxy: SpiffeId, socket: UnixStream) {
        let Some(stream) = self.hub.join(proxy.clone(), 0) else {
            return;
        };
        let mut told = Told {
            services: &self,
            session: Session::new(proxy.clone()),
            stream,
        };
        let (mut incoming, outgoing) = messages::over(socket, MAX_BYTES);
        let (say, said) = mpsc::channel(MOST_UNREAD);
        // It is read while this waits for the proxy to read, and the other way round.
        tokio::spawn(send(said, outgoing));
        let mut sessions = self.session.subscribe();
        sessions.mark_changed();
        self.attached.notify_one();
        let mut beat = interval(BEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let said = tokio::select! {
                message = incoming.next() => {
                    let Ok(Some(message)) = message else {
                        return;
                    };
                    let request = v1::SubscribeRequest::decode(message);
                    if !request.is_ok_and(|request| told.heard(request)) {
                        tracing::warn!(identity = %proxy, "a sidecar asks for what this host cannot tell it");
                        return;
                    }
                    None
                }
                () = told.stream.wake.notified() => {
                    let changed = told.stream.take_changed();
                    told.session.changed(changed.names);
                    None
                }
                // Others need its place or its room, and it looks to the controller.
                () = told.stream.displaced.notified() => return,
                // It fails only when this is gone.
                Ok(()) = sessions.changed() => {
                    let is_there = *sessions.borrow_and_update() != 0;
                    Some(Say::Connected(is_there))
                }
                // One that has something left to read needs none: while it has no controller it does not read.
                _ = beat.tick() => (say.capacity() == MOST_UNREAD).then_some(Say::Alive(true)),
            };
            let update = told.session.next(|name| self.get(name));
            for what in said.into_iter().chain(update.map(Say::Update)) {
                if say.try_send(what).is_err() {
                    return;
                }
            }
        }
    }
}

async fn send(mut said: mpsc::Receiver<Say>, mut outgoing: Outgoing) {
    while let Some(say) = said.recv().await {
        let message = v1::HostServices { say: Some(say) };
        if outgoing.send(message.encode_to_vec()).await.is_err() {
            return;
        }
    }
}

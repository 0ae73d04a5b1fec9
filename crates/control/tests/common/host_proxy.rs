//! A proxy of a joined host: its end of the socket over which the host tells it of services.

use super::HostServices;
use prost::Message;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::time::timeout;
use tulle_api::v1;
use tulle_api::v1::host_services::Say;
use tulle_model::identity::SpiffeId;
use tulle_net::messages::{self, Incoming, Outgoing};

const PATIENCE: Duration = Duration::from_secs(20);

pub(super) struct Proxy {
    pub(super) incoming: Incoming,
    pub(super) outgoing: Outgoing,
}

impl Proxy {
    pub(super) fn attach(services: &Arc<HostServices>, name: &str) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let id = SpiffeId::parse(&format!("spiffe://tulle.local/svc/{name}")).unwrap();
        tokio::spawn(services.clone().serve(id, ours));
        let (incoming, outgoing) = messages::over(theirs, 1 << 20);
        Self { incoming, outgoing }
    }

    /// The next message, but that the host is alive; `None`: the host has hung up.
    pub(super) async fn next(&mut self) -> Option<Say> {
        loop {
            let message = timeout(PATIENCE, self.incoming.next()).await.unwrap();
            let message = message.unwrap()?;
            let say = v1::HostServices::decode(message).unwrap().say;
            if say != Some(Say::Alive(true)) {
                return say;
            }
        }
    }

    /// The next update, which it takes.
    pub(super) async fn update(&mut self) -> v1::ConfigUpdate {
        let update = match self.next().await {
            Some(Say::Update(update)) => update,
            other => panic!("{other:?}"),
        };
        self.say(v1::SubscribeRequest {
            ack: Some(v1::Ack {
                nonce: update.nonce,
                ..Default::default()
            }),
            ..Default::default()
        })
        .await;
        update
    }

    pub(super) async fn say(&mut self, request: v1::SubscribeRequest) {
        self.outgoing.send(request.encode_to_vec()).await.unwrap();
    }

    /// Asks for these names; `known` says which versions it holds.
    pub(super) async fn subscribe(&mut self, names: &[&str], known: &[(&str, u64)]) {
        let known = known.iter().map(|(name, v)| ((*name).to_owned(), *v));
        self.say(v1::SubscribeRequest {
            subscribe: names.iter().map(ToString::to_string).collect(),
            known: known.collect(),
            ..Default::default()
        })
        .await;
    }
}

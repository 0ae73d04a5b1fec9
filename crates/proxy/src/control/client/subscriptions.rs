//! Subscriptions: names that a proxy asks for from the beginning, and those that its application and routes add.

use super::error::ControlError;
use super::{ControlClient, Sink};
use std::collections::BTreeSet;
use tokio::sync::mpsc;
use tulle_api::v1;
use tulle_model::bootstrap::{Bootstrap, Control, Listener, ListenerKind};

/// Most names a proxy subscribes to; an application that connects to ever new addresses must not
/// fill our memory.
const MAX_NAMES: usize = 10_000;

/// Returns the names this proxy needs from the beginning.
pub(super) fn first_names(bootstrap: &Bootstrap, control: &Control) -> BTreeSet<String> {
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
pub(super) fn anticipation(bootstrap: &Bootstrap) -> Option<v1::Anticipation> {
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

impl<S: Sink> ControlClient<S> {
    pub(super) async fn subscribe(
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
        self.want_of_host(&new);
        let request = v1::SubscribeRequest {
            subscribe: new,
            ..Default::default()
        };
        requests
            .send(request)
            .await
            .map_err(|_| ControlError::Ended)
    }

    /// Subscribes to the services that routes and addresses refer to.
    pub(super) async fn subscribe_backends(
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
}

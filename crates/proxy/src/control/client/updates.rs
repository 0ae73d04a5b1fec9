//! Updates: how resources are decoded and taken or refused, and when they are put in force.

use super::{ControlClient, Sink};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;
use tulle_api::v1;
use tulle_model::resource::Resource;

/// How long the ports of a deleted workload still serve callers that have not heard of it: as long as requests may take to end.
const LEAVING: Duration = Duration::from_secs(5);

impl<S: Sink> ControlClient<S> {
    pub(super) fn apply(&mut self, update: v1::ConfigUpdate) -> v1::Ack {
        let mut decoded = Vec::new();
        let mut errors = Vec::new();
        // A refused resource counts as an answer, too.
        let answered = update.resources.iter().map(|r| &r.name);
        for name in answered.chain(&update.removed) {
            self.awaited.remove(name);
            // A service that nobody has asked for keeps no proxy from being ready, whatever is wrong with it.
            if let Some(unanswered) = &mut self.unanswered
                && self.unused.contains(name)
            {
                unanswered.remove(name);
            }
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
            faults: self.all_faults(),
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
            self.awaited.remove(name);
            if let Some(unanswered) = &mut self.unanswered {
                unanswered.remove(name);
            }
        }
        self.want_no_longer_of_host(&forgotten);
        self.publisher.forget(&forgotten);
        self.publisher.set_unused(&self.unused);
        self.waits_since.get_or_insert_with(Instant::now);
    }

    /// Notes that the configuration is in force, except for the parts with faults.
    pub(super) fn note_faults(&mut self) {
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

    /// Reports that everything asked for at the start is answered. Backends of routes are asked for
    /// when the routes are known; requests before that answer would be refused as unknown.
    pub(super) fn settle(&mut self) {
        if !self.more && self.unanswered.as_ref().is_some_and(BTreeSet::is_empty) {
            self.unanswered = None;
            self.publisher.settled();
        }
    }

    /// Closes the ports of a workload that was deleted.
    pub(super) fn leave(&mut self) {
        if let Some((name, _)) = self.leaving.take() {
            self.publisher.update(&[], &[name]);
            self.waits_since.get_or_insert_with(Instant::now);
            self.release();
        }
    }

    /// Puts updates in force, together with the services they refer to.
    pub(super) fn release(&mut self) {
        // The update that follows at once may bring the services this one refers to.
        if !self.more && self.awaited.is_empty() && self.waits_since.take().is_some() {
            self.publisher.release();
            self.save_snapshot();
        }
    }

    pub(super) fn wait_no_longer(&mut self) {
        if !self.awaited.is_empty() {
            let services = &self.awaited;
            tracing::warn!(?services, "the controller has not sent these services");
        }
        self.awaited.clear();
        if let Some(unanswered) = &mut self.unanswered {
            // These were not asked for.
            unanswered.retain(|name| !self.unused.contains(name));
        }
        self.more = false;
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::publish::Publisher;
    use tulle_model::bootstrap::{Bootstrap, Control};

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

//! The snapshot file: the resources in force last, with which the proxy begins after a restart.

use super::files::{read_json, replace};
use super::{ControlClient, Sink};
use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;
use tokio::time::Instant;
use tulle_model::resource::Resource;

/// How often the snapshot file is written at most.
const SAVE_EVERY: Duration = Duration::from_millis(250);

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

impl<S: Sink> ControlClient<S> {
    pub(super) fn load_snapshot(&mut self) {
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
    pub(super) fn save_snapshot(&mut self) {
        let now = Instant::now();
        let due = self.saved.map_or(now, |saved| saved + SAVE_EVERY);
        let due = *self.save_due.get_or_insert(due);
        if due <= now {
            self.save_what_is_due();
        }
    }

    pub(super) fn save_what_is_due(&mut self) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::publish::Publisher;
    use std::path::Path;
    use tulle_model::bootstrap::{Bootstrap, Control};

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
            host_services: None,
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
}

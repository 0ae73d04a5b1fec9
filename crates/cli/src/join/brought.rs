//! The workloads that this host has brought to its mesh, as it brought them.
//!
//! The controller is told of a workload when its manifest is new or has changed, and not again each time the host comes
//! back: what was done to it there meanwhile holds. A workload that was deleted there stays deleted. A host that leaves in
//! order takes its workloads along, and brings them anew.

use crate::client::{Objects, is_away};
use crate::failure::{OrFail, Result};
use crate::new_file::write_durably;
use crate::output::progress;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::sleep;
use tonic::Status;
use tulle_api::v1::{ApplyRequest, DeleteRequest, ListRequest, Object};

/// Between tries to bring what is new to a controller that was away.
const BRING_AGAIN: Duration = Duration::from_secs(2);
/// The same, where that has answered and did not take it.
const BRING_REFUSED: Duration = Duration::from_secs(30);
/// The controller's answer to workloads that it does not take.
pub(super) const REFUSED: &str = "the controller refused the workloads";

/// Hashes of the objects, by kind and name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Brought {
    file: PathBuf,
    hashes: BTreeMap<String, u64>,
}

fn key(object: &Object) -> String {
    format!("{}/{}", object.kind, object.name)
}

fn hash(object: &Object) -> u64 {
    tulle_api::version(object.json.as_bytes(), &[])
}

impl Brought {
    /// Reads what was brought from here. A host that joins for the first time has brought nothing.
    pub(super) fn read(file: PathBuf, joins: bool) -> Result<Self> {
        let what = || format!("cannot read what this host has brought, {}", file.display());
        let hashes = match std::fs::read(&file) {
            _ if joins => BTreeMap::new(),
            Ok(text) => serde_json::from_slice(&text).or_fail(what).map_err(|f| {
                f.fix("remove the file: the workloads are applied as their manifests say")
            })?,
            Err(e) if e.kind() == ErrorKind::NotFound => BTreeMap::new(),
            Err(e) => return Err(e).or_fail(what),
        };
        Ok(Self { file, hashes })
    }

    /// Divides objects into those that are new or changed, and those that the controller knows.
    pub(super) fn divide(&self, objects: &[Object]) -> (Vec<Object>, Vec<Object>) {
        let is_known = |o: &&Object| self.hashes.get(&key(o)) == Some(&hash(o));
        let (known, new): (Vec<_>, Vec<_>) = objects.iter().partition(is_known);
        let owned = |objects: Vec<&Object>| objects.into_iter().cloned().collect();
        (owned(new), owned(known))
    }

    /// Notes that the controller knows these objects and no others.
    pub(super) fn keep(&mut self, objects: &[Object]) {
        self.hashes = objects.iter().map(|o| (key(o), hash(o))).collect();
        if let Err(failure) = self.write() {
            tracing::warn!("{failure}");
        }
    }

    /// Notes that the controller no longer has this object of this host.
    pub(super) fn forget(&mut self, object: &Object) {
        if self.hashes.remove(&key(object)).is_some()
            && let Err(failure) = self.write()
        {
            tracing::warn!("{failure}");
        }
    }

    fn write(&self) -> Result<()> {
        let what = || {
            format!(
                "cannot write what this host has brought, {}",
                self.file.display()
            )
        };
        let text = serde_json::to_vec(&self.hashes).or_fail(what)?;
        write_durably(&self.file, &text).or_fail(what)
    }
}

/// Objects as they were known, with those that were not. One that has changed stays what it was: the configuration of
/// its sidecar is of that.
pub(super) fn together(mut known: Vec<Object>, new: &[Object]) -> Vec<Object> {
    let is_known = |new: &&Object| known.iter().any(|known| key(known) == key(new));
    let added: Vec<Object> = new.iter().filter(|new| !is_known(new)).cloned().collect();
    known.extend(added);
    known
}

/// Brings workloads to the controller.
pub(super) async fn bring(
    mut client: Objects,
    objects: Vec<Object>,
) -> std::result::Result<(), Status> {
    if objects.is_empty() {
        return Ok(());
    }
    let request = ApplyRequest {
        objects,
        dry_run: false,
    };
    client.apply(request).await.map(drop)
}

/// Brings what is new to a controller that is away, and ends when that has answered. What it did not take is tried again.
pub(super) async fn bring_later(
    client: Objects,
    new: Vec<Object>,
    all: Vec<Object>,
    mut brought: Brought,
) {
    loop {
        match bring(client.clone(), new.clone()).await {
            Ok(()) => return brought.keep(&all),
            Err(status) if is_away(&status) => sleep(BRING_AGAIN).await,
            Err(status) => {
                tracing::error!(%status, "{REFUSED}");
                break;
            }
        }
    }
    tokio::task::spawn_local(async move {
        loop {
            sleep(BRING_REFUSED).await;
            match bring(client.clone(), new.clone()).await {
                Ok(()) => return brought.keep(&all),
                Err(status) => tracing::debug!(%status, "{REFUSED}"),
            }
        }
    });
}

/// Takes this host's workloads along; whether the controller knows that.
pub(super) async fn leave(mut client: Objects, file: PathBuf, objects: &[Object]) -> bool {
    let mut brought = match Brought::read(file, false) {
        Ok(brought) => brought,
        Err(failure) => {
            tracing::warn!("{failure}");
            return false;
        }
    };
    let mut all = true;
    for object in objects {
        let request = DeleteRequest {
            kind: object.kind.clone(),
            name: object.name.clone(),
        };
        match client.delete(request).await {
            Ok(_) => brought.forget(object),
            Err(status) if is_away(&status) => {
                tracing::warn!(%status, "the controller is away; it keeps this host's workloads");
                all = false;
                break;
            }
            // It may have been deleted there before.
            Err(status) => tracing::warn!(%status, "cannot remove a stored workload"),
        }
    }
    all
}

/// Says which of the known objects the controller no longer has.
pub(super) async fn name_deleted(mut objects: Objects, known: Vec<Object>) {
    for object in known {
        let (kind, name) = (object.kind, object.name);
        let request = ListRequest {
            kind: kind.clone(),
            name: name.clone(),
        };
        // The controller may be away by now; the note is not worth waiting for it.
        let Ok(answer) = objects.list(request).await else {
            return;
        };
        if answer.into_inner().objects.is_empty() {
            progress(&format!(
                "{}/{name} was deleted on the controller's host and stays deleted; to bring it back change its manifest, or end this host in order and join again",
                kind.to_lowercase()
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str, json: &str) -> Object {
        Object {
            kind: "Workload".into(),
            name: name.into(),
            json: json.into(),
        }
    }

    fn names(objects: &[Object]) -> Vec<&str> {
        objects.iter().map(|o| o.name.as_str()).collect()
    }

    #[test]
    fn only_what_is_new_or_changed_is_brought_again() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("brought.json");
        let mut brought = Brought::read(file.clone(), false).unwrap();
        let objects = [object("a", "1"), object("b", "1"), object("c", "1")];
        assert_eq!(names(&brought.divide(&objects).0), ["a", "b", "c"]);
        brought.keep(&objects);
        brought.forget(&objects[2]);
        let again = Brought::read(file.clone(), false).unwrap();
        let objects = [
            object("a", "1"),
            object("b", "2"),
            object("c", "1"),
            object("d", "1"),
        ];
        let (new, known) = again.divide(&objects);
        let all = together(vec![object("b", "1"), object("e", "1")], &new);
        assert_eq!(names(&all), ["b", "e", "c", "d"]);
        assert_eq!(all[0].json, "1");
        assert_eq!(
            (names(&new), names(&known)),
            (vec!["b", "c", "d"], vec!["a"])
        );
        // A host that joins with a token is new, whatever was here before.
        let joined = Brought::read(file.clone(), true).unwrap();
        assert_eq!(names(&joined.divide(&objects).0).len(), 4);
        std::fs::write(&file, "{").unwrap();
        assert!(
            Brought::read(file, false)
                .unwrap_err()
                .to_string()
                .contains("brought")
        );
    }
}

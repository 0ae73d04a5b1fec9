//! The workloads that this host has brought to its mesh, as it brought them.
//!
//! The controller is told of a workload when its manifest is new or has changed, and not again each time the host comes
//! back: what was done to it there meanwhile holds. A workload that was deleted there stays deleted. A host that leaves in
//! order takes its workloads along, and brings them anew.
//!
//! The supervisor and `tulle service reload` bring them one after the other: whoever had older manifests does not come last.

use crate::client::{Objects, is_away};
use crate::failure::{OrFail, Result};
use crate::new_file::write_durably;
use crate::output::progress;
use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tonic::{Code, Status};
use tulle_api::v1::{Applied, ApplyRequest, DeleteRequest, ListRequest, Object};

/// Between tries to bring what is new to a controller that was away.
const BRING_AGAIN: Duration = Duration::from_secs(2);
/// The same, where that has answered and did not take it.
const BRING_REFUSED: Duration = Duration::from_secs(30);
/// Patience with another process of this host that is bringing something, and the time between two looks.
const TURN: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);
/// The controller's answer to workloads that it does not take.
pub(super) const REFUSED: &str = "the controller refused the workloads";

/// The hash of an object of which the mesh may know anything. Should it be that of a text, that is brought once more.
const UNKNOWN: u64 = 0;

/// Hashes of the objects, by kind and name.
#[derive(Debug)]
pub(super) struct Brought {
    file: PathBuf,
    hashes: BTreeMap<String, u64>,
    /// The file as it was read or written here last.
    seen: Option<Stamp>,
}

/// A file that is replaced has another.
#[derive(Debug, PartialEq, Eq)]
struct Stamp(u64, i64, i64);

impl Stamp {
    fn from_file(file: &Path) -> Option<Self> {
        let found = std::fs::metadata(file).ok()?;
        Some(Self(found.ino(), found.mtime(), found.mtime_nsec()))
    }
}

/// The difference between manifests and what was brought.
#[derive(Debug)]
pub(super) struct News {
    /// New or changed.
    changed: Vec<Object>,
    /// As they were brought.
    pub(super) known: Vec<Object>,
    /// Kind and name of what the manifests no longer have.
    gone: Vec<String>,
    /// Hashes of all that the manifests have.
    hashes: BTreeMap<String, u64>,
}

impl News {
    /// Objects as they were known, with those that were not, and without those that are gone. One that has changed stays what it
    /// was: the configuration of its sidecar is of that.
    pub(super) fn beside(&self, mut known: Vec<Object>) -> Vec<Object> {
        known.retain(|known| !self.gone.contains(&key(known)));
        let is_known = |new: &&Object| known.iter().any(|known| key(known) == key(new));
        let changed = self.changed.iter();
        let added: Vec<Object> = changed.filter(|new| !is_known(new)).cloned().collect();
        known.extend(added);
        known
    }
}

fn key(object: &Object) -> String {
    format!("{}/{}", object.kind, object.name)
}

fn hash(object: &Object) -> u64 {
    tulle_api::version(object.json.as_bytes(), &[])
}

impl Brought {
    /// Reads what was brought from here.
    pub(super) fn read(file: PathBuf) -> Result<Self> {
        let what = || format!("cannot read what this host has brought, {}", file.display());
        let seen = Stamp::from_file(&file);
        let hashes = match std::fs::read(&file) {
            Ok(text) => serde_json::from_slice(&text).or_fail(what).map_err(|f| {
                f.fix("remove the file: the workloads are applied as their manifests say")
            })?,
            Err(e) if e.kind() == ErrorKind::NotFound => BTreeMap::new(),
            Err(e) => return Err(e).or_fail(what),
        };
        Ok(Self { file, hashes, seen })
    }

    /// Begins anew, for a host that joins: whatever it has is new to its mesh, and what it had before may still be there. That
    /// holds also if this start gets no further.
    pub(super) fn begin(file: PathBuf) -> Result<Self> {
        let mut brought = Self::read(file.clone()).unwrap_or_else(|_| Self {
            file,
            hashes: BTreeMap::new(),
            seen: None,
        });
        brought.hashes.values_mut().for_each(|hash| *hash = UNKNOWN);
        brought.write()?;
        Ok(brought)
    }

    /// Compares the workloads of manifests with what was brought.
    pub(super) fn news(&self, objects: Vec<Object>) -> News {
        let hashes: BTreeMap<_, _> = objects.iter().map(|o| (key(o), hash(o))).collect();
        let gone = self.hashes.keys().filter(|k| !hashes.contains_key(*k));
        let gone = gone.cloned().collect();
        let is_known = |o: &Object| self.hashes.get(&key(o)) == Some(&hash(o));
        let (known, changed) = objects.into_iter().partition(is_known);
        News {
            changed,
            known,
            gone,
            hashes,
        }
    }

    /// Nothing has changed.
    pub(super) fn no_news(&self) -> News {
        News {
            changed: Vec::new(),
            known: Vec::new(),
            gone: Vec::new(),
            hashes: self.hashes.clone(),
        }
    }

    /// Brings what is new or has changed to the controller, has it remove what is gone, and notes that. `None` if somebody
    /// else has brought something since this was read; then nothing is done.
    pub(super) async fn bring(
        &mut self,
        mut client: Objects,
        news: &News,
    ) -> std::result::Result<Option<Vec<Applied>>, Status> {
        let _turn = turn(&self.file).await?;
        if self.is_outdated() {
            return Ok(None);
        }
        let mut results = Vec::new();
        if !news.changed.is_empty() {
            let request = ApplyRequest {
                objects: news.changed.clone(),
                ..Default::default()
            };
            results = client.apply(request).await?.into_inner().results;
        }
        for gone in &news.gone {
            results.extend(remove(&mut client, gone).await?);
        }
        self.hashes.clone_from(&news.hashes);
        if let Err(failure) = self.write() {
            tracing::warn!("{failure}");
        }
        Ok(Some(results))
    }

    /// Whether somebody else has brought something since.
    fn is_outdated(&self) -> bool {
        Stamp::from_file(&self.file) != self.seen
    }

    /// Notes that the controller no longer has this object of this host.
    fn forget(&mut self, object: &str) {
        if self.hashes.remove(object).is_some()
            && let Err(failure) = self.write()
        {
            tracing::warn!("{failure}");
        }
    }

    fn write(&mut self) -> Result<()> {
        let what = || {
            format!(
                "cannot write what this host has brought, {}",
                self.file.display()
            )
        };
        let text = serde_json::to_vec(&self.hashes).or_fail(what)?;
        write_durably(&self.file, &text).or_fail(what)?;
        self.seen = Stamp::from_file(&self.file);
        Ok(())
    }
}

/// Waits until nobody else on this host brings workloads. Nobody else does while the file is open that this returns.
async fn turn(brought: &Path) -> std::result::Result<File, Status> {
    let path = brought.with_extension("lock");
    let what = |e: std::io::Error| Status::internal(format!("cannot lock {}: {e}", path.display()));
    let mut options = File::options();
    options.write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(&path).map_err(what)?;
    let until = Instant::now() + TURN;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(e)) => return Err(what(e)),
            Err(TryLockError::WouldBlock) if Instant::now() < until => sleep(LOOK).await,
            Err(TryLockError::WouldBlock) => {
                return Err(Status::aborted(format!(
                    "another process has been bringing workloads of this host for {} s: {} is locked",
                    TURN.as_secs(),
                    path.display()
                )));
            }
        }
    }
}

/// Has the controller remove an object of this host. It may have been deleted there before, or been taken over.
async fn remove(
    client: &mut Objects,
    object: &str,
) -> std::result::Result<Option<Applied>, Status> {
    let (kind, name) = object.split_once('/').unwrap_or_default();
    let request = DeleteRequest {
        kind: kind.to_owned(),
        name: name.to_owned(),
    };
    match client.delete(request).await {
        Ok(done) => Ok(done.into_inner().existed.then(|| Applied {
            kind: kind.to_owned(),
            name: name.to_owned(),
            outcome: "removed".to_owned(),
        })),
        Err(status) if [Code::PermissionDenied, Code::NotFound].contains(&status.code()) => {
            let (object, why) = (object.to_lowercase(), status.message());
            progress(&format!("{object} is not removed: {why}"));
            Ok(None)
        }
        Err(status) => Err(status),
    }
}

/// Brings what is new to a controller that is away, and ends when that has answered. What it did not take is tried again.
pub(super) async fn bring_later(client: Objects, news: News, mut brought: Brought) {
    loop {
        match brought.bring(client.clone(), &news).await {
            Ok(_) => return,
            Err(status) if is_away(&status) => sleep(BRING_AGAIN).await,
            Err(status) => {
                tracing::error!(%status, "{REFUSED}");
                break;
            }
        }
    }
    tokio::task::spawn_local(bring_again(client, news, brought));
}

/// Tries again to bring what the controller did not take, until it does or something else was brought.
pub(super) async fn bring_again(client: Objects, news: News, mut brought: Brought) {
    loop {
        sleep(BRING_REFUSED).await;
        match brought.bring(client.clone(), &news).await {
            Ok(_) => return,
            Err(status) => tracing::debug!(%status, "{REFUSED}"),
        }
    }
}

/// Takes this host's workloads along; whether the controller knows that.
pub(super) async fn leave(client: Objects, file: PathBuf) -> bool {
    let left = take_along(client, file).await;
    if let Err(failure) = &left {
        tracing::warn!("{failure}");
    }
    left.is_ok()
}

async fn take_along(mut client: Objects, file: PathBuf) -> Result<()> {
    // Workloads that are being brought are there after that, and go, too.
    let turn = turn(&file).await;
    let _turn = turn.or_fail(|| "cannot take this host's workloads along".to_owned())?;
    let mut brought = Brought::read(file)?;
    let objects: Vec<String> = brought.hashes.keys().cloned().collect();
    for object in objects {
        let removed = remove(&mut client, &object).await;
        removed.or_fail(|| "the controller keeps this host's workloads".to_owned())?;
        brought.forget(&object);
    }
    Ok(())
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
        let mut brought = Brought::read(file.clone()).unwrap();
        let all = |texts: &[(&str, &str)]| texts.iter().map(|(n, j)| object(n, j)).collect();
        let objects: Vec<Object> = all(&[("a", "1"), ("b", "1"), ("c", "1"), ("z", "1")]);
        assert_eq!(
            names(&brought.news(objects.clone()).changed),
            ["a", "b", "c", "z"]
        );
        brought.hashes = objects.iter().map(|o| (key(o), hash(o))).collect();
        brought.write().unwrap();
        brought.forget("Workload/c");
        let again = Brought::read(file.clone()).unwrap();
        assert!(!brought.is_outdated());
        let objects: Vec<Object> = all(&[("a", "1"), ("b", "2"), ("c", "1"), ("d", "1")]);
        let news = again.news(objects.clone());
        let beside = news.beside(vec![object("b", "1"), object("e", "1"), object("z", "1")]);
        assert_eq!(names(&beside), ["b", "e", "c", "d"]);
        assert_eq!(beside[0].json, "1");
        assert_eq!(names(&news.changed), ["b", "c", "d"]);
        assert_eq!(names(&news.known), ["a"]);
        assert_eq!(news.gone, ["Workload/z"]);
        // Another command has brought something since.
        brought.forget("Workload/z");
        assert!(again.is_outdated());
        // A host that joins with a token is new, whatever was here before.
        brought.hashes.insert("Workload/z".into(), 7);
        brought.write().unwrap();
        assert_eq!(
            Brought::begin(file.clone())
                .unwrap()
                .news(objects.clone())
                .gone,
            ["Workload/z"]
        );
        // Also if that start gets no further.
        let joined = Brought::read(file.clone()).unwrap().news(objects);
        assert_eq!((joined.changed.len(), joined.gone.len()), (4, 1));
        std::fs::write(&file, "{").unwrap();
        assert!(
            Brought::read(file)
                .unwrap_err()
                .to_string()
                .contains("brought")
        );
    }

    #[tokio::test]
    async fn one_after_the_other() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("brought.json");
        let first = turn(&file).await.unwrap();
        let second = tokio::time::timeout(LOOK * 3, turn(&file)).await;
        assert!(second.is_err());
        drop(first);
        turn(&file).await.unwrap();
    }
}

//! Keeps what a joined host knows of its mesh in its state directory, so that it starts after a power cut although no
//! controller answers, at the addresses by which its own workloads know each other.
//!
//! The controller alone decides. This is read where it cannot be asked, and forgotten when the host leaves in order.
//! No key is in it: sidecars get certificates of the [host's authority](super::host_authority), or wait.

use super::context::Context;
use crate::failure::{OrFail, Result};
use crate::new_file::write_durably;
use crate::paths::{Paths, make_dir};
use crate::remove_tree::remove_tree;
use rustix::fs::{Mode, OFlags, fstat, open};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, SystemTime};
use tokio::time::sleep;
use tulle_api::v1::Object;

/// Between looks at the configurations of sidecars. A power cut loses what they were told in the last of these.
const LOOK: Duration = Duration::from_secs(5);
/// A power of two: the most looks of which one is made.
const MOST_PATIENT: u32 = 7;
/// The largest configuration that is kept; in a large mesh one has some hundred KiB.
const LARGEST: u64 = 16 << 20;

/// The content of the file.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Content {
    /// The controller.
    controller: Option<KnownController>,
    /// Where others reached this host.
    address: Option<IpAddr>,
    /// Kind, name and text of the Mesh and of this host's workloads.
    objects: Vec<(String, String, String)>,
    /// Ports at which others reach workloads: `WORKLOAD/PORT`.
    ports: BTreeMap<String, u16>,
    /// Files of the workloads' manifests, if this host runs as a service.
    #[serde(default)]
    manifests: Vec<PathBuf>,
}

/// A controller as the command of this host names it, and where that was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KnownController {
    /// `HOST:PORT`.
    pub(crate) name: String,
    /// Fingerprint of its authority.
    pub(crate) fingerprint: String,
    /// The address of that name.
    pub(crate) address: SocketAddr,
}

/// The knowledge of this host, and where it is kept.
pub(crate) struct LastKnown {
    file: PathBuf,
    /// Configurations of sidecars, one file for each workload.
    sidecars: PathBuf,
    content: RefCell<Content>,
}

impl LastKnown {
    /// Reads what was known. A host that has never joined, or has left in order, knows nothing.
    pub(crate) fn read(paths: &Paths) -> Result<Self> {
        let file = paths.last_known();
        let what = || format!("cannot read what this host knew last, {}", file.display());
        let content = match fs::read(&file) {
            Ok(text) => serde_json::from_slice(&text)
                .or_fail(what)
                .map_err(|f| f.fix("remove the file; the controller tells this host anew"))?,
            Err(e) if e.kind() == ErrorKind::NotFound => Content::default(),
            Err(e) => return Err(e).or_fail(what),
        };
        Ok(Self {
            sidecars: paths.last_known_sidecars(),
            content: RefCell::new(content),
            file,
        })
    }

    /// Where the controller was, if it is the one of this name and authority.
    pub(crate) fn controller(&self, name: &str, fingerprint: &str) -> Option<SocketAddr> {
        let content = self.content.borrow();
        let known = content.controller.as_ref()?;
        (known.name == name && known.fingerprint == fingerprint).then_some(known.address)
    }

    /// The controller whose mesh this host is of.
    pub(crate) fn joined(&self) -> Option<KnownController> {
        self.content.borrow().controller.clone()
    }

    /// Files of the workloads' manifests, if this host runs as a service.
    pub(crate) fn manifests(&self) -> Vec<PathBuf> {
        self.content.borrow().manifests.clone()
    }

    /// Where others reached this host.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.content.borrow().address
    }

    /// The Mesh and this host's workloads.
    pub(crate) fn objects(&self) -> Vec<Object> {
        let content = self.content.borrow();
        let objects = content.objects.iter().cloned();
        objects
            .map(|(kind, name, json)| Object { kind, name, json })
            .collect()
    }

    /// The port at which others reached this port of a workload.
    pub(crate) fn port(&self, workload: &str, port: u16) -> Option<u16> {
        let content = self.content.borrow();
        content.ports.get(&key(workload, port)).copied()
    }

    /// Whether this is such a port of any workload.
    pub(crate) fn has_port(&self, number: u16) -> bool {
        let content = self.content.borrow();
        content.ports.values().any(|port| *port == number)
    }

    /// Notes where the controller is.
    pub(crate) fn note_controller(&self, controller: KnownController) {
        self.note(|content| content.controller = Some(controller));
    }

    /// Notes the files of a service's manifests; none if this is no service.
    pub(crate) fn note_manifests(&self, files: &[PathBuf]) {
        self.note(|content| content.manifests = files.to_vec());
    }

    /// Notes where others reach this host.
    pub(crate) fn note_address(&self, address: IpAddr) {
        self.note(|content| content.address = Some(address));
    }

    /// Notes all objects for this host, and gives up what is known of workloads that are no more.
    pub(crate) fn note_objects<'a>(&self, objects: impl Iterator<Item = &'a Object>) {
        let objects = objects.map(|o| (o.kind.clone(), o.name.clone(), o.json.clone()));
        let objects: Vec<_> = objects.collect();
        let is_there = |workload: &str| {
            let mut workloads = objects.iter().filter(|(kind, ..)| kind == "Workload");
            workloads.any(|(_, name, _)| name == workload)
        };
        for entry in fs::read_dir(&self.sidecars).into_iter().flatten().flatten() {
            let path = entry.path();
            let workload = path.file_stem().and_then(|stem| stem.to_str());
            if !workload.is_some_and(is_there) {
                // Whoever gets this name next is another; what is left of this one is read no more.
                let _ = fs::remove_file(&path);
            }
        }
        self.note(|content| {
            content
                .ports
                .retain(|key, _| key.split_once('/').is_some_and(|(name, _)| is_there(name)));
            content.objects = objects.clone();
        });
    }

    /// Gives up ports of a workload that it no longer has.
    pub(crate) fn keep_ports(&self, workload: &str, ports: &[u16]) {
        let keys: Vec<String> = ports.iter().map(|port| key(workload, *port)).collect();
        self.note(|content| {
            content.ports.retain(|key, _| {
                let is_others = key
                    .split_once('/')
                    .is_some_and(|(name, _)| name != workload);
                is_others || keys.contains(key)
            });
        });
    }

    /// Notes at which ports (third) others reach ports of workloads, in one write.
    pub(crate) fn note_ports<'a>(&self, ports: impl IntoIterator<Item = (&'a str, u16, u16)>) {
        let ports: Vec<_> = ports.into_iter().collect();
        // A host that has left its mesh knows nothing, and no file is made of that.
        if ports.is_empty() {
            return;
        }
        self.note(|content| {
            for (workload, port, at) in ports {
                content.ports.insert(key(workload, port), at);
            }
        });
    }

    /// Writes the file if something has changed.
    fn note(&self, change: impl FnOnce(&mut Content)) {
        let before = serde_json::to_vec(&*self.content.borrow());
        change(&mut self.content.borrow_mut());
        let now = serde_json::to_vec(&*self.content.borrow());
        let (Ok(before), Ok(now)) = (before, now) else {
            return;
        };
        if before != now || !self.file.exists() {
            self.write(&now);
        }
    }

    /// Without the file the host goes on; it could not start without its controller.
    fn write(&self, text: &[u8]) {
        if let Err(error) = write_durably(&self.file, text) {
            let file = self.file.display();
            tracing::warn!(%file, %error, "what this host knows is not kept");
        }
    }

    /// The configuration that the sidecar of a workload had last, for a sidecar that has none. It names no version of anything,
    /// so that a controller tells all of it anew: what a sidecar wrote that somebody had taken over holds no longer than that.
    pub(crate) fn sidecar(&self, workload: &str) -> Option<Vec<u8>> {
        let text = fs::read(self.sidecar_file(workload)).ok()?;
        let mut saved: serde_json::Value = serde_json::from_slice(&text).ok()?;
        for told in saved.get_mut("held")?.as_object_mut()?.values_mut() {
            *told.get_mut(0)? = 0.into();
        }
        serde_json::to_vec(&saved).ok()
    }

    fn sidecar_file(&self, workload: &str) -> PathBuf {
        self.sidecars.join(format!("{workload}.json"))
    }

    /// Keeps the configurations of all sidecars as they change, for as long as the host is up.
    pub(crate) async fn keep(self: Rc<Self>, context: Rc<Context>) {
        let mut looks: BTreeMap<String, Look> = BTreeMap::new();
        loop {
            sleep(LOOK).await;
            let workloads = self.workloads();
            looks.retain(|workload, _| workloads.contains(workload));
            for workload in workloads {
                let from = context.paths.snapshot(&workload);
                let to = self.sidecar_file(&workload);
                let look = looks.entry(workload).or_default();
                if look.passes > 0 {
                    look.passes -= 1;
                    continue;
                }
                let before = look.copied;
                // It may be megabytes, and the disk slow.
                let copied = tokio::task::spawn_blocking(move || copy(&from, &to, before)).await;
                let copied = copied.or_fail(|| "a configuration is not kept".to_owned());
                look.note(copied.and_then(|copied| copied));
            }
        }
    }

    fn workloads(&self) -> Vec<String> {
        let content = self.content.borrow();
        let objects = content.objects.iter();
        let workloads = objects.filter(|(kind, ..)| kind == "Workload");
        workloads.map(|(_, name, _)| name.clone()).collect()
    }

    /// Forgets everything: this host has left its mesh, or the mesh has dismissed it.
    pub(crate) fn forget(&self) {
        *self.content.borrow_mut() = Content::default();
        let removed = fs::remove_file(&self.file);
        for gone in [removed, remove_tree(&self.sidecars)] {
            match gone {
                Err(e) if e.kind() != ErrorKind::NotFound => {
                    tracing::warn!(error = %e, "what this host knew is still there");
                }
                _ => {}
            }
        }
    }
}

/// The looks at one sidecar's configuration.
#[derive(Default)]
struct Look {
    /// When it was last written, of what was copied.
    copied: Option<SystemTime>,
    /// How often in a row it had changed.
    changed: u32,
    /// How many looks are left out.
    passes: u32,
    /// The failure that was told last.
    said: String,
}

impl Look {
    /// One that changes again and again is copied less and less often: memory of flash wears out.
    fn note(&mut self, copied: Result<Option<SystemTime>>) {
        let failure = match copied {
            Ok(None) => {
                self.changed = 0;
                return;
            }
            Ok(Some(modified)) => {
                self.copied = Some(modified);
                self.said.clear();
                None
            }
            Err(failure) => Some(failure.to_string()),
        };
        self.passes = (1 << self.changed) - 1;
        self.changed = (self.changed + 1).min(MOST_PATIENT);
        if let Some(failure) = failure.filter(|failure| self.said != *failure) {
            tracing::warn!("{failure}");
            self.said = failure;
        }
    }
}

fn key(workload: &str, port: u16) -> String {
    format!("{workload}/{port}")
}

/// Copies a configuration that has changed; when it was. The directory is the sidecar's own, so what lies there was
/// perhaps put there to have root copy something else: it is a file, and of the directory's owner.
fn copy(from: &Path, to: &Path, before: Option<SystemTime>) -> Result<Option<SystemTime>> {
    let what = || format!("cannot keep the configuration {}", from.display());
    let directory = from.parent().unwrap_or(from);
    let owner = match fs::symlink_metadata(directory) {
        Ok(found) => found,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e).or_fail(what),
    };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match open(from, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        // It has none yet, or goes.
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(e) => return Err(e).or_fail(what),
    };
    let found = file.metadata().or_fail(what)?;
    let modified = found.modified().or_fail(what)?;
    let stat = fstat(&file).or_fail(what)?;
    let is_own = stat.st_uid == std::os::unix::fs::MetadataExt::uid(&owner);
    if !found.is_file() || !is_own || found.len() > LARGEST {
        return Err(crate::failure::Failure::new(what()).because("it is no file of the sidecar's"));
    }
    if before == Some(modified) {
        return Ok(None);
    }
    let mut text = Vec::new();
    file.take(LARGEST).read_to_end(&mut text).or_fail(what)?;
    if let Some(directory) = to.parent() {
        make_dir(directory, 0o700)?;
    }
    write_durably(to, &text).or_fail(what)?;
    Ok(Some(modified))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn at(directory: &Path) -> LastKnown {
        let paths = Paths {
            name: "t".into(),
            state: directory.to_owned(),
            run: directory.join("run"),
        };
        LastKnown::read(&paths).unwrap()
    }

    fn object(kind: &str, name: &str) -> Object {
        Object {
            kind: kind.into(),
            name: name.into(),
            json: format!("{{}}{name}"),
        }
    }

    #[test]
    fn what_was_known_outlives_the_process_until_the_host_leaves() {
        let dir = tempfile::tempdir().unwrap();
        let known = at(dir.path());
        assert!(known.objects().is_empty());
        let controller = SocketAddr::from(([10, 0, 0, 1], 15010));
        let as_named = |name: &str| KnownController {
            name: name.into(),
            fingerprint: "f".into(),
            address: controller,
        };
        known.note_controller(as_named("centre:15010"));
        known.note_address([10, 0, 0, 2].into());
        let objects = [
            object("Mesh", "m"),
            object("Workload", "a"),
            object("Workload", "b"),
        ];
        known.note_objects(objects.iter());
        known.note_ports([("a", 80, 61_000), ("b", 80, 61_001)]);
        make_dir(&known.sidecars, 0o700).unwrap();
        for name in ["a", "b"] {
            let saved = format!(r#"{{"held":{{"inbound/{name}":[7,"x"]}},"unowned":[]}}"#);
            fs::write(known.sidecar_file(name), saved).unwrap();
        }

        let again = at(dir.path());
        assert_eq!(again.controller("centre:15010", "f"), Some(controller));
        assert_eq!(again.controller("other:15010", "f"), None);
        assert_eq!(again.controller("centre:15010", "g"), None);
        assert_eq!(again.address(), Some([10, 0, 0, 2].into()));
        assert_eq!(again.objects(), objects);
        assert_eq!(again.port("b", 80), Some(61_001));
        let told = String::from_utf8(again.sidecar("b").unwrap()).unwrap();
        assert_eq!(told, r#"{"held":{"inbound/b":[0,"x"]},"unowned":[]}"#);
        fs::write(again.sidecar_file("a"), "{}").unwrap();
        assert_eq!(again.sidecar("a"), None, "it is nothing of a sidecar's");
        again.keep_ports("b", &[80, 81]);
        assert_eq!(again.port("b", 80), Some(61_001));
        // A workload that is no more leaves nothing.
        again.note_objects(objects[..2].iter());
        assert_eq!(
            (again.port("a", 80), again.port("b", 80)),
            (Some(61_000), None)
        );
        assert!(again.has_port(61_000) && !again.has_port(61_001));
        assert!(again.sidecar_file("a").exists() && !again.sidecar_file("b").exists());
        again.keep_ports("a", &[81]);
        assert!(!again.has_port(61_000));

        again.forget();
        again.note_ports([]);
        assert!(!again.file.exists(), "nothing is noted of nothing");
        let left = at(dir.path());
        assert!(left.objects().is_empty() && left.sidecar("a").is_none());
        fs::write(&left.file, "{").unwrap();
        let paths = Paths {
            name: "t".into(),
            state: dir.path().to_owned(),
            run: dir.path().join("run"),
        };
        let said = LastKnown::read(&paths).err().unwrap().to_string();
        assert!(said.contains("host-last-known.json"), "{said}");
    }

    #[test]
    fn a_sidecar_gets_only_its_own_file_copied() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("own");
        make_dir(&own, 0o700).unwrap();
        let (from, to) = (own.join("snapshot"), dir.path().join("kept/a.json"));
        assert_eq!(copy(&from, &to, None).unwrap(), None, "it has none yet");
        fs::write(&from, "first").unwrap();
        let first = copy(&from, &to, None).unwrap();
        assert_eq!(fs::read(&to).unwrap(), b"first");
        assert_eq!(
            copy(&from, &to, first).unwrap(),
            None,
            "nothing has changed"
        );

        let secret = dir.path().join("secret");
        fs::write(&secret, "secret").unwrap();
        fs::remove_file(&from).unwrap();
        symlink(&secret, &from).unwrap();
        assert!(copy(&from, &to, None).is_err());
        fs::remove_file(&from).unwrap();
        fs::create_dir(&from).unwrap();
        assert!(copy(&from, &to, None).is_err());
        assert_eq!(fs::read(&to).unwrap(), b"first");
        // Another's file, which only root could have linked there.
        if rustix::process::geteuid().is_root() {
            fs::remove_dir(&from).unwrap();
            fs::hard_link(&secret, &from).unwrap();
            std::os::unix::fs::chown(&secret, Some(61_200), None).unwrap();
            assert!(copy(&from, &to, None).is_err());
        }
    }
}

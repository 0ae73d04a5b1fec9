//! The workloads that a host is given to run, and the token with which it joins.

use crate::args::join::{Join, JoinOptions};
use crate::failure::{Failure, Result};
use crate::manifests::{self, Manifests};
use crate::new_file::write_durably;
use crate::paths::{Paths, make_dir};
use crate::supervise::NODE_LABEL;
use crate::supervise::last_known::LastKnown;
use crate::supervise::preflight::Host;
use crate::supervise::state::Mode;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::Path;
use tulle_api::v1::Object;
use tulle_model::manifest;

/// A token is far shorter.
const LONGEST_TOKEN: u64 = 4096;

/// Workloads to run here.
#[derive(Debug)]
pub(super) enum Given {
    /// Those of the manifests.
    Manifests(Manifests),
    /// Those that ran before: the manifests are wrong, which keeps no service from starting.
    Before(Failure),
}

impl Given {
    /// Reads the manifests. Nothing has been touched when they are refused.
    pub(super) fn read(paths: &Paths, args: &Join, last_known: &LastKnown) -> Result<Self> {
        let mut known = last_known.objects().into_iter();
        // Where this host brought nothing, an empty file takes nothing away.
        let read = match known.any(|object| object.kind == "Workload") {
            true => manifests::read_full,
            false => manifests::read,
        };
        let checked = read(&args.files).and_then(|manifests| {
            let manifests = workloads(manifests)?;
            Host::starting(paths, Some(Mode::Loopback)).check(&manifests)?;
            Ok(manifests)
        });
        match checked {
            Ok(manifests) => Ok(Self::Manifests(manifests)),
            Err(failure) if args.service && !last_known.objects().is_empty() => {
                Ok(Self::Before(failure))
            }
            Err(failure) => Err(failure),
        }
    }
}

/// Refuses manifests of anything but workloads.
pub(super) fn workloads(manifests: Manifests) -> Result<Manifests> {
    let mut others = manifests.objects.iter();
    if let Some(other) = others.find(|o| !matches!(o, manifest::Object::Workload(_))) {
        return Err(Failure::input(format!(
            "{}{} is not a Workload; a host that joins brings only those",
            manifests.place(other),
            other.id()
        ))
        .fix("apply it on the controller's host"));
    }
    Ok(manifests)
}

/// Labels the workloads as this host's: each host runs only its own.
pub(super) fn label(manifests: &mut Manifests, node: &str) -> Vec<Object> {
    for object in &mut manifests.objects {
        if let manifest::Object::Workload(workload) = object {
            let labels = &mut workload.metadata.labels;
            labels.insert(NODE_LABEL.into(), node.to_owned());
        }
    }
    manifests.to_api()
}

/// The token, if there is one: an empty one is none.
pub(super) fn token(options: &JoinOptions) -> Result<Option<String>> {
    let Some(file) = &options.token_file else {
        return Ok(options.token.as_deref().and_then(trimmed));
    };
    let mut text = String::new();
    let read = if file == Path::new("-") {
        std::io::stdin()
            .take(LONGEST_TOKEN)
            .read_to_string(&mut text)
    } else {
        File::open(file).and_then(|f| f.take(LONGEST_TOKEN).read_to_string(&mut text))
    };
    read.map_err(|e| cannot_read(file).because(e))?;
    Ok(trimmed(&text))
}

fn trimmed(text: &str) -> Option<String> {
    Some(text.trim().to_owned()).filter(|t| !t.is_empty())
}

fn cannot_read(file: &Path) -> Failure {
    Failure::input(format!("cannot read the token in {}", file.display()))
}

/// The token that waits for the first start of a service.
pub(super) fn waiting_token(paths: &Paths) -> Result<Option<String>> {
    let file = paths.host_token();
    let mut text = String::new();
    match File::open(&file).and_then(|f| f.take(LONGEST_TOKEN).read_to_string(&mut text)) {
        Ok(_) => Ok(trimmed(&text)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(cannot_read(&file).because(e)),
    }
}

/// Has a token wait in this file. Its owner alone can read it.
pub(super) fn leave_token(file: &Path, token: &str) -> Result<()> {
    let what = || format!("cannot write the token to {}", file.display());
    if let Some(directory) = file.parent().filter(|d| !d.exists()) {
        make_dir(directory, 0o711)?;
    }
    write_durably(file, format!("{token}\n").as_bytes())
        .map_err(|e| Failure::new(what()).because(e))
}

/// Removes it: this host has an identity now, or shall join no more.
pub(super) fn remove_token(file: &Path) {
    match fs::remove_file(file) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            tracing::warn!(%error, "cannot remove the token in {}", file.display());
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_brings_its_own_workloads_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let read = |text: &str| {
            let file = directory.path().join("x.yaml");
            fs::write(&file, text).unwrap();
            manifests::read(&[file]).unwrap()
        };
        let workload = "apiVersion: tulle.dev/v1alpha1\nkind: Workload\nmetadata: {name: a}\nspec: {command: [sleep]}\n";
        let mut found = workloads(read(workload)).unwrap();
        let objects = label(&mut found, "edge");
        assert!(objects[0].json.contains(r#""tulle.dev/node":"edge""#));
        let mesh = "apiVersion: tulle.dev/v1alpha1\nkind: Mesh\nmetadata: {name: m}\nspec: {}\n";
        let refused = workloads(read(mesh)).unwrap_err();
        assert!(
            refused
                .to_string()
                .contains("x.yaml:1: Mesh/m is not a Workload"),
            "{refused}"
        );
    }

    #[test]
    fn a_token_waits_for_its_owner_until_it_is_spent() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let paths = Paths {
            name: "t".into(),
            state: directory.path().join("new/state"),
            run: directory.path().join("run"),
        };
        assert_eq!(waiting_token(&paths).unwrap(), None);
        remove_token(&paths.host_token());
        leave_token(&paths.host_token(), "abc").unwrap();
        let mode = fs::metadata(paths.host_token())
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(waiting_token(&paths).unwrap().as_deref(), Some("abc"));
        remove_token(&paths.host_token());
        assert_eq!(waiting_token(&paths).unwrap(), None);
    }
}

//! Remembers what the manifests of a service brought last, in a file of the durable directory.
//!
//! The store is what a mesh comes up with after a power cut: whatever was acknowledged, by `tulle apply`
//! as well, is in it. Manifests are applied again only when they have changed, and an object that they no
//! longer have is deleted. Objects that came from elsewhere are left alone.

use crate::client::Objects;
use crate::failure::{OrFail, Result};
use crate::manifests::Manifests;
use crate::new_file::write_durably;
use crate::paths::Paths;
use crate::supervise::{replace, sort_for_removal};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::PathBuf;
use tulle_api::v1::Applied;

/// The content of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServiceRecord {
    /// The manifests' files.
    pub(crate) files: Vec<PathBuf>,
    /// Checksum of their objects.
    checksum: String,
    /// Kind and name of each object.
    objects: Vec<(String, String)>,
}

impl ServiceRecord {
    /// The record of these manifests.
    pub(crate) fn new(files: &[PathBuf], manifests: &Manifests) -> Self {
        let objects = manifests.to_api();
        let texts = objects.iter().map(|o| o.json.as_bytes());
        Self {
            files: absolute(files),
            checksum: checksum(texts),
            objects: objects.into_iter().map(|o| (o.kind, o.name)).collect(),
        }
    }

    /// Reads it. One that cannot be understood counts as none: the manifests are applied again then.
    pub(crate) fn read(paths: &Paths) -> Option<Self> {
        let text = std::fs::read(paths.service_record()).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Whether manifests say the same as these.
    pub(crate) fn is_of(&self, manifests: &Manifests) -> bool {
        self.checksum == Self::new(&self.files, manifests).checksum
    }

    /// Has a reload read these files, also where a start stored nothing: they said the same, or were refused.
    pub(crate) fn note_files(paths: &Paths, files: &[PathBuf]) -> Result<()> {
        let files = absolute(files);
        match Self::read(paths).filter(|before| before.files != files) {
            Some(before) => Self { files, ..before }.write(paths),
            None => Ok(()),
        }
    }

    /// Removes it: the next service applies its manifests whatever they are.
    pub(crate) fn forget(paths: &Paths) -> Result<()> {
        let file = paths.service_record();
        match std::fs::remove_file(&file) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                Err(e).or_fail(|| format!("cannot remove {}", file.display()))
            }
            _ => Ok(()),
        }
    }

    /// Objects that these manifests had and others do not have.
    fn gone(&self, others: &Self) -> Vec<(String, String)> {
        let kept: BTreeSet<_> = others.objects.iter().collect();
        let mut gone: Vec<_> = self.objects.clone();
        gone.retain(|object| !kept.contains(object));
        sort_for_removal(&mut gone, |(kind, _)| kind);
        gone
    }

    /// Replaces the file. It is on the disk when this returns.
    fn write(&self, paths: &Paths) -> Result<()> {
        let file = paths.service_record();
        let what = || format!("cannot write {}", file.display());
        let text = serde_json::to_vec(self).or_fail(what)?;
        write_durably(&file, &text).or_fail(what)
    }
}

/// Stores the objects of a service's manifests, deletes those that they had before and have no longer,
/// and remembers them. Until they are remembered the next start does it again.
pub(crate) async fn bring(
    objects: &mut Objects,
    paths: &Paths,
    files: &[PathBuf],
    manifests: &Manifests,
) -> Result<Vec<Applied>> {
    let record = ServiceRecord::new(files, manifests);
    let gone = ServiceRecord::read(paths).map(|before| before.gone(&record));
    let results = replace(objects, manifests.to_api(), gone.unwrap_or_default()).await?;
    record.write(paths)?;
    Ok(results)
}

fn absolute(files: &[PathBuf]) -> Vec<PathBuf> {
    let absolute = |f: &PathBuf| std::path::absolute(f).unwrap_or_else(|_| f.clone());
    files.iter().map(absolute).collect()
}

/// FNV-1a of 64 bits: it finds changes, and protects from nobody.
pub(crate) fn checksum<'a>(texts: impl Iterator<Item = &'a [u8]>) -> String {
    let mut sum = 0xcbf2_9ce4_8422_2325_u64;
    for text in texts {
        // A byte that no text has keeps two texts apart.
        for byte in text.iter().chain(&[0xff]) {
            sum = (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    format!("{sum:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tulle_model::manifest::parse;

    fn manifests(text: &str) -> Manifests {
        let parsed = parse("x.yaml", text).unwrap();
        Manifests::new(parsed.into_iter().map(|l| l.object).collect())
    }

    const ONE: &str = "apiVersion: tulle.dev/v1alpha1\nkind: Workload\nmetadata: {name: a}\n\
                       spec: {command: [x]}\n---\n";
    const GATEWAY: &str = "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: g}\n\
                           spec: {gatewayClassName: tulle, listeners: [{name: h, port: 8080, protocol: HTTP}]}\n---\n";

    #[test]
    fn only_what_an_object_says_is_a_change() {
        let files = [PathBuf::from("/m.yaml")];
        let record = ServiceRecord::new(&files, &manifests(ONE));
        assert!(record.is_of(&manifests(&format!("# a remark\n{ONE}"))));
        assert!(!record.is_of(&manifests(&ONE.replace("[x]", "[y]"))));
        assert!(!record.is_of(&manifests(&format!("{ONE}{GATEWAY}"))));
    }

    #[test]
    fn what_the_manifests_no_longer_have_is_removed_referring_objects_first() {
        let route = "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: r}\n\
                     spec: {parentRefs: [{name: g}], rules: [{backendRefs: [{name: a, port: 80}]}]}\n---\n";
        let all = ServiceRecord::new(&[], &manifests(&format!("{GATEWAY}{ONE}{route}")));
        let one = ServiceRecord::new(&[], &manifests(ONE));
        let name = |kind: &str, name: &str| (kind.to_owned(), name.to_owned());
        assert_eq!(
            all.gone(&one),
            [name("HTTPRoute", "r"), name("Gateway", "g")]
        );
        assert!(one.gone(&all).is_empty());
    }

    #[test]
    fn it_is_read_as_it_was_written_and_a_damaged_one_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths {
            name: "r".into(),
            state: dir.path().to_owned(),
            run: dir.path().join("run"),
        };
        assert_eq!(ServiceRecord::read(&paths), None);
        ServiceRecord::forget(&paths).unwrap();
        ServiceRecord::note_files(&paths, &["/m.yaml".into()]).unwrap();
        assert_eq!(ServiceRecord::read(&paths), None, "nothing was stored");
        let record = ServiceRecord::new(&["/m.yaml".into()], &manifests(ONE));
        record.write(&paths).unwrap();
        assert_eq!(ServiceRecord::read(&paths), Some(record.clone()));
        ServiceRecord::note_files(&paths, &["/a.yaml".into(), "/b.yaml".into()]).unwrap();
        let noted = ServiceRecord::read(&paths).unwrap();
        assert_eq!(noted.files, ["/a.yaml", "/b.yaml"].map(PathBuf::from));
        assert_eq!(
            (noted.checksum, noted.objects),
            (record.checksum, record.objects)
        );
        std::fs::write(paths.service_record(), "{").unwrap();
        assert_eq!(ServiceRecord::read(&paths), None);
    }
}

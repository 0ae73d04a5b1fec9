//! Reads kubeconfig files, as `kubectl` does.
//!
//! The library can, too, but with a reader of YAML of its own, which is half a megabyte of the program.

use crate::kubeconfig_files;
use kube::config::{Kubeconfig, KubeconfigError};
use serde::Deserialize;
use std::path::{MAIN_SEPARATOR, Path, PathBuf};
use tulle_model::{Booleans, YamlDocument};

/// Reads this file, or those that the environment names.
pub(super) fn read(file: Option<&Path>) -> Result<Kubeconfig, String> {
    match file {
        Some(file) => read_file(file),
        None => read_listed(&kubeconfig_files::list()),
    }
}

/// Reads those that exist, of which there must be one.
fn read_listed(files: &[PathBuf]) -> Result<Kubeconfig, String> {
    let Some(first) = files.first() else {
        return Err("neither KUBECONFIG nor HOME names a kubeconfig".to_owned());
    };
    let may_exist = |file: &&PathBuf| file.try_exists().unwrap_or(true);
    match files.iter().any(|file| may_exist(&file)) {
        true => merge(files.iter().filter(may_exist).map(|file| read_file(file))),
        false => read_file(first),
    }
}

/// Merges them; what comes first wins.
fn merge(mut all: impl Iterator<Item = Result<Kubeconfig, String>>) -> Result<Kubeconfig, String> {
    all.try_fold(Kubeconfig::default(), |merged, next| {
        merged.merge(next?).map_err(|e| e.to_string())
    })
}

fn read_file(file: &Path) -> Result<Kubeconfig, String> {
    let read = std::fs::read(file).and_then(|bytes| text(&bytes));
    let text = read.map_err(|e| KubeconfigError::ReadConfig(e, file.into()).to_string())?;
    let invalid = |e: &dyn std::fmt::Display| format!("{} is no kubeconfig: {e}", file.display());
    let documents = YamlDocument::read_json(&text, Booleans::Wide).map_err(|e| invalid(&e))?;
    let documents = documents.into_iter().filter(|document| !document.is_null());
    merge(documents.map(|document| {
        let mut read = Kubeconfig::deserialize(&document).map_err(|e| invalid(&e))?;
        if let Some(directory) = file.parent() {
            resolve(&mut read, directory);
        }
        Ok(read)
    }))
}

/// Decodes a file. PowerShell writes UTF-16.
fn text(bytes: &[u8]) -> std::io::Result<String> {
    let utf16 = |bytes: &[u8], unit: fn([u8; 2]) -> u16| {
        let units = bytes
            .chunks(2)
            .map(|b| unit([b[0], b.get(1).copied().unwrap_or_default()]));
        char::decode_utf16(units)
            .collect::<Result<String, _>>()
            .ok()
    };
    let text = match bytes {
        [0xff, 0xfe, rest @ ..] => utf16(rest, u16::from_le_bytes),
        [0xfe, 0xff, rest @ ..] => utf16(rest, u16::from_be_bytes),
        [0xef, 0xbb, 0xbf, rest @ ..] | rest => String::from_utf8(rest.to_vec()).ok(),
    };
    text.ok_or_else(|| std::io::Error::new(std::io::ErrorKind::InvalidData, "it is no text"))
}

/// Makes its paths absolute: they are relative to the file's directory.
fn resolve(read: &mut Kubeconfig, directory: &Path) {
    let absolute = |path: &mut Option<String>| {
        if let Some(path) = path
            && let Some(joined) = directory.join(&*path).to_str()
        {
            *path = joined.to_owned();
        }
    };
    for cluster in read
        .clusters
        .iter_mut()
        .filter_map(|named| named.cluster.as_mut())
    {
        absolute(&mut cluster.certificate_authority);
    }
    for user in read
        .auth_infos
        .iter_mut()
        .filter_map(|named| named.auth_info.as_mut())
    {
        absolute(&mut user.client_certificate);
        absolute(&mut user.client_key);
        absolute(&mut user.token_file);
        // A bare name is looked up in PATH.
        if let Some(exec) = &mut user.exec
            && exec
                .command
                .as_ref()
                .is_some_and(|command| command.contains(MAIN_SEPARATOR))
        {
            absolute(&mut exec.command);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const FIRST: &str = "\
apiVersion: v1
kind: Config
current-context: a
contexts: [{ name: a, context: { cluster: a, user: a, namespace: shop } }]
clusters: [{ name: a, cluster: { server: https://a, certificate-authority: ca.crt } }]
users:
- name: a
  user: { tokenFile: token, client-key: /k, exec: { command: ./login, args: [\"1\"] } }
";
    const SECOND: &str = "\
---
apiVersion: v1
kind: Config
current-context: b
preferences: null
contexts: null
clusters: [{ name: a, cluster: { server: https://other } }, { name: b, cluster: { server: https://b } }]
users: [{ name: b, user: { token: secret, exec: { command: aws } } }]
---
";

    #[test]
    fn files_are_merged_and_their_paths_are_relative_to_them() {
        let directory = tempfile::tempdir().unwrap();
        let place = |name: &str| directory.path().join(name);
        fs::write(place("first"), FIRST).unwrap();
        let utf16 = SECOND.encode_utf16().flat_map(u16::to_le_bytes);
        fs::write(
            place("second"),
            [vec![0xff, 0xfe], utf16.collect()].concat(),
        )
        .unwrap();
        let all = ["first", "second"].map(|name| read_file(&place(name)));
        let merged = merge(all.into_iter()).unwrap();
        assert_eq!(merged.current_context.as_deref(), Some("a"));
        assert_eq!(merged.contexts.len(), 1);
        let clusters: Vec<_> = merged
            .clusters
            .into_iter()
            .map(|c| c.cluster.unwrap())
            .collect();
        let servers = clusters.iter().map(|c| c.server.as_deref().unwrap());
        assert_eq!(servers.collect::<Vec<_>>(), ["https://a", "https://b"]);
        let full = |name: &str| place(name).to_str().map(str::to_owned);
        assert_eq!(clusters[0].certificate_authority, full("ca.crt"));
        let users: Vec<_> = merged
            .auth_infos
            .into_iter()
            .map(|u| u.auth_info.unwrap())
            .collect();
        assert_eq!(users[0].token_file, full("token"));
        assert_eq!(users[0].client_key.as_deref(), Some("/k"));
        assert_eq!(users[0].exec.as_ref().unwrap().command, full("./login"));
        assert!(users[1].token.is_some());
        assert_eq!(
            users[1].exec.as_ref().unwrap().command.as_deref(),
            Some("aws")
        );
    }

    #[test]
    fn files_that_are_missing_are_passed_over_unless_all_are() {
        let directory = tempfile::tempdir().unwrap();
        let place = |name: &str| directory.path().join(name);
        fs::write(place("there"), FIRST).unwrap();
        let found = read_listed(&[place("missing"), place("there")]).unwrap();
        assert_eq!(found.current_context.as_deref(), Some("a"));
        let why = read_listed(&[place("missing"), place("other")]).unwrap_err();
        assert!(why.contains("missing"), "{why}");
        assert!(read_listed(&[]).unwrap_err().contains("HOME"));
    }

    #[test]
    fn what_is_no_kubeconfig_is_refused_with_the_files_name() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("config");
        assert!(read_file(&place).unwrap_err().contains("config"));
        for wrong in [
            &b"clusters: 1\n"[..],
            b"a: [",
            b"\xff\xff",
            b"\xff\xfe\x00\xd8",
        ] {
            fs::write(&place, wrong).unwrap();
            assert!(
                read_file(&place).unwrap_err().contains("config"),
                "{wrong:?}"
            );
        }
        fs::write(&place, "# nothing\n").unwrap();
        assert!(read_file(&place).unwrap().clusters.is_empty());
        fs::write(&place, [b"\xef\xbb\xbf", FIRST.as_bytes()].concat()).unwrap();
        assert_eq!(read_file(&place).unwrap().clusters.len(), 1);
    }
}

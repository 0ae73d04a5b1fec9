//! Keeps the plugin on a node: its program among the others, and its place in the CNI configuration that
//! the runtime uses, for as long as the DaemonSet runs.
//!
//! Files are replaced whole (written aside and renamed), so that a runtime never reads half of one. Others
//! write the same file when they start (Calico, Cilium, Flannel), so it is looked at each second. The
//! plugin stays when the DaemonSet's pod ends: it works alone, and a pod that is made while a newer version
//! starts must have its rules. Only `remove` takes it away, and restores the original bytes.

use crate::chain;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Extensions of the files that runtimes read; they use the first by name.
const READ: [&str; 3] = ["conf", "conflist", "json"];
/// Ends the name of a file as it was before; runtimes do not read it.
const SAVED: &str = "tulle-saved";
const LOOK: Duration = Duration::from_secs(1);

/// The directories of a node.
pub(crate) struct Node {
    /// Where its runtime reads CNI configurations.
    pub(crate) configurations: PathBuf,
    /// Where its runtime finds plugins.
    pub(crate) programs: PathBuf,
}

fn trouble(what: &str, path: &Path) -> impl Fn(io::Error) -> String {
    let at = format!("cannot {what} {}", path.display());
    move |error| format!("{at}: {error}")
}

/// `10-a.conf` to `10-a.conf.tulle-saved`.
fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(end);
    PathBuf::from(name)
}

fn has_end(path: &Path, ends: &[&str]) -> bool {
    path.extension()
        .is_some_and(|end| ends.iter().any(|e| end == *e))
}

/// Writes the whole file or nothing, even if the machine loses power.
fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), String> {
    let aside = path.with_file_name(format!(".{}.new", chain::NAME));
    let written = || {
        let mut file = File::create(&aside)?;
        file.set_permissions(Permissions::from_mode(mode))?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&aside, path)
    };
    written().map_err(trouble("write", path))
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).map_or(0o600, |m| m.permissions().mode() & 0o777)
}

/// Deletes a file that may not exist.
fn delete(path: &Path) -> Result<(), String> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(trouble("delete", path)(error))
        }
        _ => Ok(()),
    }
}

impl Node {
    fn program(&self) -> PathBuf {
        self.programs.join(chain::NAME)
    }

    /// Names in the directory of configurations, in order.
    fn files(&self) -> Result<Vec<PathBuf>, String> {
        let listed = fs::read_dir(&self.configurations).and_then(|all| {
            all.map(|entry| Ok(entry?.path()))
                .collect::<io::Result<Vec<_>>>()
        });
        let mut files = listed.map_err(trouble("read", &self.configurations))?;
        files.sort_unstable();
        Ok(files)
    }

    /// The one that the runtime uses.
    fn configuration(&self) -> Result<(PathBuf, String), String> {
        let mut files = self.files()?.into_iter().filter(|f| has_end(f, &READ));
        let found = files.find_map(|file| {
            // A file that cannot be read or means nothing is skipped, as runtimes do.
            let text = fs::read_to_string(&file).ok()?;
            chain::with(&text).is_some().then_some((file, text))
        });
        found.ok_or_else(|| {
            format!(
                "no CNI configuration in {}: the cluster's network is not there yet, or elsewhere",
                self.configurations.display()
            )
        })
    }

    /// Installs the plugin, and keeps it installed until a signal ends the process.
    pub(crate) fn keep(&self) -> Result<(), String> {
        let end = on_signal()?;
        let mut known = String::new();
        while !end.load(Ordering::Relaxed) {
            match self.put() {
                Ok(None) => known.clear(),
                Ok(Some(path)) => {
                    known.clear();
                    println!("tulle-cni: added to {}", path.display());
                }
                Err(why) if why != known => {
                    eprintln!("tulle-cni: {why}");
                    known = why;
                }
                Err(_) => {}
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Adds the plugin where it is missing. Returns the file that was changed, if any.
    fn put(&self) -> Result<Option<PathBuf>, String> {
        // The program first: a configuration that names none that is there fails every pod.
        if !self.has_program()? {
            write(&self.program(), &own_program()?, 0o755)?;
        }
        let (file, text) = self.configuration()?;
        if chain::has(&text) {
            return Ok(None);
        }
        let Some(chained) = chain::with(&text) else {
            return Ok(None);
        };
        let saved = with_end(&file, SAVED);
        if has_end(&file, &["conflist"]) {
            // A file with an older entry of ours is not the original, so it is not saved.
            if chain::without(&text).is_none() {
                write(&saved, text.as_bytes(), mode(&file))?;
            }
            write(&file, chained.as_bytes(), mode(&file))?;
        } else {
            // The other form has no room for a second plugin. Its name comes first, so it is in force
            // until it has another.
            write(
                &with_end(&file, "conflist"),
                chained.as_bytes(),
                mode(&file),
            )?;
            fs::rename(&file, &saved).map_err(trouble("rename", &file))?;
        }
        Ok(Some(file))
    }

    fn has_program(&self) -> Result<bool, String> {
        match fs::read(self.program()) {
            Ok(bytes) => Ok(bytes == own_program()? && mode(&self.program()) == 0o755),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(trouble("read", &self.program())(error)),
        }
    }

    /// Whether pods that are made now get their rules.
    pub(crate) fn kept(&self) -> Result<(), String> {
        let (file, text) = self.configuration()?;
        if !chain::has(&text) {
            return Err(format!("{} does not call the plugin", file.display()));
        }
        match self.has_program()? {
            true => Ok(()),
            false => Err(format!("{} is not this program", self.program().display())),
        }
    }

    /// Takes the plugin away. As the process of a container it stays, for what ends there begins again.
    pub(crate) fn remove(&self) -> Result<(), String> {
        let end = on_signal()?;
        self.take_away()?;
        println!("tulle-cni: removed from this node");
        while std::process::id() == 1 && !end.load(Ordering::Relaxed) {
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    fn take_away(&self) -> Result<(), String> {
        let files = self.files()?;
        for file in files.iter().filter(|f| has_end(f, &["conflist"])) {
            let text = fs::read_to_string(file).map_err(trouble("read", file))?;
            let Some(list) = chain::without(&text) else {
                continue;
            };
            let original = file.with_extension("");
            if has_end(&original, &READ) {
                // This file was made of one in the other form, which is restored before this one is
                // deleted.
                let saved = with_end(&original, SAVED);
                if !original.exists() && saved.exists() {
                    fs::rename(&saved, &original).map_err(trouble("rename", &saved))?;
                }
                if original.exists() {
                    delete(file)?;
                    continue;
                }
            }
            let before = fs::read_to_string(with_end(file, SAVED)).unwrap_or_default();
            let same = serde_json::from_str::<serde_json::Value>(&before).is_ok_and(|b| b == list);
            // Others may have changed it since.
            let text = if same { before } else { format!("{list:#}\n") };
            write(file, text.as_bytes(), mode(file))?;
        }
        for file in files.iter().filter(|f| has_end(f, &[SAVED])) {
            delete(file)?;
        }
        delete(&self.program())
    }

    /// Whether nothing is left.
    pub(crate) fn removed(&self) -> Result<(), String> {
        for file in self.files()? {
            let text = fs::read_to_string(&file).unwrap_or_default();
            if has_end(&file, &[SAVED])
                || (has_end(&file, &READ) && chain::without(&text).is_some())
            {
                return Err(format!("{} is still there", file.display()));
            }
        }
        match self.program().exists() {
            true => Err(format!("{} is still there", self.program().display())),
            false => Ok(()),
        }
    }
}

fn own_program() -> Result<Vec<u8>, String> {
    fs::read("/proc/self/exe").map_err(|e| format!("cannot read its own program: {e}"))
}

fn on_signal() -> Result<Arc<AtomicBool>, String> {
    let end = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        let registered = signal_hook::flag::register(signal, end.clone());
        registered.map_err(|e| format!("cannot listen for signals: {e}"))?;
    }
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str =
        "{\"cniVersion\":\"1.0.0\",  \"name\":\"n\", \"plugins\":[{\"type\":\"bridge\"}]}";
    const SINGLE: &str = "{\"cniVersion\":\"1.0.0\", \"name\":\"n\", \"type\":\"bridge\"}";

    /// A node with these configurations.
    fn node(files: &[(&str, &str)]) -> (tempfile::TempDir, Node) {
        let directory = tempfile::tempdir().unwrap();
        let node = Node {
            configurations: directory.path().join("net.d"),
            programs: directory.path().join("bin"),
        };
        for path in [&node.configurations, &node.programs] {
            fs::create_dir(path).unwrap();
        }
        for (name, text) in files {
            fs::write(node.configurations.join(name), text).unwrap();
        }
        (directory, node)
    }

    fn all(node: &Node) -> Vec<(String, String)> {
        let files = node.files().unwrap().into_iter();
        let named = files.map(|f| (f.file_name().unwrap().to_str().unwrap().to_owned(), f));
        named
            .map(|(name, f)| (name, fs::read_to_string(f).unwrap()))
            .collect()
    }

    #[test]
    fn everything_is_as_before_once_it_is_removed() {
        for files in [
            &[
                ("10-a.conflist", LIST),
                ("20-b.conflist", LIST),
                ("README", "x"),
            ][..],
            &[("10-a.conf", SINGLE), ("20-b.conflist", LIST)],
            &[("00-broken.conf", "{"), ("10-a.json", SINGLE)],
        ] {
            let (_directory, node) = node(files);
            let before = all(&node);
            assert!(node.kept().is_err());
            node.removed().unwrap();
            assert!(node.put().unwrap().is_some());
            assert!(node.put().unwrap().is_none());
            node.kept().unwrap();
            assert!(node.removed().is_err());
            assert_eq!(mode(&node.program()), 0o755);
            node.take_away().unwrap();
            assert_eq!(all(&node), before);
            node.removed().unwrap();
            node.take_away().unwrap();
        }
    }

    #[test]
    fn what_others_have_written_meanwhile_stays() {
        let (_directory, node) = node(&[("10-a.conflist", LIST)]);
        node.put().unwrap();
        // The file's owner starts again and writes another one, without the plugin.
        let other = LIST.replace("bridge", "ptp");
        fs::write(node.configurations.join("10-a.conflist"), &other).unwrap();
        assert!(node.kept().is_err());
        assert!(node.put().unwrap().is_some());
        node.kept().unwrap();
        // Or adds a plugin behind.
        let file = node.configurations.join("10-a.conflist");
        let text = fs::read_to_string(&file).unwrap();
        let mut list: serde_json::Value = serde_json::from_str(&text).unwrap();
        list["plugins"]
            .as_array_mut()
            .unwrap()
            .push(serde_json::json!({ "type": "portmap" }));
        fs::write(&file, list.to_string()).unwrap();
        assert!(node.put().unwrap().is_none());
        node.take_away().unwrap();
        let text = fs::read_to_string(&file).unwrap();
        assert!(
            text.contains("ptp") && text.contains("portmap") && !text.contains(chain::NAME),
            "{text}"
        );
        node.removed().unwrap();
    }

    #[test]
    fn a_program_of_another_version_is_replaced() {
        let (_directory, node) = node(&[("10-a.conflist", LIST)]);
        fs::write(node.program(), "older").unwrap();
        node.put().unwrap();
        node.kept().unwrap();
    }

    #[test]
    fn a_node_without_a_network_says_so() {
        let (_directory, node) = node(&[("README", LIST)]);
        let why = node.put().unwrap_err();
        assert!(why.contains("no CNI configuration in"), "{why}");
    }
}

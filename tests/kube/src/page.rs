//! A page of docs whose commands and objects a test takes from the page itself, and a shell to run them in.

use crate::{Cluster, root};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// A page of docs.
pub struct Page(String);

impl Page {
    /// Reads a page, named from the top of the repository.
    ///
    /// # Panics
    /// It cannot be read.
    pub fn read(path: &str) -> Self {
        let read = fs::read_to_string(root().join(path));
        Self(read.unwrap_or_else(|e| panic!("{path}: {e}")))
    }

    /// The fenced blocks of a kind (`sh`, `console`, `yaml`) under a heading of the second level.
    ///
    /// # Panics
    /// There is no such heading.
    pub fn blocks(&self, heading: &str, kind: &str) -> Vec<&str> {
        let begins = format!("\n## {heading}\n");
        let section = self.0.split_once(&begins);
        let (_, section) = section.unwrap_or_else(|| panic!("the page has no heading {heading:?}"));
        let section = section.split("\n## ").next().unwrap_or_default();
        let fenced = section.split("\n```").skip(1).step_by(2);
        let of_kind = fenced.filter_map(|block| block.split_once('\n'));
        let of_kind = of_kind.filter(|(first, _)| *first == kind);
        of_kind.map(|(_, text)| text).collect()
    }
}

/// A command that ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit code.
    pub code: i32,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub err: String,
}

/// A shell where the cluster's network is, with `kubectl` and `tulle` in its PATH.
pub struct Shell<'a> {
    cluster: &'a Cluster,
    programs: tempfile::TempDir,
}

impl<'a> Shell<'a> {
    /// Makes its programs.
    ///
    /// # Panics
    /// The system does not let it.
    pub fn new(cluster: &'a Cluster) -> Self {
        let programs = tempfile::tempdir().expect("a directory for programs");
        let told = cluster.command(&["programs"]).output();
        let told = told.expect("cluster.sh programs").stdout;
        let kube = PathBuf::from(String::from_utf8_lossy(&told).trim());
        let script = format!("#!/bin/sh\nexec {}/kube kubectl \"$@\"\n", kube.display());
        let kubectl = programs.path().join("kubectl");
        fs::write(&kubectl, script).expect("kubectl");
        fs::set_permissions(&kubectl, fs::Permissions::from_mode(0o755)).expect("kubectl");
        let tulle = root().join("target/debug/tulle");
        symlink(tulle, programs.path().join("tulle")).expect("tulle");
        Self { cluster, programs }
    }

    /// The directory of its programs.
    pub fn programs(&self) -> &Path {
        self.programs.path()
    }

    /// Runs a line.
    ///
    /// # Panics
    /// The shell does not start.
    pub fn run(&self, line: &str) -> Ended {
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{path}", self.programs().display());
        let mut command = self.cluster.command(&["exec", "sh", "-c", line]);
        let done = command.env("PATH", path).output();
        let done = done.unwrap_or_else(|e| panic!("{line}: {e}"));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let answer = Ended {
            code: done.status.code().unwrap_or(-1),
            out: text(&done.stdout),
            err: text(&done.stderr),
        };
        println!("$ {line}\n{}{}? {}", answer.out, answer.err, answer.code);
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_those_of_their_heading_and_kind() {
        let text = "# Page\n\n## One\n\n```sh\na\nb\n```\n\ntext\n\n```yaml\nc: d\n```\n\n### Within\n\n```sh\ne\n```\n\n## Two\n\n```sh\nf\n```\n";
        let page = Page(text.to_owned());
        assert_eq!(page.blocks("One", "sh"), ["a\nb", "e"]);
        assert_eq!(page.blocks("One", "yaml"), ["c: d"]);
        assert_eq!(page.blocks("Two", "sh"), ["f"]);
        assert!(page.blocks("Two", "console").is_empty());
    }
}

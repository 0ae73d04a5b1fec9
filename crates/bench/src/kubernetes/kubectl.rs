//! `kubectl`: whoever can use the cluster has it, with its contexts and ways to sign in.

use crate::failure::{Failure, FailureKind, OrFail, Result};
use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The program.
#[derive(Debug, Clone)]
pub struct Kubectl {
    program: PathBuf,
}

impl Kubectl {
    /// Finds it, and a cluster that answers.
    ///
    /// # Errors
    /// One of them is not there.
    pub fn new(program: &Path) -> Result<Self> {
        let this = Self {
            program: program.to_owned(),
        };
        this.text(&["version", "--output=json"]).map_err(|why| {
            Failure::new(
                FailureKind::Usage,
                format!("no cluster to measure in: {why}"),
            )
        })?;
        Ok(this)
    }

    /// The program with these words.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words);
        command
    }

    /// Runs `kubectl` and returns its output.
    ///
    /// # Errors
    /// It fails, with what it says.
    pub fn text(&self, words: &[&str]) -> Result<String> {
        let what = || format!("cannot run {}", self.program.display());
        let done = self.command(words).output().or_fail(what)?;
        if !done.status.success() {
            let said = String::from_utf8_lossy(&done.stderr);
            let text = format!("kubectl {}: {}", words.join(" "), said.trim());
            return Err(Failure::failed(text));
        }
        Ok(String::from_utf8_lossy(&done.stdout).into_owned())
    }

    /// The same as JSON.
    ///
    /// # Errors
    /// It fails, or prints something else.
    pub fn json(&self, words: &[&str]) -> Result<Value> {
        let text = self.text(words)?;
        serde_json::from_str(&text).or_fail(|| format!("kubectl {}", words.join(" ")))
    }

    /// Returns the version of the cluster's API server.
    ///
    /// # Errors
    /// It does not say.
    pub fn version(&self) -> Result<String> {
        let version = self.json(&["version", "--output=json"])?;
        let server = version.pointer("/serverVersion/gitVersion");
        Ok(server
            .and_then(Value::as_str)
            .unwrap_or("unknown")
            .to_owned())
    }

    /// Applies objects.
    ///
    /// # Errors
    /// They are refused.
    pub fn apply(&self, objects: &[Value]) -> Result<()> {
        let list = serde_json::json!({ "apiVersion": "v1", "kind": "List", "items": objects });
        let what = || format!("cannot run {}", self.program.display());
        let mut child = self
            .command(&["apply", "-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .or_fail(what)?;
        if let Some(mut stdin) = child.stdin.take() {
            // One that ended early says why below.
            let _ = stdin.write_all(list.to_string().as_bytes());
        }
        let done = child.wait_with_output().or_fail(what)?;
        if !done.status.success() {
            let said = String::from_utf8_lossy(&done.stderr);
            return Err(Failure::failed(format!("kubectl apply: {}", said.trim())));
        }
        Ok(())
    }
}

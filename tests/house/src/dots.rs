//! Finds code that takes a name apart at a dot, or joins one with a dot.
//!
//! A name in a namespace is a type (`crates/model/src/namespaced.rs`), and the namespace decides who may change what.
//! So in the folders that `dots.txt` lists nobody cuts the namespace out of a text.

use super::sources::{code, texts};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Calls that find a dot in a text or cut it there.
const CUTS: [&str; 12] = [
    "split",
    "rsplit",
    "split_once",
    "rsplit_once",
    "splitn",
    "rsplitn",
    "split_terminator",
    "find",
    "rfind",
    "strip_prefix",
    "strip_suffix",
    "ends_with",
];

/// Says which lines of code under `folder` cut or join at a dot, as `file:line: text`.
pub fn found(files: &BTreeMap<PathBuf, String>, folder: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for (name, code) in code(files) {
        if !name.starts_with(folder) {
            continue;
        }
        let Some(text) = files.get(name) else {
            continue;
        };
        // In `code` characters and texts are blank, and these are what is looked for.
        for (number, (line, code)) in text.lines().zip(code.lines()).enumerate() {
            let line = line.split("//").next().unwrap_or_default().trim();
            if !code.trim().is_empty() && (cuts(line) || joins(line)) {
                all.push(format!("{}:{}: {line}", name.display(), number + 1));
            }
        }
    }
    all
}

fn cuts(line: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    ["'.'", "\"."].iter().any(|dot| {
        line.match_indices(dot).any(|(at, _)| {
            let before = line.get(..at).unwrap_or_default();
            // The end of a text, and a call that begins with a dot.
            if dot.starts_with('"') && before.matches('"').count() % 2 == 1 {
                return false;
            }
            // The name of the call whose argument it is.
            let before = before.strip_suffix("format!(").unwrap_or(before);
            let called = before.rsplit_once('(').map_or("", |(called, _)| called);
            let called = called.rsplit(|c| !is_word(c)).next().unwrap_or_default();
            CUTS.contains(&called)
        })
    })
}

/// Whether a text puts a dot between two values.
fn joins(line: &str) -> bool {
    line.contains("}.{")
}

/// Checks the folders that `dots.txt` lists against the sources under `crates`.
///
/// # Errors
/// A folder has more such lines than it may have, or fewer; or something cannot be read.
pub fn check(list: &str, crates: &Path) -> Result<(), String> {
    let mut wrong = String::new();
    for line in list.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let words: Vec<&str> = line.split_whitespace().collect();
        let (name, folder, most) = match words.as_slice() {
            [] => continue,
            [name, folder, most] => (name, folder, most.parse::<usize>()),
            _ => return Err(format!("dots.txt: `{line}` is not `CRATE FOLDER NUMBER`")),
        };
        let most = most.map_err(|e| format!("dots.txt: `{line}`: {e}"))?;
        let found = found(&texts(&crates.join(name).join("src"))?, Path::new(folder));
        let place = format!("crates/{name}/src/{folder}");
        // Writing to memory does not fail.
        if found.len() > most {
            let _ = writeln!(
                wrong,
                "{place}: {} lines cut or join a text at a dot, {most} may. A name in a namespace is a `Namespaced` \
                 or an `ObjectName`: parse it where it comes in.\n  {}",
                found.len(),
                found.join("\n  ")
            );
        } else if found.len() < most {
            let _ = writeln!(
                wrong,
                "{place}: only {} are left: say so in dots.txt",
                found.len()
            );
        }
    }
    match wrong.as_str() {
        "" => Ok(()),
        _ => Err(wrong),
    }
}

//! Everything accepted has an effect: every field of every kind, and every annotation and label of the mesh,
//! is in `list.txt` with what reads it. One that is not in the list fails here, and so does a line whose
//! file no longer reads it.
//!
//! This is about the text of the sources. Whether the effect is the right one, the tests of each subject say.

#![allow(clippy::unwrap_used)] // helpers of tests

use regex::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const LIST: &str = include_str!("list.txt");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    let text = std::fs::read_to_string(root().join(path));
    text.unwrap_or_else(|e| panic!("{path}, which list.txt names: {e}"))
}

/// A source file without its tests and comments.
fn code(path: &str) -> String {
    let text = read(path);
    let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let lines = code.lines().filter(|l| !l.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// The lines of the list about labels and annotations, or those about fields.
fn lines(keys: bool) -> impl Iterator<Item = Vec<&'static str>> {
    let lines = LIST
        .lines()
        .filter(|l| !l.is_empty() && !l.starts_with('#'));
    let lines = lines.map(|l| l.split(' ').collect::<Vec<_>>());
    lines.filter(move |words| ["key", "own"].contains(&words[0]) == keys)
}

fn sources(directory: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && !name.ends_with("tests") {
            sources(&path, found);
        } else if name.ends_with(".rs") && name != "tests.rs" && name != "testing.rs" {
            let path = path.strip_prefix(root()).unwrap();
            found.push(path.to_string_lossy().into_owned());
        }
    }
}

/// `Struct.field` of all types that manifests are read as.
fn fields() -> BTreeSet<String> {
    let mut files = Vec::new();
    sources(&root().join("crates/model/src/manifest/types"), &mut files);
    assert!(files.len() > 10, "{files:?}");
    let structure = Regex::new(r"^pub struct (\w+)").unwrap();
    let field = Regex::new(r"^    pub (\w+): ").unwrap();
    let mut found = BTreeSet::new();
    for file in files {
        let (mut name, mut skipped) = (String::new(), false);
        for line in read(&file).lines() {
            if let Some(begins) = structure.captures(line) {
                name = begins[1].to_owned();
            } else if line.starts_with('}') {
                name.clear();
            } else if line.trim() == "#[serde(skip)]" {
                skipped = true; // nothing that a manifest says
            } else if let Some(field) = field.captures(line).filter(|_| !name.is_empty())
                && !std::mem::take(&mut skipped)
            {
                found.insert(format!("{name}.{}", &field[1]));
            }
        }
    }
    found
}

fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    let others = words.map(|w| format!("{}{}", w[..1].to_uppercase(), &w[1..]));
    others.fold(first, |all, word| all + &word)
}

#[test]
fn every_field_is_read_or_refused() {
    let mut listed = BTreeMap::new();
    let mut wrong = Vec::new();
    for words in lines(false) {
        let [structure, how, file, fields @ ..] = words.as_slice() else {
            panic!("{words:?}: expected STRUCT HOW FILE FIELD...");
        };
        for field in fields {
            let id = format!("{structure}.{field}");
            let is = match *how {
                // A field, a pattern, or its name where documents are told apart.
                "read" | "checked" => {
                    let shown = camel_case(field);
                    let pattern = format!(
                        r#"(?m)\.{field}(?-u:\b)(?:[^(]|$)|(?-u:\b){field}: Some\(|(?-u:\b){field},$|"{shown}""#
                    );
                    Regex::new(&pattern).unwrap().is_match(&code(file))
                }
                // The documentation says that it has no effect.
                "without-effect" => {
                    let shown = camel_case(field);
                    let said = read(file);
                    let mut said = said.lines();
                    said.any(|l| l.contains(&shown) && l.contains("without effect"))
                }
                _ => panic!("{id}: {how:?} is none of read, checked and without-effect"),
            };
            if !is {
                wrong.push(format!("{id}: {file} does not have it ({how})"));
            }
            if listed.insert(id.clone(), *file).is_some() {
                wrong.push(format!("{id} is there twice"));
            }
        }
    }
    let fields = fields();
    let missing = fields.iter().filter(|field| !listed.contains_key(*field));
    wrong.extend(missing.map(|field| {
        format!(
            "{field}: nothing says who reads it: add it to crates/model/tests/accepted/list.txt"
        )
    }));
    let gone = listed.keys().filter(|field| !fields.contains(*field));
    wrong.extend(gone.map(|field| format!("{field} is no field any more")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// `tulle.dev/…` wherever code names it, and the annotations of pods that the webhook knows.
fn keys() -> BTreeSet<String> {
    let literal = Regex::new(r#""tulle\.dev/([a-z-]+)""#).unwrap();
    let mut files = Vec::new();
    for name in [
        "kube", "cli", "control", "model", "proxy", "redirect", "cni",
    ] {
        sources(&root().join(format!("crates/{name}/src")), &mut files);
    }
    let mut found = BTreeSet::new();
    for file in &files {
        found.extend(
            literal
                .captures_iter(&code(file))
                .map(|key| key[1].to_owned()),
        );
    }
    let options = code("crates/kube/src/inject/options.rs");
    let list = options.split("const KNOWN: ").nth(1).unwrap();
    let list = list
        .split_once(" = [")
        .unwrap()
        .1
        .split_once("];")
        .unwrap()
        .0;
    let words = Regex::new(r#""([a-z-]+)""#).unwrap();
    found.extend(words.captures_iter(list).map(|key| key[1].to_owned()));
    found
}

#[test]
fn every_annotation_and_label_has_a_test() {
    let mut listed = BTreeSet::new();
    let mut wrong = Vec::new();
    for words in lines(true) {
        let (key, file, test) = match words.as_slice() {
            ["own", key] => {
                listed.insert((*key).to_owned());
                continue;
            }
            ["key", key, file, test] => (key, file, test),
            _ => panic!("{words:?}: expected key NAME FILE TEST or own NAME"),
        };
        let text = read(file);
        if !text.contains(&format!("fn {test}(")) {
            wrong.push(format!("{key}: {file} has no {test}"));
        }
        if !text.contains(&format!("tulle.dev/{key}")) {
            wrong.push(format!("{key}: {file} does not name it"));
        }
        if !listed.insert((*key).to_owned()) {
            wrong.push(format!("{key} is there twice"));
        }
    }
    let keys = keys();
    let missing = keys.difference(&listed);
    wrong.extend(missing.map(|key| {
        format!("tulle.dev/{key}: no test: add one to crates/model/tests/accepted/list.txt")
    }));
    let gone = listed.difference(&keys);
    wrong.extend(gone.map(|key| format!("tulle.dev/{key} is in no code any more")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

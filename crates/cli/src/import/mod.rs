//! `tulle import`: objects of another mesh, said in Tulle's kinds.
//!
//! Each field of an object is taken out as it is translated. What is left has no counterpart and is named, with what
//! to do instead: nothing is lost in silence. Nothing is applied either; the manifests are printed, to be looked at.

mod access;
mod cel;
mod fields;
mod grants;
mod groups;
mod imported;
mod istio;
mod labels;
mod linkerd;
mod mesh_config;
mod osm;
mod pods;
mod services;
mod source;
mod traffic;

use crate::args::import::{Import, OtherMesh};
use crate::args::output::Format;
use crate::failure::{Failure, OrFail, Result};
use crate::findings::FOUND;
use crate::output::{self, line};
use fields::texts;
pub(crate) use groups::{foreign_kinds, is_of, is_part, kinds};
use imported::Imported;
pub(crate) use labels::clean;
use serde_json::Value;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;
use tulle_model::{Booleans, YamlDocument, to_yaml};

/// Longest input, as for manifests.
const MAX_BYTES: u64 = 8 << 20;
/// Advice where a part of a policy has no counterpart.
const POLICY: &str = "write the policy anew: docs/manifests/access.md";
/// All networks: those who are allowed by their addresses alone need no certificate.
const EVERYWHERE: [&str; 2] = ["0.0.0.0/0", "::/0"];

/// Translates the files, prints what they become, and says with its exit code whether something was lost.
pub(crate) fn import(args: &Import) -> Result<ExitCode> {
    let mut objects = Vec::new();
    for file in &args.files {
        let (name, text) = read(file)?;
        for document in documents(&name, &text)? {
            flatten(&name, document, &mut objects)?;
        }
    }
    translate(args, objects)
}

/// Translates objects, prints what they become, and says with its exit code whether something was lost.
pub(crate) fn translate(args: &Import, objects: Vec<Value>) -> Result<ExitCode> {
    // OSM and FSM have the same kinds and differ in their API groups, which are read alike.
    let mut imported = match args.mesh {
        OtherMesh::Osm | OtherMesh::Fsm => osm::import(objects),
        OtherMesh::Istio => istio::import(objects),
        OtherMesh::Linkerd => linkerd::import(objects),
    };
    imported.lose_refused();
    imported.lose_twins();
    // A cluster has many others, which nobody named.
    if args.cluster {
        imported.untouched.clear();
    }
    show(&imported, args.format.output)?;
    Ok(match imported.lost.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(FOUND),
    })
}

/// The text of a file, or of standard input for `-`.
fn read(file: &Path) -> Result<(String, String)> {
    let name = file.display().to_string();
    let what = || format!("cannot read {name}");
    let mut text = String::new();
    let bytes = match file.as_os_str() == "-" {
        true => std::io::stdin()
            .take(MAX_BYTES + 1)
            .read_to_string(&mut text),
        false => {
            let opened = fs::File::open(file).or_fail(what)?;
            opened.take(MAX_BYTES + 1).read_to_string(&mut text)
        }
    };
    if bytes.or_fail(what)? as u64 > MAX_BYTES {
        return Err(Failure::input(format!("{name} has more than 8 MiB")));
    }
    Ok((name, text))
}

/// The documents of a file of YAML or JSON.
fn documents(name: &str, text: &str) -> Result<Vec<Value>> {
    YamlDocument::read_json(text, Booleans::Strict)
        .map_err(|why| Failure::input(format!("{name} is not YAML")).because(why))
}

/// The objects of a document: itself, or what is in a List, as `kubectl get -o yaml` prints it. An empty one has none.
///
/// # Errors
/// It is no object, or has something that is none: with the wrong file nothing would be translated, and nothing lost.
fn flatten(name: &str, document: Value, objects: &mut Vec<Value>) -> Result<()> {
    let no_object = |value: &Value| {
        let what = match value {
            Value::Array(_) => "a list",
            Value::Object(_) => "a mapping",
            Value::String(_) => "a text",
            _ => "a number or truth value",
        };
        Failure::input(format!("{name} has {what} where an object should be"))
            .fix("give objects with `apiVersion` and `kind`, or a List of them in `items`, as kubectl get -o yaml prints them")
    };
    let is_list = document["items"].is_array()
        && document["kind"]
            .as_str()
            .is_some_and(|k| k.ends_with("List"));
    match document {
        Value::Object(mut list) if is_list => {
            if let Some(Value::Array(items)) = list.remove("items") {
                if let Some(item) = items.iter().find(|item| !item.is_object()) {
                    return Err(no_object(item));
                }
                objects.extend(items);
            }
        }
        Value::Object(_) => objects.push(document),
        Value::Null => {}
        other => return Err(no_object(&other)),
    }
    Ok(())
}

/// Manifests on standard output with what is to be known about each as a comment; what is lost on standard error, too.
fn show(imported: &Imported, format: Format) -> Result<()> {
    if output::structured(imported, format)? {
        return Ok(());
    }
    for made in &imported.objects {
        line("---");
        line(&format!("# from {}", one_line(&made.from.join(", "))));
        for note in &made.notes {
            line(&format!("# {}", one_line(note)));
        }
        let yaml = to_yaml(&made.object);
        line(yaml.map_err(Failure::new)?.trim_end());
    }
    for loss in &imported.lost {
        let text = format!(
            "{}: {}: {}; {}",
            loss.object, loss.field, loss.why, loss.instead
        );
        let text = one_line(&text);
        line(&format!("# lost: {text}"));
        output::progress(&format!("lost: {text}"));
    }
    if !imported.untouched.is_empty() {
        let names = imported.untouched.join(", ");
        let names = one_line(&names);
        output::progress(&format!("not this mesh's, and left as they are: {names}"));
    }
    Ok(())
}

/// A text of a file without line ends and what moves a terminal's cursor. Behind a line end a comment would be none, and
/// what follows would be applied.
fn one_line(text: &str) -> String {
    let breaks = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
    text.replace(breaks, " ")
}

#[cfg(test)]
mod bookstore;
#[cfg(test)]
mod tests;

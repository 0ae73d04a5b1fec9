//! Manifests: Kubernetes-style documents (`apiVersion`, `kind`, `metadata`, `spec`), read strictly.
//!
//! A field that is not known, or known to the API but without effect here, is an error: its author
//! expects something to happen. No I/O: callers read the files. This module does not decide the
//! effect of objects on the mesh, only whether they can have one.

mod allowed;
mod check;
mod kinds;
mod meaning;
pub(crate) mod names;
mod qualify;
mod quantity;
mod set;
mod types;
mod unsupported;

use crate::document::{Finding, Node, Path, Report, Value, did_you_mean, required, shorten};
use kinds::{KINDS, Kind};
use std::collections::HashSet;

pub use crate::document::ManifestError;
pub use allowed::LOG_LEVELS;
pub use kinds::{Object, kinds};
pub use meaning::{FilterRefs, filters_of};
pub use names::is_object_name;
pub use quantity::{
    InvalidQuantity, parse_cpu, parse_duration, parse_memory, parse_pause, parse_percent,
};
pub use set::{
    EXPIRED, NO_ENDPOINT, NO_TEXT, OBSERVED, Problem, SAME_NAME, Severity, TWO_MESHES, UNUSABLE,
    validate_set,
};
pub use types::*;

/// Label on a Workload that belongs to a joined host; its value is that host's name. A Workload
/// without it belongs to the controller's host.
pub const NODE_LABEL: &str = "tulle.dev/node";

/// An object and where it stood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located<T> {
    /// The file's name as given to [`parse`].
    pub file: String,
    /// Which document of the file, from 0; empty documents are not counted.
    pub document: usize,
    /// The line it starts on, from 1.
    pub line: u32,
    /// The object.
    pub object: T,
}

/// Reads every document of a YAML file. `file` is only used in messages.
///
/// # Errors
/// Everything found wrong, in the order of the file. A syntax error hides what follows it.
pub fn parse(file: &str, text: &str) -> Result<Vec<Located<Object>>, Vec<ManifestError>> {
    let documents = Node::parse_yaml(text)
        .map_err(|finding| vec![finding.into_error(file, 0, &Node::empty(), None)])?;
    let mut objects = Vec::new();
    let mut errors = Vec::new();
    for (document, root) in documents.iter().enumerate() {
        match read(root) {
            Ok(object) => objects.push(Located {
                file: file.to_owned(),
                document,
                line: root.at.line,
                object,
            }),
            Err(findings) => {
                let name = object_name(root);
                let locate = |f: Finding| f.into_error(file, document, root, name.clone());
                let mut found: Vec<_> = findings.into_iter().map(locate).collect();
                found.sort_by_key(|e| (e.line, e.column));
                errors.extend(found);
            }
        }
    }
    if errors.is_empty() {
        Ok(objects)
    } else {
        Err(errors)
    }
}

/// `Kind/name`, as far as the document tells.
fn object_name(root: &Node) -> Option<String> {
    let kind = shorten(root.get("kind")?.text()?);
    match root.get("metadata").and_then(|m| m.get("name")?.text()) {
        Some(name) => Some(format!("{kind}/{}", shorten(name))),
        None => Some(kind),
    }
}

fn read(root: &Node) -> Result<Object, Vec<Finding>> {
    let mut report = Report::default();
    let object = kind_of(root, &mut report).and_then(|kind| (kind.read)(root, &mut report));
    match object {
        Some(object) if report.is_empty() => Ok(object),
        _ => Err(report.into_findings()),
    }
}

/// The document's kind, if it and its version are known.
fn kind_of(root: &Node, report: &mut Report) -> Option<&'static Kind> {
    let top = Path::default();
    if !matches!(root.value, Value::Map(_)) {
        let problem = format!(
            "expected a mapping with `apiVersion`, `kind`, `metadata` and `spec`, found {}",
            root.describe()
        );
        report.add(&top, problem, "");
        return None;
    }
    let mut text = |field: &str| match root.get(field) {
        None => {
            report.add(
                &top.key(field),
                "required field is missing",
                required(field),
            );
            None
        }
        Some(node) => match node.text() {
            None => {
                let problem = format!("expected text, found {}", node.describe());
                report.add(&top.key(field), problem, "");
                None
            }
            some => some,
        },
    };
    let (version, kind) = (text("apiVersion"), text("kind"));
    let (version, kind) = (version?, kind?);
    let same: Vec<&Kind> = KINDS.iter().filter(|k| k.written == kind).collect();
    if same.is_empty() {
        let problem = format!(
            "unknown kind `{}`, expected one of {}",
            shorten(kind),
            known_kinds()
        );
        let hint = did_you_mean(kind, KINDS.iter().map(|k| k.written));
        let hint = hint.map_or_else(String::new, |kind| format!("did you mean `{kind}`?"));
        report.add(&top.key("kind"), problem, hint);
        return None;
    }
    let found = same.iter().find(|k| k.versions.contains(&version));
    if found.is_none() {
        let versions: Vec<&str> = same.iter().flat_map(|k| k.versions).copied().collect();
        let problem = format!(
            "unknown version `{}` of {kind}, expected `{}`",
            shorten(version),
            versions.join("` or `")
        );
        report.add(&top.key("apiVersion"), problem, "");
    }
    found.copied()
}

fn known_kinds() -> String {
    let mut kinds: Vec<String> = KINDS.iter().map(|k| format!("`{}`", k.written)).collect();
    let mut seen = HashSet::new();
    kinds.retain(|kind| seen.insert(kind.clone()));
    kinds.join(", ")
}

impl Object {
    /// Unique within its kind.
    pub fn name(&self) -> &str {
        &self.metadata().name
    }

    /// `Kind/name`, as in messages.
    pub fn id(&self) -> String {
        format!("{}/{}", self.kind(), self.name())
    }

    /// Reads the stored form, as strictly as a file.
    ///
    /// # Errors
    /// Everything found wrong; without lines.
    pub fn from_json(json: &str) -> Result<Self, Vec<ManifestError>> {
        let root = serde_json::from_str(json).map_err(|e| {
            let finding = Finding::new(format!("not valid JSON: {e}"));
            vec![finding.into_error("object", 0, &Node::empty(), None)]
        })?;
        let root = Node::from_json(root);
        read(&root).map_err(|findings| {
            let name = object_name(&root);
            let locate = |f: Finding| f.into_error("object", 0, &root, name.clone());
            findings.into_iter().map(locate).collect()
        })
    }
}

//! Manifests: Kubernetes-style documents (`apiVersion`, `kind`, `metadata`, `spec`), read strictly.
//!
//! A field that is not known, or known to the API but without effect here, is an error: whoever
//! wrote it expects something to happen. No I/O: callers read the files. What the objects mean for
//! the mesh is not decided here, only whether they can mean anything.

mod check;
mod check_routing;
mod meaning;
mod names;
mod quantity;
mod set;
mod types;
mod unsupported;

use crate::document::{
    Finding, Node, Path, Report, Value, decode, did_you_mean, required, shorten,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use crate::document::ManifestError;
pub use check::SIDECAR_USER;
pub use quantity::{InvalidQuantity, parse_cpu, parse_duration, parse_memory};
pub use set::{Problem, Severity, validate_set};
pub use types::*;

/// Label on a Workload that belongs to a host which joined; its value is that host's name. What does
/// not have it belongs to the controller's host.
pub const NODE_LABEL: &str = "tulle.dev/node";

/// `apiVersion` and `kind` of everything accepted.
const KINDS: [(&str, &str); 6] = [
    ("tulle.dev/v1alpha1", "Mesh"),
    ("tulle.dev/v1alpha1", "Workload"),
    ("gateway.networking.k8s.io/v1", "Gateway"),
    ("gateway.networking.k8s.io/v1", "HTTPRoute"),
    ("access.smi-spec.io/v1alpha3", "TrafficTarget"),
    ("specs.smi-spec.io/v1alpha4", "HTTPRouteGroup"),
];

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
    let object = match kind_of(root, &mut report) {
        Some("Mesh") => one(root, &mut report, check::mesh).map(Object::Mesh),
        Some("Workload") => one(root, &mut report, check::workload).map(Object::Workload),
        Some("Gateway") => one(root, &mut report, check_routing::gateway).map(Object::Gateway),
        Some("HTTPRoute") => {
            one(root, &mut report, check_routing::http_route).map(Object::HttpRoute)
        }
        Some("TrafficTarget") => {
            one(root, &mut report, check_routing::traffic_target).map(Object::TrafficTarget)
        }
        Some("HTTPRouteGroup") => {
            one(root, &mut report, check_routing::http_route_group).map(Object::HttpRouteGroup)
        }
        _ => None,
    };
    match object {
        Some(object) if report.is_empty() => Ok(object),
        _ => Err(report.into_findings()),
    }
}

fn one<S: DeserializeOwned>(
    root: &Node,
    report: &mut Report,
    check: fn(&Manifest<S>, &mut Report),
) -> Option<Manifest<S>> {
    let manifest = decode(root, unsupported::explain, report)?;
    check(&manifest, report);
    Some(manifest)
}

/// The document's kind, if it and its version are known.
fn kind_of(root: &Node, report: &mut Report) -> Option<&'static str> {
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
    let Some((expected, known)) = KINDS.iter().find(|(_, known)| *known == kind) else {
        let problem = format!(
            "unknown kind `{}`, expected one of {}",
            shorten(kind),
            known_kinds()
        );
        let hint = did_you_mean(kind, KINDS.iter().map(|(_, kind)| *kind));
        let hint = hint.map_or_else(String::new, |kind| format!("did you mean `{kind}`?"));
        report.add(&top.key("kind"), problem, hint);
        return None;
    };
    if version != *expected {
        let problem = format!(
            "unknown version `{}` of {known}, expected `{expected}`",
            shorten(version)
        );
        report.add(&top.key("apiVersion"), problem, "");
        return None;
    }
    Some(known)
}

fn known_kinds() -> String {
    KINDS
        .map(|(version, kind)| format!("`{kind}` ({version})"))
        .join(", ")
}

/// Runs the same code for whichever manifest an object holds.
macro_rules! each {
    ($object:expr, $manifest:ident => $body:expr) => {
        match $object {
            Object::Mesh($manifest) => $body,
            Object::Workload($manifest) => $body,
            Object::Gateway($manifest) => $body,
            Object::HttpRoute($manifest) => $body,
            Object::TrafficTarget($manifest) => $body,
            Object::HttpRouteGroup($manifest) => $body,
        }
    };
}

impl Object {
    /// Such as `HTTPRoute`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Mesh(_) => "Mesh",
            Self::Workload(_) => "Workload",
            Self::Gateway(_) => "Gateway",
            Self::HttpRoute(_) => "HTTPRoute",
            Self::TrafficTarget(_) => "TrafficTarget",
            Self::HttpRouteGroup(_) => "HTTPRouteGroup",
        }
    }

    /// Name and labels.
    pub fn metadata(&self) -> &Metadata {
        each!(self, m => &m.metadata)
    }

    /// Unique within its kind.
    pub fn name(&self) -> &str {
        &self.metadata().name
    }

    /// `Kind/name`, as in messages.
    pub fn id(&self) -> String {
        format!("{}/{}", self.kind(), self.name())
    }

    /// The stored form. Equal objects give the same bytes.
    pub fn to_json(&self) -> String {
        fn json<S: Serialize>(manifest: &Manifest<S>) -> String {
            serde_json::to_string(manifest).expect("structs with text keys have a JSON form")
        }
        each!(self, m => json(m))
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

    /// As a document that [`parse`] reads as the same object.
    pub fn to_yaml(&self) -> String {
        fn yaml<S: Serialize>(manifest: &Manifest<S>) -> String {
            serde_saphyr::to_string(manifest).expect("structs with text keys have a YAML form")
        }
        each!(self, m => yaml(m))
    }
}

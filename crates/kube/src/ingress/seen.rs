//! Reads Ingresses and their classes. Pure.

use super::{CLASS_ANNOTATION, CONTROLLER_NAME, IS_DEFAULT};
use crate::gateway_fields::{Labels, created};
use kube::core::DynamicObject;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Characters of regular expressions. A path that has them was written for a controller that reads
/// `ImplementationSpecific` so; as a prefix it would match nothing.
const OF_REGEX: &[char] = &[
    '(', ')', '[', ']', '{', '}', '|', '^', '$', '*', '+', '?', '\\',
];

/// An IngressClass.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Class {
    /// Its Ingresses are Tulle's to serve.
    pub(crate) is_ours: bool,
    /// It is the class of Ingresses that name none.
    pub(crate) is_default: bool,
    /// It refers to parameters, which are not read.
    pub(crate) has_parameters: bool,
    pub(crate) annotations: Labels,
}

impl From<DynamicObject> for Class {
    fn from(object: DynamicObject) -> Self {
        let annotations = object.metadata.annotations.unwrap_or_default();
        let spec = &object.data["spec"];
        Self {
            is_ours: spec["controller"] == CONTROLLER_NAME,
            is_default: annotations.get(IS_DEFAULT).is_some_and(|v| v == "true"),
            has_parameters: !spec["parameters"].is_null(),
            annotations,
        }
    }
}

/// An Ingress.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ingress {
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    pub(crate) created: String,
    pub(crate) status: Value,
    /// The class it names by field or annotation.
    pub(crate) class: Option<String>,
    /// Annotations that would change what is served, and do not.
    pub(crate) ignored: Vec<String>,
    /// Its rules; `None`: nothing that can be served.
    pub(crate) spec: Option<Spec>,
    /// Why its present version is not in force.
    pub(crate) refused: Option<String>,
}

impl Ingress {
    /// Reads an object. If it cannot be served as a whole, its last valid version stays in force.
    pub(crate) fn read(mut object: DynamicObject, before: Option<Self>) -> Self {
        let annotations = object.metadata.annotations.unwrap_or_default();
        let class = object.data["spec"]["ingressClassName"].as_str();
        let class = class.map(str::to_owned);
        let read = Spec::deserialize(&object.data["spec"].take());
        let read = read
            .map_err(|e| e.to_string())
            .and_then(|spec| spec.check().map(|()| spec));
        let uid = object.metadata.uid.unwrap_or_default();
        let (spec, refused) = match read {
            Ok(spec) => (Some(spec), None),
            Err(why) => {
                let before = before.filter(|b| b.uid == uid);
                (before.and_then(|b| b.spec), Some(why))
            }
        };
        Self {
            class: class.or_else(|| annotations.get(CLASS_ANNOTATION).cloned()),
            ignored: ignored(&annotations),
            resource_version: object.metadata.resource_version.unwrap_or_default(),
            created: created(object.metadata.creation_timestamp.as_ref()),
            status: object.data["status"].take(),
            uid,
            spec,
            refused,
        }
    }

    /// Returns the class it belongs to: the one it names, or the only one that is marked as default.
    pub(crate) fn class_among(&self, classes: &BTreeMap<String, Class>) -> Option<String> {
        let name = match &self.class {
            Some(name) => name.clone(),
            None => {
                let mut marked = classes.iter().filter(|(_, class)| class.is_default);
                let (name, _) = marked.next()?;
                if marked.next().is_some() {
                    return None;
                }
                name.clone()
            }
        };
        classes.get(&name).filter(|c| c.is_ours).map(|_| name)
    }
}

/// Finds annotations of this and other controllers that say how to serve an Ingress.
fn ignored(annotations: &BTreeMap<String, String>) -> Vec<String> {
    let is_about_it = |key: &&String| {
        let prefix = key.split('/').next().unwrap_or_default();
        prefix == "tulle.dev"
            || prefix == "ingress.kubernetes.io"
            || prefix.ends_with(".ingress.kubernetes.io")
    };
    annotations.keys().filter(is_about_it).cloned().collect()
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Spec {
    pub(super) default_backend: Option<Backend>,
    pub(super) tls: Vec<Tls>,
    pub(super) rules: Vec<Rule>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Tls {
    pub(super) hosts: Vec<String>,
    pub(super) secret_name: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Rule {
    host: Option<String>,
    pub(super) http: Option<Http>,
}

impl Rule {
    /// Returns the host in lower case; empty: every host.
    pub(super) fn host(&self) -> String {
        self.host
            .as_deref()
            .unwrap_or_default()
            .to_ascii_lowercase()
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Http {
    pub(super) paths: Vec<Path>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Path {
    path: Option<String>,
    path_type: String,
    pub(super) backend: Backend,
}

impl Path {
    /// Returns the path that is compared; none means every path.
    pub(super) fn path(&self) -> &str {
        match self.path.as_deref() {
            None | Some("") => "/",
            Some(path) => path,
        }
    }

    /// Returns whether the path must be this one; otherwise it may go on with further elements.
    pub(super) fn is_exact(&self) -> bool {
        self.path_type == "Exact"
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Backend {
    pub(super) service: Option<Service>,
    pub(super) resource: Option<Value>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Service {
    pub(super) name: String,
    pub(super) port: Port,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Port {
    pub(super) name: Option<String>,
    pub(super) number: Option<u16>,
}

impl Spec {
    /// Refuses paths that cannot be compared. To leave one out would send its requests to a wider one.
    fn check(&self) -> Result<(), String> {
        let rules = self.rules.iter().filter_map(|rule| rule.http.as_ref());
        for path in rules.flat_map(|http| &http.paths) {
            let (kind, text) = (path.path_type.as_str(), path.path());
            match kind {
                "Exact" | "Prefix" => {}
                "ImplementationSpecific" if text.contains(OF_REGEX) => {
                    return Err(format!(
                        "the path {text:?} is a regular expression, and ImplementationSpecific is read \
                         as Prefix here: use Prefix or Exact, or an HTTPRoute"
                    ));
                }
                "ImplementationSpecific" => {}
                other => return Err(format!("the pathType {other:?} is not known")),
            }
        }
        Ok(())
    }
}

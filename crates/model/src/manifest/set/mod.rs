//! Checks objects together.
//!
//! Objects may be applied in any order, so a reference to something absent is a warning; two
//! objects of one name are an error. An object with a warning is applied, but is probably not what
//! was meant.

mod admission;
mod code;
mod known;
mod overlaps;
mod policies;
mod references;
mod targets;

pub use code::{EXPIRED, NO_ENDPOINT, NO_TEXT, OBSERVED, SAME_NAME, TWO_MESHES, UNUSABLE};

use super::Object;
use known::Known;
use serde::Serialize;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

/// Whether a problem stops an apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Nothing is applied.
    Error,
    /// Applied, but probably not what was meant.
    Warning,
}

/// Something that does not fit between objects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The code, such as `TL0010`; docs/findings.md explains each.
    pub code: Cow<'static, str>,
    /// Whether it stops an apply.
    pub severity: Severity,
    /// `Kind/name` of the object to look at.
    pub object: String,
    /// Dotted path of the field; empty: the whole object.
    pub field: String,
    /// The fault, its consequence and its remedy.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        write!(f, "{severity} {}: {}: ", self.code, self.object)?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}

/// Checks all objects of a mesh together, errors first.
pub fn validate_set<'a>(objects: impl Iterator<Item = &'a Object>) -> Vec<Problem> {
    let objects: Vec<&Object> = objects.collect();
    let mut problems = Vec::new();
    duplicates(&objects, &mut problems);
    let known = Known::new(&objects);
    let admission = admission::Admission::new(&objects);
    for object in &objects {
        let mut found = Found {
            object: object.id(),
            problems: &mut problems,
        };
        references::check(&known, object, &mut found);
        policies::check(&known, object, &mut found);
        admission::check(&known, &admission, object, &mut found);
    }
    overlaps::check(&objects, &mut problems);
    problems.sort_by_key(|p| p.severity);
    problems
}

fn duplicates(objects: &[&Object], problems: &mut Vec<Problem>) {
    let mut seen = BTreeSet::new();
    let mut mesh: Option<&str> = None;
    for object in objects {
        let mut error = |code, message: String| {
            problems.push(Problem {
                code: Cow::Borrowed(code),
                severity: Severity::Error,
                object: object.id(),
                field: "metadata.name".into(),
                message,
            });
        };
        if !seen.insert((object.kind(), object.name())) {
            let kind = object.kind();
            let message = format!(
                "there are two objects of kind {kind} with this name; rename or remove one"
            );
            error(code::SAME_NAME, message);
        } else if let Object::Mesh(_) = object {
            match mesh {
                Some(other) => error(
                    code::TWO_MESHES,
                    format!(
                        "there is already Mesh/{other}; a mesh has one Mesh object, remove one"
                    ),
                ),
                None => mesh = Some(object.name()),
            }
        }
    }
}

struct Found<'a> {
    object: String,
    problems: &'a mut Vec<Problem>,
}

impl Found<'_> {
    fn warn(&mut self, code: &'static str, field: impl Into<String>, message: String) {
        self.add(Severity::Warning, code, field.into(), message);
    }

    fn refuse(&mut self, code: &'static str, field: impl Into<String>, message: String) {
        self.add(Severity::Error, code, field.into(), message);
    }

    fn add(&mut self, severity: Severity, code: &'static str, field: String, message: String) {
        self.problems.push(Problem {
            code: Cow::Borrowed(code),
            severity,
            object: self.object.clone(),
            field,
            message,
        });
    }
}

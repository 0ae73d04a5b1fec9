//! Result of a translation: objects of Tulle, and what is lost.

use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use tulle_model::manifest::Object;

/// Groups whose kinds Tulle reads itself.
const READ: [&str; 3] = ["tulle.dev/", "smi-spec.io/", "gateway.networking.k8s.io/"];

/// Fields of `metadata` that a file may have.
const METADATA: [&str; 4] = ["name", "namespace", "labels", "annotations"];

/// An object of Tulle.
#[derive(Debug, Serialize)]
pub(super) struct Made {
    /// Objects that it was made from, as `Kind namespace/name`.
    pub(super) from: Vec<String>,
    /// Differences from before.
    pub(super) notes: Vec<String>,
    pub(super) object: Value,
    /// Whether it stays as it was, but for labels and annotations.
    #[serde(skip)]
    pub(super) is_kept: bool,
}

impl Made {
    /// Whether Tulle reads its kind itself, and it was made here.
    pub(super) fn is_read(&self) -> bool {
        let version = self.object["apiVersion"].as_str().unwrap_or_default();
        !self.is_kept && READ.iter().any(|group| version.contains(group))
    }

    /// Returns why Tulle would not take it. None: it would, or others read its kind.
    pub(super) fn refused(&self) -> Option<String> {
        if !self.is_read() {
            return None;
        }
        let mut object = self.object.clone();
        // A cluster may have more there, which it takes.
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.retain(|name, _| METADATA.contains(&name.as_str()));
        }
        let errors = Object::from_json(&object.to_string()).err()?;
        let error = errors.into_iter().next()?;
        Some(match error.field.is_empty() {
            true => error.problem,
            false => format!("{}: {}", error.field, error.problem),
        })
    }
}

/// A part of an object that has no counterpart.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Loss {
    pub(super) object: String,
    pub(super) field: String,
    pub(super) why: String,
    pub(super) instead: String,
}

/// Result of the translation.
#[derive(Debug, Default, Serialize)]
pub(super) struct Imported {
    pub(super) objects: Vec<Made>,
    pub(super) lost: Vec<Loss>,
    /// Objects that are not the other mesh's: they stay as they are.
    pub(super) untouched: Vec<String>,
}

impl Imported {
    pub(super) fn make(&mut self, from: &str, object: Value) -> &mut Made {
        self.objects.push(Made {
            from: vec![from.to_owned()],
            notes: Vec::new(),
            object,
            is_kept: false,
        });
        // It was pushed just now.
        let last = self.objects.len() - 1;
        &mut self.objects[last]
    }

    pub(super) fn lose(&mut self, object: &str, field: &str, why: &str, instead: &str) {
        self.lost.push(Loss {
            object: object.to_owned(),
            field: field.to_owned(),
            why: why.to_owned(),
            instead: instead.to_owned(),
        });
    }

    /// Has a loss stand for each object that would take the place of an earlier one of its name when both are applied.
    pub(super) fn lose_twins(&mut self) {
        let mut known: BTreeMap<String, (String, String)> = BTreeMap::new();
        let mut twins = Vec::new();
        self.objects.retain(|made| {
            if !made.is_read() {
                return true;
            }
            let text = |pointer: &str| made.object.pointer(pointer).and_then(Value::as_str);
            let kind = text("/kind").unwrap_or_default();
            let namespace = text("/metadata/namespace").unwrap_or_default();
            let name = text("/metadata/name").unwrap_or_default();
            let id = format!("{kind} {namespace}/{name}");
            let (object, from) = (made.object.to_string(), made.from.join(", "));
            match known.get(&id) {
                None => {
                    known.insert(id, (object, from));
                    true
                }
                Some((same, _)) if *same == object => false,
                Some((_, first)) => {
                    twins.push((from, id, first.clone()));
                    false
                }
            }
        });
        for (from, id, first) in twins {
            let why = format!("it becomes {id}, as {first} does, and would take its place");
            self.lose(
                &from,
                "metadata.name",
                &why,
                "give one of the two another name",
            );
        }
    }

    /// Has a loss stand for each object that Tulle would refuse: its values were carried over as they were.
    pub(super) fn lose_refused(&mut self) {
        let mut refused = Vec::new();
        self.objects.retain(|made| {
            let why = made.refused();
            let is_taken = why.is_none();
            let text = |pointer: &str| made.object.pointer(pointer).and_then(Value::as_str);
            let kind = text("/kind").unwrap_or_default();
            let name = text("/metadata/name").unwrap_or_default();
            let named = |why| (made.from.join(", "), format!("{kind} {name}"), why);
            refused.extend(why.map(named));
            is_taken
        });
        for (from, ours, why) in refused {
            let why = format!("it becomes {ours}, which would be refused: {why}");
            self.lose(
                &from,
                "spec",
                &why,
                "put the value right, or write the object anew",
            );
        }
    }
}

/// An object of one of Tulle's own kinds.
pub(super) fn object(kind: &str, namespace: Option<&str>, name: &str, spec: Value) -> Value {
    let mut metadata = Map::new();
    metadata.insert("name".into(), name.into());
    if let Some(namespace) = namespace {
        metadata.insert("namespace".into(), namespace.into());
    }
    json!({
        "apiVersion": "tulle.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec,
    })
}

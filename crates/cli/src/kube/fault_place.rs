//! Finds the place of a fault in a YAML file that was read without places.
//!
//! The reader could tell, if it made the type itself. Code that makes the values of an installation from JSON is
//! there anyway, and the same for YAML would be half a megabyte more of the program.

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_saphyr::{Location, Spanned};
use std::fmt;

/// Where a part of a document begins.
#[derive(Clone, Copy)]
pub(super) struct Place {
    line: u64,
    column: u64,
}

impl From<Location> for Place {
    fn from(location: Location) -> Self {
        Self {
            line: location.line(),
            column: location.column(),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// The places of a document's parts.
pub(super) enum Places {
    Scalar,
    List(Vec<(Place, Places)>),
    Fields(Vec<(String, Place, Places)>),
}

impl Places {
    /// The parts, by their names in a [`Value`].
    fn parts(&self) -> Vec<(String, Place, &Self)> {
        match self {
            Self::Scalar => Vec::new(),
            Self::List(items) => {
                let numbered = items.iter().enumerate();
                let parts =
                    numbered.map(|(number, (place, item))| (number.to_string(), *place, item));
                parts.collect()
            }
            Self::Fields(fields) => {
                let fields = fields.iter();
                fields
                    .map(|(name, place, value)| (name.clone(), *place, value))
                    .collect()
            }
        }
    }

    /// The place of the smallest part of `document` without which `fault` says something else.
    pub(super) fn find(
        &self,
        document: &Value,
        fault: impl Fn(&Value) -> Option<String>,
    ) -> Option<Place> {
        let said = fault(document)?;
        let (mut path, mut found, mut here) = (Vec::new(), None, self);
        loop {
            let culprit = here.parts().into_iter().find(|(name, _, _)| {
                let mut rest = document.clone();
                remove(&mut rest, &path, name);
                fault(&rest).as_ref() != Some(&said)
            });
            let Some((name, place, inner)) = culprit else {
                return found;
            };
            path.push(name);
            (found, here) = (Some(place), inner);
        }
    }
}

/// Removes the part `name` of the part at `path`.
fn remove(document: &mut Value, path: &[String], name: &str) {
    let mut part = Some(document);
    for name in path {
        part = part.and_then(|part| match part {
            Value::Array(items) => items.get_mut(name.parse::<usize>().ok()?),
            part => part.get_mut(name),
        });
    }
    match (part, name.parse::<usize>()) {
        // The order of the others stays: a fault of them is found in it.
        (Some(Value::Object(fields)), _) => drop(fields.shift_remove(name)),
        (Some(Value::Array(items)), Ok(number)) if number < items.len() => {
            items.remove(number);
        }
        _ => {}
    }
}

impl<'de> Deserialize<'de> for Places {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PlacesVisitor)
    }
}

struct PlacesVisitor;

impl<'de> Visitor<'de> for PlacesVisitor {
    type Value = Places;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }
    fn visit_unit<E>(self) -> Result<Places, E> {
        Ok(Places::Scalar)
    }
    fn visit_bool<E>(self, _: bool) -> Result<Places, E> {
        Ok(Places::Scalar)
    }
    fn visit_i64<E>(self, _: i64) -> Result<Places, E> {
        Ok(Places::Scalar)
    }
    fn visit_u64<E>(self, _: u64) -> Result<Places, E> {
        Ok(Places::Scalar)
    }
    fn visit_f64<E>(self, _: f64) -> Result<Places, E> {
        Ok(Places::Scalar)
    }
    fn visit_str<E>(self, _: &str) -> Result<Places, E> {
        Ok(Places::Scalar)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Places, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element::<Spanned<Places>>()? {
            items.push((item.referenced.into(), item.value));
        }
        Ok(Places::List(items))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Places, A::Error> {
        let mut fields = Vec::new();
        while let Some(name) = map.next_key::<Spanned<String>>()? {
            fields.push((name.value, name.referenced.into(), map.next_value()?));
        }
        Ok(Places::Fields(fields))
    }
}

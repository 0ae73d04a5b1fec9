//! Finds the line of a fault in a YAML file that was read without places.
//!
//! The reader could tell, if it made the type itself. Code that makes the values of an installation from JSON is
//! there anyway, and the same for YAML would be half a megabyte more of the program.

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_saphyr::Spanned;
use std::fmt;

/// The lines of a document's parts.
pub(super) enum Lines {
    Scalar,
    List(Vec<(u64, Lines)>),
    Fields(Vec<(String, u64, Lines)>),
}

impl Lines {
    /// The parts, by their names in a [`Value`].
    fn parts(&self) -> Vec<(String, u64, &Self)> {
        match self {
            Self::Scalar => Vec::new(),
            Self::List(items) => {
                let numbered = items.iter().enumerate();
                let parts =
                    numbered.map(|(number, (line, item))| (number.to_string(), *line, item));
                parts.collect()
            }
            Self::Fields(fields) => {
                let fields = fields.iter();
                fields
                    .map(|(name, line, value)| (name.clone(), *line, value))
                    .collect()
            }
        }
    }

    /// The line of the smallest part of `document` without which `fault` says something else.
    pub(super) fn find(
        &self,
        document: &Value,
        fault: impl Fn(&Value) -> Option<String>,
    ) -> Option<u64> {
        let said = fault(document)?;
        let (mut place, mut found, mut here) = (Vec::new(), None, self);
        loop {
            let culprit = here.parts().into_iter().find(|(name, _, _)| {
                let mut rest = document.clone();
                remove(&mut rest, &place, name);
                fault(&rest).as_ref() != Some(&said)
            });
            let Some((name, line, inner)) = culprit else {
                return found;
            };
            place.push(name);
            (found, here) = (Some(line), inner);
        }
    }
}

/// Removes the part `name` of the part at `place`.
fn remove(document: &mut Value, place: &[String], name: &str) {
    let mut part = Some(document);
    for name in place {
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

impl<'de> Deserialize<'de> for Lines {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LinesVisitor)
    }
}

struct LinesVisitor;

impl<'de> Visitor<'de> for LinesVisitor {
    type Value = Lines;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }
    fn visit_unit<E>(self) -> Result<Lines, E> {
        Ok(Lines::Scalar)
    }
    fn visit_bool<E>(self, _: bool) -> Result<Lines, E> {
        Ok(Lines::Scalar)
    }
    fn visit_i64<E>(self, _: i64) -> Result<Lines, E> {
        Ok(Lines::Scalar)
    }
    fn visit_u64<E>(self, _: u64) -> Result<Lines, E> {
        Ok(Lines::Scalar)
    }
    fn visit_f64<E>(self, _: f64) -> Result<Lines, E> {
        Ok(Lines::Scalar)
    }
    fn visit_str<E>(self, _: &str) -> Result<Lines, E> {
        Ok(Lines::Scalar)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Lines, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element::<Spanned<Lines>>()? {
            items.push((item.referenced.line(), item.value));
        }
        Ok(Lines::List(items))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Lines, A::Error> {
        let mut fields = Vec::new();
        while let Some(name) = map.next_key::<Spanned<String>>()? {
            fields.push((name.value, name.referenced.line(), map.next_value()?));
        }
        Ok(Lines::Fields(fields))
    }
}

//! Finds the part of a document that is at fault, for a check that does not say which.
//!
//! A reader could tell, if it made the type itself. Code that makes the values of an installation from JSON is
//! there anyway, and the same for YAML would be half a megabyte more of the program.

use serde_json::Value;

/// The path of the smallest part of `document` without which `fault` says something else.
pub(super) fn find(
    document: &Value,
    fault: impl Fn(&Value) -> Option<String>,
) -> Option<Vec<String>> {
    let said = fault(document)?;
    let (mut path, mut here) = (Vec::new(), document);
    loop {
        let culprit = parts(here).into_iter().find(|(name, _)| {
            let mut rest = document.clone();
            remove(&mut rest, &path, name);
            fault(&rest).as_ref() != Some(&said)
        });
        let Some((name, inner)) = culprit else {
            return (!path.is_empty()).then_some(path);
        };
        path.push(name);
        here = inner;
    }
}

/// The parts of a value with their names.
fn parts(value: &Value) -> Vec<(String, &Value)> {
    match value {
        Value::Array(items) => {
            let numbered = items.iter().enumerate();
            numbered.map(|(i, item)| (i.to_string(), item)).collect()
        }
        Value::Object(fields) => fields.iter().map(|(n, v)| (n.clone(), v)).collect(),
        _ => Vec::new(),
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

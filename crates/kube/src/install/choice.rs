//! Values as they are given, in layers: files, options. Each is judged by itself, so that who reads the
//! complaint knows where to look, and then all together.

use super::values::Values;
use crate::controller::mesh_object;
use crate::packed;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tulle_model::manifest::{parse_cpu, parse_memory};
use tulle_model::network::Network;

/// The values of an installation.
#[derive(Debug, Clone)]
pub struct Choice {
    /// Only the values that were given.
    pub given: Value,
    /// All values, with defaults where none was given.
    pub values: Value,
}

impl Choice {
    /// Merges layers, of which a later one wins.
    ///
    /// # Errors
    /// The values contradict each other; the text says where.
    pub fn from_layers(layers: &[Value]) -> Result<Self, String> {
        let mut given = json!({});
        for layer in layers {
            merge(&mut given, layer);
        }
        let mut values = json!(Values::default());
        merge(&mut values, &given);
        let typed = Values::deserialize(&values).map_err(|e| e.to_string())?;
        together(&typed, &values)?;
        Ok(Self { given, values })
    }

    /// The trust domain of all identities.
    pub fn trust_domain(&self) -> &str {
        self.values["trustDomain"].as_str().unwrap_or_default()
    }
}

/// Mappings are merged, everything else is replaced: Helm's rules.
fn merge(into: &mut Value, layer: &Value) {
    match (into, layer) {
        (Value::Object(into), Value::Object(layer)) => {
            for (key, value) in layer {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, layer) => *into = layer.clone(),
    }
}

/// Judges one layer.
///
/// # Errors
/// What of it is not understood, with its place.
pub fn check(layer: &Value) -> Result<(), String> {
    Values::deserialize(layer).map_err(|e| e.to_string())?;
    within(layer, &schema(), &mut Vec::new())
}

/// The schema of the chart's values, of which only limits are looked at here.
///
/// # Panics
/// Never: a test reads it.
#[allow(clippy::expect_used, reason = "a test reads it")]
fn schema() -> Value {
    serde_json::from_str(&packed::values_schema()).expect("the schema of values is JSON")
}

/// Checks limits of numbers and texts, which types cannot express.
fn within(value: &Value, schema: &Value, place: &mut Vec<String>) -> Result<(), String> {
    let refuse = |why: String| Err(format!("{}: {why}", place.join(".")));
    let limit = |name: &str| schema.get(name).and_then(Value::as_f64);
    match value {
        // Helm would take it for "not there".
        Value::Null => return refuse("null is no value; leave it out".into()),
        Value::Number(number) => {
            let (low, high) = (limit("minimum"), limit("maximum"));
            let number = number.as_f64().unwrap_or(f64::NAN);
            if low.is_some_and(|low| number < low) || high.is_some_and(|high| number > high) {
                let (low, high) = (low.unwrap_or(0.0), high.unwrap_or(f64::INFINITY));
                return refuse(format!("{number} is not within {low} and {high}"));
            }
        }
        Value::String(text) => {
            if text.is_empty() && limit("minLength").is_some() {
                return refuse("it must not be empty".into());
            }
            if let Some(pattern) = schema.get("pattern").and_then(Value::as_str)
                && !regex::Regex::new(pattern).is_ok_and(|pattern| pattern.is_match(text))
            {
                return refuse(format!("{text:?} is not of the form {pattern}"));
            }
        }
        Value::Array(items) => {
            for (n, item) in items.iter().enumerate() {
                place.push(n.to_string());
                within(item, &schema["items"], place)?;
                place.pop();
            }
        }
        Value::Object(fields) => {
            for (key, field) in fields {
                place.push(key.clone());
                within(field, &schema["properties"][key], place)?;
                place.pop();
            }
        }
        Value::Bool(_) => {}
    }
    Ok(())
}

/// Checks what a schema expresses badly or not at all.
fn together(typed: &Values, values: &Value) -> Result<(), String> {
    if values["mesh"].get("trustDomain").is_some() {
        return Err("mesh.trustDomain: remove it and set trustDomain".into());
    }
    let mesh: Map<String, Value> = values["mesh"].as_object().cloned().unwrap_or_default();
    mesh_object(&mesh, &typed.trust_domain).map_err(|why| format!("mesh: {why}"))?;
    let resources = &typed.sidecar.resources;
    for (name, amounts) in [
        ("requests", &resources.requests),
        ("limits", &resources.limits),
    ] {
        let said = |field: &str, why: String| format!("sidecar.resources.{name}.{field}: {why}");
        if !amounts.cpu.is_empty() {
            parse_cpu(&amounts.cpu).map_err(|e| said("cpu", e.to_string()))?;
        }
        if !amounts.memory.is_empty() {
            parse_memory(&amounts.memory).map_err(|e| said("memory", e.to_string()))?;
        }
    }
    let redirection = &typed.sidecar.redirection;
    for (name, ranges) in [
        (
            "excludeOutboundRanges",
            &redirection.exclude_outbound_ranges,
        ),
        (
            "includeOutboundRanges",
            &redirection.include_outbound_ranges,
        ),
    ] {
        for range in ranges {
            let read = range.parse::<Network>();
            read.map_err(|e| format!("sidecar.redirection.{name}: {e}"))?;
        }
    }
    let autoscaling = &typed.controller.autoscaling;
    if autoscaling.min_replicas > autoscaling.max_replicas {
        return Err("controller.autoscaling: minReplicas is greater than maxReplicas".into());
    }
    let issuer = &typed.issuer;
    if !issuer.cert_manager.name.is_empty() && !issuer.vault.address.is_empty() {
        return Err("issuer: only one can sign, certManager or vault".into());
    }
    if !issuer.vault.address.is_empty() && issuer.ca.is_empty() {
        return Err("issuer.ca: vault needs it, the authority of its server's certificate".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_layers_win() {
        let layers = [
            json!({ "controller": { "replicas": 2, "resources": { "limits": { "cpu": "1" } } } }),
            json!({ "controller": { "replicas": 3 } }),
        ];
        let choice = Choice::from_layers(&layers).unwrap();
        assert_eq!(choice.values["controller"]["replicas"], 3);
        let resources = json!({ "requests": { "cpu": "50m", "memory": "64Mi" }, "limits": { "memory": "512Mi", "cpu": "1" } });
        assert_eq!(choice.values["controller"]["resources"], resources);
        assert_eq!(
            choice.given["controller"]["resources"],
            json!({ "limits": { "cpu": "1" } })
        );
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_its_place() {
        for (layer, telling) in [
            (json!({ "controler": {} }), "controler"),
            (json!({ "mesh": { "permissive": true } }), "permissive"),
            (
                json!({ "controller": { "replicas": 1000 } }),
                "controller.replicas",
            ),
            (json!({ "controller": { "replicas": null } }), "u32"),
            (
                json!({ "controller": { "affinity": { "nodeAffinity": null } } }),
                "controller.affinity.nodeAffinity",
            ),
            (json!({ "images": { "tag": "a b" } }), "images.tag"),
            (
                json!({ "images": { "proxy": { "digest": "sha256:1" } } }),
                "images.proxy.digest",
            ),
            (json!({ "sidecar": { "logLevel": "loud" } }), "loud"),
        ] {
            let why = check(&layer).unwrap_err();
            assert!(why.contains(telling), "{layer}: {why}");
        }
        for (layer, telling) in [
            (
                json!({ "mesh": { "trustDomain": "a" } }),
                "mesh.trustDomain",
            ),
            (
                json!({ "issuer": { "certManager": { "name": "a" }, "vault": { "address": "https://a" } } }),
                "only one",
            ),
            (
                json!({ "issuer": { "vault": { "address": "https://a" } } }),
                "issuer.ca",
            ),
            (
                json!({ "controller": { "autoscaling": { "maxReplicas": 1 } } }),
                "minReplicas",
            ),
            (
                json!({ "sidecar": { "resources": { "limits": { "memory": "0" } } } }),
                "sidecar.resources.limits.memory",
            ),
            (
                json!({ "sidecar": { "redirection": { "excludeOutboundRanges": ["10.0.0.0/99"] } } }),
                "excludeOutboundRanges",
            ),
        ] {
            assert_eq!(check(&layer), Ok(()), "{layer}");
            let why = Choice::from_layers(std::slice::from_ref(&layer)).unwrap_err();
            assert!(why.contains(telling), "{layer}: {why}");
        }
    }
}

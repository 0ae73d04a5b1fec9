//! Definitions fit the manifests: what the documentation shows is valid, and a schema refuses nothing
//! that the model would accept. Whether an API server takes them is tested on one (tests/kube).

#![allow(clippy::unwrap_used)]

use super::*;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use tulle_model::manifest::{Object, kinds, parse};
use tulle_model::pattern;

/// Kinds without a definition of ours: pods take the place of one, the others belong to Kubernetes
/// and Gateway API.
const OTHERS: [&str; 8] = [
    "Workload",
    "Gateway",
    "HTTPRoute",
    "GRPCRoute",
    "TLSRoute",
    "TCPRoute",
    "Secret",
    "ConfigMap",
];

/// Names the kind as [`Object::kind`] does.
fn kind_of(definition: &Definition) -> String {
    match (definition.group, definition.kind) {
        ("specs.smi-spec.io", "TCPRoute") => "TCPRoute.specs.smi-spec.io".into(),
        _ => definition.kind.into(),
    }
}

/// The schema of `spec` for each kind.
fn schemas() -> BTreeMap<String, Value> {
    let schema = |d: &Definition| (kind_of(d), made::spec_of(d));
    definitions().iter().map(schema).collect()
}

#[test]
fn the_program_carries_what_the_types_make() {
    assert_eq!(
        objects(),
        made::objects(),
        "write the charts anew: TULLE_WRITE_CHART=1 cargo test -p tulle-kube chart"
    );
}

#[test]
fn every_kind_is_defined() {
    let ours: BTreeSet<String> = schemas()
        .into_keys()
        .chain(OTHERS.map(Into::into))
        .collect();
    let known: BTreeSet<String> = kinds().map(Into::into).collect();
    assert_eq!(ours, known);
}

/// Checks that an API server accepts this as a structural schema.
fn assert_structural(at: &str, schema: &Value) {
    const TAKEN: [&str; 17] = [
        "type",
        "description",
        "properties",
        "required",
        "items",
        "additionalProperties",
        "enum",
        "pattern",
        "format",
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "x-kubernetes-int-or-string",
        "x-kubernetes-preserve-unknown-fields",
    ];
    let fields = schema.as_object().unwrap();
    for name in fields.keys() {
        let known = TAKEN.contains(&name.as_str()) || name.starts_with("x-kubernetes-");
        assert!(known, "{at}: {name}");
    }
    let free = [
        "x-kubernetes-int-or-string",
        "x-kubernetes-preserve-unknown-fields",
    ];
    let free = free.iter().any(|name| fields.contains_key(*name));
    assert!(free || fields["type"].is_string(), "{at}: {schema}");
    if let Some(format) = fields.get("format") {
        let known = ["int32", "int64", "date-time"];
        assert!(known.contains(&format.as_str().unwrap()), "{at}: {format}");
    }
    for (name, inner) in fields
        .get("properties")
        .into_iter()
        .flat_map(|p| p.as_object().unwrap())
    {
        assert_structural(&format!("{at}.{name}"), inner);
        let metadata = ["apiVersion", "kind", "metadata"].contains(&name.as_str());
        assert!(
            metadata || inner["description"].is_string(),
            "{at}.{name} says nothing of itself"
        );
    }
    if fields.get("type").is_some_and(|t| t == "array") {
        assert_structural(&format!("{at}[]"), &fields["items"]);
    }
    if let Some(inner) = fields.get("additionalProperties") {
        assert_structural(&format!("{at}{{}}"), inner);
    }
}

#[test]
fn schemas_are_structural() {
    for object in objects() {
        let name = object["metadata"]["name"].as_str().unwrap();
        let versions = object["spec"]["versions"].as_array().unwrap();
        assert_eq!(
            versions.iter().filter(|v| v["storage"] == true).count(),
            1,
            "{name}"
        );
        for version in versions {
            assert_structural(name, &version["schema"]["openAPIV3Schema"]);
        }
    }
}

/// Everything a schema has against a value.
fn violations(at: &str, schema: &Value, value: &Value, found: &mut Vec<String>) {
    let mut refuse = |why: &str| found.push(format!("{at}: {why}: {value}"));
    let right_type = match schema.get("type").and_then(Value::as_str) {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64(),
        Some(other) => panic!("{other}"),
        None => return,
    };
    if !right_type {
        return refuse("type");
    }
    if schema
        .get("enum")
        .is_some_and(|words| !words.as_array().unwrap().contains(value))
    {
        refuse("enum");
    }
    if let Some(text) = value.as_str() {
        if let Some(pattern) = schema.get("pattern").and_then(Value::as_str) {
            let regex = pattern::compile(pattern.trim_start_matches('^').trim_end_matches('$'));
            if !regex.unwrap().is_match(text.as_bytes()) {
                refuse("pattern");
            }
        }
        let length = text.len() as u64;
        if schema
            .get("minLength")
            .is_some_and(|least| length < least.as_u64().unwrap())
            || schema
                .get("maxLength")
                .is_some_and(|most| length > most.as_u64().unwrap())
        {
            refuse("length");
        }
    }
    if let Some(number) = value.as_i64()
        && (schema
            .get("minimum")
            .is_some_and(|least| number < least.as_i64().unwrap())
            || schema
                .get("maximum")
                .is_some_and(|most| number > most.as_i64().unwrap()))
    {
        refuse("range");
    }
    if let Some(items) = value.as_array() {
        if schema
            .get("minItems")
            .is_some_and(|least| (items.len() as u64) < least.as_u64().unwrap())
        {
            refuse("items");
        }
        for (i, item) in items.iter().enumerate() {
            violations(&format!("{at}[{i}]"), &schema["items"], item, found);
        }
    }
    if let Some(fields) = value.as_object() {
        for name in schema
            .get("required")
            .into_iter()
            .flat_map(|r| r.as_array().unwrap())
        {
            if !fields.contains_key(name.as_str().unwrap()) {
                found.push(format!("{at}: {name} is missing"));
            }
        }
        // All that is there is kept.
        let free = schema.get("x-kubernetes-preserve-unknown-fields").is_some();
        for (name, inner) in fields.iter().filter(|_| !free) {
            let any = schema.get("additionalProperties");
            match schema["properties"].get(name).or(any) {
                Some(known) => violations(&format!("{at}.{name}"), known, inner, found),
                None => found.push(format!("{at}.{name} is not known")),
            }
        }
    }
}

fn pages(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            pages(&path, found);
        } else if path.extension().is_some_and(|e| e == "md") {
            found.push(path);
        }
    }
}

/// Every object that the documentation and the demo show.
fn shown() -> Vec<Object> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    pages(&root.join("docs/manifests"), &mut files);
    pages(&root.join("docs/features"), &mut files);
    files.push(root.join("docs/manifests.md"));
    let mut texts = vec![std::fs::read_to_string(root.join("demo/mesh.yaml")).unwrap()];
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let blocks = text.split("```yaml\n").skip(1);
        texts.extend(blocks.map(|b| b.split("```").next().unwrap().to_owned()));
    }
    // Some pages show parts of objects.
    let objects = texts.iter().filter_map(|text| parse("", text).ok());
    objects.flatten().map(|located| located.object).collect()
}

#[test]
fn what_the_documentation_shows_is_valid() {
    let schemas = schemas();
    let mut seen = BTreeSet::new();
    for object in shown() {
        let Some(schema) = schemas.get(object.kind()) else {
            continue;
        };
        seen.insert(object.kind().to_owned());
        let json: Value = serde_json::from_str(&object.to_json()).unwrap();
        let mut found = Vec::new();
        violations("spec", schema, &json["spec"], &mut found);
        assert!(found.is_empty(), "{}: {found:#?}", object.id());
    }
    assert_eq!(seen, schemas.into_keys().collect());
}

/// A value of a schema, with every field.
fn example(at: &str, schema: &Value) -> Value {
    if let Some(words) = schema.get("enum") {
        return words[0].clone();
    }
    let pattern = schema.get("pattern").and_then(Value::as_str);
    match schema.get("type").and_then(Value::as_str) {
        Some("object") => {
            if let Some(any) = schema.get("additionalProperties") {
                return json!({ "a": example("a", any) });
            }
            let fields = schema["properties"].as_object();
            fields
                .into_iter()
                .flatten()
                .map(|(name, s)| (name.clone(), example(name, s)))
                .collect()
        }
        Some("array") => json!([example(at, &schema["items"])]),
        Some("boolean") => json!(true),
        Some("integer") => schema["minimum"].clone(),
        Some("string") if pattern.is_some_and(|p| p.contains("ms")) => json!("10s"),
        Some("string") if pattern.is_some_and(|p| p.contains('%')) => json!("5%"),
        Some("string") if ["networks", "ipAddresses"].contains(&at) => json!("10.0.0.0/8"),
        Some("string") if at == "endpoint" => json!("a:4317"),
        Some("string") => json!("a"),
        _ if at == "headers" => json!({ "a": "b" }),
        _ if at == "accessLog" => json!(true),
        _ => json!("1"),
    }
}

/// A place in an object, such as `spec.rules[0].to`, and how it is reached.
type Place = (String, String);

/// Collects the values that a schema refuses and those it just accepts, at each place that it limits.
fn limits(
    place: &Place,
    schema: &Value,
    refused: &mut Vec<(Place, Value)>,
    taken: &mut Vec<(Place, Value)>,
) {
    let mut refuse = |value: Value| refused.push((place.clone(), value));
    let mut take = |value: Value| taken.push((place.clone(), value));
    if let Some(words) = schema.get("enum") {
        refuse(json!("no such word"));
        words
            .as_array()
            .unwrap()
            .iter()
            .cloned()
            .for_each(&mut take);
    }
    if schema.get("pattern").is_some() {
        refuse(json!("No such text"));
    }
    if schema.get("minLength").is_some() {
        refuse(json!(""));
    }
    if let Some(least) = schema.get("minimum") {
        refuse(json!(least.as_i64().unwrap() - 1));
    }
    if let Some(most) = schema.get("maximum") {
        refuse(json!(most.as_i64().unwrap() + 1));
        take(most.clone());
    }
    if schema.get("minItems").is_some() {
        refuse(json!([]));
    }
    let (field, pointer) = place;
    for (name, inner) in schema
        .get("properties")
        .into_iter()
        .flat_map(|p| p.as_object().unwrap())
    {
        let place = (format!("{field}.{name}"), format!("{pointer}/{name}"));
        limits(&place, inner, refused, taken);
    }
    if let Some(items) = schema.get("items") {
        limits(
            &(format!("{field}[0]"), format!("{pointer}/0")),
            items,
            refused,
            taken,
        );
    }
}

/// Returns the model's complaints about one place of an object.
fn complaints(object: &Value, field: &str) -> Vec<String> {
    let Err(errors) = Object::from_json(&object.to_string()) else {
        return Vec::new();
    };
    errors
        .iter()
        .filter(|e| e.field == field)
        .map(ToString::to_string)
        .collect()
}

#[test]
fn schemas_and_the_model_agree() {
    let mut checked = 0;
    let mut looser = Vec::new();
    for definition in definitions() {
        let schema = made::spec_of(definition);
        let kind = definition.kind;
        let whole = json!({
            "apiVersion": format!("{}/{}", definition.group, definition.versions[0]), "kind": kind,
            "metadata": { "name": "a" },
            "spec": example("spec", &schema),
        });
        let (mut refused, mut taken) = (Vec::new(), Vec::new());
        limits(
            &("spec".into(), "/spec".into()),
            &schema,
            &mut refused,
            &mut taken,
        );
        let with = |(_, pointer): &Place, value: &Value| {
            let mut object = whole.clone();
            *object.pointer_mut(pointer).unwrap() = value.clone();
            object
        };
        for (place, value) in &refused {
            let why = complaints(&with(place, value), &place.0);
            assert!(
                !why.is_empty(),
                "{kind}: {} = {value} is refused by the schema only",
                place.0
            );
        }
        for (place, value) in &taken {
            // A value that is wrong because of another field tells nothing about the limit.
            if !complaints(&whole, &place.0).is_empty() {
                continue;
            }
            if !complaints(&with(place, value), &place.0).is_empty() {
                looser.push(format!("{kind}: {} = {value}", place.0));
            }
        }
        checked += refused.len() + taken.len();
    }
    // The webhook refuses them: a numerator beyond its denominator, and what has the same type as of a TrafficTarget.
    let known = [
        "HTTPFilter: spec.mirror.fraction.numerator = 4294967295",
        r#"Egress: spec.matches[0].kind = "TCPRoute""#,
    ];
    assert_eq!(looser, known);
    assert!(checked > 300, "{checked}");
}

/// The table of kinds in docs/kubernetes/objects.md.
fn table() -> String {
    let mut table = String::from(
        "| kind | group and versions | short | columns beside name and age | for |\n|---|---|---|---|---|\n",
    );
    for definition in definitions() {
        let Definition { kind, group, .. } = definition;
        let versions = definition.versions.join("`, `");
        let short = definition.short_names.iter().map(|s| format!("`{s}`"));
        let columns = definition.columns().into_iter().map(|c| c.name);
        let columns: Vec<&str> = columns.filter(|name| *name != "Age").collect();
        let row = format!(
            "| {kind} | `{group}/{versions}` | {} | {} | {} |\n",
            short.collect::<String>(),
            columns.join(", "),
            definition.description
        );
        table.push_str(&row);
    }
    table
}

#[test]
fn the_documentation_has_all_of_them() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/kubernetes/objects.md");
    let page = std::fs::read_to_string(page).unwrap();
    let table = table();
    assert!(
        page.contains(&table),
        "docs/kubernetes/objects.md should have:\n{table}"
    );
}

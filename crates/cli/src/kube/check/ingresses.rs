//! Which Ingresses does no controller serve?

use super::gather::Facts;
use super::{Outcome, Report};
use crate::kube::workloads::text;
use serde_json::Value;
use tulle_kube::ingress::{CLASS, CLASS_ANNOTATION, IS_DEFAULT};

pub(super) fn check(facts: &Facts, report: &mut Report) {
    let of_kind = |kind: &'static str| {
        facts
            .objects
            .iter()
            .filter(move |o| text(o, "/kind") == kind)
    };
    let classes: Vec<&Value> = of_kind("IngressClass").collect();
    let alone: Vec<String> = of_kind("Ingress")
        .filter_map(|ingress| {
            let why = unserved(ingress, &classes)?;
            let metadata = &ingress["metadata"];
            let (namespace, name) = (text(metadata, "/namespace"), text(metadata, "/name"));
            Some(format!("Ingress {namespace}/{name}: {why}"))
        })
        .collect();
    report.each(
        "TK110",
        Outcome::Warning,
        alone,
        "all have a class that is there",
    );
}

/// Why no controller takes an Ingress.
fn unserved(ingress: &Value, classes: &[&Value]) -> Option<String> {
    let annotation = |object: &Value, key: &str| {
        let found = object["metadata"]["annotations"][key].as_str();
        found.map(str::to_owned)
    };
    let is_there = |name: &str| classes.iter().any(|c| text(c, "/metadata/name") == name);
    let named = text(ingress, "/spec/ingressClassName");
    match (named, annotation(ingress, CLASS_ANNOTATION)) {
        ("", None) => {
            let is_default = |c: &&Value| annotation(c, IS_DEFAULT).is_some_and(|v| v == "true");
            let defaults = classes.iter().filter(|c| is_default(c)).count();
            match defaults {
                0 => Some("it names no class, and no IngressClass is the default".into()),
                1 => None,
                many => Some(format!(
                    "it names no class, and {many} IngressClasses are the default"
                )),
            }
        }
        // Other controllers may take an annotation without such an object.
        ("", Some(name)) => (name == CLASS && !is_there(&name))
            .then(|| format!("there is no IngressClass {name}, which its annotation names")),
        (name, _) => (!is_there(name)).then(|| format!("there is no IngressClass {name}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ingresses_that_nobody_serves_are_told() {
        let ingress = |name: &str, class: Value, annotation: Value| {
            json!({
                "kind": "Ingress",
                "metadata": {
                    "namespace": "shop", "name": name,
                    "annotations": { CLASS_ANNOTATION: annotation },
                },
                "spec": { "ingressClassName": class },
            })
        };
        let class = |name: &str, default: &str| {
            json!({
                "kind": "IngressClass",
                "metadata": { "name": name, "annotations": { IS_DEFAULT: default } },
            })
        };
        let found = |objects: Vec<Value>| {
            let facts = Facts {
                objects,
                ..Facts::default()
            };
            let wrong = Report::wrong(|report| check(&facts, report));
            let texts = wrong.into_iter().map(|f| f.finding);
            texts.collect::<Vec<_>>().join("\n")
        };
        let none = Value::Null;
        let all = || {
            vec![
                ingress("plain", none.clone(), none.clone()),
                ingress("ours", json!("tulle"), none.clone()),
                ingress("typo", json!("tule"), none.clone()),
                ingress("old", none.clone(), json!("other")),
            ]
        };
        let with = |classes: &[Value]| found([all(), classes.to_vec()].concat());
        assert_eq!(
            with(&[class("tulle", "false")]),
            "Ingress shop/plain: it names no class, and no IngressClass is the default\n\
             Ingress shop/typo: there is no IngressClass tule"
        );
        assert_eq!(
            with(&[class("tulle", "true")]),
            "Ingress shop/typo: there is no IngressClass tule"
        );
        assert!(with(&[class("tulle", "true"), class("b", "true")]).contains("2 IngressClasses"));
    }
}

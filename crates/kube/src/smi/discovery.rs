//! The discovery documents of the API, for `kubectl`, the API server and other clients.

use super::path::{Document, RESOURCES, RequestedPath, Resource};
use super::{GROUP, VERSION};
use serde_json::{Map, Value, json};

/// The answer, if the question was for a discovery document.
pub(super) fn answer(asked: &RequestedPath) -> Option<Value> {
    let RequestedPath::Discovery(document) = asked else {
        return None;
    };
    Some(match document {
        Document::Groups => json!({
            "kind": "APIGroupList", "apiVersion": "v1", "groups": [group()],
        }),
        Document::Group => {
            let mut group = group();
            group["kind"] = "APIGroup".into();
            group["apiVersion"] = "v1".into();
            group
        }
        Document::Resources => json!({
            "kind": "APIResourceList", "apiVersion": "v1",
            "groupVersion": format!("{GROUP}/{VERSION}"),
            "resources": RESOURCES.iter().flat_map(resources).collect::<Vec<_>>(),
        }),
        Document::OpenApi => open_api(),
    })
}

fn group() -> Value {
    let version = json!({ "groupVersion": format!("{GROUP}/{VERSION}"), "version": VERSION });
    json!({ "name": GROUP, "versions": [version], "preferredVersion": version })
}

/// Itself, and its edges.
fn resources(resource: &Resource) -> [Value; 2] {
    let of = |name: String, kind: &str, verbs: &[&str]| {
        json!({
            "name": name, "singularName": "", "namespaced": resource.namespaced,
            "kind": kind, "verbs": verbs,
        })
    };
    [
        of(
            resource.plural.to_owned(),
            "TrafficMetrics",
            &["get", "list"],
        ),
        of(
            format!("{}/edges", resource.plural),
            "TrafficMetricsList",
            &["get"],
        ),
    ]
}

/// OpenAPI 2, of which the API server makes version 3.
fn open_api() -> Value {
    let text = || json!({ "type": "string" });
    let reference = json!({
        "type": "object",
        "properties": { "kind": text(), "namespace": text(), "name": text() },
    });
    let of_kind = |kind: &str| json!([{ "group": GROUP, "version": VERSION, "kind": kind }]);
    let described = |kind: &str, about: &str, properties: Value| {
        json!({
            "type": "object", "description": about, "properties": properties,
            "x-kubernetes-group-version-kind": of_kind(kind),
        })
    };
    let metrics = described(
        "TrafficMetrics",
        "How a resource answered within a window, to the peer that its edge names.",
        json!({
            "kind": text(), "apiVersion": text(), "metadata": { "type": "object" },
            "timestamp": { "type": "string", "description": "The end of the window." },
            "window": { "type": "string", "description": "Its length, such as 30.012s." },
            "resource": reference,
            "edge": {
                "type": "object",
                "properties": {
                    "direction": { "type": "string", "description": "from or to" },
                    "side": { "type": "string", "description": "who counted: client or server" },
                    "resource": reference,
                },
            },
            "metrics": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": { "name": text(), "unit": text(), "value": text() },
                },
            },
        }),
    );
    let name = |kind: &str| format!("io.smi-spec.metrics.{VERSION}.{kind}");
    let definition = |kind: &str| json!({ "$ref": format!("#/definitions/{}", name(kind)) });
    let list = described(
        "TrafficMetricsList",
        "Several of them.",
        json!({
            "kind": text(), "apiVersion": text(), "metadata": { "type": "object" },
            "resource": reference, "selector": { "type": "object" },
            "items": { "type": "array", "items": definition("TrafficMetrics") },
        }),
    );
    let mut paths = Map::new();
    for resource in &RESOURCES {
        let plural = resource.plural;
        let within = match resource.namespaced {
            true => "namespaces/{namespace}/",
            false => "",
        };
        let mut path = |rest: String, action: &str, kind: &str| {
            let parameters = ["namespace", "name"]
                .into_iter()
                .filter(|name| rest.contains(&format!("{{{name}}}")));
            let parameters = parameters.map(
                |name| json!({ "name": name, "in": "path", "required": true, "type": "string" }),
            );
            let operation = json!({
                "parameters": parameters.collect::<Vec<_>>(),
                "get": {
                    "description": "How they answer.",
                    "operationId": format!("{action}{GROUP}{VERSION}{plural}"),
                    "produces": ["application/json"],
                    "responses": { "200": { "description": "OK", "schema": definition(kind) } },
                    "x-kubernetes-action": if kind == "TrafficMetrics" { "get" } else { "list" },
                    "x-kubernetes-group-version-kind": of_kind("TrafficMetrics")[0],
                },
            });
            paths.insert(format!("/apis/{GROUP}/{VERSION}/{rest}"), operation);
        };
        if resource.namespaced {
            path(plural.to_owned(), "listAll", "TrafficMetricsList");
        }
        path(format!("{within}{plural}"), "list", "TrafficMetricsList");
        path(
            format!("{within}{plural}/{{name}}"),
            "read",
            "TrafficMetrics",
        );
        path(
            format!("{within}{plural}/{{name}}/edges"),
            "edges",
            "TrafficMetricsList",
        );
    }
    json!({
        "swagger": "2.0",
        "info": { "title": "Traffic metrics of Tulle", "version": VERSION },
        "paths": paths,
        "definitions": { name("TrafficMetrics"): metrics, name("TrafficMetricsList"): list },
    })
}

#[cfg(test)]
mod tests {
    use super::super::path::parse;
    use super::*;

    #[test]
    fn every_path_that_is_told_is_known() {
        let api = open_api();
        let paths = api["paths"].as_object().unwrap();
        assert_eq!(paths.len(), RESOURCES.len() * 4 - 2);
        for path in paths.keys() {
            let real = path.replace("{namespace}", "shop").replace("{name}", "web");
            assert!(parse(&real).is_some(), "{path}");
        }
        // Every definition that is referred to exists.
        let text = api.to_string();
        let named = text.split("#/definitions/").skip(1);
        for name in named.filter_map(|rest| rest.split('"').next()) {
            assert!(api["definitions"].get(name).is_some(), "{name}");
        }
    }

    #[test]
    fn resources_are_listed_with_their_edges() {
        let listed = answer(&parse("/apis/metrics.smi-spec.io/v1alpha1").unwrap()).unwrap();
        let names: Vec<&str> = listed["resources"]
            .as_array()
            .unwrap()
            .iter()
            .map(|r| r["name"].as_str().unwrap())
            .collect();
        assert_eq!(names.len(), RESOURCES.len() * 2);
        assert!(names.contains(&"deployments") && names.contains(&"pods/edges"));
        let list = RequestedPath::List(&RESOURCES[0], None);
        assert_eq!(answer(&list), None);
    }
}

//! The documentation's examples are accepted, and every field is documented.

#![allow(clippy::unwrap_used)] // helpers of tests

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use tulle_model::bootstrap::Bootstrap;
use tulle_model::identity::SpiffeId;
use tulle_model::manifest::{Object, kinds, parse, validate_set};

fn docs(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    std::fs::read_to_string(path.join(name)).unwrap()
}

/// The contents of the ```yaml blocks.
fn yaml_blocks(text: &str) -> Vec<&str> {
    let blocks = text.split("```yaml\n").skip(1);
    blocks.map(|b| b.split("```").next().unwrap()).collect()
}

/// Every field name in a JSON value. Keys that users choose are written in lower case there.
fn keys(json: &serde_json::Value, found: &mut BTreeSet<String>) {
    match json {
        serde_json::Value::Object(map) => {
            for (key, value) in map {
                if !["labels", "annotations", "attributes", "headers"].contains(&key.as_str())
                    || value.is_array()
                {
                    keys(value, found);
                }
                found.insert(key.clone());
            }
        }
        serde_json::Value::Array(items) => items.iter().for_each(|item| keys(item, found)),
        _ => {}
    }
}

/// Fields of the struct definitions in a source file, as written in YAML. Crude, but nothing
/// escapes it: a new field fails the test until an example uses it.
fn fields_in_source(source: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut renamed: Option<String> = None;
    let mut skipped = false;
    for line in source.lines() {
        // Manifests do not have this field.
        skipped |= line.trim() == "#[serde(skip)]";
        if let Some((_, rest)) = line.split_once("rename = \"") {
            renamed = rest.split('"').next().map(str::to_owned);
        }
        if let Some(field) = line.strip_prefix("    pub ")
            && let Some((name, _)) = field.split_once(": ")
            && !name.contains(' ')
        {
            let name = renamed.take().unwrap_or_else(|| camel_case(name));
            if !std::mem::take(&mut skipped) {
                found.insert(name);
            }
        }
    }
    found
}

fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let mut camel = words.next().unwrap_or_default().to_owned();
    for word in words {
        camel.push_str(&word[..1].to_uppercase());
        camel.push_str(&word[1..]);
    }
    camel
}

fn mentions(text: &str, field: &str) -> bool {
    ["`", "."].iter().any(|before| {
        ["`", "[]", "."]
            .iter()
            .any(|after| text.contains(&format!("{before}{field}{after}")))
    })
}

/// docs/manifests.md and the pages of its groups.
fn manifest_pages() -> Vec<(String, String)> {
    let groups = ["routes", "traffic", "access", "smi", "egress", "secrets"];
    let groups = groups.map(|group| format!("manifests/{group}.md"));
    let pages = std::iter::once("manifests.md".to_owned()).chain(groups);
    pages.map(|page| (page.clone(), docs(&page))).collect()
}

fn manifest_examples() -> Vec<Object> {
    let pages = manifest_pages();
    let blocks = pages.iter().flat_map(|(page, text)| {
        yaml_blocks(text)
            .into_iter()
            .map(move |block| (page, block))
    });
    let objects = blocks.flat_map(|(page, block)| parse(page, block).unwrap());
    objects.map(|o| o.object).collect()
}

#[test]
fn manifest_examples_are_accepted_and_use_every_field() {
    let text: String = manifest_pages().into_iter().map(|(_, text)| text).collect();
    let mut found = BTreeSet::new();
    let mut used = BTreeSet::new();
    for object in manifest_examples() {
        found.insert(object.kind());
        keys(&serde_json::from_str(&object.to_json()).unwrap(), &mut used);
    }
    assert_eq!(found, kinds().collect::<BTreeSet<_>>());
    let mut fields = BTreeSet::new();
    for source in [
        include_str!("../src/manifest/types/mod.rs"),
        include_str!("../src/manifest/types/mesh.rs"),
        include_str!("../src/manifest/types/workload.rs"),
        include_str!("../src/manifest/types/gateway.rs"),
        include_str!("../src/manifest/types/route.rs"),
        include_str!("../src/manifest/types/filter.rs"),
        include_str!("../src/manifest/types/smi.rs"),
        include_str!("../src/manifest/types/traffic.rs"),
        include_str!("../src/manifest/types/limit.rs"),
        include_str!("../src/manifest/types/access.rs"),
        include_str!("../src/manifest/types/egress.rs"),
        include_str!("../src/manifest/types/secret.rs"),
    ] {
        fields.extend(fields_in_source(source));
    }
    assert!(fields.len() > 150, "{fields:?}");
    let mut missing = Vec::new();
    for field in fields {
        // A Mesh's defaults are left out when written.
        if !used.contains(&field) && !text.contains(&format!("  {field}:")) {
            missing.push(format!("no example has {field}"));
        }
        if !["metadata", "spec"].contains(&field.as_str()) && !mentions(&text, &field) {
            missing.push(format!("{field} is in no table"));
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// Returns the pages below a directory.
fn pages_below(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            pages_below(&path, found);
        } else if path.extension().is_some_and(|e| e == "md") {
            found.push(path);
        }
    }
}

/// Whether a document is an object of a kind that Tulle reads. Some pages show parts of one, Kubernetes' own kinds, and files
/// of other programs.
fn is_object(document: &str) -> bool {
    let after = |key: &str| {
        let mut lines = document.lines().filter_map(|line| line.strip_prefix(key));
        lines
            .next()
            .map(|rest| rest.split('#').next().unwrap().trim().to_owned())
    };
    let kind = after("kind: ").unwrap_or_default();
    let groups = ["tulle.dev/", "gateway.networking.k8s.io/", "smi-spec.io/"];
    let version = after("apiVersion: ").unwrap_or_default();
    // Gateways of this class are a cluster's alone, and their protocol is read by its controller.
    let of_cluster = document.contains("gatewayClassName: tulle-egress");
    groups.iter().any(|group| version.contains(group))
        && kinds().any(|known| known == kind)
        && !of_cluster
}

#[test]
fn every_object_of_every_page_is_accepted() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = vec![root.join("README.md")];
    pages_below(&root.join("docs"), &mut files);
    pages_below(&root.join("demo"), &mut files);
    let mut seen = BTreeSet::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let name = file.strip_prefix(&root).unwrap().display().to_string();
        for document in yaml_blocks(&text)
            .iter()
            .flat_map(|block| block.split("\n---\n"))
        {
            if is_object(document) {
                let read = parse(&name, document);
                assert!(read.is_ok(), "{name}: {:?}\n{document}", read.unwrap_err());
                seen.insert(name.clone());
            }
        }
    }
    for page in [
        "docs/access-log.md",
        "docs/kubernetes.md",
        "docs/kubernetes/gateways.md",
    ] {
        assert!(seen.contains(page), "{page}: {seen:?}");
    }
}

#[test]
fn the_examples_have_no_duplicates() {
    let all = manifest_examples();
    let problems = validate_set(all.iter());
    let errors: Vec<_> = problems
        .iter()
        .filter(|p| p.severity == tulle_model::manifest::Severity::Error)
        .collect();
    assert!(errors.is_empty(), "{errors:?}");
}

#[test]
fn proxy_examples_fit_together() {
    let read = |name: &str| Bootstrap::parse(name, &docs(&format!("examples/{name}"))).unwrap();
    let (client, server) = (read("proxy-client.yaml"), read("proxy-server.yaml"));
    let service = &client.services[0];
    let inbound = server.inbound.as_ref().unwrap();
    assert_eq!(service.identities, std::slice::from_ref(&server.identity));
    assert_eq!(
        inbound.policy.rules[0].sources,
        std::slice::from_ref(&client.identity)
    );
    assert_eq!(
        service.ports[0].endpoints[0].address,
        server.listeners[0].address
    );
    assert_eq!(service.name, inbound.service);
    assert_eq!(
        client.identity,
        SpiffeId::parse("spiffe://tulle.local/svc/productpage").unwrap()
    );
}

#[test]
fn every_field_of_the_proxy_file_is_documented() {
    let text = docs("proxy-config.md");
    let mut fields = fields_in_source(include_str!("../src/bootstrap.rs"));
    for source in [
        include_str!("../src/resource/mod.rs"),
        include_str!("../src/resource/service.rs"),
        include_str!("../src/resource/inbound.rs"),
        include_str!("../src/resource/gateway.rs"),
        include_str!("../src/resource/revoked.rs"),
        include_str!("../src/resource/route.rs"),
        include_str!("../src/resource/filter.rs"),
        include_str!("../src/resource/traffic.rs"),
        include_str!("../src/resource/egress.rs"),
        include_str!("../src/resource/collector.rs"),
        include_str!("../src/resource/telemetry.rs"),
        include_str!("../src/resource/access_log.rs"),
    ] {
        fields.extend(fields_in_source(source));
    }
    assert!(fields.len() > 150, "{fields:?}");
    for field in fields {
        assert!(mentions(&text, &field), "{field} is in no table");
    }
}

/// A call of gRPC that fails is answered with status 200, and its trailers say so.
#[test]
fn dashboards_count_calls_of_grpc_that_failed() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/dashboards");
    let failed = r#"response_code=~"5..""#;
    let calls = r#"grpc_response_status=~"2|4|12|13|14|15""#;
    let mut found = 0;
    for file in std::fs::read_dir(directory).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
        let panels = dashboard["panels"].as_array().unwrap().iter();
        let targets = panels.filter_map(|p| p["targets"].as_array()).flatten();
        for query in targets.filter_map(|t| t["expr"].as_str()) {
            let (http, grpc) = (query.matches(failed).count(), query.matches(calls).count());
            assert_eq!(http, grpc, "{query}");
            found += http;
        }
    }
    assert!(found >= 9, "{found}");
}

//! The pages in docs/features: each mesh starts as it stands there, each command answers as it says.

use crate::page::{Host, blocks, follow, steps};
use std::fs;
use std::path::{Path, PathBuf};
use tests_local::{can_redirect, repository};

/// Returns the errors of a page; none if all of it is true.
fn check(file: &Path) -> Vec<String> {
    let name = file.file_stem().unwrap().to_str().unwrap();
    let page = fs::read_to_string(file).unwrap();
    let manifests = blocks(&page, "yaml");
    let (mesh, files): (Vec<_>, Vec<_>) = manifests.iter().partition(|(title, _)| title.is_empty());
    if mesh.is_empty() {
        return vec![format!("{name}: it has no mesh")];
    }
    let host = Host::new(name);
    let mesh: Vec<_> = mesh.iter().map(|(_, text)| *text).collect();
    host.write("mesh.yaml", &mesh.join("\n---\n"));
    for (title, text) in files.into_iter().chain(blocks(&page, "js")) {
        host.write(title, text);
    }
    let (said, code) = host.run("tulle up --detach mesh.yaml");
    if code != 0 {
        let (log, _) = host.run("tulle logs supervisor");
        return vec![format!("{name}: its mesh does not start:\n{said}\n{log}")];
    }
    let told: Vec<_> = blocks(&page, "console")
        .into_iter()
        .flat_map(|(_, block)| steps(block))
        .collect();
    follow(&host, name, &told)
}

fn pages() -> Vec<PathBuf> {
    let entries = fs::read_dir(repository().join("docs/features")).unwrap();
    let mut pages: Vec<_> = entries.map(|e| e.unwrap().path()).collect();
    pages.retain(|p| p.file_name().unwrap() != "README.md");
    pages.sort();
    pages
}

#[test]
fn every_page_is_in_the_index() {
    let index = fs::read_to_string(repository().join("docs/features/README.md")).unwrap();
    for page in pages() {
        let name = page.file_name().unwrap().to_str().unwrap().to_owned();
        assert!(index.contains(&format!("({name})")), "{name}");
    }
}

#[test]
fn every_test_that_the_index_names_exists() {
    let index = fs::read_to_string(repository().join("docs/features/README.md")).unwrap();
    let (_, proven) = index
        .split_once("\n## Where each feature is proven\n")
        .unwrap();
    let rows = proven.lines().filter_map(|line| line.strip_prefix("| "));
    let mut named = 0;
    for row in rows.skip(1) {
        let tests = row.split(" | ").nth(2).unwrap_or_default();
        for name in tests.split('`').skip(1).step_by(2) {
            let path = repository().join("tests/local/tests").join(name);
            assert!(path.exists(), "{name} of {row}");
            named += 1;
        }
    }
    assert!(named > 30, "{named}");
}

/// Makes a test of each page, in a module of their own, and the list of their names.
macro_rules! true_pages {
    ($($name:ident)*) => {
        mod page {
            $(
                #[test]
                fn $name() {
                    super::is_true(stringify!($name));
                }
            )*
        }

        const WITH_A_TEST: &[&str] = &[$(stringify!($name)),*];
    };
}

true_pages! {
    access
    authorization
    circuit_breaking
    cors
    dns
    egress
    endpoints
    expressions
    external_auth
    faults
    findings
    gateway_policies
    grpc
    ingress_tls
    ipv6
    jwt
    learn
    limits
    load_balancing
    mirroring
    otlp
    outside_clients
    plugins
    prove
    proxy_protocol
    rate_limits
    request_filters
    retries
    routing
    tcp
    tcp_routes
    tls_passthrough
    tracing
    traffic_split
    websocket
}

/// The name of a page's test.
fn test_name(page: &Path) -> String {
    let stem = page.file_stem().unwrap().to_str().unwrap();
    stem.replace('-', "_")
}

fn is_true(name: &str) {
    if !can_redirect() {
        return;
    }
    let page = pages().into_iter().find(|page| test_name(page) == name);
    let wrong = check(&page.unwrap());
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn every_page_has_a_test() {
    let mut pages: Vec<_> = pages().iter().map(|page| test_name(page)).collect();
    pages.sort();
    assert_eq!(pages, WITH_A_TEST, "the list in `true_pages!`");
}

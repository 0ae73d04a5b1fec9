//! Sidecars of the release before this one under today's controller, the way to today's, and back:
//! under load, which loses nothing.
//!
//! `tests/kube/previous.sh` builds that release's proxy.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use tests_kube::load::{Load, all_serve, rollout, scale};
use tests_kube::{CONTROLLER, Cluster, MESH, eventually, install};

const SERVER: &str = "deployment/server";
const CLIENT: &str = "deployment/load";

/// Has new pods get this sidecar.
fn inject(cluster: &Cluster, tag: &str) {
    let map = cluster.get_json(&["-n", MESH, "configmap", "tulle-settings"]);
    let settings = map.pointer("/data/settings.json").and_then(Value::as_str);
    let mut settings: Value = serde_json::from_str(settings.unwrap()).unwrap();
    settings["sidecars"]["image"] = image(tag).into();
    let patch = json!({ "data": { "settings.json": settings.to_string() } }).to_string();
    let map = ["configmap", "tulle-settings", "-p", &patch];
    cluster.kubectl(&[&["-n", MESH, "patch"], &map[..]].concat());
    rollout(cluster, MESH, CONTROLLER);
    // The API server goes on asking one that ends, on the connection that it has.
    eventually("the controller before has ended", || {
        let label = "app.kubernetes.io/name=tulle-controller";
        let pods = cluster.get_json(&["-n", MESH, "pods", "-l", label]);
        pods["items"].as_array().unwrap().len() == 1
    });
}

fn image(tag: &str) -> String {
    format!("localhost/tulle-proxy:{tag}")
}

/// The sidecars' images of an application.
fn sidecars(cluster: &Cluster, app: &str) -> Vec<String> {
    let label = format!("app={app}");
    let pods = cluster.get_json(&["-n", "life", "pods", "-l", &label]);
    let living = pods["items"].as_array().unwrap().iter();
    let living = living.filter(|pod| pod["metadata"].get("deletionTimestamp").is_none());
    let images = living.flat_map(|pod| pod["spec"]["initContainers"].as_array().unwrap());
    let images = images.filter(|container| container["name"] == "tulle-proxy");
    images
        .map(|c| c["image"].as_str().unwrap().to_owned())
        .collect()
}

fn all_are(cluster: &Cluster, app: &str, tag: &str) {
    let images = sidecars(cluster, app);
    assert!(
        !images.is_empty() && images.iter().all(|i| *i == image(tag)),
        "{images:?}"
    );
}

#[test]
fn sidecars_are_replaced_under_load_and_put_back() {
    let Some(cluster) = Cluster::get() else {
        return;
    };
    let imported = cluster.command(&["exec", "ctr", "-n", "k8s.io", "images", "list", "-q"]);
    let imported = { imported }.output().unwrap().stdout;
    let imported = String::from_utf8(imported).unwrap();
    assert!(
        imported.contains(&image("previous")),
        "tests/kube/run.sh makes an image of the version before, and the node has {imported}"
    );
    let today = env!("CARGO_PKG_VERSION");
    install(&cluster);
    inject(&cluster, "previous");
    let mut load = Load::start(&cluster);
    all_are(&cluster, "server", "previous");
    all_are(&cluster, "load", "previous");
    load.goes_on("old sidecars, today's controller");
    // Changes in the cluster reach them.
    scale(&cluster, "life", SERVER, 3);
    all_serve(&cluster, 3);
    load.goes_on("a server more");

    inject(&cluster, today);
    rollout(&cluster, "life", SERVER);
    all_are(&cluster, "server", today);
    all_serve(&cluster, 3);
    load.goes_on("an old client of new servers");
    // A new client has an account of its own.
    rollout(&cluster, "life", CLIENT);
    all_are(&cluster, "load", today);
    let mut load = Load::from_cluster(&cluster);
    load.goes_on("all are new");

    inject(&cluster, "previous");
    rollout(&cluster, "life", SERVER);
    all_are(&cluster, "server", "previous");
    all_serve(&cluster, 3);
    load.goes_on("a new client of old servers");
    rollout(&cluster, "life", CLIENT);
    all_are(&cluster, "load", "previous");
    Load::from_cluster(&cluster).goes_on("all are old again");
}

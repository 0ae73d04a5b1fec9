//! An image that a node cannot get is named at once, with the node and the kubelet's reason: by `tulle install --apply`,
//! which ends with it, and by `tulle check`.

#![allow(clippy::unwrap_used)]

use std::env;
use std::path::Path;
use std::process::Output;
use tests_kube::{Cluster, Node, Shell, await_webhooks, root};

/// Longer than any test may take: a command that waited for it would never be seen to end.
const FOREVER: &str = "24h";

const APP: &str = r#"
apiVersion: v1
kind: Namespace
metadata: { name: images, labels: { tulle.dev/inject: enabled } }
---
apiVersion: v1
kind: Pod
metadata: { name: app, namespace: images }
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - { name: app, image: "localhost/bookinfo:@VERSION@", args: [echo, --bind, 0.0.0.0, --port, "8080", --name, app] }
"#;

/// `tulle install --apply` with these options, as somebody with `kubectl` in the PATH calls it.
fn install(cluster: &Cluster, programs: &Path, options: &[&str]) -> Output {
    let path = format!("{}:{}", programs.display(), env::var("PATH").unwrap());
    let mut command = cluster.command(&["exec"]);
    let command = command.arg(root().join("target/debug/tulle")).args([
        "install",
        "--apply",
        "--timeout",
        FOREVER,
    ]);
    let done = command.args(options).env("PATH", path).output().unwrap();
    println!("tulle install {options:?}: {done:?}");
    done
}

fn fails(done: &Output, parts: &[&str]) {
    let said = [&done.stdout[..], &done.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert_eq!(done.status.code(), Some(1), "{said}");
    for part in parts {
        assert!(said.contains(part), "{part} in {said}");
    }
}

fn succeeds(done: &Output) {
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{done:?}");
    assert!(
        said.contains("deployment tulle-system/tulle-controller is ready"),
        "{said}"
    );
}

#[test]
fn an_image_that_a_node_cannot_get_is_named_at_once() {
    let Some(cluster) = Cluster::get() else {
        return;
    };
    let shell = Shell::new(&cluster);
    let install = |options: &[&str]| install(&cluster, shell.programs(), options);

    let missing = "localhost/tulle:none on node node1: Err";
    fails(
        &install(&["--tag", "none"]),
        &[
            "deployment.apps/tulle-controller created",
            "error: a node cannot get an image of the mesh: ",
            missing,
            "(pod tulle-system/tulle-controller-",
            "what to do: load it on the node",
        ],
    );
    // Until it is tried again the kubelet gives another reason.
    let missing = missing.trim_end_matches("Err");
    cluster.await_finding(&format!("× TK047 images of the mesh: {missing}"));

    // The plugin's pod mounts directories that must be there; it never starts.
    let node = Node::new(&cluster);
    let directory = node.configurations.to_str().unwrap();
    let never = [
        "--set",
        "images.pullPolicy=Never",
        "--set",
        "images.cni.tag=none",
        "--cni",
        "--cni-configurations",
        directory,
        "--cni-programs",
        directory,
    ];
    fails(
        &install(&never),
        &["localhost/tulle-cni:none on node node1: ErrImageNeverPull: "],
    );

    // Pods of the attempts before still wait for theirs.
    succeeds(&install(&[]));
    let proxy = ["--set", "images.proxy.tag=none"];
    succeeds(&install(&proxy));
    await_webhooks(&cluster);
    cluster.apply(&APP.replace("@VERSION@", env!("CARGO_PKG_VERSION")));
    let missing = "localhost/tulle-proxy:none on node node1: ";
    cluster.await_finding(&format!("× TK047 images of the mesh: {missing}"));
    fails(&install(&proxy), &[missing, "(pod images/app)"]);

    cluster.kubectl(&["delete", "namespace", "images", "--wait=false"]);
    cluster.kubectl(&["delete", "namespace", "tulle-cni"]);
    let gone = cluster.tulle(&["uninstall", "--yes", "--force", "--crds"]);
    assert!(gone.contains("removed deployments"), "{gone}");
}

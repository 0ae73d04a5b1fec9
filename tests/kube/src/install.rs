//! The mesh as a user would install it.

use crate::{Cluster, Node, eventually, root};
use serde_json::Value;
use std::sync::{Mutex, PoisonError};

/// Nobody keeps them: they are what the webhooks are asked about. The second one is refused by nobody
/// else.
const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata: { name: asked-about, namespace: default, labels: { tulle.dev/inject: enabled } }
spec: { containers: [{ name: app, image: app }] }
"#;
const POLICY: &str = r#"
apiVersion: tulle.dev/v1alpha1
kind: TrafficPolicy
metadata: { name: asked-about, namespace: default }
spec: { targetRefs: [{ name: web }], loadBalancer: { type: RingHash } }
"#;

/// Installs a strict mesh and waits until pods can have sidecars. Does nothing new where it is already.
///
/// # Panics
/// It is not ready in time.
pub fn install(cluster: &Cluster) {
    install_with(cluster, &[]);
}

/// The same with values other than the usual, as `monitoring.smiMetrics=true`.
///
/// # Panics
/// It is not ready in time.
pub fn install_with(cluster: &Cluster, values: &[&str]) {
    let values = values.iter().flat_map(|value| ["--set", *value]);
    let options: Vec<&str> = ["--profile", "strict"].into_iter().chain(values).collect();
    install_as(cluster, &options);
}

/// `tulle install` with these options, as who tries it does.
///
/// # Panics
/// It is not ready in time.
pub fn install_as(cluster: &Cluster, options: &[&str]) {
    // Tests of one program run side by side, and `kubectl apply` of what another is creating fails.
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _alone = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut command = cluster.command(&["exec"]);
    let command = command.arg(root().join("target/debug/tulle"));
    let made = command.arg("install").args(options).output();
    let made = made.unwrap_or_else(|e| panic!("tulle install: {e}"));
    assert!(made.status.success(), "{made:?}");
    cluster.apply(&String::from_utf8_lossy(&made.stdout));
    cluster.await_deployment("tulle-system", "tulle-controller");
    await_webhooks(cluster);
}

/// Returns the objects of a strict mesh with the CNI plugin, at the places that the nodes of the cluster have for it.
///
/// # Panics
/// `tulle install` does not print them.
pub fn objects_with_cni(cluster: &Cluster) -> Value {
    let node = Node::new(cluster);
    let [configurations, programs] =
        [node.configurations, node.programs].map(|d| d.to_string_lossy().into_owned());
    let places = [
        "--cni-configurations",
        &configurations,
        "--cni-programs",
        &programs,
    ];
    let words = [
        &["install", "--profile", "strict", "--cni", "-o", "json"],
        &places[..],
    ]
    .concat();
    let printed = cluster.tulle(&words);
    serde_json::from_str(&printed).unwrap_or_else(|e| panic!("{e}: {printed}"))
}

/// Pods and objects that come before the API server knows the webhooks would be refused.
///
/// # Panics
/// It does not in time.
pub fn await_webhooks(cluster: &Cluster) {
    for (kind, name) in [
        ("mutatingwebhookconfiguration", "tulle-injector"),
        ("validatingwebhookconfiguration", "tulle-validator"),
    ] {
        eventually("the webhooks are known", || {
            let found = cluster.get_json(&[kind, name]);
            let hooks = found["webhooks"].as_array().into_iter().flatten();
            let bundles = hooks.map(|hook| hook.pointer("/clientConfig/caBundle"));
            let known = |bundle: Option<&Value>| {
                bundle
                    .and_then(Value::as_str)
                    .is_some_and(|b| !b.is_empty())
            };
            bundles.map(known).reduce(|all, one| all && one) == Some(true)
        });
    }
    // Stored configurations of webhooks take a moment until the API server calls them.
    for (object, expected) in [(POD, "name: tulle-proxy"), (POLICY, "denied the request")] {
        eventually("the webhooks are asked", || {
            let options = ["--dry-run=server", "-o", "yaml"];
            let done = cluster.try_apply_with(&options, object);
            let said = [done.stdout, done.stderr].concat();
            String::from_utf8_lossy(&said).contains(expected)
        });
    }
}

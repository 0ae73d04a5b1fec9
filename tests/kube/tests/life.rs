//! Trouble while requests go on: every part of the node is restarted, the mesh is updated, the controller is
//! away when certificates are to be renewed, and nobody who asks for anything meanwhile notices.
//!
//! `rolling.rs` has what is short of this kind: rolling updates of servers and of the controller.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tests_kube::load::{Load, all_serve, rollout, scale, start_controller, stop_controller};
use tests_kube::{CONTROLLER, Cluster, MESH, eventually, install, pause};

/// The age at which sidecars renew their certificates, less up to a tenth. These last so long that a busy
/// machine has the time to start the controller again before they end.
const RENEW_AFTER: Duration = Duration::from_secs(20);
const LIFETIME: &str = "1h";
/// Longer than `RENEW_AFTER`: each certificate is to be renewed in this time.
const AWAY: Duration = Duration::from_secs(22);

fn certificates_are_renewed_often(cluster: &Cluster) {
    let map = cluster.get_json(&["-n", MESH, "configmap", "tulle-settings"]);
    let settings = map.pointer("/data/settings.json").and_then(Value::as_str);
    let mut settings: Value = serde_json::from_str(settings.unwrap()).unwrap();
    let renew_after = format!("{}s", RENEW_AFTER.as_secs());
    settings["mesh"]["certificates"] = json!({ "lifetime": LIFETIME, "renewAfter": renew_after });
    let patch = json!({ "data": { "settings.json": settings.to_string() } }).to_string();
    cluster.kubectl(&[
        "-n",
        MESH,
        "patch",
        "configmap",
        "tulle-settings",
        "-p",
        &patch,
    ]);
    rollout(cluster, MESH, CONTROLLER);
}

fn api_answers(cluster: &Cluster) {
    eventually("the API server answers again", || {
        cluster
            .try_kubectl(&["get", "--raw", "/readyz"])
            .status
            .success()
    });
}

#[test]
fn nobody_notices() {
    let Some(cluster) = Cluster::get() else {
        return;
    };
    install(&cluster);
    certificates_are_renewed_often(&cluster);
    let mut load = Load::start(&cluster);

    for component in ["containerd", "proxy", "scheduler", "controller-manager"] {
        cluster.restart(component);
        load.goes_on(component);
    }
    for component in ["etcd", "apiserver"] {
        cluster.restart(component);
        api_answers(&cluster);
        load.goes_on(component);
    }
    // The controller has noticed: what changes now arrives.
    scale(&cluster, "life", "deployment/server", 3);
    all_serve(&cluster, 3);
    load.goes_on("after the API server's restart");

    a_kubelet_begins_anew(&cluster, &mut load);
    an_api_server_that_refuses(&cluster, &mut load);
    certificates_are_renewed_late(&cluster, &mut load);
    the_mesh_itself_is_updated(&cluster, &mut load);
}

/// A kubelet that starts calls all of its pods not ready until it has asked each of them. Here it has
/// every pod of the service: that nobody is ready is then what Kubernetes says.
fn a_kubelet_begins_anew(cluster: &Cluster, load: &mut Load) {
    let readiness = || -> Vec<(bool, Value)> {
        let pods = cluster.get_json(&["-n", "life", "pods", "-l", "app=server"]);
        let pods = pods["items"].as_array().unwrap().iter();
        let readiness = pods.map(|pod| {
            let mut conditions = pod["status"]["conditions"].as_array().unwrap().iter();
            let ready = conditions.find(|c| c["type"] == "Ready").unwrap();
            let since = ready["lastTransitionTime"].clone();
            (ready["status"] == "True", since)
        });
        readiness.collect()
    };
    let before = readiness();
    cluster.restart("kubelet");
    // It counts anew.
    let asked = || {
        let probes = ["get", "--raw", "/api/v1/nodes/node1/proxy/metrics/probes"];
        let probes = cluster.try_kubectl(&probes).stdout;
        let probes = String::from_utf8_lossy(&probes).into_owned();
        let parts = [
            "container=\"server\"",
            "namespace=\"life\"",
            "probe_type=\"Readiness\"",
            "result=\"successful\"",
        ];
        let good = |line: &&str| {
            line.starts_with("prober_probe_total{") && parts.iter().all(|part| line.contains(part))
        };
        probes.lines().filter(good).count() >= 3
    };
    let nobody = |load: &Load| load.account()["nobody"].as_u64().unwrap();
    // A change of readiness takes time from the kubelet to Kubernetes, and from there to the client's
    // sidecar.
    let mut calm = Instant::now();
    eventually("the kubelet has asked all of them", || {
        let (now, pods) = (nobody(load), readiness());
        if now != load.nobody || !pods.iter().all(|(ready, _)| *ready) || !asked() {
            load.nobody = now;
            calm = Instant::now();
        }
        // Pods that have been called not ready and then ready again are not called anything else; for one
        // that has not, that may still come.
        let all_told = pods.iter().all(|pod| !before.contains(pod));
        calm.elapsed() > Duration::from_secs(if all_told { 2 } else { 10 })
    });
    load.goes_on("the kubelet");
}

/// Everything the controller asks for is refused, new watches, too; meanwhile a namespace comes, and a
/// pod goes.
fn an_api_server_that_refuses(cluster: &Cluster, load: &mut Load) {
    cluster.kubectl(&["delete", "clusterrolebinding", "tulle-controller"]);
    eventually("the API server knows that it is to refuse", || {
        let controller = "--as=system:serviceaccount:tulle-system:tulle-controller";
        let may = cluster.try_kubectl(&["auth", "can-i", "list", "namespaces", controller]);
        String::from_utf8_lossy(&may.stdout).starts_with("no")
    });
    let late = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "late" } });
    cluster.apply(&late.to_string());
    // The watches that there are would go on.
    cluster.restart("apiserver");
    api_answers(cluster);
    scale(cluster, "life", "deployment/server", 2);
    load.goes_on("the API server refuses");
    let bundle = ["-n", "late", "get", "configmap", "tulle-trust-bundle"];
    assert!(
        !cluster.try_kubectl(&bundle).status.success(),
        "it was to be refused"
    );
    install(cluster);
    all_serve(cluster, 2);
    eventually(
        "a namespace that came meanwhile has what its pods trust",
        || cluster.try_kubectl(&bundle).status.success(),
    );
    cluster.kubectl(&["delete", "namespace", "late", "--wait=false"]);
    load.goes_on("the API server answers again");
}

/// The controller is away when certificates are to be renewed.
fn certificates_are_renewed_late(cluster: &Cluster, load: &mut Load) {
    // Installing anew has set their usual age again.
    certificates_are_renewed_often(cluster);
    load.goes_on("the age of renewal is set");
    let renewals = || {
        let pods = cluster.kubectl(&["-n", "life", "logs", "deployment/load", "-c", "tulle-proxy"]);
        pods.matches("certificate renewed").count()
    };
    let so_far = renewals();
    eventually("certificates are renewed at the age that was set", || {
        renewals() > so_far
    });
    stop_controller(cluster);
    let before = renewals();
    load.goes_on("the controller is away");
    pause("the age at which certificates are renewed", AWAY);
    load.goes_on("certificates are to be renewed");
    assert_eq!(renewals(), before, "nobody could have renewed it");
    start_controller(cluster);
    eventually("the certificate is renewed", || renewals() > before);
    load.goes_on("the controller is back");
}

/// Sidecars of another image: a new controller first, then the pods.
fn the_mesh_itself_is_updated(cluster: &Cluster, load: &mut Load) {
    for name in ["tulle", "tulle-proxy", "tulle-init"] {
        let image = |tag: &str| format!("localhost/{name}:{tag}");
        let (old, new) = (image(env!("CARGO_PKG_VERSION")), image("next"));
        let tag = [
            "exec",
            "ctr",
            "--namespace",
            "k8s.io",
            "images",
            "tag",
            "--force",
            &old,
            &new,
        ];
        let done = cluster.command(&tag).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    }
    cluster.apply(&cluster.tulle(&["install", "--tag", "next"]));
    cluster.await_deployment(MESH, "tulle-controller");
    // The API server goes on asking one that ends, on the connection that it has.
    eventually("the controller before has ended", || {
        let label = "app.kubernetes.io/name=tulle-controller";
        let pods = cluster.get_json(&["-n", MESH, "pods", "-l", label]);
        pods["items"].as_array().unwrap().len() == 1
    });
    load.goes_on("an update of the controller");
    rollout(cluster, "life", "deployment/server");
    let pods = cluster.get_json(&["-n", "life", "pods", "-l", "app=server"]);
    assert!(
        pods.to_string().contains("localhost/tulle-proxy:next"),
        "{pods}"
    );
    load.goes_on("an update of the sidecars");
}

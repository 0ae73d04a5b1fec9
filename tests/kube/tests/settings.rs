//! Tests that the Mesh's and pods' settings of sidecars hold for new pods, and that `tulle check` names
//! older pods.

#![allow(clippy::unwrap_used)]

use serde_json::Value;
use tests_kube::{Cluster, eventually, install};

const NAMESPACE: &str = "settings";
const MESH: &str = r#"
apiVersion: tulle.dev/v1alpha1
kind: Mesh
metadata: { name: mesh }
spec:
  dns: true
  sidecar: { cpuLimit: 500m, memoryLimit: 96Mi, workers: 2 }
"#;

#[test]
fn what_is_said_of_sidecars_holds() {
    let Some(cluster) = Cluster::get() else {
        return;
    };
    install(&cluster);
    cluster.apply_file("settings.yaml", &[("@NAMESPACE@", NAMESPACE)]);
    for name in ["web", "client"] {
        cluster.await_deployment(NAMESPACE, name);
    }
    metrics_of_the_application(&cluster);
    opaque_ports(&cluster);
    the_mesh(&cluster);
    cluster.kubectl(&["delete", "namespace", NAMESPACE, "--wait=false"]);
}

/// The pod of a Deployment that is not about to end.
fn pod(cluster: &Cluster, name: &str) -> Value {
    let label = format!("app={name}");
    let pods = cluster.get_json(&["-n", NAMESPACE, "pods", "-l", &label]);
    let mut living = pods["items"].as_array().unwrap().iter();
    let living = living.find(|pod| pod["metadata"].get("deletionTimestamp").is_none());
    living.unwrap().clone()
}

/// The namespace is strict, so nobody without a certificate reaches the application itself.
fn metrics_of_the_application(cluster: &Cluster) {
    let pod = pod(cluster, "web");
    let annotations = &pod["metadata"]["annotations"];
    assert_eq!(annotations["prometheus.io/path"], "/metrics");
    let port = annotations["prometheus.io/port"].as_str().unwrap();
    let ip = pod["status"]["podIP"].as_str().unwrap();
    let page = cluster.curl(&format!("http://{ip}:{port}/metrics"));
    assert!(page.contains("\necho_requests_total "), "{page}");
    assert!(
        page.contains("\ntulle_application_metrics_up 1\n"),
        "{page}"
    );
    assert!(page.contains("\ntulle_config_generation "), "{page}");
    let before = annotations["tulle.dev/application-metrics"]
        .as_str()
        .unwrap();
    let before: Value = serde_json::from_str(before).unwrap();
    assert_eq!(before["port"], "8080");
    assert_eq!(before["path"], "/numbers");
}

/// A list that is none is refused; one that is holds at once.
fn opaque_ports(cluster: &Cluster) {
    let annotate = |what: &str, ports: &str| {
        let ports = format!("tulle.dev/opaque-ports={ports}");
        cluster.kubectl(&["-n", NAMESPACE, "annotate", "--overwrite", what, &ports]);
    };
    let protocol = |workload: &str, place: &str| {
        let target = format!("deploy/{workload}");
        let config = ["proxy", "get", "config", "-n", NAMESPACE, &target];
        let config: Value = serde_json::from_str(&cluster.tulle(&config)).unwrap_or_default();
        let ports = config.pointer(place).and_then(Value::as_array);
        let mut ports = ports.into_iter().flatten();
        let port = ports.find(|p| p["port"] == 9000);
        port.map(|p| p["protocol"].clone()).unwrap_or_default()
    };
    let talk = || {
        let words = ["bookinfo", "talk", "tcp://web:9000", "hello"];
        cluster.exec(NAMESPACE, "deployment/client", &words)
    };
    let (good, said) = talk();
    assert!(good, "{said}");
    let of_service = format!("/services/web.{NAMESPACE}/ports");
    assert_eq!(protocol("client", &of_service), "detect");
    annotate("service/web", "9000");
    eventually("callers carry the bytes unread", || {
        protocol("client", &of_service) == "tcp"
    });
    assert!(talk().0);
    assert_eq!(protocol("web", "/inbound/ports"), "tcp");
    annotate("service/web", "9000,nonsense");
    cluster.await_finding("\"nonsense\" is no port");
    eventually("it has no effect", || {
        protocol("web", "/inbound/ports") == "detect"
    });
    let name = pod(cluster, "web")["metadata"]["name"]
        .as_str()
        .unwrap()
        .to_owned();
    annotate(&format!("pod/{name}"), "9000");
    eventually("the pod's sidecar carries them unread", || {
        protocol("web", "/inbound/ports") == "tcp"
    });
    assert!(talk().0);

    let pod = r#"
apiVersion: v1
kind: Pod
metadata: { name: odd, namespace: settings, annotations: { tulle.dev/opaque-ports: "8080,nonsense" } }
spec: { containers: [{ name: app, image: example.invalid/none }] }
"#;
    let refused = cluster.try_apply(pod);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "{said}");
    assert!(
        said.contains("tulle.dev/opaque-ports") && said.contains("\"nonsense\" is no port"),
        "{said}"
    );
}

/// A Mesh holds for pods that are made after it.
fn the_mesh(cluster: &Cluster) {
    let older = pod(cluster, "client")["metadata"]["name"]
        .as_str()
        .unwrap()
        .to_owned();
    cluster.apply(MESH);
    cluster.await_finding(&format!(
        "pod {NAMESPACE}/{older}: CPU limit: none, new pods have 500m"
    ));
    cluster.kubectl(&["-n", NAMESPACE, "rollout", "restart", "deployment/client"]);
    eventually("the older pod is gone", || {
        pod(cluster, "client")["metadata"]["name"] != older.as_str()
    });
    cluster.await_deployment(NAMESPACE, "client");
    let pod = pod(cluster, "client");
    let containers = pod["spec"]["initContainers"].as_array().unwrap();
    let sidecar = containers
        .iter()
        .find(|c| c["name"] == "tulle-proxy")
        .unwrap();
    let limits = &sidecar["resources"]["limits"];
    assert_eq!(
        (&limits["cpu"], &limits["memory"]),
        (&"500m".into(), &"96Mi".into())
    );
    // Its sidecar does as it was told.
    let ip = pod["status"]["podIP"].as_str().unwrap();
    let metrics = || cluster.curl(&format!("http://{ip}:15020/metrics"));
    assert!(metrics().contains("\ntulle_workers 2\n"), "{}", metrics());
    let asked = |page: &str| -> u64 {
        let row = "tulle_dns_queries_total{answer=\"mesh\"} ";
        let mut rows = page.lines().filter_map(|line| line.strip_prefix(row));
        rows.next().map_or(0, |n| n.parse().unwrap())
    };
    let before = asked(&metrics());
    let words = ["bookinfo", "talk", "http://web/", "hello"];
    let (good, said) = cluster.exec(NAMESPACE, "deployment/client", &words);
    assert!(good, "{said}");
    assert!(
        asked(&metrics()) > before,
        "its sidecar has not answered its DNS: {}",
        metrics()
    );
    cluster.kubectl(&["delete", "mesh", "mesh"]);
    eventually("without the Mesh, new pods are as before", || {
        cluster
            .tulle(&["check"])
            .contains("CPU limit: 500m, new pods have none")
    });
}

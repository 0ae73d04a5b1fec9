//! The mesh in a cluster: installed as a user would, pods with sidecars, who they are to each other. How it goes
//! on without a controller and through updates is in `rolling.rs`.

#![allow(clippy::unwrap_used)]

use serde_json::Value;
use tests_kube::{Cluster, eventually, install};

const SHOP: &str = r#"
apiVersion: v1
kind: Namespace
metadata: { name: shop, labels: { tulle.dev/inject: enabled } }
---
apiVersion: v1
kind: ServiceAccount
metadata: { name: web, namespace: shop }
---
apiVersion: apps/v1
kind: Deployment
metadata: { name: web, namespace: shop }
spec:
  replicas: 2
  selector: { matchLabels: { app: web } }
  template:
    metadata: { labels: { app: web } }
    spec:
      serviceAccountName: web
      containers:
      - name: web
        image: localhost/bookinfo:@VERSION@
        args: [echo, --bind, 0.0.0.0, --port, "8080", --name, web]
        ports: [{ name: http, containerPort: 8080 }]
        readinessProbe: { httpGet: { path: /, port: http }, periodSeconds: 1, timeoutSeconds: 10 }
        livenessProbe: { tcpSocket: { port: http }, timeoutSeconds: 10 }
---
apiVersion: v1
kind: Service
metadata: { name: web, namespace: shop }
spec:
  selector: { app: web }
  ports: [{ name: http, port: 80, targetPort: http, appProtocol: http }]
---
apiVersion: v1
kind: Service
metadata: { name: web-headless, namespace: shop }
spec:
  clusterIP: None
  selector: { app: web }
  ports: [{ name: http, port: 8080, targetPort: http, appProtocol: http }]
---
apiVersion: v1
kind: ServiceAccount
metadata: { name: client, namespace: shop }
---
apiVersion: apps/v1
kind: Deployment
metadata: { name: client, namespace: shop }
spec:
  selector: { matchLabels: { app: client } }
  template:
    metadata: { labels: { app: client } }
    spec:
      serviceAccountName: client
      containers:
      - { name: client, image: "localhost/bookinfo:@VERSION@", args: [echo] }
---
apiVersion: batch/v1
kind: Job
metadata: { name: once, namespace: shop }
spec:
  backoffLimit: 20
  template:
    spec:
      restartPolicy: OnFailure
      containers:
      - name: once
        image: localhost/bookinfo:@VERSION@
        args: [talk, http://web/job, done]
---
apiVersion: v1
kind: Namespace
metadata: { name: outside }
---
apiVersion: apps/v1
kind: Deployment
metadata: { name: client, namespace: outside }
spec:
  selector: { matchLabels: { app: client } }
  template:
    metadata: { labels: { app: client } }
    spec:
      containers:
      - { name: client, image: "localhost/bookinfo:@VERSION@", args: [echo] }
"#;

fn talk(cluster: &Cluster, namespace: &str, url: &str) -> String {
    let (_, said) = cluster.exec(
        namespace,
        "deployment/client",
        &["bookinfo", "talk", url, "hello"],
    );
    said
}

#[test]
fn a_labelled_namespace_is_in_the_mesh() {
    let Some(cluster) = Cluster::get() else {
        return;
    };
    install(&cluster);
    cluster.apply(&SHOP.replace("@VERSION@", env!("CARGO_PKG_VERSION")));
    for name in ["web", "client"] {
        cluster.await_deployment("shop", name);
    }
    cluster.await_deployment("outside", "client");

    // Called as the service, by its full name, and as a pod (as with a headless service).
    for url in [
        "http://web/path",
        "http://web.shop.svc.cluster.local/path",
        "http://web-headless:8080/path",
    ] {
        // The client's sidecar, and the DNS, learn of them by themselves.
        eventually(&format!("{url} is answered"), || {
            let said = talk(&cluster, "shop", url);
            println!("{url}: {said}");
            said.starts_with("200")
        });
    }
    // Mutual TLS between identities of service accounts, as the sidecars of the server saw it.
    let web = cluster.get_json(&["-n", "shop", "pods", "-l", "app=web"]);
    let web = web["items"].as_array().unwrap();
    let mut seen = String::new();
    // Requests are counted after their last byte has gone.
    eventually("requests are counted", || {
        let metrics = web.iter().map(|pod| {
            let ip = pod["status"]["podIP"].as_str().unwrap();
            cluster.curl(&format!("http://{ip}:15020/metrics"))
        });
        seen = metrics.collect();
        seen.lines().any(|line| {
            line.starts_with("istio_requests_total")
                && line.contains("source_principal=\"spiffe://cluster.local/ns/shop/sa/client\"")
                && line.contains("destination_principal=\"spiffe://cluster.local/ns/shop/sa/web\"")
                && line.contains("connection_security_policy=\"mutual_tls\"")
        })
    });
    assert!(
        !seen.contains("connection_security_policy=\"none\""),
        "{seen}"
    );

    // A pod without a sidecar is refused: it has no identity.
    eventually("it is refused", || {
        let said = talk(&cluster, "outside", "http://web.shop/path");
        assert!(!said.starts_with("200"), "{said}");
        said.starts_with("403 plaintext_refused")
    });
    // It is not the mesh's when nobody asked for it.
    let pods = cluster.get_json(&["-n", "outside", "pods"]);
    let containers = pods.pointer("/items/0/spec/initContainers");
    assert!(containers.is_none(), "{pods}");

    // Sidecars have no rights, and their key is nobody's else.
    for pod in web {
        let own = pod
            .pointer("/spec/initContainers")
            .and_then(Value::as_array)
            .unwrap();
        let sidecar = own.iter().find(|c| c["name"] == "tulle-proxy").unwrap();
        assert_eq!(sidecar["securityContext"]["runAsUser"], 1500);
        let others = pod.pointer("/spec/containers").unwrap().to_string();
        assert!(!others.contains("/var/run/secrets/tulle.dev"), "{others}");
    }

    // A Job ends although its sidecar goes on.
    eventually("the job has ended", || {
        let job = cluster.get_json(&["-n", "shop", "job", "once"]);
        job.pointer("/status/succeeded") == Some(&1.into())
    });

    cluster.kubectl(&["delete", "namespace", "shop", "outside", "--wait=false"]);
}

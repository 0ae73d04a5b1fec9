//! Tests a stolen certificate and strangers in a cluster: an identity is revoked and allowed again, and the
//! controller's webhook is flooded in a pod with its usual limits.

#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::sync::Once;
use tests_kube::{Cluster, MESH, eventually, install};

/// The cluster with a mesh, which is installed once for both tests.
fn installed() -> Option<Cluster> {
    static ONCE: Once = Once::new();
    let cluster = Cluster::get()?;
    ONCE.call_once(|| install(&cluster));
    Some(cluster)
}

const APPS: &str = r#"
apiVersion: v1
kind: Namespace
metadata: { name: trust, labels: { tulle.dev/inject: enabled } }
---
apiVersion: v1
kind: Service
metadata: { name: web, namespace: trust }
spec:
  selector: { app: web }
  ports: [{ name: http, port: 80, targetPort: 8080, appProtocol: http }]
"#;

/// Nobody but the webhook refuses it.
const BAD: &str = r#"
apiVersion: tulle.dev/v1alpha1
kind: TrafficPolicy
metadata: { name: bad, namespace: default }
spec: { targetRefs: [{ name: web }], loadBalancer: { type: RingHash } }
"#;

fn deployment(name: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(
        r#"
---
apiVersion: v1
kind: ServiceAccount
metadata: {{ name: {name}, namespace: trust }}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{ name: {name}, namespace: trust }}
spec:
  selector: {{ matchLabels: {{ app: {name} }} }}
  template:
    metadata: {{ labels: {{ app: {name} }} }}
    spec:
      serviceAccountName: {name}
      terminationGracePeriodSeconds: 3
      containers:
      - name: {name}
        image: "localhost/bookinfo:{version}"
        args: [echo, --bind, 0.0.0.0, --port, "8080", --name, {name}]
        ports: [{{ containerPort: 8080 }}]
        readinessProbe: {{ httpGet: {{ path: /, port: 8080 }}, periodSeconds: 1, timeoutSeconds: 10 }}
"#
    )
}

/// Whether a caller is answered by the application.
fn is_answered(cluster: &Cluster, caller: &str) -> bool {
    let program = ["bookinfo", "fetch", "http://web/"];
    let (done, said) = cluster.exec("trust", &format!("deployment/{caller}"), &program);
    done && said.starts_with("200")
}

#[test]
fn a_revoked_identity_is_refused_until_it_is_allowed() {
    let Some(cluster) = installed() else {
        return;
    };
    cluster.apply(APPS);
    for name in ["web", "client", "other"] {
        cluster.apply(&deployment(name));
    }
    for name in ["web", "client", "other"] {
        cluster.await_deployment("trust", name);
        eventually("callers are answered", || is_answered(&cluster, name));
    }

    cluster.tulle(&[
        "identity",
        "revoke",
        "ns/trust/sa/client",
        "--reason",
        "stolen",
    ]);
    eventually("the client is refused", || !is_answered(&cluster, "client"));
    let listed = cluster.tulle(&["identity", "list", "-o", "json"]);
    assert!(
        listed.contains("/ns/trust/sa/client") && listed.contains("stolen"),
        "{listed}"
    );
    // Nobody else is.
    assert!(is_answered(&cluster, "other"));
    // Nor does it get another certificate in another pod.
    let restart = ["-n", "trust", "rollout", "restart", "deployment/client"];
    cluster.kubectl(&restart);
    eventually("the new pod's sidecar is told why", || {
        let log = [
            "-n",
            "trust",
            "logs",
            "-l",
            "app=client",
            "-c",
            "tulle-proxy",
            "--prefix",
        ];
        let log = cluster.try_kubectl(&log);
        String::from_utf8_lossy(&log.stdout).contains("revoked")
    });

    cluster.tulle(&["identity", "allow", "ns/trust/sa/client"]);
    cluster.await_deployment("trust", "client");
    eventually("the client is answered again", || {
        is_answered(&cluster, "client")
    });
    cluster.kubectl(&["delete", "namespace", "trust", "--wait=false"]);
}

/// Returns the controller's pod with its status, which counts restarts.
fn controller(cluster: &Cluster) -> Value {
    let label = "app.kubernetes.io/name=tulle-controller";
    let pods = cluster.get_json(&["-n", MESH, "pods", "-l", label]);
    pods["items"][0].clone()
}

/// Most memory that the controller's process has had, in MiB.
fn peak(cluster: &Cluster) -> u64 {
    let find = "for p in /proc/[0-9]*; do if tr '\\0' ' ' <$p/cmdline 2>/dev/null | grep -q '^[^ ]*tulle cluster-controller '; then cat $p/status; fi; done";
    let done = cluster.command(&["exec", "sh", "-c", find]).output();
    let text = String::from_utf8_lossy(&done.unwrap().stdout).into_owned();
    let line = text.lines().find(|line| line.starts_with("VmHWM:"));
    let kib = line.and_then(|l| l.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.unwrap_or_else(|| panic!("the controller's memory: {text}")) / 1024
}

/// Requests with as much JSON as the webhook takes, at once.
const POSTS: usize = 110;
/// One after another.
const FLOODS: usize = 5;

#[test]
fn a_flood_of_reviews_neither_ends_the_controller_nor_keeps_it_from_the_api_server() {
    let Some(cluster) = installed() else {
        return;
    };
    let pod = controller(&cluster);
    let address = pod["status"]["podIP"].as_str().unwrap();
    let before = peak(&cluster);
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = format!("{{\"request\": {{\"a\": [{}0]}}}}", "0,".repeat(2_000_000));
    std::fs::write(file.path(), text).unwrap();
    let ports = pod["spec"]["containers"][0]["ports"].as_array().unwrap();
    let port = ports.iter().find(|port| port["name"] == "webhook").unwrap();
    let url = format!("https://{address}:{}/validate", port["containerPort"]);
    let options = format!(
        "exec curl --silent --insecure --parallel --parallel-immediate --parallel-max {POSTS} --max-time 60 \
         --header content-type:application/json --write-out sent=%{{size_upload}}\\n --data-binary @{}",
        file.path().display()
    );
    let mut words: Vec<_> = options.split_whitespace().collect();
    words.extend(std::iter::repeat_n(url.as_str(), POSTS));
    let mut flood = cluster.command(&words);
    let flood = std::thread::spawn(move || {
        let told = (0..FLOODS).map(|_| flood.output().unwrap().stdout);
        told.collect::<Vec<_>>().concat()
    });
    let mut reviews = 0;
    while !flood.is_finished() || reviews == 0 {
        // The API server asks it, and is answered: what nobody else refuses is refused.
        let done = cluster.try_apply_with(&["--dry-run=server"], BAD);
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(said.contains("denied the request"), "{said}");
        reviews += 1;
    }
    let told = flood.join().unwrap();
    let told = String::from_utf8_lossy(&told).into_owned();
    let sent = told
        .split("sent=")
        .skip(1)
        .filter_map(|t| t.lines().next()?.parse::<u64>().ok());
    let sent = sent.sum::<u64>() >> 20;
    assert!(
        sent > 64 && told.contains("overload"),
        "the flood was none: {sent} MiB; {told}"
    );
    let after = peak(&cluster);
    println!(
        "{FLOODS} times {POSTS} posts, {sent} MiB: {before} -> {after} MiB, {reviews} reviews meanwhile"
    );
    assert!(after - before <= 64, "{before} -> {after} MiB");
    let now = controller(&cluster);
    assert_eq!(now["metadata"]["uid"], pod["metadata"]["uid"]);
    assert_eq!(now["status"]["containerStatuses"][0]["restartCount"], 0);
}

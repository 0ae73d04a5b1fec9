//! cert-manager signs the certificates of workloads: its own controllers, with an authority of theirs.
//! While they are away nothing that works stops, and what waits for a certificate says why.

#![allow(clippy::unwrap_used)]

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use tests_kube::{Cluster, await_webhooks, eventually, install, root};

/// A request as a controller leaves it that is killed then. Its issuer does not exist, so nobody answers
/// it.
const LEFT: &str = r#"
apiVersion: cert-manager.io/v1
kind: CertificateRequest
metadata: { name: tulle-left, namespace: tulle-system, labels: { app.kubernetes.io/managed-by: tulle } }
spec:
  request: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0K
  issuerRef: { name: nobody, kind: ClusterIssuer, group: elsewhere.example }
"#;

const NAMESPACE: &str = r#"
apiVersion: v1
kind: Namespace
metadata: { name: issued, labels: { tulle.dev/inject: enabled } }
---
apiVersion: v1
kind: Service
metadata: { name: web, namespace: issued }
spec:
  selector: { app: web }
  ports: [{ name: http, port: 80, targetPort: 8080, appProtocol: http }]
"#;

const POLICY: &str = r#"
apiVersion: tulle.dev/v1alpha1
kind: AuthorizationPolicy
metadata: { name: closed, namespace: issued }
spec:
  targetRefs: [{ kind: Service, name: web }]
  # In the permissive mode of an installed mesh only what denies holds.
  action: Deny
  rules: [{ to: { paths: [{ type: PathPrefix, value: /path }] } }]
"#;

const DEPLOYMENT: &str = r#"
---
apiVersion: v1
kind: ServiceAccount
metadata: { name: @NAME@, namespace: issued }
---
apiVersion: apps/v1
kind: Deployment
metadata: { name: @NAME@, namespace: issued }
spec:
  selector: { matchLabels: { app: @NAME@ } }
  template:
    metadata: { labels: { app: @NAME@ } }
    spec:
      serviceAccountName: @NAME@
      containers:
      - name: app
        image: "localhost/bookinfo:@VERSION@"
        args: [echo, --bind, 0.0.0.0, --port, "8080", --name, @NAME@]
        ports: [{ containerPort: 8080 }]
"#;

const AUTHORITY: &str = "tulle test authority";

/// cert-manager's controllers, in the node's network; ended with the value.
struct CertManager(Child);

impl CertManager {
    fn start(cluster: &Cluster, built: &str) -> Self {
        let program = format!("{built}/cert-manager");
        let child = cluster
            .command(&["exec", &program])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        Self(child.unwrap())
    }
}

impl Drop for CertManager {
    fn drop(&mut self) {
        // Kill its children, too: the program itself is behind a script.
        let group = format!("-{}", self.0.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
        let _ = self.0.wait();
    }
}

fn built() -> String {
    let script = root().join("tests/kube/issuers/build.sh");
    let made = Command::new(script).stderr(Stdio::inherit()).output();
    let made = made.unwrap();
    assert!(made.status.success(), "build.sh");
    String::from_utf8(made.stdout).unwrap().trim().to_owned()
}

/// An authority as a Secret that a ClusterIssuer signs with.
fn issuer() -> String {
    let directory = tempfile::tempdir().unwrap();
    let (key, certificate) = (
        directory.path().join("tls.key"),
        directory.path().join("tls.crt"),
    );
    let subject = format!("/CN={AUTHORITY}");
    let made = Command::new("openssl")
        .args(["req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt"])
        .args(["ec_paramgen_curve:P-256", "-days", "30", "-subj", &subject])
        .args(["-addext", "keyUsage=critical,keyCertSign,cRLSign"])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let read = |path| {
        let text = std::fs::read_to_string(path).unwrap();
        serde_json::Value::from(text).to_string()
    };
    format!(
        r#"
apiVersion: v1
kind: Namespace
metadata: {{ name: cert-manager }}
---
apiVersion: v1
kind: Secret
metadata: {{ name: authority, namespace: cert-manager }}
type: kubernetes.io/tls
stringData: {{ tls.crt: {}, tls.key: {} }}
---
apiVersion: cert-manager.io/v1
kind: ClusterIssuer
metadata: {{ name: mesh }}
spec: {{ ca: {{ secretName: authority }} }}
"#,
        read(certificate),
        read(key)
    )
}

/// Installs the mesh with these options, and a controller that has read them.
fn install_with(cluster: &Cluster, options: &[&str]) {
    let strict = ["install", "--profile", "strict"];
    cluster.apply(&cluster.tulle(&[&strict, options].concat()));
    restart(cluster);
}

fn restart(cluster: &Cluster) {
    let name = "deployment/tulle-controller";
    cluster.kubectl(&["-n", "tulle-system", "rollout", "restart", name]);
    cluster.await_deployment("tulle-system", "tulle-controller");
}

fn start(cluster: &Cluster, name: &str) {
    let version = env!("CARGO_PKG_VERSION");
    let text = DEPLOYMENT.replace("@NAME@", name);
    cluster.apply(&text.replace("@VERSION@", version));
}

fn talk(cluster: &Cluster, from: &str) -> String {
    let target = format!("deployment/{from}");
    let program = ["bookinfo", "talk", "http://web/path", "hello"];
    cluster.exec("issued", &target, &program).1
}

/// Waits for an answer: the sidecar must learn its endpoints first, and the application must listen.
fn is_answered(cluster: &Cluster, from: &str) {
    let mut last = String::new();
    eventually(&format!("{from} is answered"), || {
        let said = talk(cluster, from);
        if said != last {
            println!("{from}: {said}");
        }
        last = said;
        last.starts_with("200")
    });
}

/// Returns issuer and subject alternative names of the certificate that a workload presents.
fn shown(cluster: &Cluster, app: &str) -> String {
    let label = format!("app={app}");
    let pods = cluster.get_json(&["-n", "issued", "pods", "-l", &label]);
    let address = pods["items"][0]["status"]["podIP"].as_str().unwrap();
    let script = format!(
        "openssl s_client -connect {address}:8080 -alpn http/1.1 </dev/null 2>/dev/null | \
         openssl x509 -noout -issuer -ext subjectAltName"
    );
    let done = cluster.command(&["exec", "bash", "-c", &script]).output();
    String::from_utf8(done.unwrap().stdout).unwrap()
}

#[test]
fn cert_manager_signs_for_workloads() {
    let Some(cluster) = Cluster::get() else {
        return;
    };
    let built = built();
    install(&cluster);
    let crds = format!("{built}/crds.yaml");
    cluster.kubectl(&["apply", "--server-side", "-f", &crds]);
    let established = ["wait", "--for=condition=Established", "crd", "--all"];
    cluster.kubectl(&[&established[..], &["--timeout=300s"]].concat());
    eventually("its kinds are served", || {
        cluster.try_apply(LEFT).status.success()
    });
    let cert_manager = CertManager::start(&cluster, &built);
    cluster.apply(&issuer());
    install_with(&cluster, &["--cert-manager", "ClusterIssuer/mesh"]);

    cluster.apply(NAMESPACE);
    for name in ["web", "client"] {
        start(&cluster, name);
        cluster.await_deployment("issued", name);
    }
    is_answered(&cluster, "client");
    for (app, id) in [("web", "sa/web"), ("client", "sa/client")] {
        let shown = shown(&cluster, app);
        assert!(shown.contains(AUTHORITY), "{shown}");
        let id = format!("URI:spiffe://cluster.local/ns/issued/{id}");
        assert!(shown.lines().any(|line| line.trim() == id), "{shown}");
    }
    // Requests are removed when they are answered, and one that a killed controller left by the next.
    let requests = ["-n", "tulle-system", "certificaterequests.cert-manager.io"];
    eventually("no request is left", || {
        let left = cluster.get_json(&requests);
        let left = left["items"].as_array().unwrap();
        let now = left.iter().map(|r| r["metadata"]["name"].to_string());
        eprintln!("requests: {}", now.collect::<Vec<_>>().join(" "));
        left.is_empty()
    });

    for expected in [
        "√ TK042 issuer of certificates: ClusterIssuer mesh is ready",
        "√ TK043 the issuer signs: cert-manager, ClusterIssuer mesh",
        "√ TK044 roots of the issuer: sidecars are told 1",
        "√ TK070",
    ] {
        cluster.await_finding(expected);
    }

    // Without cert-manager, running workloads go on. New ones have no certificate, and the controller
    // reports why.
    drop(cert_manager);
    assert!(talk(&cluster, "client").starts_with("200"));
    start(&cluster, "late");
    eventually("the controller says why there is none", || {
        let logs = ["-n", "tulle-system", "logs", "deployment/tulle-controller"];
        // The one before may have been asked, which is gone then.
        let logs = cluster.try_kubectl(&logs).stdout;
        let logs = String::from_utf8_lossy(&logs);
        logs.contains("cert-manager, ClusterIssuer mesh") && logs.contains("no answer within")
    });
    cluster.await_finding("× TK043");
    let late = cluster.get_json(&["-n", "issued", "deployment", "late"]);
    assert_eq!(late["status"]["readyReplicas"], serde_json::Value::Null);
    assert!(talk(&cluster, "client").starts_with("200"));
    // A controller that starts meanwhile tells the sidecars that run what has changed.
    let controller = "deployment/tulle-controller";
    cluster.kubectl(&["-n", "tulle-system", "rollout", "restart", controller]);
    cluster.await_deployment("tulle-system", "tulle-controller");
    await_webhooks(&cluster);
    cluster.apply(POLICY);
    eventually("a policy is in force", || {
        talk(&cluster, "client").starts_with("403")
    });
    let policy = ["-n", "issued", "delete", "authorizationpolicy", "closed"];
    cluster.kubectl(&policy);
    is_answered(&cluster, "client");
    let cert_manager = CertManager::start(&cluster, &built);
    cluster.await_deployment("issued", "late");
    is_answered(&cluster, "late");

    drop(cert_manager);
    install_with(&cluster, &[]);
    cluster.kubectl(&[
        "delete",
        "namespace",
        "issued",
        "cert-manager",
        "--wait=false",
    ]);
    cluster.kubectl(&["delete", "-f", &crds]);
}

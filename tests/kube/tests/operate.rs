//! The commands with which a mesh in a cluster is looked at, changed and taken away, as an operator
//! types them.

#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use tests_kube::{Cluster, eventually, install, root};

const APPS: &str = r#"
apiVersion: v1
kind: Namespace
metadata: { name: operate }
---
apiVersion: v1
kind: ServiceAccount
metadata: { name: web, namespace: operate }
---
apiVersion: v1
kind: ServiceAccount
metadata: { name: client, namespace: operate }
---
apiVersion: apps/v1
kind: Deployment
metadata: { name: web, namespace: operate }
spec:
  selector: { matchLabels: { app: web } }
  template:
    metadata: { labels: { app: web } }
    spec:
      serviceAccountName: web
      terminationGracePeriodSeconds: 3
      containers:
      - name: web
        image: localhost/bookinfo:@VERSION@
        args: [echo, --bind, 0.0.0.0, --port, "8080", --name, web]
        env: [{ name: PASSWORD, value: xyzzy-of-the-app }]
        ports: [{ name: http, containerPort: 8080 }]
        readinessProbe: { httpGet: { path: /, port: http }, periodSeconds: 1, timeoutSeconds: 10 }
---
apiVersion: v1
kind: Service
metadata: { name: web, namespace: operate }
spec:
  selector: { app: web }
  ports: [{ name: http, port: 80, targetPort: http, appProtocol: http }]
---
apiVersion: apps/v1
kind: Deployment
metadata: { name: client, namespace: operate }
spec:
  selector: { matchLabels: { app: client } }
  template:
    metadata: { labels: { app: client } }
    spec:
      serviceAccountName: client
      terminationGracePeriodSeconds: 3
      containers:
      - name: client
        image: localhost/bookinfo:@VERSION@
        args: [load, --lanes, "1", --pause, "200", http://web/loaded]
---
apiVersion: v1
kind: Secret
metadata: { name: hidden, namespace: operate }
stringData: { password: xyzzy-of-the-secret }
"#;

/// How a command ended.
#[derive(Debug)]
struct Answer {
    code: i32,
    out: String,
    err: String,
}

/// The command, where the cluster's network is.
fn tulle(arguments: &[&str]) -> Answer {
    let done = Command::new(root().join("tests/kube/cluster/cluster.sh"))
        .arg("exec")
        .arg(root().join("target/debug/tulle"))
        .args(arguments)
        .output()
        .unwrap();
    Answer {
        code: done.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&done.stdout).into_owned(),
        err: String::from_utf8_lossy(&done.stderr).into_owned(),
    }
}

/// The same, which must succeed; its output.
fn done(arguments: &[&str]) -> String {
    let answer = tulle(arguments);
    assert_eq!(answer.code, 0, "tulle {arguments:?}: {answer:?}");
    answer.out
}

fn json(arguments: &[&str]) -> Value {
    let answer = tulle(&[arguments, &["-o", "json"]].concat());
    serde_json::from_str(&answer.out)
        .unwrap_or_else(|e| panic!("tulle {arguments:?}: {e}: {answer:?}"))
}

fn talk(cluster: &Cluster, path: &str) -> String {
    let url = format!("http://web{path}");
    let words = ["bookinfo", "talk", &url, "hello"];
    cluster.exec("operate", "deployment/client", &words).1
}

/// The findings of a check that are not as they should be.
fn wrong(found: &Value) -> Vec<String> {
    let all = found.as_array().unwrap().iter();
    all.filter(|f| f["outcome"] != "ok")
        .map(|f| format!("{} {} {}", f["id"], f["outcome"], f["finding"]))
        .collect()
}

#[test]
fn a_mesh_in_a_cluster_is_operated() {
    let Some(cluster) = Cluster::get() else {
        return;
    };
    let before = tulle(&["check", "--pre"]);
    assert_eq!(before.code, 0, "{before:?}");
    assert!(
        before.out.contains("√ TK001 API server: answers at"),
        "{before:?}"
    );

    install(&cluster);
    cluster.apply(&APPS.replace("@VERSION@", env!("CARGO_PKG_VERSION")));
    for name in ["web", "client"] {
        cluster.await_deployment("operate", name);
    }
    in_the_mesh(&cluster);
    what_proxies_say();
    why(&cluster);
    traffic();
    page();
    manifests(&cluster);
    scraped(&cluster);
    report();
    checks(&cluster);
    taken_away(&cluster);
}

fn in_the_mesh(cluster: &Cluster) {
    let refused = tulle(&["namespace", "add", "kube-system"]);
    assert_eq!(refused.code, 64, "{refused:?}");
    let unknown = tulle(&["namespace", "add", "operate", "nowhere"]);
    assert_eq!(unknown.code, 1, "{unknown:?}");
    let labels = cluster.get_json(&["namespace", "operate"]);
    assert_eq!(labels.pointer("/metadata/labels/tulle.dev~1inject"), None);

    done(&["namespace", "add", "operate", "--restart"]);
    eventually("both have sidecars", || {
        let listed = json(&["namespace", "list"]);
        let mut rows = listed.as_array().unwrap().iter();
        let row = rows.find(|r| r["namespace"] == "operate").unwrap();
        row["injection"] == "enabled"
            && row["pods"] == 2
            && row["with_sidecar"] == 2
            && row["not_ready"] == 0
    });
    for name in ["web", "client"] {
        cluster.await_deployment("operate", name);
    }
}

fn what_proxies_say() {
    let mut listed = Value::Null;
    eventually("both proxies tell of themselves", || {
        listed = json(&["proxy", "list", "-n", "operate"]);
        let rows = listed.as_array().unwrap();
        rows.len() == 2 && rows.iter().all(|r| r["certificate_not_after"].is_i64())
    });
    for row in listed.as_array().unwrap() {
        let identity = row["identity"].as_str().unwrap();
        assert!(
            identity.starts_with("spiffe://cluster.local/ns/operate/sa/"),
            "{row}"
        );
        assert_eq!(row["version"], env!("CARGO_PKG_VERSION"));
        assert!(row["certificate_not_after"].as_i64().is_some(), "{row}");
    }
    let shown = done(&[
        "proxy",
        "get",
        "certificates",
        "deploy/web",
        "-n",
        "operate",
    ]);
    assert!(
        shown.contains("sa/web") && !shown.contains("PRIVATE KEY"),
        "{shown}"
    );
    let ready = done(&["proxy", "get", "ready", "svc/web", "-n", "operate"]);
    assert_eq!(ready.trim(), "ready");
    let none = tulle(&["proxy", "get", "config", "deploy/none", "-n", "operate"]);
    assert_eq!(none.code, 1, "{none:?}");
}

fn why(cluster: &Cluster) {
    // The client's sidecar must learn its endpoints first.
    eventually("the client is answered", || {
        talk(cluster, "/path").starts_with("200")
    });
    let answer = tulle(&["why", "deploy/client", "web", "/path", "-n", "operate"]);
    assert_eq!(answer.code, 0, "{answer:?}");
    let context = json(&["version"])["context"].clone();
    assert!(context.as_str().is_some_and(|c| !c.is_empty()), "{context}");
    let told = json(&["why", "deploy/client", "web", "/path", "-n", "operate"]);
    assert_eq!(told["context"], context, "{told}");
    for part in ["√ allowed", "ns/operate/sa/client", "ns/operate/sa/web"] {
        assert!(answer.out.contains(part), "{part} in {answer:?}");
    }
    let unknown = tulle(&["why", "deploy/client", "nowhere", "-n", "operate"]);
    assert_eq!(unknown.code, 1, "{unknown:?}");
    let proofs = tulle(&[
        "prove",
        "client.operate reaches web.operate:80 with GET",
        "only client.operate reaches web.operate:80",
        "-o",
        "json",
    ]);
    assert_eq!(proofs.code, 79, "{proofs:?}");
    let told: Value = serde_json::from_str(&proofs.out).unwrap();
    assert_eq!(told[0]["verdict"], "holds", "{told}");
    assert_eq!(told[1]["verdict"], "fails", "{told}");
    // The port of the Service leads to another one of the pod.
    assert_eq!(told[1]["counterexample"]["port"], 8080, "{told}");
    let pod = told[1]["counterexample"]["to"].as_str().unwrap();
    assert!(
        pod.starts_with("web-") && pod.ends_with(".operate"),
        "{told}"
    );
    let stored = tulle(&["get"]);
    assert!(
        stored.code == 1 && stored.err.contains("kubectl get tulle"),
        "{stored:?}"
    );
}

/// The load of the client's pod is seen by whoever looks.
fn traffic() {
    let in_operate = ["-n", "operate"];
    let row = |rows: &Value, name: &str| {
        let mut all = rows.as_array().unwrap().iter();
        all.find(|r| r["name"] == name).cloned().unwrap_or_default()
    };
    // A busy machine may stand still for as long as a window.
    let (mut stat, mut web) = (Value::Null, Value::Null);
    eventually("there are requests", || {
        stat = json(&[&["stat", "--window", "4s"], &in_operate[..]].concat());
        web = row(&stat, "deployment/web");
        web["requests_per_second"].as_f64() > Some(0.0)
    });
    assert_eq!(web["success_rate"], 1.0, "{stat}");
    assert!(web["p50_ms"].as_f64().is_some(), "{stat}");
    let by = ["stat", "svc/web", "--by", "service", "--window", "2s"];
    eventually("the service has requests", || {
        let stat = json(&[&by, &in_operate[..]].concat());
        row(&stat, "web")["namespace"] == "operate"
    });

    eventually("the edge is there", || {
        let edges = json(&[&["edges"], &in_operate[..]].concat());
        edges.as_array().unwrap().iter().any(|e| {
            e["source"] == "spiffe://cluster.local/ns/operate/sa/client"
                && e["destination"] == "spiffe://cluster.local/ns/operate/sa/web"
                && e["security"] == "mutual_tls"
        })
    });

    let tap = [
        "tap",
        "deploy/web",
        "--path",
        "/loaded",
        "--count",
        "3",
        "--for",
        "60s",
        "-o",
        "json",
    ];
    let told = done(&[&tap, &in_operate[..]].concat());
    let lines: Vec<Value> = told
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    assert_eq!(lines.len(), 3, "{told}");
    for line in &lines {
        assert_eq!(line["path"], "/loaded", "{told}");
        assert_eq!(line["response_code"], 200, "{told}");
        assert_eq!(line["connection_security_policy"], "mutual_tls", "{told}");
    }
    let none = [
        &["tap", "deploy/web", "--path", "/no", "--for", "2s"],
        &in_operate[..],
    ]
    .concat();
    assert_eq!(done(&none), "");
    let top = ["top", "svc/web", "--count", "5", "--for", "60s"];
    let rows = json(&[&top, &in_operate[..]].concat());
    let loaded = rows
        .as_array()
        .unwrap()
        .iter()
        .find(|r| r["path"] == "/loaded");
    assert_eq!(loaded.unwrap()["source"], "ns/operate/sa/client", "{rows}");
}

/// A port of this host leads to a page of the cluster.
fn page() {
    let mut command = Command::new(root().join("tests/kube/cluster/cluster.sh"));
    let child = command
        .arg("exec")
        .arg(root().join("target/debug/tulle"))
        .args(["dashboard", "operate/web:http"])
        .process_group(0)
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .spawn();
    let mut page = Page(child.unwrap());
    let mut line = String::new();
    let stdout = page.0.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
    let url = line.split_whitespace().next().unwrap();
    let asked = Command::new(root().join("tests/kube/cluster/cluster.sh"))
        .args([
            "exec",
            "curl",
            "--silent",
            "--show-error",
            "--output",
            "/dev/null",
        ])
        .args(["--write-out", "%{http_code}", url])
        .output()
        .unwrap();
    // The page is the application's, behind its sidecar or without: any answer is one.
    let code = String::from_utf8_lossy(&asked.stdout).into_owned();
    assert!(code.len() == 3 && code != "000", "{line} {asked:?}");
}

/// The command that leads there, and what it started; ended with the value.
struct Page(Child);

impl Drop for Page {
    fn drop(&mut self) {
        // Not by SIGINT, which may be ignored.
        let group = format!("-{}", self.0.id());
        let _ = Command::new("kill").args(["-TERM", "--", &group]).status();
        let _ = self.0.wait();
    }
}

fn manifests(cluster: &Cluster) {
    let text = APPS.replace("@VERSION@", env!("CARGO_PKG_VERSION"));
    let file = std::env::temp_dir().join(format!("tulle-operate-{}.yaml", std::process::id()));
    std::fs::write(&file, text).unwrap();
    let name = file.to_str().unwrap();
    let asked = done(&["inject", name]);
    assert_eq!(
        asked.matches("tulle.dev/inject: enabled").count(),
        2,
        "{asked}"
    );
    let whole = done(&["inject", "--manual", name]);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(whole.matches("name: tulle-proxy").count(), 2, "{whole}");
    // The API server takes both.
    for manifests in [asked, whole] {
        let mut kubectl = cluster.command(&["kubectl", "apply", "--dry-run=server", "-f", "-"]);
        let mut child = kubectl.stdin(std::process::Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        std::io::Write::write_all(&mut stdin, manifests.as_bytes()).unwrap();
        drop(stdin);
        assert!(child.wait().unwrap().success());
    }

    assert_eq!(
        done(&["upgrade", "--dry-run"]).trim(),
        "nothing would change"
    );
    let changes = json(&["upgrade", "--dry-run", "--tag", "9.9.9"]);
    let image = changes.as_array().unwrap().iter().any(|c| {
        c["object"] == "Deployment/tulle-controller" && c["to"] == "localhost/tulle:9.9.9"
    });
    assert!(image, "{changes}");
    let objects = json(&["upgrade"]);
    assert!(
        objects["items"].as_array().is_some_and(|i| i.len() > 5),
        "{objects}"
    );
}

fn scraped(cluster: &Cluster) {
    let page = done(&["metrics", "-n", "operate"]);
    for part in [
        "# TYPE istio_requests_total counter\n",
        "workload=\"deployment/web\"",
        "workload=\"deployment/client\"",
    ] {
        assert!(page.contains(part), "{part} in {page}");
    }
    let annotation = || {
        let pods = cluster.get_json(&["-n", "operate", "pods", "-l", "app=web"]);
        let pods = pods["items"].as_array().unwrap().clone();
        let new = pods
            .iter()
            .filter(|p| p["metadata"].get("deletionTimestamp").is_none());
        let all: Vec<bool> = new
            .map(|p| {
                p["metadata"]["annotations"]
                    .get("prometheus.io/scrape")
                    .is_some()
            })
            .collect();
        all
    };
    assert_eq!(annotation(), [true]);
    done(&["metrics", "disable", "operate", "--restart"]);
    eventually("the new pod is not annotated", || annotation() == [false]);
    done(&["metrics", "enable", "operate", "--restart"]);
    eventually("the newest pod is annotated", || annotation() == [true]);
    for name in ["web", "client"] {
        cluster.await_deployment("operate", name);
    }
}

fn report() {
    let file = std::env::temp_dir().join(format!("tulle-operate-{}.tar.gz", std::process::id()));
    let name = file.to_str().unwrap();
    done(&["support", "bug-report", "--file", name]);
    let listed = Command::new("tar").args(["-tzf", name]).output().unwrap();
    let all = Command::new("tar").args(["-xzOf", name]).output().unwrap();
    std::fs::remove_file(&file).unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    for part in [
        "version.txt",
        "check.json",
        "objects/pods.json",
        "/controller.log",
        "/config.json",
        "/tulle-proxy.log",
    ] {
        assert!(listed.contains(part), "{part} in {listed}");
    }
    let all = String::from_utf8_lossy(&all.stdout).into_owned();
    assert!(all.contains("ns/operate/sa/web"), "nothing of the proxies");
    for secret in ["xyzzy", "PRIVATE KEY", "eyJhbGciOi"] {
        assert!(!all.contains(secret), "{secret} is in the report");
    }
}

fn checks(cluster: &Cluster) {
    let mut found = Value::Null;
    eventually("all is well", || {
        found = json(&["check"]);
        let errors = wrong(&found);
        let errors: Vec<_> = errors.iter().filter(|f| f.contains("\"error\"")).collect();
        if !errors.is_empty() {
            println!("{errors:?}");
        }
        errors.is_empty()
    });
    let ids = |found: &Value| {
        let all = found.as_array().unwrap().iter();
        let mut ids: Vec<_> = all.map(|f| f["id"].as_str().unwrap().to_owned()).collect();
        ids.dedup();
        ids
    };
    assert!(ids(&found).len() >= 40, "{found}");
    let proxies = ids(&json(&["check", "--proxy"]));
    assert!(proxies.contains(&"TK068".into()) && !proxies.contains(&"TK020".into()));
    fixed(cluster);

    // A service that leads nowhere, and whose only caller is misspelt.
    let broken = r#"{ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "broken", "namespace": "operate" },
        "spec": { "selector": { "app": "web" }, "ports": [{ "port": 80, "targetPort": "nothing" }] } }"#;
    cluster.apply(broken);
    let slip = r#"{ "apiVersion": "tulle.dev/v1alpha1", "kind": "AuthorizationPolicy",
        "metadata": { "name": "slip", "namespace": "operate" },
        "spec": { "targetRefs": [{ "kind": "Service", "name": "broken" }],
            "rules": [{ "from": { "serviceAccounts": ["wbe"] } }] } }"#;
    cluster.apply(slip);
    let answer = tulle(&["check"]);
    assert_eq!(answer.code, 79, "{answer:?}");
    for found in [
        "× TK082 names of target ports: service operate/broken",
        "TK088 callers that policies name: AuthorizationPolicy operate/slip: there is no service account operate/wbe",
    ] {
        assert!(answer.out.contains(found), "{found}: {answer:?}");
    }
    let broken = ["service/broken", "authorizationpolicy/slip"];
    cluster.kubectl(&[&["-n", "operate", "delete"][..], &broken].concat());

    let webhook = ["mutatingwebhookconfiguration", "tulle-injector"];
    let none = r#"[{"op": "replace", "path": "/webhooks/0/clientConfig/service/path", "value": "/none"},
        {"op": "replace", "path": "/webhooks/1/clientConfig/service/path", "value": "/none"}]"#;
    cluster.kubectl(&["patch", webhook[0], webhook[1], "--type=json", "-p", none]);
    let found = wrong(&json(&["check"]));
    assert!(found.iter().any(|f| f.contains("TK033")), "{found:?}");
    let right = none.replace("/none", "/inject");
    cluster.kubectl(&["patch", webhook[0], webhook[1], "--type=json", "-p", &right]);
}

/// Missing objects of the installation are made again, but none that can refuse traffic.
fn fixed(cluster: &Cluster) {
    let whole = json(&["check", "--fix"]);
    assert_eq!(whole["fixes"], serde_json::json!([]), "{whole}");
    let service = ["-n", "tulle-system", "service", "tulle-controller"];
    let policy = ["-n", "tulle-system", "networkpolicy", "tulle-controller"];
    for object in [service, policy] {
        cluster.kubectl(&[&["delete"][..], &object].concat());
    }
    let dry = tulle(&["check", "--fix", "--dry-run"]);
    assert_eq!(dry.code, 79, "{dry:?}");
    for part in [
        "would fix: make Service/tulle-controller again",
        "left as it is: NetworkPolicy/tulle-controller is missing; `tulle upgrade --apply`",
    ] {
        assert!(dry.out.contains(part), "{part}: {dry:?}");
    }
    let mut listed = cluster.command(&[&["kubectl", "get"][..], &service].concat());
    assert!(
        !listed.status().unwrap().success(),
        "a dry run makes nothing"
    );
    let made = tulle(&["check", "--fix"]);
    assert_eq!(made.code, 79, "the policy is left: {made:?}");
    assert!(
        made.out
            .contains("fixed: made Service/tulle-controller again"),
        "{made:?}"
    );
    cluster.apply(&done(&["upgrade"]));
    eventually("all is well again", || tulle(&["check", "--fix"]).code == 0);
}

fn taken_away(cluster: &Cluster) {
    let refused = tulle(&["uninstall", "--yes"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.err.contains("have sidecars"), "{refused:?}");
    done(&["namespace", "remove", "operate", "--restart"]);
    eventually("no pod has a sidecar", || {
        let listed = json(&["proxy", "list", "-n", "operate"]);
        listed.as_array().unwrap().is_empty()
    });
    cluster.kubectl(&["delete", "namespace", "operate", "--wait=false"]);
    let unasked = tulle(&["uninstall", "--force"]);
    assert_eq!(unasked.code, 64, "{unasked:?}");
    // Other tests of this run may have left pods in the mesh.
    let listed = done(&["uninstall", "--force", "--dry-run"]);
    assert!(
        listed.contains("deployments tulle-system/tulle-controller"),
        "{listed}"
    );
    done(&["uninstall", "--force", "--yes", "--crds"]);
    let left = cluster.kubectl(&["get", "--all-namespaces", "-o", "name",
        "configmaps,secrets,serviceaccounts,services,deployments,roles,rolebindings,clusterroles,clusterrolebindings,\
         mutatingwebhookconfigurations,validatingwebhookconfigurations,customresourcedefinitions,namespaces,leases,networkpolicies"]);
    let left: Vec<&str> = left.lines().filter(|l| l.contains("tulle")).collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(
        done(&["uninstall", "--force", "--yes"]).trim(),
        "nothing of a mesh is installed"
    );
}

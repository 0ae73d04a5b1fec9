//! The console of a cluster: `tulle dashboard` shows who a user is, and whoever may not read Meshes is refused.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use tests_kube::{Cluster, MESH, install, pki, root};

/// Users that may reach the controller's pod. `looker` may also read Meshes.
const USERS: &str = r#"
apiVersion: v1
kind: Namespace
metadata: { name: console }
---
apiVersion: v1
kind: ServiceAccount
metadata: { name: stranger, namespace: console }
---
apiVersion: v1
kind: ServiceAccount
metadata: { name: looker, namespace: console }
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: { name: console-test-reach }
rules:
- { apiGroups: [admissionregistration.k8s.io], resources: [mutatingwebhookconfigurations], verbs: [get] }
- { apiGroups: [""], resources: [pods], verbs: [get, list] }
- { apiGroups: [""], resources: [pods/portforward], verbs: [get, create] }
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: { name: console-test-look }
rules:
- { apiGroups: [tulle.dev], resources: [meshes], verbs: [get, list] }
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: { name: console-test-reach }
roleRef: { apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: console-test-reach }
subjects:
- { kind: ServiceAccount, name: stranger, namespace: console }
- { kind: ServiceAccount, name: looker, namespace: console }
- { apiGroup: rbac.authorization.k8s.io, kind: User, name: holder }
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: { name: console-test-look }
roleRef: { apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: console-test-look }
subjects: [{ kind: ServiceAccount, name: looker, namespace: console }]
"#;

/// A user who has a certificate and no token may ask for one of the console's own account.
const HOLDER: &str = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: { name: console-test-token, namespace: tulle-system }
rules:
- { apiGroups: [""], resources: [serviceaccounts/token], resourceNames: [tulle-console], verbs: [create] }
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: { name: console-test-token, namespace: tulle-system }
roleRef: { apiGroup: rbac.authorization.k8s.io, kind: Role, name: console-test-token }
subjects: [{ apiGroup: rbac.authorization.k8s.io, kind: User, name: holder }]
"#;

#[test]
fn the_console_opens_for_whoever_may_read_meshes() {
    let Some(cluster) = Cluster::get() else {
        return;
    };
    install(&cluster);
    cluster.apply(USERS);
    // The administrator of the test cluster has a bearer token, too.
    shows(&cluster, None, "admin");
    let looker = kubeconfig(&cluster, "looker");
    shows(
        &cluster,
        Some(&looker),
        "system:serviceaccount:console:looker",
    );

    let stranger = kubeconfig(&cluster, "stranger");
    let said = refused(&cluster, &stranger);
    assert!(
        said.contains("console:stranger may not get meshes.tulle.dev"),
        "{said}"
    );

    let holder = certificate_kubeconfig(&cluster, "holder");
    let said = refused(&cluster, &holder);
    assert!(
        said.contains("serviceaccounts/token of tulle-system/tulle-console"),
        "{said}"
    );
    cluster.apply(HOLDER);
    shows(
        &cluster,
        Some(&holder),
        "system:serviceaccount:tulle-system:tulle-console",
    );
    for kind in ["rolebinding", "role"] {
        let own = ["delete", kind, "console-test-token", "-n", MESH];
        cluster.kubectl(&own);
    }
    for role in ["console-test-reach", "console-test-look"] {
        for kind in ["clusterrolebinding", "clusterrole"] {
            cluster.kubectl(&["delete", kind, role]);
        }
    }
    cluster.kubectl(&["delete", "namespace", "console", "--wait=false"]);
}

/// Words of the dashboard to a user to whom it does not open.
fn refused(cluster: &Cluster, kubeconfig: &str) -> String {
    let refused = dashboard(cluster, Some(kubeconfig)).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    said
}

/// A file by which `kubectl` and `tulle` are this service account.
fn kubeconfig(cluster: &Cluster, account: &str) -> String {
    let token = cluster.kubectl(&["create", "token", account, "-n", "console"]);
    kubeconfig_of(cluster, account, &json!({ "token": token.trim() }))
}

/// A file by which they are a user of this name with a certificate of the cluster's own authority.
fn certificate_kubeconfig(cluster: &Cluster, name: &str) -> String {
    let own = own_file(name, "pem")
        .into_os_string()
        .into_string()
        .unwrap();
    let made = "openssl ecparam -name prime256v1 -genkey -noout -out \"$2.key\" &&
        openssl req -new -key \"$2.key\" -subj \"/CN=$1\" |
        openssl x509 -req -CA \"$0/ca.crt\" -CAkey \"$0/ca.key\" -set_serial 7 -days 1 -out \"$2\" \
            -extfile <(echo extendedKeyUsage = clientAuth)";
    let made = Command::new("bash")
        .args(["-o", "pipefail", "-c", made])
        .args([pki().to_str().unwrap(), name, &own])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let user = json!({ "client-certificate": own, "client-key": format!("{own}.key") });
    kubeconfig_of(cluster, name, &user)
}

fn kubeconfig_of(cluster: &Cluster, name: &str, user: &Value) -> String {
    let own = cluster.kubectl(&["config", "view", "--raw", "--minify", "-o", "json"]);
    let mut own: Value = serde_json::from_str(&own).unwrap();
    own["users"][0]["user"] = user.clone();
    let file = own_file(name, "json");
    std::fs::write(&file, own.to_string()).unwrap();
    file.to_str().unwrap().to_owned()
}

fn own_file(name: &str, extension: &str) -> PathBuf {
    let process = std::process::id();
    std::env::temp_dir().join(format!("console-{name}-{process}.{extension}"))
}

fn dashboard(cluster: &Cluster, kubeconfig: Option<&str>) -> Command {
    let mut command = cluster.command(&["exec"]);
    command
        .arg(root().join("target/debug/tulle"))
        .args(["dashboard", "--print-url"])
        .process_group(0)
        .stdin(Stdio::null());
    if let Some(file) = kubeconfig {
        command.args(["--kubeconfig", file]);
    }
    command
}

/// Opens the console and reads from it.
fn shows(cluster: &Cluster, kubeconfig: Option<&str>, user: &str) {
    let child = dashboard(cluster, kubeconfig)
        .stdout(Stdio::piped())
        .spawn();
    let mut open = Open(child.unwrap());
    let mut line = String::new();
    let stdout = open.0.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    let (page, code) = line.trim().split_once("/#code=").unwrap();

    let origin = format!("origin: {page}");
    let body = json!({ "code": code }).to_string();
    let opened = curl(
        cluster,
        &[
            "--include",
            "--header",
            &origin,
            "--header",
            "content-type: application/json",
            "--data",
            &body,
            &format!("{page}/api/v1/session"),
        ],
    );
    let cookie = opened.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("set-cookie")
            .then(|| value.split(';').next().unwrap().to_owned())
    });
    let cookie = cookie.unwrap_or_else(|| panic!("{opened}"));
    let get = |path: &str| -> Value {
        let url = format!("{page}/api/v1/{path}");
        let text = curl(cluster, &["--cookie", &cookie, &url]);
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
    };
    let session = get("session");
    assert_eq!(session["user"], user, "{session}");
    assert_eq!(session["actions"], false, "{session}");
    assert_eq!(session["mesh"]["platform"], "cluster", "{session}");
    let graph = get("graph");
    assert!(graph["coverage"]["proxies"].is_u64(), "{graph}");
}

fn curl(cluster: &Cluster, arguments: &[&str]) -> String {
    let mut command = cluster.command(&["exec", "curl", "--silent", "--show-error"]);
    let done = command.args(arguments).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    String::from_utf8(done.stdout).unwrap()
}

/// The command that leads there, and what it started; ended with the value.
struct Open(Child);

impl Drop for Open {
    fn drop(&mut self) {
        let group = format!("-{}", self.0.id());
        let _ = Command::new("kill").args(["-TERM", "--", &group]).status();
        let _ = self.0.wait();
    }
}

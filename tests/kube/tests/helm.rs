//! The Helm charts with the real helm: what they render is what `tulle install` prints, and a mesh is
//! installed, used and taken away with them.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Output};
use tests_kube::{Cluster, Node, await_webhooks, eventually, root};

const HOME: &str = "tulle-system";

/// The program, if it can be had: without Go it cannot.
fn helm() -> Option<PathBuf> {
    let built = Command::new(root().join("tests/kube/helm/build.sh"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&built.stderr);
    if built.status.code() == Some(69) {
        println!("skipped: {}", said.trim());
        return None;
    }
    assert!(built.status.success(), "{said}");
    Some(String::from_utf8_lossy(&built.stdout).trim().into())
}

fn chart(name: &str) -> PathBuf {
    root().join("deploy/charts").join(name)
}

/// Sets of values: each of what is chosen differently appears in one.
fn choices() -> Vec<(&'static str, Value)> {
    let digest = |n: u8| format!("sha256:{}", n.to_string().repeat(64));
    vec![
        ("defaults", json!({})),
        (
            "a CNI plugin",
            json!({ "cni": { "enabled": true, "configurations": "/a/net.d", "programs": "/a/bin" } }),
        ),
        (
            "several controllers",
            json!({ "controller": {
            "replicas": 3,
            "disruptionBudget": { "maxUnavailable": 2 },
            "resources": { "requests": { "cpu": "100m" }, "limits": { "cpu": 1 } },
            "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
                { "matchExpressions": [{ "key": "a", "operator": "Exists" }] },
            ] } } },
            "topologySpreadConstraints": [{ "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": { "matchLabels": { "app.kubernetes.io/name": "tulle-controller" } } }],
            "nodeSelector": { "kubernetes.io/os": "linux", "on": "yes" },
            "tolerations": [{ "operator": "Exists", "effect": "NoSchedule" }],
            "priorityClassName": "system-cluster-critical",
            "podAnnotations": { "example.com/number": "1", "checksum/settings": "is ours" },
            "podLabels": { "example.com/true": "true", "app.kubernetes.io/name": "is ours" },
        } }),
        ),
        (
            "no budget",
            json!({ "controller": { "replicas": 2, "disruptionBudget": { "enabled": false } } }),
        ),
        (
            "autoscaling",
            json!({ "controller": { "autoscaling": {
            "enabled": true, "minReplicas": 3, "maxReplicas": 9, "targetCpuUtilization": 50,
        } } }),
        ),
        (
            "cert-manager",
            json!({ "issuer": {
            "certManager": { "name": "mesh", "kind": "AWSPCAIssuer", "group": "awspca.cert-manager.io" }, "ca": "roots",
        } }),
        ),
        (
            "cert-manager that says its roots",
            json!({ "issuer": { "certManager": { "name": "mesh" } } }),
        ),
        (
            "Vault",
            json!({ "issuer": {
            "vault": {
                "address": "https://vault.vault.svc:8200?a=1&b=<2>",
                "sign": { "mount": "pki_int", "role": "mesh" }, "auth": { "mount": "k8s/a" },
            },
            "ca": "vault-authority",
        } }),
        ),
        (
            "namespaces of Gateways",
            json!({ "gateways": { "namespaces": ["infra", "home", "edge", "infra"] } }),
        ),
        (
            "Gateways everywhere",
            json!({ "gateways": { "allNamespaces": true } }),
        ),
        (
            "a NetworkPolicy",
            json!({
                "monitoring": { "smiMetrics": true },
                "networkPolicy": {
                    "proxies": [],
                    "apiServer": [{ "ipBlock": { "cidr": "192.0.2.1/32" } }],
                    "metrics": [{ "namespaceSelector": { "matchLabels": { "a/b": "c" } } }],
                },
            }),
        ),
        (
            "clients of the webhook",
            json!({ "webhook": {
                "clientCA": "-----BEGIN CERTIFICATE-----\na+b/cw==\n-----END CERTIFICATE-----\n",
            } }),
        ),
        (
            "no NetworkPolicy",
            json!({ "networkPolicy": { "enabled": false } }),
        ),
        (
            "digests",
            json!({ "images": {
            "controller": { "digest": digest(1) },
            "proxy": { "repository": "registry.example:5000/mesh/proxy", "digest": digest(2) },
            "init": { "tag": "other" },
        } }),
        ),
        (
            "a registry",
            json!({ "images": {
            "registry": "registry.example:5000/mesh", "tag": "1.2.3-a", "pullPolicy": "Always",
            "pullSecrets": [{ "name": "one" }, { "name": "two" }],
        } }),
        ),
        (
            "sidecars",
            json!({
                "trustDomain": "prod.example",
                "sidecar": {
                    "nativeSidecar": false, "holdApplication": false, "logLevel": "debug", "workers": 3, "metrics": false,
                    "resources": { "requests": { "cpu": "", "memory": "20Mi" }, "limits": { "cpu": "1.5", "memory": "1G" } },
                    "redirection": {
                        "excludeInboundPorts": [22, 65535], "excludeOutboundPorts": [3306],
                        "excludeOutboundRanges": ["10.0.0.0/8", "fd00::/8"], "includeOutboundRanges": ["0.0.0.0/0"],
                    },
                },
                "mesh": {
                    "permissiveMode": false, "allowEgress": true, "accessLog": true, "logLevel": "warn",
                    "certificates": { "lifetime": "2h" }, "timeouts": { "idle": "90s" }, "limits": { "headerBytes": 65536 },
                },
            }),
        ),
    ]
}

/// Values that mean nothing. Neither may take them.
fn mistakes() -> Vec<Value> {
    vec![
        json!({ "replicas": 2 }),
        json!({ "controller": { "replica": 2 } }),
        json!({ "controller": { "replicas": "2" } }),
        json!({ "controller": { "replicas": -1 } }),
        json!({ "controller": { "replicas": null } }),
        json!({ "images": { "pullPolicy": "Sometimes" } }),
        json!({ "images": { "tag": "a b" } }),
        json!({ "images": { "registry": "a\"b" } }),
        json!({ "images": { "proxy": { "digest": "sha256:12" } } }),
        json!({ "sidecar": { "logLevel": "loud" } }),
        json!({ "sidecar": { "workers": 100_000 } }),
        json!({ "sidecar": { "resources": { "limits": { "cpu": "much" } } } }),
        json!({ "sidecar": { "redirection": { "excludeInboundPorts": [70_000] } } }),
        json!({ "trustDomain": "Not One" }),
        json!({ "gateways": { "namespaces": ["Not One"] } }),
        json!({ "gateways": { "namespaces": "infra" } }),
        json!({ "networkPolicy": { "metrics": ["monitoring"] } }),
        json!({ "webhook": { "clientCA": "/etc/kubernetes/pki/ca.crt" } }),
        json!({ "mesh": { "permissive": true } }),
        json!({ "mesh": { "trustDomain": "a" } }),
        json!({ "issuer": { "vault": { "address": "http://vault" }, "ca": "a" } }),
        json!({ "issuer": { "vault": { "address": "https://vault" } } }),
        json!({ "issuer": { "certManager": { "name": "a" }, "vault": { "address": "https://vault" }, "ca": "a" } }),
    ]
}

/// Objects by kind, name and namespace.
type Objects = BTreeMap<(String, String, String), Value>;

fn by_name(objects: impl IntoIterator<Item = Value>) -> Objects {
    let mut all = Objects::new();
    for object in objects {
        let text = |pointer| object.pointer(pointer).and_then(Value::as_str).unwrap();
        let namespace = object.pointer("/metadata/namespace");
        let namespace = namespace.and_then(Value::as_str).unwrap_or_default();
        let key = (
            text("/kind").to_owned(),
            text("/metadata/name").to_owned(),
            namespace.to_owned(),
        );
        assert_eq!(all.insert(key, object), None, "twice");
    }
    all
}

/// `helm template`, without what is for `helm` itself.
fn rendered(helm: &PathBuf, name: &str, values: &str) -> Result<Objects, String> {
    let done = Command::new(helm)
        .args(["template", "mesh"])
        .arg(chart(name))
        .args([
            "--namespace",
            "home",
            "--kube-version",
            "1.34.0",
            "--values",
            values,
        ])
        .output()
        .unwrap();
    if !done.status.success() {
        return Err(String::from_utf8_lossy(&done.stderr).into_owned());
    }
    let text = String::from_utf8(done.stdout).unwrap();
    let objects: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    let hook = |object: &Value| {
        object
            .pointer("/metadata/annotations/helm.sh~1hook")
            .is_some()
    };
    Ok(by_name(objects.into_iter().filter(|object| !hook(object))))
}

fn tulle(arguments: &[&str]) -> Output {
    let program = root().join("target/debug/tulle");
    // No cluster is asked what it has.
    let mut command = Command::new(program);
    let command = command.env_remove("KUBECONFIG").args(arguments);
    command.output().unwrap()
}

/// `tulle install`, without what Helm makes and keeps itself.
fn printed(values: &str, kinds: &str) -> Objects {
    let done = tulle(&[
        "install",
        "--namespace",
        "home",
        "--output",
        "json",
        kinds,
        "--values",
        values,
    ]);
    assert!(done.status.success(), "{done:?}");
    let list: Value = serde_json::from_slice(&done.stdout).unwrap();
    let mut objects = by_name(list["items"].as_array().unwrap().iter().cloned());
    objects.remove(&("Namespace".into(), "home".into(), "".into()));
    objects.remove(&("ConfigMap".into(), "tulle-values".into(), "home".into()));
    objects
}

fn same(what: &str, rendered: &Objects, printed: &Objects) {
    let names = |objects: &Objects| objects.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(rendered), names(printed), "{what}");
    for (object, printed) in printed {
        assert_eq!(&rendered[object], printed, "{what}: {object:?}");
    }
}

#[test]
fn charts_render_what_tulle_install_prints() {
    if Cluster::get().is_none() {
        return;
    }
    let Some(helm) = helm() else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("values.yaml");
    let name = file.to_str().unwrap();
    std::fs::write(&file, "{}").unwrap();
    let kinds = rendered(&helm, "tulle-crds", name).unwrap();
    assert!(kinds.len() > 10, "{:?}", kinds.keys());
    same("kinds", &kinds, &printed(name, "--crds-only"));

    for (what, values) in choices() {
        std::fs::write(&file, values.to_string()).unwrap();
        let rendered = rendered(&helm, "tulle", name).unwrap_or_else(|e| panic!("{what}: {e}"));
        same(what, &rendered, &printed(name, "--skip-crds"));
    }

    for values in mistakes() {
        std::fs::write(&file, values.to_string()).unwrap();
        let why = rendered(&helm, "tulle", name).expect_err(&values.to_string());
        assert!(
            why.contains("values don't meet the specifications of the schema"),
            "{values}: {why}"
        );
        let done = tulle(&["install", "--values", name]);
        assert_eq!(done.status.code(), Some(65), "{values}: {done:?}");
    }
}

/// helm where the cluster's network is.
fn in_cluster(cluster: &Cluster, helm: &PathBuf, arguments: &[&str]) -> String {
    let mut command = cluster.command(&["exec"]);
    let done = command.arg(helm).args(arguments).output().unwrap();
    let jobs = || cluster.said(HOME);
    assert!(
        done.status.success(),
        "helm {arguments:?}: {done:?}\n{}",
        jobs()
    );
    String::from_utf8_lossy(&done.stdout).into_owned()
}

fn command(cluster: &Cluster, arguments: &[&str]) -> Output {
    let mut command = cluster.command(&["exec"]);
    let command = command
        .arg(root().join("target/debug/tulle"))
        .args(arguments);
    command.output().unwrap()
}

#[test]
fn a_mesh_is_installed_and_taken_away_with_helm() {
    let Some(cluster) = Cluster::get() else {
        return;
    };
    let Some(helm) = helm() else {
        return;
    };
    // Helm does not own what other tests have installed.
    let gone = command(&cluster, &["uninstall", "--force", "--yes", "--crds"]);
    assert!(gone.status.success(), "{gone:?}");
    // Nor are definitions that `uninstall` leaves, because others may use them, too.
    let smi = "app.kubernetes.io/part-of=tulle";
    cluster.kubectl(&["delete", "customresourcedefinitions", "-l", smi]);

    let run = |arguments: &[&str]| {
        in_cluster(
            &cluster,
            &helm,
            &[arguments, &["--namespace", HOME]].concat(),
        )
    };
    let (kinds, mesh) = (chart("tulle-crds"), chart("tulle"));
    let (kinds, mesh) = (kinds.to_str().unwrap(), mesh.to_str().unwrap());
    run(&[
        "install",
        "tulle-crds",
        kinds,
        "--create-namespace",
        "--wait",
    ]);
    // `tulle install` sets this label, so the charts' pods must be of that level, too.
    let restricted = "pod-security.kubernetes.io/enforce=restricted";
    cluster.kubectl(&["label", "namespace", HOME, restricted]);
    let node = Node::new(&cluster);
    let before = node.configuration();
    let values = format!(
        "controller.replicas=2,cni.enabled=true,cni.configurations={},cni.programs={}",
        node.configurations.display(),
        node.programs.display()
    );
    let notes = run(&[
        "install",
        "tulle",
        mesh,
        "--set",
        &values,
        "--wait",
        "--timeout",
        "600s",
    ]);
    assert!(notes.contains("tulle.dev/inject=enabled"), "{notes}");
    assert!(node.is_chained() && node.has_plugin());
    await_webhooks(&cluster);
    cluster.await_deployment(HOME, "tulle-controller");
    let controller = cluster.get_json(&["-n", HOME, "deployment", "tulle-controller"]);
    assert_eq!(controller.pointer("/status/readyReplicas"), Some(&2.into()));
    let budget = cluster.get_json(&["-n", HOME, "poddisruptionbudget", "tulle-controller"]);
    eventually("one of the two may be away", || {
        let now = cluster.get_json(&["-n", HOME, "poddisruptionbudget", "tulle-controller"]);
        now.pointer("/status/disruptionsAllowed") == Some(&1.into())
    });
    assert_eq!(budget.pointer("/spec/maxUnavailable"), Some(&1.into()));

    cluster.apply_file("helm.yaml", &[]);
    for name in ["web", "client"] {
        cluster.await_deployment("helm", name);
    }
    let talk = ["bookinfo", "talk", "http://web/path", "hello"];
    // The client's sidecar must learn its endpoints first, and the application must listen.
    eventually("the client is answered", || {
        let (_, said) = cluster.exec("helm", "deployment/client", &talk);
        println!("{said}");
        said.starts_with("200")
    });
    let web = cluster.get_json(&["-n", "helm", "pods", "-l", "app=web"]);
    let address = web.pointer("/items/0/status/podIP").and_then(Value::as_str);
    let address = address.unwrap();
    eventually("the request is counted, after its last byte", || {
        let client = "source_principal=\"spiffe://cluster.local/ns/helm/sa/client\"";
        cluster.has_counted(address, &[client, tests_kube::MUTUAL_TLS])
    });

    // Other settings: the controllers start again with them.
    let loud = [
        "upgrade",
        "tulle",
        mesh,
        "--set",
        &values,
        "--set",
        "sidecar.logLevel=debug",
        "--wait",
        "--timeout",
        "600s",
    ];
    run(&loud);
    let settings = cluster.get_json(&["-n", HOME, "configmap", "tulle-settings"]);
    let text = settings
        .pointer("/data/settings.json")
        .and_then(Value::as_str);
    assert!(
        text.unwrap().contains(r#""logLevel":"debug""#),
        "{settings}"
    );
    let then = cluster.get_json(&["-n", HOME, "deployment", "tulle-controller"]);
    let sum = |of: &Value| {
        of.pointer("/spec/template/metadata/annotations/checksum~1settings")
            .cloned()
    };
    assert!(
        sum(&then).is_some() && sum(&then) != sum(&controller),
        "{then}"
    );
    // Without the plugin, and with it again.
    let upgrade = |values: &str| {
        let arguments = ["upgrade", "tulle", mesh, "--set", values];
        run(&[&arguments[..], &["--wait", "--timeout", "600s"]].concat())
    };
    upgrade("controller.replicas=2");
    assert_eq!(node.configuration(), before);
    assert!(!node.has_plugin());
    eventually("its DaemonSet and namespace are gone", || {
        let namespaces = cluster.kubectl(&["get", "namespaces", "-o", "name"]);
        !namespaces.contains("tulle-cni")
    });
    for name in ["web", "client"] {
        let deployment = format!("deployment/{name}");
        cluster.kubectl(&["-n", "helm", "rollout", "restart", &deployment]);
        cluster.await_deployment("helm", name);
    }
    eventually("pods with init containers answer each other", || {
        let (_, said) = cluster.exec("helm", "deployment/client", &talk);
        println!("{said}");
        said.starts_with("200")
    });
    upgrade(&values);
    assert!(node.is_chained() && node.has_plugin());

    for arguments in [&["upgrade"][..], &["uninstall", "--force", "--yes"]] {
        let refused = command(&cluster, arguments);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(
            refused.status.code() == Some(1) && said.contains("helm"),
            "{refused:?}"
        );
    }

    cluster.kubectl(&["delete", "namespace", "helm"]);
    run(&["uninstall", "tulle", "--wait"]);
    // Nor is the plugin left on the node, which no DaemonSet could take away any more.
    assert_eq!(node.configuration(), before);
    assert!(!node.has_plugin());
    run(&["uninstall", "tulle-crds", "--wait"]);
    // Pods end after what they belong to has gone, which is what Helm waits for.
    eventually("nothing is left", || {
        let left = cluster.kubectl(&["get", "--all-namespaces", "-o", "name",
            "configmaps,secrets,serviceaccounts,services,deployments,daemonsets,jobs,pods,roles,rolebindings,clusterroles,\
             clusterrolebindings,poddisruptionbudgets,mutatingwebhookconfigurations,validatingwebhookconfigurations,\
             customresourcedefinitions,leases,networkpolicies"]);
        let left: Vec<&str> = left.lines().filter(|line| line.contains("tulle")).collect();
        println!("left: {left:?}");
        left.is_empty()
    });
    // Helm leaves the namespace that it has made for a release.
    cluster.kubectl(&["delete", "namespace", HOME]);
}

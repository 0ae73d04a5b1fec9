//! Ingresses: what serves them, what they reach, their certificates and status, and what is said of them.

#![allow(clippy::unwrap_used)]

use serde_json::Value;
use tests_kube::{Certificate, Cluster, eventually, install, install_with};

/// Status and first line of the answer to a request from the node, as from any client outside.
fn get(cluster: &Cluster, url: &str, options: &[&str]) -> String {
    let fixed = [
        "exec",
        "curl",
        "--silent",
        "--show-error",
        "--max-time",
        "20",
    ];
    let done = cluster
        .command(&fixed)
        .args(["--write-out", "\n%{http_code}"])
        .args(options)
        .arg(url)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let (body, code) = text.rsplit_once('\n').unwrap_or_default();
    let error = String::from_utf8_lossy(&done.stderr).into_owned();
    format!("{code} {body}{error}")
}

#[test]
fn clients_outside_come_in_by_an_ingress() {
    let Some(cluster) = Cluster::get() else {
        return;
    };
    install(&cluster);
    let class = cluster.get_json(&["ingressclass", "tulle"]);
    assert_eq!(class["spec"]["controller"], "tulle.dev/ingress-controller");
    // There is no load balancer in this cluster.
    let annotate = [
        "annotate",
        "ingressclass",
        "tulle",
        "tulle.dev/service-type=ClusterIP",
    ];
    cluster.kubectl(&annotate);
    cluster.apply_file("ingress.yaml", &[]);
    cluster.await_deployment("storefront", "web");
    let addresses = |name: &str| {
        let found = cluster.get_json(&["-n", "storefront", "ingress", name]);
        found["status"]["loadBalancer"]["ingress"].clone()
    };

    // Nobody has given the controller rights in these namespaces, and one Ingress has no class.
    cluster.await_finding(
        "Ingress/shop.storefront: it is not served yet: the controller lacks rights",
    );
    let checked = cluster.tulle(&["check"]);
    let nobodys =
        "Ingress storefront/nobodys: it names no class, and no IngressClass is the default";
    let bucket = "Ingress/shop.storefront: its backend is the Bucket icons";
    for expected in [
        nobodys,
        bucket,
        "gateways.namespaces",
        "Ingress/hijack.rival: ",
    ] {
        assert!(checked.contains(expected), "{expected}: {checked}");
    }
    assert!(addresses("shop").is_null());
    install_with(&cluster, &["gateways.namespaces=[storefront]"]);

    // One Service for the Ingresses of the namespace, and each says its address.
    eventually("the Ingress has an address", || {
        addresses("shop")[0]["ip"].is_string()
    });
    eventually("the other has it, too", || {
        addresses("second") == addresses("shop")
    });
    assert!(addresses("nobodys").is_null());
    let address = addresses("shop")[0]["ip"].as_str().unwrap().to_owned();
    let service = cluster.get_json(&["-n", "storefront", "service", "tulle-ingress"]);
    assert_eq!(service["spec"]["clusterIP"], *address);
    let ask = |host: &str, path: &str| {
        let header = format!("Host: {host}");
        get(
            &cluster,
            &format!("http://{address}{path}"),
            &["--header", &header],
        )
    };
    let is = |answer: &str, name: &str| {
        let body: Value = serde_json::from_str(answer.strip_prefix("200 ").unwrap_or_default())
            .unwrap_or_default();
        body["name"] == name
    };
    eventually("a path is served", || {
        is(&ask("shop.example", "/web/x"), "web")
    });
    for (host, path, name) in [
        ("shop.example", "/only", "web"),
        ("shop.example", "/only/x", "fallback"),
        ("shop.example", "/webs", "fallback"),
        ("second.example", "/", "web"),
        ("a.wild.example", "/", "web"),
        // A wildcard is one label.
        ("a.b.wild.example", "/", "fallback"),
        ("other.example", "/", "fallback"),
    ] {
        let answer = ask(host, path);
        assert!(is(&answer, name), "{host}{path}: {answer}");
    }
    let refused = ask("shop.example", "/icons/x");
    assert!(refused.starts_with("500 "), "{refused}");

    // The ingress has an identity in the mesh.
    let who = "spiffe://cluster.local/ns/storefront/sa/tulle-ingress";
    let pods = cluster.get_json(&["-n", "storefront", "pods", "-l", "app=web"]);
    let ip = pods.pointer("/items/0/status/podIP").unwrap();
    let metrics = format!("http://{}:15020/metrics", ip.as_str().unwrap());
    eventually("requests are counted, after their last byte", || {
        let seen = cluster.curl(&metrics);
        let mut lines = seen
            .lines()
            .filter(|l| l.starts_with("istio_requests_total"));
        lines.any(|l| l.contains(who) && l.contains("connection_security_policy=\"mutual_tls\""))
    });
    let why = [
        "why",
        "-n",
        "storefront",
        "deploy/tulle-ingress",
        "web",
        "/only",
    ];
    let why = cluster.tulle(&why);
    for part in ["√ allowed", who] {
        assert!(why.contains(part), "{part}: {why}");
    }

    // TLS begins with the certificate, and goes on with the next one, in the same pod.
    let uid = || {
        let label = "gateway.networking.k8s.io/gateway-name=ingress_tulle";
        let pods = cluster.get_json(&["-n", "storefront", "pods", "-l", label]);
        assert_eq!(pods["items"].as_array().unwrap().len(), 1, "{pods}");
        pods["items"][0]["metadata"]["uid"].clone()
    };
    let pod = uid();
    cluster.await_finding(
        "Ingress/shop.storefront: its `tls` is not served: Secret storefront/shop does not exist",
    );
    let directory = tempfile::tempdir().unwrap();
    let secure = |certificate: &Certificate, path: &str| {
        let resolve = format!("shop.example:443:{address}");
        let file = certificate.file.to_str().unwrap();
        let options = ["--cacert", file, "--resolve", &resolve];
        get(&cluster, &format!("https://shop.example{path}"), &options)
    };
    for name in ["first", "second"] {
        let certificate = Certificate::new(directory.path(), name, "shop.example");
        certificate.install(&cluster, "storefront", "shop");
        eventually("the certificate is shown", || {
            is(&secure(&certificate, "/web"), "web")
        });
        assert!(is(&secure(&certificate, "/x"), "fallback"));
    }
    assert_eq!(uid(), pod);

    // Another namespace's Ingress for the same host has changed nothing here, and has no address.
    let rival = cluster.get_json(&["-n", "rival", "ingress", "hijack"]);
    assert!(rival["status"]["loadBalancer"]["ingress"].is_null());
    assert!(is(&ask("shop.example", "/web"), "web"));

    // A change reaches the pods that run; with the last Ingress all of it goes.
    let only =
        r#"[{"op": "replace", "path": "/spec/rules/0/http/paths/0/path", "value": "/moved"}]"#;
    let patch = [
        "-n",
        "storefront",
        "patch",
        "ingress",
        "shop",
        "--type=json",
        "-p",
        only,
    ];
    cluster.kubectl(&patch);
    eventually("the path has moved", || {
        is(&ask("shop.example", "/moved"), "web") && is(&ask("shop.example", "/web"), "fallback")
    });
    assert_eq!(uid(), pod);
    cluster.kubectl(&["-n", "storefront", "delete", "ingress", "shop", "second"]);
    eventually("nothing is left", || {
        let kinds = "deployment,service,pod,serviceaccount,poddisruptionbudget";
        let left = cluster.get_json(&["-n", "storefront", kinds]);
        let mut names = left["items"].as_array().unwrap().iter();
        !names.any(|o| {
            o["metadata"]["name"]
                .as_str()
                .unwrap()
                .starts_with("tulle-ingress")
        })
    });
    cluster.kubectl(&[
        "annotate",
        "ingressclass",
        "tulle",
        "tulle.dev/service-type-",
    ]);
    cluster.kubectl(&["delete", "namespace", "storefront", "rival", "--wait=false"]);
}

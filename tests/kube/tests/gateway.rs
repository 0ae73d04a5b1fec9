//! A Gateway: what runs for it, who may attach to it, whom it is to the mesh, its certificate.

#![allow(clippy::unwrap_used)]

use serde_json::Value;
use tests_kube::{Certificate, Cluster, eventually, install, install_gateway_api, install_with};

/// The name of the objects made for the Gateway `edge.example`: a Service cannot have its name.
const MADE: &str = "edge-example-103ece1c-tulle";

/// Status and first line of the answer to a request from the node, as from any client outside.
fn get(cluster: &Cluster, url: &str, options: &[&str]) -> String {
    let done = cluster
        .command(&[
            "exec",
            "curl",
            "--silent",
            "--show-error",
            "--max-time",
            "20",
        ])
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

fn condition<'a>(of: &'a Value, kind: &str) -> (&'a str, &'a str) {
    let all = of["conditions"].as_array().into_iter().flatten();
    let one = all.into_iter().find(|c| c["type"] == kind);
    one.map_or(("", ""), |c| {
        (c["status"].as_str().unwrap(), c["reason"].as_str().unwrap())
    })
}

#[test]
fn clients_outside_come_in_by_a_gateway() {
    let Some(cluster) = Cluster::get() else {
        return;
    };
    install(&cluster);
    install_gateway_api(&cluster);
    eventually("the class is accepted", || {
        let found = cluster.try_kubectl(&["get", "gatewayclass", "tulle", "-o", "json"]);
        let found: Value = serde_json::from_slice(&found.stdout).unwrap_or_default();
        condition(&found["status"], "Accepted") == ("True", "Accepted")
    });
    cluster.apply_file("gateway.yaml", &[]);
    cluster.await_deployment("backends", "web");
    let gateway = || cluster.get_json(&["-n", "edge", "gateway", "edge.example"])["status"].clone();
    let listener = |name: &str| {
        let status = gateway();
        let all = status["listeners"].as_array().cloned().unwrap_or_default();
        all.into_iter()
            .find(|l| l["name"] == name)
            .unwrap_or_default()
    };

    // Nobody has given the controller rights in this namespace. It is ready all the same, and says what to do.
    eventually("the missing rights are said", || {
        condition(&gateway(), "Programmed") == ("False", "NotPermitted")
    });
    let checked = cluster.tulle(&["check"]);
    let found = checked.lines().find(|line| line.contains("TK045"));
    let found = found.unwrap_or_else(|| panic!("{checked}"));
    assert!(
        found.contains("Gateway edge/edge.example") && found.contains("gateways.namespaces"),
        "{found}"
    );
    let made = ["-n", "edge", "deployments,services,serviceaccounts"];
    let made = cluster.get_json(&made)["items"].clone();
    let mut made = made.as_array().unwrap().iter();
    assert!(made.all(|o| o["metadata"]["name"] != MADE));
    // Rights that come later are found.
    install_with(&cluster, &["gateways.namespaces=[edge]"]);

    // A listener without its certificate does nothing; the other one serves.
    eventually("the gateway is programmed", || {
        condition(&gateway(), "Programmed") == ("True", "Programmed")
    });
    eventually("the missing certificate is said", || {
        let https = listener("https");
        condition(&https, "ResolvedRefs") == ("False", "InvalidCertificateRef")
            && condition(&https, "Programmed").0 == "False"
    });
    let address = gateway()["addresses"][0]["value"]
        .as_str()
        .unwrap()
        .to_owned();
    let plain = format!("http://{address}/path");
    let shop = ["--header", "Host: shop.example"];
    eventually("a route is attached", || {
        get(&cluster, &plain, &shop).starts_with("200 ")
    });
    assert!(get(&cluster, &plain, &["--header", "Host: x.example"]).starts_with("404 "));

    // A route that may not attach is not attached.
    let hijack = format!("http://{address}/hijack");
    assert!(get(&cluster, &hijack, &["--header", "Host: y.example"]).starts_with("404 "));
    // The status is written beside what the gateway is told.
    eventually("one route is attached", || {
        listener("http.plain")["attachedRoutes"] == 1 && listener("https")["attachedRoutes"] == 1
    });
    cluster.kubectl(&["label", "namespace", "refused", "at-the-edge=yes"]);
    eventually("it is attached when it may", || {
        let answer = get(&cluster, &hijack, &["--header", "Host: y.example"]);
        answer.starts_with("302 ") && listener("http.plain")["attachedRoutes"] == 2
    });

    // The gateway has an identity in the mesh.
    let pods = cluster.get_json(&["-n", "backends", "pods", "-l", "app=web"]);
    let ip = pods
        .pointer("/items/0/status/podIP")
        .unwrap()
        .as_str()
        .unwrap();
    let who = format!("source_principal=\"spiffe://cluster.local/ns/edge/sa/{MADE}\"");
    eventually("requests are counted, after their last byte", || {
        cluster.has_counted(ip, &[&who, tests_kube::MUTUAL_TLS])
    });

    // It has no rights, and is in the mesh by itself rather than by a sidecar.
    let pods = cluster.get_json(&["-n", "edge", "pods"]);
    let pod = &pods["items"][0];
    assert_eq!(pod["spec"]["containers"].as_array().unwrap().len(), 1);
    assert!(pod["spec"].get("initContainers").is_none());
    let context = &pod["spec"]["containers"][0]["securityContext"];
    assert_eq!(context["capabilities"]["drop"][0], "ALL");
    assert_eq!(pod["metadata"]["labels"]["team"], "edge");
    let uid = pod["metadata"]["uid"].clone();

    // A certificate comes, and another, while the same pod serves.
    let directory = tempfile::tempdir().unwrap();
    let certificate = |name: &str| {
        let certificate = Certificate::new(directory.path(), name, "shop.example");
        certificate.install(&cluster, "edge", "shop");
        certificate
    };
    let secure = |certificate: &Certificate| {
        let resolve = format!("shop.example:443:{address}");
        let file = certificate.file.to_str().unwrap();
        let options = ["--cacert", file, "--resolve", &resolve];
        get(&cluster, "https://shop.example/path", &options)
    };
    let first = certificate("first");
    eventually("the certificate is shown", || {
        secure(&first).starts_with("200 ")
    });
    eventually("the listener is programmed", || {
        condition(&listener("https"), "Programmed").0 == "True"
    });
    let second = certificate("second");
    eventually("the other certificate is shown", || {
        secure(&second).starts_with("200 ")
    });
    // Each worker takes it over by itself.
    eventually("the first certificate is shown no more", || {
        (0..8).all(|_| secure(&first).starts_with("000 "))
    });

    // While the controller starts again, all goes on; afterwards it knows what it knew.
    let restart = [
        "-n",
        "tulle-system",
        "rollout",
        "restart",
        "deployment/tulle-controller",
    ];
    cluster.kubectl(&restart);
    for _ in 0..20 {
        assert!(get(&cluster, &plain, &shop).starts_with("200 "));
    }
    cluster.await_deployment("tulle-system", "tulle-controller");
    assert!(secure(&second).starts_with("200 "));
    let route = ["-n", "backends", "delete", "httproute", "web"];
    cluster.kubectl(&route);
    eventually("a route that is gone is gone", || {
        get(&cluster, &plain, &shop).starts_with("404 ") && listener("https")["attachedRoutes"] == 0
    });
    let pods = cluster.get_json(&["-n", "edge", "pods"]);
    assert_eq!(pods["items"].as_array().unwrap().len(), 1);
    assert_eq!(pods["items"][0]["metadata"]["uid"], uid);

    // A change of its Deployment by hand is undone.
    let deployment = format!("deployment/{MADE}");
    let args = [
        "-n",
        "edge",
        "set",
        "env",
        &deployment,
        "TULLE_CONFIG=nonsense",
    ];
    cluster.kubectl(&args);
    eventually("it is as it was", || {
        let found = cluster.get_json(&["-n", "edge", "deployment", MADE]);
        let env = found.pointer("/spec/template/spec/containers/0/env");
        let config = |one: &Value| one["name"] == "TULLE_CONFIG" && one["value"] != "nonsense";
        env.and_then(Value::as_array)
            .is_some_and(|env| env.iter().any(config))
    });

    // All its objects go with the Gateway.
    cluster.kubectl(&["-n", "edge", "delete", "gateway", "edge.example"]);
    eventually("nothing is left", || {
        let kinds = "deployment,service,pod,serviceaccount,poddisruptionbudget,replicaset";
        let left = cluster.get_json(&["-n", "edge", kinds]);
        let left = left["items"].as_array().unwrap().iter();
        let mut names = left.map(|o| o["metadata"]["name"].as_str().unwrap().to_owned());
        !names.any(|name| name.starts_with(MADE))
    });
    cluster.kubectl(&[
        "delete",
        "namespace",
        "edge",
        "backends",
        "refused",
        "--wait=false",
    ]);
}

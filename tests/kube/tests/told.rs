//! `tulle check` names objects without effect, certificates and keys that cannot be used, and routes that conflict.
//! It does not name what only looks odd.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::process::Command;
use tests_kube::{Cluster, install_gateway_api, install_with, root};

const NAMESPACE: &str = r#"
apiVersion: v1
kind: Namespace
metadata: { name: told, labels: { tulle.dev/injection: enabled } }
"#;

const OBJECTS: &str = r#"
apiVersion: v1
kind: Service
metadata: { name: web, namespace: told }
spec: { selector: { app: web }, ports: [{ port: 80, appProtocol: http }] }
---
apiVersion: v1
kind: Secret
metadata: { name: garbage, namespace: told }
stringData: { tls.crt: none, tls.key: none }
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: { name: edge, namespace: told }
spec:
  gatewayClassName: tulle
  infrastructure: { annotations: { tulle.dev/service-type: ClusterIP } }
  listeners:
  - { name: plain, port: 80, protocol: HTTP }
  - { name: old, port: 443, protocol: HTTPS, tls: { certificateRefs: [{ name: old }] } }
  - { name: gone, port: 444, protocol: HTTPS, tls: { certificateRefs: [{ name: gone }] } }
  - { name: garbage, port: 445, protocol: HTTPS, tls: { certificateRefs: [{ name: garbage }] } }
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: { name: first, namespace: told }
spec:
  parentRefs: [{ name: edge, sectionName: plain }]
  rules: [{ backendRefs: [{ name: web, port: 80 }] }]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: { name: second, namespace: told }
spec:
  parentRefs: [{ name: edge, sectionName: plain }]
  rules: [{ backendRefs: [{ name: web, port: 80 }] }]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: { name: lost, namespace: told }
spec:
  parentRefs: [{ name: edge, sectionName: none }]
  rules: [{ backendRefs: [{ name: web, port: 80 }] }]
"#;

const MANUAL: &str = r#"
apiVersion: v1
kind: Pod
metadata: { name: alone, namespace: told-manual }
spec:
  containers:
  - { name: app, image: "@IMAGE@", args: [echo, --bind, 0.0.0.0, --port, "8080", --name, app] }
"#;

#[test]
fn what_is_wrong_is_said() {
    let Some(cluster) = Cluster::get() else {
        return;
    };
    install_gateway_api(&cluster);
    cluster.apply(NAMESPACE);
    install_with(&cluster, &["gateways.namespaces=[told]"]);
    cluster.apply(OBJECTS);
    expired(&cluster);
    let gateway = "× TK094 what objects name is there: Gateway told/edge, listener";
    for found in [
        "× TK093 objects are in force: HTTPRoute told/lost at edge: NoMatchingParent: ".to_owned(),
        format!("{gateway} gone: InvalidCertificateRef: Secret told/gone does not exist"),
        format!(
            "{gateway} garbage: InvalidCertificateRef: Secret told/garbage: tls.crt cannot be used"
        ),
        format!(
            "{gateway} old: InvalidCertificateRef: Secret told/old: the certificate expired on 2021-01-01"
        ),
        "‼ TK096 keys of labels and annotations: namespace told: tulle.dev/injection".to_owned(),
        "× TK097 certificates of Gateways: Gateway edge.told, listener old: it has expired"
            .to_owned(),
        "‼ TK098 routes that conflict: HTTPRoute told/second is not heard for ".to_owned(),
    ] {
        cluster.await_finding(&found);
    }
    // Under `-n` the mesh's own parts are looked at, too.
    let within = cluster.tulle(&["check", "-n", "told"]);
    assert!(
        within.contains("√ TK029 Service of the controller: 1 ready"),
        "{within}"
    );
    assert!(within.contains("√ TK047 images of the mesh"), "{within}");
    manual(&cluster);
    for namespace in ["told", "told-manual"] {
        cluster.kubectl(&["delete", "namespace", namespace, "--wait=false"]);
    }
}

/// Puts a certificate that has expired into the Secret of a listener.
fn expired(cluster: &Cluster) {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let settings = format!(
        "[ca]\ndefault_ca = own\n[own]\ndatabase = {0}/index\nnew_certs_dir = {0}\nserial = {0}/serial\ndefault_md = sha256\n\
         policy = any\nx509_extensions = more\n[any]\ncommonName = supplied\n[more]\nsubjectAltName = DNS:old\n",
        directory.path().display()
    );
    fs::write(at("settings"), settings).unwrap();
    fs::write(at("index"), "").unwrap();
    fs::write(at("serial"), "01").unwrap();
    let openssl = |arguments: &str| {
        let made = Command::new("openssl")
            .current_dir(directory.path())
            .args(arguments.split(' '))
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
    };
    openssl(
        "req -new -nodes -newkey ec -pkeyopt ec_paramgen_curve:P-256 -subj /CN=old -keyout key -out request",
    );
    openssl(
        "ca -batch -selfsign -config settings -keyfile key -in request -out chain -notext -startdate 20200101000000Z -enddate 20210101000000Z",
    );
    let text = |name: &str| fs::read_to_string(at(name)).unwrap();
    let secret = serde_json::json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "old", "namespace": "told" },
        "stringData": { "tls.crt": text("chain"), "tls.key": text("key") },
    });
    cluster.apply(&secret.to_string());
}

/// A sidecar that was injected by hand is asked for, though no label does.
fn manual(cluster: &Cluster) {
    cluster.kubectl(&["create", "namespace", "told-manual"]);
    let file = root().join("build/kube/told-manual.yaml");
    let image = format!("localhost/bookinfo:{}", env!("CARGO_PKG_VERSION"));
    fs::write(&file, MANUAL.replace("@IMAGE@", &image)).unwrap();
    let injected = cluster.tulle(&["inject", "--manual", file.to_str().unwrap()]);
    assert!(injected.contains("tulle-proxy"), "{injected}");
    cluster.apply(&injected);
    let within = cluster.tulle(&["check", "-n", "told-manual"]);
    assert!(
        within.contains("√ TK052 sidecars where nobody asks for them: none"),
        "{within}"
    );
}

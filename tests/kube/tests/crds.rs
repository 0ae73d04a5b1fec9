//! Tulle's and SMI's kinds in a cluster: the API server takes the definitions, shows their objects as a
//! user wants to see them, and refuses what cannot mean anything.

#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::process::Command;
use tests_kube::{Cluster, eventually, install, root};

/// One of each kind that is in a namespace.
const GOOD: &str = r#"
apiVersion: tulle.dev/v1alpha1
kind: TrafficPolicy
metadata: { name: web }
spec:
  targetRefs: [{ kind: Service, name: web }]
  loadBalancer: { type: LeastRequest }
  retry: { attempts: 2, "on": [reset], perTryTimeout: 500ms }
---
apiVersion: tulle.dev/v1alpha1
kind: RateLimit
metadata: { name: web }
spec:
  targetRefs: [{ kind: Service, name: web }]
  requests: { count: 100, per: 1m }
---
apiVersion: tulle.dev/v1alpha1
kind: HTTPFilter
metadata: { name: slow }
spec: { fault: { delay: { duration: 1s, percentage: 0.5% } } }
---
apiVersion: tulle.dev/v1alpha1
kind: AuthorizationPolicy
metadata: { name: web }
spec:
  targetRefs: [{ kind: Service, name: web }]
  action: Deny
  mode: Audit
  rules: [{ to: { methods: [DELETE] } }]
---
apiVersion: tulle.dev/v1alpha1
kind: Authentication
metadata: { name: web }
spec:
  targetRefs: [{ kind: Service, name: web }]
  jwt: { optional: true, providers: [{ issuer: https://issuer.example, jwks: '{"keys": []}' }] }
---
apiVersion: tulle.dev/v1alpha1
kind: Plugin
metadata: { name: web }
spec:
  targetRefs: [{ kind: Service, name: web }]
  source: "export function onRequest() {}"
---
apiVersion: tulle.dev/v1alpha1
kind: IngressBackend
metadata: { name: web }
spec:
  backends: [{ name: web, port: 80 }]
  sources: [{ kind: IPRange, name: 10.0.0.0/8 }]
---
apiVersion: tulle.dev/v1alpha1
kind: AccessControl
metadata: { name: web }
spec:
  backends: [{ name: web }]
  sources: [{ kind: Service, name: other }]
---
apiVersion: tulle.dev/v1alpha1
kind: Egress
metadata: { name: outside }
spec:
  hosts: [api.example.com, "*.example.org"]
  ports: [{ number: 443, protocol: https }]
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: { name: web }
spec:
  destination: { kind: ServiceAccount, name: web }
  sources: [{ kind: ServiceAccount, name: one }, { kind: ServiceAccount, name: two }]
  rules: [{ kind: HTTPRouteGroup, name: reads }, { kind: TCPRoute, name: database }]
---
apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: { name: reads }
spec:
  matches:
  - { name: read, methods: [GET, HEAD], pathRegex: "/.*", headers: [{ x-user: ".+" }] }
  - { name: list, methods: ["*"], headers: { x-user: ".+" } }
---
apiVersion: specs.smi-spec.io/v1alpha4
kind: TCPRoute
metadata: { name: database }
spec: { matches: { ports: [5432] } }
---
apiVersion: split.smi-spec.io/v1alpha2
kind: TrafficSplit
metadata: { name: web }
spec:
  service: web
  backends: [{ service: web-v1, weight: 90 }, { service: web-v2, weight: 10 }]
"#;

const NAMESPACE: &str = "kinds";

fn definitions() -> Vec<Value> {
    let tulle = root().join("target/debug/tulle");
    let printed = Command::new(tulle)
        .args(["install", "--crds-only", "-o", "json"])
        .output()
        .unwrap();
    let list: Value = serde_json::from_slice(&printed.stdout).unwrap();
    assert_eq!(list["kind"], "List");
    list["items"].as_array().unwrap().clone()
}

/// The same in our namespace.
fn within(manifests: &str) -> String {
    let own = format!("metadata: {{ namespace: {NAMESPACE}, name");
    manifests.replace("metadata: { name", &own)
}

/// Returns the refusal of a manifest by `kubectl apply` in our namespace.
fn refused(cluster: &Cluster, manifest: &str) -> String {
    let done = cluster.try_apply(&within(manifest));
    assert!(!done.status.success(), "it was accepted: {manifest}");
    String::from_utf8_lossy(&done.stderr).into_owned()
}

fn policy(spec: &str) -> String {
    format!(
        "apiVersion: tulle.dev/v1alpha1\nkind: TrafficPolicy\nmetadata: {{ name: bad }}\n\
         spec: {{ targetRefs: [{{ name: web }}], {spec} }}\n"
    )
}

#[test]
fn kinds_are_what_they_should_be() {
    let Some(cluster) = Cluster::get() else {
        return;
    };
    install(&cluster);
    let definitions = definitions();
    assert_eq!(definitions.len(), 14);
    for definition in &definitions {
        let name = definition["metadata"]["name"].as_str().unwrap();
        let resource = format!("crd/{name}");
        cluster.kubectl(&[
            "wait",
            "--for=condition=Established",
            &resource,
            "--timeout=300s",
        ]);
        let found = cluster.get_json(&[&resource]);
        let conditions = found["status"]["conditions"].as_array().unwrap();
        let holds = |kind: &str| {
            conditions
                .iter()
                .any(|c| c["type"] == kind && c["status"] == "True")
        };
        assert!(
            holds("NamesAccepted") && !holds("NonStructuralSchema"),
            "{conditions:#?}"
        );
    }
    cluster.kubectl(&["create", "namespace", NAMESPACE]);
    // The API server may not have read the webhook's certificate yet.
    eventually("good objects are accepted", || {
        let done = cluster.try_apply(&within(GOOD));
        println!("{}", String::from_utf8_lossy(&done.stderr));
        done.status.success()
    });
    shown(&cluster, &definitions);
    explained(&cluster);
    not_accepted(&cluster);

    // One Mesh.
    let mesh = |name: &str| {
        format!(
            "apiVersion: tulle.dev/v1alpha1\nkind: Mesh\nmetadata: {{ name: {name} }}\n\
             spec: {{ permissiveMode: true, sidecar: {{ cpuLimit: 2 }} }}\n"
        )
    };
    let second = cluster.try_apply(&mesh("second"));
    let why = String::from_utf8_lossy(&second.stderr);
    assert!(why.contains("a cluster has one Mesh"), "{why}");
    cluster.apply(&mesh("mesh"));
    let line = cluster.kubectl(&["get", "mesh", "mesh"]);
    assert!(
        line.contains("PERMISSIVE") && line.contains("true"),
        "{line}"
    );
    cluster.kubectl(&["delete", "mesh", "mesh"]);

    cluster.kubectl(&["delete", "namespace", NAMESPACE, "--wait=false"]);
}

/// `kubectl get` has the columns, and what is in them.
fn shown(cluster: &Cluster, definitions: &[Value]) {
    let get = |kind: &str| cluster.kubectl(&["-n", NAMESPACE, "get", kind]);
    let all = get("tulle");
    for definition in definitions {
        let names = &definition["spec"]["names"];
        let singular = names["singular"].as_str().unwrap();
        let group = definition["spec"]["group"].as_str().unwrap();
        if singular == "mesh" {
            continue;
        }
        assert!(
            all.contains(&format!("{singular}.{group}/")),
            "{singular}: {all}"
        );
        let shown = get(&format!("{singular}.{group}"));
        let head = shown.lines().next().unwrap();
        for version in definition["spec"]["versions"].as_array().unwrap() {
            for column in version["additionalPrinterColumns"].as_array().unwrap() {
                let name = column["name"].as_str().unwrap().to_uppercase();
                assert!(head.contains(&name), "{singular}: {name} is not in {head}");
            }
        }
    }
    for (kind, row) in [
        ("tp", &["web", "web", "LeastRequest"][..]),
        ("ratelimit", &["web", "web", "100", "1m"]),
        ("ap", &["web", "web", "Deny", "Audit"]),
        ("authn", &["web", "web", "https://issuer.example"]),
        ("ib", &["web", "web", "10.0.0.0/8"]),
        ("eg", &["outside", "api.example.com"]),
        ("tt", &["web", "web", "one"]),
        ("ts", &["web", "web", "web-v1"]),
        ("tr", &["database", "5432"]),
    ] {
        let shown = get(kind);
        println!("{shown}");
        let line = shown.lines().nth(1).unwrap();
        assert!(
            row.iter().all(|word| line.contains(word)),
            "{row:?}: {line}"
        );
    }
    // Stored in the newer version, read in both.
    for version in ["v1alpha2", "v1alpha4"] {
        let split = cluster.get_json(&[
            "-n",
            NAMESPACE,
            &format!("trafficsplits.{version}.split.smi-spec.io/web"),
        ]);
        assert_eq!(split["apiVersion"], format!("split.smi-spec.io/{version}"));
        assert_eq!(split["spec"]["backends"][1]["weight"], 10);
    }
}

fn explained(cluster: &Cluster) {
    let explains = |path: &str, text: &str| {
        let said = cluster.try_kubectl(&["explain", path]).stdout;
        String::from_utf8_lossy(&said).contains(text)
    };
    for (path, text) in [
        ("trafficpolicy.spec.retry.attempts", "Tries after the first"),
        ("trafficpolicy.spec.loadBalancer.type", "RingHash"),
        ("mesh.spec.mtls.mode", "strict"),
        ("egress.spec.tls.serverName", "must prove"),
        ("traffictarget.spec.sources", "may call"),
        ("trafficpolicy.status.conditions", "in force"),
    ] {
        eventually(&format!("kubectl explains {path}"), || explains(path, text));
    }
}

fn not_accepted(cluster: &Cluster) {
    // Refused by the schema.
    for (spec, words) in [
        (
            "loadBalancer: { type: Fastest }",
            &["spec.loadBalancer.type", "Fastest", "RoundRobin"][..],
        ),
        (
            "retry: { attempts: many }",
            &["spec.retry.attempts", "integer"],
        ),
        (
            "retry: { attempts: 11 }",
            &["spec.retry.attempts", "less than or equal to 10"],
        ),
        (
            "timeouts: { request: 5 seconds }",
            &["spec.timeouts.request"],
        ),
        (
            "retries: { attempts: 2 }",
            &["unknown field", "spec.retries"],
        ),
        (
            "loadBalancer: {}",
            &["spec.loadBalancer.type", "Required value"],
        ),
    ] {
        let why = refused(cluster, &policy(spec));
        assert!(
            words.iter().all(|word| why.contains(word)),
            "{words:?}: {why}"
        );
    }
    // Refused by the rules that only the model knows.
    for (spec, words) in [
        (
            "loadBalancer: { type: RingHash }",
            &["spec.loadBalancer.hash", "required for type `RingHash`"][..],
        ),
        (
            "timeouts: { connect: 0s }",
            &["spec.timeouts.connect", "expected at least 1ms"],
        ),
    ] {
        let why = refused(cluster, &policy(spec));
        let by = why.contains(
            "admission webhook \"objects.tulle.dev\" denied the request: TrafficPolicy/bad: ",
        );
        assert!(
            by && words.iter().all(|word| why.contains(word)),
            "{words:?}: {why}"
        );
    }
    let why = refused(
        cluster,
        "apiVersion: split.smi-spec.io/v1alpha4\nkind: TrafficSplit\nmetadata: { name: bad }\n\
         spec: { service: web, backends: [{ service: web-v1, weight: 0 }] }\n",
    );
    assert!(
        why.contains("spec.backends: every backend has weight 0"),
        "{why}"
    );
    // A stored object cannot be changed to an invalid one either.
    let done = cluster.try_kubectl(&[
        "-n",
        NAMESPACE,
        "patch",
        "httproutegroup",
        "reads",
        "--type=json",
        r#"--patch=[{"op": "replace", "path": "/spec/matches/0/pathRegex", "value": "("}]"#,
    ]);
    let why = String::from_utf8_lossy(&done.stderr);
    assert!(
        !done.status.success() && why.contains("spec.matches[0].pathRegex"),
        "{why}"
    );
}

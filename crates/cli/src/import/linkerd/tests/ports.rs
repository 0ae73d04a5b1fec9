//! Ports that a Server and a Service name differently: the one by its name, the other by its number.

use super::*;

fn workload(namespace: &str, app: &str, ports: &str) -> String {
    format!(
        "apiVersion: apps/v1
kind: Deployment
metadata: {{name: {app}, namespace: {namespace}}}
spec:
  template:
    metadata: {{labels: {{app: {app}, version: v1}}}}
    spec: {{containers: [{{name: first}}, {{name: second, ports: [{ports}]}}]}}
---
"
    )
}

/// The ports of a Service, of which one leads to `target`, that a policy about a Server opens. Null: none is made.
fn opened(target: &str, port: &str, pods: &[&str]) -> Value {
    let service = format!(
        "apiVersion: v1
kind: Service
metadata: {{name: emoji, namespace: shop}}
spec: {{selector: {{app: emoji}}, ports: [{{port: 80, targetPort: {target}}}, {{port: 81, targetPort: 9999}}, {{port: 82}}]}}
---
"
    );
    let pods: String = pods
        .iter()
        .map(|ports| workload("shop", "emoji", ports))
        .collect();
    // These are not the Service's.
    let others = workload("other", "emoji", "{name: grpc, containerPort: 9999}")
        + &workload("shop", "web", "{name: grpc, containerPort: 9999}");
    let spec = format!("{{podSelector: {{matchLabels: {{app: emoji}}}}, port: {port}}}");
    let some = "{server: {name: emoji}, client: {meshTLS: {identities: ['*']}}}";
    let text = service
        + &pods
        + &others
        + &policy("Server", "emoji", &spec)
        + &policy("ServerAuthorization", "some", some);
    let imported = imported(&text);
    match imported.objects.as_slice() {
        [made] => {
            assert_eq!(imported.lost, []);
            made.object["spec"]["rules"][0]["to"]["ports"].clone()
        }
        none => {
            assert!(none.is_empty(), "{none:?}");
            let loss = ("ServerAuthorization shop/some", "spec");
            assert_eq!(lost(&imported)[0], loss, "{target} {port}");
            Value::Null
        }
    }
}

#[test]
fn a_name_and_a_number_are_one_port_where_all_pods_say_so() {
    let grpc = "{name: grpc, containerPort: 8080}";
    let both = "{name: prom, containerPort: 8801}, {name: grpc, containerPort: 8080}";
    for (target, port, pods) in [
        // Pods need not say anything.
        ("grpc", "grpc", &[] as &[&str]),
        ("8080", "8080", &[]),
        ("8080", "grpc", &[grpc]),
        ("grpc", "8080", &[both]),
        ("8080", "grpc", &[grpc, both]),
    ] {
        assert_eq!(opened(target, port, pods), json!([80]), "{target} {port}");
    }
    for (target, port, pods) in [
        ("8080", "grpc", &[] as &[&str]),
        ("grpc", "8080", &[]),
        ("8080", "grpc", &["{name: grpc, containerPort: 9090}"]),
        ("8080", "grpc", &[grpc, "{name: grpc, containerPort: 9090}"]),
        ("8080", "grpc", &[grpc, "{name: http, containerPort: 8080}"]),
        (
            "8080",
            "grpc",
            &["{name: grpc, containerPort: 8080, protocol: UDP}"],
        ),
    ] {
        assert_eq!(
            opened(target, port, pods),
            Value::Null,
            "{target} {port} {pods:?}"
        );
    }
}

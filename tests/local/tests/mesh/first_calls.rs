//! The first requests of a caller, through a route or split whose backends its sidecar has never heard of.

use tests_local::{Demo, can_redirect};

/// Requests at once, as many as a browser with a cold cache or a load test begins with.
const BURST: usize = 50;

fn workload(name: &str, program: &str, port: u16) -> String {
    format!(
        "apiVersion: tulle.dev/v1alpha1\nkind: Workload\nmetadata: {{name: {name}}}\nspec:\n  \
         workingDirectory: .\n  command: [./bookinfo, {program}]\n  \
         ports: [{{name: http, port: {port}, appProtocol: http}}]\n  \
         readinessProbe: {{httpGet: {{path: /health, port: {port}}}}}\n"
    )
}

const ROUTED: &str = "apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: ratings}
spec:
  parentRefs: [{kind: Service, group: '', name: ratings}]
  rules: [{backendRefs: [{name: ratings-next, port: 8101}]}]
---
apiVersion: split.smi-spec.io/v1alpha4
kind: TrafficSplit
metadata: {name: details}
spec:
  service: details
  backends: [{service: details-next, weight: 1}]
";

#[test]
fn the_first_burst_through_a_route_or_split_reaches_its_backends() {
    if !can_redirect() {
        return;
    }
    let demo = Demo::start(|text| {
        let text = text.replace("permissiveMode: false", "permissiveMode: true");
        let next = [
            workload("ratings-next", "ratings", 8101),
            workload("details-next", "details", 8103),
        ];
        format!("{text}\n---\n{}\n---\n{ROUTED}", next.join("---\n"))
    });
    // Each is the first call of its sidecar to that service.
    for (caller, url) in [
        ("gateway", "http://ratings:8101/health"),
        ("reviews", "http://ratings:8101/health"),
        ("gateway", "http://details:8103/health"),
        ("productpage", "http://details:8103/health"),
    ] {
        let ask = format!(
            "seq {BURST} | xargs -P {BURST} -I@ curl -s -o /dev/null -w '%{{http_code}}\\n' {url}"
        );
        let answers = demo.tulle(&["exec", caller, "--", "sh", "-c", &ask]);
        let good = answers.out.lines().filter(|l| *l == "200").count();
        assert_eq!(good, BURST, "{caller}: {answers:?}");
    }
    let edges = demo.await_edge("gateway", "ratings-next");
    assert_eq!(edges["success_rate"], 1.0, "{edges}");
}

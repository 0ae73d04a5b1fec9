//! Tests objects of the cluster about services (Gateway API, SMI and Tulle's own kinds): each is in force
//! and has its status, and a wrong one affects nothing else. Names of objects may have dots.

#![allow(clippy::unwrap_used)]

use serde_json::Value;
use tests_kube::{Cluster, eventually, install, install_gateway_api};

const WHO_MAY_CALL: &str = r#"
apiVersion: tulle.dev/v1alpha1
kind: Mesh
metadata: { name: mesh }
spec: { permissiveMode: false }
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: { name: client-to-web.example, namespace: policies }
spec:
  destination: { kind: ServiceAccount, name: web }
  sources: [{ kind: ServiceAccount, name: client.example, namespace: policies }]
"#;

const ROUTE: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: { name: web.example, namespace: policies }
spec:
  parentRefs: [{ group: "", kind: Service, name: web, port: 80 }]
  rules:
  - matches: [{ path: { type: PathPrefix, value: /one } }]
    backendRefs: [{ name: web-v1, port: 80 }]
  - matches: [{ path: { type: PathPrefix, value: /other } }]
    backendRefs: [{ name: web, namespace: policies-other, port: 80 }]
  - backendRefs: [{ name: web-v2, port: 80 }]
"#;

const GRANT: &str = r#"
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: { name: routes, namespace: policies-other }
spec:
  from: [{ group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: policies }]
  to: [{ group: "", kind: Service }]
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: { name: client-to-web, namespace: policies-other }
spec:
  destination: { kind: ServiceAccount, name: default }
  sources: [{ kind: ServiceAccount, name: client.example, namespace: policies }]
"#;

const NO_ADMIN: &str = r#"
apiVersion: tulle.dev/v1alpha1
kind: AuthorizationPolicy
metadata: { name: no-admin.example, namespace: policies }
spec:
  targetRefs: [{ kind: Service, name: web-v2 }]
  action: Deny
  rules: [{ to: { paths: [{ type: PathPrefix, value: "@PATH@" }] } }]
"#;

const SPLIT: &str = r#"
apiVersion: split.smi-spec.io/v1alpha4
kind: TrafficSplit
metadata: { name: web, namespace: policies }
spec:
  service: web
  backends: [{ service: web-v1, weight: 50 }, { service: web-v2, weight: 50 }]
"#;

const PLUGIN: &str = r#"
apiVersion: tulle.dev/v1alpha1
kind: Plugin
metadata: { name: teapot.example, namespace: policies }
spec:
  targetRefs: [{ kind: Service, name: web-v1 }]
  config: { path: /teapot }
  source: |
    export function onRequest(request, context) {
      if (request.path === context.config.path) return new Response(`for ${context.source.service}`, { status: 418 });
    }
"#;

const CHOSEN: &str = r#"
apiVersion: tulle.dev/v1alpha1
kind: Plugin
metadata: { name: chosen.example, namespace: policies }
spec:
  source: |
    export function onRequest(request, context) {
      context.backend = request.path === '/first' ? 'web-v1' : 'web-v2';
    }
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: { name: web.example, namespace: policies }
spec:
  parentRefs: [{ group: "", kind: Service, name: web, port: 80 }]
  rules:
  - filters: [{ type: ExtensionRef, extensionRef: { group: tulle.dev, kind: Plugin, name: chosen.example } }]
    backendRefs: [{ name: web-v1, port: 80 }, { name: web-v2, port: 80 }]
"#;

struct Test(Cluster);

impl Test {
    /// Returns the answer to a program of the namespace: status, reason, content.
    fn fetch(&self, who: &str, url: &str) -> String {
        let who = format!("deployment/{who}");
        self.0.exec("policies", &who, &["bookinfo", "fetch", url]).1
    }

    /// It becomes so; until then it may be as it was.
    fn becomes(&self, who: &str, url: &str, expected: &str) {
        let mut last = String::new();
        eventually(&format!("{who} gets {expected} from {url}"), || {
            last = self.fetch(who, url);
            last.contains(expected)
        });
    }

    fn condition(&self, object: &[&str], path: &str, kind: &str) -> Option<Value> {
        let found = self.0.get_json(&[&["-n", "policies"], object].concat());
        let all = found.pointer(path)?.as_array()?.clone();
        all.into_iter().find(|c| c["type"] == kind)
    }

    fn becomes_condition(&self, object: &[&str], path: &str, kind: &str, reason: &str) {
        eventually(&format!("{object:?} is {kind} because {reason}"), || {
            let condition = self.condition(object, path, kind);
            condition.is_some_and(|c| c["reason"] == reason)
        });
    }
}

#[test]
fn what_is_said_of_services_holds() {
    let Some(cluster) = Cluster::get() else {
        return;
    };
    install_gateway_api(&cluster);
    install(&cluster);
    let image = concat!("localhost/bookinfo:", env!("CARGO_PKG_VERSION"));
    cluster.apply_file("policies.yaml", &[("@IMAGE@", image)]);
    for name in ["web-v1", "web-v2", "client", "stranger"] {
        cluster.await_deployment("policies", name);
    }
    cluster.await_deployment("policies-other", "web");
    let test = Test(cluster);

    // Everybody may call everybody, until somebody says who may.
    test.becomes("stranger", "http://web/", "200");
    test.0.apply(WHO_MAY_CALL);
    test.becomes("stranger", "http://web/", "403 denied");
    // Both versions do, each of which learns of it by itself.
    eventually("the refusal says why, every time", || {
        (0..8).all(|_| {
            let why = test.fetch("stranger", "http://web/");
            why.starts_with("403 denied")
                && why.contains("TrafficTarget/client-to-web.example.policies")
                && why.contains("ns/policies/sa/stranger")
        })
    });
    test.becomes("client", "http://web/", "200");
    test.0
        .await_finding("‼ TK095 denied calls: ns/policies/sa/stranger → ");

    // A route of the service, for all its clients.
    test.0.apply(ROUTE);
    let route = ["httproute", "web.example"];
    let conditions = "/status/parents/0/conditions";
    test.becomes_condition(&route, conditions, "Accepted", "Accepted");
    test.becomes_condition(&route, conditions, "ResolvedRefs", "RefNotPermitted");
    test.0
        .await_finding("× TK094 what objects name is there: HTTPRoute policies/web.example at web: RefNotPermitted");
    test.becomes("client", "http://web/one/x", r#""name":"v1""#);
    // A backend of another namespace: not without its owner's word. Without the route somebody would
    // answer, so from here on the client's sidecar has it.
    eventually("the other namespace is not asked", || {
        test.fetch("client", "http://web/other").starts_with('5')
    });
    for _ in 0..4 {
        let said = test.fetch("client", "http://web/");
        assert!(said.contains(r#""name":"v2""#), "{said}");
    }
    test.0.apply(GRANT);
    test.becomes_condition(&route, conditions, "ResolvedRefs", "ResolvedRefs");
    test.becomes("client", "http://web/other", r#""name":"other""#);
    test.0
        .kubectl(&["-n", "policies-other", "delete", "referencegrant", "routes"]);
    test.becomes_condition(&route, conditions, "ResolvedRefs", "RefNotPermitted");
    test.becomes("client", "http://web/other", "50");

    // A policy for requests. One that is wrong changes nothing.
    test.0.apply(&NO_ADMIN.replace("@PATH@", "/admin"));
    test.becomes("client", "http://web/admin", "403 denied");
    let policy = ["authorizationpolicy", "no-admin.example"];
    test.becomes_condition(&policy, "/status/conditions", "Accepted", "Accepted");
    let broken = NO_ADMIN.replace("@PATH@", "no-slash");
    let refused = test.0.try_apply(&broken);
    if refused.status.success() {
        test.becomes_condition(&policy, "/status/conditions", "Accepted", "Invalid");
    }
    let said = test.fetch("client", "http://web/admin");
    assert!(said.starts_with("403"), "{said}");

    // Without the route, a split applies.
    test.0
        .kubectl(&["-n", "policies", "delete", "httproute", "web.example"]);
    test.0.apply(SPLIT);
    let mut seen = [false, false];
    eventually("both versions answer", || {
        let said = test.fetch("client", "http://web/");
        seen[0] |= said.contains(r#""name":"v1""#);
        seen[1] |= said.contains(r#""name":"v2""#);
        seen == [true, true]
    });

    // A script in the sidecars of a service.
    test.0.apply(PLUGIN);
    test.becomes("client", "http://web-v1/teapot", "418");
    let said = test.fetch("client", "http://web-v1/teapot");
    assert!(said.contains("for client.example"), "{said}");
    let said = test.fetch("client", "http://web-v1/other");
    assert!(said.contains(r#""name":"v1""#), "{said}");
    let plugin = ["plugin", "teapot.example"];
    test.becomes_condition(&plugin, "/status/conditions", "Accepted", "Accepted");

    // And one in a route, which its callers' sidecars run: it says which version answers.
    test.0
        .kubectl(&["-n", "policies", "delete", "trafficsplit", "web"]);
    test.0.apply(CHOSEN);
    test.becomes_condition(&route, conditions, "ResolvedRefs", "ResolvedRefs");
    eventually("the plugin chooses, every time", || {
        (0..6).all(|_| {
            let [first, other] =
                ["first", "other"].map(|path| test.fetch("client", &format!("http://web/{path}")));
            first.contains(r#""name":"v1""#) && other.contains(r#""name":"v2""#)
        })
    });

    // A controller that starts again knows all of it before it tells anybody anything.
    let restart = [
        "-n",
        "tulle-system",
        "rollout",
        "restart",
        "deployment/tulle-controller",
    ];
    test.0.kubectl(&restart);
    test.0.await_deployment("tulle-system", "tulle-controller");
    for _ in 0..5 {
        let said = test.fetch("stranger", "http://web/");
        assert!(said.starts_with("403 denied"), "{said}");
        let said = test.fetch("client", "http://web/admin");
        // A policy of v2 that cannot be read has been seen by now: it lets nobody in.
        assert!(
            said.starts_with("403") || said.contains(r#""name":"v1""#),
            "{said}"
        );
    }

    // Restore the settings for the tests that follow.
    test.0.kubectl(&["delete", "mesh", "mesh"]);
    test.becomes("stranger", "http://web/", "200");
    test.0.kubectl(&[
        "delete",
        "namespace",
        "policies",
        "policies-other",
        "--wait=false",
    ]);
}

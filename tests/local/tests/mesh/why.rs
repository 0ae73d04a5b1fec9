//! Tests the answers of `tulle why` about a mesh that is up: route, policy, split, limits, current state
//! and last failure. Each is brought about in a mesh whose objects change.

use serde_json::Value;
use std::time::Duration;
use tests_local::{
    Client, Demo, Message, PATIENCE, can_redirect, eventually, holds_within, id, pause,
};

const PORT: u16 = 8104;

fn echo(name: &str, service: &str) -> String {
    format!(
        "---\napiVersion: tulle.dev/v1alpha1\nkind: Workload\nmetadata:\n  name: {name}\n\
         spec:\n  service: {service}\n  command: [./bookinfo, echo, --name, {name}]\n\
         \x20 ports:\n    - port: {PORT}\n      appProtocol: http\n"
    )
}

/// The client may read below `/books` of the shop and all of its next version.
fn mesh() -> String {
    let mesh = "apiVersion: tulle.dev/v1alpha1\nkind: Mesh\nmetadata:\n  name: why\nspec: {}\n";
    let client = "---\napiVersion: tulle.dev/v1alpha1\nkind: Workload\nmetadata:\n  name: client\n\
                  spec:\n  command: [sleep, infinity]\n";
    let policies = r#"---
apiVersion: tulle.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: readers}
spec:
  targetRefs: [{name: shop}]
  rules:
    - from: {serviceAccounts: [client]}
      to: {paths: [{type: PathPrefix, value: /books}, {type: PathPrefix, value: /status}]}
---
apiVersion: tulle.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: testers}
spec:
  targetRefs: [{name: next}]
  rules:
    - from: {serviceAccounts: [client]}
"#;
    let (shop, next) = (echo("shop", "shop"), echo("next", "next"));
    [mesh, client, &shop, &next, policies].concat()
}

/// Answers of `tulle why client shop …`, in words and as JSON.
struct Why {
    code: i32,
    words: String,
    json: Value,
}

struct Mesh(Demo);

impl Mesh {
    fn apply(&self, text: &str) {
        self.0.apply(&self.0.write("object.yaml", text));
    }

    fn traffic(&self, spec: &str) {
        self.apply(&format!(
            "apiVersion: tulle.dev/v1alpha1\nkind: TrafficPolicy\nmetadata: {{name: shop}}\n\
             spec: {{targetRefs: [{{name: shop}}], {spec}}}\n"
        ));
    }

    fn get(&self, target: &str) -> Message {
        let to = (self.0.address("shop", true, false), PORT).into();
        self.0
            .inside("client", true, || Client::connect(to).get(target))
    }

    fn why(&self, more: &[&str]) -> Why {
        let ask = |format: &[&str]| {
            let args = [&["why", "client", "shop"], more, format].concat();
            self.0.tulle(&args)
        };
        let (words, json) = (ask(&[]), ask(&["-o", "json"]));
        assert_eq!(words.code, json.code, "{words:?}");
        let parsed = serde_json::from_str(&json.out);
        Why {
            code: words.code,
            words: words.out,
            json: parsed.unwrap_or_else(|e| panic!("{e}: {json:?}")),
        }
    }

    /// Waits until it says all of this.
    fn says(&self, more: &[&str], parts: &[&str]) -> Why {
        let mut why = self.why(more);
        let said = holds_within(PATIENCE, "why says it", || {
            let all = parts.iter().all(|part| why.words.contains(part));
            if !all {
                why = self.why(more);
            }
            all
        });
        assert!(said, "not all of {parts:?} in {}", why.words);
        why
    }
}

#[test]
fn why_tells_what_the_proxies_do() {
    if !can_redirect() {
        return;
    }
    let mesh = Mesh(Demo::start(|_| self::mesh()));
    policy(&mesh);
    route(&mesh);
    split(&mesh);
    rate_limit(&mesh);
    request_limit_and_timeout(&mesh);
    open_circuit(&mesh);
    ejection(&mesh);
    missing_port(&mesh);
    denied_backend(&mesh);
}

fn policy(mesh: &Mesh) {
    assert_eq!(mesh.get("/books/1").status(), 200);
    let why = mesh.says(
        &["/books/1"],
        &[
            "√ allowed",
            "AuthorizationPolicy/readers",
            &id("client"),
            "none remembered",
        ],
    );
    assert_eq!((why.code, &why.json["last_error"]), (0, &Value::Null));
    let refused = mesh.get("/admin");
    assert_eq!(refused.header("x-tulle-reason"), "denied");
    let why = mesh.says(
        &["/admin"],
        &[
            "× denied",
            "403 denied",
            "/admin",
            "told by the proxy of shop",
        ],
    );
    assert_eq!(why.code, 1);
    assert_eq!(why.json["allowed"], false);
    assert_eq!(
        why.json["considered"][0]["policy"],
        "AuthorizationPolicy/readers"
    );
}

fn route(mesh: &Mesh) {
    mesh.apply(
        r#"
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: shop}
spec:
  parentRefs: [{group: "", kind: Service, name: shop}]
  rules:
    - name: fresh
      matches: [{path: {value: /books/new}}]
      backendRefs: [{name: next, port: 8104}]
      timeouts: {request: 3s}
    - name: rest
      backendRefs: [{name: shop, port: 8104}]
"#,
    );
    let answered = |target: &str| mesh.get(target).text();
    eventually("the route is followed", || {
        answered("/books/new").contains("\"next\"")
    });
    assert!(answered("/books/old").contains("\"shop\""));
    mesh.says(
        &["/books/new/1"],
        &[
            "HTTPRoute/shop rules[0] (fresh)",
            "3s (route)",
            "AuthorizationPolicy/testers",
        ],
    );
    mesh.says(
        &["/books/old"],
        &[
            "HTTPRoute/shop rules[1] (rest)",
            "15s (Mesh)",
            "AuthorizationPolicy/readers",
        ],
    );
    assert_eq!(mesh.0.tulle(&["delete", "httproute", "shop"]).code, 0);
}

fn split(mesh: &Mesh) {
    mesh.apply(
        "apiVersion: split.smi-spec.io/v1alpha4\nkind: TrafficSplit\nmetadata: {name: shop}\n\
         spec:\n  service: shop\n  backends:\n  - {service: shop, weight: 1}\n  - {service: next, weight: 3}\n",
    );
    eventually("some go to the next", || {
        mesh.get("/books").text().contains("\"next\"")
    });
    let why = mesh.says(&["/books"], &["shop:8104 25.0%, next:8104 75.0%"]);
    assert_eq!(why.json["split"][1], "next:8104 75.0%");
    assert_eq!(mesh.0.tulle(&["delete", "trafficsplit", "shop"]).code, 0);
}

fn rate_limit(mesh: &Mesh) {
    mesh.apply(
        "apiVersion: tulle.dev/v1alpha1\nkind: RateLimit\nmetadata: {name: shop}\n\
         spec: {targetRefs: [{name: shop}], requests: {count: 2, per: 1h}}\n",
    );
    eventually("it is too much", || {
        mesh.get("/books").header("x-tulle-reason") == "rate_limited"
    });
    let why = mesh.says(
        &["/books"],
        &[
            "√ allowed",
            "RateLimit/shop: 2 in 3600s",
            "429 rate_limited",
        ],
    );
    assert_eq!(why.json["last_error"]["error"]["reason"], "rate_limited");
    assert_eq!(why.json["last_error"]["told_by"], "shop");
    assert_eq!(mesh.0.tulle(&["delete", "ratelimit", "shop"]).code, 0);
    eventually("it is no longer", || mesh.get("/books").status() == 200);
}

fn request_limit_and_timeout(mesh: &Mesh) {
    mesh.traffic(
        "connections: {maxRequests: 7}, timeouts: {request: 4s}, \
         retry: {attempts: 2, codes: [503], perTryTimeout: 1s}",
    );
    mesh.says(
        &["/books"],
        &[
            "TrafficPolicy/shop: at most 7 requests at a time",
            "4s (TrafficPolicy/shop)",
            "2 more on 503, each try 1s (TrafficPolicy/shop)",
        ],
    );
}

fn open_circuit(mesh: &Mesh) {
    mesh.traffic("circuitBreaker: {minRequests: 2, errors: {amount: 2}, openFor: 1h}");
    eventually("the circuit opens", || {
        mesh.get("/status/500").header("x-tulle-reason") == "circuit_open"
    });
    let why = mesh.says(
        &["/books"],
        &[
            "circuit opens for 3600s at 2 errors of the last 30s",
            "circuit of shop is open",
            "circuit_open",
        ],
    );
    assert_eq!(why.json["now"][0], "circuit of shop is open");
}

fn ejection(mesh: &Mesh) {
    mesh.traffic("outlierDetection: {consecutiveFailures: 2, baseEjectionTime: 1h}");
    mesh.says(&["/books"], &["left out after 2 failures in a row"]);
    assert_eq!(mesh.0.tulle(&["delete", "trafficpolicy", "shop"]).code, 0);
}

fn missing_port(mesh: &Mesh) {
    let backends = "backendRefs: [{name: next, port: 8105}]";
    mesh.apply(&shop_route("lost", backends));
    eventually("the backend is missing", || {
        mesh.get("/books").header("x-tulle-reason") == "no_backend"
    });
    let why = "what both sides tell within a second is one failure, and the service has just refused another";
    pause(why, Duration::from_millis(1100));
    assert_eq!(mesh.get("/books").status(), 500);
    let why = mesh.says(
        &["/books"],
        &[
            "HTTPRoute/lost: service next has no port 8105: answered with 500 (no_backend)",
            "500 no_backend",
        ],
    );
    assert_eq!(why.code, 1);
    // A second one loses, and is named.
    let other = "backendRefs: [{name: shop, port: 8104}]";
    mesh.apply(&shop_route("zero", other));
    mesh.says(
        &["/books"],
        &["HTTPRoute/zero rules[0] matches as well and comes later"],
    );
    for route in ["lost", "zero"] {
        assert_eq!(mesh.0.tulle(&["delete", "httproute", route]).code, 0);
    }
}

fn shop_route(name: &str, backends: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: {name}}}\n\
         spec:\n  parentRefs: [{{group: \"\", kind: Service, name: shop}}]\n  rules:\n    - {backends}\n"
    )
}

/// Nobody may call the next version any more, and only its own proxy knows why.
fn denied_backend(mesh: &Mesh) {
    let next = mesh.0.write(
        "next.yaml",
        &shop_route("next", "backendRefs: [{name: next, port: 8104}]"),
    );
    let dry = || {
        mesh.0
            .tulle(&["apply", "--dry-run", next.to_str().unwrap()])
    };
    assert_eq!(dry().code, 0, "{:?}", dry());
    let testers = &["delete", "authorizationpolicy", "testers"];
    assert_eq!(mesh.0.tulle(testers).code, 0);
    let dry = dry();
    let place = "TL0050: HTTPRoute/next: spec.rules[0].backendRefs[0]";
    assert!(dry.code == 79 && dry.out.contains(place), "{dry:?}");
    mesh.apply(
        "apiVersion: split.smi-spec.io/v1alpha4\nkind: TrafficSplit\nmetadata: {name: shop}\n\
         spec:\n  service: shop\n  backends:\n  - {service: shop, weight: 1}\n  - {service: next, weight: 1}\n",
    );
    eventually("the next version denies", || {
        mesh.get("/books").header("x-tulle-reason") == "denied"
    });
    let why = mesh.says(
        &["/books"],
        &[
            "backend next:8104: no policy is about it: denied with 403",
            "403 denied",
            "told by the proxy of next",
        ],
    );
    assert_eq!(why.code, 1);
    let check = mesh.0.tulle(&["check"]);
    let found = "TL0050 TrafficSplit/shop";
    assert!(check.code == 79 && check.out.contains(found), "{check:?}");
}

//! Plugins among the filters of routes: they choose backends, and say what the log and the metrics have of a request.

use crate::plugins::plugin;
use crate::routing::{ask, edge, rule};
use serde_json::{Value, json};
use tests_local::eventually;

/// A route whose rule has backend `a` with all of the weight and `b` with none.
fn canary(source: &str) -> Value {
    let mut rule = rule(json!([]), "a");
    rule["backends"] = json!([
        { "service": "a", "port": 80, "weight": 1 },
        { "service": "b", "port": 80, "weight": 0,
          "filters": [{ "responseHeaders": { "set": [{ "name": "x-way", "value": "b" }] } }] },
    ]);
    rule["filters"] = json!([
        { "plugin": plugin(source) },
        { "responseHeaders": { "set": [{ "name": "x-after", "value": "1" }] } },
    ]);
    json!([{ "name": "r", "rules": [rule] }])
}

#[test]
fn a_plugin_chooses_among_the_backends_of_its_rule() {
    let source = r"
        export function onRequest(request, context) {
            const { path } = request;
            if (path === '/list') return Response.json(context.backends);
            if (path.startsWith('/to/')) context.backend = path.slice(4);
            if (path === '/read') { context.backend = 'b:80'; return Response.json(context.backend); }
        }";
    let edge = edge(canary(source), |config| config);
    for (path, expected) in [
        ("/", "a"),
        ("/to/b", "b"),
        ("/to/a", "a"),
        ("/to/b:80", "b"),
        ("/list", r#"["a:80","b:80"]"#),
        ("/read", r#""b:80""#),
    ] {
        let answer = ask(edge.address, "any", path);
        assert_eq!(answer.text(), expected, "{path}");
        // The filters behind the plugin, and those of the backend, run as if the weights had chosen it.
        assert_eq!(answer.header("x-after"), "1", "{path}");
        let way = if answer.text().starts_with('b') {
            "b"
        } else {
            ""
        };
        assert_eq!(answer.header("x-way"), way, "{path}");
    }
    for path in ["/to/c", "/to/b:81", "/to/", "/to/b.x"] {
        let answer = ask(edge.address, "any", path);
        assert_eq!(answer.header("x-tulle-reason"), "plugin_failed", "{path}");
        let why = "is not among the backends of the route's rule";
        assert!(answer.text().contains(why), "{}", answer.text());
    }
    let labels = ["destination_service_name=\"b\""];
    edge.proxy
        .await_metric("istio_requests_total", &labels, 2.0);
}

#[test]
fn a_rule_without_weights_is_served_where_a_plugin_chooses() {
    let mut routes = canary(
        "export const onRequest = (request, context) => { if (request.path === '/b') context.backend = 'b' }",
    );
    routes[0]["rules"][0]["backends"][0]["weight"] = 0.into();
    let edge = edge(routes, |config| config);
    assert_eq!(ask(edge.address, "any", "/b").text(), "b");
    assert_eq!(
        ask(edge.address, "any", "/").header("x-tulle-reason"),
        "no_backend"
    );
}

#[test]
fn what_a_plugin_says_of_a_request_is_in_the_log_and_in_the_metrics() {
    let source = r"
        export function onRequest(request, context) {
            context.tag('tenant', request.headers.get('host'));
            metrics.count('asked');
            if (request.path === '/answered') return new Response('no', { status: 403 });
            if (request.path === '/bad') context.tag('a b', 1);
        }
        export function onResponse(response, context) {
            context.tag('status', response.status);
            metrics.count('bytes', 5);
        }";
    let edge = edge(canary(source), |config| config.set("/mesh/accessLog", true));
    assert_eq!(ask(edge.address, "red", "/").status(), 200);
    assert_eq!(ask(edge.address, "blue", "/answered").status(), 403);
    assert_eq!(ask(edge.address, "green", "/bad").status(), 500);
    eventually("three lines", || edge.proxy.access_log().len() == 3);
    let lines = edge.proxy.access_log();
    assert_eq!(
        lines[0]["fields"],
        json!({ "tenant": "red", "status": "200" })
    );
    assert_eq!(lines[1]["fields"], json!({ "tenant": "blue" }));
    assert_eq!(lines[2]["fields"], json!({ "tenant": "green" }));
    for (name, count) in [("asked", 3.0), ("bytes", 5.0)] {
        let labels = ["plugin=\"p\"".to_owned(), format!("name=\"{name}\"")];
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        edge.proxy
            .await_metric("tulle_plugin_count_total", &labels, count);
    }
}

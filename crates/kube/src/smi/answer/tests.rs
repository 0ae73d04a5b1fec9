use super::super::path::RESOURCES;
use super::super::scrape_window::tests::{heard, pod};
use super::*;

fn object(plural: &str, namespace: &str, name: &str) -> Object {
    let resource = RESOURCES.iter().find(|r| r.plural == plural).unwrap();
    Object {
        resource,
        namespace: namespace.into(),
        name: name.into(),
    }
}

/// Two pods of web that client calls, and the client; a third pod of web did not answer.
fn shop() -> Window {
    let web = |name: &str| pod(name, "web", "shop");
    let pods = vec![
        web("web-1"),
        web("web-2"),
        web("web-3"),
        pod("client-1", "client", "shop"),
    ];
    let from = Direction::From;
    heard(
        pods,
        &[
            ("web-1", from, Some("shop/client"), "web.shop", 10, 4),
            ("web-2", from, Some("shop/client"), "web.shop", 5, 0),
            ("web-2", from, Some("other/stranger"), "web.shop", 1, 1),
            ("web-2", from, None, "web-old.shop", 2, 0),
            (
                "client-1",
                Direction::To,
                Some("shop/web"),
                "web.shop",
                15,
                4,
            ),
            ("client-1", Direction::To, None, "gone.shop", 3, 3),
            ("client-1", Direction::To, None, "example.org", 1, 0),
        ],
    )
}

fn counts(item: &Value) -> (String, String) {
    let value = |name: &str| {
        let mut all = item["metrics"].as_array().unwrap().iter();
        let found = all.find(|m| m["name"] == name).unwrap();
        found["value"].as_str().unwrap().to_owned()
    };
    (value("success_count"), value("failure_count"))
}

fn strings(success: &str, failure: &str) -> (String, String) {
    (success.to_owned(), failure.to_owned())
}

#[test]
fn a_resource_has_what_its_pods_were_asked() {
    let window = shop();
    let web = received(&object("deployments", "shop", "web"), &window);
    assert_eq!(web["kind"], "TrafficMetrics");
    assert_eq!(web["window"], "30.000s");
    let resource = json!({ "kind": "Deployment", "name": "web", "namespace": "shop" });
    assert_eq!(web["resource"], resource);
    let edge = json!({ "direction": "from", "side": "server", "resource": {} });
    assert_eq!(web["edge"], edge);
    assert_eq!(counts(&web), strings("13", "5"));
    // A third pod did not answer.
    assert_eq!(web["metadata"]["annotations"][UNHEARD], "1");

    for (object, success, failure) in [
        (object("pods", "shop", "web-1"), "6", "4"),
        (object("namespaces", "", "shop"), "13", "5"),
        (object("nodes", "", "n1"), "13", "5"),
        (object("services", "shop", "web"), "11", "5"),
        (object("services", "shop", "web-old"), "2", "0"),
        (object("deployments", "shop", "client"), "0", "0"),
        (object("deployments", "other", "web"), "0", "0"),
    ] {
        let found = received(&object, &window);
        assert_eq!(counts(&found), strings(success, failure), "{object:?}");
    }
    // The client received no calls, so it has no latency.
    let client = received(&object("deployments", "shop", "client"), &window);
    assert_eq!(client["metrics"].as_array().unwrap().len(), 2);
    assert!(client["metadata"].get("annotations").is_none());
}

#[test]
fn edges_name_as_much_as_is_known() {
    let window = shop();
    let peers = Peers {
        pods: window.pods.clone(),
        services: [("shop".to_owned(), "gone".to_owned())].into(),
    };
    let shown = |plural: &str, namespace: &str, name: &str| {
        let object = object(plural, namespace, name);
        let edges = edges(&object, &window, &peers);
        let line = |edge: &Value| {
            let peer = &edge["edge"]["resource"];
            let (success, failure) = counts(edge);
            format!(
                "{} {} {} {} {success} {failure}",
                edge["edge"]["direction"].as_str().unwrap(),
                edge["edge"]["side"].as_str().unwrap(),
                peer["kind"].as_str().unwrap(),
                peer["name"].as_str().unwrap(),
            )
        };
        edges.iter().map(line).collect::<Vec<_>>()
    };
    assert_eq!(
        shown("deployments", "shop", "web"),
        [
            "from server Deployment client 11 4",
            "from server ServiceAccount stranger 0 1",
        ]
    );
    assert_eq!(
        shown("deployments", "shop", "client"),
        [
            "to client Deployment web 11 4",
            "to client Service gone 0 3"
        ]
    );
    // Three pods have that account: which of them it was is not known.
    assert_eq!(
        shown("pods", "shop", "client-1"),
        [
            "to client Service gone 0 3",
            "to client ServiceAccount web 11 4"
        ]
    );
    assert_eq!(
        shown("namespaces", "", "shop"),
        [
            "from server Namespace other 0 1",
            "from server Namespace shop 11 4",
            "to client Namespace shop 11 4",
            "to client Service gone 0 3",
        ]
    );
    assert_eq!(
        shown("services", "shop", "web"),
        [
            "from server ServiceAccount stranger 0 1",
            "from server ServiceAccount client 11 4",
        ]
    );
}

#[test]
fn latencies_are_quantities() {
    assert_eq!(seconds(12.0), "12m");
    assert_eq!(seconds(0.75), "750u");
    assert_eq!(seconds(1500.5), "1500500u");
}

#[test]
fn a_selector_of_equalities_is_shown() {
    let shown = |selector: &str| list(&RESOURCES[1], Some("shop"), Some(selector.into()), vec![]);
    let labels = json!({ "matchLabels": { "app": "web", "tier": "a" } });
    assert_eq!(shown("app=web,tier==a")["selector"], labels);
    for other in ["", "app", "!app", "app!=web", "app in (a)"] {
        assert!(shown(other).get("selector").is_none(), "{other}");
    }
    let resource = json!({ "kind": "Deployment", "namespace": "shop" });
    assert_eq!(shown("")["resource"], resource);
}

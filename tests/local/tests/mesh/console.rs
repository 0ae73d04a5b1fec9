//! The console of a mesh that is up: `tulle dashboard` opens it, and it shows what happens between services.

use serde_json::{Value, json};
use std::net::SocketAddr;
use tests_local::{Client, Demo, Message, RATING, eventually, read_demo};

/// A browser with a session.
struct Browser {
    address: SocketAddr,
    cookie: String,
}

fn request(address: SocketAddr, head: &str, body: &str) -> Message {
    let method = head.split(' ').next().unwrap();
    let length = match body.len() {
        0 => String::new(),
        length => format!("content-length: {length}\r\ncontent-type: application/json\r\n"),
    };
    let mut client = Client::connect(address);
    client.send(format!(
        "{head}host: {address}\r\norigin: http://{address}\r\n{length}\r\n{body}"
    ));
    client.response(method)
}

fn parsed(message: &Message) -> Value {
    serde_json::from_str(&message.text()).unwrap_or_else(|e| panic!("{e}: {}", message.text()))
}

impl Browser {
    /// Opens the URL that the command prints.
    fn open(demo: &Demo) -> Self {
        let printed = demo.tulle(&["dashboard", "--print-url", "-o", "json"]);
        assert_eq!(printed.code, 0, "{printed:?}");
        let told: Value = serde_json::from_str(&printed.out).unwrap();
        assert_eq!(told["ttl_seconds"], 60, "{told}");
        let url = told["url"].as_str().unwrap();
        let (page, code) = url.split_once("#code=").unwrap();
        assert_eq!(demo.status()["controller"]["dashboard"], page);
        let address = page.trim_start_matches("http://").trim_end_matches('/');
        let address: SocketAddr = address.parse().unwrap();

        let page = request(address, "GET / HTTP/1.1\r\n", "");
        assert_eq!(page.status(), 200);
        assert!(page.text().contains("<title>"), "{}", page.text());
        let body = json!({ "code": code }).to_string();
        let open = || request(address, "POST /api/v1/session HTTP/1.1\r\n", &body);
        let opened = open();
        assert_eq!(opened.status(), 200, "{}", opened.text());
        let cookie = opened.all("set-cookie")[0].split(';').next().unwrap();
        assert_eq!(open().status(), 401, "a code opens one session");
        Self {
            address,
            cookie: cookie.to_owned(),
        }
    }

    fn get(&self, path: &str) -> Value {
        let head = format!("GET /api/v1/{path} HTTP/1.1\r\ncookie: {}\r\n", self.cookie);
        let answer = request(self.address, &head, "");
        assert_eq!(answer.status(), 200, "{path}: {}", answer.text());
        parsed(&answer)
    }

    /// An edge of the graph, if it is there.
    fn edge(&self, source: &str, destination: &str) -> Option<Value> {
        let graph = self.get("graph?window=60");
        let edges = graph["edges"].as_array().unwrap();
        let id = format!("service/{source}>service/{destination}");
        edges.iter().find(|edge| edge["id"] == id.as_str()).cloned()
    }
}

#[test]
fn the_console_shows_who_calls_whom_and_why_somebody_may_not() {
    let demo = Demo::prepare(true, |text| text);
    demo.up_with(&["--console", "127.0.0.1:0"]);
    let status = demo.tulle(&["status"]);
    assert!(
        status.out.contains("`tulle dashboard` opens a session"),
        "{status:?}"
    );
    let plain = demo.tulle(&["dashboard", "--print-url"]);
    assert!(plain.out.starts_with("http://127.0.0.1:"), "{plain:?}");
    assert_eq!(plain.out.lines().count(), 1, "{plain:?}");
    // There is no screen here.
    let words = demo.tulle(&["dashboard", "--no-open"]);
    assert!(
        words.out.contains("within 60 s: http://127.0.0.1:"),
        "{words:?}"
    );

    let browser = Browser::open(&demo);
    let session = browser.get("session");
    assert_eq!(session["actions"], false, "{session}");
    assert_eq!(session["mesh"]["platform"], "host", "{session}");
    calls_are_seen(&demo, &browser);
    refusals_are_explained(&demo, &browser);
}

fn calls_are_seen(demo: &Demo, browser: &Browser) {
    let mut edge = Value::Null;
    eventually("the graph shows productpage calling reviews", || {
        assert_eq!(demo.get("/productpage").status(), 200);
        edge = browser.edge("productpage", "reviews").unwrap_or_default();
        edge["rate"].as_f64().is_some_and(|rate| rate > 0.0)
    });
    assert_eq!(edge["mtls"], "all", "{edge}");
    assert_eq!(edge["success"], 1.0, "{edge}");
    let graph = browser.get("graph");
    let coverage = &graph["coverage"];
    assert_eq!(coverage["proxies"], coverage["reporting"], "{coverage}");
    let nodes = graph["nodes"].as_array().unwrap();
    assert!(
        nodes.iter().any(|n| n["id"] == "service/reviews"),
        "{graph}"
    );
    let services = browser.get("services");
    let services = services["services"].as_array().unwrap();
    assert!(
        services.iter().any(|s| s["name"] == "reviews"),
        "{services:?}"
    );
}

fn refusals_are_explained(demo: &Demo, browser: &Browser) {
    demo.apply(&demo.write("deny.yaml", &read_demo("deny-ratings.yaml")));
    let target = format!("/bookinfo-ratings/ratings/{RATING}");
    let mut edge = Value::Null;
    eventually("the graph shows that gateway is denied", || {
        demo.get(&target);
        edge = browser.edge("gateway", "ratings").unwrap_or_default();
        edge["denied"].as_f64().is_some_and(|rate| rate > 0.0)
    });
    let code = edge["reasons"][0]["code"].as_str().unwrap();
    let page = browser.get("edge?id=service%2Fgateway%3Eservice%2Fratings&window=60");
    let errors = page["errors"].as_array().unwrap();
    let sample = errors.iter().find(|sample| sample["reason"] == code);
    let sample = sample.unwrap_or_else(|| panic!("{page}"));
    assert_eq!(sample["status"], 403, "{sample}");
    for text in ["cause", "fix", "doc"] {
        assert!(!sample[text].as_str().unwrap().is_empty(), "{sample}");
    }
    assert_eq!(page["why"]["allowed"], false, "{page}");
    let marks = browser.get("marks");
    let marks = marks["marks"].as_array().unwrap();
    assert!(
        marks
            .iter()
            .any(|mark| mark["what"] == "TrafficTarget ratings"),
        "{marks:?}"
    );
}

#[test]
fn a_mesh_may_have_no_console() {
    let demo = Demo::prepare(true, |text| text);
    demo.up_with(&["--console", "off"]);
    let refused = demo.tulle(&["dashboard"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.err.contains("--console off"), "{refused:?}");
    assert_eq!(demo.status()["controller"]["dashboard"], Value::Null);
    let other = demo.tulle(&["dashboard", "grafana"]);
    assert_eq!(other.code, 64, "{other:?}");
    assert!(other.err.contains("metrics/targets.json"), "{other:?}");
    for options in [["--console", "0.0.0.0:15012"], ["--console", "15012"]] {
        let answer = demo.tulle(&[&["up"][..], &options].concat());
        assert_eq!(answer.code, 64, "{answer:?}");
    }
}

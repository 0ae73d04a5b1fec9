//! A gateway is ready when it knows what it serves and whom it asks, not before.

use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use tests_local::{Client, Demo, Message, RATING, eventually, free_port, program};

/// Killed with the value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_port()).into()
}

fn get(address: SocketAddr, target: &str) -> Option<Message> {
    let mut client = Client::try_connect(address).ok()?;
    client
        .try_send(format!(
            "GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        ))
        .ok()?;
    client.try_response("GET").ok()
}

#[test]
fn a_gateway_that_does_not_exist_yet_is_not_ready() {
    let demo = Demo::start_without_privileges(|text| {
        text.replace(
            "  permissiveMode: false",
            "  permissiveMode: true\n  accessLog: true",
        )
    });
    let made = demo.tulle(&["token", "create", "svc/late", "-o", "json"]);
    let made: Value = serde_json::from_str(&made.out).unwrap_or_else(|e| panic!("{e}: {made:?}"));
    let token = demo.write("late.token", made["token"].as_str().unwrap());
    let (admin, listener) = (address(), address());
    let config = json!({
        "identity": made["spiffe_id"],
        "workers": 1,
        "admin": admin.to_string(),
        "metrics": address().to_string(),
        "control": {
            "address": made["controller"],
            "caFingerprint": made["ca_fingerprint"],
            "joinTokenFile": token,
        },
        "listeners": [{
            "address": listener.to_string(), "kind": "gateway", "gateway": "late", "port": 18080,
        }],
    });
    let file = demo.write("late.yaml", &config.to_string());
    let child = Command::new(program("tulle-proxy"))
        .arg("--config")
        .arg(file)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _running = Running(child.unwrap());
    eventually("the controller has answered what there is", || {
        let page = get(admin, "/config").map(|page| page.text());
        let page: Value = serde_json::from_str(&page.unwrap_or_default()).unwrap_or_default();
        page["mesh"]["accessLog"] == true
    });
    let answer = get(admin, "/ready").unwrap();
    assert_eq!(answer.status(), 503, "{}", answer.text());
    assert!(answer.text().contains("Gateway/late"), "{}", answer.text());

    let port = free_port();
    let gateway = demo.write(
        "gateway.yaml",
        &format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: late}}\n\
             spec: {{listeners: [{{name: a, port: 18080, protocol: HTTP}}, \
             {{name: b, port: {port}, protocol: HTTP}}]}}\n---\n\
             apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: late}}\n\
             spec: {{parentRefs: [{{name: late}}], rules: [{{backendRefs: [{{name: ratings, port: 8101}}]}}]}}\n"
        ),
    );
    demo.apply(&gateway);
    eventually("it is ready", || {
        get(admin, "/ready").is_some_and(|r| r.status() == 200)
    });
    let answer = get(listener, &format!("/ratings/{RATING}")).unwrap();
    assert_eq!(answer.status(), 200, "{}", answer.text());
}

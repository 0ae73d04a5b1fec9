//! A Workload that names the address of something already running: a sidecar before it, reached
//! by others over mutual TLS, its state shown. In both modes, with a server that the test starts.

use serde_json::Value;
use std::process::{Child, Command, Stdio};
use tests_local::{Demo, RATING, can_redirect, eventually, free_port};

/// The demo, with `ratings` at an address instead of with a command.
fn at_address(text: &str, port: u16) -> String {
    let documents = text.split("---\n").map(|document| {
        if document.contains("kind: Workload\nmetadata:\n  name: ratings\n") {
            format!(
                "apiVersion: tulle.dev/v1alpha1\nkind: Workload\nmetadata:\n  name: ratings\nspec:\n  \
                 address: 127.0.0.1\n  \
                 ports: [{{name: http, port: 8101, targetPort: {port}, appProtocol: http}}]\n  \
                 readinessProbe: {{httpGet: {{path: /health, port: 8101}}, failureThreshold: 2}}\n"
            )
        } else {
            document.to_owned()
        }
    });
    documents.collect::<Vec<_>>().join("---\n")
}

/// A process that already runs. It is killed with the value.
struct Running(Child);

impl Running {
    fn start(demo: &Demo, port: u16) -> Self {
        let mut command = Command::new(demo.path().join("bookinfo"));
        command
            .args(["ratings", "--port", &port.to_string()])
            .env("RATINGS_DATABASE", demo.path().join("own.redb"))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn workload(status: &Value) -> Value {
    let services = status["services"].as_array().unwrap();
    let ratings = services.iter().find(|s| s["name"] == "ratings").unwrap();
    ratings["workloads"][0].clone()
}

fn serves_and_tells(demo: &Demo, port: u16) {
    let running = Running::start(demo, port);
    demo.up();
    let path = format!("/ratings/{RATING}");
    for path in [&path, &format!("/bookinfo-ratings{path}"), "/productpage"] {
        assert_eq!(demo.get(path).status(), 200, "{path}");
    }
    let status = demo.status();
    let found = workload(&status);
    assert_eq!(found["ready"], true);
    // It is not the mesh's process, so nothing is said of one.
    assert_eq!(
        (&found["pid"], &found["state"]),
        (&Value::Null, &Value::Null)
    );
    for from in ["ingress", "gateway", "reviews"] {
        let edge = demo.await_edge(from, "ratings");
        assert_eq!(edge["security"], "mutual_tls");
    }

    drop(running);
    eventually("it is seen to be down", || {
        workload(&demo.status())["ready"] == false
    });
    let answer = demo.get(&path);
    assert_eq!(answer.status(), 503);
    // The connection is refused at first; soon no request is sent there any more.
    let reasons = ["connect_failed", "no_endpoint"];
    let reason = answer.header("x-tulle-reason");
    assert!(reasons.contains(&reason), "{reason}");
    let address = format!("127.0.0.1:{port}");
    let message = workload(&demo.status())["message"].to_string();
    assert!(message.contains(&address), "{message}");
    eventually("it is asked whether it runs", || {
        let check = demo.tulle(&["check"]);
        check.code == 79
            && check.out.contains("is it running at 127.0.0.1?")
            && check
                .out
                .contains("TL0033 service ratings: none of its workloads is ready")
    });
    eventually("why says that nobody is there", || {
        let why = demo.tulle(&["why", "ingress", "ratings", &path]);
        why.out
            .contains("no workload of the destination is ready (TL0033)")
    });
    let why = demo.tulle(&["why", "ingress", "ratings", &path, "-o", "json"]);
    assert_eq!(why.code, 0, "allowed it is: {why:?}");
    let why: Value = serde_json::from_str(&why.out).unwrap();
    assert!(why["not_ready"][0].to_string().contains(&address), "{why}");
    let last = why["last_error"]["error"]["reason"].as_str();
    assert!(last.is_some_and(|r| reasons.contains(&r)), "{why}");

    let _again = Running::start(demo, port);
    eventually("it answers again", || {
        workload(&demo.status())["ready"] == true
    });
    eventually("and serves", || demo.get(&path).status() == 200);
    assert_eq!(demo.tulle(&["down"]).code, 0);
}

#[test]
fn what_already_runs_has_a_sidecar_on_loopback() {
    let port = free_port();
    let demo = Demo::prepare_without_privileges(|text| at_address(&text, port));
    serves_and_tells(&demo, port);
}

#[test]
fn what_already_runs_on_the_host_is_reached_from_namespaces() {
    if !can_redirect() {
        return;
    }
    let port = free_port();
    let demo = Demo::prepare(false, |text| at_address(&text, port));
    serves_and_tells(&demo, port);
}

//! Two hosts of one mesh, here two directories of one host: with a token and the fingerprint of
//! the authority the second runs workloads of its own, and traffic goes both ways over mutual TLS.

use serde_json::Value;
use std::process::{Child, Command, Stdio};
use tests_local::{Answer, Demo, RATING, eventually};

/// Workloads that run on the second host.
const ELSEWHERE: [&str; 2] = ["ratings", "gateway"];

pub(crate) fn is_elsewhere(document: &str) -> bool {
    ELSEWHERE
        .iter()
        .any(|name| document.contains(&format!("kind: Workload\nmetadata:\n  name: {name}\n")))
}

pub(crate) fn only(text: &str, keep: impl Fn(&str) -> bool) -> String {
    let documents = text.split("---\n").filter(|d| keep(d));
    documents.collect::<Vec<_>>().join("---\n")
}

pub(crate) fn token(host: &Demo) -> Value {
    let answer = host.tulle(&["token", "create", "node/edge", "-o", "json"]);
    serde_json::from_str(&answer.out).unwrap_or_else(|e| panic!("{e}: {answer:?}"))
}

pub(crate) fn join(host: &Demo, made: &Value) -> Command {
    let mut command = host.command();
    command
        .args(["join", "--controller", made["controller"].as_str().unwrap()])
        .args(["--ca-fingerprint", made["ca_fingerprint"].as_str().unwrap()])
        .arg(&host.manifest)
        .env("TULLE_TOKEN", made["token"].as_str().unwrap())
        .stdin(Stdio::null());
    command
}

pub(crate) fn said(command: &mut Command) -> Answer {
    let output = command.output().unwrap();
    Answer {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

pub(crate) fn terminate(child: &mut Child) -> i32 {
    let kill = Command::new("kill")
        .args(["-TERM", &child.id().to_string()])
        .status();
    assert!(kill.unwrap().success());
    child.wait().unwrap().code().unwrap_or(-1)
}

#[test]
fn workloads_of_another_host_are_called_and_call() {
    let one = Demo::prepare_without_privileges(|text| only(&text, |d| !is_elsewhere(d)));
    one.up();
    let two = Demo::prepare_without_privileges(|text| only(&text, is_elsewhere));
    let rating = format!("/ratings/{RATING}");
    assert!(one.get(&rating).status() >= 500, "nobody serves it yet");

    let made = token(&one);
    let mut joined = join(&two, &made).stdout(Stdio::null()).spawn().unwrap();
    eventually("the other host's workloads answer", || {
        two.tulle(&["status", "-o", "json"])
            .out
            .contains(r#""phase": "running""#)
    });
    // gateway is there and asks reviews, which is here and asks ratings, which is there.
    let reviews = "/bookinfo-reviews/reviews/a071c269-369c-4f79-be03-6a41f27d6b5f";
    for path in [
        &rating,
        &format!("/bookinfo-ratings{rating}"),
        "/productpage",
        reviews,
    ] {
        one.await_answer(path);
    }
    for (host, from, to) in [
        (&one, "ingress", "ratings"),
        (&one, "reviews", "ratings"),
        (&one, "gateway", "reviews"),
        (&two, "ingress", "ratings"),
        (&two, "reviews", "ratings"),
        (&two, "gateway", "ratings"),
    ] {
        let edge = host.await_edge(from, to);
        assert_eq!(edge["security"], "mutual_tls");
    }
    let status = two.status();
    assert_eq!(status["mesh"]["node"], "edge");
    assert_eq!(status["controller"]["address"], made["controller"]);
    assert_eq!(two.tulle(&["check"]).code, 0, "{:?}", two.tulle(&["check"]));
    // The controller's host has a workload of the other restarted, and a gateway of its own.
    let before = two.application("ratings");
    let restarted = one.tulle(&["restart", "ratings"]);
    assert_eq!(
        restarted.out, "workload/ratings is restarted by host edge\n",
        "{restarted:?}"
    );
    eventually("the other host has restarted it", || {
        two.application_now("ratings")
            .is_some_and(|now| now != before)
    });
    one.await_answer(&rating);
    let before = one.sidecar("gateway.ingress");
    let restarted = one.tulle(&["restart", "ingress"]);
    assert_eq!(
        restarted.out, "gateway/ingress restarted\n",
        "{restarted:?}"
    );
    assert_ne!(one.sidecar("gateway.ingress"), before);
    assert_eq!(one.get("/productpage").status(), 200);
    // The stored object names its host.
    let stored = one.tulle(&["get", "workload", "ratings", "-o", "yaml"]).out;
    assert!(stored.contains("tulle.dev/node: edge"), "{stored}");

    assert_eq!(terminate(&mut joined), 0);
    assert_eq!(two.left(), Vec::<String>::new());
    assert_eq!(
        one.tulle(&["get", "workload", "ratings"]).code,
        1,
        "it took its workloads along"
    );
    eventually("nobody serves it any more", || {
        one.get(&rating).status() >= 500
    });
    assert_eq!(one.get("/productpage").status(), 200, "the rest goes on");

    // A token is spent, which is no use without an identity; another lets the same host in again, from a
    // file.
    std::fs::remove_file(two.path().join("state/host-identity.pem")).unwrap();
    let again = said(&mut join(&two, &made));
    assert_eq!(again.code, 1, "{again:?}");
    for part in ["used before", "tulle token create"] {
        assert!(again.err.contains(part), "{part}: {again:?}");
    }
    let file = two.write("token", token(&one)["token"].as_str().unwrap());
    let mut command = join(&two, &made);
    command
        .env_remove("TULLE_TOKEN")
        .arg("--token-file")
        .arg(file)
        .args(["--for", "1s"]);
    let timed = said(&mut command);
    assert_eq!(timed.code, 0, "{timed:?}");
    assert!(
        timed
            .err
            .contains("joined as spiffe://tulle.local/node/edge"),
        "{timed:?}"
    );
    assert!(
        timed.err.contains("nothing is left of it here"),
        "{timed:?}"
    );
    assert_eq!(two.left(), Vec::<String>::new());
}

#[test]
fn whoever_is_not_the_right_controller_gets_no_token() {
    let workload = "apiVersion: tulle.dev/v1alpha1\nkind: Workload\nmetadata: {name: a}\nspec: {command: [sleep, '9']}\n";
    let one = Demo::prepare_without_privileges(|_| workload.replace("name: a", "name: b"));
    one.up();
    let two = Demo::prepare_without_privileges(|_| workload.into());
    let made = token(&one);
    let refused = |change: &dyn Fn(&mut Value), code: i32, parts: &[&str]| {
        let mut changed = made.clone();
        change(&mut changed);
        let answer = said(&mut join(&two, &changed));
        assert_eq!(answer.code, code, "{answer:?}");
        for part in parts {
            assert!(answer.err.contains(part), "{part}: {answer:?}");
        }
        assert_eq!(two.left(), Vec::<String>::new());
    };
    let zeros = "0".repeat(64);
    refused(
        &|m| m["ca_fingerprint"] = zeros.clone().into(),
        1,
        &["belongs to another mesh", "--ca-fingerprint"],
    );
    refused(
        &|m| m["ca_fingerprint"] = "abc".into(),
        64,
        &["64 hexadecimal digits"],
    );
    let free = format!("127.0.0.1:{}", tests_local::free_port());
    refused(
        &|m| m["controller"] = free.clone().into(),
        1,
        &["cannot reach", &free],
    );
    refused(
        &|m| m["controller"] = "127.0.0.1".into(),
        64,
        &["HOST:PORT"],
    );
    refused(&|m| m["token"] = "nonsense".into(), 1, &["token"]);
    // None of these spent the token, which was never told to a wrong controller.
    let mut command = join(&two, &made);
    let timed = said(command.args(["--for", "1s"]));
    assert_eq!(timed.code, 0, "{timed:?}");

    // A token for a service lets no host in.
    let answer = one.tulle(&["token", "create", "svc/a", "-o", "json"]);
    let service: Value = serde_json::from_str(&answer.out).unwrap();
    let answer = said(&mut join(&two, &service));
    assert!(answer.err.contains("not for a host"), "{answer:?}");
}

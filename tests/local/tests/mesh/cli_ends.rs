//! Every way in which a mesh ends or does not begin: nothing of it is left.

use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;
use tests_local::{Demo, eventually, free_port, is_root, pause};

const UP: [&str; 3] = ["--loopback", "--listen", "127.0.0.1:0"];

fn up(demo: &Demo, more: &[&str]) -> Command {
    let mut command = demo.interruptible();
    command.arg("up").arg(&demo.manifest).args(more);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn signal(child: &Child, signal: &str) {
    let pid = child.id().to_string();
    let status = Command::new("kill").args([signal, &pid]).status();
    assert!(status.unwrap().success());
}

fn text(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let code = output.status.code().unwrap_or(-1);
    (code, text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_taken_port_is_named_and_nothing_is_started() {
    let demo = Demo::prepare_without_privileges(|text| text);
    let taken = TcpListener::bind(demo.ingress).unwrap();
    for detach in [&[][..], &["--detach"]] {
        let (code, _, said) = text(&up(&demo, &[&UP, detach].concat()).output().unwrap());
        assert_eq!(code, 1, "{said}");
        for part in [
            "Gateway/ingress",
            &demo.ingress.to_string(),
            "another process",
            "what to do",
        ] {
            assert!(said.contains(part), "{part} in {said}");
        }
        assert_eq!(demo.left(), Vec::<String>::new());
        assert_eq!(demo.tulle(&["status"]).code, 1);
    }
    drop(taken);
    demo.up();
    assert_eq!(demo.get("/productpage").status(), 200);
}

#[test]
fn a_taken_port_of_an_application_is_not_taken_for_the_application() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let demo = Demo::prepare_without_privileges(|_| workload(port));
    let (code, _, said) = text(&up(&demo, &UP).output().unwrap());
    assert_eq!(code, 1, "{said}");
    assert!(
        said.contains("Workload/app") && said.contains(&port.to_string()),
        "{said}"
    );
    assert_eq!(demo.left(), Vec::<String>::new());
}

#[test]
fn a_taken_controller_port_is_named_and_nothing_is_left() {
    let demo = Demo::prepare_without_privileges(|_| workload(free_port()));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, _, said) = text(
        &up(&demo, &["--loopback", "--listen", &address])
            .output()
            .unwrap(),
    );
    assert_eq!(code, 1, "{said}");
    assert!(said.contains(&address), "{said}");
    assert_eq!(demo.left(), Vec::<String>::new());
}

fn workload(port: u16) -> String {
    format!(
        "apiVersion: tulle.dev/v1alpha1\nkind: Workload\nmetadata: {{name: app}}\nspec:\n  \
         command: [sleep, '1000']\n  ports: [{{port: {port}}}]\n"
    )
}

/// Interrupts at many moments, so that every step of the start is met.
#[test]
fn an_interrupt_while_it_starts_leaves_nothing() {
    for delay in [30, 60, 120, 200, 350] {
        let demo = Demo::prepare_without_privileges(|text| text);
        let child = up(&demo, &UP).spawn().unwrap();
        pause("until a step of the start", Duration::from_millis(delay));
        signal(&child, "-INT");
        let (code, out, said) = text(&child.wait_with_output().unwrap());
        // The signal may end the program before its first line runs.
        assert!(
            code == 0 || (code == -1 && out.is_empty()),
            "{delay}: {code} {out} {said}"
        );
        assert_eq!(demo.left(), Vec::<String>::new(), "{delay}: {out}");
    }
}

#[test]
fn an_interrupt_while_it_starts_in_namespaces_leaves_nothing() {
    if !is_root() {
        return;
    }
    for delay in [100, 300, 700] {
        let demo = Demo::prepare(false, |text| text);
        let child = up(&demo, &[]).spawn().unwrap();
        pause("until a step of the start", Duration::from_millis(delay));
        signal(&child, "-INT");
        let (code, out, said) = text(&child.wait_with_output().unwrap());
        assert!(code == 0 || code == -1, "{delay}: {code} {out} {said}");
        demo.await_nothing_left();
    }
}

#[test]
fn an_interrupted_detach_ends_what_it_started() {
    // Never ready, so that the command waits.
    let demo = Demo::prepare_without_privileges(|_| workload(free_port()));
    let child = up(&demo, &[&UP[..], &["--detach"]].concat())
        .spawn()
        .unwrap();
    eventually("the application runs", || {
        demo.left().iter().any(|l| l.contains("tulle-proxy"))
    });
    signal(&child, "-INT");
    let (code, _, said) = text(&child.wait_with_output().unwrap());
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("interrupted"), "{said}");
    assert_eq!(demo.left(), Vec::<String>::new());
}

/// One signal lets requests end, and an application that ignores it has 10 s; another does not.
#[test]
fn a_second_signal_does_not_wait() {
    let port = free_port();
    let demo = Demo::prepare_without_privileges(|_| {
        workload(port).replace(
            "[sleep, '1000']",
            "[sh, -c, \"trap '' TERM; echo here; sleep 999\"]",
        )
    });
    let child = up(&demo, &UP).spawn().unwrap();
    eventually("it ignores the signal", || {
        demo.tulle(&["logs", "app"]).out.contains("here")
    });
    signal(&child, "-INT");
    let stopping = || {
        demo.tulle(&["status", "-o", "json"])
            .out
            .contains("stopping")
    };
    eventually("it is stopping", stopping);
    signal(&child, "-INT");
    let start = std::time::Instant::now();
    let (code, _, said) = text(&child.wait_with_output().unwrap());
    assert_eq!(code, 0, "{said}");
    assert_eq!(demo.left(), Vec::<String>::new());
    // The one limit of time here: less than the grace that was cut short.
    assert!(start.elapsed() < Duration::from_secs(9));
}

#[test]
fn for_a_time_it_runs_and_ends_by_itself() {
    let demo = Demo::prepare_without_privileges(|text| text);
    let (code, out, said) = text(
        // Time enough for the proof, also on a busy machine.
        &up(&demo, &[&UP[..], &["--for", "5s", "--verify"]].concat())
            .output()
            .unwrap(),
    );
    assert_eq!(code, 0, "{out}{said}");
    for part in [
        "workload ratings is ready",
        "every service answers",
        "nothing is left",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    for part in [
        "/productpage\n",
        "each mutual TLS between the two identities shown",
    ] {
        assert!(out.contains(part), "{part} in {out}");
    }
    // Every answer of the proof is good, and a pipe gets no escapes.
    let answers = out
        .lines()
        .filter(|l| l.contains("http://"))
        .collect::<Vec<_>>();
    assert_eq!(answers.len(), 3, "{out}");
    assert!(answers.iter().all(|l| l.starts_with("200 ")), "{out}");
    assert!(
        !out.contains('\x1b') && !said.contains('\x1b'),
        "{out}{said}"
    );
    assert_eq!(demo.left(), Vec::<String>::new());
}

#[test]
fn for_a_time_detached_it_goes_on_after_the_command() {
    let demo = Demo::prepare_without_privileges(|text| text);
    let (code, out, said) = text(
        // Time enough for a request after the command has returned.
        &up(&demo, &[&UP[..], &["--for", "5s", "--detach"]].concat())
            .output()
            .unwrap(),
    );
    assert_eq!(code, 0, "{out}{said}");
    assert_eq!(demo.get("/productpage").status(), 200);
    demo.await_nothing_left();
}

/// A path of the operator's working directory, used by processes that run elsewhere.
#[test]
fn a_relative_state_directory_is_found_again() {
    let demo = Demo::prepare_without_privileges(|_| {
        workload(free_port()).replace(
            "ports",
            "readinessProbe: {exec: {command: ['true']}}\n  ports",
        )
    });
    let tulle = |args: &[&str]| {
        let mut command = demo.command();
        command
            .env("TULLE_STATE", "a/relative one")
            .env_remove("TULLE_NAME")
            .args(args);
        text(&command.output().unwrap())
    };
    let manifest = demo.manifest.to_str().unwrap();
    let (code, _, said) = tulle(&[&["up", manifest, "--detach"], &UP[..]].concat());
    assert_eq!(code, 0, "{said}");
    assert_eq!(tulle(&["status"]).0, 0);
    assert_eq!(tulle(&["down", "--purge"]).0, 0);
    assert_eq!(demo.left(), Vec::<String>::new());
}

#[test]
fn a_time_that_was_too_short_is_a_failure() {
    let demo = Demo::prepare_without_privileges(|_| workload(free_port()));
    // Between the two it says what it waits for.
    let more = ["--for", "4s", "--timeout", "500ms"];
    let (code, out, said) = text(&up(&demo, &[&UP[..], &more].concat()).output().unwrap());
    assert_eq!(code, 1, "{out}{said}");
    assert!(
        said.contains("still waiting: workload app") && said.contains("not every service"),
        "{out}{said}"
    );
    assert_eq!(demo.left(), Vec::<String>::new());
}

//! The life of a mesh: up, changed, damaged, down; and what is left afterwards.

mod common;

use common::{MESH, Mesh, TARGET, UP, WORKLOAD, eventually, is_alive, kill, marked};
use std::process::Stdio;

#[test]
fn objects_are_applied_listed_and_deleted() {
    let mesh = Mesh::new();
    mesh.write("mesh.yaml", MESH);
    mesh.write("target.yaml", TARGET);
    mesh.up(&["mesh.yaml"]);

    let applied = mesh.tulle(&["apply", "-f", "target.yaml"]);
    assert_eq!(applied.code, 0, "{applied:?}");
    assert_eq!(applied.out, "traffictarget/a-to-b created\n");
    assert!(
        applied.err.contains("warning"),
        "nobody has these identities: {applied:?}"
    );
    assert_eq!(
        mesh.tulle(&["apply", "target.yaml"]).out,
        "traffictarget/a-to-b unchanged\n"
    );

    let listed = mesh.tulle(&["get"]);
    assert_eq!(
        listed.out,
        "KIND           NAME\nMesh           test\nTrafficTarget  a-to-b\n"
    );
    let one = mesh.json(&["get", "traffictargets", "a-to-b", "-o", "json"]);
    assert_eq!(one["spec"]["sources"][0]["name"], "a");

    // `apply` takes the output of `get`.
    mesh.write("again.yaml", &mesh.tulle(&["get", "-o", "yaml"]).out);
    let again = mesh.tulle(&["apply", "again.yaml"]);
    assert_eq!(
        again.out, "mesh/test unchanged\ntraffictarget/a-to-b unchanged\n",
        "{again:?}"
    );

    mesh.write("bad.yaml", &TARGET.replace("destination:", "destinashun:"));
    let refused = mesh.tulle(&["apply", "bad.yaml"]);
    assert_eq!(refused.code, 65, "{refused:?}");

    assert_eq!(
        mesh.tulle(&["delete", "tt", "a-to-b"]).out,
        "traffictarget/a-to-b deleted\n"
    );
    let gone = mesh.tulle(&["delete", "tt/a-to-b"]);
    assert_eq!(gone.code, 1, "{gone:?}");
    assert_eq!(mesh.tulle(&["get", "tt", "a-to-b"]).code, 1);
}

/// JSON and YAML say the same, and nothing but it goes to standard output.
#[test]
fn every_result_is_there_for_programs_too() {
    let mesh = Mesh::new();
    mesh.write("mesh.yaml", &format!("{MESH}---\n{TARGET}"));
    mesh.up(&["mesh.yaml"]);
    for (args, field) in [
        (&["status"][..], "/mesh/name"),
        (&["check"], "/0/number"),
        (&["version"], "/controller"),
        (&["get", "tt", "a-to-b"], "/spec/sources/0/name"),
        (&["token", "create", "node/x"], "/token"),
    ] {
        let asked = |format| mesh.tulle(&[args, &["-o", format]].concat());
        let (json, yaml) = (asked("json"), asked("yaml"));
        let json_value: serde_json::Value = serde_json::from_str(&json.out).unwrap();
        let yaml_value: serde_json::Value =
            serde_saphyr::from_str(&yaml.out).unwrap_or_else(|e| panic!("{args:?}: {e}: {yaml:?}"));
        assert_eq!(json.code, yaml.code, "{args:?}");
        let (a, b) = (json_value.pointer(field), yaml_value.pointer(field));
        assert!(a.is_some(), "{args:?}: {json:?}");
        // Each token is another one.
        if field != "/token" {
            assert_eq!(a, b, "{args:?}");
        }
    }
}

#[test]
fn exit_codes_tell_no_from_wrong() {
    let mesh = Mesh::new();
    mesh.write("mesh.yaml", &format!("{MESH}---\n{TARGET}"));
    mesh.write("bad.yaml", "kind: Mesh\n");
    mesh.up(&["mesh.yaml"]);
    for (args, code) in [
        (&["status"][..], 0),
        // The TrafficTarget names identities that nobody has: a finding.
        (&["check"], 79),
        (&["apply", "mesh.yaml"], 0),
        (&["get", "tt", "nobody"], 1),
        (&["delete", "tt", "nobody"], 1),
        (&["logs", "nobody"], 1),
        (&["get", "pods"], 64),
        (&["token", "create"], 64),
        (&["apply", "bad.yaml"], 65),
        (&["apply", "nowhere.yaml"], 65),
        (&["delete", "-f", "bad.yaml"], 65),
        (&["token", "create", "king/of-it"], 65),
    ] {
        let answer = mesh.tulle(args);
        assert_eq!(answer.code, code, "{args:?}: {answer:?}");
        // Results on one side, words on the other.
        assert_eq!(
            answer.err.is_empty(),
            matches!(code, 0 | 79) && args[0] != "apply",
            "{answer:?}"
        );
    }
}

#[test]
fn a_second_mesh_in_the_same_place_is_refused() {
    let mesh = Mesh::new();
    mesh.write("mesh.yaml", MESH);
    mesh.up(&["mesh.yaml"]);
    let second = mesh.tulle(&[UP, &["--detach", "mesh.yaml"]].concat());
    assert_eq!(second.code, 1, "{second:?}");
    assert!(second.err.contains("up already"), "{second:?}");
    assert!(is_alive(mesh.pids().0));
}

#[test]
fn a_killed_controller_comes_back_with_the_same_ca_and_objects() {
    let mesh = Mesh::new();
    mesh.write("mesh.yaml", &format!("{MESH}---\n{TARGET}"));
    mesh.up(&["mesh.yaml"]);
    let before = mesh.json(&["status", "-o", "json"]);
    let objects = mesh.tulle(&["get", "-o", "yaml"]).out;
    let (_, controller) = mesh.pids();
    kill(controller.unwrap(), "-KILL");
    let after = eventually("the controller answers again", || {
        let status = mesh.json(&["status", "-o", "json"]);
        let again = status["controller"]["ready"] == true
            && status["controller"]["pid"] != before["controller"]["pid"];
        again.then_some(status)
    });
    assert_eq!(after["controller"]["restarts"], 1);
    assert_eq!(
        after["mesh"]["ca_fingerprint"],
        before["mesh"]["ca_fingerprint"]
    );
    assert_eq!(mesh.tulle(&["get", "-o", "yaml"]).out, objects);
}

#[test]
fn up_makes_the_mesh_what_the_files_say() {
    let mesh = Mesh::new();
    mesh.write("both.yaml", &format!("{MESH}---\n{TARGET}"));
    mesh.write("mesh.yaml", MESH);
    mesh.up(&["both.yaml"]);
    assert_eq!(mesh.tulle(&["down"]).code, 0);
    mesh.up(&[]);
    assert!(
        mesh.tulle(&["get"]).out.contains("a-to-b"),
        "stored objects are kept"
    );
    assert_eq!(mesh.tulle(&["down"]).code, 0);
    mesh.up(&["mesh.yaml"]);
    assert!(
        !mesh.tulle(&["get"]).out.contains("a-to-b"),
        "what the files lack is removed"
    );
    assert_eq!(mesh.tulle(&["down"]).code, 0);
    mesh.write("other.yaml", &MESH.replace("name: test", "name: other"));
    mesh.up(&["other.yaml"]);
    assert_eq!(
        mesh.tulle(&["get"]).out,
        "KIND  NAME\nMesh  other\n",
        "there is one Mesh, that of the files"
    );
}

#[test]
fn down_leaves_nothing() {
    let mesh = Mesh::new();
    mesh.write("mesh.yaml", MESH);
    mesh.up(&["mesh.yaml"]);
    let run = mesh.run_directory();
    let (supervisor, controller) = mesh.pids();
    assert!(!marked(&run).is_empty());
    let down = mesh.tulle(&["down"]);
    assert_eq!(down.code, 0, "{down:?}");
    assert_eq!(down.out, "the mesh is down; nothing is left of it\n");
    assert!(!is_alive(supervisor) && !is_alive(controller.unwrap()));
    assert!(marked(&run).is_empty());
    assert!(!run.join("supervisor.json").exists());
    assert!(!run.join("control/control.sock").exists());
}

#[test]
fn a_killed_supervisor_leaves_nothing_either() {
    let mesh = Mesh::with_proxy("/bin/sleep");
    mesh.write("mesh.yaml", &format!("{MESH}---\n{WORKLOAD}"));
    // The stand-in is no proxy, so the workload never gets ready.
    // It must have begun, to know what it waits for.
    let answer = mesh.tulle(&[UP, &["--detach", "--timeout", "20s", "mesh.yaml"]].concat());
    assert_eq!(answer.code, 1, "{answer:?}");
    assert!(answer.err.contains("workload b"), "{answer:?}");
    let run = mesh.run_directory();
    let (supervisor, controller) = mesh.pids();
    kill(supervisor, "-KILL");
    eventually("the janitor has cleared up", || {
        let clear = marked(&run).is_empty() && !run.join("supervisor.json").exists();
        clear.then_some(())
    });
    assert!(!is_alive(controller.unwrap()));
    assert!(!run.join("proxies").exists());
}

#[test]
fn a_crashing_sidecar_is_restarted_and_shown() {
    let mesh = Mesh::with_proxy("/bin/false");
    mesh.write("mesh.yaml", &format!("{MESH}---\n{WORKLOAD}"));
    mesh.tulle(&[UP, &["--detach", "--timeout", "1s", "mesh.yaml"]].concat());
    let proxy = eventually("two restarts", || {
        // There may be none yet.
        let status = mesh.tulle(&["status", "-o", "json"]);
        let status: serde_json::Value = serde_json::from_str(&status.out).ok()?;
        let proxy = status["proxies"][0].clone();
        (proxy["restarts"].as_u64()? >= 2).then_some(proxy)
    });
    assert_eq!(proxy["last_exit"], "exit code 1");
    assert_eq!(proxy["identity"], "spiffe://tulle.local/svc/b");
    assert_eq!(proxy["ready"], false);
    let check = mesh.tulle(&["check"]);
    assert_eq!(check.code, 79, "{check:?}");
    assert!(check.out.contains("proxy of b"), "{check:?}");
    // Deleted while it is being restarted.
    assert_eq!(mesh.tulle(&["delete", "workload", "b"]).code, 0);
    eventually("the workload is gone", || {
        let status = mesh.json(&["status", "-o", "json"]);
        status["services"].as_array()?.is_empty().then_some(())
    });
}

#[test]
fn in_the_foreground_it_ends_by_itself_or_by_a_signal() {
    let mesh = Mesh::new();
    mesh.write("mesh.yaml", MESH);
    // Time enough to say what is asserted.
    let timed = mesh.tulle(&[UP, &["--for", "4s", "mesh.yaml"]].concat());
    assert_eq!(timed.code, 0, "{timed:?}");
    assert!(timed.err.contains("every service answers"), "{timed:?}");
    assert!(timed.err.contains("nothing is left"), "{timed:?}");

    for signal in ["-INT", "-TERM", "-HUP"] {
        let mut command = mesh.interruptible();
        command.args(UP).arg("mesh.yaml").stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        eventually("it is up", || {
            let status = mesh.tulle(&["status", "-o", "json"]);
            status.out.contains(r#""phase": "running""#).then_some(())
        });
        let run = mesh.run_directory();
        kill(i32::try_from(child.id()).unwrap(), signal);
        let status = child.wait().unwrap();
        assert!(status.success(), "{signal}: {status}");
        assert!(marked(&run).is_empty(), "{signal}");
    }
}

#[test]
fn logs_outlive_the_mesh() {
    let mesh = Mesh::new();
    mesh.write("mesh.yaml", MESH);
    mesh.up(&["mesh.yaml"]);
    assert_eq!(mesh.tulle(&["down"]).code, 0);
    let logs = mesh.tulle(&["logs", "supervisor", "--tail", "1"]);
    assert_eq!(logs.code, 0, "{logs:?}");
    assert!(logs.out.contains("stopping"), "{logs:?}");
    let unknown = mesh.tulle(&["logs", "nobody"]);
    assert_eq!(unknown.code, 1);
    assert!(
        unknown.err.contains("controller"),
        "it names what there is: {unknown:?}"
    );
}

#[test]
fn a_token_comes_with_the_command_that_uses_it() {
    let mesh = Mesh::new();
    mesh.write("mesh.yaml", MESH);
    mesh.up(&["mesh.yaml"]);
    let made = mesh.json(&["token", "create", "node/edge", "-o", "json"]);
    assert_eq!(made["spiffe_id"], "spiffe://tulle.local/node/edge");
    assert_eq!(made["ca_fingerprint"].as_str().unwrap().len(), 64);
    let shown = mesh.tulle(&["token", "create", "node/edge"]).out;
    assert!(shown.contains("tulle join --controller"), "{shown}");
}

#[test]
fn another_host_joins_with_token_and_fingerprint_and_nothing_less() {
    let mesh = Mesh::new();
    mesh.write("mesh.yaml", MESH);
    mesh.up(&["mesh.yaml"]);
    let made = mesh.json(&["token", "create", "node/edge", "-o", "json"]);
    let text = |field: &str| made[field].as_str().unwrap().to_owned();
    let (controller, token, ca) = (text("controller"), text("token"), text("ca_fingerprint"));

    let host = Mesh::new();
    host.write("b.yaml", WORKLOAD);
    let join = |token: &str, ca: &str| {
        let mut command = host.command();
        command
            .args(["join", "--controller", &controller, "--token", token])
            .args(["--ca-fingerprint", ca, "b.yaml"])
            .stdout(Stdio::null());
        command
    };
    let wrong_ca = join(&token, &"0".repeat(64)).status().unwrap();
    assert_eq!(wrong_ca.code(), Some(1));
    let wrong_token = join("00.00", &ca).status().unwrap();
    assert_eq!(wrong_token.code(), Some(1));

    let mut joined = join(&token, &ca).spawn().unwrap();
    let labels = eventually("the workload is stored", || {
        let stored = mesh.tulle(&["get", "workload", "b", "-o", "json"]);
        let object: serde_json::Value = serde_json::from_str(&stored.out).ok()?;
        Some(object["metadata"]["labels"].clone())
    });
    assert_eq!(labels["tulle.dev/node"], "edge");
    let here = mesh.json(&["status", "-o", "json"]);
    assert!(
        here["services"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|service| service["workloads"].as_array().unwrap())
            .all(|workload| workload["host"] == "edge"),
        "it runs there, not here: {here}"
    );
    kill(i32::try_from(joined.id()).unwrap(), "-TERM");
    assert!(joined.wait().unwrap().success());
    assert_eq!(
        mesh.tulle(&["get", "workload", "b"]).code,
        1,
        "it took its workload along"
    );
    // Without the identity that it kept.
    assert_eq!(host.tulle(&["down", "--purge"]).code, 0);
    let again = join(&token, &ca).status().unwrap();
    assert_ne!(again.code(), Some(0), "a token is spent once");
}

#[test]
fn a_host_that_is_removed_ends_and_says_why() {
    let mesh = Mesh::new();
    mesh.write("mesh.yaml", MESH);
    mesh.up(&["mesh.yaml"]);
    let made = mesh.json(&["token", "create", "node/edge", "-o", "json"]);
    let host = Mesh::new();
    host.write("b.yaml", WORKLOAD);
    let joined = host
        .command()
        .args(["join", "--controller", made["controller"].as_str().unwrap()])
        .args(["--ca-fingerprint", made["ca_fingerprint"].as_str().unwrap()])
        .arg("b.yaml")
        .env("TULLE_TOKEN", made["token"].as_str().unwrap())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("the workload is stored", || {
        (mesh.tulle(&["get", "workload", "b"]).code == 0).then_some(())
    });
    let listed = mesh.tulle(&["get", "nodes"]);
    assert_eq!(listed.out, "KIND  NAME\nNode  edge\n");
    let listed = mesh.tulle(&["get", "nodes", "-o", "yaml"]);
    assert!(listed.out.contains("name: edge"), "{listed:?}");

    let removed = mesh.tulle(&["delete", "node/edge"]);
    assert_eq!(removed.out, "node/edge deleted\n", "{removed:?}");
    assert_eq!(mesh.tulle(&["get", "workload", "b"]).code, 1);
    let ended = joined.wait_with_output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{said}");
    for part in ["has been removed", "tulle token create"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(mesh.tulle(&["delete", "node/edge"]).code, 1, "it is gone");
}

/// After a failed write redb takes no other until it is opened again.
#[test]
fn a_controller_that_cannot_write_is_started_again() {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    let mesh = Mesh::new();
    mesh.write("mesh.yaml", MESH);
    mesh.write("target.yaml", TARGET);
    let up = mesh.command();
    // Writing past the limit is an error as on a full disk, and not a signal.
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]);
    shell.arg(up.get_program());
    for (name, value) in up.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.args(UP).args(["--detach", "mesh.yaml"]);
    let started = shell.current_dir(mesh.path()).output().unwrap();
    assert!(started.status.success(), "{started:?}");

    let (_, controller) = mesh.pids();
    let first = controller.unwrap();
    let full = Rlimit {
        current: Some(0),
        maximum: None,
    };
    prlimit(Pid::from_raw(first), Resource::Fsize, full).unwrap();
    let refused = mesh.tulle(&["apply", "target.yaml"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.err.contains("free space"), "{refused:?}");
    eventually("another controller takes writes", || {
        let applied = mesh.tulle(&["apply", "target.yaml"]);
        (applied.out == "traffictarget/a-to-b created\n").then_some(())
    });
    let (_, second) = mesh.pids();
    assert_ne!(second, Some(first));
}

//! Workloads on a host, without sidecars: what they need of it, restarts, probes, names of users.

#![allow(clippy::unwrap_used)] // a helper of tests may fail like a test

mod common;

use common::{MESH, Mesh, UP, eventually, pause};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

/// Programs run, and nothing stands beside them.
const ALONE: &[&str] = &["--data-plane", "none", "--detach", "--timeout", "60s"];

fn workload(name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: tulle.dev/v1alpha1\nkind: Workload\nmetadata: {{name: {name}}}\nspec: {spec}\n"
    )
}

fn sleeper(name: &str) -> String {
    workload(
        name,
        "{command: [sleep, '1000'], readinessProbe: {exec: {command: ['true']}}}",
    )
}

fn up(mesh: &Mesh, manifests: &str) {
    mesh.write("mesh.yaml", &format!("{MESH}{manifests}"));
    let answer = mesh.tulle(&[UP, ALONE, &["mesh.yaml"]].concat());
    assert_eq!(answer.code, 0, "{answer:?}");
}

fn process(mesh: &Mesh, workload: &str) -> Option<i64> {
    let status = mesh.json(&["status", "-o", "json"]);
    let services = status["services"].as_array().unwrap().clone();
    let mut workloads = services
        .iter()
        .flat_map(|s| s["workloads"].as_array().unwrap());
    workloads.find(|w| w["name"] == workload)?["pid"].as_i64()
}

#[test]
fn a_workload_is_restarted_on_demand_and_only_then() {
    let mesh = Mesh::new();
    up(&mesh, &(sleeper("a") + &sleeper("b")));
    let before = [process(&mesh, "a").unwrap(), process(&mesh, "b").unwrap()];
    let answer = mesh.tulle(&["restart", "b"]);
    assert_eq!(answer.code, 0, "{answer:?}");
    assert_eq!(answer.out, "workload/b restarted\n");
    let after = process(&mesh, "b").unwrap();
    assert_ne!(after, before[1]);
    assert_eq!(process(&mesh, "a"), Some(before[0]));
    // It is no crash.
    let status = mesh.json(&["status", "-o", "json"]);
    assert_eq!(status["services"][1]["workloads"][0]["restarts"], 0);

    // The manifest without the mark asks for nothing.
    assert_eq!(mesh.tulle(&["apply", "mesh.yaml"]).code, 0);
    pause("nothing is restarted", Duration::from_millis(500));
    assert_eq!(process(&mesh, "b"), Some(after));
    assert_eq!(mesh.tulle(&["restart", "a", "b"]).code, 0);
    assert_ne!(process(&mesh, "b"), Some(after));
    let unknown = mesh.tulle(&["restart", "nobody"]);
    assert_eq!(unknown.code, 1, "{unknown:?}");
    assert!(unknown.err.contains("a, b"), "{unknown:?}");
}

/// A dry run judges as the real one does, by the same words.
#[test]
fn a_dry_run_refuses_what_apply_refuses() {
    let mesh = Mesh::new();
    let secret = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {k: v}\n";
    up(&mesh, &(sleeper("a") + secret));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let hidden = mesh.tulle(&["get", "secret", "s", "-o", "yaml"]).out;
    let plain = mesh.write("plain", "x");
    let long = "{command: [sleep, '9'], ";
    for (manifest, parts) in [
        (
            workload("b", "{command: [no-such-program]}"),
            &["bad.yaml:2: Workload/b: spec.command", "PATH"][..],
        ),
        (
            workload("b", "{command: [./missing]}"),
            &["spec.command", "missing does not exist"],
        ),
        (
            workload("b", &format!("{{command: [{}]}}", plain.display())),
            &["spec.command", "is not executable"],
        ),
        (
            workload(
                "b",
                &format!("{long}readinessProbe: {{exec: {{command: [no-such]}}}}}}"),
            ),
            &["spec.readinessProbe.exec.command", "no-such"],
        ),
        (
            workload("b", &format!("{long}user: nobody-of-that-name}}")),
            &["spec.user", "nobody-of-that-name"],
        ),
        (
            workload("b", &format!("{long}workingDirectory: ./nowhere}}")),
            &["spec.workingDirectory", "nowhere does not exist"],
        ),
        (
            workload("b", &format!("{long}ports: [{{port: {port}}}]}}")),
            &["Workload/b", "another process does already"],
        ),
        (
            MESH.replace("name: test", "name: other"),
            &["at most one Mesh", "Mesh/test"],
        ),
        (
            MESH.replace("spec: {}", "spec: {trustDomain: other.example}"),
            &["spec.trustDomain cannot change"],
        ),
        (hidden, &["Secret/s"]),
    ] {
        mesh.write("bad.yaml", &manifest);
        let dry = mesh.tulle(&["apply", "--dry-run", "bad.yaml"]);
        let real = mesh.tulle(&["apply", "bad.yaml"]);
        assert_eq!(
            (dry.code, real.code),
            (65, 65),
            "{manifest}\n{dry:?}\n{real:?}"
        );
        assert_eq!(dry.err, real.err, "{manifest}");
        for part in parts {
            assert!(dry.err.contains(part), "{part}: {}", dry.err);
        }
    }
    let names = mesh.tulle(&["get", "workload"]).out;
    assert_eq!(names, "KIND      NAME\nWorkload  a\n");

    // A workload that runs is not checked again: its port is its own, and its program may be gone since.
    assert_eq!(mesh.tulle(&["apply", "mesh.yaml"]).code, 0);
    let other = Mesh::new();
    other.write(
        "bad.yaml",
        &format!("{MESH}{}", workload("b", "{command: [./missing]}")),
    );
    let refused = other.tulle(&[UP, ALONE, &["bad.yaml"]].concat());
    assert_eq!(refused.code, 65, "{refused:?}");
    assert!(
        refused.err.contains("bad.yaml:7: Workload/b: spec.command"),
        "{refused:?}"
    );
}

#[test]
fn a_probes_period_holds_before_it_is_ready_too() {
    let mesh = Mesh::new();
    let script = "echo >> tries; test $(wc -l < tries) -ge 4";
    let spec = format!(
        "{{command: [sleep, '1000'], user: root, readinessProbe: {{periodSeconds: 2, \
         failureThreshold: 2, exec: {{command: [sh, -c, '{script}']}}}}}}"
    );
    let spec = match rustix::process::geteuid().is_root() {
        true => spec,
        false => spec.replace("user: root, ", ""),
    };
    mesh.write("mesh.yaml", &format!("{MESH}{}", workload("slow", &spec)));
    let mut child = mesh.command();
    let begun = std::time::Instant::now();
    let mut child = child
        .args([UP, ALONE, &["mesh.yaml"]].concat())
        .spawn()
        .unwrap();
    eventually("its start has failed after two tries", || {
        let status = mesh.tulle(&["status", "-o", "json"]).out;
        status.contains("2 times or more").then_some(())
    });
    assert!(child.wait().unwrap().success());
    // Four tries have three periods between them.
    assert!(begun.elapsed() >= Duration::from_secs(6));
    let tries = fs::read_to_string(mesh.path().join("tries")).unwrap();
    assert!((4..=6).contains(&tries.lines().count()), "{tries:?}");
}

/// PostgreSQL's `initdb`, for one, insists on it.
#[test]
fn the_user_of_a_workload_has_a_name() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: it needs root");
    }
    let mesh = Mesh::new();
    let script = "id -un; id -gn; getent passwd $(id -u); getent passwd root; echo $USER";
    let spec = format!(
        "{{command: [sh, -c, '({script}) > $STATE_DIRECTORY/said; touch $STATE_DIRECTORY/all; exec sleep 1000'], \
         readinessProbe: {{exec: {{command: [sh, -c, 'test -e $STATE_DIRECTORY/all']}}}}}}"
    );
    up(&mesh, &workload("db", &spec));
    let data = mesh.path().join("state/data/db");
    let said = fs::read_to_string(data.join("said")).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!((lines[0], lines[1]), ("db", "db"), "{said}");
    let fields: Vec<&str> = lines[2].split(':').collect();
    assert_eq!((fields[0], fields[1]), ("db", "x"), "{said}");
    assert!(fields[5].ends_with("/data/db"), "{said}");
    assert!(lines[3].starts_with("root:x:0:0:"), "{said}");
    assert_eq!(lines[4], "db");
    // And of a command in its place.
    let answer = mesh.tulle(&["exec", "db", "--", "id", "-un"]);
    assert_eq!(answer.out, "db\n", "{answer:?}");
    // The real thing, where it is installed.
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    for version in versions.flatten() {
        let initdb = version.path().join("bin/initdb");
        let cluster = data.join("cluster").display().to_string();
        let program = initdb.to_str().unwrap();
        let made = mesh.tulle(&["exec", "db", "--", program, "-D", &cluster]);
        assert_eq!(made.code, 0, "{made:?}");
        assert!(
            made.out.contains("will be owned by user \"db\""),
            "{made:?}"
        );
        fs::remove_dir_all(&cluster).unwrap();
    }
    // The host itself has no such user.
    let host = fs::read_to_string("/etc/passwd").unwrap();
    assert!(!host.contains("workload db"));
    let run = mesh.run_directory();
    assert_eq!(mesh.tulle(&["down"]).code, 0);
    assert!(!run.join("accounts").exists());
}

/// A mesh below a directory that only root has a way to.
fn closed() -> Mesh {
    let mesh = Mesh::new();
    fs::set_permissions(mesh.path(), fs::Permissions::from_mode(0o700)).unwrap();
    mesh
}

/// Some variables make the dynamic loader run code and write files. The process that is to become
/// the program is still root, so it must not have them.
#[test]
fn only_the_program_itself_has_the_variables_of_a_workload() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: it needs root");
    }
    let mesh = closed();
    // The loader would write to such a file, and only root can make one here.
    let trace = mesh.path().join("trace");
    // The command after it keeps the shell from becoming `cat`.
    let look = |file: &str| {
        format!(
            "LD_DEBUG= cat /proc/$$/environ > $STATE_DIRECTORY/{file}; touch $STATE_DIRECTORY/all"
        )
    };
    let spec = format!(
        "{{command: [sh, -c, '{}; exec sleep 1000'], env: [{{name: ODD, value: 'a=b  c'}}, \
         {{name: LD_DEBUG, value: statistics}}, {{name: LD_DEBUG_OUTPUT, value: '{}'}}], \
         readinessProbe: {{exec: {{command: [sh, -c, 'test -e $STATE_DIRECTORY/all']}}}}}}",
        look("started"),
        trace.display()
    );
    up(&mesh, &workload("db", &spec));
    let answer = mesh.tulle(&["exec", "db", "--", "sh", "-c", &look("executed")]);
    assert_eq!(answer.code, 0, "{answer:?}");

    let run = mesh.run_directory().display().to_string();
    let inherited = ["PATH", "LANG", "LC_ALL", "TZ", "SHELL"];
    let of_caller = ["TERM", "COLUMNS", "LINES", "NO_COLOR"];
    for (file, more) in [("started", &[][..]), ("executed", &of_caller[..])] {
        let text = fs::read_to_string(mesh.path().join("state/data/db").join(file)).unwrap();
        let has: BTreeMap<&str, &str> = text
            .split_terminator('\0')
            .map(|v| v.split_once('=').unwrap())
            .collect();
        let mut expected: BTreeSet<&str> = [
            "HOME",
            "USER",
            "LOGNAME",
            "STATE_DIRECTORY",
            "TULLE_MESH",
            "ODD",
            "LD_DEBUG",
            "LD_DEBUG_OUTPUT",
        ]
        .into();
        let inherited = inherited.iter().chain(more);
        expected.extend(inherited.filter(|name| std::env::var_os(name).is_some()));
        let mut names: BTreeSet<_> = has.keys().copied().collect();
        // The shell gave it to the program that took its place, whose variables a command gets.
        names.remove("PWD");
        assert_eq!(names, expected, "{file}");
        let values = ["ODD", "USER", "LD_DEBUG", "TULLE_MESH"].map(|name| has[name]);
        assert_eq!(
            values,
            ["a=b  c", "db", "statistics", run.as_str()],
            "{file}"
        );
        assert_eq!(has["HOME"], has["STATE_DIRECTORY"], "{file}");
    }
    let written = fs::read_dir(mesh.path()).unwrap().flatten();
    let mut names = written.map(|entry| entry.file_name().into_string().unwrap());
    let by_root = names.find(|name| name.starts_with("trace"));
    assert_eq!(by_root, None, "the loader wrote it as root");
}

#[test]
fn a_command_in_the_place_of_an_application_has_its_directory() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: it needs root");
    }
    let mesh = closed();
    let spec = "{command: [sh, -c, 'cd $STATE_DIRECTORY; touch all; exec sleep 1000'], \
                readinessProbe: {exec: {command: [sh, -c, 'test -e $STATE_DIRECTORY/all']}}}";
    up(&mesh, &workload("db", spec));
    let touch = "touch $STATE_DIRECTORY/by-name && touch by-working-directory";
    let answer = mesh.tulle(&["exec", "db", "--", "sh", "-c", touch]);
    assert_eq!(answer.code, 0, "{answer:?}");
    let data = mesh.path().join("state/data/db");
    for file in ["by-name", "by-working-directory"] {
        assert!(data.join(file).exists(), "{file}");
    }
}

#[test]
fn status_shows_what_is_asked_for() {
    let mesh = Mesh::new();
    up(&mesh, &(sleeper("a") + &sleeper("b") + &sleeper("c")));
    let names = |args: &[&str]| -> BTreeSet<String> {
        let status = mesh.json(&[&["status", "-o", "json"], args].concat());
        let services = status["services"].as_array().unwrap().iter();
        services
            .map(|s| s["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let set = |names: &[&str]| {
        names
            .iter()
            .map(ToString::to_string)
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(names(&[]), set(&["a", "b", "c"]));
    assert_eq!(names(&["b", "c"]), set(&["b", "c"]));
    assert_eq!(names(&["--problems"]), set(&[]));
    let text = mesh.tulle(&["status", "--problems"]);
    assert!(text.out.contains("\nno problems\n"), "{text:?}");
    let text = mesh.tulle(&["status", "b"]).out;
    assert!(text.contains("\nb ") && !text.contains("\na "), "{text}");
    let unknown = mesh.tulle(&["status", "nobody"]);
    assert_eq!(unknown.code, 1, "{unknown:?}");
    assert!(unknown.err.contains("a, b, c"), "{unknown:?}");
    // One that no longer answers is a problem.
    mesh.write("bad.yaml", &workload("b", "{command: ['false']}"));
    assert_eq!(mesh.tulle(&["apply", "bad.yaml"]).code, 0);
    eventually("only b is shown", || {
        (names(&["--problems"]) == set(&["b"])).then_some(())
    });
    eventually("its end is told", || {
        let text = mesh.tulle(&["status", "--problems"]).out;
        assert!(!text.contains("no traffic"), "{text}");
        text.contains("exit code 1").then_some(())
    });
}

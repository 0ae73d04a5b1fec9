//! Tests the output and the exit codes of commands when no mesh is up.

mod common;

use common::{Answer, MESH, Mesh, WORKLOAD};

#[test]
fn a_level_of_the_log_that_does_not_exist_is_refused() {
    let mesh = Mesh::new();
    let controller = [
        "controller",
        "--dir",
        ".",
        "--listen",
        "127.0.0.1:0",
        "--socket",
        "socket",
    ];
    for wrong in ["loud", "info,tulle_kube=debug", "3", "INFO", ""] {
        let mut command = mesh.command();
        command.args(controller).env("TULLE_LOG", wrong);
        let answer = Answer::from_output(command.output().unwrap());
        assert_eq!(answer.code, 64, "{wrong}: {answer:?}");
        let expected = format!("TULLE_LOG={wrong}: there is no such level");
        assert!(answer.err.contains(&expected), "{answer:?}");
        assert!(answer.err.contains("error, warn, info"), "{answer:?}");
    }
}

#[test]
fn a_wrong_command_line_ends_with_64() {
    let mesh = Mesh::new();
    for args in [
        &["fly"][..],
        &["up", "--wrong"],
        &["up", "--for", "soon"],
        &["get", "pods"],
        &["delete", "pods", "a"],
        &["delete", "tt"],
        &["apply"],
        &[
            "join",
            "--controller",
            "127.0.0.1:1",
            "--ca-fingerprint",
            "00",
        ],
        &["status", "--name", "Not A Name"],
        &["status", "-o", "xml"],
        &["up", "--advertise", "10.0.0.1"],
        &["up", "--inbound-ports", "16000-16099"],
        &["up", "--loopback", "--inbound-ports", "16099-16000"],
        &["up", "--loopback", "--inbound-ports", "443"],
        &["install", "--timeout", "1m"],
        &["install", "--apply", "--output", "json"],
        &["upgrade", "--apply", "--dry-run"],
    ] {
        let answer = mesh.tulle(args);
        assert_eq!(answer.code, 64, "{args:?}: {answer:?}");
        assert!(!answer.err.is_empty(), "{args:?}");
    }
}

#[test]
fn help_and_completions_are_no_errors() {
    let mesh = Mesh::new();
    for args in [
        &["--help"][..],
        &["--version"],
        &["up", "--help"],
        &["completions", "bash"],
    ] {
        let answer = mesh.tulle(args);
        assert_eq!(answer.code, 0, "{answer:?}");
        assert!(answer.out.contains("tulle"));
    }
}

/// As in `tulle completions bash | head`.
#[test]
fn a_reader_that_goes_away_ends_a_command_quietly() {
    let mesh = Mesh::new();
    for args in [
        &["completions", "bash"][..],
        &["install"],
        &["--help"],
        &["version", "-o", "json"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let done = mesh.command().args(args).stdout(writer).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(!said.contains("panicked"), "{args:?}: {said}");
        assert_eq!(done.status.code(), Some(0), "{args:?}: {said}");
    }
}

#[test]
fn the_lab_is_a_program_of_its_own() {
    let mesh = Mesh::new();
    // Without the lab beside it, or in PATH.
    let alone = mesh.path().join("tulle");
    std::fs::copy(env!("CARGO_BIN_EXE_tulle"), &alone).unwrap();
    let bench = |directory: &std::path::Path| {
        let mut command = std::process::Command::new(&alone);
        command
            .args(["bench", "pair", "--quick"])
            .env("PATH", directory);
        Answer::from_output(command.output().unwrap())
    };
    let answer = bench(mesh.path());
    assert_eq!(answer.code, 1, "{answer:?}");
    assert!(answer.err.contains("make build"), "{answer:?}");
    // It gets all words, and its end is the command's.
    let lab = mesh.write("tulle-bench", "#!/bin/sh\necho \"$@\"\nexit 79\n");
    std::fs::set_permissions(&lab, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let answer = bench(std::path::Path::new("/nowhere"));
    assert_eq!(
        (answer.code, answer.out.as_str()),
        (79, "pair --quick\n"),
        "{answer:?}"
    );
}

#[test]
fn hidden_commands_stay_hidden() {
    let mesh = Mesh::new();
    let help = mesh.tulle(&["--help"]).out;
    assert!(help.contains("status"));
    for text in [help, mesh.tulle(&["completions", "bash"]).out] {
        for hidden in ["janitor", "exec-in", "detached", "tulle,controller"] {
            assert!(!text.contains(hidden), "{hidden} in {text}");
        }
    }
}

/// A shell that is not installed cannot be asked; bash is always there.
#[test]
fn shells_load_the_completions_and_complete_with_them() {
    let mesh = Mesh::new();
    for (shell, load) in [
        ("bash", "source FILE && complete -p tulle"),
        (
            "zsh",
            "autoload -U compinit && compinit -D && source FILE && echo $_comps[tulle]",
        ),
        ("fish", "source FILE && complete -C 'tulle sta'"),
    ] {
        let text = mesh.tulle(&["completions", shell]).out;
        let file = mesh.write(shell, &text);
        let script = load.replace("FILE", file.to_str().unwrap());
        let Ok(output) = std::process::Command::new(shell)
            .args(["-c", &script])
            .output()
        else {
            eprintln!("not asked: {shell} is not installed");
            assert!(shell != "bash" && text.contains("status"));
            continue;
        };
        let out = String::from_utf8(output.stdout).unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.success() && !out.is_empty(),
            "{shell}: {out}{err}"
        );
    }
    // As a person would press the key.
    let file = mesh.path().join("bash").display().to_string();
    let ask = |words: &str| {
        let script = format!(
            "source {file}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}}-1)); \
             _tulle tulle \"${{COMP_WORDS[$COMP_CWORD]}}\" \"${{COMP_WORDS[$COMP_CWORD-1]}}\"; echo \"${{COMPREPLY[@]}}\""
        );
        let output = std::process::Command::new("bash")
            .args(["-c", &script])
            .output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    assert_eq!(ask("tulle statu"), "status\n");
    assert_eq!(ask("tulle up --det"), "--detach\n");
    assert_eq!(ask("tulle status --output j"), "json\n");
}

#[test]
fn a_wrong_manifest_ends_with_65_names_the_place_and_starts_nothing() {
    let mesh = Mesh::new();
    mesh.write("bad.yaml", &format!("{MESH}---\n{WORKLOAD}  colour: red\n"));
    let answer = mesh.tulle(&["up", "--loopback", "bad.yaml"]);
    assert_eq!(answer.code, 65, "{answer:?}");
    for part in ["bad.yaml", "colour", "Workload/b"] {
        assert!(answer.err.contains(part), "{part} in {}", answer.err);
    }
    assert!(!mesh.path().join("state").exists());
    let missing = mesh.tulle(&["up", "nowhere.yaml"]);
    assert_eq!(missing.code, 65, "{missing:?}");
}

#[test]
fn without_a_mesh_commands_say_how_to_start_one() {
    let mesh = Mesh::new();
    for args in [
        &["status"][..],
        &["get"],
        &["why", "a", "b"],
        &["token", "create", "node/a"],
    ] {
        let answer = mesh.tulle(args);
        assert_eq!(answer.code, 1, "{answer:?}");
        assert!(answer.err.contains("tulle up"), "{answer:?}");
    }
    let down = mesh.tulle(&["down"]);
    assert_eq!(down.code, 0, "{down:?}");
    assert!(down.out.contains("no mesh is up"), "{down:?}");
}

#[test]
fn check_works_before_up_and_names_what_is_missing() {
    let mesh = Mesh::new();
    let findings = mesh.json(&["check", "-o", "json"]);
    let findings = findings.as_array().unwrap();
    assert!(
        findings.iter().all(|f| f["outcome"] != "error"),
        "{findings:?}"
    );
    let numbers: Vec<u64> = findings
        .iter()
        .map(|f| f["number"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());

    let mut without_proxy = mesh.command();
    without_proxy
        .args(["check"])
        .env("TULLE_PROXY", "/nowhere/tulle-proxy")
        .env("PATH", "/nowhere");
    let output = without_proxy.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    // Beside this very binary there may be a proxy, if the whole workspace was built.
    let beside = std::path::Path::new(env!("CARGO_BIN_EXE_tulle")).with_file_name("tulle-proxy");
    if !beside.exists() {
        assert_eq!(output.status.code(), Some(79));
        assert!(text.contains("× ") && text.contains("what to do"), "{text}");
    }
}

#[test]
fn exec_in_is_not_for_people() {
    let answer = Mesh::new().tulle(&["exec-in", "sh"]);
    assert_eq!(answer.code, 126);
    assert!(answer.err.contains("internal"), "{answer:?}");
}

#[test]
fn import_says_by_its_exit_code_that_something_was_lost() {
    let mesh = Mesh::new();
    let config = |more: &str| {
        format!(
            "apiVersion: config.openservicemesh.io/v1alpha2
kind: MeshConfig
metadata: {{name: osm-mesh-config, namespace: osm-system}}
spec:
  traffic: {{enableEgress: true{more}}}
"
        )
    };
    mesh.write("whole.yaml", &config(""));
    let answer = mesh.tulle(&["import", "osm", "whole.yaml"]);
    assert_eq!(answer.code, 0, "{answer:?}");
    assert!(
        answer
            .out
            .contains("# from MeshConfig osm-system/osm-mesh-config"),
        "{answer:?}"
    );
    // Everything printed is a manifest that `apply` takes.
    mesh.write("made.yaml", &answer.out);
    mesh.write("workload.yaml", WORKLOAD);
    let files = ["-f", "made.yaml", "-f", "workload.yaml"];
    let judged = mesh.tulle(&[&["prove", "nobody leaves the mesh"][..], &files].concat());
    assert_eq!(judged.code, 79, "egress is allowed: {judged:?}");

    mesh.write(
        "lossy.yaml",
        &config(", networkInterfaceExclusionList: [eth1]"),
    );
    let answer = mesh.tulle(&["import", "fsm", "lossy.yaml", "-o", "json"]);
    assert_eq!(answer.code, 79, "{answer:?}");
    let told: serde_json::Value = serde_json::from_str(&answer.out).unwrap();
    assert_eq!(
        told["lost"][0]["field"],
        "spec.traffic.networkInterfaceExclusionList"
    );
    assert_eq!(told["objects"][0]["object"]["spec"]["allowEgress"], true);

    mesh.write("broken.yaml", "a: [");
    assert_eq!(mesh.tulle(&["import", "osm", "broken.yaml"]).code, 65);
    assert_eq!(mesh.tulle(&["import", "osm", "/no/such/file"]).code, 1);
    assert_eq!(mesh.tulle(&["import", "kuma", "whole.yaml"]).code, 64);
}

/// The program as an installation has it, with a page and a browser that writes down what it is to open.
#[test]
fn the_documentation_beside_the_program_opens_in_a_browser() {
    let mesh = Mesh::new();
    let installed = mesh.path().join("usr/local");
    let program = installed.join("bin/tulle");
    let html = installed.join("share/doc/tulle/html");
    for directory in [&installed.join("bin"), &html.join("en"), &html.join("zh")] {
        std::fs::create_dir_all(directory).unwrap();
    }
    std::fs::copy(env!("CARGO_BIN_EXE_tulle"), &program).unwrap();
    let docs = |language: &str, more: &[&str]| {
        let mut command = std::process::Command::new(&program);
        command.arg("docs").args(more).env_remove("DISPLAY");
        command.env_remove("LC_ALL").env_remove("LC_MESSAGES");
        Answer::from_output(command.env("LANG", language).output().unwrap())
    };
    let missing = docs("C", &[]);
    assert_eq!(missing.code, 1, "{missing:?}");
    let place = html.display().to_string();
    assert!(
        missing.err.contains(&place) && missing.err.contains("make docs"),
        "{missing:?}"
    );

    std::fs::write(html.join("en/index.html"), "").unwrap();
    std::fs::write(html.join("zh/index.html"), "").unwrap();
    for (language, more, page) in [
        ("C", &[][..], "en/index.html"),
        ("zh_CN.UTF-8", &[], "zh/index.html"),
        ("zh_CN.UTF-8", &["--language", "en"], "en/index.html"),
    ] {
        let said = docs(language, more);
        assert_eq!(said.out, format!("file://{place}/{page}\n"), "{said:?}");
    }
    let wrong = docs("C", &["no-such-page"]);
    assert_eq!(wrong.code, 64, "{wrong:?}");

    let browser = mesh.write(
        "xdg-open",
        "#!/bin/sh\necho \"$1\" >opened.part && mv opened.part opened\n",
    );
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(browser, mode).unwrap();
    let path = format!("{}:/usr/bin:/bin", mesh.path().display());
    let mut command = std::process::Command::new(&program);
    command
        .args(["docs", "--language", "zh"])
        .env("DISPLAY", ":0");
    let said = command.env("PATH", path).current_dir(mesh.path()).output();
    assert_eq!(Answer::from_output(said.unwrap()).code, 0);
    let opened = mesh.path().join("opened");
    common::eventually("the browser is started", || opened.exists().then_some(()));
    let opened = std::fs::read_to_string(opened).unwrap();
    assert_eq!(opened, format!("file://{place}/zh/index.html\n"));
}

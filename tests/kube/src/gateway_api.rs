//! The Gateway API in a cluster, from its own module (tests/kube/gateway-api).

use crate::{Cluster, install_with, root};
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Installs the definitions of the Gateway API's standard kinds.
pub fn install_gateway_api(cluster: &Cluster) {
    let made = script("build.sh")
        .arg("crds")
        .stderr(Stdio::inherit())
        .output();
    let made = made.unwrap_or_else(|e| panic!("build.sh: {e}"));
    assert!(made.status.success(), "build.sh crds");
    let built = PathBuf::from(String::from_utf8_lossy(&made.stdout).trim());
    let file = built.join("standard.yaml").to_string_lossy().into_owned();
    // Too large for the annotation that a client-side apply would leave.
    cluster.kubectl(&["apply", "--server-side", "-f", &file]);
    cluster.kubectl(&[
        "wait",
        "--for=condition=Established",
        "customresourcedefinitions",
        "--all",
        "--timeout=300s",
    ]);
}

fn script(name: &str) -> Command {
    Command::new(root().join("tests/kube/gateway-api").join(name))
}

/// Runs the conformance suite with these profiles; every core test passes, and each of what is claimed.
/// The report is `build/gateway-api/<name>.json`. Without a cluster it says so.
///
/// # Panics
/// A test of the suite fails, or it cannot be run at all.
pub fn conforms(name: &str, profiles: &[&str]) {
    let Some(cluster) = Cluster::get() else {
        return;
    };
    install_gateway_api(&cluster);
    // The suite makes Gateways in namespaces of its own.
    install_with(&cluster, &["gateways.allNamespaces=true"]);
    let file = root().join(format!("build/gateway-api/{name}.json"));
    let run = script("run.sh").arg(&file).arg(profiles.join(",")).status();
    let passed = run.unwrap_or_else(|e| panic!("run.sh: {e}")).success();
    let log = file.with_extension("json.log");
    let log = std::fs::read_to_string(&log).unwrap_or_else(|e| panic!("{}: {e}", log.display()));
    let telling = |line: &&str| line.contains("--- FAIL") || line.contains("Error");
    let failures = log.lines().filter(telling).collect::<Vec<_>>().join("\n");
    let text = std::fs::read_to_string(&file);
    let text = text.unwrap_or_else(|e| panic!("{}: {e}\n{log}", file.display()));
    let report: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let reported = report["profiles"].as_array().into_iter().flatten();
    for profile in reported.clone() {
        for level in ["core", "extended"] {
            let result = profile.pointer(&format!("/{level}/result"));
            let count = profile.pointer(&format!("/{level}/statistics/Passed"));
            println!("{} {level}: {count:?} passed", profile["name"]);
            let result = result.and_then(Value::as_str);
            assert!(
                result == Some("success") || level == "extended" && result.is_none(),
                "{profile:#}\n{failures}"
            );
        }
    }
    assert_eq!(reported.count(), profiles.len(), "{report}");
    assert!(passed, "{failures}");
}

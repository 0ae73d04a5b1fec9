//! The Gateway API in a cluster, from its own module (tests/kube/gateway-api).

use crate::{Cluster, root};
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
        "--timeout=60s",
    ]);
}

fn script(name: &str) -> Command {
    Command::new(root().join("tests/kube/gateway-api").join(name))
}

/// What a run of the suite gave.
pub struct Conformance {
    /// No test failed.
    pub passed: bool,
    /// As the suite reports.
    pub report: Value,
    /// What failed and what it said.
    pub failures: String,
}

/// Runs the conformance suite with these profiles, where the mesh is installed.
///
/// # Panics
/// It cannot be run at all.
pub fn conformance(name: &str, profiles: &[&str]) -> Conformance {
    let file = root().join(format!("build/gateway-api/{name}.json"));
    let run = script("run.sh").arg(&file).arg(profiles.join(",")).status();
    let passed = run.unwrap_or_else(|e| panic!("run.sh: {e}")).success();
    let log = file.with_extension("json.log");
    let log = std::fs::read_to_string(&log).unwrap_or_else(|e| panic!("{}: {e}", log.display()));
    let telling = |line: &&str| line.contains("--- FAIL") || line.contains("Error");
    let lines = log.lines().filter(telling);
    let failures = lines.collect::<Vec<_>>().join("\n");
    let text = std::fs::read_to_string(&file);
    let text = text.unwrap_or_else(|e| panic!("{}: {e}\n{log}", file.display()));
    let report = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    Conformance {
        passed,
        report,
        failures,
    }
}

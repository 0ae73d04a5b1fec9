//! The conformance suite of the Gateway API, as its authors wrote it: routes of services and gateways.

#![allow(clippy::unwrap_used)]

use serde_json::Value;
use tests_kube::{Cluster, conformance, install, install_gateway_api};

/// What must hold without exception; `make conformance-kube` runs the other profiles, too.
const PROFILES: [&str; 2] = ["MESH-HTTP", "MESH-GRPC"];

#[test]
fn the_suite_of_the_gateway_api_passes() {
    let Some(cluster) = Cluster::get() else {
        return;
    };
    install_gateway_api(&cluster);
    install(&cluster);
    let run = conformance("test-kube", &PROFILES);
    let reported = run.report["profiles"].as_array().unwrap();
    assert_eq!(reported.len(), PROFILES.len(), "{}", run.report);
    for profile in reported {
        for level in ["core", "extended"] {
            let result = profile.pointer(&format!("/{level}/result"));
            let passed = profile.pointer(&format!("/{level}/statistics/Passed"));
            println!("{} {level}: {passed:?}", profile["name"]);
            let result = result.and_then(Value::as_str);
            assert!(
                result == Some("success") || level == "extended" && result.is_none(),
                "{profile:#}\n{}",
                run.failures
            );
        }
    }
    assert!(run.passed, "{}", run.failures);
}

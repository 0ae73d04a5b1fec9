//! The conformance suite of the Gateway API, as its authors wrote it: routes of services.

use tests_kube::conforms;

#[test]
fn the_suite_of_the_gateway_api_passes_for_services() {
    conforms("mesh", &["MESH-HTTP", "MESH-GRPC"]);
}

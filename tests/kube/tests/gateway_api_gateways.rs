//! The conformance suite of the Gateway API, as its authors wrote it: gateways and their routes.

use tests_kube::conforms;

#[test]
fn the_suite_of_the_gateway_api_passes_for_gateways() {
    conforms(
        "gateways",
        &["GATEWAY-HTTP", "GATEWAY-GRPC", "GATEWAY-TLS", "GATEWAY-TCP"],
    );
}

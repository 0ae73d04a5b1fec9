//! Generates Rust code from the files below `api`. protox reads the files itself, so a build needs
//! no external `protoc`.

use std::error::Error;

const ROOT: &str = "../../api";
const FILES: [&str; 4] = [
    "mesh/v1/certificates.proto",
    "mesh/v1/config.proto",
    "mesh/v1/objects.proto",
    "mesh/v1/telemetry.proto",
];

const SIGNALS: [&str; 3] = ["trace", "metrics", "logs"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={ROOT}");
    println!("cargo:rerun-if-changed=build.rs");
    let descriptors = protox::compile(FILES, [ROOT])?;
    tonic_prost_build::configure()
        // One encoded body is shared by every proxy it is sent to.
        .bytes(".tulle.mesh.v1.Resource.body")
        .bytes(".tulle.mesh.v1.Resource.labels")
        .bytes(".tulle.mesh.v1.ToldResource.body")
        // The same input always encodes to the same bytes, so unchanged resources compare equal.
        .btree_map(".")
        .codec_path("crate::codec::SmallCodec")
        .compile_fds(descriptors)?;
    let descriptors = protox::compile(["ext_authz/v3/authorization.proto"], [ROOT])?;
    tonic_prost_build::configure()
        .build_client(false)
        .btree_map(".")
        .compile_fds(descriptors)?;
    let descriptors = protox::compile(["grpc_health/v1/health.proto"], [ROOT])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    otlp()
}

/// Messages for collectors. Clients are not made: one that sends bytes serves all three.
fn otlp() -> Result<(), Box<dyn Error>> {
    let files = SIGNALS.map(|signal| format!("otlp/v1/{signal}.proto"));
    let descriptors = protox::compile(files, [ROOT])?;
    tonic_prost_build::configure()
        .build_client(false)
        .extern_path(".opentelemetry.proto.common.v1", "crate::otlp::common")
        .compile_fds(descriptors)?;
    // After those that import it: they leave an empty file of its name.
    let descriptors = protox::compile(["otlp/v1/common.proto"], [ROOT])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}

//! Mutual TLS: our identity, the trusted roots, and the identities that may answer or call.

use crate::whole::Certificates;
use serde_json::{Value, json};
use tulle_model::identity::SpiffeId;
use tulle_model::resource::MeshSettings;

/// Name of the secret with this proxy's certificate and key.
pub(crate) const IDENTITY: &str = "identity";
/// Name of the secret with the roots.
pub(crate) const TRUST_BUNDLE: &str = "trust-bundle";

const UPSTREAM: &str =
    "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext";
const DOWNSTREAM: &str =
    "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext";

/// Returns the TLS settings towards a server that must present one of these identities.
pub(crate) fn to_server(
    certificates: &Certificates,
    identities: &[SpiffeId],
    alpn: &[&str],
) -> Value {
    let names: Vec<Value> = identities
        .iter()
        .map(|id| uri(json!({ "exact": id.as_str() })))
        .collect();
    let common = common(certificates, &names, alpn);
    socket(json!({ "@type": UPSTREAM, "common_tls_context": common }))
}

/// Returns the TLS settings for a client of this mesh: one of `allowed`, or any. The policy decides
/// about its requests.
pub(crate) fn from_client(
    certificates: &Certificates,
    mesh: &MeshSettings,
    allowed: Option<&[&SpiffeId]>,
    alpn: &[&str],
) -> Value {
    let domain = format!("spiffe://{}", mesh.trust_domain);
    let names = match allowed {
        None => vec![uri(json!({ "prefix": format!("{domain}/") }))],
        // Without any name Envoy would accept everyone; no workload's identity has an empty path.
        Some([]) => vec![uri(json!({ "exact": domain }))],
        Some(ids) => {
            let ids = ids.iter().map(|id| uri(json!({ "exact": id.as_str() })));
            ids.collect()
        }
    };
    let common = common(certificates, &names, alpn);
    socket(json!({
        "@type": DOWNSTREAM,
        "common_tls_context": common,
        "require_client_certificate": true,
    }))
}

fn socket(context: Value) -> Value {
    json!({ "name": "envoy.transport_sockets.tls", "typed_config": context })
}

fn uri(matcher: Value) -> Value {
    json!({ "san_type": "URI", "matcher": matcher })
}

fn common(certificates: &Certificates, names: &[Value], alpn: &[&str]) -> Value {
    let mut common = json!({
        "tls_params": {
            "tls_minimum_protocol_version": "TLSv1_3",
            "tls_maximum_protocol_version": "TLSv1_3",
        },
    });
    match certificates {
        Certificates::Files(files) => {
            common["tls_certificates"] = json!([{
                "certificate_chain": { "filename": files.certificate },
                "private_key": { "filename": files.key },
            }]);
            common["validation_context"] = json!({
                "trusted_ca": { "filename": files.trust_bundle },
                "match_typed_subject_alt_names": names,
            });
        }
        Certificates::Secrets(source) => {
            common["tls_certificate_sds_secret_configs"] =
                json!([{ "name": IDENTITY, "sds_config": source }]);
            common["combined_validation_context"] = json!({
                "default_validation_context": { "match_typed_subject_alt_names": names },
                "validation_context_sds_secret_config":
                    { "name": TRUST_BUNDLE, "sds_config": source },
            });
        }
    }
    if !alpn.is_empty() {
        common["alpn_protocols"] = json!(alpn);
    }
    common
}

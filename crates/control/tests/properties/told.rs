//! Resources that proxies of the well-meaning namespaces receive.

use super::manifests::EVIL;
use std::collections::{BTreeMap, BTreeSet};
use tulle_control::index::Index;
use tulle_model::identity::SpiffeId;
use tulle_model::namespaced::Namespaced;
use tulle_model::resource::{EgressRule, Resource};

/// Compares what the others receive with what they received before. `lost` are addresses that are `evil`'s.
///
/// # Errors
/// The resource that differs or is new.
pub(crate) fn compare(
    before: &BTreeMap<String, Vec<u8>>,
    after: &BTreeMap<String, Vec<u8>>,
    lost: &BTreeSet<String>,
) -> Result<(), String> {
    for (name, body) in before {
        if after.get(name) != Some(body) && !lost.contains(name) {
            return Err(format!("{name} is another"));
        }
    }
    for name in after.keys() {
        if !before.contains_key(name) && !is_new_of_evil(name) {
            return Err(format!("{name} is new"));
        }
    }
    Ok(())
}

/// Returns the resources by which anybody but `evil` goes, as bytes. It leaves out only `evil`'s part of the
/// resources that everybody receives: routes for its own clients, egress of its own workloads, and whether it is
/// strict.
pub(crate) fn told_to_others(index: &Index) -> BTreeMap<String, Vec<u8>> {
    let shop = ["web", "front", "x"].map(|a| format!("spiffe://tulle.local/ns/shop/sa/{a}"));
    let shop = shop.map(|id| SpiffeId::parse(&id).expect("an identity"));
    let mut told = BTreeMap::from([("egress".to_owned(), Vec::new())]);
    for (name, entry) in index.entries() {
        let owner = entry.owner.as_ref().and_then(SpiffeId::service_account);
        if owner.is_some_and(|(namespace, _)| namespace == EVIL) {
            continue;
        }
        let resource = match tulle_api::decode_body(&entry.body).expect("a resource") {
            Resource::Catalog(_) => continue,
            Resource::Mesh(mut mesh) => {
                mesh.strict_namespaces.remove(EVIL);
                Resource::Mesh(mesh)
            }
            Resource::Service(mut service) => {
                service.routes.retain(|route| route.clients != EVIL);
                Resource::Service(service)
            }
            Resource::Egress(mut egress) => {
                let is_for = |rule: &EgressRule| shop.iter().any(|id| rule.is_for(id));
                egress.rules.retain(is_for);
                Resource::Egress(egress)
            }
            other => other,
        };
        told.insert(name.to_string(), tulle_api::encode_body(&resource).to_vec());
    }
    told
}

/// Whether a resource that was not there before may be there: it is `evil`'s, or an address nobody had.
fn is_new_of_evil(name: &str) -> bool {
    let (kind, rest) = name.split_once('/').unwrap_or((name, ""));
    match kind {
        "service" | "inbound" | "gateway" => {
            Namespaced::parse(rest).is_some_and(|name| name.namespace() == EVIL)
        }
        "host" => {
            let forms = [".evil", ".evil.svc", ".evil.svc.cluster.local"];
            forms.iter().any(|form| rest.ends_with(form))
        }
        "address" => true,
        _ => false,
    }
}

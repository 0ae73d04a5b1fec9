//! The mesh that is installed already, as far as a second installation or an upgrade must not change it by
//! the way.

use super::cluster::Cluster;
use super::values;
use super::workloads::text;
use crate::failure::{Failure, Result};
use serde_json::{Value, json};
use tulle_kube::install::choice::Choice;

/// The mesh that is installed, read from its settings.
#[derive(Debug, Default)]
pub(super) struct Present {
    namespace: String,
    trust_domain: String,
    /// The `spec` of its Mesh.
    mesh: Value,
}

/// Asks the cluster; none if no mesh is installed.
pub(super) async fn find(cluster: &Cluster) -> Result<Option<Present>> {
    let namespace = cluster.home().await?;
    let path = format!("/api/v1/namespaces/{namespace}/configmaps/tulle-settings");
    let Some(found) = cluster.get(&path).await? else {
        return Ok(None);
    };
    let settings: Value =
        serde_json::from_str(text(&found, "/data/settings.json")).unwrap_or_default();
    Ok(Some(Present {
        namespace,
        trust_domain: text(&settings, "/sidecars/trustDomain").to_owned(),
        mesh: settings["mesh"].clone(),
    }))
}

impl Present {
    /// Merges layers of values with the installed settings. A strict mesh stays strict unless the layers
    /// say otherwise, and the trust domain cannot change.
    ///
    /// # Errors
    /// The values cannot be used, or the trust domain differs.
    pub(super) fn choice(&self, layers: &[Value]) -> Result<Choice> {
        let kept = self.kept();
        let all = [std::slice::from_ref(&kept), layers].concat();
        let (choice, alone) = (values::choice(&all)?, values::choice(layers)?);
        if choice.values["mesh"] != alone.values["mesh"] {
            anstream::eprintln!(
                "note: the mesh in {} is stricter than new ones are, and stays so ({}); \
                 --set mesh.mtls.mode=permissive and --set mesh.allowEgress=true loosen it",
                self.namespace,
                kept["mesh"]
            );
        }
        let (is, wanted) = (self.trust_domain.as_str(), choice.trust_domain());
        if !is.is_empty() && is != wanted {
            let what = format!(
                "the trust domain is {is} and cannot become {wanted}: a mesh is installed in {}",
                self.namespace
            );
            let why = format!(
                "all identities and policies of it are of {is}, and what starts with another cannot talk to it"
            );
            return Err(Failure::input(what).because(why).fix(format!(
                "`--trust-domain {is}` keeps it; for another one `tulle uninstall`, then install with it and \
                 restart what has sidecars"
            )));
        }
        Ok(choice)
    }

    /// Returns the `spec` of the Mesh that it was installed with.
    pub(super) fn into_mesh(self) -> Value {
        self.mesh
    }

    fn kept(&self) -> Value {
        let mut kept = json!({});
        if self.mesh.is_object() && text(&self.mesh, "/mtls/mode") != "permissive" {
            kept["mtls"] = json!({ "mode": "strict" });
        }
        if self.mesh.is_object() && self.mesh["allowEgress"] != true {
            kept["allowEgress"] = false.into();
        }
        json!({ "mesh": kept })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn present(mesh: Value) -> Present {
        Present {
            namespace: "tulle-system".into(),
            trust_domain: "prod.example".into(),
            mesh,
        }
    }

    #[test]
    fn a_strict_mesh_is_not_loosened_by_the_way() {
        let domain = json!({ "trustDomain": "prod.example" });
        // Earlier versions with another default installed it.
        let earlier = present(json!({ "permissiveMode": true }));
        let mesh = |present: &Present, layers: &[Value]| {
            present.choice(layers).unwrap().values["mesh"].clone()
        };
        let kept =
            json!({ "permissiveMode": true, "mtls": { "mode": "strict" }, "allowEgress": false });
        assert_eq!(mesh(&earlier, std::slice::from_ref(&domain)), kept);
        let chosen = json!({ "mesh": { "allowEgress": true } });
        assert_eq!(
            mesh(&earlier, &[domain.clone(), chosen])["allowEgress"],
            true
        );
        let loose = json!({ "permissiveMode": true, "mtls": { "mode": "permissive" }, "allowEgress": true });
        assert_eq!(
            mesh(&present(loose.clone()), std::slice::from_ref(&domain)),
            loose
        );
        assert_eq!(mesh(&Present::default(), &[]), loose);
    }

    #[test]
    fn the_trust_domain_stays() {
        for layers in [vec![], vec![json!({ "trustDomain": "other" })]] {
            let failure = present(json!({})).choice(&layers).unwrap_err();
            assert_eq!(failure.exit, crate::failure::Exit::Input);
            let text = failure.to_string();
            assert!(text.contains("is prod.example and cannot become"), "{text}");
            assert!(text.contains("tulle uninstall"), "{text}");
        }
    }
}

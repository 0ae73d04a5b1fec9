//! `tulle check --fix` in a cluster: makes again what is missing of the installation, as far as that is safe.
//!
//! It changes no object that is there. It makes no rights, no settings and nothing that can refuse traffic or pods:
//! whoever took these away may have meant it. It names them instead.

use super::cluster::Cluster;
use super::workloads::text;
use super::{inject, install, present, upgrade};
use crate::check::{Fix, FixOutcome};
use crate::client::Rpc;
use crate::failure::{Failure, Result};
use serde_json::Value;
use tulle_api::v1::StatusRequest;
use tulle_kube::install::objects;
use tulle_kube::names::CONTROLLER;

/// Makes it, or says with `dry_run` what would be made.
pub(super) async fn fix(cluster: &Cluster, dry_run: bool) -> Result<Vec<Fix>> {
    let wanted = match wanted(cluster).await {
        Ok(wanted) => wanted,
        Err(failure) => {
            let what = format!("objects of the installation were not looked at: {failure}");
            return Ok(vec![Fix::new(FixOutcome::Left, what)]);
        }
    };
    let mut fixes = Vec::new();
    for object in wanted {
        let place = upgrade::place(&object);
        if cluster.get(&place).await?.is_some() {
            continue;
        }
        let name = upgrade::shown(&object);
        if !is_safe(&object) {
            // Kinds of SMI may be somebody else's to install, or not wanted.
            if text(&object, "/kind") == "CustomResourceDefinition" {
                continue;
            }
            let what = format!("{name} is missing; `tulle upgrade --apply` makes it again");
            fixes.push(Fix::new(FixOutcome::Left, what));
            continue;
        }
        if dry_run {
            let what = format!("make {name} again, which is missing");
            fixes.push(Fix::new(FixOutcome::Would, what));
            continue;
        }
        let kind = place
            .rsplit_once('/')
            .map_or(place.as_str(), |(kind, _)| kind);
        cluster.create(kind, &object).await?;
        let what = format!("made {name} again, which was missing");
        fixes.push(Fix::new(FixOutcome::Done, what));
    }
    Ok(fixes)
}

/// Whether making an object again gives no rights, changes no settings and cannot cut anything off.
fn is_safe(object: &Value) -> bool {
    match text(object, "/kind") {
        "Service" => true,
        "CustomResourceDefinition" => text(object, "/spec/group").ends_with("tulle.dev"),
        _ => false,
    }
}

/// The objects of the mesh that is installed, as this command would make them.
async fn wanted(cluster: &Cluster) -> Result<Vec<Value>> {
    let options = inject::options(cluster).await?;
    let mut controller = cluster.objects().await?;
    let status = controller.status(StatusRequest::default()).await;
    let version = status
        .rpc(|| "cannot ask the controller for its version".to_owned())?
        .version;
    let own = env!("CARGO_PKG_VERSION");
    if version != own {
        return Err(Failure::new(format!(
            "the controller is of version {version}, this command of {own}"
        ))
        .fix("use the command of the controller's version, or `tulle upgrade`"));
    }
    let home = options.namespace;
    let path = format!("/apis/apps/v1/namespaces/{home}/deployments/{CONTROLLER}");
    let deployment = cluster.get(&path).await?.unwrap_or_default();
    // `helm upgrade` makes again what is Helm's.
    if upgrade::is_of_helm(&deployment) {
        return Ok(Vec::new());
    }
    let layers = [upgrade::given(cluster, &home).await?];
    let present = present::find(cluster).await?.unwrap_or_default();
    Ok(install::with_kinds(objects(
        &home,
        &present.choice(&layers)?,
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rights_settings_and_what_can_refuse_are_not_made() {
        let object = |kind: &str, group: &str| json!({ "kind": kind, "spec": { "group": group } });
        assert!(is_safe(&object("Service", "")));
        assert!(is_safe(&object("CustomResourceDefinition", "tulle.dev")));
        assert!(!is_safe(&object(
            "CustomResourceDefinition",
            "split.smi-spec.io"
        )));
        for kind in [
            "ClusterRole",
            "RoleBinding",
            "ConfigMap",
            "NetworkPolicy",
            "MutatingWebhookConfiguration",
            "Deployment",
        ] {
            assert!(!is_safe(&object(kind, "tulle.dev")), "{kind}");
        }
    }
}

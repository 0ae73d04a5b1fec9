//! `tulle identity` in a cluster: the Mesh object says what is revoked, so that all replicas of the
//! controller know it, and a backup of the cluster.

use super::cluster::Cluster;
use crate::args::identity::Identity;
use crate::client::Rpc;
use crate::failure::{Failure, OrFail, Result};
use crate::identity::{asked, list, said};
use serde::Deserialize;
use serde_json::{Value, json};
use tulle_api::v1::{Revocation, StatusRequest};
use tulle_model::identity::TrustDomain;
use tulle_model::manifest::RevocationSpec;
use tulle_model::resource::Revoked;

const MESHES: &str = "/apis/tulle.dev/v1alpha1/meshes";

/// Carries the command out.
pub(crate) async fn identity(cluster: &Cluster, args: &Identity) -> Result<()> {
    match args {
        Identity::List { format } => list(&mut cluster.objects().await?, format.output).await,
        Identity::Revoke { format, .. } => {
            let (what, asked) = asked(args)?;
            let (spec, revoked) = read(cluster, asked, &what).await?;
            change(cluster, |mut all| {
                all.retain(|other| meaning(other).as_ref() != Some(&revoked));
                all.push(json!(spec));
                Ok(all)
            })
            .await?;
            said(shown(&spec, &revoked), "revoked", format.output)
        }
        Identity::Allow { format, .. } => {
            let (what, asked) = asked(args)?;
            if !asked.issuer.is_empty() {
                let is_it = |revoked: &Revoked| revoked.issued.contains_key(&asked.issuer);
                forget(cluster, "its list", is_it).await?;
                return said(asked, "allowed", format.output);
            }
            let (spec, revoked) = read(cluster, asked, &what).await?;
            forget(cluster, &what, |other| *other == revoked).await?;
            said(shown(&spec, &revoked), "allowed", format.output)
        }
    }
}

async fn forget(cluster: &Cluster, what: &str, is_it: impl Fn(&Revoked) -> bool) -> Result<()> {
    change(cluster, |mut all| {
        let before = all.len();
        all.retain(|other| !meaning(other).is_some_and(|other| is_it(&other)));
        match all.len() == before {
            true => Err(Failure::new(format!("{what} is not revoked"))),
            false => Ok(all),
        }
    })
    .await
}

fn meaning(spec: &Value) -> Option<Revoked> {
    let spec = RevocationSpec::deserialize(spec).ok()?;
    spec.read().ok()
}

/// Reads what is asked for; an identity becomes a whole one of the mesh's trust domain.
async fn read(
    cluster: &Cluster,
    asked: Revocation,
    what: &str,
) -> Result<(RevocationSpec, Revoked)> {
    let mut objects = cluster.objects().await?;
    let status = objects.status(StatusRequest::default()).await;
    let status = status.rpc(|| "cannot ask for the trust domain".to_owned())?;
    let domain = TrustDomain::parse(&status.trust_domain)
        .or_fail(|| "the controller gave a trust domain that is none".to_owned())?;
    asked
        .asked()
        .in_trust_domain(&domain)
        .map_err(|(field, problem)| {
            Failure::input(format!("{what} is not revoked")).because(format!("{field}: {problem}"))
        })
}

/// Changes what the Mesh object revokes, unless somebody else changes the object meanwhile.
async fn change(
    cluster: &Cluster,
    change: impl FnOnce(Vec<Value>) -> Result<Vec<Value>>,
) -> Result<()> {
    let path = format!("{MESHES}/mesh");
    let found = cluster.get(&path).await?;
    let present = found
        .as_ref()
        .and_then(|mesh| mesh.pointer("/spec/revoked"));
    let present = present.and_then(Value::as_array).cloned();
    let revoked = change(present.unwrap_or_default())?;
    match found {
        Some(mesh) => {
            let version = mesh.pointer("/metadata/resourceVersion");
            let changed = json!({
                "metadata": { "resourceVersion": version },
                "spec": { "revoked": revoked },
            });
            cluster.patch(&path, &changed).await
        }
        None => {
            let mesh = json!({
                "apiVersion": "tulle.dev/v1alpha1",
                "kind": "Mesh",
                "metadata": { "name": "mesh" },
                "spec": { "revoked": revoked },
            });
            cluster.create(MESHES, &mesh).await.map(drop)
        }
    }
}

fn shown(spec: &RevocationSpec, revoked: &Revoked) -> Revocation {
    Revocation {
        of_mesh: true,
        ..Revocation::from_spec(spec, revoked)
    }
}

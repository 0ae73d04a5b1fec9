//! Changes by an operator, as by command. In a cluster the API server's rights decide, so nothing is.

use super::findings::object_name;
use super::pages::{Applied, AppliedObject, FindingRow, Refusal};
use super::{Observer, guide, not_found, refusal};
use crate::state::{Actor, MeshState, Refused};
use std::time::SystemTime;
use tulle_api::v1;
use tulle_model::manifest;

impl Observer {
    /// Applies manifests, as `tulle apply` does.
    ///
    /// # Errors
    /// Why they are refused.
    pub async fn apply(&self, yaml: String, dry_run: bool) -> Result<Applied, Refusal> {
        let asked = v1::ApplyRequest {
            objects: read(&yaml)?,
            dry_run,
            ..Default::default()
        };
        let work = move |state: &MeshState| state.apply(&Actor::Operator, &asked);
        let applied = self.change(work).await?;
        let results = applied.results.into_iter().map(|result| AppliedObject {
            kind: result.kind,
            name: result.name,
            outcome: result.outcome,
        });
        let findings = applied.findings.into_iter().map(finding);
        Ok(Applied {
            results: results.collect(),
            findings: findings.collect(),
        })
    }

    /// Deletes an object, as `tulle delete` does.
    ///
    /// # Errors
    /// There is none, or why it is refused.
    pub async fn delete(&self, kind: String, name: String) -> Result<(), Refusal> {
        let what = format!("{kind}/{name}");
        let work = move |state: &MeshState| state.delete(&Actor::Operator, &kind, &name);
        match self.change(work).await? {
            true => Ok(()),
            false => Err(not_found(&what)),
        }
    }

    /// Refuses an identity from now on.
    ///
    /// # Errors
    /// Why it is not revoked.
    pub async fn revoke(&self, identity: String, reason: String) -> Result<(), Refusal> {
        let asked = v1::Revocation {
            identity,
            reason,
            ..Default::default()
        };
        let work = move |state: &MeshState| state.revoke(asked, SystemTime::now());
        self.change(work).await.map(drop)
    }

    /// Changes something, away from the threads that serve connections: it waits for the disk.
    async fn change<T: Send + 'static>(
        &self,
        work: impl FnOnce(&MeshState) -> Result<T, Refused> + Send + 'static,
    ) -> Result<T, Refusal> {
        if self.in_cluster() {
            return Err(Refusal {
                code: "not_offered",
                message: "in a cluster the API server has the objects".into(),
                fix: "use kubectl".into(),
                status: 409,
            });
        }
        let state = self.state.clone();
        let done = tokio::task::spawn_blocking(move || work(&state)).await;
        let done = done.unwrap_or_else(|error| {
            tracing::error!(%error, "a change panicked");
            Err(Refused::Failed(
                "the controller failed; its log says why".into(),
            ))
        });
        done.map_err(refusal)
    }
}

fn read(yaml: &str) -> Result<Vec<v1::Object>, Refusal> {
    let read = manifest::parse("manifest", yaml).map_err(|errors| {
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        refusal(Refused::Invalid(errors.join("\n")))
    })?;
    let objects = read.into_iter().map(|located| v1::Object {
        kind: located.object.kind().to_owned(),
        name: located.object.name().to_owned(),
        json: located.object.to_json(),
    });
    Ok(objects.collect())
}

fn finding(found: v1::Finding) -> FindingRow {
    let object = found.object.split_once('/');
    FindingRow {
        severity: "warning",
        object: object.map(|(kind, name)| object_name(kind, name, false)),
        field: found.field,
        message: found.message,
        fix: guide::finding(&found.code).fix.to_owned(),
        doc: "docs/findings.md".into(),
        code: found.code,
    }
}

//! Tells which workload a pod is a part of, by Istio's rules, since metrics have Istio's labels.
//!
//! <https://istio.io/latest/docs/reference/config/metrics/>

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use tulle_model::resource::Workload;

/// Kubernetes' own label of a Deployment's pods.
const TEMPLATE_HASH: &str = "pod-template-hash";
/// Labels that name what a pod serves; the first that it has counts.
const SERVICE: [&str; 3] = [
    "service.istio.io/canonical-name",
    "app.kubernetes.io/name",
    "app",
];
/// The same of its version.
const REVISION: [&str; 3] = [
    "service.istio.io/canonical-revision",
    "app.kubernetes.io/version",
    "version",
];

/// Returns the workload of a pod.
pub(crate) fn of_pod(metadata: &ObjectMeta) -> Workload {
    let label = |name: &str| {
        let labels = metadata.labels.as_ref();
        let value = labels.and_then(|labels| labels.get(name));
        value.map(String::as_str).unwrap_or_default()
    };
    let first = |names: [&str; 3]| {
        let values = names.into_iter().map(label);
        values.into_iter().find(|value| !value.is_empty())
    };
    let own = || ("Pod", metadata.name.as_deref().unwrap_or_default());
    // A pod whose name nobody generated is what it says, whoever owns it.
    let generated = metadata
        .generate_name
        .as_ref()
        .is_some_and(|n| !n.is_empty());
    let (kind, name) = match controller(metadata).filter(|_| generated) {
        Some(owner) => of_owner(owner, label(TEMPLATE_HASH)),
        None => own(),
    };
    Workload {
        name: name.to_owned(),
        kind: if kind == "Deployment" { "" } else { kind }.to_owned(),
        app: label("app").to_owned(),
        version: label("version").to_owned(),
        canonical_service: first(SERVICE).unwrap_or_default().to_owned(),
        canonical_revision: first(REVISION).unwrap_or_default().to_owned(),
    }
}

/// Returns who made a pod and makes it again.
pub(crate) fn controller(metadata: &ObjectMeta) -> Option<&OwnerReference> {
    let mut owners = metadata.owner_references.iter().flatten();
    owners.find(|owner| owner.controller == Some(true))
}

/// Returns kind and name of the workload that the owner is a part of.
fn of_owner<'a>(owner: &'a OwnerReference, hash: &str) -> (&'a str, &'a str) {
    let part_of = match &*owner.kind {
        "ReplicaSet" => deployment(&owner.name, hash).map(|name| ("Deployment", name)),
        "Job" => cron_job(&owner.name).map(|name| ("CronJob", name)),
        _ => None,
    };
    part_of.unwrap_or((&owner.kind, &owner.name))
}

/// Returns the Deployment of a ReplicaSet: it names its ReplicaSets so, and its pods say with which hash.
pub(crate) fn deployment<'a>(replica_set: &'a str, hash: &str) -> Option<&'a str> {
    let name = replica_set.strip_suffix(hash)?.strip_suffix('-')?;
    (!hash.is_empty()).then_some(name)
}

/// Returns the CronJob of a Job: it names its Jobs by the minute.
fn cron_job(job: &str) -> Option<&str> {
    let (name, minute) = job.rsplit_once('-')?;
    let digits = minute.bytes().all(|b| b.is_ascii_digit());
    (digits && (8..=10).contains(&minute.len()) && !name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn workload(owner: (&str, &str), labels: Value) -> Workload {
        of_pod(
            &serde_json::from_value(json!({
                "name": "pod-x", "generateName": "pod-", "labels": labels,
                "ownerReferences": [{
                    "apiVersion": "v1", "kind": owner.0, "name": owner.1, "uid": "u", "controller": true,
                }],
            }))
            .unwrap(),
        )
    }

    #[test]
    fn a_pod_is_a_part_of_who_makes_it() {
        let hash = json!({ TEMPLATE_HASH: "5d9" });
        for (owner, labels, kind, name) in [
            (("ReplicaSet", "web-v1-5d9"), &hash, "Deployment", "web-v1"),
            (("ReplicaSet", "web-5d8"), &hash, "ReplicaSet", "web-5d8"),
            (("ReplicaSet", "web"), &json!({}), "ReplicaSet", "web"),
            (("StatefulSet", "db"), &json!({}), "StatefulSet", "db"),
            (("Job", "backup-29312345"), &json!({}), "CronJob", "backup"),
            (("Job", "backup-1"), &json!({}), "Job", "backup-1"),
        ] {
            let found = workload(owner, labels.clone());
            assert_eq!((found.kind(), &*found.name), (kind, name), "{owner:?}");
            assert!(found.is_valid());
        }
        let alone = json!({ "name": "alone", "ownerReferences": [] });
        let alone = of_pod(&serde_json::from_value(alone).unwrap());
        assert_eq!((alone.kind(), &*alone.name), ("Pod", "alone"));
    }

    #[test]
    fn labels_name_service_and_revision_by_istios_rules() {
        let of = |labels| {
            let w = workload(("StatefulSet", "db"), labels);
            let canonical = (
                w.canonical_service().to_owned(),
                w.canonical_revision().to_owned(),
            );
            (w.app.clone(), w.version.clone(), canonical)
        };
        let said = |app: &str, version: &str, service: &str, revision: &str| {
            let texts = [app, version, service, revision].map(str::to_owned);
            let [app, version, service, revision] = texts;
            (app, version, (service, revision))
        };
        assert_eq!(of(json!({})), said("", "", "db", "latest"));
        let usual = json!({ "app": "a", "version": "v1" });
        assert_eq!(of(usual), said("a", "v1", "a", "v1"));
        let kubernetes = json!({
            "app": "a", "version": "v1",
            "app.kubernetes.io/name": "b", "app.kubernetes.io/version": "v2",
        });
        assert_eq!(of(kubernetes), said("a", "v1", "b", "v2"));
        let istio = json!({
            "app.kubernetes.io/name": "b", "app.kubernetes.io/version": "v2",
            "service.istio.io/canonical-name": "c", "service.istio.io/canonical-revision": "v3",
        });
        assert_eq!(of(istio), said("", "", "c", "v3"));
    }
}

//! `tulle upgrade`: what `tulle install` of this version prints or applies, with the settings that are there.

use super::cluster::Cluster;
use super::workloads::text;
use super::{install, present, rollout, values};
use crate::args::cluster::Which;
use crate::args::install::Upgrade;
use crate::args::output::{Format, ObjectFormat};
use crate::failure::{Failure, Result};
use crate::output::{self, Columns, line};
use serde::Serialize;
use serde_json::Value;
use tulle_kube::install::{VALUES, objects};
use tulle_kube::names::CONTROLLER;

/// A change to an object.
#[derive(Debug, Serialize, PartialEq)]
struct Change {
    object: String,
    /// Empty: the whole object is new.
    field: String,
    from: String,
    to: String,
}

/// Prints or applies the objects, or shows with `--dry-run` what they would change.
pub(crate) async fn upgrade(cluster: &Cluster, which: &Which, args: &Upgrade) -> Result<()> {
    let options = super::inject::options(cluster).await?;
    let home = options.namespace.clone();
    let path = format!("/apis/apps/v1/namespaces/{home}/deployments/{CONTROLLER}");
    let controller = cluster.get(&path).await?.ok_or_else(|| {
        Failure::new(format!("there is no controller in the namespace {home}"))
            .fix("`tulle install | kubectl apply -f -`")
    })?;
    if is_of_helm(&controller) {
        return Err(Failure::new("this mesh was installed by Helm").fix("`helm upgrade`"));
    }
    let present = present::find(cluster).await?.unwrap_or_default();
    let mut layers = vec![without_images(given(cluster, &home).await?)];
    layers.extend(values::layers(&args.chosen, values::images(&args.images))?);
    let wanted = install::with_kinds(objects(&home, &present.choice(&layers)?));
    if args.applying.apply {
        let text = install::written(&wanted, ObjectFormat::Yaml)?;
        return rollout::apply(cluster, which, (&wanted, &text), &args.applying).await;
    }
    if !args.dry_run {
        let format = match args.format.output {
            Format::Json => ObjectFormat::Json,
            _ => ObjectFormat::Yaml,
        };
        return install::print(&wanted, format);
    }
    let mut changes = Vec::new();
    for object in &wanted {
        let name = shown(object);
        match cluster.get(&place(object)).await? {
            None => changes.push(Change {
                object: name,
                field: String::new(),
                from: String::new(),
                to: "new".into(),
            }),
            Some(present) => compare(&name, "", &present, object, &mut changes),
        }
    }
    if output::structured(&changes, args.format.output)? {
        return Ok(());
    }
    if changes.is_empty() {
        line("nothing would change");
        return Ok(());
    }
    let mut columns = Columns::new(&["OBJECT", "FIELD", "NOW", "THEN"]);
    for change in changes {
        columns.row(vec![change.object, change.field, change.from, change.to]);
    }
    line(&columns.render());
    Ok(())
}

/// Whether Helm made an object.
pub(super) fn is_of_helm(object: &Value) -> bool {
    let label = "/metadata/labels/app.kubernetes.io~1managed-by";
    text(object, label) == "Helm"
}

/// Reads the values that were chosen at installation.
pub(super) async fn given(cluster: &Cluster, home: &str) -> Result<Value> {
    let path = format!("/api/v1/namespaces/{home}/configmaps/{VALUES}");
    let found = cluster.get(&path).await?;
    let text = found.as_ref().map(|found| text(found, "/data/values.json"));
    let given = text.and_then(|text| serde_json::from_str(text).ok());
    given.ok_or_else(|| {
        Failure::new(format!("cannot read the values that the mesh was installed with: the ConfigMap {home}/{VALUES} is missing or not JSON"))
            .fix("run `tulle install` with these values and pipe it into `kubectl apply -f -`")
    })
}

/// A tag or digest is of one version.
fn without_images(mut given: Value) -> Value {
    if let Some(images) = given.get_mut("images").and_then(Value::as_object_mut) {
        images.remove("tag");
        for image in images.values_mut().filter_map(Value::as_object_mut) {
            image.remove("tag");
            image.remove("digest");
        }
    }
    given
}

/// `Kind/name`.
pub(super) fn shown(object: &Value) -> String {
    format!(
        "{}/{}",
        text(object, "/kind"),
        text(object, "/metadata/name")
    )
}

/// Where the API server has an object.
pub(super) fn place(object: &Value) -> String {
    let version = text(object, "/apiVersion");
    let api = if version.contains('/') { "apis" } else { "api" };
    let plural = plural(text(object, "/kind"));
    let name = text(object, "/metadata/name");
    match text(object, "/metadata/namespace") {
        "" => format!("/{api}/{version}/{plural}/{name}"),
        namespace => format!("/{api}/{version}/namespaces/{namespace}/{plural}/{name}"),
    }
}

fn plural(kind: &str) -> String {
    let kind = kind.to_lowercase();
    if kind.ends_with('s') {
        return format!("{kind}es");
    }
    match kind.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None => format!("{kind}s"),
    }
}

/// Lists the fields of `wanted` that differ from `now`. Fields that only `now` has belong to the API server
/// or to others.
fn compare(object: &str, field: &str, now: &Value, wanted: &Value, changes: &mut Vec<Change>) {
    match (now, wanted) {
        (Value::Object(now), Value::Object(wanted)) => {
            for (key, wanted) in wanted {
                let field = match field {
                    "" => key.clone(),
                    field => format!("{field}.{key}"),
                };
                // A default that is left out is as good as one that is named.
                let now = now.get(key).unwrap_or(&Value::Null);
                compare(object, &field, now, wanted, changes);
            }
        }
        (Value::Array(now), Value::Array(wanted)) if now.len() == wanted.len() => {
            for (n, (now, wanted)) in now.iter().zip(wanted).enumerate() {
                compare(object, &format!("{field}[{n}]"), now, wanted, changes);
            }
        }
        (now, wanted) if now == wanted || is_nothing(now) && is_nothing(wanted) => {}
        (now, wanted) => changes.push(Change {
            object: object.to_owned(),
            field: field.to_owned(),
            from: brief(now),
            to: brief(wanted),
        }),
    }
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.values().all(is_nothing),
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Bool(true) => false,
    }
}

/// A value in a few words.
fn brief(value: &Value) -> String {
    const LONGEST: usize = 60;
    let text = match value {
        Value::Null => return "-".into(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match text.chars().count() {
        0..=LONGEST => text,
        _ => text.chars().take(LONGEST).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_what_changes_is_said() {
        let now = json!({ "spec": { "a": 1, "list": [{ "x": 1, "added": 2 }], "uid": 3 } });
        let wanted = json!({ "spec": { "a": 2, "list": [{ "x": 1 }], "none": "" } });
        let mut changes = Vec::new();
        compare("Deployment/x", "", &now, &wanted, &mut changes);
        assert_eq!(
            changes,
            [Change {
                object: "Deployment/x".into(),
                field: "spec.a".into(),
                from: "1".into(),
                to: "2".into()
            }]
        );
    }

    #[test]
    fn objects_have_their_places() {
        let object = |version: &str, kind: &str, namespace: Value| json!({ "apiVersion": version, "kind": kind, "metadata": { "name": "a", "namespace": namespace } });
        assert_eq!(
            place(&object("v1", "Service", "n".into())),
            "/api/v1/namespaces/n/services/a"
        );
        let policy = object("networking.k8s.io/v1", "NetworkPolicy", "n".into());
        assert_eq!(
            place(&policy),
            "/apis/networking.k8s.io/v1/namespaces/n/networkpolicies/a"
        );
        let class = object("gateway.networking.k8s.io/v1", "GatewayClass", Value::Null);
        assert_eq!(
            place(&class),
            "/apis/gateway.networking.k8s.io/v1/gatewayclasses/a"
        );
    }
}

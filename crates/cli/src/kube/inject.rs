//! `tulle inject`: manifests that ask for sidecars, or have them already.

use super::cluster::Cluster;
use super::outside::mesh_in_force;
use super::workloads::text;
use crate::args::cluster::{Inject, Which};
use crate::failure::{Failure, OrFail, Result};
use serde::Deserialize;
use serde_json::{Value, json};
use std::io::Read;
use std::path::Path;
use tulle_kube::controller::ControllerOptions;
use tulle_kube::inject::{InjectionOutcome, InjectionSetting, Settings, inject as into_pod};
use tulle_kube::names::INJECT;
use tulle_model::manifest::MeshSpec;
use tulle_model::{Booleans, YamlDocument, to_yaml};

/// Prints the manifests as they are to be applied.
pub(crate) async fn inject(which: &Which, args: &Inject) -> Result<()> {
    let mut objects = Vec::new();
    for file in &args.files {
        objects.extend(read(file)?);
    }
    // Only the sidecar itself depends on the cluster.
    let settings = match args.manual {
        true => Some(settings(&Cluster::open(which).await?).await?),
        false => None,
    };
    let wish = if args.disable { "disabled" } else { "enabled" };
    let mut printed = String::new();
    for object in &mut objects {
        let name = format!(
            "{} {}",
            text(object, "/kind"),
            text(object, "/metadata/name")
        );
        each_pod(object, &mut |pod| match &settings {
            None => {
                label(pod, wish);
                Ok(())
            }
            Some(settings) => whole(pod, settings).map_err(|failure| failure.about(&name)),
        })?;
        printed.push_str("---\n");
        let yaml = to_yaml(&*object);
        printed.push_str(&yaml.or_fail(|| format!("cannot print {name}"))?);
    }
    crate::output::text(&printed);
    Ok(())
}

fn read(file: &Path) -> Result<Vec<Value>> {
    let what = || format!("cannot read {}", file.display());
    let text = if file == Path::new("-") {
        let mut text = String::new();
        let read = std::io::stdin().read_to_string(&mut text);
        read.or_fail(what)?;
        text
    } else {
        std::fs::read_to_string(file).map_err(|e| Failure::input(what()).because(e))?
    };
    let documents = YamlDocument::read_json(&text, Booleans::Wide);
    let documents = documents.map_err(|e| Failure::input(what()).because(e))?;
    Ok(documents.into_iter().filter(|d| !d.is_null()).collect())
}

/// Reads the settings with which the cluster's webhook makes new sidecars.
pub(crate) async fn settings(cluster: &Cluster) -> Result<Settings> {
    let settings = options(cluster).await?.sidecars;
    let mesh = mesh_in_force(cluster).await?;
    // The controller has refused one that cannot be read, and goes on with what was chosen before.
    Ok(match MeshSpec::deserialize(&mesh) {
        Ok(mesh) => settings.of_mesh(&mesh),
        Err(_) => settings,
    })
}

/// The settings of the cluster's controller.
pub(crate) async fn options(cluster: &Cluster) -> Result<ControllerOptions> {
    let home = cluster.home().await?;
    let path = format!("/api/v1/namespaces/{home}/configmaps/tulle-settings");
    let found = cluster.get(&path).await?.ok_or_else(|| {
        Failure::new(format!("no mesh is installed in the namespace {home}"))
            .fix("`tulle install | kubectl apply -f -`")
    })?;
    let options = serde_json::from_str(text(&found, "/data/settings.json"));
    options.map_err(|e| {
        Failure::new(format!("the ConfigMap {home}/tulle-settings is invalid"))
            .because(e)
            .fix("use the command of the version that is installed")
    })
}

/// Where pods of an object are; itself, if it is one.
fn each_pod(object: &mut Value, change: &mut dyn FnMut(&mut Value) -> Result<()>) -> Result<()> {
    let place = match text(object, "/kind") {
        "Pod" => return change(object),
        "Deployment"
        | "StatefulSet"
        | "DaemonSet"
        | "ReplicaSet"
        | "ReplicationController"
        | "Job" => "/spec/template",
        "CronJob" => "/spec/jobTemplate/spec/template",
        "List" => {
            let items = object.pointer_mut("/items").and_then(Value::as_array_mut);
            for item in items.into_iter().flatten() {
                each_pod(item, change)?;
            }
            return Ok(());
        }
        _ => return Ok(()),
    };
    match object.pointer_mut(place) {
        Some(template) => change(template),
        None => Ok(()),
    }
}

fn label(pod: &mut Value, wish: &str) {
    for member in ["metadata", "labels"] {
        let at = match member {
            "metadata" => &mut *pod,
            _ => &mut pod["metadata"],
        };
        if !at.get(member).is_some_and(Value::is_object) {
            at[member] = json!({});
        }
    }
    pod["metadata"]["labels"][INJECT] = wish.into();
}

fn whole(pod: &mut Value, settings: &Settings) -> Result<()> {
    let made = into_pod(pod, InjectionSetting::Enabled, settings);
    let made = made.map_err(|e| Failure::input("cannot add a sidecar").because(e))?;
    match made {
        InjectionOutcome::Injected(injected) => {
            *pod = injected;
            // Records that somebody asked for the sidecar. A label would make the API server call the
            // webhook for the pod.
            pod["metadata"]["annotations"][INJECT] = "enabled".into();
        }
        InjectionOutcome::Left(why) => anstream::eprintln!("note: no sidecar was added: {why}"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_found_wherever_they_are() {
        let mut list = json!({ "kind": "List", "items": [
            { "kind": "Pod", "spec": {} },
            { "kind": "Deployment", "spec": { "template": { "metadata": { "labels": { "app": "a" } } } } },
            { "kind": "CronJob", "spec": { "jobTemplate": { "spec": { "template": {} } } } },
            { "kind": "Service", "spec": {} },
        ] });
        let mut count = 0;
        each_pod(&mut list, &mut |pod| {
            count += 1;
            label(pod, "enabled");
            Ok(())
        })
        .unwrap();
        assert_eq!(count, 3);
        let labels = list
            .pointer("/items/1/spec/template/metadata/labels")
            .unwrap();
        assert_eq!(
            labels,
            &json!({ "app": "a", "tulle.dev/inject": "enabled" })
        );
        assert_eq!(
            list.pointer("/items/3"),
            Some(&json!({ "kind": "Service", "spec": {} }))
        );
    }
}

//! A pod gets its sidecar.
//!
//! Pure: a pod in, a pod out. The pod stays JSON all the way, so that a field of a newer API server
//! that nobody here knows is left as it is. [`review`] speaks the webhook's protocol around it.

pub(crate) mod containers;
mod injection_setting;
mod metrics;
mod older;
pub(crate) mod options;
mod probes;
pub mod review;

pub use injection_setting::InjectionSetting;
pub use older::differences;
pub use options::{Resources, is_known_annotation, ports};

use crate::names;
use metrics::Scraped;
use options::Options;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::fmt;
use tulle_model::manifest::{MeshSpec, parse_cpu, parse_memory};
use tulle_redirect::{Exceptions, PodRules, REDIRECTION};

/// Settings of all sidecars of a cluster, unless a pod has its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Settings {
    /// Image of the sidecar.
    pub image: String,
    /// Image of the init container; none: the CNI plugin makes the rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init_image: Option<String>,
    /// When images are pulled.
    #[serde(default = "if_not_present")]
    pub image_pull_policy: String,
    /// Secrets with which gateways' images are pulled. A sidecar's image is pulled with those of its pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<PullSecret>,
    /// `host:port` of the controller, as a pod resolves it.
    pub controller: String,
    /// Trust domain of the sidecars' identities.
    pub trust_domain: String,
    /// Sidecars are init containers that go on running, as clusters from 1.29 on have them.
    #[serde(default = "yes")]
    pub native_sidecar: bool,
    /// Where sidecars are ordinary containers: the application's start only when it is ready.
    #[serde(default = "yes")]
    pub hold_application: bool,
    /// Resources of the sidecar.
    #[serde(default)]
    pub resources: Resources,
    /// `error`, `warn`, `debug` or `trace`; `info`: what the Mesh says, which is `info` by default.
    #[serde(default = "info")]
    pub log_level: String,
    /// Worker threads; 0: as many as the CPU limit allows.
    #[serde(default)]
    pub workers: u16,
    /// Destinations that no sidecar of the cluster takes.
    #[serde(default)]
    pub redirection: Exceptions,
    /// Pods are annotated for Prometheus.
    #[serde(default = "yes")]
    pub metrics: bool,
    /// Sidecars answer their pods' DNS. Only the Mesh decides this: [`Settings::of_mesh`].
    #[serde(skip)]
    pub dns: bool,
}

/// A Secret in the namespace of the pod whose image is pulled with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PullSecret {
    /// Its name.
    pub name: String,
}

impl Settings {
    /// Returns these settings with those of a Mesh's fields `sidecar` and `dns`. A request that was
    /// chosen at the installation is lowered to a limit of the Mesh below it.
    pub fn of_mesh(&self, mesh: &MeshSpec) -> Self {
        let mut settings = self.clone();
        let (resources, said) = (&mut settings.resources, &mesh.sidecar);
        if let Some(limit) = &said.cpu_limit {
            resources.cpu_limit.clone_from(limit);
            lower(&mut resources.cpu_request, limit, parse_cpu);
        }
        if let Some(limit) = &said.memory_limit {
            resources.memory_limit.clone_from(limit);
            lower(&mut resources.memory_request, limit, parse_memory);
        }
        settings.workers = said.workers.unwrap_or(settings.workers);
        settings.dns = mesh.dns;
        settings
    }
}

/// Lowers a request to the limit, which Kubernetes demands. An unreadable request stays: the API server
/// refuses it.
fn lower<T: PartialOrd, E>(request: &mut String, limit: &str, read: fn(&str) -> Result<T, E>) {
    if let (Ok(wanted), Ok(most)) = (read(request), read(limit))
        && wanted > most
    {
        limit.clone_into(request);
    }
}

fn yes() -> bool {
    true
}
fn info() -> String {
    "info".into()
}
fn if_not_present() -> String {
    "IfNotPresent".into()
}

/// The result for a pod.
#[derive(Debug, Clone, PartialEq)]
pub enum InjectionOutcome {
    /// It has a sidecar now.
    Injected(Value),
    /// It stays as it is, and why.
    Left(&'static str),
}

/// Why a pod cannot have the sidecar that it asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InjectionRefusal(String);

impl fmt::Display for InjectionRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InjectionRefusal {}

/// Gives a pod, or the template of one, its sidecar.
///
/// # Errors
/// It is no pod, an annotation of the mesh is not understood, or it has a name of ours already.
pub fn inject(
    pod: &Value,
    namespace: InjectionSetting,
    settings: &Settings,
) -> Result<InjectionOutcome, InjectionRefusal> {
    if !pod.get("spec").is_some_and(Value::is_object) {
        return Err(InjectionRefusal("the pod has no spec".into()));
    }
    if let Some(why) = injection_setting::left_alone(pod, namespace)? {
        return Ok(InjectionOutcome::Left(why));
    }
    let options = Options::from_pod(pod, settings)?;
    let mut pod = pod.clone();
    let probes = probes::rewrite(&mut pod, &options)?;
    let scraped = metrics::scraped(&pod, settings.metrics && options.metrics);
    let mut config = containers::config(settings, &options, &probes);
    if let Scraped::Both(application) = &scraped {
        config["applicationMetrics"] = containers::literal(json!(application));
    }
    let sidecar = containers::sidecar(settings, &options, &config);
    let init = containers::init(settings, &options);
    let spec = object(&mut pod, "spec");
    add(spec, "volumes", containers::volumes(), Place::End)?;
    // The rules first, then the sidecar, then everything of the application's: its own init
    // containers too have their traffic in the mesh.
    if options.native_sidecar {
        add(spec, "initContainers", vec![init, sidecar], Place::Start)?;
    } else {
        add(spec, "containers", vec![sidecar], Place::Start)?;
        // Nothing could leave the pod before the sidecar runs, so the rules are made last.
        add(spec, "initContainers", vec![init], Place::End)?;
    }
    annotate(&mut pod, settings, &options, &scraped);
    Ok(InjectionOutcome::Injected(pod))
}

#[derive(Clone, Copy)]
enum Place {
    Start,
    End,
}

/// Adds named items to a list of the spec.
fn add(
    spec: &mut Map<String, Value>,
    list: &str,
    items: Vec<Value>,
    place: Place,
) -> Result<(), InjectionRefusal> {
    if items.is_empty() {
        return Ok(());
    }
    let known = spec.entry(list).or_insert_with(|| json!([]));
    if known.is_null() {
        *known = json!([]);
    }
    let Some(known) = known.as_array_mut() else {
        return Err(InjectionRefusal(format!("spec.{list} is no list")));
    };
    for item in &items {
        let name = item.get("name");
        if known.iter().any(|k| k.get("name") == name) {
            let name = name.and_then(Value::as_str).unwrap_or_default();
            return Err(InjectionRefusal(format!(
                "spec.{list} has an item named {name} already, which is the sidecar's: rename it"
            )));
        }
    }
    let at = match place {
        Place::Start => 0,
        Place::End => known.len(),
    };
    known.splice(at..at, items);
    Ok(())
}

fn annotate(pod: &mut Value, settings: &Settings, options: &Options, scraped: &Scraped) {
    let metadata = object(pod, "metadata");
    let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
    if annotations.is_null() {
        *annotations = json!({});
    }
    let Some(annotations) = annotations.as_object_mut() else {
        return; // the API server refuses it
    };
    annotations.insert(
        names::STATUS.into(),
        format!("injected {}", env!("CARGO_PKG_VERSION")).into(),
    );
    if settings.init_image.is_none() {
        // The node's CNI plugin reads it.
        let rules = PodRules {
            exceptions: options.redirection.clone(),
            dns: options.dns,
        };
        annotations.insert(REDIRECTION.into(), rules.annotation().into());
    }
    metrics::annotate(annotations, scraped);
    // Which container `kubectl logs` and `kubectl exec` mean.
    let first = first_container(pod).map(str::to_owned);
    let annotations = pod.pointer_mut("/metadata/annotations");
    if let (Some(first), Some(Value::Object(annotations))) = (first, annotations) {
        annotations
            .entry("kubectl.kubernetes.io/default-container")
            .or_insert_with(|| first.into());
    }
}

fn first_container(pod: &Value) -> Option<&str> {
    let containers = pod.pointer("/spec/containers")?.as_array()?;
    let mut names = containers.iter().filter_map(|c| c.get("name")?.as_str());
    names.find(|name| *name != names::SIDECAR)
}

/// A member that is an object, made if it is missing.
fn object<'a>(value: &'a mut Value, member: &str) -> &'a mut Map<String, Value> {
    if !value.get(member).is_some_and(Value::is_object) {
        value[member] = json!({});
    }
    match value.get_mut(member) {
        Some(Value::Object(map)) => map,
        _ => unreachable!("it was just made"),
    }
}

#[cfg(test)]
mod tests;

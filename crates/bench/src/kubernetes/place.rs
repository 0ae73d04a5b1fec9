//! A namespace with the applications of a cell and a client, removed with this value, or by the janitor.

use super::{Kubectl, Mesh};
use crate::failure::{Failure, Result};
use crate::janitor::{self, JanitorWatch, Thing};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The label of every namespace that a study makes, so that none is forgotten.
const OURS: &str = "tulle.dev/bench";
/// The application's container; what else a pod has came from a mesh.
pub(super) const APP: &str = "app";
/// A container that Open Service Mesh adds for probes of ports. No request passes it.
const PROBES: &str = "osm-healthcheck";
/// Open Service Mesh wants an annotation beside its label. It is on pods here, and not on the namespace, in which an ingress's
/// pod may be that is to have no sidecar.
const OSM_INJECT: &str = "openservicemesh.io/sidecar-injection";
/// Where `fortio` listens for nobody: the client's pod only has to be there.
const NOBODY: u16 = 8079;
/// The memory limit of each limited sidecar, of every mesh alike; no mesh here needs half of it.
pub(super) const MEMORY_LIMIT: &str = "512Mi";
/// CPU and memory that a limited sidecar asks for: little, or few pods would fit on a node.
const REQUESTS: [&str; 2] = ["10m", "32Mi"];
/// The client's application.
pub(super) const CLIENT: &str = "client";

/// An application of a cell: a Deployment with one pod, its Service and its account.
#[derive(Debug, Clone)]
pub struct App {
    /// Its name and its account's.
    pub name: &'static str,
    /// Image.
    pub image: String,
    /// The program; the image's, if none is said.
    pub command: Vec<String>,
    /// Arguments of the program.
    pub args: Vec<String>,
    /// Environment.
    pub env: Vec<(String, String)>,
    /// Where it listens: port, and what is spoken there.
    pub port: Option<(u16, &'static str)>,
    /// Whether it has a sidecar where there is a mesh.
    pub sidecar: bool,
    /// The CPU limit of its sidecar, as a share of a core.
    pub share: Option<f64>,
    /// A ConfigMap of its namespace, and the directory that its files are in.
    pub files: Option<(&'static str, &'static str)>,
    /// The node it runs on; any, if none is said.
    pub node: Option<String>,
}

impl App {
    /// The one that the load is started in.
    pub fn client(image: &str, sidecar: bool) -> Self {
        Self {
            name: CLIENT,
            image: image.to_owned(),
            command: Vec::new(),
            args: serve(NOBODY, "http"),
            env: Vec::new(),
            port: None,
            sidecar,
            share: None,
            files: None,
            node: None,
        }
    }

    /// Fortio's server.
    pub fn fortio(image: &str, protocol: &'static str, sidecar: bool) -> Self {
        Self {
            name: "server",
            image: image.to_owned(),
            command: Vec::new(),
            args: serve(8080, protocol),
            env: Vec::new(),
            port: Some((8080, protocol)),
            sidecar,
            share: None,
            files: None,
            node: None,
        }
    }

    /// The same on that node.
    pub fn on(self, node: Option<String>) -> Self {
        Self { node, ..self }
    }

    fn objects(&self, namespace: &str) -> Vec<Value> {
        let labels = json!({ "app": self.name });
        let metadata = json!({ "name": self.name, "namespace": namespace });
        let mut annotations = BTreeMap::new();
        if let Some(share) = self.share {
            let limit = format!("{}m", millis(share));
            // A mesh knows its own and lets the other be.
            annotations.insert("tulle.dev/cpu-limit", limit.clone());
            annotations.insert("sidecar.istio.io/proxyCPULimit", limit);
            // One of Istio's four takes the place of all that the mesh says, so they are said together.
            let [cpu, memory] = REQUESTS.map(str::to_owned);
            annotations.insert("tulle.dev/memory-limit", MEMORY_LIMIT.to_owned());
            annotations.insert("sidecar.istio.io/proxyMemoryLimit", MEMORY_LIMIT.to_owned());
            annotations.insert("tulle.dev/cpu-request", cpu.clone());
            annotations.insert("sidecar.istio.io/proxyCPU", cpu);
            annotations.insert("tulle.dev/memory-request", memory.clone());
            annotations.insert("sidecar.istio.io/proxyMemory", memory);
        }
        let mut pod_labels = json!({ "app": self.name });
        let inject = if self.sidecar { "enabled" } else { "disabled" };
        annotations.insert(OSM_INJECT, inject.to_owned());
        if !self.sidecar {
            for key in ["tulle.dev/inject", "sidecar.istio.io/inject"] {
                let no = if key.starts_with("tulle") {
                    "disabled"
                } else {
                    "false"
                };
                pod_labels[key] = no.into();
            }
        }
        let env = self
            .env
            .iter()
            .map(|(name, value)| json!({ "name": name, "value": value }));
        let mut container = json!({
            "name": APP, "image": self.image, "args": self.args,
            "imagePullPolicy": "IfNotPresent",
            "env": env.collect::<Vec<_>>(),
        });
        if !self.command.is_empty() {
            container["command"] = json!(self.command);
        }
        let mut volumes = Vec::new();
        if let Some((map, directory)) = self.files {
            container["volumeMounts"] = json!([{ "name": "files", "mountPath": directory }]);
            volumes.push(json!({ "name": "files", "configMap": { "name": map } }));
        }
        let mut objects = vec![json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata,
        })];
        if let Some((port, protocol)) = self.port {
            container["ports"] = json!([{ "containerPort": port }]);
            container["readinessProbe"] =
                json!({ "tcpSocket": { "port": port }, "periodSeconds": 1 });
            objects.push(json!({
                "apiVersion": "v1", "kind": "Service", "metadata": metadata,
                "spec": { "selector": labels, "ports": [{
                    "name": protocol, "port": port, "appProtocol": protocol,
                }] },
            }));
        }
        objects.push(json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata,
            "spec": {
                "replicas": 1,
                "selector": { "matchLabels": labels },
                "template": {
                    "metadata": { "labels": pod_labels, "annotations": annotations },
                    "spec": {
                        "serviceAccountName": self.name, "containers": [container], "volumes": volumes,
                        "nodeSelector": self.node.iter().map(|n| ("kubernetes.io/hostname", n)).collect::<BTreeMap<_, _>>(),
                    },
                },
            },
        }));
        objects
    }
}

/// Returns the annotations of a namespace. A mesh knows its own and lets the others be.
fn annotations() -> Value {
    json!({ "openservicemesh.io/metrics": "enabled" })
}

/// The namespace of a cell.
pub fn namespace(cell: &str) -> String {
    format!("tulle-bench-{cell}")
}

/// Arguments of Fortio's server of one protocol.
fn serve(port: u16, protocol: &str) -> Vec<String> {
    let mut args = vec!["server", "-loglevel", "Error", "-ui-path", ""];
    let port = port.to_string();
    for kind in ["http", "tcp", "grpc", "udp", "redirect"] {
        args.push(match kind {
            "http" => "-http-port",
            "tcp" => "-tcp-port",
            "grpc" => "-grpc-port",
            "udp" => "-udp-port",
            _ => "-redirect-port",
        });
        args.push(if kind == protocol { &port } else { "disabled" });
    }
    args.into_iter().map(str::to_owned).collect()
}

/// A pod of a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pod {
    pub(super) name: String,
    pub(super) node: String,
    pub(super) ip: String,
    /// The container that a mesh has added.
    pub(super) sidecar: Option<String>,
    /// Whether that is an init container which goes on.
    pub(super) native: bool,
    /// The sidecar's CPU limit, as Kubernetes writes it.
    pub(super) limit: Option<String>,
    /// Its memory limit, likewise.
    pub(super) memory_limit: Option<String>,
}

/// A namespace with everything in it ready.
pub struct ReadyNamespace {
    pub(super) kubectl: Kubectl,
    /// Its name.
    pub namespace: String,
    pub(super) mesh: Mesh,
    pub(super) apps: Vec<App>,
    pub(super) pods: BTreeMap<&'static str, Pod>,
    _watch: JanitorWatch,
}

impl ReadyNamespace {
    /// Makes it and waits until all of it is ready. `objects` of the namespace come with it.
    ///
    /// # Errors
    /// It does not become ready, or its pods do not have what the mesh should give them.
    pub fn make(
        kubectl: &Kubectl,
        cell: &str,
        mesh: &Mesh,
        apps: Vec<App>,
        objects: &[Value],
    ) -> Result<Self> {
        let namespace = namespace(cell);
        let mut labels = json!({ OURS: "true" });
        if let Some((key, value)) = &mesh.label {
            labels[key] = value.as_str().into();
        }
        let remove = kubectl.command(&["delete", "namespace", &namespace, "--ignore-not-found"]);
        let words = std::iter::once(remove.get_program()).chain(remove.get_args());
        let words = words.map(|word| word.to_string_lossy().into_owned());
        let mut place = Self {
            kubectl: kubectl.clone(),
            namespace: namespace.clone(),
            mesh: mesh.clone(),
            pods: BTreeMap::new(),
            _watch: janitor::watch(Thing::Command(words.collect())),
            apps,
        };
        // Remnants of an earlier run would be measured with their own settings.
        kubectl.text(&["delete", "namespace", &namespace, "--ignore-not-found"])?;
        kubectl.apply(&[json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": { "name": namespace, "labels": labels, "annotations": annotations() },
        })])?;
        let all = place.apps.iter().flat_map(|app| app.objects(&namespace));
        let objects = objects.iter().cloned().map(|mut object| {
            object["metadata"]["namespace"] = namespace.as_str().into();
            object
        });
        kubectl.apply(&all.chain(objects).collect::<Vec<_>>())?;
        for app in &place.apps {
            let deployment = format!("deployment/{}", app.name);
            let wait = ["rollout", "status", &deployment, "--timeout=180s"];
            kubectl.text(&[&["-n", &namespace][..], &wait].concat())?;
            let pod = place.limited(app, place.find(app)?)?;
            place.are_equal(app, &pod)?;
            place.pods.insert(app.name, pod);
        }
        Ok(place)
    }

    fn find(&self, app: &App) -> Result<Pod> {
        let label = format!("app={}", app.name);
        let pods = [
            "-n",
            &self.namespace,
            "get",
            "pods",
            "-l",
            &label,
            "-o",
            "json",
        ];
        let pods = self.kubectl.json(&pods)?;
        let found = pods["items"].as_array().and_then(|items| items.first());
        let pod = found.and_then(read).ok_or_else(|| {
            Failure::failed(format!("{}: no pod of {}", self.namespace, app.name))
        })?;
        let wanted = app.sidecar && self.mesh.label.is_some();
        let is = pod.sidecar.is_some();
        if wanted != is {
            let (should, has) = if wanted { ("a", "none") } else { ("no", "one") };
            return Err(Failure::failed(format!(
                "the pod {}/{} should have {should} sidecar and has {has}: is the mesh {} installed, and is its label right?",
                self.namespace, pod.name, self.mesh.name
            )));
        }
        Ok(pod)
    }

    /// Checks that the sidecar's limits are those that all meshes have: a mesh that took no notice would be compared unfairly.
    fn are_equal(&self, app: &App, pod: &Pod) -> Result<()> {
        let Some(share) = app.share.filter(|_| pod.sidecar.is_some()) else {
            return Ok(());
        };
        let cpu = pod.limit.as_deref().and_then(cores);
        let memory = pod.memory_limit.as_deref();
        if cpu == Some(millis(share)) && memory == Some(MEMORY_LIMIT) {
            return Ok(());
        }
        let or_none = |limit: &Option<String>| limit.clone().unwrap_or_else(|| "none".into());
        Err(Failure::failed(format!(
            "the sidecar of {}/{} should have the limits {}m of CPU and {MEMORY_LIMIT} of memory, as in every mesh, and has {} and {}",
            self.namespace,
            pod.name,
            millis(share),
            or_none(&pod.limit),
            or_none(&pod.memory_limit)
        )))
    }

    /// Identities that a mesh by Tulle gives its pods.
    pub(super) fn principal(&self, app: &str) -> String {
        format!("/ns/{}/sa/{app}", self.namespace)
    }
}

impl Drop for ReadyNamespace {
    fn drop(&mut self) {
        // Do not wait: pods take half a minute to end, and nothing more is measured in it.
        let words = [
            "delete",
            "namespace",
            &self.namespace,
            "--ignore-not-found",
            "--wait=false",
        ];
        let _ = self.kubectl.text(&words);
    }
}

pub(super) fn read(pod: &Value) -> Option<Pod> {
    let text = |pointer: &str| pod.pointer(pointer)?.as_str().map(str::to_owned);
    let list = |pointer: &str| pod.pointer(pointer).and_then(Value::as_array);
    // A native sidecar is an init container that goes on.
    let stays = |c: &&Value| c["restartPolicy"] == "Always";
    let native = list("/spec/initContainers")
        .into_iter()
        .flatten()
        .filter(stays);
    let mut all = native.chain(list("/spec/containers").into_iter().flatten());
    let sidecar = all.find(|c| c["name"] != APP && c["name"] != PROBES);
    let of = |pointer: &str| sidecar?.pointer(pointer)?.as_str().map(str::to_owned);
    Some(Pod {
        name: text("/metadata/name")?,
        node: text("/spec/nodeName")?,
        ip: text("/status/podIP")?,
        sidecar: of("/name"),
        native: sidecar.is_some_and(|c| stays(&c)),
        limit: of("/resources/limits/cpu"),
        memory_limit: of("/resources/limits/memory"),
    })
}

/// A share of a core in thousandths.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // 0.05 to 64 cores
pub(super) fn millis(share: f64) -> u32 {
    (share * 1000.0).round() as u32
}

/// Thousandths of a core, of a quantity as Kubernetes writes it.
pub(super) fn cores(quantity: &str) -> Option<u32> {
    match quantity.strip_suffix('m') {
        Some(millis) => millis.parse().ok(),
        None => quantity.parse::<f64>().ok().map(millis),
    }
}

/// Whether something can be a part of a namespace's name.
pub(super) fn is_label(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 20
        && text
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sidecar_is_what_the_mesh_has_added() {
        let pod = |init: Value, containers: Value| {
            read(&json!({
                "metadata": { "name": "p" }, "status": { "podIP": "10.0.0.1" },
                "spec": { "nodeName": "n", "initContainers": init, "containers": containers },
            }))
            .unwrap()
        };
        let app = json!({ "name": "app" });
        let none = pod(json!([]), json!([app]));
        assert_eq!(none.sidecar, None);
        let once = json!({ "name": "rules" });
        let native = json!({
            "name": "tulle-proxy", "restartPolicy": "Always",
            "resources": { "limits": { "cpu": "250m" } },
        });
        let native = pod(json!([once, native]), json!([app]));
        assert_eq!(native.sidecar.as_deref(), Some("tulle-proxy"));
        assert_eq!(native.limit.as_deref().and_then(cores), Some(250));
        let beside = pod(json!([once]), json!([app, { "name": "istio-proxy" }]));
        assert_eq!(beside.sidecar.as_deref(), Some("istio-proxy"));
        let probes = json!({ "name": "osm-healthcheck" });
        let osm = pod(json!([once]), json!([app, probes, { "name": "envoy" }]));
        assert_eq!(osm.sidecar.as_deref(), Some("envoy"));
        assert_eq!(cores("2"), Some(2000));
        assert_eq!(cores("0.5"), Some(500));
    }

    #[test]
    fn limits_are_the_same_for_every_mesh() {
        let app = App {
            share: Some(0.1),
            files: Some(("plan", "/plan")),
            command: vec!["java".into()],
            ..App::fortio("fortio", "http", true)
        };
        let objects = app.objects("n");
        let template = &objects[2]["spec"]["template"];
        let annotations = &template["metadata"]["annotations"];
        for (tulle, istio, value) in [
            ("cpu-limit", "proxyCPULimit", "100m"),
            ("memory-limit", "proxyMemoryLimit", MEMORY_LIMIT),
            ("cpu-request", "proxyCPU", "10m"),
            ("memory-request", "proxyMemory", "32Mi"),
        ] {
            assert_eq!(annotations[format!("tulle.dev/{tulle}")], value);
            assert_eq!(annotations[format!("sidecar.istio.io/{istio}")], value);
        }
        assert_eq!(annotations[OSM_INJECT], "enabled");
        let container = &template["spec"]["containers"][0];
        assert_eq!(container["command"], json!(["java"]));
        assert_eq!(container["volumeMounts"][0]["mountPath"], "/plan");
        let volume = &template["spec"]["volumes"][0];
        assert_eq!(volume["configMap"]["name"], "plan");
    }

    #[test]
    fn an_application_without_a_sidecar_says_so() {
        let app = App::client("fortio", false);
        let objects = app.objects("n");
        assert_eq!(objects.len(), 2, "an account and a Deployment, no Service");
        let labels = &objects[1]["spec"]["template"]["metadata"]["labels"];
        assert_eq!(labels["tulle.dev/inject"], "disabled");
        let annotations = &objects[1]["spec"]["template"]["metadata"]["annotations"];
        assert_eq!(annotations[OSM_INJECT], "disabled");
        let with = App::fortio("fortio", "grpc", true).objects("n");
        let words = with[2]
            .pointer("/spec/template/spec/containers/0/args")
            .unwrap();
        let words: Vec<&str> = words
            .as_array()
            .unwrap()
            .iter()
            .map(|w| w.as_str().unwrap())
            .collect();
        assert!(
            words
                .join(" ")
                .contains("-http-port disabled -tcp-port disabled -grpc-port 8080")
        );
    }
}

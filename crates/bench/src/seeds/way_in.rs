//! The way into a round between pods: a Kubernetes Ingress, as in the published study, or none.
//!
//! Tulle's Ingress (the class `tulle-bench`, made here) is the way in for no mesh, for Tulle and for Open Service Mesh, which lets
//! it in by an IngressBackend, in plaintext. Another mesh names the class that is its own, with the Service of its gateway.

use super::{Options, Path};
use crate::failure::{Failure, FailureKind, Result};
use crate::janitor::{self, JanitorWatch, Thing};
use crate::kubernetes::{self, Kubectl, Mesh};
use clap::Args;
use serde_json::{Value, json};

/// The class of Tulle's Ingress here: in no cluster's way, and without a load balancer before it.
const CLASS: &str = "tulle-bench";
/// The Service and the account of the proxies that Tulle keeps for an Ingress of that class.
const SERVICE: &str = "tulle-bench-ingress";
/// The name by which the client calls the way in, whoever is behind it.
const NAME: &str = "ingress";
/// The key of the label by which a namespace joins Open Service Mesh.
const OSM: &str = "openservicemesh.io/monitored-by";

/// Options of the way in.
#[derive(Debug, Clone, Default, Args, serde::Serialize)]
pub struct IngressOptions {
    /// Let the load come in by a Kubernetes Ingress, outside the sidecars' limits; else the client calls the Services itself
    #[arg(long, requires = "kubernetes")]
    pub ingress: bool,
    /// A mesh that has an Ingress of its own: its class, and the namespace and Service of its gateway
    #[arg(
        long,
        value_name = "MESH=CLASS=NAMESPACE/SERVICE",
        requires = "ingress",
        value_parser = mesh_ingress
    )]
    pub mesh_ingress: Vec<MeshIngress>,
}

/// The Ingress of another mesh.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct MeshIngress {
    /// The mesh's name in results.
    pub mesh: String,
    /// The class of its Ingresses.
    pub class: String,
    /// The namespace of its gateway.
    pub namespace: String,
    /// The Service of its gateway.
    pub service: String,
}

/// Parses one of the command line.
fn mesh_ingress(text: &str) -> std::result::Result<MeshIngress, String> {
    let wrong = || {
        "expected MESH=CLASS=NAMESPACE/SERVICE, such as istio=istio=istio-system/istio-ingressgateway"
            .to_owned()
    };
    let parts: Vec<&str> = text.split(['=', '/']).collect();
    let [mesh, class, namespace, service] = parts[..] else {
        return Err(wrong());
    };
    if text.matches('=').count() != 2 || parts.iter().any(|part| part.is_empty()) {
        return Err(wrong());
    }
    Ok(MeshIngress {
        mesh: mesh.to_owned(),
        class: class.to_owned(),
        namespace: namespace.to_owned(),
        service: service.to_owned(),
    })
}

/// The way into one round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WayIn {
    /// The client calls the applications' Services, by its own sidecar where there is a mesh.
    Direct,
    /// The client calls an Ingress, and has no sidecar.
    Ingress {
        class: String,
        namespace: String,
        service: String,
        /// Whether Tulle's proxies call Open Service Mesh's sidecars.
        backend: bool,
    },
}

impl WayIn {
    /// Finds the way into a round of a mesh.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn find(options: &Options, mesh: &Mesh, cell: &str) -> Result<Self> {
        if !options.ways.ingress {
            return Ok(Self::Direct);
        }
        let mut own = options.ways.mesh_ingress.iter();
        if let Some(own) = own.find(|own| own.mesh == mesh.name) {
            return Ok(Self::Ingress {
                class: own.class.clone(),
                namespace: own.namespace.clone(),
                service: own.service.clone(),
                backend: false,
            });
        }
        let backend = mesh.label.as_ref().is_some_and(|(key, _)| key == OSM);
        if !backend && mesh.label.is_some() && !mesh.is_tulle() {
            let name = &mesh.name;
            let text = format!(
                "--ingress: the sidecars of {name} would refuse Tulle's Ingress: name its own with --mesh-ingress {name}=CLASS=NAMESPACE/SERVICE"
            );
            return Err(Failure::new(FailureKind::Usage, text));
        }
        Ok(Self::Ingress {
            class: CLASS.to_owned(),
            namespace: kubernetes::namespace(cell),
            service: SERVICE.to_owned(),
            backend,
        })
    }

    /// Whether the client has a sidecar where there is a mesh.
    pub(super) fn client_has_sidecar(&self) -> bool {
        *self == Self::Direct
    }

    /// The account that calls the applications.
    pub(super) fn caller(&self) -> &'static str {
        match self {
            Self::Direct => "client",
            Self::Ingress { .. } => SERVICE,
        }
    }

    /// Host and port that the client calls for a path.
    pub(super) fn entry(&self, path: Path, cell: &str) -> (String, u16) {
        match self {
            Self::Direct => {
                let (host, port) = path.entry();
                (host.to_owned(), port)
            }
            Self::Ingress { .. } => (host(cell), 80),
        }
    }

    /// The objects of the round's namespace, and the name that the client calls.
    pub(super) fn objects(&self, cell: &str) -> Vec<Value> {
        let Self::Ingress {
            class,
            namespace,
            service,
            backend,
        } = self
        else {
            return Vec::new();
        };
        let paths = Path::ALL.map(|path| {
            let (name, port) = path.entry();
            let prefix = path.url_path().split('/').nth(1).unwrap_or_default();
            json!({
                "path": format!("/{prefix}"), "pathType": "Prefix",
                "backend": { "service": { "name": name, "port": { "number": port } } },
            })
        });
        let mut objects = vec![
            json!({
                "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": { "name": NAME },
                "spec": {
                    "ingressClassName": class,
                    "rules": [{ "host": host(cell), "http": { "paths": paths } }],
                },
            }),
            json!({
                "apiVersion": "v1", "kind": "Service", "metadata": { "name": NAME },
                "spec": {
                    "type": "ExternalName",
                    "externalName": format!("{service}.{namespace}.svc.cluster.local"),
                },
            }),
        ];
        if *backend {
            let backends = Path::ALL.map(|path| {
                let (name, port) = path.entry();
                json!({ "name": name, "port": { "number": port, "protocol": "http" } })
            });
            objects.push(json!({
                "apiVersion": "policy.openservicemesh.io/v1alpha1", "kind": "IngressBackend",
                "metadata": { "name": NAME },
                "spec": {
                    "backends": backends,
                    "sources": [{ "kind": "Service", "name": service, "namespace": namespace }],
                },
            }));
        }
        objects
    }

    /// Returns further evidence about a hop, if it comes in by an Ingress.
    pub(super) fn evidence(&self, from: &str) -> Option<String> {
        match self {
            Self::Ingress { backend: true, .. } if from == SERVICE => Some(
                "the Ingress's calls are plaintext, which an IngressBackend allows to its pod alone"
                    .to_owned(),
            ),
            _ => None,
        }
    }

    /// Returns what a reader must know of a round: by whom the load comes in, and where that runs.
    ///
    /// # Errors
    /// The cluster does not say.
    pub(super) fn note(&self, kubectl: &Kubectl, round: &str) -> Result<Option<String>> {
        let Self::Ingress {
            class,
            namespace,
            service,
            ..
        } = self
        else {
            return Ok(None);
        };
        let label = format!("kubernetes.io/service-name={service}");
        let slices = ["get", "endpointslices", "-l", &label, "-o", "json"];
        let slices = kubectl.json(&[&["-n", namespace][..], &slices].concat())?;
        let items = slices["items"].as_array().into_iter().flatten();
        let endpoints = items.filter_map(|slice| slice["endpoints"].as_array());
        let nodes = endpoints
            .flatten()
            .filter_map(|endpoint| endpoint["nodeName"].as_str());
        let mut nodes: Vec<&str> = nodes.collect();
        nodes.sort_unstable();
        nodes.dedup();
        Ok(Some(format!(
            "{round}: the load comes in by an Ingress of the class {class}, by {namespace}/{service} on {}.",
            nodes.join(", ")
        )))
    }
}

/// The host that an Ingress's rule has, which the client calls: names of several rounds may lead to one gateway.
fn host(cell: &str) -> String {
    format!("{NAME}.{}", kubernetes::namespace(cell))
}

/// The class of Tulle's Ingress in the cluster, removed with this value or by the janitor.
pub(super) struct ReadyClass {
    kubectl: Kubectl,
    _watch: JanitorWatch,
}

impl ReadyClass {
    /// Makes it.
    ///
    /// # Errors
    /// The cluster refuses it.
    pub(super) fn make(kubectl: &Kubectl) -> Result<Self> {
        let remove = kubectl.command(&["delete", "ingressclass", CLASS, "--ignore-not-found"]);
        let words = std::iter::once(remove.get_program()).chain(remove.get_args());
        let words = words.map(|word| word.to_string_lossy().into_owned());
        let class = Self {
            kubectl: kubectl.clone(),
            _watch: janitor::watch(Thing::Command(words.collect())),
        };
        kubectl.apply(&[json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "IngressClass",
            "metadata": {
                "name": CLASS,
                "annotations": { "tulle.dev/service-type": "ClusterIP" },
            },
            "spec": { "controller": "tulle.dev/ingress-controller" },
        })])?;
        Ok(class)
    }
}

impl Drop for ReadyClass {
    fn drop(&mut self) {
        let words = ["delete", "ingressclass", CLASS, "--ignore-not-found"];
        let _ = self.kubectl.text(&words);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(words: &[&str]) -> Options {
        crate::args::parse(&[&["--kubernetes"][..], words].concat())
    }

    fn mesh(name: &str, key: &str) -> Mesh {
        Mesh {
            name: name.into(),
            label: Some((key.into(), "x".into())),
        }
    }

    fn kinds(way: &WayIn) -> Vec<String> {
        let objects = way.objects("c");
        let kinds = objects.iter().filter_map(|object| object["kind"].as_str());
        kinds.map(str::to_owned).collect()
    }

    #[test]
    fn without_an_ingress_the_client_calls_the_services() {
        let way = WayIn::find(&options(&[]), &Mesh::tulle(), "c").unwrap();
        assert!(way.client_has_sidecar() && way.objects("c").is_empty());
        assert_eq!(way.entry(Path::GatewayRatings, "c").0, "gateway");
        assert_eq!(way.caller(), "client");
    }

    #[test]
    fn each_mesh_has_the_ingress_that_its_sidecars_let_in() {
        let asked = options(&["--ingress"]);
        for mesh in [Mesh::tulle(), Mesh::none()] {
            let way = WayIn::find(&asked, &mesh, "c").unwrap();
            assert_eq!(kinds(&way), ["Ingress", "Service"]);
            assert_eq!(way.caller(), SERVICE);
            assert_eq!(way.evidence(SERVICE), None);
            let entry = ("ingress.tulle-bench-c".to_owned(), 80);
            assert_eq!(way.entry(Path::Ratings, "c"), entry);
        }
        let osm = WayIn::find(&asked, &mesh("osm", OSM), "c").unwrap();
        assert_eq!(kinds(&osm), ["Ingress", "Service", "IngressBackend"]);
        let source = &osm.objects("c")[2]["spec"]["sources"][0];
        assert_eq!(source["namespace"], "tulle-bench-c");
        assert!(osm.evidence(SERVICE).unwrap().contains("plaintext"));
        assert_eq!(osm.evidence("gateway"), None);

        let istio = mesh("istio", "istio-injection");
        let refused = WayIn::find(&asked, &istio, "c").unwrap_err();
        assert!(refused.to_string().contains("--mesh-ingress istio="));
        let asked = options(&["--ingress", "--mesh-ingress", "istio=istio=there/gate"]);
        let way = WayIn::find(&asked, &istio, "c").unwrap();
        let objects = way.objects("c");
        assert_eq!(objects[0]["spec"]["ingressClassName"], "istio");
        let rule = &objects[0]["spec"]["rules"][0];
        assert_eq!(rule["host"], "ingress.tulle-bench-c");
        assert_eq!(rule["http"]["paths"][0]["path"], "/bookinfo-ratings");
        let name = "gate.there.svc.cluster.local";
        assert_eq!(objects[1]["spec"]["externalName"], name);
    }

    #[test]
    fn what_is_no_ingress_of_a_mesh_is_refused() {
        for text in ["istio", "a=b", "a=b=c", "a=b/c/d", "a=b=c/", "a=b=c=d"] {
            assert!(mesh_ingress(text).is_err(), "{text}");
        }
    }
}

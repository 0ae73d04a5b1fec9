//! Gathers the facts for the checks from the API server, the controller and the proxies.

use crate::args::cluster::Within;
use crate::failure::{Failure, Result};
use crate::kube::cluster::{Cluster, webhook_path};
use crate::kube::outside::{Strictness, mesh_in_force};
use crate::kube::workloads::{self, text};
use crate::proxies::{self, Meshed, ProxyReport, SHORT_METRICS, ask_all};
use crate::traffic::{Outside, seen_outside};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tulle_api::v1::{AuthorityStatus, ControllerStatus, ShowAuthorityRequest, StatusRequest};
use tulle_kube::controller::ControllerOptions;
use tulle_kube::gateway::ROLE;
use tulle_kube::install::{ISSUER_VOLUME, VALUES};
use tulle_kube::issuer::{CertManagerSettings, IssuerSettings};
use tulle_kube::kinds::KINDS;
use tulle_kube::names::{CNI, CONTROLLER, INJECT, SIDECAR, TRUST_BUNDLE, WEBHOOK};
use tulle_kube::smi::API_SERVICE;

/// The kinds that an installation creates: group, resource, whether it has a namespace.
const MADE: [(&str, &str, bool); 15] = [
    ("", "namespaces", false),
    ("", "serviceaccounts", true),
    ("", "configmaps", true),
    ("", "services", true),
    ("", "secrets", true),
    ("apps", "deployments", true),
    ("apps", "daemonsets", true),
    ("networking.k8s.io", "networkpolicies", true),
    ("networking.k8s.io", "ingressclasses", false),
    ("rbac.authorization.k8s.io", "clusterroles", false),
    ("rbac.authorization.k8s.io", "clusterrolebindings", false),
    ("rbac.authorization.k8s.io", "roles", true),
    ("rbac.authorization.k8s.io", "rolebindings", true),
    (
        "admissionregistration.k8s.io",
        "mutatingwebhookconfigurations",
        false,
    ),
    ("apiextensions.k8s.io", "customresourcedefinitions", false),
];

/// A cluster, as far as checks look at it.
#[derive(Default)]
pub(super) struct Facts {
    /// The only namespace that is asked about.
    pub(super) within: Option<String>,
    pub(super) server: String,
    pub(super) version: Value,
    /// Names of API groups with their versions.
    pub(super) groups: Vec<String>,
    pub(super) nodes: Vec<Value>,
    pub(super) node_leases: Vec<Value>,
    /// Seconds that this computer's clock is ahead of the API server's.
    pub(super) ahead: Option<i64>,
    /// Permissions that an installation needs and this user lacks.
    pub(super) not_allowed: Vec<String>,
    pub(super) namespaces: Vec<Value>,
    pub(super) pods: Vec<Value>,
    /// The mesh's own pods that are in other namespaces than the one asked about.
    pub(super) own_pods: Vec<Value>,
    pub(super) services: Vec<Value>,
    pub(super) slices: Vec<Value>,
    /// Endpoints of the controller's Service; none if they may not be seen.
    pub(super) controller_slices: Option<Vec<Value>>,
    pub(super) deployments: Vec<Value>,
    /// TrafficTargets and AuthorizationPolicies.
    pub(super) policies: Vec<Value>,
    /// All service accounts; none if they may not be seen.
    pub(super) accounts: Option<Vec<Value>>,
    /// Gateways, of any class.
    pub(super) gateways: Vec<Value>,
    /// Network policies of all namespaces.
    pub(super) network_policies: Vec<Value>,
    /// All objects with a status, of Tulle's kinds and Gateway API's.
    pub(super) objects: Vec<Value>,
    /// Whether the controller has the rights for Gateways in every namespace.
    pub(super) gateways_everywhere: bool,
    /// Whether `tulle install` was told to give them everywhere; none if something else installed the mesh.
    pub(super) gateways_chosen: Option<bool>,
    /// The `spec` of the Mesh in force.
    pub(super) mesh: Value,
    pub(super) bundles: Vec<Value>,
    pub(super) mutating: Vec<Value>,
    pub(super) validating: Vec<Value>,
    pub(super) crds: Vec<Value>,
    /// The controller's namespace, and what is in it.
    pub(super) home: String,
    pub(super) controller: Option<Value>,
    /// The DaemonSet of the CNI plugin.
    pub(super) cni: Option<Value>,
    pub(super) settings: Option<Value>,
    pub(super) cluster_role: Option<Value>,
    pub(super) leader: Option<Value>,
    /// The APIService that routes SMI's metrics API to the controller, if it was installed.
    pub(super) api_service: Option<Value>,
    /// The issuer that the settings name, of cert-manager or its like; or why it was not to be seen.
    pub(super) issuer: Option<std::result::Result<Option<Value>, String>>,
    /// The ConfigMap that the controller mounts for its issuer, by name.
    pub(super) issuer_ca: Option<(String, Option<Value>)>,
    /// The controller's report on its roots and its issuer.
    pub(super) authority: Option<AuthorityStatus>,
    /// The controller's status; none if there is no controller to ask.
    pub(super) status: Option<std::result::Result<ControllerStatus, String>>,
    /// The result of a trial pod that asked for a sidecar.
    pub(super) trial: Option<std::result::Result<bool, String>>,
    /// Pods with sidecars, and what their proxies say.
    pub(super) meshed: Vec<(Meshed, std::result::Result<ProxyReport, String>)>,
    /// Peers outside the mesh, and the traffic that is refused there.
    pub(super) outside: Outside,
    pub(super) strictness: Strictness,
    /// Counters of gateways.
    pub(super) gateway_metrics: String,
    /// The last failures that proxies remember.
    pub(super) errors: Vec<Value>,
}

impl Facts {
    /// Asks. Only `--pre` does without what a mesh has.
    pub(super) async fn gather(
        cluster: &Cluster,
        namespace: Option<&str>,
        pre: bool,
    ) -> Result<Self> {
        let version = cluster.get("/version").await?.unwrap_or_default();
        let within = |kind: &str, api: &str| match namespace {
            Some(name) => format!("{api}/namespaces/{name}/{kind}"),
            None => format!("{api}/{kind}"),
        };
        let home = cluster.home().await?;
        let of_home = |kind: &str, name: &str| format!("{kind}/namespaces/{home}/{name}");
        let of_crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let webhooks = |kind: &str| webhook_path(kind, "").trim_end_matches('/').to_owned();
        let mut facts = Self {
            within: namespace.map(str::to_owned),
            server: cluster.server.clone(),
            version,
            groups: groups(cluster).await?,
            nodes: cluster.list("/api/v1/nodes").await?,
            node_leases: cluster
                .list("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases")
                .await
                .unwrap_or_default(),
            ahead: cluster.ahead().await,
            namespaces: cluster.list("/api/v1/namespaces").await?,
            pods: workloads::pods(cluster, namespace).await?,
            services: cluster.list(&within("services", "/api/v1")).await?,
            mutating: cluster.list(&webhooks("mutating")).await?,
            validating: cluster.list(&webhooks("validating")).await?,
            crds: cluster.list(of_crds).await?,
            controller: cluster
                .get(&of_home(
                    "/apis/apps/v1",
                    &format!("deployments/{CONTROLLER}"),
                ))
                .await?,
            ..Self::default()
        };
        if pre {
            facts.not_allowed = not_allowed(cluster, &home).await?;
            facts.home = home;
            return Ok(facts);
        }
        facts.slices = cluster
            .list(&within("endpointslices", "/apis/discovery.k8s.io/v1"))
            .await?;
        let controller = of_home(
            "/apis/discovery.k8s.io/v1",
            &format!("endpointslices?labelSelector=kubernetes.io%2Fservice-name%3D{CONTROLLER}"),
        );
        facts.controller_slices = cluster.list(&controller).await.ok();
        let asked = namespace.iter().copied();
        for own in [home.as_str(), CNI]
            .into_iter()
            .filter(|own| !asked.clone().any(|n| n == *own))
        {
            if namespace.is_some() {
                // An operator with rights in one namespace may not see these.
                let pods = workloads::pods(cluster, Some(own)).await;
                facts.own_pods.extend(pods.unwrap_or_default());
            }
        }
        facts.deployments = cluster
            .list(&within("deployments", "/apis/apps/v1"))
            .await?;
        for (kind, group) in [
            ("traffictargets", "access.smi-spec.io/v1alpha3"),
            ("authorizationpolicies", "tulle.dev/v1alpha1"),
            ("ratelimits", "tulle.dev/v1alpha1"),
        ] {
            let path = within(kind, &format!("/apis/{group}"));
            facts.policies.extend(cluster.list(&path).await?);
        }
        // All namespaces: policies name callers in others.
        facts.accounts = cluster.list("/api/v1/serviceaccounts").await.ok();
        let bundles = format!("/api/v1/configmaps?fieldSelector=metadata.name%3D{TRUST_BUNDLE}");
        facts.bundles = cluster.list(&bundles).await?;
        let settings = of_home("/api/v1", "configmaps/tulle-settings");
        facts.settings = cluster.get(&settings).await?;
        let cni = format!("/apis/apps/v1/namespaces/{CNI}/daemonsets/{CNI}");
        facts.cni = cluster.get(&cni).await?;
        let role = format!("/apis/rbac.authorization.k8s.io/v1/clusterroles/{CONTROLLER}");
        facts.cluster_role = cluster.get(&role).await?;
        let gateways = within("gateways", "/apis/gateway.networking.k8s.io/v1");
        facts.gateways = cluster.list(&gateways).await?;
        let policies = "/apis/networking.k8s.io/v1/networkpolicies";
        // A user who may see everything else may lack the right to see these.
        facts.network_policies = cluster.list(policies).await.unwrap_or_default();
        for kind in &KINDS {
            let version = kind.versions.iter().map(|v| format!("{}/{v}", kind.group));
            let Some(version) = version.into_iter().find(|v| facts.groups.contains(v)) else {
                continue;
            };
            let api = format!("/apis/{version}");
            // These are in no namespace, and say who serves Gateways and Ingresses.
            let path = match kind.kind {
                "GatewayClass" | "IngressClass" => format!("{api}/{}", kind.plural),
                _ => within(kind.plural, &api),
            };
            let found = cluster.list(&path).await?;
            // A list says the kind of its items once.
            facts.objects.extend(found.into_iter().map(|mut object| {
                object["kind"] = kind.kind.into();
                object
            }));
        }
        let binding = format!("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{ROLE}");
        facts.gateways_everywhere = cluster.get(&binding).await?.is_some();
        let values = cluster
            .get(&of_home("/api/v1", &format!("configmaps/{VALUES}")))
            .await?;
        facts.gateways_chosen = values.map(|values| {
            let chosen = serde_json::from_str(text(&values, "/data/values.json"));
            let chosen: Value = chosen.unwrap_or_default();
            chosen["gateways"]["allNamespaces"] == true
        });
        let leases = of_home("/apis/coordination.k8s.io/v1", "leases");
        facts.leader = cluster.list(&leases).await?.pop();
        let api_services = "/apis/apiregistration.k8s.io/v1/apiservices";
        facts.api_service = cluster
            .get(&format!("{api_services}/{API_SERVICE}"))
            .await?;
        facts.home = home;
        facts.look_for_issuer(cluster).await?;
        if facts.controller.is_some() {
            facts.ask_controller(cluster).await;
        }
        if named(&facts.mutating, WEBHOOK).is_some() {
            facts.trial = Some(trial(cluster).await);
        }
        facts.ask_proxies(cluster, namespace).await?;
        Ok(facts)
    }

    async fn look_for_issuer(&mut self, cluster: &Cluster) -> Result<()> {
        let volumes = self.controller.iter();
        let mut volumes = volumes.flat_map(|c| workloads::items(c, "/spec/template/spec/volumes"));
        let mounted = volumes.find(|v| text(v, "/name") == ISSUER_VOLUME);
        if let Some(name) = mounted.map(|v| text(v, "/configMap/name").to_owned()) {
            let path = format!("/api/v1/namespaces/{}/configmaps/{name}", self.home);
            self.issuer_ca = Some((name, cluster.get(&path).await?));
        }
        if let Some(IssuerSettings::CertManager(of)) = self.options().and_then(|o| o.issuer) {
            let found = self.cert_manager(cluster, &of).await;
            // A user who may see everything else may lack the right to see the issuer.
            self.issuer = Some(found.map_err(|failure| failure.to_string()));
        }
        Ok(())
    }

    /// The issuer, whatever the API server calls its kind in paths.
    async fn cert_manager(
        &self,
        cluster: &Cluster,
        of: &CertManagerSettings,
    ) -> Result<Option<Value>> {
        let Some(version) = self.served(&of.group) else {
            return Ok(None);
        };
        let api = format!("/apis/{version}");
        let kinds = cluster.get(&api).await?.unwrap_or_default();
        let mut kinds = workloads::items(&kinds, "/resources");
        let is_it = |k: &&Value| text(k, "/kind") == of.kind && !text(k, "/name").contains('/');
        let Some(kind) = kinds.find(is_it) else {
            return Ok(None);
        };
        let place = match kind.pointer("/namespaced") {
            Some(Value::Bool(true)) => format!("{api}/namespaces/{}", self.home),
            _ => api,
        };
        let path = format!("{place}/{}/{}", text(kind, "/name"), of.name);
        cluster.get(&path).await
    }

    async fn ask_controller(&mut self, cluster: &Cluster) {
        let asked = async {
            let mut objects = cluster.objects().await.map_err(|e| e.to_string())?;
            let status = objects.status(StatusRequest::default()).await;
            let status = status.map_err(|e| e.message().to_owned())?.into_inner();
            // One of an older version knows no such question.
            let authority = objects.show_authority(ShowAuthorityRequest {}).await;
            Ok::<_, String>((status, authority.ok()))
        };
        self.status = Some(match asked.await {
            Ok((status, authority)) => {
                self.authority = authority.map(tonic::Response::into_inner);
                Ok(status)
            }
            Err(why) => Err(why),
        });
    }

    async fn ask_proxies(&mut self, cluster: &Cluster, namespace: Option<&str>) -> Result<()> {
        let within = Within {
            namespace: namespace.map(str::to_owned),
        };
        let pods = workloads::meshed(cluster, &within).await?;
        let gateways = pods.iter().filter(|pod| pod.gateway && pod.sidecar_runs);
        let metrics = ask_all(cluster, gateways, SHORT_METRICS).await;
        let texts = metrics.into_iter().filter_map(|(_, text)| text.ok());
        self.gateway_metrics = texts.collect::<Vec<_>>().join("\n");
        let running = pods.iter().filter(|pod| pod.sidecar_runs);
        let errors = ask_all(cluster, running, "/errors").await;
        let errors = errors.into_iter().filter_map(|(_, text)| text.ok());
        self.errors = errors
            .filter_map(|text| serde_json::from_str::<Vec<Value>>(&text).ok())
            .flatten()
            .collect();
        self.outside = seen_outside(cluster, &within).await?;
        self.mesh = mesh_in_force(cluster).await?;
        self.strictness = Strictness::from_cluster(cluster, &self.namespaces).await?;
        let said = proxies::reports(cluster, &pods).await;
        let said = said.into_iter().map(|(pod, said)| {
            let said = said.map_err(|failure: Failure| failure.to_string());
            (pod.clone(), said)
        });
        self.meshed = said.collect();
        Ok(())
    }

    /// An API group that the API server has, with its first version.
    pub(super) fn served(&self, group: &str) -> Option<&str> {
        let mut groups = self.groups.iter().map(String::as_str);
        groups.find(|g| g.split('/').next() == Some(group))
    }

    /// The settings of the controller, if they can be read.
    pub(super) fn options(&self) -> Option<ControllerOptions> {
        let text = text(self.settings.as_ref()?, "/data/settings.json");
        serde_json::from_str(text).ok()
    }

    /// The namespaces that are asked about.
    pub(super) fn asked(&self) -> impl Iterator<Item = &Value> {
        let is_asked = |n: &&Value| {
            let within = self.within.as_deref();
            within.is_none_or(|name| name == text(n, "/metadata/name"))
        };
        self.namespaces.iter().filter(is_asked)
    }

    /// The namespaces whose pods get sidecars.
    pub(super) fn injected(&self) -> impl Iterator<Item = &str> {
        let wanted = self
            .namespaces
            .iter()
            .filter(|n| crate::kube::namespace::wish(n) == "enabled");
        wanted.map(|n| text(n, "/metadata/name"))
    }

    /// The trust bundle of the controller's namespace, else of any: all are the same.
    pub(super) fn bundle(&self) -> Option<&str> {
        let of_home = |b: &&Value| text(b, "/metadata/namespace") == self.home;
        let found = self.bundles.iter().find(of_home).or(self.bundles.first())?;
        Some(text(found, "/data/ca.crt"))
    }

    /// The roots that sidecars are told, those of another issuer if one signs.
    pub(super) fn roots_of_sidecars(&self) -> Vec<String> {
        let is_external = self.options().is_some_and(|o| o.issuer.is_some());
        match (&self.authority, self.bundle()) {
            (Some(authority), _) if is_external => {
                let roots = authority.roots.iter().filter(|r| r.role == "issuer");
                roots.map(|r| r.sha256.clone()).collect()
            }
            (_, Some(bundle)) if !is_external => fingerprints(bundle),
            _ => Vec::new(),
        }
    }

    /// Bundles by namespace.
    pub(super) fn bundles_by_namespace(&self) -> BTreeMap<&str, &str> {
        let each = self.bundles.iter();
        each.map(|b| (text(b, "/metadata/namespace"), text(b, "/data/ca.crt")))
            .collect()
    }
}

/// SHA-256 of each root of a bundle, as proxies show it.
pub(super) fn fingerprints(bundle: &str) -> Vec<String> {
    let read = tulle_tls::TrustBundle::from_pem(bundle.as_bytes());
    read.map_or_else(
        |_| Vec::new(),
        |b| b.fingerprints().map(str::to_owned).collect(),
    )
}

/// The object of this name.
pub(super) fn named<'a>(objects: &'a [Value], name: &str) -> Option<&'a Value> {
    objects.iter().find(|o| text(o, "/metadata/name") == name)
}

async fn groups(cluster: &Cluster) -> Result<Vec<String>> {
    let found = cluster.get("/apis").await?.unwrap_or_default();
    let groups = workloads::items(&found, "/groups");
    let versions = groups.flat_map(|g| workloads::items(g, "/versions"));
    Ok(versions
        .map(|v| text(v, "/groupVersion").to_owned())
        .collect())
}

async fn not_allowed(cluster: &Cluster, home: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for (group, resource, namespaced) in MADE {
        let asked = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": { "resourceAttributes": {
                "verb": "create", "group": group, "resource": resource,
                "namespace": if namespaced { home } else { "" },
            } },
        });
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let answer = cluster.create(path, &asked).await?;
        if answer.pointer("/status/allowed") != Some(&Value::Bool(true)) {
            found.push(format!("you may not create {resource}"));
        }
    }
    Ok(found)
}

/// Whether a pod that asks for a sidecar gets one. Nothing is kept of it.
async fn trial(cluster: &Cluster) -> std::result::Result<bool, String> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "generateName": "tulle-check-", "labels": { INJECT: "enabled" } },
        "spec": { "containers": [{ "name": "app", "image": "example.invalid/none" }] },
    });
    let path = "/api/v1/namespaces/default/pods?dryRun=All";
    let made = cluster
        .create(path, &pod)
        .await
        .map_err(|e| e.to_string())?;
    let has = workloads::containers(&made).any(|c| text(c, "/name") == SIDECAR);
    Ok(has)
}

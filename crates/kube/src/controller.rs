//! The controller of a cluster, put together: root, index, certificates, webhook, trust bundles.

use crate::accounts::TokenReviews;
use crate::console::{ConsoleOptions, Visitors};
use crate::inject::Settings;
use crate::issuer::IssuerSettings;
use crate::kinds::Missing;
use crate::root::InSecret;
use crate::scrape::Unscraped;
use crate::spawn::spawn;
use crate::status::StatusUpdates;
use crate::webhook::{self, Bodies, Webhook};
use crate::{gateway, leader, metrics, names, repair, smi, source, status, trust};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::{Api, Client};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tulle_control::cluster::Cluster;
use tulle_control::feed::{Bundles, Feed};
use tulle_control::jwks::LEAST_REFRESH;
use tulle_control::{
    Controller, ControllerConfig, HOST_AWAY, RunningController, StoreKind, memory_limit,
    read_object,
};
use tulle_model::identity::TrustDomain;
use tulle_model::manifest::Object;
use tulle_net::socket;

/// How often the webhook's configuration is looked at.
const LOOK: Duration = Duration::from_secs(30);
/// Longest time that resources wait for keys of tokens at the start: somewhat more than a fetch may take.
const KEYS_WAIT: Duration = Duration::from_secs(12);

/// The file that says how a controller of a cluster runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ControllerOptions {
    /// The namespace it runs in.
    pub namespace: String,
    /// Settings of the mesh, as the `spec` of a Mesh. Its trust domain is the sidecars'.
    #[serde(default)]
    pub mesh: serde_json::Map<String, Value>,
    /// Settings with which sidecars are injected.
    pub sidecars: Settings,
    /// The issuer of workloads' certificates, if the mesh's own root does not sign them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuer: Option<IssuerSettings>,
    /// Authorities (PEM) of the certificate that clients of the webhook need; empty: they need none.
    #[serde(
        default,
        skip_serializing_if = "String::is_empty",
        rename = "webhookClientCA"
    )]
    pub webhook_client_ca: String,
    /// SMI's metrics API is served.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub smi_metrics: bool,
    /// Whether there is a console.
    #[serde(default)]
    pub console: ConsoleOptions,
}

impl ControllerOptions {
    /// The Mesh object.
    ///
    /// # Errors
    /// `mesh` is not the `spec` of one.
    fn mesh(&self) -> Result<Object, String> {
        mesh_object(&self.mesh, &self.sidecars.trust_domain)
    }
}

/// A Mesh that says this.
///
/// # Errors
/// It is not the `spec` of one.
pub(crate) fn mesh_object(
    spec: &serde_json::Map<String, Value>,
    trust_domain: &str,
) -> Result<Object, String> {
    let mut spec = spec.clone();
    spec.insert("trustDomain".into(), trust_domain.into());
    let mesh = json!({
        "apiVersion": "tulle.dev/v1alpha1", "kind": "Mesh",
        "metadata": { "name": "mesh" }, "spec": spec,
    });
    read_object(&mesh.to_string())
}

/// A controller of a cluster that runs.
#[derive(Debug)]
pub struct RunningInCluster {
    /// The controller itself.
    pub controller: RunningController,
    /// Reviews the tokens of those who open the console.
    pub visitors: Visitors,
    helpers: Vec<tokio::task::JoinHandle<()>>,
}

impl RunningInCluster {
    /// Ends it, as [`RunningController::shutdown`].
    pub async fn shutdown(self) {
        for helper in &self.helpers {
            helper.abort();
        }
        self.controller.shutdown().await;
    }
}

/// Starts the controller of the cluster that this process is in (or that `KUBECONFIG` names).
///
/// # Errors
/// The API server does not answer, or something that this process needs is not available.
pub async fn start(
    options: &ControllerOptions,
    run_dir: PathBuf,
) -> Result<RunningInCluster, String> {
    memory_limit::start();
    let config = kube::Config::incluster().map_err(|e| e.to_string());
    let client = config.and_then(|config| Client::try_from(config).map_err(|e| e.to_string()));
    let client = client.map_err(|e| format!("no Kubernetes API server is configured: {e}"))?;
    let settings = &options.sidecars;
    let mesh = options.mesh()?;
    let trust_domain = TrustDomain::parse(&settings.trust_domain).map_err(|e| e.to_string())?;
    let any = |port| socket::available((Ipv6Addr::UNSPECIFIED, port).into());
    let bind = async |port| {
        let bound = TcpListener::bind(any(port)).await;
        bound.map_err(|e| format!("cannot listen on port {port}: {e}"))
    };
    // This comes first, so that a kubelet learns why the controller is not ready yet.
    let mut all_missing = source::all_missing();
    all_missing.extend([gateway::MISSING]);
    let (missing, still_missing) = watch::channel(all_missing);
    let Object::Mesh(said) = &mesh else {
        return Err("the mesh has no Mesh".to_owned());
    };
    let (of_mesh, mesh_in_force) = watch::channel(said.spec.clone());
    let webhook = Webhook {
        settings: Arc::new(settings.clone()),
        mesh: mesh_in_force,
        missing: still_missing,
        unscraped: Unscraped::default(),
        bodies: Bodies::default(),
        client_roots: webhook::client_roots(&options.webhook_client_ca)
            .map_err(|e| format!("webhook.clientCA: {e}"))?,
    };
    let unscraped = webhook.unscraped.clone().follow(client.clone());
    let mut helpers = vec![spawn(unscraped)];
    let health = bind(names::HEALTH_PORT).await?;
    helpers.push(spawn(webhook.clone().serve_health(health)));

    // In a pod its name.
    let replica = std::env::var("HOSTNAME").unwrap_or_else(|_| names::CONTROLLER.to_owned());
    let keeper = InSecret::new(client.clone(), &options.namespace, replica.clone());
    let issuer = match &options.issuer {
        Some(issuer) => {
            let id = trust_domain.service_account(&options.namespace, names::CONTROLLER);
            let id = id.map_err(|e| e.to_string())?;
            Some(issuer.start(client.clone(), &options.namespace, &id)?)
        }
        None => None,
    };
    let roots = keeper.open().await?;
    keeper.hold_trust_domain(&settings.trust_domain).await?;
    let issuer_roots = match &issuer {
        Some(issuer) => kept_roots(&keeper, &issuer.name()).await,
        None => Vec::new(),
    };
    let leads = leader::run(client.clone(), options.namespace.clone(), replica);
    let (of_objects, refused) = watch::channel(metrics::RefusedObjects::new());
    let present = metrics::Present {
        leads: leads.clone(),
        missing: webhook.missing.clone(),
        refused,
    };
    let cluster = Cluster {
        namespace: options.namespace.clone(),
        issuer,
        issuer_roots,
        trust_domain,
        roots,
        keeper: Arc::new(keeper.clone()),
        accounts: Arc::new(TokenReviews(client.clone())),
        more_metrics: Arc::new(move |text| metrics::write(text, &present)),
    };
    let config = ControllerConfig {
        socket: run_dir.join("control.sock"),
        state_dir: run_dir,
        listen: any(names::CONTROLLER_PORT),
        store: StoreKind::Memory,
        metrics: Some(any(names::CONTROLLER_METRICS_PORT)),
        host_away: HOST_AWAY,
        least_key_refresh: LEAST_REFRESH,
        observe: options.console.enabled,
    };
    let controller = Controller::start_in_cluster(config, cluster).await;
    let controller = controller.map_err(|e| e.to_string())?;
    let feed = controller.feed();

    let service = format!("{}.{}.svc", names::CONTROLLER, options.namespace);
    let listener = bind(names::WEBHOOK_PORT).await?;
    let serving = webhook.serve(listener, feed.clone(), vec![service.clone()]);
    helpers.push(spawn(serving));
    helpers.push(spawn(keeper.follow(feed.clone())));
    let publishing = trust::publish(client.clone(), feed.bundles());
    helpers.push(spawn(publishing));
    let told = |kind: ApiResource, name: &'static str| {
        let told = keep_bundle(client.clone(), kind, name, feed.bundles());
        spawn(told)
    };
    let injector = ApiResource::erase::<MutatingWebhookConfiguration>(&());
    helpers.push(told(injector, names::WEBHOOK));
    let validator = ApiResource::erase::<ValidatingWebhookConfiguration>(&());
    helpers.push(told(validator, names::VALIDATOR));
    if options.smi_metrics {
        let listener = bind(names::METRICS_API_PORT).await?;
        let names = vec![service];
        let serving = smi::serve(client.clone(), feed.clone(), listener, names);
        helpers.push(spawn(serving));
        let api_service = ApiResource::erase::<APIService>(&());
        helpers.push(told(api_service, smi::API_SERVICE));
    }
    let wishes = StatusUpdates::default();
    let writing = status::write(client.clone(), wishes.clone(), leads.clone());
    helpers.push(spawn(writing));
    if settings.init_image.is_none() {
        helpers.push(spawn(repair::run(client.clone(), leads.clone())));
    }
    feed.hold_for_keys();
    helpers.push(spawn(await_keys(feed.clone(), missing.subscribe())));
    let visitors = Visitors(client.clone());
    let (of_source, views) = watch::channel(None);
    let (presence, texts) = watch::channel(gateway::Texts::default());
    let gateways = gateway::follow(gateway::Surroundings {
        client: client.clone(),
        feed: feed.clone(),
        settings: settings.clone(),
        leads,
        views,
        presence,
        wishes: wishes.clone(),
        missing: missing.clone(),
    });
    helpers.push(spawn(gateways));
    let following = source::follow(
        client,
        feed,
        mesh,
        texts,
        source::Told {
            missing,
            wishes,
            views: of_source,
            refused: of_objects,
            mesh: of_mesh,
        },
    );
    helpers.push(spawn(following));
    Ok(RunningInCluster {
        controller,
        visitors,
        helpers,
    })
}

/// Roots of another issuer as they were kept last. Without them the controller waits until the issuer answers.
async fn kept_roots(keeper: &InSecret, issuer: &str) -> Vec<Vec<u8>> {
    keeper.issuer_roots(issuer).await.unwrap_or_else(|why| {
        tracing::warn!("the stored roots of the issuer are ignored: {why}");
        Vec::new()
    })
}

/// Ends the wait of resources for keys of tokens, once all objects are known. Without it sidecars would answer
/// requests that need a token with 500, at each restart of the controller. Nothing else waits: neither the
/// controller's readiness nor what it tells proxies of other services.
async fn await_keys(feed: Feed, mut missing: watch::Receiver<Missing>) {
    if missing.wait_for(Missing::is_empty).await.is_ok() {
        feed.await_keys(KEYS_WAIT).await;
    }
}

/// The places of an object that tell the API server which certificate a server of ours has, as base64: those of a
/// webhook's configuration, or of an APIService.
fn bundles(object: &mut Value) -> impl Iterator<Item = &mut Value> {
    let fields = object.as_object_mut().into_iter().flatten();
    let servers = fields.flat_map(|(field, value)| match (field.as_str(), value) {
        ("webhooks", Value::Array(hooks)) => {
            let hooks = hooks.iter_mut();
            hooks
                .filter_map(|hook| hook.get_mut("clientConfig"))
                .collect()
        }
        ("spec", spec) => vec![spec],
        _ => Vec::new(),
    });
    let servers = servers.filter_map(Value::as_object_mut);
    servers.map(|server| server.entry("caBundle").or_insert(Value::Null))
}

/// Keeps the root in the API server's objects, which it checks the controller's certificates against.
async fn keep_bundle(client: Client, kind: ApiResource, name: &str, mut bundles: Bundles) {
    let api = Api::<DynamicObject>::all_with(client, &kind);
    let mut known_trouble = String::new();
    loop {
        match set_bundle(&api, name, &bundles.pem()).await {
            Ok(()) => known_trouble.clear(),
            Err(error) => {
                let trouble = error.to_string();
                if trouble != known_trouble {
                    tracing::warn!(
                        object = name,
                        error = trouble,
                        "the root could not be written for the API server"
                    );
                    known_trouble = trouble;
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = bundles.changed() => {}
        }
    }
}

async fn set_bundle(api: &Api<DynamicObject>, name: &str, root: &str) -> kube::Result<()> {
    let mut found = api.get(name).await?;
    let bundle = Value::from(STANDARD.encode(root));
    let mut changed = false;
    for known in bundles(&mut found.data) {
        changed |= *known != bundle;
        known.clone_from(&bundle);
    }
    if changed {
        // The object keeps its resourceVersion, so that the change of another writer is not overwritten.
        api.replace(name, &PostParams::default(), &found).await?;
        tracing::info!(object = name, "the root was written for the API server");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_of_a_certificate_is_found_and_nothing_else_changes() {
        let mut hooks = json!({ "webhooks": [
            { "name": "a", "clientConfig": { "caBundle": "b2xk", "service": { "name": "s" } }, "new": 1 },
            { "name": "b", "clientConfig": { "url": "https://a" } },
        ] });
        bundles(&mut hooks).for_each(|place| *place = "bmV3".into());
        let written = json!({ "webhooks": [
            { "name": "a", "clientConfig": { "caBundle": "bmV3", "service": { "name": "s" } }, "new": 1 },
            { "name": "b", "clientConfig": { "url": "https://a", "caBundle": "bmV3" } },
        ] });
        assert_eq!(hooks, written);
        let mut service = json!({ "spec": { "group": "g" } });
        bundles(&mut service).for_each(|place| *place = "bmV3".into());
        assert_eq!(
            service,
            json!({ "spec": { "group": "g", "caBundle": "bmV3" } })
        );
        let mut none = json!({ "webhooks": null });
        assert_eq!(bundles(&mut none).count(), 0);
    }
}

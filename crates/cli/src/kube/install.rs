//! `tulle install`: the objects that a cluster needs, to be piped into `kubectl apply -f -`.

use crate::args::{Install, IssuerArgs, ObjectFormat};
use crate::failure::{Failure, OrFail, Result};
use serde_json::{Value, json};
use std::path::Path;
use tulle_kube::crd;
use tulle_kube::inject::{Resources, Settings};
use tulle_kube::install::{ISSUER_DIRECTORY, Installation, objects};
use tulle_kube::issuer::{CertManagerSettings, IssuerSettings, VaultAuth, VaultSettings};
use tulle_kube::names::{CONTROLLER, CONTROLLER_PORT};
use tulle_model::identity::TrustDomain;
use tulle_redirect::Exceptions;

/// Of the controller, for the API server and whoever asks it.
const SERVICE_ACCOUNT_TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// Prints them.
pub(crate) fn install(args: &Install) -> Result<()> {
    TrustDomain::parse(&args.trust_domain)
        .map_err(|e| Failure::usage("--trust-domain is not usable").because(e))?;
    let image = |name: &str| format!("{}/{name}:{}", args.registry, args.tag);
    let sidecars = Settings {
        image: image("tulle-proxy"),
        init_image: Some(image("tulle-init")),
        image_pull_policy: "IfNotPresent".into(),
        controller: format!("{CONTROLLER}.{}.svc:{CONTROLLER_PORT}", args.namespace),
        trust_domain: args.trust_domain.clone(),
        native_sidecar: !args.no_native_sidecar,
        hold_application: true,
        resources: Resources::default(),
        log_level: "info".into(),
        workers: 0,
        redirection: Exceptions::default(),
        metrics: true,
    };
    let objects = objects(&Installation {
        namespace: args.namespace.clone(),
        controller_image: image("tulle"),
        replicas: args.replicas,
        // Nothing of a cluster says yet who may call whom.
        mesh: [("permissiveMode".to_owned(), true.into())]
            .into_iter()
            .collect(),
        sidecars,
        issuer: issuer(&args.issuer)?,
        issuer_ca: args.issuer.issuer_ca.clone(),
    });
    let objects = match (args.crds_only, args.skip_crds) {
        (true, _) => crd::objects(),
        (_, true) => objects,
        // Before all that may be of such a kind.
        _ => [crd::objects(), objects].concat(),
    };
    print(&objects, args.output)
}

/// Kinds before all that may be of one.
pub(super) fn with_kinds(objects: Vec<Value>) -> Vec<Value> {
    [crd::objects(), objects].concat()
}

/// Prints objects for `kubectl apply -f -`.
pub(super) fn print(objects: &[Value], format: ObjectFormat) -> Result<()> {
    let mut text = String::new();
    match format {
        ObjectFormat::Yaml => {
            for object in objects {
                let yaml = serde_saphyr::to_string(object);
                text.push_str("---\n");
                text.push_str(&yaml.or_fail(|| "cannot print YAML".to_owned())?);
            }
        }
        ObjectFormat::Json => {
            let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
            text = format!("{list:#}\n");
        }
    }
    anstream::print!("{text}");
    Ok(())
}

/// Who signs workloads' certificates, if the mesh's own root does not.
fn issuer(args: &IssuerArgs) -> Result<Option<IssuerSettings>> {
    let parts = |option: &str, text: &str| match text.rsplit_once('/') {
        Some((first, last)) if !first.is_empty() && !last.is_empty() => {
            Ok((first.to_owned(), last.to_owned()))
        }
        _ => Err(Failure::usage(format!("{option} {text} is not usable"))
            .because("it has two parts with a / between them")),
    };
    let ca = Path::new(ISSUER_DIRECTORY).join("ca.crt");
    if let Some(which) = &args.cert_manager {
        let (kind, name) = parts("--cert-manager", which)?;
        let (kind, group) = match kind.split_once('.') {
            Some((kind, group)) => (kind.to_owned(), group.to_owned()),
            None => (kind, "cert-manager.io".to_owned()),
        };
        return Ok(Some(IssuerSettings::CertManager(CertManagerSettings {
            name,
            kind,
            group,
            roots: args.issuer_ca.is_some().then_some(ca),
        })));
    }
    let Some(address) = &args.vault else {
        return Ok(None);
    };
    let (mount, role) = parts("--vault-sign", &args.vault_sign)?;
    let (auth_mount, auth_role) = parts("--vault-auth", &args.vault_auth)?;
    Ok(Some(IssuerSettings::Vault(VaultSettings {
        address: address.clone(),
        mount,
        role,
        ca,
        auth: VaultAuth::Kubernetes {
            mount: auth_mount,
            role: auth_role,
            token: SERVICE_ACCOUNT_TOKEN.into(),
        },
    })))
}

//! `tulle install`: the objects that a cluster needs, to be piped into `kubectl apply -f -`.

use crate::args::{Install, ObjectFormat};
use crate::failure::{Failure, OrFail, Result};
use serde_json::{Value, json};
use tulle_kube::crd;
use tulle_kube::inject::{Redirection, Resources, Settings};
use tulle_kube::install::{Installation, objects};
use tulle_kube::names::{CONTROLLER, CONTROLLER_PORT};
use tulle_model::identity::TrustDomain;

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
        redirection: Redirection::default(),
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

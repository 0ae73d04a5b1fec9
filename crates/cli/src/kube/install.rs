//! `tulle install`: the objects that a cluster needs, printed for `kubectl apply -f -` or applied.

use super::cluster::Cluster;
use super::{present, rollout, values};
use crate::args::cluster::Which;
use crate::args::install::Install;
use crate::args::output::ObjectFormat;
use crate::failure::{OrFail, Result};
use crate::which_mesh::has_kubeconfig;
use serde_json::{Value, json};
use std::time::Duration;
use tulle_kube::crd;
use tulle_kube::install::objects;
use tulle_model::to_yaml;

/// How long the cluster may take to say what is installed.
const PATIENCE: Duration = Duration::from_secs(5);

/// Prints or applies them. Of a cluster that answers, what must not change by the way stays as it is.
pub(crate) async fn install(which: &Which, args: &Install) -> Result<()> {
    let mut layers: Vec<Value> = args.profile.map(values::profile).into_iter().collect();
    layers.extend(values::layers(&args.chosen, values::options(args)?)?);
    let cluster = match args.applying.apply {
        true => Some(Cluster::open(which).await?),
        false => None,
    };
    let present = match &cluster {
        _ if args.crds_only => None,
        Some(cluster) => present::find(cluster).await?,
        None => look(which).await?,
    };
    let choice = match present {
        Some(present) => present.choice(&layers)?,
        None => values::choice(&layers)?,
    };
    let objects = match (args.crds_only, args.skip_crds) {
        (true, _) => crd::objects(),
        (_, true) => objects(&args.namespace, &choice),
        _ => with_kinds(objects(&args.namespace, &choice)),
    };
    match &cluster {
        Some(cluster) => {
            let text = written(&objects, ObjectFormat::Yaml)?;
            rollout::apply(cluster, which, (&objects, &text), &args.applying).await
        }
        None => print(&objects, args.output),
    }
}

/// The mesh that is installed. Objects can be made without a cluster, so one that does not answer is no
/// failure.
async fn look(which: &Which) -> Result<Option<present::Present>> {
    let is_named = which.context.is_some() || which.kubeconfig.is_some();
    if !is_named && !has_kubeconfig() {
        return Ok(None);
    }
    let why = match Cluster::open(which).await {
        Ok(cluster) => match tokio::time::timeout(PATIENCE, present::find(&cluster)).await {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(failure)) => failure.to_string(),
            Err(_) => format!("{} does not answer", cluster.server),
        },
        Err(failure) if is_named => return Err(failure),
        Err(failure) => failure.to_string(),
    };
    anstream::eprintln!("note: cannot tell whether a mesh is already installed: {why}");
    Ok(None)
}

/// Kinds before all that may be of one.
pub(super) fn with_kinds(objects: Vec<Value>) -> Vec<Value> {
    [crd::objects(), objects].concat()
}

/// Prints objects for `kubectl apply -f -`.
pub(super) fn print(objects: &[Value], format: ObjectFormat) -> Result<()> {
    crate::output::text(&written(objects, format)?);
    Ok(())
}

/// Writes objects as `kubectl` reads them.
pub(super) fn written(objects: &[Value], format: ObjectFormat) -> Result<String> {
    let mut text = String::new();
    match format {
        ObjectFormat::Yaml => {
            for object in objects {
                let yaml = to_yaml(object);
                text.push_str("---\n");
                text.push_str(&yaml.or_fail(|| "cannot print YAML".to_owned())?);
            }
        }
        ObjectFormat::Json => {
            let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
            text = format!("{list:#}\n");
        }
    }
    Ok(text)
}

//! `tulle install`: the objects that a cluster needs, to be piped into `kubectl apply -f -`.

use super::values;
use crate::args::{Install, ObjectFormat};
use crate::failure::{OrFail, Result};
use serde_json::{Value, json};
use tulle_kube::crd;
use tulle_kube::install::objects;

/// Prints them.
pub(crate) fn install(args: &Install) -> Result<()> {
    let layers = values::layers(&args.chosen, values::options(args)?)?;
    let choice = values::choice(&layers)?;
    let objects = match (args.crds_only, args.skip_crds) {
        (true, _) => crd::objects(),
        (_, true) => objects(&args.namespace, &choice),
        _ => with_kinds(objects(&args.namespace, &choice)),
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

//! `tulle secret`: a certificate and its key as the Secret that listeners of gateways refer to.

use crate::args::objects::Secret;
use crate::args::output::ObjectFormat;
use crate::client::Objects;
use crate::failure::{Failure, Result};
use crate::manifests::Manifests;
use crate::output::line;
use crate::supervise::preflight::Host;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use tulle_model::manifest::{self, Metadata, Object};

/// More than any chain or key has; an object may have 256 KiB.
const LONGEST: u64 = 128 << 10;

/// The Secret, once its parts are known to fit each other.
pub(crate) fn read(args: &Secret) -> Result<Manifests> {
    let Secret::Tls {
        secret: name,
        cert,
        key,
        ..
    } = args;
    let (chain, key_text) = (text(cert)?, text(key)?);
    tulle_control::index::check_pair(&chain, &key_text).map_err(|why| {
        let files = format!("{} and {}", cert.display(), key.display());
        Failure::input(format!("cannot make Secret/{name} of {files}")).because(why)
    })?;
    let secret = manifest::Secret {
        api_version: "v1".into(),
        kind: "Secret".into(),
        metadata: Metadata {
            name: name.clone(),
            ..Metadata::default()
        },
        secret_type: Some("kubernetes.io/tls".into()),
        string_data: BTreeMap::from([
            ("tls.crt".to_owned(), chain),
            ("tls.key".to_owned(), key_text),
        ]),
        ..manifest::Secret::default()
    };
    // Reading the object back applies the checks of a manifest from a file, such as those of its name.
    let object = Object::from_json(&Object::Secret(secret).to_json()).map_err(|errors| {
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        Failure::input(format!("cannot make Secret/{name}")).because(errors.join("; "))
    })?;
    Ok(Manifests::new(vec![object]))
}

/// Prints the manifest if a format was asked for; it holds the key.
pub(crate) fn print(args: &Secret, manifests: &Manifests) -> bool {
    let Secret::Tls { output, .. } = args;
    let Some(format) = output else { return false };
    for object in &manifests.objects {
        match format {
            ObjectFormat::Json => line(&object.to_json()),
            ObjectFormat::Yaml => line(object.to_yaml().trim_end()),
        }
    }
    true
}

/// Stores it.
pub(crate) async fn apply(objects: Objects, host: Host, manifests: &Manifests) -> Result<()> {
    crate::apply::apply(objects, host, manifests).await
}

fn text(file: &Path) -> Result<String> {
    let what = || format!("cannot read {}", file.display());
    let fix = "name a file with PEM: `--cert` the chain with the server's own certificate first, `--key` its private key";
    let mut text = String::new();
    File::open(file)
        .and_then(|f| f.take(LONGEST + 1).read_to_string(&mut text))
        .map_err(|e| Failure::input(what()).because(e).fix(fix))?;
    if text.len() as u64 > LONGEST {
        let why = format!("it is longer than {LONGEST} bytes");
        return Err(Failure::input(what()).because(why).fix(fix));
    }
    Ok(text)
}

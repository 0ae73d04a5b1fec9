//! Reads the values chosen at installation: files, `--set` and dedicated options.

use super::fault;
use crate::args::install::{Chosen, Images, Install, IssuerArgs, Profile};
use crate::failure::{Failure, OrFail, Result};
use serde_json::{Value, json};
use std::io::Read;
use std::path::Path;
use tulle_kube::install::choice::{Choice, check};
use tulle_model::{Booleans, YamlDocument};

/// Returns the given values, lowest precedence first: files, `options`, `--set`.
pub(super) fn layers(chosen: &Chosen, options: Vec<Value>) -> Result<Vec<Value>> {
    let mut layers = Vec::new();
    for file in &chosen.values {
        layers.push(read(file)?);
    }
    for option in options {
        check(&option)
            .map_err(|why| Failure::usage("an option has an invalid value").because(why))?;
        layers.push(option);
    }
    for set in &chosen.set {
        layers.push(one(set)?);
    }
    Ok(layers)
}

/// All of it together.
pub(super) fn choice(layers: &[Value]) -> Result<Choice> {
    Choice::from_layers(layers).map_err(|why| {
        Failure::input("cannot use these values")
            .because(why)
            .fix("docs/kubernetes/install.md explains each value")
    })
}

/// A file of values.
fn read(file: &Path) -> Result<Value> {
    let shown = file.display();
    let text = if file == Path::new("-") {
        let mut text = String::new();
        let read = std::io::stdin().read_to_string(&mut text);
        read.or_fail(|| "cannot read standard input".into())?;
        text
    } else {
        let text = std::fs::read_to_string(file);
        text.map_err(|e| Failure::input(format!("cannot read {shown}")).because(e))?
    };
    let refused = |why: String| Failure::input(format!("{shown} is invalid")).because(why);
    let document = document(&text).map_err(refused)?;
    let value = document.as_ref().map_or(Value::Null, YamlDocument::json);
    if value.is_null() {
        return Ok(json!({})); // nothing but comments
    }
    check(&value).map_err(|why| {
        let culprit = fault::find(&value, |value| check(value).err());
        let place = document.and_then(|document| document.place(&culprit?));
        refused(match place {
            Some(place) => format!("{why} at {place}"),
            None => why,
        })
    })?;
    Ok(value)
}

/// The document of a text; `None`: there is nothing but comments.
fn document(text: &str) -> std::result::Result<Option<YamlDocument>, String> {
    let mut documents = YamlDocument::read(text, Booleans::Strict)?;
    match documents.len() {
        0 | 1 => Ok(documents.pop()),
        count => Err(format!("it has {count} documents, write one")),
    }
}

/// `controller.replicas=2`
fn one(set: &str) -> Result<Value> {
    let refused = |why: String| {
        Failure::usage(format!("--set {set} is invalid"))
            .because(why)
            .fix(r"write KEY=VALUE, such as controller.replicas=2; the value is YAML, and \. is a dot within a key")
    };
    let (place, text) = set
        .split_once('=')
        .ok_or_else(|| refused("it has no =".into()))?;
    let value = match text {
        "" => "".into(),
        text => document(text)
            .map_err(refused)?
            .map_or(Value::Null, |document| document.json()),
    };
    let keys = place.replace(r"\.", "\0");
    let layer = keys
        .rsplit('.')
        .fold(value, |value, key| json!({ key.replace('\0', "."): value }));
    check(&layer).map_err(refused)?;
    Ok(layer)
}

/// Returns a profile as values.
pub(super) fn profile(profile: Profile) -> Value {
    let strict = profile == Profile::Strict;
    let mode = if strict { "strict" } else { "permissive" };
    json!({ "mesh": { "mtls": { "mode": mode }, "allowEgress": !strict } })
}

/// Returns the dedicated options as values.
pub(super) fn options(args: &Install) -> Result<Vec<Value>> {
    let mut layers = images(&args.images);
    if let Some(name) = &args.trust_domain {
        layers.push(json!({ "trustDomain": name }));
    }
    if let Some(replicas) = args.replicas {
        layers.push(json!({ "controller": { "replicas": replicas } }));
    }
    if args.no_native_sidecar {
        layers.push(json!({ "sidecar": { "nativeSidecar": false } }));
    }
    if args.cni {
        layers.push(json!({ "cni": { "enabled": true } }));
    }
    for (name, directory) in [
        ("configurations", &args.cni_configurations),
        ("programs", &args.cni_programs),
    ] {
        if let Some(directory) = directory {
            layers.push(json!({ "cni": { name: directory } }));
        }
    }
    if !args.gateway_namespaces.is_empty() {
        layers.push(json!({ "gateways": { "namespaces": args.gateway_namespaces } }));
    }
    layers.extend(issuer(&args.issuer)?);
    Ok(layers)
}

/// Where images are, and which.
pub(super) fn images(args: &Images) -> Vec<Value> {
    let given = [("registry", &args.registry), ("tag", &args.tag)];
    let given = given
        .into_iter()
        .filter_map(|(name, text)| Some((name, text.as_ref()?)));
    given
        .map(|(name, text)| json!({ "images": { name: text } }))
        .collect()
}

/// Returns the issuer of workloads' certificates as values, if it is not the mesh's own root.
fn issuer(args: &IssuerArgs) -> Result<Vec<Value>> {
    let parts = |option: &str, text: &str| match text.rsplit_once('/') {
        Some((first, last)) if !first.is_empty() && !last.is_empty() => {
            Ok((first.to_owned(), last.to_owned()))
        }
        _ => Err(Failure::usage(format!("{option} {text} is invalid"))
            .because("it has two parts with a / between them")),
    };
    let mut layers = Vec::new();
    if let Some(which) = &args.cert_manager {
        let (kind, name) = parts("--cert-manager", which)?;
        let (kind, group) = kind.split_once('.').unwrap_or((&kind, "cert-manager.io"));
        let issuer = json!({ "name": name, "kind": kind, "group": group });
        layers.push(json!({ "issuer": { "certManager": issuer } }));
    }
    if let Some(address) = &args.vault {
        layers.push(json!({ "issuer": { "vault": { "address": address } } }));
    }
    for (option, field, text) in [
        ("--vault-sign", "sign", &args.vault_sign),
        ("--vault-auth", "auth", &args.vault_auth),
    ] {
        if let Some(text) = text {
            let (mount, role) = parts(option, text)?;
            let role = json!({ "mount": mount, "role": role });
            layers.push(json!({ "issuer": { "vault": { field: role } } }));
        }
    }
    if let Some(name) = &args.issuer_ca {
        layers.push(json!({ "issuer": { "ca": name } }));
    }
    Ok(layers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> std::result::Result<Value, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        read(file.path()).map_err(|failure| {
            assert_eq!(failure.exit, crate::failure::Exit::Input);
            failure.to_string()
        })
    }

    #[test]
    fn a_file_says_where_it_is_wrong() {
        let good = "controller:\n  replicas: 2 # two\n";
        assert_eq!(file(good), Ok(json!({ "controller": { "replicas": 2 } })));
        assert_eq!(file("# nothing\n"), Ok(json!({})));
        for (text, telling) in [
            ("controller:\n  replica: 2\n", "line 2, column 3"),
            (
                "mesh:\n  permissiveMode: true\n  mtls: { strict: 1 }\n",
                "line 3",
            ),
            ("controller:\n  replicas: yes\n", "line 2"),
            ("controller: {}\ncontroller: {}\n", "line 2"),
            ("images: { tag: a b }\n", "images.tag"),
            (
                "gateways:\n  namespaces: [a]\nnetworkPolicy:\n  proxies:\n  - {}\n  - 2\n",
                "line 6",
            ),
            ("controller: [\n", "line"),
        ] {
            let why = file(text).unwrap_err();
            assert!(why.contains(telling), "{text}: {why}");
        }
    }

    /// Blocks without a kind are files of values.
    #[test]
    fn values_of_the_documentation_are_accepted() {
        let mut seen = 0;
        for page in ["install", "rights"] {
            let page = std::fs::read_to_string(format!("../../docs/kubernetes/{page}.md")).unwrap();
            for block in page.split("```yaml\n").skip(1) {
                let block = block.split("```").next().unwrap();
                // A digest of no image says nothing to a reader.
                let block = &block.replace('…', &"0".repeat(64));
                if !block.contains("kind:") {
                    let value = file(block).unwrap_or_else(|why| panic!("{block}: {why}"));
                    assert!(choice(&[value]).is_ok(), "{block}");
                    seen += 1;
                }
            }
        }
        assert!(seen > 2, "{seen}");
    }

    #[test]
    fn one_value_is_set() {
        let set = |text| one(text).map_err(|failure| failure.to_string());
        assert_eq!(
            set("controller.replicas=2"),
            Ok(json!({ "controller": { "replicas": 2 } }))
        );
        assert_eq!(
            set(r"controller.podAnnotations.example\.com/a=b=c"),
            Ok(json!({ "controller": { "podAnnotations": { "example.com/a": "b=c" } } }))
        );
        assert_eq!(
            set("controller.tolerations=[{ operator: Exists }]"),
            Ok(json!({ "controller": { "tolerations": [{ "operator": "Exists" }] } }))
        );
        assert_eq!(set("images.tag="), Ok(json!({ "images": { "tag": "" } })));
        for wrong in [
            "controller.replicas",
            "controller.replica=2",
            "controller.replicas=two",
        ] {
            assert!(set(wrong).is_err(), "{wrong}");
        }
    }
}

//! `tulle get`: what is stored.

use crate::apply::kind_named;
use crate::args::objects::Get;
use crate::args::output::Format;
use crate::client::{Objects, Rpc};
use crate::failure::{Failure, OrFail, Result};
use crate::output::{self, Columns, line};
use serde_json::{Value, json};
use tulle_api::v1::{ListRequest, Object};

/// Kind and name, none for all.
type Asked = (Option<&'static str>, Option<String>);

/// Which objects are meant.
pub(crate) fn asked(args: &Get) -> Result<Asked> {
    Ok(
        match args.kind.as_deref().map(|k| k.split_once('/').ok_or(k)) {
            None => (None, None),
            Some(Ok((kind, name))) => (Some(kind_named(kind)?), Some(name.to_owned())),
            Some(Err("all")) => (None, args.object.clone()),
            Some(Err(kind)) => (Some(kind_named(kind)?), args.object.clone()),
        },
    )
}

/// Lists all objects, those of a kind, or one.
pub(crate) async fn get(mut objects: Objects, (kind, name): Asked, args: &Get) -> Result<()> {
    let request = ListRequest {
        kind: kind.unwrap_or_default().to_owned(),
        name: name.clone().unwrap_or_default(),
    };
    let found = objects
        .list(request)
        .await
        .rpc(|| "cannot list the stored objects".to_owned())?
        .objects;
    if let (true, Some(name)) = (found.is_empty(), &name) {
        let kind = kind.unwrap_or("object");
        return Err(Failure::new(format!("there is no {kind} named {name}"))
            .fix("`tulle get` lists what is stored"));
    }
    print(found, kind, args.format.output, name.is_some())
}

/// Says that there is nothing of a kind, or nothing at all, and what to do about it.
fn nothing(kind: Option<&str>) -> String {
    match kind {
        None => "nothing is stored; `tulle apply FILE` stores manifests".to_owned(),
        Some("Node") => {
            "no host has joined; `tulle token create node/NAME` prints how one does".to_owned()
        }
        Some(kind) => format!("no {kind} is stored; `tulle get` shows what is"),
    }
}

fn print(found: Vec<Object>, kind: Option<&str>, format: Format, single: bool) -> Result<()> {
    match format {
        // Documents that `tulle apply` takes back; a host that joined is none.
        Format::Yaml if found.iter().any(|o| o.kind != "Node") => {
            let mut documents = Vec::new();
            for object in &found {
                let parsed = tulle_model::manifest::Object::from_json(&object.json);
                let parsed = parsed.map_err(|errors| {
                    let what = format!("cannot read {}/{}", object.kind, object.name);
                    let why: Vec<String> = errors.iter().map(ToString::to_string).collect();
                    Failure::new(what).because(why.join("; "))
                })?;
                documents.push(parsed.to_yaml().trim_end().to_owned());
            }
            line(&documents.join("\n---\n"));
            Ok(())
        }
        Format::Json | Format::Yaml => {
            let mut items = Vec::new();
            for object in &found {
                let value: Value = serde_json::from_str(&object.json)
                    .or_fail(|| format!("cannot read {}/{}", object.kind, object.name))?;
                items.push(value);
            }
            let only = if single { items.pop() } else { None };
            let value = only.unwrap_or_else(|| json!({ "items": items }));
            output::structured(&value, format).map(drop)
        }
        Format::Table | Format::Wide => {
            let mut columns = Columns::new(&["KIND", "NAME"]);
            for object in found {
                columns.row(vec![object.kind, object.name]);
            }
            if columns.is_empty() {
                line(&nothing(kind));
            } else {
                line(&columns.render());
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_list_speaks_of_the_kind_that_was_asked_for() {
        assert!(nothing(None).starts_with("nothing is stored"));
        assert!(nothing(Some("Node")).starts_with("no host has joined"));
        assert!(nothing(Some("Gateway")).starts_with("no Gateway is stored"));
    }
}

//! `tulle apply` and `tulle delete`: change what is stored; the mesh follows at once.

use crate::args::objects::{Delete, Files};
use crate::args::output::Format;
use crate::client::{Objects, Rpc};
use crate::failure::{Failure, Result};
use crate::findings;
use crate::manifests::{self, Manifests};
use crate::output::line;
use crate::supervise::preflight::Host;
use std::process::ExitCode;
use tulle_api::v1::{Applied, ApplyRequest, DeleteRequest, ListRequest};
use tulle_model::manifest::{Object, Problem};

const NOT_APPLIED: &str = "the manifests were not applied";

/// The manifests to apply.
pub(crate) fn read(args: &Files) -> Result<Manifests> {
    let files = args.all();
    if files.is_empty() {
        return Err(Failure::usage("no manifest was given")
            .fix("`tulle apply FILE`, or `-` for standard input"));
    }
    manifests::read(&files)
}

/// Stores all objects, or none.
pub(crate) async fn apply(
    mut objects: Objects,
    mut host: Host,
    manifests: &Manifests,
) -> Result<()> {
    host.stored = stored(&mut objects).await?;
    host.check(manifests)?;
    warn(&manifests.findings_beside(&host.stored));
    let (results, found) = send(&mut objects, manifests, false).await?;
    warn(&found);
    for applied in results {
        line(&outcome(&applied));
    }
    Ok(())
}

/// Says what would be found, and changes nothing. What would be refused is refused.
pub(crate) async fn dry_run(
    mesh: Option<(Objects, Host)>,
    manifests: &Manifests,
    format: Format,
) -> Result<ExitCode> {
    let (mut found, judged) = match mesh {
        Some((mut objects, mut host)) => {
            host.stored = stored(&mut objects).await?;
            let found = manifests.findings_beside(&host.stored);
            let judged = match host.check(manifests) {
                Ok(()) => send(&mut objects, manifests, true).await,
                Err(failure) => Err(failure),
            };
            (found, judged.map(|(_, found)| found))
        }
        None => (manifests.findings_beside(&[]), judge_alone(manifests)),
    };
    let refused = match judged {
        Ok(more) => {
            findings::add(&mut found, more);
            None
        }
        Err(failure) => Some(failure),
    };
    findings::show(&found, format)?;
    if let Some(failure) = refused {
        return Err(failure);
    }
    if found.is_empty() && format == Format::Table {
        let count = manifests.objects.len();
        line(&format!(
            "nothing found in {count} objects; nothing was changed"
        ));
    }
    Ok(findings::exit(!found.is_empty()))
}

/// Judges manifests as the controller of a mesh that has nothing yet would.
pub(crate) fn judge_alone(manifests: &Manifests) -> Result<Vec<Problem>> {
    let judged = tulle_control::judge(&manifests.to_api());
    let judged = judged.map_err(|why| Failure::input(NOT_APPLIED).because(why));
    judged.map(findings::known)
}

/// Has the controller judge all objects and, unless it is a dry run, store them. What it finds is
/// returned with what became of them.
async fn send(
    objects: &mut Objects,
    manifests: &Manifests,
    dry_run: bool,
) -> Result<(Vec<Applied>, Vec<Problem>)> {
    let request = ApplyRequest {
        objects: manifests.to_api(),
        dry_run,
        ..Default::default()
    };
    let answer = objects
        .apply(request)
        .await
        .rpc(|| NOT_APPLIED.to_owned())?;
    Ok((answer.results, findings::known(answer.findings)))
}

/// Lists the stored objects, so that new objects are judged beside them. Objects that cannot be read are
/// left out.
pub(crate) async fn stored(objects: &mut Objects) -> Result<Vec<Object>> {
    let stored = objects
        .list(ListRequest::default())
        .await
        .rpc(|| "cannot list the stored objects".to_owned())?;
    let read = |o: &tulle_api::v1::Object| Object::from_json(&o.json).ok();
    Ok(stored.objects.iter().filter_map(read).collect())
}

/// Such as `workload/ratings created`.
pub(crate) fn outcome(applied: &Applied) -> String {
    let kind = applied.kind.to_lowercase();
    format!("{kind}/{} {}", applied.name, applied.outcome)
}

/// Says what looks wrong, beside the results.
pub(crate) fn warn(warnings: &[Problem]) {
    for warning in warnings {
        anstream::eprintln!("{warning}");
    }
}

/// Kinds and names of what is to be deleted.
pub(crate) fn named(args: &Delete) -> Result<Vec<(String, String)>> {
    let mut named: Vec<(String, String)> = Vec::new();
    if let Some(kind) = &args.kind {
        // `kind/name` is one argument.
        let (kind, first) = match kind.split_once('/') {
            Some((kind, name)) => (kind, Some(name.to_owned())),
            None => (kind.as_str(), None),
        };
        let kind = kind_named(kind)?;
        let names = first.into_iter().chain(args.objects.iter().cloned());
        named.extend(names.map(|name| (kind.to_owned(), name)));
        if named.is_empty() {
            return Err(Failure::usage(format!("no {kind} was named")).fix(format!(
                "`tulle delete {} NAME`; `tulle get` lists names",
                kind.to_lowercase()
            )));
        }
    }
    if !args.filename.is_empty() {
        let manifests = manifests::read(&args.filename)?;
        let objects = manifests.objects.iter();
        named.extend(objects.map(|o| (o.kind().to_owned(), o.name().to_owned())));
    }
    Ok(named)
}

/// Removes objects.
pub(crate) async fn delete(mut objects: Objects, named: Vec<(String, String)>) -> Result<()> {
    let mut missing = Vec::new();
    for (kind, name) in named {
        let request = DeleteRequest {
            kind: kind.clone(),
            name: name.clone(),
        };
        let answer = objects
            .delete(request)
            .await
            .rpc(|| format!("cannot delete {kind}/{name}"))?;
        let id = format!("{}/{name}", kind.to_lowercase());
        if answer.existed {
            line(&format!("{id} deleted"));
        } else {
            missing.push(id);
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure::new(format!("not found: {}", missing.join(", ")))
        .fix("`tulle get` lists what is stored"))
}

/// Any way people write a kind: case does not matter, plurals and short names are understood.
pub(crate) fn kind_named(text: &str) -> Result<&'static str> {
    let lower = text.to_lowercase();
    let singular = lower.strip_suffix('s').unwrap_or(&lower);
    let short = match singular {
        "meshe" => "mesh",
        "wl" => "workload",
        "gw" | "gtw" => "gateway",
        "route" => "httproute",
        "tt" => "traffictarget",
        "hrg" => "httproutegroup",
        "policy" | "authz" => "authorizationpolicy",
        "cm" => "configmap",
        other => other,
    };
    // Hosts that joined: listed and removed like objects, but never applied.
    if ["node", "host"].contains(&short) {
        return Ok("Node");
    }
    let is = |kind: &str| {
        let kind = kind.to_lowercase();
        [singular, short, &lower].contains(&kind.as_str())
            || plural_of_policy(&lower).is_some_and(|p| p == kind)
    };
    tulle_model::manifest::kinds()
        .find(|kind| is(kind))
        .ok_or_else(|| {
            let kinds: Vec<String> = tulle_model::manifest::kinds()
                .map(str::to_lowercase)
                .collect();
            Failure::usage(format!("unknown kind {text:?}"))
                .fix(format!("one of {}, node", kinds.join(", ")))
        })
}

/// `trafficpolicies` is more than one `trafficpolicy`.
fn plural_of_policy(lower: &str) -> Option<String> {
    Some(format!("{}y", lower.strip_suffix("ies")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_as_people_write_them() {
        for (text, kind) in [
            ("Workload", "Workload"),
            ("workloads", "Workload"),
            ("HTTPRoute", "HTTPRoute"),
            ("httproutes", "HTTPRoute"),
            ("meshes", "Mesh"),
            ("tt", "TrafficTarget"),
            ("nodes", "Node"),
            ("egress", "Egress"),
            ("trafficpolicies", "TrafficPolicy"),
            ("ratelimit", "RateLimit"),
            ("tcproutes", "TCPRoute"),
            ("TCPRoute.specs.smi-spec.io", "TCPRoute.specs.smi-spec.io"),
        ] {
            assert_eq!(kind_named(text).unwrap(), kind);
        }
        assert!(kind_named("pod").is_err());
    }
}

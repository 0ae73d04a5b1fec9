//! Open Service Mesh, osm-edge and FSM: which kind is translated by whom.

use super::fields::{lose_rest, take, text};
use super::imported::Imported;
use super::source::Source;
use super::{access, labels, mesh_config, traffic};
use serde_json::Value;
use std::collections::BTreeMap;

/// Translates all of them.
pub(super) fn import(objects: Vec<Value>) -> Imported {
    let mut imported = Imported::default();
    let groups = objects.iter().filter(|o| o["kind"] == "HTTPRouteGroup");
    let groups: Vec<Value> = groups.cloned().collect();
    let sources: Vec<Source> = objects.into_iter().map(Source::new).collect();
    let mut policies = traffic::Policies::default();
    for source in sources {
        match source.group() {
            _ if source.is_own() => own(source, &groups, &mut policies, &mut imported),
            group if group.ends_with("smi-spec.io") => smi(source, &mut imported),
            _ => labels::import(
                source.id.clone(),
                source.into_whole(),
                &mut imported,
                labels::osm,
            ),
        }
    }
    policies.finish(&mut imported);
    imported
}

/// A kind of theirs.
fn own(
    source: Source,
    groups: &[Value],
    policies: &mut traffic::Policies,
    imported: &mut Imported,
) {
    match source.kind.as_str() {
        "MeshConfig" => mesh_config::import(source, imported),
        "Egress" => access::egress(source, imported),
        "IngressBackend" | "AccessControl" => access::backend(source, groups, imported),
        "UpstreamTrafficSetting" => policies.setting(source, imported),
        "Retry" => policies.retry(source, imported),
        "MeshRootCertificate" => root(source, imported),
        _ => {
            let (why, instead) = unknown(&source.kind);
            imported.lose(&source.id, "spec", why, instead);
        }
    }
}

/// MeshRootCertificate. Who signs, and for which trust domain, are values of the installation, so it becomes no object.
fn root(mut source: Source, imported: &mut Imported) {
    let mut spec = std::mem::take(&mut source.spec);
    let id = &source.id;
    // Which of several counts; here there is one.
    take(&mut spec, "intent");
    let mut options = Vec::new();
    for (path, option) in [
        ("trustDomain", "--trust-domain "),
        (
            "provider/certManager/issuerName",
            "--set issuer.certManager.name=",
        ),
        (
            "provider/certManager/issuerKind",
            "--set issuer.certManager.kind=",
        ),
        (
            "provider/certManager/issuerGroup",
            "--set issuer.certManager.group=",
        ),
        ("provider/vault/role", "--set issuer.vault.sign.role="),
    ] {
        options.extend(text(&mut spec, path).map(|value| format!("{option}{value}")));
    }
    if let Some(host) = text(&mut spec, "provider/vault/host") {
        let protocol = text(&mut spec, "provider/vault/protocol").unwrap_or_else(|| "http".into());
        let port = take(&mut spec, "provider/vault/port").unwrap_or_else(|| 8200.into());
        options.push(format!(
            "--set issuer.vault.address={protocol}://{host}:{port}"
        ));
    }
    let instead = format!("`tulle install {}`", options.join(" "));
    imported.lose(
        id,
        "spec",
        "who signs is a value of the installation",
        &instead,
    );
    for (path, why, instead) in [
        (
            "provider/tresor",
            "the mesh has a root of its own, and takes no key",
            "a root is replaced by `tulle ca rotate`",
        ),
        (
            "provider/vault/token",
            "Vault knows the controller by its service account",
            "set issuer.vault.auth of the installation's values: docs/certificates.md",
        ),
    ] {
        if take(&mut spec, path).is_some() {
            imported.lose(
                id,
                &format!("spec.{}", path.replace('/', ".")),
                why,
                instead,
            );
        }
    }
    lose_rest(imported, id, "spec", &spec, "see docs/certificates.md");
}

/// Why a kind is not translated, and what to do.
fn unknown(kind: &str) -> (&'static str, &'static str) {
    match kind {
        "Plugin" | "PluginChain" | "PluginConfig" => (
            "scripts of Pipy do not run here",
            "write a Plugin, in JavaScript, too: docs/features/plugins.md says what stands for what; or see whether filters of HTTPRoutes do the same: docs/manifests/routes.md",
        ),
        "EgressGateway" => (
            "each Egress names its own gateway",
            "make a Gateway of the class `tulle-egress`, and name its Service in `gateway` of the Egresses",
        ),
        "AccessCert" => (
            "certificates are for workloads of the mesh",
            "let clients in by an IngressBackend with sources of kind IPRange, or through a Gateway",
        ),
        "ServiceExport"
        | "ServiceImport"
        | "GlobalTrafficPolicy"
        | "Cluster"
        | "MultiClusterService" => (
            "a mesh is one cluster, or hosts",
            "let the other cluster in by a Gateway",
        ),
        _ => ("this kind has no counterpart", "see docs/from-osm.md"),
    }
}

/// SMI's kinds are read as they are, in the versions that OSM served last.
fn smi(mut source: Source, imported: &mut Imported) {
    let known = BTreeMap::from([
        ("TrafficTarget", ["access.smi-spec.io/v1alpha3", ""]),
        ("HTTPRouteGroup", ["specs.smi-spec.io/v1alpha4", ""]),
        ("TCPRoute", ["specs.smi-spec.io/v1alpha4", ""]),
        (
            "TrafficSplit",
            ["split.smi-spec.io/v1alpha4", "split.smi-spec.io/v1alpha2"],
        ),
    ]);
    let version = source.version().to_owned();
    match known.get(source.kind.as_str()) {
        Some(versions) if versions.contains(&version.as_str()) => {
            let id = source.id.clone();
            if source.kind == "TrafficTarget" && !retain_obeyed(&mut source, imported) {
                return;
            }
            let notes = match named_by_host(&mut source) {
                Ok(note) => note.into_iter().collect(),
                Err(host) => {
                    let why = format!("`{host}` is no Service of this cluster");
                    return imported.lose(&id, "spec.service", &why, "name a Service of the split's namespace");
                }
            };
            let mut whole = source.into_whole();
            labels::clean(&mut whole);
            imported.make(&id, whole).notes = notes;
        }
        _ => imported.lose(
            &source.id,
            "apiVersion",
            &format!("{version} is not read"),
            "SMI's kinds are read as TrafficTarget v1alpha3, HTTPRouteGroup and TCPRoute v1alpha4, TrafficSplit v1alpha2 and v1alpha4",
        ),
    }
}

/// Takes out of a TrafficTarget the sources that OSM took for nobody, and returns whether something is left. OSM passed over
/// all of one without rules, or about a namespace that is not said or another one; here it would allow something.
fn retain_obeyed(target: &mut Source, imported: &mut Imported) -> bool {
    let id = target.id.clone();
    let before = imported.lost.len();
    let named = |identity: &Value| {
        let namespace = identity["namespace"].as_str();
        namespace.filter(|name| !name.is_empty()).map(str::to_owned)
    };
    if target.spec["rules"].as_array().is_none_or(Vec::is_empty) {
        imported.lose(
            &id,
            "spec.rules",
            "OSM passed over a TrafficTarget without rules, and here it would allow everything, TCP, too",
            "name the calls that are meant, or leave it out: docs/manifests/smi.md",
        );
    }
    let there = named(&target.spec["destination"]);
    // A file may leave its own namespace to whoever applies it; then it allows something in the one that it names alone.
    let is_own = there.is_some() && (target.namespace.is_none() || there == target.namespace);
    if !is_own {
        imported.lose(
            &id,
            "spec.destination.namespace",
            "OSM passed over a TrafficTarget that does not name its own namespace there, and here it would take effect",
            "name its own namespace, or leave it out",
        );
    }
    if imported.lost.len() > before {
        return false;
    }
    let Some(Value::Array(sources)) = target.spec.get_mut("sources") else {
        return true;
    };
    for (number, source) in std::mem::take(sources).into_iter().enumerate() {
        if named(&source).is_some() {
            sources.push(source);
            continue;
        }
        imported.lose(
            &id,
            &format!("spec.sources[{number}].namespace"),
            "OSM took a source without a namespace for nobody, and here it would be one of the TrafficTarget's namespace",
            "name the namespace of the source",
        );
    }
    // Where all of them were nobody, nothing is left that it allows.
    !sources.is_empty() || imported.lost.len() == before
}

/// Has a TrafficSplit name its service, which OSM's own examples write as a host. Returns what there is to be known about it.
///
/// # Errors
/// Returns a host that is no Service's.
fn named_by_host(split: &mut Source) -> Result<Option<String>, String> {
    let is_split = split.kind == "TrafficSplit";
    let host = split.spec["service"].as_str().unwrap_or_default();
    if !is_split || !host.contains('.') {
        return Ok(None);
    }
    let host = host.to_owned();
    let (namespace, name) = traffic::service_of(&host, split).ok_or_else(|| host.clone())?;
    // OSM looked for it in the split's own namespace, whichever one the host names.
    let is_elsewhere = split.namespace.is_some() && namespace != split.namespace;
    let note =
        format!("spec.service: {name} of the split's own namespace, as OSM understood {host}");
    split.spec["service"] = name.into();
    Ok(is_elsewhere.then_some(note))
}

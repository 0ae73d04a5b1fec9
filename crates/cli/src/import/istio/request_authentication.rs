//! Tokens that requests may bring: an Authentication about the Services of the selector. One of which a part has no
//! counterpart is not made: it would take other tokens.

use super::proxies::Proxies;
use super::targets::{mesh_wide, name_in, targets};
use crate::import::fields::{carry, list, lose_rest, take, text};
use crate::import::imported::{Imported, object};
use crate::import::services::Service;
use crate::import::source::Source;
use serde_json::{Map, Value, json};

const SEE: &str = "write an Authentication with `jwt`: docs/features/jwt.md";

pub(super) fn import(
    mut source: Source,
    (services, proxies): (&[Service], &Proxies<'_>),
    imported: &mut Imported,
) {
    let mut spec = std::mem::take(&mut source.spec);
    let id = source.id.clone();
    let targets = targets(&mut spec, &source, (services, proxies), imported);
    let before = imported.lost.len();
    let mut providers = Vec::new();
    for (number, rule) in list(&mut spec, "jwtRules").into_iter().enumerate() {
        let at = format!("spec.jwtRules[{number}]");
        providers.push(Value::from(provider(&id, &at, rule, imported)));
    }
    lose_rest(imported, &id, "spec", &spec, SEE);
    if providers.is_empty() {
        imported.lose(&id, "spec.jwtRules", "it reads no token", "leave it out");
    }
    if imported.lost.len() > before || !targets.are_known {
        return;
    }
    let has_uri = providers.iter().any(|p| p.get("jwksUri").is_some());
    for (namespace, meant) in targets.services {
        let refs: Vec<Value> = meant
            .iter()
            .map(|s| json!({ "kind": "Service", "name": s.name }))
            .collect();
        let spec = json!({
            "targetRefs": refs, "jwt": { "optional": true, "providers": providers },
        });
        let name = name_in(&source, namespace);
        let ours = object("Authentication", namespace, &name, spec);
        let notes = &mut imported.make(&id, ours).notes;
        notes.push(
            "requests without a token pass, as before; without `optional` they are refused".into(),
        );
        notes.push(
            "of several about one Service each must be passed: put their providers into one".into(),
        );
        if has_uri {
            notes
                .push("`jwks.hosts` of the Mesh lists the hosts that keys are fetched from".into());
        }
        notes.extend(mesh_wide(&source));
    }
}

/// An issuer of tokens, and where a request has them.
fn provider(id: &str, at: &str, mut rule: Value, imported: &mut Imported) -> Map<String, Value> {
    let mut ours = Map::new();
    for (theirs, name) in [
        ("issuer", "issuer"),
        ("audiences", "audiences"),
        ("jwks", "jwks"),
        ("jwksUri", "jwksUri"),
        ("forwardOriginalToken", "forward"),
    ] {
        carry(&mut rule, theirs, &mut ours, name);
    }
    // How long their proxies wait for keys; here the controller fetches them.
    take(&mut rule, "timeout");
    let uri = ours
        .get("jwksUri")
        .map(|uri| uri.as_str().unwrap_or_default());
    let why = match uri {
        Some(uri) if !uri.starts_with("https://") => "keys are fetched over TLS alone",
        None if !ours.contains_key("jwks") => "an issuer is not asked where its keys are",
        _ => "",
    };
    if !why.is_empty() {
        imported.lose(
            id,
            &format!("{at}.jwksUri"),
            why,
            "give `jwks`, or `jwksUri` with https",
        );
    }
    let mut headers = list(&mut rule, "fromHeaders");
    if let [header] = headers.as_mut_slice() {
        carry(header, "name", &mut ours, "header");
        // It may be there or not.
        if header["prefix"] == "Bearer " {
            take(header, "prefix");
        }
    }
    for (number, header) in headers.iter().enumerate() {
        let at = format!("{at}.fromHeaders[{number}]");
        lose_rest(
            imported,
            id,
            &at,
            header,
            "a provider reads one header, with `Bearer ` or nothing before the token",
        );
    }
    let mut claims = Vec::new();
    for (number, mut one) in list(&mut rule, "outputClaimToHeaders")
        .into_iter()
        .enumerate()
    {
        let (claim, header) = (text(&mut one, "claim"), text(&mut one, "header"));
        claims.push(json!({ "claim": claim, "header": header }));
        let at = format!("{at}.outputClaimToHeaders[{number}]");
        lose_rest(imported, id, &at, &one, SEE);
    }
    if !claims.is_empty() {
        ours.insert("claimHeaders".into(), claims.into());
    }
    lose_rest(imported, id, at, &rule, SEE);
    ours
}

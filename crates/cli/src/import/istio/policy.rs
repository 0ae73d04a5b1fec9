//! Policies about callers. Conditions that lists cannot say become one in CEL. A policy of which a part has no counterpart is
//! not made at all: without the part it would be another policy.

use super::callers::from;
use super::conditions::condition;
use super::peer_authentication::Strictness;
use super::ports::{PORT, Place, both, numbers};
use super::proxies::Proxies;
use super::requests::to;
use super::targets::{mesh_wide, name_in, targets};
use crate::import::fields::{list, lose_rest, nest, take, text};
use crate::import::imported::{Imported, object};
use crate::import::services::Service;
use crate::import::source::Source;
use crate::import::{EVERYWHERE, POLICY, texts};
use serde_json::{Map, Value, json};

/// Annotation of a policy that only shows what it would do.
const DRY_RUN: &str = "istio.io/dry-run";
const OPEN: &str = "a rule allows callers without a certificate, as before: without its `networks` callers need one";
const UNKNOWN: &str = "callers without a certificate are not allowed, as no PeerAuthentication says whether they were: give those of the mesh, too, or write their networks (everybody's are 0.0.0.0/0 and ::/0) in `from.networks`";
const BY_ADDRESS: &str =
    "addresses are a condition, as `from.networks` needs no certificate: it allows HTTP alone";
const BY_PORT: &str = "a Service has the number of a port of the pods for another one: so this is a condition, which also denies ports that nobody declares, and connections that are not HTTP";

pub(super) fn import(
    mut source: Source,
    (services, proxies): (&[Service], &Proxies<'_>),
    strictness: &Strictness,
    imported: &mut Imported,
) {
    let mut spec = std::mem::take(&mut source.spec);
    let id = source.id.clone();
    let targets = targets(&mut spec, &source, (services, proxies), imported);
    let before = imported.lost.len();
    let action = text(&mut spec, "action").unwrap_or_else(|| "ALLOW".into());
    let given = list(&mut spec, "rules");
    lose_rest(imported, &id, "spec", &spec, POLICY);
    let (action, mode) = match action.as_str() {
        "ALLOW" => ("Allow", None),
        "DENY" => ("Deny", None),
        "AUDIT" => ("Allow", Some("Audit")),
        other => {
            let why = format!("the action {other} asks somebody else");
            let instead =
                "write an Authentication with `externalAuth`: docs/features/external-auth.md";
            return imported.lose(&id, "spec.action", &why, instead);
        }
    };
    // Enforced, one that only shows what it would do would allow or deny it.
    let mode = match is_dry_run(&source) {
        Some(true) => Some("Audit"),
        Some(false) => mode,
        None => {
            let at = format!("metadata.annotations.{DRY_RUN}");
            let why = "it is no text, so nobody can say whether the policy was enforced";
            let instead = "write 'true' or 'false', in quotes";
            return imported.lose(&id, &at, why, instead);
        }
    };
    if given.is_empty() {
        let (why, instead) = match action {
            "Deny" => ("it denies nothing", "leave it out"),
            _ => (
                "it allows nothing",
                "with `permissiveMode: false` of the Mesh nobody may call what no policy allows",
            ),
        };
        imported.lose(&id, "spec.rules", why, instead);
    }
    // A port of the pods may have another number at each Service.
    let by_port = given.iter().any(|rule| {
        let operations = rule["to"].as_array().into_iter().flatten();
        let mut operations = operations.map(|to| &to["operation"]);
        let mut conditions = rule["when"].as_array().into_iter().flatten();
        operations.any(|o| o.get("ports").or(o.get("notPorts")).is_some())
            || conditions.any(|one| one["key"] == PORT)
    });
    let names_callers = |rule: &Value| rule["from"].as_array().is_some_and(|all| !all.is_empty());
    let allows_anybody = action == "Allow" && !given.iter().all(names_callers);
    let by_address = action == "Allow" && given.iter().any(names_networks);
    let mut objects = Vec::new();
    for (namespace, meant) in &targets.services {
        let name = name_in(&source, *namespace);
        let accepted = strictness.accepts_plaintext(*namespace);
        let plaintext = match accepted {
            Some(true) if allows_anybody => Some(OPEN),
            None if allows_anybody || by_address => Some(UNKNOWN),
            _ => None,
        };
        let networks = (by_address && accepted != Some(true)).then_some(BY_ADDRESS);
        let groups: Vec<&[&Service]> = match by_port && !meant.is_empty() {
            true => meant.chunks(1).collect(),
            false => vec![meant.as_slice()],
        };
        for group in groups {
            let place = Place {
                service: group.first().copied(),
                services,
                denies: action == "Deny",
                plaintext: accepted == Some(true),
            };
            let mut rules = Vec::new();
            for (number, rule) in given.iter().enumerate() {
                let at = format!("spec.rules[{number}]");
                rules.extend(policy_rules(&source, &at, rule.clone(), &place, imported));
            }
            if imported.lost.len() > before || !targets.are_known {
                return;
            }
            // None of the rules can match.
            if rules.is_empty() {
                continue;
            }
            let name = match (by_port, group) {
                (true, [service]) if meant.len() > 1 => format!("{name}-{}", service.name),
                _ => name.clone(),
            };
            let refs: Vec<Value> = group
                .iter()
                .map(|s| json!({ "kind": "Service", "name": s.name }))
                .collect();
            let mut ours = json!({ "targetRefs": refs, "action": action, "rules": rules });
            if let Some(mode) = mode {
                ours["mode"] = mode.into();
            }
            let ours = object("AuthorizationPolicy", *namespace, &name, ours);
            let by_number = action == "Deny" && rules.iter().any(is_by_number);
            objects.push((ours, [plaintext, networks, by_number.then_some(BY_PORT)]));
        }
    }
    if objects.is_empty() && imported.lost.len() == before {
        let why = "no port is one of all that a rule demands";
        imported.lose(&id, "spec.rules", why, POLICY);
    }
    // They are made together: a loss for one Service is a loss of the whole policy.
    for (ours, notes) in objects {
        let made = imported.make(&id, ours);
        let notes = notes.into_iter().flatten();
        made.notes.extend(notes.map(str::to_owned));
        if action == "Allow" && mode.is_none() {
            made.notes
                .push("it has an effect where the Mesh says `permissiveMode: false`".into());
        }
        made.notes.extend(mesh_wide(&source));
    }
}

/// Whether a policy only shows what it would do. The words are those that Go reads as true. None: nobody can say.
fn is_dry_run(policy: &Source) -> Option<bool> {
    let all = policy.annotations();
    if !all.is_null() && !all.is_object() {
        return None;
    }
    match &all[DRY_RUN] {
        Value::Null => Some(false),
        // Without quotes the word is no text, and means the same.
        Value::Bool(said) => Some(*said),
        Value::String(said) => Some(matches!(
            said.as_str(),
            "1" | "t" | "T" | "true" | "True" | "TRUE"
        )),
        _ => None,
    }
}

/// Whether a rule names callers by their addresses.
fn names_networks(rule: &Value) -> bool {
    let mut sources = rule["from"].as_array().into_iter().flatten();
    sources.any(|from| !from["source"]["ipBlocks"].is_null())
}

/// Whether a condition wants ports by their numbers at the pods.
fn is_by_number(rule: &Value) -> bool {
    let when = rule["to"]["when"].as_str();
    when.is_some_and(|when| when.contains(&format!("{PORT} in ")))
}

/// The rules of one: each of its sources with each of its operations. Those that no port can match are left out.
fn policy_rules(
    policy: &Source,
    at: &str,
    mut rule: Value,
    place: &Place<'_>,
    imported: &mut Imported,
) -> Vec<Value> {
    let id = &policy.id;
    let mut when = Vec::new();
    let mut only = None;
    for (number, mut one) in list(&mut rule, "when").into_iter().enumerate() {
        let at = format!("{at}.when[{number}]");
        if one["key"] != PORT {
            when.extend(condition(id, &at, one, imported));
            continue;
        }
        take(&mut one, "key");
        let mut ports = |name: &str| numbers(id, &at, &texts(&mut one, name), imported);
        let (values, not) = (ports("values"), ports("notValues"));
        lose_rest(imported, id, &at, &one, POLICY);
        only = both(only, values);
        when.extend(place.unwanted(&not.unwrap_or_default()));
    }
    let mut each = |rule: &mut Value, name: &str, inner: &str| -> Vec<Value> {
        let mut all = list(rule, name);
        for (number, one) in all.iter_mut().enumerate() {
            let found = take(one, inner);
            let at = format!("{at}.{name}[{number}]");
            lose_rest(imported, id, &at, one, POLICY);
            *one = found.unwrap_or_default();
        }
        if all.is_empty() {
            all.push(json!({}));
        }
        all
    };
    let sources = each(&mut rule, "from", "source");
    let operations = each(&mut rule, "to", "operation");
    lose_rest(imported, id, at, &rule, POLICY);
    let mut rules = Vec::new();
    for (number, source) in sources.iter().enumerate() {
        for (other, operation) in operations.iter().enumerate() {
            let mut conditions = when.clone();
            let mut from = from(
                (id, policy.namespace()),
                &format!("{at}.from[{number}].source"),
                source.clone(),
                place,
                &mut conditions,
                imported,
            );
            let at = format!("{at}.to[{other}].operation");
            let ports = (place, only.clone());
            let operation = operation.clone();
            let Some(mut to) = to(id, &at, operation, ports, &mut conditions, imported) else {
                continue;
            };
            if !conditions.is_empty() {
                to.insert("when".into(), conditions.join(" && ").into());
            }
            // Without `from` a rule that allows is about identities alone.
            let allows_plaintext = place.plaintext && !place.denies;
            if allows_plaintext && source.as_object().is_some_and(Map::is_empty) {
                from.insert("networks".into(), json!(EVERYWHERE));
            }
            let mut rule = Map::new();
            nest(&mut rule, "from", from);
            nest(&mut rule, "to", to);
            rules.push(rule.into());
        }
    }
    rules
}

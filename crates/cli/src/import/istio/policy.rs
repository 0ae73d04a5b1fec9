//! Policies about callers. Conditions that lists cannot say become one in CEL. A policy of which a part has no counterpart is
//! not made at all: without the part it would be another policy.

use crate::import::cel::{account, any, any_network, either, negated, quoted};
use crate::import::fields::{list, lose_rest, nest, take, text};
use crate::import::imported::{Imported, object};
use crate::import::services::{Ports, Service, labels};
use crate::import::source::Source;
use crate::import::texts;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

const POLICY: &str = "write the policy anew: docs/manifests/access.md";
const PORT: &str = "destination.port";
/// Issuer and subject of a token, which Istio calls its principal.
const TOKEN_OF: &str = "(string(jwt.claims.iss) + \"/\" + string(jwt.claims.sub))";
/// Claims that are a list in a text.
const SPACED: [&str; 2] = ["scope", "permission"];
const CLIENT: &str = "behind a gateway the address of the client is not that of the caller";
const GATEWAY: &str = "write a policy about the Gateway, where `from.networks` has clients' addresses: docs/features/gateway-policies.md";

pub(super) fn import(mut source: Source, services: &[Service], imported: &mut Imported) {
    let mut spec = std::mem::take(&mut source.spec);
    let id = source.id.clone();
    let before = imported.lost.len();
    let meant = targets(&mut spec, &source, services, imported);
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
    // A port of the pods is another one of each Service.
    let by_port = given.iter().any(|rule| {
        let operations = rule["to"].as_array().into_iter().flatten();
        let mut operations = operations.map(|to| &to["operation"]);
        let mut conditions = rule["when"].as_array().into_iter().flatten();
        operations.any(|o| o.get("ports").or(o.get("notPorts")).is_some())
            || conditions.any(|one| one["key"] == PORT)
    });
    let groups: Vec<&[&Service]> = match by_port {
        true => meant.chunks(1).collect(),
        false => vec![meant.as_slice()],
    };
    for group in groups {
        let mut rules = Vec::new();
        for (number, rule) in given.iter().enumerate() {
            let at = format!("spec.rules[{number}]");
            let ports = group.first().map(|service| &service.ports);
            rules.extend(policy_rules(&source, &at, rule.clone(), ports, imported));
        }
        if imported.lost.len() > before {
            return;
        }
        let name = match (by_port, group) {
            (true, [service]) if meant.len() > 1 => format!("{}-{}", source.name, service.name),
            _ => source.name.clone(),
        };
        let refs: Vec<Value> = group
            .iter()
            .map(|s| json!({ "kind": "Service", "name": s.name }))
            .collect();
        let mut ours = json!({ "targetRefs": refs, "action": action, "rules": rules });
        if let Some(mode) = mode {
            ours["mode"] = mode.into();
        }
        let made = imported.make(
            &id,
            object("AuthorizationPolicy", source.namespace(), &name, ours),
        );
        if action == "Allow" && mode.is_none() {
            made.notes
                .push("it has an effect where the Mesh says `permissiveMode: false`".into());
        }
    }
}

/// The Services all of whose pods a policy's selector chooses, or that it names.
pub(super) fn targets<'s>(
    spec: &mut Value,
    source: &Source,
    services: &'s [Service],
    imported: &mut Imported,
) -> Vec<&'s Service> {
    let mut named = list(spec, "targetRefs");
    named.extend(take(spec, "targetRef"));
    let mut names = Vec::new();
    for (number, mut reference) in named.into_iter().enumerate() {
        let at = format!("spec.targetRefs[{number}]");
        if text(&mut reference, "kind").as_deref() != Some("Service") {
            let why = "only one about Services is translated";
            let instead = "write one that names the Gateway: docs/features/gateway-policies.md";
            imported.lose(&source.id, &at, why, instead);
            continue;
        }
        take(&mut reference, "group");
        names.extend(text(&mut reference, "name"));
        lose_rest(imported, &source.id, &at, &reference, POLICY);
    }
    let labels = labels(&take(spec, "selector/matchLabels").unwrap_or_default());
    take(spec, "selector");
    let here = services
        .iter()
        .filter(|s| s.is_of(source.namespace(), &labels));
    let meant = here.filter(|s| names.is_empty() || names.contains(&s.name));
    let meant: Vec<&Service> = meant.collect();
    if meant.is_empty() {
        let why = "no Service among the objects has only pods that it is about, and a policy is about Services";
        imported.lose(
            &source.id,
            "spec.selector",
            why,
            "give the Services, too: kubectl get services -A -o yaml",
        );
    }
    meant
}

/// The rules of one: each of its sources with each of its operations.
fn policy_rules(
    policy: &Source,
    at: &str,
    mut rule: Value,
    ports: Option<&Ports>,
    imported: &mut Imported,
) -> Vec<Value> {
    let id = &policy.id;
    let mut when = Vec::new();
    for (number, one) in list(&mut rule, "when").into_iter().enumerate() {
        let at = format!("{at}.when[{number}]");
        when.extend(condition(id, &at, one, ports, imported));
    }
    let each = |rule: &mut Value, name: &str, inner: &str| -> Vec<Value> {
        let mut all = list(rule, name);
        all.iter_mut()
            .for_each(|one| *one = take(one, inner).unwrap_or_default());
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
            let from = from(
                (id, policy.namespace()),
                &format!("{at}.from[{number}].source"),
                source.clone(),
                &mut conditions,
                imported,
            );
            let at = format!("{at}.to[{other}].operation");
            let mut to = to(id, &at, operation.clone(), ports, &mut conditions, imported);
            if !conditions.is_empty() {
                to.insert("when".into(), conditions.join(" && ").into());
            }
            let mut rule = Map::new();
            nest(&mut rule, "from", from);
            nest(&mut rule, "to", to);
            rules.push(rule.into());
        }
    }
    rules
}

fn is_exact(all: &[String]) -> bool {
    !all.is_empty() && all.iter().all(|text| !text.contains('*'))
}

/// Callers. What the lists cannot say goes to the conditions: these are all demanded, and one of the lists is enough.
fn from(
    (id, namespace): (&str, Option<&str>),
    at: &str,
    mut source: Value,
    when: &mut Vec<String>,
    imported: &mut Imported,
) -> Map<String, Value> {
    let mut from = Map::new();
    let principals = spiffe(&texts(&mut source, "principals"));
    let networks = networks(&texts(&mut source, "ipBlocks"));
    if is_exact(&principals) {
        from.insert("principals".into(), principals.into());
    } else {
        when.extend(any("source.identity", &principals));
    }
    if from.is_empty() && !networks.is_empty() {
        from.insert("networks".into(), networks.into());
    } else {
        when.extend(any_network(&networks));
    }
    when.extend(any("source.namespace", &texts(&mut source, "namespaces")));
    let accounts = |source: &mut Value, name: &str| {
        let one = |text: String| match text.split_once('/') {
            Some((namespace, name)) => account(name, Some(namespace)),
            None => account(&text, namespace),
        };
        either(texts(source, name).into_iter().map(one).collect())
    };
    let tokens = |source: &mut Value, name: &str| {
        let whose = any(TOKEN_OF, &texts(source, name));
        whose.map(|whose| format!("has(jwt.claims.iss) && has(jwt.claims.sub) && {whose}"))
    };
    when.extend(tokens(&mut source, "requestPrincipals"));
    when.extend(negated(tokens(&mut source, "notRequestPrincipals")));
    when.extend(accounts(&mut source, "serviceAccounts"));
    when.extend(negated(accounts(&mut source, "notServiceAccounts")));
    let not = spiffe(&texts(&mut source, "notPrincipals"));
    when.extend(negated(any("source.identity", &not)));
    let not = texts(&mut source, "notNamespaces");
    when.extend(negated(any("source.namespace", &not)));
    let not = self::networks(&texts(&mut source, "notIpBlocks"));
    when.extend(negated(any_network(&not)));
    for name in ["remoteIpBlocks", "notRemoteIpBlocks"] {
        if take(&mut source, name).is_some() {
            imported.lose(id, &format!("{at}.{name}"), CLIENT, GATEWAY);
        }
    }
    lose_rest(imported, id, at, &source, POLICY);
    from
}

/// Requests.
fn to(
    id: &str,
    at: &str,
    mut operation: Value,
    ports: Option<&Ports>,
    when: &mut Vec<String>,
    imported: &mut Imported,
) -> Map<String, Value> {
    let mut to = Map::new();
    let mut of_service = |name: &str| {
        let theirs = texts(&mut operation, name);
        of_service(id, &format!("{at}.ports"), &theirs, ports, imported)
    };
    let (given, not) = (of_service("ports"), of_service("notPorts"));
    if !given.is_empty() {
        to.insert(
            "ports".into(),
            given.into_iter().collect::<Vec<u64>>().into(),
        );
    }
    let methods = texts(&mut operation, "methods");
    match is_exact(&methods) {
        true => drop(to.insert("methods".into(), methods.into())),
        false => when.extend(any("request.method", &methods)),
    }
    let paths = texts(&mut operation, "paths");
    match is_exact(&paths) {
        true => {
            let exact = |path: &String| json!({ "type": "Exact", "value": path });
            to.insert(
                "paths".into(),
                paths.iter().map(exact).collect::<Vec<_>>().into(),
            );
        }
        false => when.extend(any("request.path", &paths)),
    }
    when.extend(any("request.host", &texts(&mut operation, "hosts")));
    for (name, value) in [
        ("notMethods", "request.method"),
        ("notPaths", "request.path"),
        ("notHosts", "request.host"),
    ] {
        when.extend(negated(any(value, &texts(&mut operation, name))));
    }
    when.extend(
        not.into_iter()
            .map(|number| format!("destination.port != {number}")),
    );
    lose_rest(imported, id, at, &operation, POLICY);
    to
}

/// Ports of the Service that lead to these: theirs are the pods'.
fn of_service(
    id: &str,
    at: &str,
    theirs: &[String],
    ports: Option<&Ports>,
    imported: &mut Imported,
) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    for text in theirs {
        let number = text.parse::<u64>().ok();
        match number.and_then(|number| ports?.get(&number)) {
            Some(own) => found.extend(own),
            None => imported.lose(
                id,
                at,
                &format!("no port of the Service leads to {text} by number"),
                "give the Service such a port, or write the policy anew",
            ),
        }
    }
    found
}

/// A condition by its key.
fn condition(
    id: &str,
    at: &str,
    mut one: Value,
    ports: Option<&Ports>,
    imported: &mut Imported,
) -> Vec<String> {
    let key = text(&mut one, "key").unwrap_or_default();
    let (values, not) = (texts(&mut one, "values"), texts(&mut one, "notValues"));
    lose_rest(imported, id, at, &one, POLICY);
    let header = key
        .strip_prefix("request.headers[")
        .and_then(|k| k.strip_suffix(']'));
    let made = if let Some(name) = header {
        let name = quoted(name);
        let value = format!("request.headers[{name}]");
        let has = format!("{name} in request.headers");
        let wanted = match values.iter().any(|v| v == "*") {
            true => Some(has.clone()),
            false => any(&value, &values).map(|c| format!("{has} && {c}")),
        };
        let unwanted = any(&value, &not).map(|c| format!("{has} && {c}"));
        Some((wanted, unwanted))
    } else if let Some(names) = claim_names(&key) {
        let is_one_of = |all: &[String]| claim(&names, all);
        is_one_of(&values).zip(is_one_of(&not))
    } else {
        match key.as_str() {
            "source.namespace" => Some((any(&key, &values), any(&key, &not))),
            "source.principal" => {
                let is_one_of = |all: &[String]| any("source.identity", &spiffe(all));
                Some((is_one_of(&values), is_one_of(&not)))
            }
            "source.ip" => {
                let is_in = |all: &[String]| any_network(&networks(all));
                Some((is_in(&values), is_in(&not)))
            }
            PORT => {
                let mut is_one_of = |all: &[String]| {
                    let own = of_service(id, at, all, ports, imported);
                    let own = Vec::from_iter(own);
                    (!own.is_empty()).then(|| format!("{PORT} in {own:?}"))
                };
                Some((is_one_of(&values), is_one_of(&not)))
            }
            _ => None,
        }
    };
    let Some((wanted, unwanted)) = made else {
        match key.as_str() {
            "remote.ip" => imported.lose(id, at, CLIENT, GATEWAY),
            _ => imported.lose(id, at, &format!("`{key}` is not known here"), POLICY),
        }
        return Vec::new();
    };
    [wanted, negated(unwanted)].into_iter().flatten().collect()
}

/// Names of a claim and of what it is in, the outermost first.
fn claim_names(key: &str) -> Option<Vec<&str>> {
    let names = match key {
        "request.auth.audiences" => return Some(vec!["aud"]),
        "request.auth.presenter" => return Some(vec!["azp"]),
        other => other.strip_prefix("request.auth.claims[")?,
    };
    Some(names.strip_suffix(']')?.split("][").collect())
}

/// Whether a claim is, or as a list has, one of these values; `Some(None)`: of no values. `None`: a pattern would have to be
/// tried on each item of a list.
#[expect(
    clippy::option_option,
    reason = "no demand is not the same as one that cannot be said"
)]
fn claim(names: &[&str], values: &[String]) -> Option<Option<String>> {
    let mut claim = "jwt.claims".to_owned();
    let mut has = Vec::new();
    for name in names {
        has.push(format!("{} in {claim}", quoted(name)));
        claim = format!("{claim}[{}]", quoted(name));
    }
    let text = match names {
        [name] if SPACED.contains(name) => format!("{claim}.split(\" \")"),
        _ => format!("[{claim}]"),
    };
    let mut all = Vec::new();
    for value in values.iter().filter(|v| *v != "*") {
        if value.contains('*') {
            return None;
        }
        let value = quoted(value);
        all.push(format!(
            "{value} in (type({claim}) == list ? {claim} : {text})"
        ));
    }
    if values.iter().all(|v| v != "*") {
        has.extend(either(all));
    }
    Some((!values.is_empty()).then(|| has.join(" && ")))
}

/// Istio's principals as identities.
fn spiffe(principals: &[String]) -> Vec<String> {
    let identity = |text: &String| match text.starts_with('*') {
        true => text.clone(),
        false => format!("spiffe://{text}"),
    };
    principals.iter().map(identity).collect()
}

/// An address is the network of one.
pub(super) fn networks(blocks: &[String]) -> Vec<String> {
    let network = |text: &String| match (text.contains('/'), text.contains(':')) {
        (true, _) => text.clone(),
        (false, true) => format!("{text}/128"),
        (false, false) => format!("{text}/32"),
    };
    blocks.iter().map(network).collect()
}

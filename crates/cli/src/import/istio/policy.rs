//! Policies about callers. Conditions that lists cannot say become one in CEL. A policy of which a part has no counterpart is
//! not made at all: without the part it would be another policy.

use super::path_templates::{any_path, is_known};
use super::peer_authentication::Strictness;
use super::targets::{mesh_wide, name_in, targets};
use crate::import::cel::{account, any, any_network, either, negated, quoted};
use crate::import::fields::{list, lose_rest, nest, take, text};
use crate::import::imported::{Imported, object};
use crate::import::services::Service;
use crate::import::source::Source;
use crate::import::{EVERYWHERE, POLICY, texts};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

const OPEN: &str = "a rule allows callers without a certificate, as before: without its `networks` callers need one";
const UNKNOWN: &str = "callers without a certificate are not allowed, as no PeerAuthentication says whether they were: give those of the mesh, too, or write `from: {networks: [0.0.0.0/0, \"::/0\"]}`";
const PORT: &str = "destination.port";
/// Issuer and subject of a token, which Istio calls its principal.
const TOKEN_OF: &str = "(string(jwt.claims.iss) + \"/\" + string(jwt.claims.sub))";
/// Claims that are a list in a text.
const SPACED: [&str; 2] = ["scope", "permission"];
const CLIENT: &str = "behind a gateway the address of the client is not that of the caller";
const GATEWAY: &str = "write a policy about the Gateway, where `from.networks` has clients' addresses: docs/features/gateway-policies.md";

pub(super) fn import(
    mut source: Source,
    services: &[Service],
    strictness: &Strictness,
    imported: &mut Imported,
) {
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
    let names_callers = |rule: &Value| rule["from"].as_array().is_some_and(|all| !all.is_empty());
    let allows_anybody = action == "Allow" && !given.iter().all(names_callers);
    let all = meant.values().flatten();
    let led: BTreeSet<u64> = all.flat_map(|s| s.ports.keys().copied()).collect();
    let mut objects = Vec::new();
    for (namespace, meant) in &meant {
        let name = name_in(&source, *namespace);
        let accepted = strictness.accepts_plaintext(*namespace);
        let plaintext = match accepted {
            Some(true) if allows_anybody => Some(OPEN),
            None if allows_anybody => Some(UNKNOWN),
            _ => None,
        };
        let groups: Vec<&[&Service]> = match by_port {
            true => meant.chunks(1).collect(),
            false => vec![meant.as_slice()],
        };
        for group in groups {
            let place = Place {
                service: group.first().copied(),
                led: &led,
                anybody: action == "Allow" && accepted == Some(true),
            };
            let mut rules = Vec::new();
            for (number, rule) in given.iter().enumerate() {
                let at = format!("spec.rules[{number}]");
                rules.extend(policy_rules(&source, &at, rule.clone(), &place, imported));
            }
            if imported.lost.len() > before {
                return;
            }
            // None of the rules is about a port of this Service.
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
            objects.push((ours, plaintext));
        }
    }
    if objects.is_empty() && imported.lost.len() == before {
        let why = "no Service has all the ports that a rule demands";
        imported.lose(&id, "spec.rules", why, POLICY);
    }
    // They are made together: a loss for one Service is a loss of the whole policy.
    for (ours, plaintext) in objects {
        let made = imported.make(&id, ours);
        made.notes.extend(plaintext.map(str::to_owned));
        if action == "Allow" && mode.is_none() {
            made.notes
                .push("it has an effect where the Mesh says `permissiveMode: false`".into());
        }
        made.notes.extend(mesh_wide(&source));
    }
}

/// Surroundings in which rules are translated.
struct Place<'s> {
    /// The Service whose ports the rules name.
    service: Option<&'s Service>,
    /// Ports of pods that the Services of the policy lead to.
    led: &'s BTreeSet<u64>,
    /// Whether a rule that names no callers allows those without a certificate, too.
    anybody: bool,
}

impl Place<'_> {
    /// Returns ports of the Service by one of the pods. `Some(None)`: the Service certainly does not lead there, though
    /// another one does. `None`: nobody knows.
    #[expect(
        clippy::option_option,
        reason = "a port that is not there is not the same as one that is not known"
    )]
    fn ports(&self, target: &str) -> Option<Option<&BTreeSet<u64>>> {
        let target: u64 = target.parse().ok()?;
        let service = self.service?;
        match service.ports.get(&target) {
            None if !self.led.contains(&target) || service.has_named_targets() => None,
            found => Some(found),
        }
    }
}

/// The rules of one: each of its sources with each of its operations. Those that no port of the Service can match are left out.
fn policy_rules(
    policy: &Source,
    at: &str,
    mut rule: Value,
    place: &Place<'_>,
    imported: &mut Imported,
) -> Vec<Value> {
    let id = &policy.id;
    let mut when = Vec::new();
    let mut can_match = true;
    for (number, one) in list(&mut rule, "when").into_iter().enumerate() {
        let at = format!("{at}.when[{number}]");
        match condition(id, &at, one, place, imported) {
            Some(conditions) => when.extend(conditions),
            None => can_match = false,
        }
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
            let mut from = from(
                (id, policy.namespace()),
                &format!("{at}.from[{number}].source"),
                source.clone(),
                &mut conditions,
                imported,
            );
            let at = format!("{at}.to[{other}].operation");
            let to = to(id, &at, operation.clone(), place, &mut conditions, imported);
            let Some(mut to) = to.filter(|_| can_match) else {
                continue;
            };
            if !conditions.is_empty() {
                to.insert("when".into(), conditions.join(" && ").into());
            }
            // Without `from` a rule that allows is about identities alone.
            if place.anybody && source.as_object().is_some_and(Map::is_empty) {
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

/// Requests. None: no port of the Service can match.
fn to(
    id: &str,
    at: &str,
    mut operation: Value,
    place: &Place<'_>,
    when: &mut Vec<String>,
    imported: &mut Imported,
) -> Option<Map<String, Value>> {
    let mut to = Map::new();
    let theirs = texts(&mut operation, "ports");
    let not = texts(&mut operation, "notPorts");
    let at_ports = format!("{at}.ports");
    let given = of_service(id, &at_ports, &theirs, place, imported);
    let not = of_service(id, &at_ports, &not, place, imported);
    let can_match = theirs.is_empty() || !given.is_empty();
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
    let mut paths = |name: &str| {
        let paths = texts(&mut operation, name);
        if !paths.iter().all(|path| is_known(path)) {
            let why = "a template is for whole segments of a path: `{*}` or `{**}`";
            imported.lose(id, &format!("{at}.{name}"), why, POLICY);
        }
        paths
    };
    let (paths, not_paths) = (paths("paths"), paths("notPaths"));
    match is_exact(&paths) {
        true => {
            let exact = |path: &String| json!({ "type": "Exact", "value": path });
            to.insert(
                "paths".into(),
                paths.iter().map(exact).collect::<Vec<_>>().into(),
            );
        }
        false => when.extend(any_path(&paths)),
    }
    when.extend(any("request.host", &texts(&mut operation, "hosts")));
    let not_methods = texts(&mut operation, "notMethods");
    when.extend(negated(any("request.method", &not_methods)));
    when.extend(negated(any_path(&not_paths)));
    let not_hosts = texts(&mut operation, "notHosts");
    when.extend(negated(any("request.host", &not_hosts)));
    when.extend(
        not.into_iter()
            .map(|number| format!("destination.port != {number}")),
    );
    lose_rest(imported, id, at, &operation, POLICY);
    can_match.then_some(to)
}

/// Ports of the Service that lead to these: theirs are the pods'. One that it certainly does not lead to is left out: nothing
/// comes there by this Service.
fn of_service(
    id: &str,
    at: &str,
    theirs: &[String],
    place: &Place<'_>,
    imported: &mut Imported,
) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    for text in theirs {
        match place.ports(text) {
            Some(own) => found.extend(own.into_iter().flatten()),
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

/// Conditions by their key. None: no port of the Service can match.
fn condition(
    id: &str,
    at: &str,
    mut one: Value,
    place: &Place<'_>,
    imported: &mut Imported,
) -> Option<Vec<String>> {
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
                let wanted = of_service(id, at, &values, place, imported);
                let unwanted = of_service(id, at, &not, place, imported);
                if wanted.is_empty() && !values.is_empty() {
                    return None;
                }
                let is_one_of = |own: BTreeSet<u64>| {
                    let own = Vec::from_iter(own);
                    (!own.is_empty()).then(|| format!("{PORT} in {own:?}"))
                };
                Some((is_one_of(wanted), is_one_of(unwanted)))
            }
            _ => None,
        }
    };
    let Some((wanted, unwanted)) = made else {
        match key.as_str() {
            "remote.ip" => imported.lose(id, at, CLIENT, GATEWAY),
            _ => imported.lose(id, at, &format!("`{key}` is not known here"), POLICY),
        }
        return Some(Vec::new());
    };
    let both = [wanted, negated(unwanted)];
    Some(both.into_iter().flatten().collect())
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

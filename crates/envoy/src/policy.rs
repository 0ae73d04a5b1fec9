//! Authorization: a policy as Envoy's role-based access control, which allows what a rule names.
//! For TCP, as the names that a client's certificate may have.

use crate::{Untranslatable, pattern};
use serde_json::{Map, Value, json};
use tulle_model::identity::SpiffeId;
use tulle_model::resource::{Policy, PolicyMatch, PolicyRule};

/// Returns the filter for HTTP requests to a port; `None` when everyone may call.
pub(crate) fn http(policy: &Policy, port: u16) -> Result<Option<Value>, Untranslatable> {
    if policy.permissive {
        return Ok(None);
    }
    let mut policies = Map::new();
    for rule in policy.rules.iter().filter(|r| holds_for(r, port)) {
        let permissions = if rule.matches.is_empty() {
            vec![json!({ "any": true })]
        } else {
            let matches = rule.matches.iter().map(|m| permission(rule, m));
            matches.collect::<Result<_, _>>()?
        };
        insert(&mut policies, rule, &permissions);
    }
    Ok(Some(json!({
        "name": "envoy.filters.http.rbac",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC",
            "rules": { "action": "ALLOW", "policies": policies },
        },
    })))
}

/// Returns the clients that may open TCP connections to a port; `None`: everyone in the mesh. A
/// rule with matches never allows TCP.
///
/// Envoy's access control for connections decides at the client's first byte, when a server that
/// speaks first has sent data already. So the handshake decides.
pub(crate) fn tcp(policy: &Policy, port: u16) -> Option<Vec<&SpiffeId>> {
    if policy.permissive {
        return None;
    }
    let rules = policy.rules.iter().filter(|r| holds_for(r, port));
    let rules = rules.filter(|r| r.matches.is_empty());
    Some(rules.flat_map(|r| &r.sources).collect())
}

fn holds_for(rule: &PolicyRule, port: u16) -> bool {
    rule.ports.is_empty() || rule.ports.contains(&port)
}

/// Adds a rule. Rules of one object have one name, policies need one each.
fn insert(policies: &mut Map<String, Value>, rule: &PolicyRule, permissions: &[Value]) {
    if rule.sources.is_empty() {
        return; // It allows nobody, and Envoy takes no policy without a principal.
    }
    let mut name = rule.name.clone();
    for number in 2.. {
        if !policies.contains_key(&name) {
            break;
        }
        name = format!("{} ({number})", rule.name);
    }
    let principals: Vec<Value> = rule
        .sources
        .iter()
        .map(|id| json!({ "authenticated": { "principal_name": { "exact": id.as_str() } } }))
        .collect();
    policies.insert(
        name,
        json!({ "permissions": permissions, "principals": principals }),
    );
}

fn permission(rule: &PolicyRule, m: &PolicyMatch) -> Result<Value, Untranslatable> {
    let mut all = Vec::new();
    if !m.methods.is_empty() && !m.methods.iter().any(|m| m == "*") {
        let methods: Vec<Value> = m
            .methods
            .iter()
            .map(|m| header(":method", json!({ "exact": m })))
            .collect();
        all.push(json!({ "or_rules": { "rules": methods } }));
    }
    if !m.path_regex.is_empty() {
        let regex = pattern::matcher(&rule.name, "pathRegex", &m.path_regex)?;
        all.push(json!({ "url_path": { "path": { "safe_regex": regex } } }));
    }
    for (name, value) in &m.headers {
        let regex = pattern::matcher(&rule.name, &format!("headers.{name}"), value)?;
        all.push(header(
            &name.to_ascii_lowercase(),
            json!({ "safe_regex": regex }),
        ));
    }
    Ok(match all.len() {
        0 => json!({ "any": true }),
        1 => all.remove(0),
        _ => json!({ "and_rules": { "rules": all } }),
    })
}

fn header(name: &str, matcher: Value) -> Value {
    json!({ "header": { "name": name, "string_match": matcher } })
}

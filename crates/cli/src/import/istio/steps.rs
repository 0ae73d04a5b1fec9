//! Edits and answers of a rule of a VirtualService: filters of Gateway API, and fields of an HTTPFilter.

use super::matches::SEE;
use super::virtual_service::Virtual;
use crate::import::fields::{carry, list, lose_rest, milliseconds, nest, take, text, time};
use crate::import::imported::Imported;
use serde_json::{Map, Value, json};

/// The filters of a rule in their order; `own` gets what an HTTPFilter does. `(prefix, exact)`: all matches of the rule are
/// prefixes, or whole paths.
pub(super) fn of_rule(
    read: &Virtual<'_>,
    at: &str,
    rule: &mut Value,
    own: &mut Map<String, Value>,
    (prefix, exact): (bool, bool),
    imported: &mut Imported,
) -> Vec<Value> {
    let id = &read.id;
    let mut steps = Vec::new();
    steps.extend(cors(id, at, rule, imported));
    fault(id, at, rule, own, imported);
    answer(id, at, rule, own, imported);
    steps.extend(headers(rule));
    steps.extend(mirrors(read, at, rule, imported));
    steps.extend(rewrite(id, at, rule, (prefix, exact), imported));
    steps.extend(redirect(id, at, rule, imported));
    steps
}

/// Edits of headers, of a rule or of a destination.
pub(super) fn headers(rule: &mut Value) -> Vec<Value> {
    let mut steps = Vec::new();
    for (side, kind, field) in [
        ("request", "RequestHeaderModifier", "requestHeaderModifier"),
        (
            "response",
            "ResponseHeaderModifier",
            "responseHeaderModifier",
        ),
    ] {
        let mut edits = Map::new();
        for name in ["set", "add"] {
            if let Some(Value::Object(fields)) = take(rule, &format!("headers/{side}/{name}")) {
                let named =
                    |(name, value): (String, Value)| json!({ "name": name, "value": value });
                let all: Vec<Value> = fields.into_iter().map(named).collect();
                edits.insert(name.into(), all.into());
            }
        }
        carry(
            rule,
            &format!("headers/{side}/remove"),
            &mut edits,
            "remove",
        );
        if !edits.is_empty() {
            steps.push(json!({ "type": kind, field: edits }));
        }
    }
    steps
}

/// A share of requests, of which Istio has percent with fractions. None: all of them.
fn percent(value: Option<Value>) -> Option<f64> {
    value?.as_f64().filter(|share| *share < 100.0)
}

fn fault(
    id: &str,
    at: &str,
    rule: &mut Value,
    own: &mut Map<String, Value>,
    imported: &mut Imported,
) {
    let Some(mut theirs) = take(rule, "fault") else {
        return;
    };
    let at = format!("{at}.fault");
    let mut ours = Map::new();
    for (name, theirs_named, ours_named) in [
        ("delay", "fixedDelay", "duration"),
        ("abort", "httpStatus", "status"),
    ] {
        let Some(mut one) = take(&mut theirs, name) else {
            continue;
        };
        let at = format!("{at}.{name}");
        let mut fields = Map::new();
        let old = take(&mut one, "percent");
        let share = percent(take(&mut one, "percentage/value").or(old));
        take(&mut one, "percentage");
        match name {
            "delay" => time(
                id,
                &at,
                &mut one,
                theirs_named,
                &mut fields,
                ours_named,
                imported,
            ),
            _ => carry(&mut one, theirs_named, &mut fields, ours_named),
        }
        if !fields.is_empty() {
            if let Some(share) = share {
                fields.insert("percentage".into(), format!("{share}%").into());
            }
            nest(&mut ours, name, fields);
        }
        lose_rest(
            imported,
            id,
            &at,
            &one,
            "see `fault` of docs/manifests/routes.md",
        );
    }
    lose_rest(imported, id, &at, &theirs, SEE);
    nest(own, "fault", ours);
}

/// `directResponse`.
fn answer(
    id: &str,
    at: &str,
    rule: &mut Value,
    own: &mut Map<String, Value>,
    imported: &mut Imported,
) {
    let Some(mut theirs) = take(rule, "directResponse") else {
        return;
    };
    let mut ours = Map::new();
    carry(&mut theirs, "status", &mut ours, "status");
    carry(&mut theirs, "body/string", &mut ours, "body");
    lose_rest(
        imported,
        id,
        &format!("{at}.directResponse"),
        &theirs,
        "write the text itself",
    );
    nest(own, "directResponse", ours);
}

fn mirrors(read: &Virtual<'_>, at: &str, rule: &mut Value, imported: &mut Imported) -> Vec<Value> {
    let mut all = Vec::new();
    if let Some(destination) = take(rule, "mirror") {
        let old = take(rule, "mirrorPercent").or_else(|| take(rule, "mirror_percent"));
        let share = percent(take(rule, "mirrorPercentage/value").or(old));
        take(rule, "mirrorPercentage");
        all.push((format!("{at}.mirror"), destination, share));
    }
    for (number, mut one) in list(rule, "mirrors").into_iter().enumerate() {
        let share = percent(take(&mut one, "percentage/value"));
        let destination = take(&mut one, "destination").unwrap_or_default();
        all.push((
            format!("{at}.mirrors[{number}].destination"),
            destination,
            share,
        ));
    }
    let mut steps = Vec::new();
    for (at, destination, share) in all {
        let Some(backend) = read.destination(&at, destination, imported) else {
            continue;
        };
        let mut mirror = json!({ "backendRef": backend });
        match share {
            None => {}
            Some(share) if share.fract() == 0.0 => mirror["percent"] = whole(share).into(),
            Some(share) => {
                mirror["fraction"] =
                    json!({ "numerator": whole(share * 1000.0), "denominator": 100_000 });
            }
        }
        steps.push(json!({ "type": "RequestMirror", "requestMirror": mirror }));
    }
    steps
}

/// A number from 0 to 100,000.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn whole(number: f64) -> u32 {
    number.round().clamp(0.0, 100_000.0) as u32
}

fn rewrite(
    id: &str,
    at: &str,
    rule: &mut Value,
    (prefix, exact): (bool, bool),
    imported: &mut Imported,
) -> Option<Value> {
    let mut theirs = take(rule, "rewrite")?;
    let at = format!("{at}.rewrite");
    let mut ours = Map::new();
    carry(&mut theirs, "authority", &mut ours, "hostname");
    if let Some(uri) = text(&mut theirs, "uri") {
        // Istio replaces what was matched.
        match (prefix, exact) {
            (true, _) => {
                let path = json!({ "type": "ReplacePrefixMatch", "replacePrefixMatch": uri });
                ours.insert("path".into(), path);
            }
            (_, true) => {
                let path = json!({ "type": "ReplaceFullPath", "replaceFullPath": uri });
                ours.insert("path".into(), path);
            }
            _ => imported.lose(
                id,
                &format!("{at}.uri"),
                "the matches are neither all prefixes nor all whole paths",
                "make a rule for each",
            ),
        }
    }
    lose_rest(
        imported,
        id,
        &at,
        &theirs,
        "a path is replaced whole, or its prefix",
    );
    (!ours.is_empty()).then(|| json!({ "type": "URLRewrite", "urlRewrite": ours }))
}

fn redirect(id: &str, at: &str, rule: &mut Value, imported: &mut Imported) -> Option<Value> {
    let mut theirs = take(rule, "redirect")?;
    let at = format!("{at}.redirect");
    let mut ours = Map::new();
    if let Some(uri) = text(&mut theirs, "uri") {
        ours.insert(
            "path".into(),
            json!({ "type": "ReplaceFullPath", "replaceFullPath": uri }),
        );
    }
    carry(&mut theirs, "authority", &mut ours, "hostname");
    carry(&mut theirs, "port", &mut ours, "port");
    carry(&mut theirs, "scheme", &mut ours, "scheme");
    let code = take(&mut theirs, "redirectCode").unwrap_or_else(|| 301.into());
    ours.insert("statusCode".into(), code);
    lose_rest(imported, id, &at, &theirs, "name the port");
    Some(json!({ "type": "RequestRedirect", "requestRedirect": ours }))
}

fn cors(id: &str, at: &str, rule: &mut Value, imported: &mut Imported) -> Option<Value> {
    let mut theirs = take(rule, "corsPolicy")?;
    let at = format!("{at}.corsPolicy");
    let mut ours = Map::new();
    let mut origins: Vec<Value> = list(&mut theirs, "allowOrigin");
    for (number, mut origin) in list(&mut theirs, "allowOrigins").into_iter().enumerate() {
        origins.extend(take(&mut origin, "exact"));
        let at = format!("{at}.allowOrigins[{number}]");
        lose_rest(
            imported,
            id,
            &at,
            &origin,
            "write the origins, with a `*` for a label of the host",
        );
    }
    if !origins.is_empty() {
        ours.insert("allowOrigins".into(), origins.into());
    }
    for name in [
        "allowMethods",
        "allowHeaders",
        "exposeHeaders",
        "allowCredentials",
    ] {
        carry(&mut theirs, name, &mut ours, name);
    }
    if let Some(age) = text(&mut theirs, "maxAge") {
        match seconds(&age) {
            Some(seconds) => drop(ours.insert("maxAge".into(), seconds.into())),
            None => imported.lose(
                id,
                &format!("{at}.maxAge"),
                &format!("`{age}` is no whole number of seconds"),
                "set `maxAge`",
            ),
        }
    }
    lose_rest(imported, id, &at, &theirs, SEE);
    ours.contains_key("allowOrigins")
        .then(|| json!({ "type": "CORS", "cors": ours }))
}

/// Reads a duration of whole seconds.
fn seconds(text: &str) -> Option<u64> {
    let millis = milliseconds(text)?;
    (millis % 1000 == 0).then_some(millis / 1000)
}

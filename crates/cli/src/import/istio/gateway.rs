//! Ways into the mesh: a Gateway of Gateway API, with a listener for each host of each server.

use crate::import::fields::{carry, list, lose_rest, take, text};
use crate::import::imported::{Imported, object};
use crate::import::source::Source;
use crate::import::texts;
use serde_json::{Map, Value, json};

const SEE: &str = "see docs/features/ingress-tls.md";

pub(super) fn import(mut source: Source, imported: &mut Imported) {
    let mut spec = std::mem::take(&mut source.spec);
    let id = source.id.clone();
    let before = imported.lost.len();
    // A Gateway has proxies of its own here, where Istio's chooses some that run already.
    take(&mut spec, "selector");
    let mut listeners = Vec::new();
    let mut redirected = Vec::new();
    for (number, server) in list(&mut spec, "servers").into_iter().enumerate() {
        let at = format!("spec.servers[{number}]");
        serve(
            &id,
            &at,
            number,
            server,
            (&mut listeners, &mut redirected),
            imported,
        );
    }
    lose_rest(imported, &id, "spec", &spec, SEE);
    if listeners.is_empty() {
        if imported.lost.len() == before {
            imported.lose(&id, "spec.servers", "it has no servers", "leave it out");
        }
        return;
    }
    let spec = json!({ "gatewayClassName": "tulle", "listeners": listeners });
    let mut gateway = object("Gateway", source.namespace(), &source.name, spec);
    gateway["apiVersion"] = "gateway.networking.k8s.io/v1".into();
    let made = imported.make(&id, gateway);
    made.notes.push(
        "it gets proxies and a Service of its own; Secrets are those of its namespace".into(),
    );
    if redirected.is_empty() {
        return;
    }
    let name = format!("{}-to-https", source.name);
    let parent = |section: &String| json!({ "kind": "Gateway", "name": source.name, "sectionName": section });
    let parents: Vec<Value> = redirected.iter().map(parent).collect();
    let step = json!({ "type": "RequestRedirect", "requestRedirect": { "scheme": "https", "statusCode": 301 } });
    let spec = json!({ "parentRefs": parents, "rules": [{ "filters": [step] }] });
    let mut route = object("HTTPRoute", source.namespace(), &name, spec);
    route["apiVersion"] = "gateway.networking.k8s.io/v1".into();
    let made = imported.make(&id, route);
    made.notes.push("routes without `sectionName` answer on these listeners, too: name the section of HTTPS in them".into());
}

fn serve(
    id: &str,
    at: &str,
    number: usize,
    mut server: Value,
    (listeners, redirected): (&mut Vec<Value>, &mut Vec<String>),
    imported: &mut Imported,
) {
    take(&mut server, "name");
    take(&mut server, "port/name");
    take(&mut server, "port/targetPort");
    let mut port = Map::new();
    carry(&mut server, "port/number", &mut port, "port");
    let protocol = text(&mut server, "port/protocol").unwrap_or_default();
    take(&mut server, "port");
    let hosts = texts(&mut server, "hosts");
    if hosts.is_empty() {
        let why = "it names no hosts";
        let instead = "name them, or `*` for all";
        return imported.lose(id, &format!("{at}.hosts"), why, instead);
    }
    let mut tls = take(&mut server, "tls").unwrap_or_else(|| json!({}));
    let only_redirects = take(&mut tls, "httpsRedirect") == Some(Value::Bool(true));
    let mode = text(&mut tls, "mode").unwrap_or_default();
    let ours = match (protocol.to_uppercase().as_str(), mode.as_str()) {
        ("HTTP" | "HTTP2" | "GRPC" | "GRPC-WEB", _) => "HTTP",
        ("HTTPS", "PASSTHROUGH") => "TLS",
        ("HTTPS", _) => "HTTPS",
        ("TLS", _) => "TLS",
        ("TCP" | "MONGO" | "MYSQL" | "REDIS", _) => "TCP",
        (other, _) => {
            let why = format!("`{other}` is no protocol of a listener");
            return imported.lose(
                id,
                &format!("{at}.port.protocol"),
                &why,
                "say HTTP, HTTPS, TLS or TCP",
            );
        }
    };
    let Some(encrypted) = terminated(id, &format!("{at}.tls"), ours, &mode, &mut tls, imported)
    else {
        return;
    };
    lose_rest(
        imported,
        id,
        &format!("{at}.tls"),
        &tls,
        "versions and ciphers are the proxy's own",
    );
    lose_rest(imported, id, at, &server, SEE);
    // Nothing in a connection tells hosts apart, and two listeners of a port without them would be in conflict.
    let count = if ours == "TCP" { 1 } else { hosts.len() };
    for (other, host) in hosts.iter().take(count).enumerate() {
        // The namespace whose routes may be attached.
        let (namespace, host) = host.split_once('/').unwrap_or(("*", host));
        let mut listener = port.clone();
        let name = format!("{}-{number}-{other}", ours.to_lowercase());
        listener.insert("name".into(), name.clone().into());
        listener.insert("protocol".into(), ours.into());
        if host != "*" && ours != "TCP" {
            listener.insert("hostname".into(), host.into());
        }
        let from = if namespace == "." { "Same" } else { "All" };
        listener.insert(
            "allowedRoutes".into(),
            json!({ "namespaces": { "from": from } }),
        );
        if !matches!(namespace, "." | "*") {
            let why = format!(
                "routes of one namespace alone ({namespace}) cannot be let in; those of all are"
            );
            imported.lose(
                id,
                &format!("{at}.hosts[{other}]"),
                &why,
                "put the Gateway into that namespace, with `from: Same`",
            );
        }
        if !encrypted.is_empty() {
            listener.insert("tls".into(), encrypted.clone().into());
        }
        listeners.push(listener.into());
        if only_redirects {
            redirected.push(name);
        }
    }
}

/// How TLS ends, or passes. None: it cannot be said.
fn terminated(
    id: &str,
    at: &str,
    protocol: &str,
    mode: &str,
    tls: &mut Value,
    imported: &mut Imported,
) -> Option<Map<String, Value>> {
    let mut ours = Map::new();
    if matches!(protocol, "HTTP" | "TCP") {
        return Some(ours);
    }
    if mode == "PASSTHROUGH" {
        ours.insert("mode".into(), "Passthrough".into());
        return Some(ours);
    }
    let secret = text(tls, "credentialName");
    let (Some(secret), "SIMPLE" | "MUTUAL" | "OPTIONAL_MUTUAL") = (secret, mode) else {
        let why = format!(
            "a certificate is in a Secret, and clients outside the mesh have none of its identities ({mode})"
        );
        imported.lose(
            id,
            at,
            &why,
            "name a Secret with `credentialName` and the mode SIMPLE or MUTUAL",
        );
        return None;
    };
    ours.insert(
        "certificateRefs".into(),
        json!([{ "kind": "Secret", "name": secret }]),
    );
    if mode != "SIMPLE" {
        let mut validation = json!({ "caCertificateRefs": [{ "kind": "Secret", "name": secret }] });
        if mode == "OPTIONAL_MUTUAL" {
            validation["mode"] = "AllowInsecureFallback".into();
        }
        ours.insert("frontendValidation".into(), validation);
    }
    Some(ours)
}

//! Builds the gateway that the index receives, and so its proxies. Pure.

use super::listeners::{Judged, Trouble};
use super::objects::{self, GatewayParameters};
use crate::gateway_fields::{Key, Listener, Reference};
use serde_json::{Value, json};
use tulle_control::read_object;
use tulle_model::manifest::{GatewaySpec, Object};

const PROXY_PROTOCOL: &str = "tulle.dev/proxy-protocol";

/// Reads the listeners that are in order like any other manifest, so that they are checked like one.
///
/// # Errors
/// The mesh cannot have such a gateway.
pub(super) fn spec(
    key: &Key,
    listeners: &[Judged<'_>],
    wishes: &GatewayParameters,
) -> Result<GatewaySpec, Trouble> {
    let good: Vec<Value> = listeners
        .iter()
        .filter(|l| l.is_good())
        .map(listener)
        .collect();
    if good.is_empty() {
        // The gateway is still ours: a proxy that receives no gateway is never ready, and is restarted again
        // and again.
        return Ok(GatewaySpec {
            gateway_class_name: super::CLASS.to_owned(),
            ..GatewaySpec::default()
        });
    }
    let mut annotations = wishes.others.clone();
    if let Some(names) = annotations.remove(PROXY_PROTOCOL) {
        // The annotation may name a listener that is not in order now; its name is left out.
        let left = |name: &&str| {
            let mut known = listeners.iter();
            let known = known.find(|l| l.listener.name == *name);
            known.is_none_or(Judged::is_good)
        };
        let names: Vec<&str> = names.split(',').map(str::trim).filter(left).collect();
        if !names.is_empty() {
            annotations.insert(PROXY_PROTOCOL.into(), names.join(","));
        }
    }
    let manifest = json!({
        "apiVersion": super::API_VERSION, "kind": "Gateway",
        // A gateway that serves Ingresses has a name that no object may have.
        "metadata": { "name": objects::place(key).name, "namespace": key.namespace },
        "spec": {
            "gatewayClassName": super::CLASS,
            "listeners": good,
            "infrastructure": { "annotations": annotations },
        },
    });
    let mut object = read_object(&manifest.to_string()).map_err(|why| ("Invalid", why))?;
    object.qualify();
    match object {
        Object::Gateway(gateway) => Ok(gateway.spec),
        _ => Ok(GatewaySpec::default()),
    }
}

fn listener(judged: &Judged<'_>) -> Value {
    let Listener {
        name,
        port,
        protocol,
        hostname,
        tls,
        ..
    } = judged.listener;
    let mut listener = json!({ "name": name, "port": port, "protocol": protocol });
    if let Some(hostname) = hostname.as_ref().filter(|h| !h.is_empty()) {
        listener["hostname"] = hostname.as_str().into();
    }
    if let Some(tls) = tls {
        let mut told = json!({ "mode": tls.mode.as_deref().unwrap_or("Terminate") });
        if told["mode"] == "Terminate" {
            told["certificateRefs"] = references(&tls.certificate_refs, "Secret");
            if let Some(validation) = judged.validation {
                told["frontendValidation"] = json!({
                    "caCertificateRefs": references(&validation.ca_certificate_refs, "ConfigMap"),
                });
                if let Some(mode) = &validation.mode {
                    told["frontendValidation"]["mode"] = mode.as_str().into();
                }
            }
        }
        listener["tls"] = told;
    }
    listener
}

fn references(given: &[Reference], default: &str) -> Value {
    let each = given.iter().map(|r| {
        let mut told = json!({ "kind": r.kind.as_deref().unwrap_or(default), "name": r.name });
        if let Some(namespace) = &r.namespace {
            told["namespace"] = namespace.as_str().into();
        }
        told
    });
    each.collect()
}

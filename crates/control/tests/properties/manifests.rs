//! Objects of a cluster's namespaces: those of two that mean well, and random ones of a third.
//!
//! The properties of `tulle-control`, those of `tulle-kube` and the fuzz targets share this file, so it knows JSON
//! alone.

use proptest::prelude::*;
use serde_json::{Value, json};

/// The namespace whose author may write anything.
pub(crate) const EVIL: &str = "evil";
/// When the others' objects were made.
pub(crate) const MADE: &str = "2026-01-15T00:00:00Z";

const TULLE: &str = "tulle.dev/v1alpha1";
const GATEWAY: &str = "gateway.networking.k8s.io/v1";
const ACCESS: &str = "access.smi-spec.io/v1alpha3";
const SPECS: &str = "specs.smi-spec.io/v1alpha4";

/// All kinds that an author of a namespace may write, beside Kubernetes' own. A Mesh and a GatewayClass
/// belong to no namespace.
pub(crate) const KINDS: [(&str, &str); 19] = [
    (GATEWAY, "Gateway"),
    (GATEWAY, "HTTPRoute"),
    (GATEWAY, "GRPCRoute"),
    (GATEWAY, "TLSRoute"),
    (GATEWAY, "TCPRoute"),
    (GATEWAY, "ReferenceGrant"),
    (ACCESS, "TrafficTarget"),
    (SPECS, "HTTPRouteGroup"),
    (SPECS, "TCPRoute"),
    ("split.smi-spec.io/v1alpha4", "TrafficSplit"),
    (TULLE, "TrafficPolicy"),
    (TULLE, "RateLimit"),
    (TULLE, "HTTPFilter"),
    (TULLE, "AuthorizationPolicy"),
    (TULLE, "Authentication"),
    (TULLE, "Plugin"),
    (TULLE, "IngressBackend"),
    (TULLE, "AccessControl"),
    (TULLE, "Egress"),
];

/// Namespaces that somebody may refer to.
pub(crate) fn namespace() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["shop", EVIL, "infra", "tulle-system"])
}

/// Names that objects of several namespaces have. All that the others refer to is called `x`, too.
pub(crate) fn name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["web", "front", "web-1", "x"])
}

/// Addresses of the others' pods and Services, and one that nobody has.
pub(crate) fn address() -> impl Strategy<Value = &'static str> {
    let all = [
        "10.244.0.5",
        "10.244.0.6",
        "10.96.0.20",
        "10.96.0.21",
        "10.244.9.9",
    ];
    prop::sample::select(all.to_vec())
}

/// A port number that the others use, or one that they do not.
pub(crate) fn port() -> impl Strategy<Value = u16> {
    prop::sample::select(vec![80u16, 8080, 9100, 9999])
}

/// When an object of `evil` was made: before the others', with them, or after them.
pub(crate) fn age() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["2026-01-01T00:00:00Z", MADE, "2026-02-01T00:00:00Z"])
}

/// A random object of `evil`, of any kind.
pub(crate) fn object() -> impl Strategy<Value = Value> {
    prop::sample::select(KINDS.to_vec()).prop_flat_map(|(api, kind)| object_of_kind(api, kind))
}

/// A random object of `evil`.
pub(crate) fn object_of_kind(
    api: &'static str,
    kind: &'static str,
) -> impl Strategy<Value = Value> {
    let parts = (name(), name(), namespace(), port(), any::<bool>(), age());
    parts.prop_map(move |(own, to, namespace, port, flag, age)| {
        let to = To {
            name: to,
            namespace,
            port,
        };
        let mut made = made(EVIL, api, kind, own, spec(api, kind, &to, flag));
        made["metadata"]["creationTimestamp"] = age.into();
        made
    })
}

/// A Secret or ConfigMap of a namespace, with its text marked by the namespace.
pub(crate) fn text(namespace: &str, kind: &str, name: &str) -> Value {
    let field = if kind == "Secret" {
        "stringData"
    } else {
        "data"
    };
    let text = format!("text of {namespace}");
    json!({
        "apiVersion": "v1", "kind": kind, "metadata": { "name": name, "namespace": namespace },
        field: { "tls.crt": text, "tls.key": text, "ca.crt": text, "jwks": text },
    })
}

/// An object.
pub(crate) fn made(namespace: &str, api: &str, kind: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": api, "kind": kind, "spec": spec,
        "metadata": { "name": name, "namespace": namespace, "creationTimestamp": MADE },
    })
}

/// The target of an object's reference.
struct To {
    name: &'static str,
    namespace: &'static str,
    port: u16,
}

fn spec(api: &str, kind: &str, to: &To, flag: bool) -> Value {
    let To {
        name,
        namespace,
        port,
    } = to;
    let targets = json!([{ "kind": "Service", "name": name, "namespace": namespace }]);
    let file = json!({ "name": name, "namespace": namespace });
    let own = json!({ "kind": "ServiceAccount", "name": "x", "namespace": EVIL });
    let account = json!({ "kind": "ServiceAccount", "name": name, "namespace": namespace });
    let jwt = json!({ "providers": [{ "issuer": "i", "jwksRef": file }] });
    let backend = json!({ "name": name, "namespace": namespace, "port": port });
    let ask = json!({ "backendRef": backend, "protocol": "HTTP" });
    let filters = json!([
        { "type": "RequestMirror", "requestMirror": { "backendRef": backend } },
        {
            "type": "ExtensionRef",
            "extensionRef": { "group": "tulle.dev", "kind": "HTTPFilter", "name": name },
        },
        {
            "type": "RequestHeaderModifier",
            "requestHeaderModifier": { "set": [{ "name": "x-a", "value": "b" }] },
        },
    ]);
    let rule = match flag {
        true => json!({ "backendRefs": [backend], "filters": filters }),
        false => json!({ "backendRefs": [backend] }),
    };
    let mut route = json!({
        "parentRefs": [
            { "group": "", "kind": "Service", "name": name, "namespace": namespace },
            { "name": "edge", "namespace": "infra" },
        ],
        "rules": [rule],
    });
    match kind {
        "Gateway" => json!({
            "gatewayClassName": "tulle",
            "listeners": [
                {
                    "name": "web", "port": 80, "protocol": "HTTP",
                    "allowedRoutes": { "namespaces": { "from": "All" } },
                },
                {
                    "name": "tls", "port": 443, "protocol": "HTTPS",
                    "allowedRoutes": { "namespaces": { "from": "All" } },
                    "tls": {
                        "certificateRefs": [file],
                        "frontendValidation": { "caCertificateRefs": [file] },
                    },
                },
            ],
        }),
        "HTTPRoute" | "GRPCRoute" => route,
        "TCPRoute" if api == SPECS => json!({ "matches": { "ports": [port] } }),
        "TLSRoute" | "TCPRoute" => {
            route["rules"] = json!([{ "backendRefs": [backend] }]);
            if kind == "TLSRoute" {
                route["hostnames"] = json!(["books.example"]);
            }
            route
        }
        "ReferenceGrant" => json!({
            "from": [
                { "group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": namespace },
                { "group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": EVIL },
                { "group": "tulle.dev", "kind": "Authentication", "namespace": EVIL },
            ],
            "to": [
                { "group": "", "kind": "Service" },
                { "group": "", "kind": "Secret" },
                { "group": "", "kind": "ConfigMap" },
            ],
        }),
        "TrafficTarget" => {
            let group = if flag { "HTTPRouteGroup" } else { "TCPRoute" };
            json!({
                "destination": account, "sources": [own], "rules": [{ "kind": group, "name": name }],
            })
        }
        "HTTPRouteGroup" => json!({
            "matches": [{ "name": "read", "pathRegex": "/.*", "methods": [if flag { "GET" } else { "*" }] }],
        }),
        "TrafficSplit" => json!({
            "service": name, "backends": [{ "service": "other", "weight": 1 }],
            "matches": if flag { json!([{ "kind": "HTTPRouteGroup", "name": name }]) } else { json!([]) },
        }),
        "TrafficPolicy" => json!({ "targetRefs": targets, "timeouts": { "request": "1s" } }),
        "RateLimit" => json!({
            "targetRefs": targets, "requests": { "count": 1 }, "connections": { "count": 1 },
        }),
        "HTTPFilter" => match flag {
            true => json!({ "jwt": jwt }),
            false => json!({ "externalAuth": ask }),
        },
        "AuthorizationPolicy" => json!({
            "targetRefs": targets, "action": if flag { "Allow" } else { "Deny" },
            "rules": [{ "from": { "serviceAccounts": ["x"] }, "to": { "ports": [port] } }],
        }),
        "Authentication" => match flag {
            true => json!({ "targetRefs": targets, "jwt": jwt }),
            false => json!({ "targetRefs": targets, "externalAuth": ask }),
        },
        "Plugin" => json!({
            "targetRefs": targets, "source": "export function onRequest() {}", "services": [name],
            "failurePolicy": if flag { "Open" } else { "Closed" },
        }),
        "IngressBackend" | "AccessControl" => json!({
            "backends": [{ "name": name }],
            "sources": [{ "kind": "Service", "name": name, "namespace": namespace }],
        }),
        "Egress" => {
            let mut egress = json!({
                "hosts": ["books.example"],
                "sources": if flag { json!([]) } else { json!([account]) },
            });
            match port {
                80 => egress["gateway"] = json!({ "service": "x", "port": port }),
                8080 => egress["tls"] = json!({ "caCertificateRef": file }),
                9100 => egress["matches"] = json!([{ "kind": "HTTPRouteGroup", "name": name }]),
                _ => {}
            }
            egress
        }
        other => panic!("no objects of the kind {other}"),
    }
}

/// The others' objects: web.shop, which needs tokens, is limited, split and routed, and lets `front` in; what they
/// refer to; a gateway of `infra` that takes routes of `shop`; egress.
pub(crate) fn victims() -> Vec<Value> {
    let about = |service: &str| json!([{ "kind": "Service", "name": service }]);
    let shop = |api: &str, kind: &str, name: &str, spec: Value| made("shop", api, kind, name, spec);
    let account = |name: &str| json!({ "kind": "ServiceAccount", "name": name });
    let filter = json!({
        "type": "ExtensionRef",
        "extensionRef": { "group": "tulle.dev", "kind": "HTTPFilter", "name": "x" },
    });
    let mirror = json!({
        "type": "RequestMirror", "requestMirror": { "backendRef": { "name": "front", "port": 80 } },
    });
    let rules =
        json!([{ "filters": [filter, mirror], "backendRefs": [{ "name": "web", "port": 80 }] }]);
    let service = json!([{ "group": "", "kind": "Service", "name": "web" }]);
    let edge = json!([{ "name": "edge", "namespace": "infra" }]);
    let keys = json!({ "providers": [{ "issuer": "i", "jwksRef": { "name": "x" } }] });
    let listener = |name: &str, port: u16, protocol: &str, mut more: Value| {
        more["name"] = name.into();
        more["port"] = port.into();
        more["protocol"] = protocol.into();
        more["allowedRoutes"] = json!({
            "namespaces": { "from": "Selector", "selector": { "matchLabels": { "team": "shop" } } },
        });
        more
    };
    let certificate = json!({ "tls": { "certificateRefs": [{ "name": "x" }] } });
    vec![
        made(
            "infra",
            GATEWAY,
            "Gateway",
            "edge",
            json!({
                "gatewayClassName": "tulle",
                "listeners": [
                    listener("web", 80, "HTTP", json!({})),
                    listener("tls", 443, "HTTPS", certificate),
                ],
            }),
        ),
        shop(
            GATEWAY,
            "HTTPRoute",
            "edge",
            json!({ "parentRefs": edge, "rules": rules }),
        ),
        shop(
            GATEWAY,
            "HTTPRoute",
            "web",
            json!({ "parentRefs": service, "rules": rules }),
        ),
        shop(
            GATEWAY,
            "GRPCRoute",
            "web",
            json!({ "parentRefs": service, "rules": rules }),
        ),
        shop(
            GATEWAY,
            "TCPRoute",
            "web",
            json!({
                "parentRefs": [{ "group": "", "kind": "Service", "name": "front" }],
                "rules": [{ "backendRefs": [{ "name": "web", "port": 80 }] }],
            }),
        ),
        shop(
            ACCESS,
            "TrafficTarget",
            "web",
            json!({
                "destination": account("web"), "sources": [account("front")],
                "rules": [{ "kind": "HTTPRouteGroup", "name": "x" }, { "kind": "TCPRoute", "name": "x" }],
            }),
        ),
        shop(
            SPECS,
            "HTTPRouteGroup",
            "x",
            json!({ "matches": [{ "name": "read", "pathRegex": "/a.*", "methods": ["GET"] }] }),
        ),
        shop(
            SPECS,
            "TCPRoute",
            "x",
            json!({ "matches": { "ports": [8080] } }),
        ),
        shop(TULLE, "HTTPFilter", "x", json!({ "jwt": keys })),
        shop(
            TULLE,
            "TrafficPolicy",
            "web",
            json!({ "targetRefs": about("web"), "slowStart": "5s" }),
        ),
        shop(
            TULLE,
            "RateLimit",
            "web",
            json!({ "targetRefs": about("web"), "requests": { "count": 100 } }),
        ),
        shop(
            TULLE,
            "AuthorizationPolicy",
            "web",
            json!({
                "targetRefs": about("web"),
                "rules": [{ "from": { "serviceAccounts": ["front"] }, "to": { "ports": [80] } }],
            }),
        ),
        shop(
            TULLE,
            "Authentication",
            "keys",
            json!({ "targetRefs": about("web"), "jwt": keys }),
        ),
        shop(
            TULLE,
            "Authentication",
            "web",
            json!({
                "targetRefs": about("web"),
                "externalAuth": { "backendRef": { "name": "front", "port": 80 }, "protocol": "HTTP" },
            }),
        ),
        shop(
            TULLE,
            "IngressBackend",
            "web",
            json!({
                "backends": [{ "name": "web" }], "sources": [{ "kind": "Service", "name": "front" }],
            }),
        ),
        shop(
            TULLE,
            "Egress",
            "books",
            json!({ "hosts": ["books.example"], "ports": [{ "number": 443 }] }),
        ),
    ]
}

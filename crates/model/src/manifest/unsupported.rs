//! Fields that the APIs define and Tulle does not act on (yet): they are refused with that reason,
//! so that nobody takes a filter or a header for being in force.

/// Why `field` of the type `name` is refused although its API defines it, and what to do.
pub(super) fn explain(name: &str, field: &str) -> Option<(String, String)> {
    let gateway_api: &[&str] = match name {
        "GatewaySpec" => &[
            "infrastructure",
            "allowedListeners",
            "backendTLS",
            "tls",
            "defaultScope",
        ],
        "ListenerTlsSpec" => &["options"],
        "AllowedRoutes" => &["kinds"],
        "RouteNamespaces" => &["selector"],
        "HttpRouteSpec" | "GrpcRouteSpec" | "TlsRouteSpec" | "TcpRouteSpec" => {
            &["useDefaultGateways"]
        }
        "RouteFilter" => &["externalAuth"],
        "SessionPersistence" => &["idleTimeout"],
        _ => &[],
    };
    if gateway_api.contains(&field) {
        return Some((
            format!("`{field}` is part of Gateway API but not supported yet"),
            "remove it".into(),
        ));
    }
    match (name, field) {
        ("Manifest", "status") => Some((
            "`status` is written by controllers, not applied".into(),
            "remove it".into(),
        )),
        (
            "Metadata",
            "uid" | "resourceVersion" | "generation" | "creationTimestamp" | "managedFields"
            | "selfLink" | "ownerReferences" | "finalizers" | "generateName" | "deletionTimestamp",
        ) => Some((
            format!("`{field}` is written by Kubernetes and has no meaning here"),
            "remove it".into(),
        )),
        _ => None,
    }
}

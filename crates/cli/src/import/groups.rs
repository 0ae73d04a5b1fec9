//! API groups and kinds of other meshes, for whoever looks for their objects.

use crate::args::OtherMesh;

/// Whether an API group belongs to a mesh.
pub(crate) fn is_of(mesh: OtherMesh, group: &str) -> bool {
    let domains: &[&str] = match mesh {
        OtherMesh::Osm | OtherMesh::Fsm => &[
            "openservicemesh.io",
            "flomesh.io",
            "access.smi-spec.io",
            "specs.smi-spec.io",
            "split.smi-spec.io",
        ],
        OtherMesh::Istio => &["istio.io"],
        OtherMesh::Linkerd => &["linkerd.io"],
    };
    let is_below = |domain: &&str| {
        let before = group.strip_suffix(domain);
        before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
    };
    // Behind that one is a program of Linkerd's, which keeps no objects and may be away.
    group != "tap.linkerd.io" && domains.iter().any(is_below)
}

/// The mesh's kinds that have a counterpart.
pub(crate) fn kinds(mesh: OtherMesh) -> &'static [&'static str] {
    match mesh {
        OtherMesh::Osm => &[
            "MeshConfig",
            "Egress",
            "IngressBackend",
            "UpstreamTrafficSetting",
            "Retry",
            "TrafficTarget",
            "HTTPRouteGroup",
            "TCPRoute",
            "TrafficSplit",
        ],
        OtherMesh::Fsm => &[
            "MeshConfig",
            "Egress",
            "IngressBackend",
            "AccessControl",
            "UpstreamTrafficSetting",
            "Retry",
            "TrafficTarget",
            "HTTPRouteGroup",
            "TCPRoute",
            "TrafficSplit",
        ],
        OtherMesh::Istio => &[
            "AuthorizationPolicy",
            "PeerAuthentication",
            "RequestAuthentication",
            "VirtualService",
            "DestinationRule",
            "Gateway",
            "ServiceEntry",
        ],
        OtherMesh::Linkerd => &[
            "Server",
            "AuthorizationPolicy",
            "ServerAuthorization",
            "MeshTLSAuthentication",
            "NetworkAuthentication",
            "HTTPRoute",
            "HTTPLocalRateLimitPolicy",
            "ServiceProfile",
        ],
    }
}

/// Namespaces of Linkerd and of its extensions. Others that begin like them are anybody's.
const OF_LINKERD: [&str; 7] = [
    "linkerd",
    "linkerd-buoyant",
    "linkerd-cni",
    "linkerd-jaeger",
    "linkerd-multicluster",
    "linkerd-smi",
    "linkerd-viz",
];

/// Whether an object is part of the mesh itself, in the namespace where it usually runs: it ends with the mesh.
pub(crate) fn is_part(mesh: OtherMesh, kind: &str, namespace: &str) -> bool {
    let is_workload = matches!(kind, "CronJob" | "DaemonSet" | "Deployment" | "StatefulSet");
    match mesh {
        OtherMesh::Osm | OtherMesh::Fsm => {
            is_workload && matches!(namespace, "osm-system" | "osm-edge-system" | "fsm-system")
        }
        OtherMesh::Istio => is_workload && namespace == "istio-system",
        // Its policies there are about itself; what holds for a mesh as a whole is no object.
        OtherMesh::Linkerd => OF_LINKERD.contains(&namespace),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_of_a_mesh_by_their_domain() {
        for (mesh, group, expected) in [
            (OtherMesh::Istio, "networking.istio.io", true),
            (OtherMesh::Istio, "istio.io", true),
            (OtherMesh::Istio, "networking.notistio.io", false),
            (OtherMesh::Istio, "gateway.networking.k8s.io", false),
            (OtherMesh::Osm, "policy.openservicemesh.io", true),
            (OtherMesh::Fsm, "flomesh.io", true),
            (OtherMesh::Osm, "split.smi-spec.io", true),
            // Tulle serves it itself, and it has no objects.
            (OtherMesh::Osm, "metrics.smi-spec.io", false),
            (OtherMesh::Linkerd, "policy.linkerd.io", true),
            (OtherMesh::Linkerd, "tap.linkerd.io", false),
        ] {
            assert_eq!(is_of(mesh, group), expected, "{group}");
        }
    }

    #[test]
    fn a_namespace_named_like_linkerd_is_not_linkerds() {
        for (namespace, expected) in [
            ("linkerd", true),
            ("linkerd-viz", true),
            ("linkerd-multicluster", true),
            ("linkerd-demo", false),
            ("linkerd-", false),
            ("linkerdshop", false),
        ] {
            for kind in ["Server", "Deployment"] {
                let is_part = is_part(OtherMesh::Linkerd, kind, namespace);
                assert_eq!(is_part, expected, "{kind} {namespace}");
            }
        }
    }
}

//! API groups and kinds of other meshes, for whoever looks for their objects.

use crate::args::import::OtherMesh;

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

/// Kinds of a group that is not a mesh's own, which that mesh obeys all the same.
pub(crate) fn foreign_kinds(mesh: OtherMesh, group: &str) -> &'static [&'static str] {
    match (mesh, group) {
        // Routes of a Server say which requests a policy is about.
        (OtherMesh::Linkerd, "gateway.networking.k8s.io") => &["HTTPRoute", "GRPCRoute"],
        _ => &[],
    }
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
    use crate::import::imported::Imported;
    use crate::import::{istio, linkerd, osm};
    use serde_json::{Value, json};
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    /// Parts that have to agree about a mesh's kinds.
    struct Importer {
        mesh: OtherMesh,
        import: fn(Vec<Value>) -> Imported,
        /// The file that says which kind is translated by whom.
        source: &'static str,
        /// Files and folders of tests.
        tests: &'static [&'static str],
        /// A page of the documentation, with its tables.
        page: &'static str,
        /// An API version of the mesh's.
        version: &'static str,
    }

    const OSM: Importer = Importer {
        mesh: OtherMesh::Osm,
        import: osm::import,
        source: include_str!("osm.rs"),
        tests: &["tests.rs", "tests", "bookstore.rs"],
        page: include_str!("../../../../docs/from-osm.md"),
        version: "policy.openservicemesh.io/v1alpha1",
    };
    const FSM: Importer = Importer {
        mesh: OtherMesh::Fsm,
        version: "policy.flomesh.io/v1alpha1",
        ..OSM
    };
    const ISTIO: Importer = Importer {
        mesh: OtherMesh::Istio,
        import: istio::import,
        source: include_str!("istio/mod.rs"),
        tests: &["istio/tests"],
        page: include_str!("../../../../docs/from-istio.md"),
        version: "networking.istio.io/v1",
    };
    const LINKERD: Importer = Importer {
        mesh: OtherMesh::Linkerd,
        import: linkerd::import,
        source: include_str!("linkerd/mod.rs"),
        tests: &["linkerd/tests.rs", "linkerd/tests"],
        page: include_str!("../../../../docs/from-linkerd.md"),
        version: "policy.linkerd.io/v1alpha1",
    };

    impl Importer {
        /// Kinds of the mesh that the importer tells apart. Kubernetes has one of them itself.
        fn named(&self) -> BTreeSet<&'static str> {
            let texts = self.source.split('"').skip(1).step_by(2);
            let is_kind = |text: &&str| {
                text.starts_with(|c: char| c.is_ascii_uppercase())
                    && text.chars().all(|c| c.is_ascii_alphanumeric())
            };
            texts
                .filter(is_kind)
                .filter(|text| *text != "Service")
                .collect()
        }

        /// Whether a row of a table begins with it.
        fn has_row(&self, kind: &str) -> bool {
            let rows = self.page.lines().filter_map(|line| line.strip_prefix('|'));
            let mut first = rows.filter_map(|row| row.split('|').next());
            first.any(|cell| {
                let mut words = cell.split(|c: char| !c.is_ascii_alphanumeric());
                words.any(|word| word == kind)
            })
        }

        fn tests(&self) -> String {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/import");
            let files = self.tests.iter().flat_map(|path| {
                let path = root.join(path);
                match path.is_dir() {
                    false => vec![path],
                    true => fs::read_dir(&path)
                        .unwrap()
                        .map(|file| file.unwrap().path())
                        .collect::<Vec<PathBuf>>(),
                }
            });
            files
                .map(|file| fs::read_to_string(file).unwrap())
                .collect()
        }
    }

    #[test]
    fn each_kind_is_in_a_table_and_tried_by_a_test() {
        for importer in [OSM, FSM, ISTIO, LINKERD] {
            let mesh = importer.mesh;
            let (named, tests) = (importer.named(), importer.tests());
            for kind in kinds(mesh) {
                assert!(named.contains(kind), "{mesh:?}: {kind} is not translated");
                assert!(importer.has_row(kind), "{mesh:?}: {kind} is in no table");
                let written = ["kind: ?\n", "kind: ?,", "\"?\""];
                let mut written = written.iter().map(|text| text.replace('?', kind));
                assert!(
                    written.any(|text| tests.contains(&text)),
                    "{mesh:?}: {kind} is in no test"
                );
            }
        }
    }

    /// Other kinds that an importer tells apart are named, each with an advice of its own.
    #[test]
    fn each_kind_without_counterpart_is_in_a_table_and_named() {
        for importer in [FSM, ISTIO, LINKERD] {
            let mesh = importer.mesh;
            for kind in importer.named() {
                assert!(importer.has_row(kind), "{mesh:?}: {kind} is in no table");
                if kinds(mesh).contains(&kind) {
                    continue;
                }
                let object = json!({
                    "apiVersion": importer.version, "kind": kind, "metadata": { "name": "o" }, "spec": { "a": 1 },
                });
                let imported = (importer.import)(vec![object]);
                assert!(imported.objects.is_empty(), "{imported:?}");
                let loss = &imported.lost[0];
                assert_eq!(loss.object, format!("{kind} o"));
                assert_ne!(loss.why, "this kind has no counterpart", "{mesh:?}: {kind}");
            }
        }
    }

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
    fn routes_of_gateway_api_are_linkerds_too() {
        let group = "gateway.networking.k8s.io";
        assert_eq!(
            foreign_kinds(OtherMesh::Linkerd, group),
            ["HTTPRoute", "GRPCRoute"]
        );
        for (mesh, group) in [
            (OtherMesh::Linkerd, "policy.linkerd.io"),
            (OtherMesh::Linkerd, "example.com"),
            (OtherMesh::Osm, group),
            (OtherMesh::Istio, group),
        ] {
            assert!(foreign_kinds(mesh, group).is_empty(), "{mesh:?} {group}");
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

//! Every check of a cluster: its id, which keeps its meaning, what is looked at, and what to do when
//! it is not well. docs/kubernetes/checks.md says the same with the cause.

/// A check.
pub(super) struct Known {
    pub(super) id: &'static str,
    /// The subject of the check.
    pub(super) check: &'static str,
    /// The advice.
    pub(super) fix: &'static str,
}

const fn known(id: &'static str, check: &'static str, fix: &'static str) -> Known {
    Known { id, check, fix }
}

/// All, by id. TK00 and TK01: the cluster; TK02 to TK04: the controller; TK05: injection; TK06 and
/// TK07: proxies; TK08 to TK10: services.
pub(super) const ALL: [Known; 96] = [
    known("TK001", "API server", "see `kubectl cluster-info`"),
    known(
        "TK002",
        "version of Kubernetes",
        "use 1.29 or newer; 1.24 does with `tulle install --no-native-sidecar`",
    ),
    known(
        "TK003",
        "versions of the kubelets",
        "upgrade the nodes, or give their pods the annotation `tulle.dev/native-sidecar: disabled`",
    ),
    known(
        "TK004",
        "nodes' kernels",
        "use Linux 5.4 or newer with nftables",
    ),
    known(
        "TK005",
        "nodes' architectures",
        "use amd64, arm64 or armv7 nodes for the mesh (nodeSelector)",
    ),
    known(
        "TK006",
        "nodes' operating systems",
        "keep the mesh's pods on Linux nodes (nodeSelector)",
    ),
    known(
        "TK007",
        "nodes are ready",
        "`kubectl describe node` says why not",
    ),
    known(
        "TK008",
        "API groups",
        "turn on what is named: the API server's `--runtime-config` and admission plugins",
    ),
    known(
        "TK009",
        "rights of who installs",
        "install as somebody who may, such as cluster-admin",
    ),
    known("TK010", "clock of this computer", "run a time service here"),
    known(
        "TK011",
        "nodes' clocks",
        "run a time service on the nodes: certificates and tokens are judged by their clocks",
    ),
    known(
        "TK012",
        "Gateway API",
        "install the bundle of its standard channel, version 1.2 or newer, to use its objects",
    ),
    known(
        "TK013",
        "other meshes",
        "keep them out of the namespaces of this mesh: one sidecar a pod",
    ),
    known(
        "TK014",
        "pod security",
        "allow the init container's NET_ADMIN (level `privileged` of the namespace), or use the CNI plugin",
    ),
    known(
        "TK016",
        "an installation before",
        "`tulle upgrade` changes it; `tulle uninstall` removes it",
    ),
    known(
        "TK020",
        "namespace of the controller",
        "`tulle install | kubectl apply -f -`",
    ),
    known(
        "TK021",
        "Deployment of the controller",
        "`tulle install | kubectl apply -f -`",
    ),
    known(
        "TK022",
        "pods of the controller",
        "`kubectl -n NAMESPACE describe pods` and `logs` say why not",
    ),
    known(
        "TK023",
        "restarts of the controller",
        "`kubectl -n NAMESPACE logs --previous` says how it ended",
    ),
    known(
        "TK024",
        "the controller answers",
        "see its log; you need the right to create pods/exec in its namespace",
    ),
    known(
        "TK025",
        "version of the controller",
        "`tulle upgrade | kubectl apply -f -`, or use the command of the controller's version",
    ),
    known(
        "TK026",
        "settings",
        "correct the ConfigMap `tulle-settings`, then start the controller again",
    ),
    known(
        "TK027",
        "trust domain",
        "start the controller again after a change of its settings; a trust domain cannot change while pods use it",
    ),
    known(
        "TK028",
        "rights of the controller",
        "`tulle install | kubectl apply -f -` makes them again",
    ),
    known(
        "TK029",
        "Service of the controller",
        "see the pods of the controller",
    ),
    known(
        "TK030",
        "webhook for pods",
        "`tulle install | kubectl apply -f -`",
    ),
    known(
        "TK031",
        "the API server trusts the webhook",
        "wait half a minute after installation; then see the controller's log",
    ),
    known(
        "TK032",
        "the API server knows where the webhook is",
        "`tulle install | kubectl apply -f -`",
    ),
    known(
        "TK033",
        "a pod is injected",
        "see the controller's log; can the API server reach pods of the controller's namespace on port 15017?",
    ),
    known(
        "TK034",
        "webhooks for objects",
        "start the controller again; see its log",
    ),
    known(
        "TK035",
        "root certificate",
        "replace the root before it expires",
    ),
    known(
        "TK036",
        "trust bundles",
        "see the controller's log; a namespace without the bundle has no pods in the mesh that start",
    ),
    known(
        "TK037",
        "kinds of objects",
        "`tulle install | kubectl apply -f -`",
    ),
    known(
        "TK038",
        "leader",
        "see the controller's log: nobody writes the status of objects",
    ),
    known(
        "TK039",
        "objects fit together",
        "the message names object and field; the controller logs it, too",
    ),
    known(
        "TK040",
        "SMI's metrics API",
        "see the pods of the controller and its log; without the API: `kubectl delete apiservice v1alpha1.metrics.smi-spec.io`",
    ),
    known(
        "TK041",
        "CNI plugin",
        "`kubectl -n tulle-cni logs ds/tulle-cni`: is the nodes' CNI configuration where `tulle install --cni-configurations` says?",
    ),
    known(
        "TK042",
        "issuer of certificates",
        "`kubectl describe` of the issuer says why; what it is called is said at installation (`--cert-manager`, `--issuer-ca`)",
    ),
    known(
        "TK043",
        "the issuer signs",
        "see the controller's log and the issuer's; start the controller again after a change of its settings",
    ),
    known(
        "TK044",
        "roots of the issuer",
        "give the roots (`tulle install --issuer-ca`); see the controller's log",
    ),
    known(
        "TK045",
        "rights for Gateways",
        "add the namespace to the value `gateways.namespaces`, or set `gateways.allNamespaces` (docs/kubernetes/gateways.md#namespaces)",
    ),
    known(
        "TK046",
        "keys of tokens by address",
        "the message says why: list the host in `jwks.hosts` of the Mesh, or mend its server",
    ),
    known(
        "TK047",
        "images of the mesh",
        "load the image on the node or put it into the registry: `tulle install --registry` names it; a private one needs `images.pullSecrets`, and for a sidecar a secret of its pod",
    ),
    known(
        "TK050",
        "labels of namespaces",
        "use `tulle.dev/inject: enabled` or `disabled`",
    ),
    known(
        "TK051",
        "pods without sidecars",
        "start them again (`tulle namespace add NAME --restart`), or annotate them `tulle.dev/inject: disabled`",
    ),
    known(
        "TK052",
        "sidecars where nobody asks for them",
        "start the pods again, or label the namespace",
    ),
    known(
        "TK053",
        "pods that cannot be made",
        "correct what the message names",
    ),
    known(
        "TK054",
        "pods with two meshes' sidecars",
        "take one of the meshes' labels off the namespace or pod",
    ),
    known(
        "TK055",
        "applications as the sidecar's user",
        "run the application as another user than 1500: its traffic is not in the mesh",
    ),
    known(
        "TK056",
        "applications that may change the rules",
        "take NET_ADMIN and `privileged` from the application's containers",
    ),
    known(
        "TK057",
        "identities",
        "give each workload a service account of its own: policies cannot tell apart those that share one",
    ),
    known(
        "TK058",
        "pods on the node's network",
        "take `hostNetwork` off them, or move them to a namespace outside the mesh",
    ),
    known(
        "TK059",
        "ports of the node",
        "reach the pod through a gateway: clients by `hostPort` have no certificate",
    ),
    known(
        "TK060",
        "sidecars run",
        "`kubectl describe pod POD` says why not: an image that cannot be had must be loaded on the node or be in the registry (`tulle install --registry`); of one that ended, `kubectl logs POD -c tulle-proxy`",
    ),
    known(
        "TK061",
        "sidecars are ready",
        "`tulle proxy get ready POD` says what is missing",
    ),
    known(
        "TK062",
        "restarts of sidecars",
        "`kubectl logs POD -c tulle-proxy --previous` says how it ended",
    ),
    known(
        "TK063",
        "memory of sidecars",
        "raise `tulle.dev/memory-limit` of the pod",
    ),
    known(
        "TK064",
        "redirection rules",
        "`kubectl logs POD -c tulle-init` says why not",
    ),
    known(
        "TK065",
        "sidecars answer",
        "you need the right to create pods/portforward; else see the sidecar's log",
    ),
    known(
        "TK066",
        "configuration is accepted",
        "correct the object named; the one before stays in force",
    ),
    known(
        "TK067",
        "configuration has come",
        "see the sidecar's log: can it reach the controller on port 15010?",
    ),
    known(
        "TK068",
        "certificates",
        "see the sidecar's log and the controller's: why is it not renewed?",
    ),
    known("TK069", "identities of sidecars", "start the pod again"),
    known(
        "TK070",
        "roots of sidecars",
        "see the sidecar's log; it takes a new bundle within a minute or two",
    ),
    known(
        "TK071",
        "versions of sidecars",
        "start the pods again, so that they get the sidecar of now",
    ),
    known(
        "TK072",
        "pods of the mesh are ready",
        "`kubectl describe pod` says why not",
    ),
    known(
        "TK073",
        "connections to the controller",
        "see the sidecar's log; traffic goes on as last configured",
    ),
    known(
        "TK074",
        "plaintext",
        "give it a sidecar; when nobody is left, `tulle harden` refuses plaintext",
    ),
    known(
        "TK075",
        "refused plaintext",
        "give the caller a sidecar, let it call a gateway, or let its address in by an AccessControl",
    ),
    known(
        "TK076",
        "what leaves the mesh",
        "write an Egress for it, then `tulle harden` lets nothing else out",
    ),
    known(
        "TK077",
        "refused egress",
        "write an Egress for it, if it shall be reached",
    ),
    known(
        "TK078",
        "profiles of namespaces",
        "use `strict` or `permissive`, or take the label off",
    ),
    known(
        "TK079",
        "settings of sidecars",
        "start the pods again, so that they get the settings of now",
    ),
    known(
        "TK080",
        "protocols of ports",
        "use http, http2, grpc, tcp, tcp-server-first, tls, https or a kubernetes.io/ protocol as `appProtocol`, and numbers of the Service's ports with commas as `tulle.dev/opaque-ports`",
    ),
    known(
        "TK081",
        "servers that speak first",
        "say `appProtocol: tcp-server-first`, so that the sidecar does not wait for the client",
    ),
    known(
        "TK082",
        "names of target ports",
        "name the container's port, or use its number",
    ),
    known(
        "TK083",
        "services have endpoints",
        "`kubectl get endpointslices` and `describe pod` say why not; or correct the selector",
    ),
    known(
        "TK084",
        "services of mixed pods",
        "start the pods without sidecar again: callers reach them in plaintext",
    ),
    known(
        "TK085",
        "protocols that agree",
        "give the ports that lead to one container port the same `appProtocol`",
    ),
    known(
        "TK086",
        "UDP and SCTP",
        "know that it passes by the mesh, without mutual TLS",
    ),
    known(
        "TK087",
        "ports of the mesh",
        "use another port: 15000 to 15090 are the sidecar's",
    ),
    known(
        "TK088",
        "callers that policies name",
        "correct the name, or make the service account: the policy lets nobody of that name call",
    ),
    known(
        "TK089",
        "slices of other namespaces' pods",
        "ask who wrote it: a Service is for pods of its own namespace",
    ),
    known(
        "TK090",
        "letter case of restricted paths",
        "`ignoreCase: true` of the rule, or `false` if the application's paths have a case; in a route a \
         RegularExpression with `(?i)`, or the same filters for all rules",
    ),
    known(
        "TK091",
        "protocols that are guessed",
        "say `appProtocol`: `http`, `http2` or `grpc`, or `tcp` where it is not HTTP",
    ),
    known(
        "TK092",
        "trust domain",
        "`tulle install --trust-domain` with the one before, or uninstall, install with the new one and restart what has sidecars",
    ),
    known(
        "TK093",
        "objects are in force",
        "correct what the reason names; what it said before holds, or nothing of it",
    ),
    known(
        "TK094",
        "what objects name is there",
        "make or correct what is named; a reference to another namespace needs a ReferenceGrant there",
    ),
    known(
        "TK095",
        "denied calls",
        "if the caller may, let a policy say so: `tulle why CALLER SERVICE` names those that decide",
    ),
    known(
        "TK096",
        "keys of labels and annotations",
        "correct or remove it: of a namespace there are `tulle.dev/inject`, `metrics` and `profile`, of a Service `opaque-ports`, of a pod those of docs/kubernetes.md",
    ),
    known(
        "TK097",
        "certificates of Gateways",
        "put a new certificate into the listener's Secret, which takes its place at once",
    ),
    known(
        "TK098",
        "routes that conflict",
        "take the match out of one of them, or make them one route",
    ),
    known(
        "TK099",
        "NetworkPolicies and the mesh",
        "let pods out to the controller's port 15010, Prometheus in to port 15020 of pods, and let in at the controller what docs/kubernetes/rights.md says",
    ),
    known(
        "TK100",
        "timeouts of session affinity",
        "take `sessionAffinityConfig` out, if a client may stay for as long as endpoints stay; else take `sessionAffinity` out",
    ),
    known(
        "TK101",
        "endpoints of the caller's node",
        "say `PreferSameZone`, which is what holds; `internalTrafficPolicy: Local` keeps calls on the node, also where it has no endpoint",
    ),
    known(
        "TK110",
        "Ingresses that somebody serves",
        "name an IngressClass that is there (`kubectl get ingressclass`): `tulle`, or another controller's",
    ),
];

/// The check of this id.
pub(super) fn by_id(id: &str) -> Option<&'static Known> {
    ALL.iter().find(|k| k.id == id)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page and the program have the same checks, each with a cause and what to do.
    #[test]
    fn the_page_has_every_check_and_no_other() {
        let page = std::fs::read_to_string("../../docs/kubernetes/checks.md").unwrap();
        let rows = page.lines().filter(|l| l.starts_with("| `TK"));
        // A bar within a cell is escaped.
        let cells = |row: &str| -> Vec<String> {
            let row = row.trim_matches(|c| c == '|' || c == ' ');
            row.split(" | ").map(|c| c.replace("\\|", "|")).collect()
        };
        let rows: Vec<Vec<String>> = rows.map(cells).collect();
        assert!(ALL.len() >= 40 && rows.len() == ALL.len(), "{}", rows.len());
        for (row, known) in rows.iter().zip(&ALL) {
            assert_eq!(row[0], format!("`{}`", known.id));
            assert_eq!(row[1], known.check, "{}", known.id);
            assert!(row[2].len() > 10, "{} has no cause", known.id);
            assert_eq!(row[3], known.fix, "{}", known.id);
        }
        assert!(ALL.is_sorted_by(|a, b| a.id < b.id));
    }

    /// Each is made somewhere, or it would always be passed over.
    #[test]
    fn every_check_is_made() {
        let sources = [
            include_str!("border.rs"),
            include_str!("cluster.rs"),
            include_str!("cni.rs"),
            include_str!("conflicts.rs"),
            include_str!("controller.rs"),
            include_str!("controller/api_server.rs"),
            include_str!("controller/root.rs"),
            include_str!("denials.rs"),
            include_str!("endpoints.rs"),
            include_str!("gateways.rs"),
            include_str!("images.rs"),
            include_str!("ingresses.rs"),
            include_str!("injection.rs"),
            include_str!("issuer.rs"),
            include_str!("network.rs"),
            include_str!("policies.rs"),
            include_str!("proxies.rs"),
            include_str!("services.rs"),
            include_str!("statuses.rs"),
        ];
        for known in &ALL {
            let quoted = format!("\"{}\"", known.id);
            assert!(sources.iter().any(|s| s.contains(&quoted)), "{}", known.id);
        }
    }
}

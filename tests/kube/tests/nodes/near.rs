//! Services whose calls stay on the caller's node or in its zone, by what Kubernetes itself writes of its nodes.
//! (`calls.rs` has EndpointSlices of its own making on one node.)

use crate::Nodes;

/// `internalTrafficPolicy: Local`, with a DaemonSet as the nodes' agents have it.
pub(crate) fn own_node(nodes: &Nodes<'_>) {
    for node in 1..=2 {
        nodes.answered_by(node, "own", &[node]);
    }
    nodes.has_agent(2, false);
    nodes.hears(2, "own", "no_endpoint");
    nodes.answered_by(1, "own", &[1]);
    // Another Service of the same pods goes to the other node.
    nodes.answered_by(2, "agent", &[1]);
    nodes.has_agent(2, true);
    nodes.answered_by(2, "own", &[2]);
}

const NEAR: &str = r#"
apiVersion: v1
kind: Service
metadata: { name: near, namespace: nodes }
spec:
  selector: { app: agent }
  trafficDistribution: @WHICH@
  ports: [{ name: http, port: 80, targetPort: 8080, appProtocol: http }]
"#;

fn zone(nodes: &Nodes<'_>, node: &str, name: &str, zone: &str) {
    let label = format!("topology.kubernetes.io/{name}{zone}");
    nodes
        .0
        .kubectl(&["label", "--overwrite", "node", node, &label]);
}

/// `trafficDistribution`, with a zone for each node.
pub(crate) fn own_zone(nodes: &Nodes<'_>) {
    for (node, own) in [("node1", "=a"), ("node2", "=b")] {
        zone(nodes, node, "region", "=r");
        zone(nodes, node, "zone", own);
    }
    for which in ["PreferClose", "PreferSameZone", "PreferSameNode"] {
        nodes.0.apply(&NEAR.replace("@WHICH@", which));
        for node in 1..=2 {
            nodes.answered_by(node, "near", &[node]);
        }
        // Whoever has nobody in its zone calls the other one, until there is somebody again.
        nodes.has_agent(2, false);
        nodes.answered_by(2, "near", &[1]);
        nodes.has_agent(2, true);
        nodes.answered_by(2, "near", &[2]);
    }
    for node in ["node1", "node2"] {
        zone(nodes, node, "region", "-");
        zone(nodes, node, "zone", "-");
    }
}

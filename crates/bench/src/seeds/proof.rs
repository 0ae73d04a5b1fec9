//! Proves, from the sidecars' counters, that every answered request went over mutual TLS between the right
//! identities.

use super::Path;
use super::mesh::Status;
use std::collections::BTreeMap;

/// The trust domain in the manifests.
const TRUST_DOMAIN: &str = "tulle.local";

/// Evidence for `answered` requests between two states of the mesh, or what is wrong.
pub(super) fn prove(
    path: Path,
    before: &Status,
    after: &Status,
    answered: u64,
) -> Result<Vec<String>, String> {
    let counted = difference(before, after);
    for ((source, destination, security), (requests, denied)) in &counted {
        if *requests > 0 && security != "mutual_tls" {
            return Err(format!(
                "{requests} requests went from {source:?} to {destination} as {security}, not by mutual TLS"
            ));
        }
        if *denied > 0 {
            return Err(format!("{denied} requests to {destination} were denied"));
        }
    }
    let mut evidence = Vec::new();
    for (source, destination) in path.hops() {
        let [source, destination] = [spiffe(source), spiffe(destination)];
        let key = (source.clone(), destination.clone(), "mutual_tls".to_owned());
        let requests = counted.get(&key).map_or(0, |counts| counts.0);
        if requests < answered {
            return Err(format!(
                "{answered} requests were answered, but the sidecars know only {requests} of them as mutual TLS from {source} to {destination}"
            ));
        }
        evidence.push(format!(
            "mutual_tls {source} -> {destination}: {requests} requests, {answered} answered to the client"
        ));
    }
    Ok(evidence)
}

fn spiffe(service: &str) -> String {
    format!("spiffe://{TRUST_DOMAIN}/svc/{service}")
}

type Key = (String, String, String);

/// Requests and denied ones by source, destination and security.
fn difference(before: &Status, after: &Status) -> BTreeMap<Key, (u64, u64)> {
    let mut sums: BTreeMap<Key, (u64, u64)> = BTreeMap::new();
    let mut earlier = BTreeMap::new();
    for (status, sums) in [(before, &mut earlier), (after, &mut sums)] {
        for edge in &status.edges {
            let key = (
                edge.source.clone(),
                edge.destination.clone(),
                edge.security.clone(),
            );
            let sum: &mut (u64, u64) = sums.entry(key).or_default();
            sum.0 += edge.requests;
            sum.1 += edge.denied;
        }
    }
    for (key, sum) in &mut sums {
        let earlier = earlier.get(key).copied().unwrap_or_default();
        // A sidecar that was started again counts from 0: then too few are known, and it is said.
        *sum = (
            sum.0.saturating_sub(earlier.0),
            sum.1.saturating_sub(earlier.1),
        );
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeds::mesh::Edge;

    fn edge(source: &str, destination: &str, security: &str, requests: u64) -> Edge {
        Edge {
            source: spiffe(source),
            destination: spiffe(destination),
            security: security.into(),
            requests,
            denied: 0,
        }
    }

    fn status(edges: Vec<Edge>) -> Status {
        Status {
            edges,
            ..Status::default()
        }
    }

    fn tls(source: &str, destination: &str, requests: u64) -> Edge {
        edge(source, destination, "mutual_tls", requests)
    }

    #[test]
    fn each_hop_must_have_carried_every_answered_request() {
        let before = status(vec![
            tls("ingress", "gateway", 5),
            tls("gateway", "ratings", 5),
        ]);
        let after = |to_ratings| {
            status(vec![
                tls("ingress", "gateway", 105),
                tls("gateway", "ratings", to_ratings),
            ])
        };
        let evidence = prove(Path::GatewayRatings, &before, &after(105), 100).unwrap();
        assert_eq!(evidence.len(), 2);
        assert!(evidence[0].contains("svc/ingress -> spiffe://tulle.local/svc/gateway: 100"));
        let why = prove(Path::GatewayRatings, &before, &after(104), 100).unwrap_err();
        assert!(why.contains("only 99"), "{why}");
    }

    #[test]
    fn the_wrong_identity_or_another_path_proves_nothing() {
        let after = status(vec![tls("stranger", "ratings", 100)]);
        assert!(prove(Path::Ratings, &Status::default(), &after, 1).is_err());
        let after = status(vec![tls("ingress", "ratings", 100)]);
        assert!(prove(Path::Ratings, &Status::default(), &after, 100).is_ok());
        assert!(prove(Path::GatewayRatings, &Status::default(), &after, 1).is_err());
    }

    #[test]
    fn plaintext_and_denial_spoil_it() {
        let mut edges = vec![
            tls("ingress", "ratings", 100),
            edge("ingress", "ratings", "plaintext", 1),
        ];
        let why = prove(
            Path::Ratings,
            &Status::default(),
            &status(edges.clone()),
            100,
        );
        assert!(why.unwrap_err().contains("as plaintext"));
        edges[1].requests = 0;
        edges[0].denied = 2;
        let why = prove(Path::Ratings, &Status::default(), &status(edges), 100);
        assert!(why.unwrap_err().contains("2 requests"));
    }

    #[test]
    fn a_sidecar_that_forgot_proves_nothing() {
        let before = status(vec![tls("ingress", "ratings", 1000)]);
        let after = status(vec![tls("ingress", "ratings", 500)]);
        assert!(prove(Path::Ratings, &before, &after, 100).is_err());
    }
}

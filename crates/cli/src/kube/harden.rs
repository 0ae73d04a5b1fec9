//! `tulle harden`: what strictness would refuse of what was seen, and making namespaces strict.

use super::cluster::Cluster;
use super::namespace::exists;
use super::outside::Strictness;
use super::workloads::{self, NO_SIDECARS, text};
use crate::args::cluster::{Harden, Within};
use crate::failure::Result;
use crate::findings;
use crate::output::{self, line};
use crate::traffic::{Outside, Peer, seen_outside};
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeSet;
use std::process::ExitCode;
use tulle_kube::names::PROFILE;

/// A namespace, and what becomes of it.
#[derive(Debug, Serialize)]
struct Namespace {
    namespace: String,
    outcome: Outcome,
    /// Callers and destinations that strictness refuses.
    plaintext: Vec<Peer>,
    egress: Vec<Peer>,
    /// Pods whose sidecars could not be asked.
    unknown: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    /// It was strict before.
    Strict,
    /// It has become strict.
    Hardened,
    /// It would become strict, and nothing that was seen would be refused.
    Ready,
    /// Something would be refused, so it stays as it is.
    Left,
}

impl Namespace {
    fn is_affected(&self) -> bool {
        !self.plaintext.is_empty() || !self.egress.is_empty() || !self.unknown.is_empty()
    }
}

/// Shows it, and does it unless it is a dry run. A namespace that is named becomes strict, whatever is
/// refused then; of all others those where nothing is.
pub(crate) async fn harden(cluster: &Cluster, args: &Harden) -> Result<ExitCode> {
    for name in &args.names {
        exists(cluster, name).await?;
    }
    let all = cluster.list("/api/v1/namespaces").await?;
    let strictness = Strictness::from_cluster(cluster, &all).await?;
    let mut names: BTreeSet<String> = args.names.iter().cloned().collect();
    if names.is_empty() {
        let pods = workloads::meshed(cluster, &Within::default()).await?;
        names.extend(pods.into_iter().filter(|p| !p.gateway).map(|p| p.namespace));
        let joined = all
            .iter()
            .filter(|n| super::namespace::wish(n) == "enabled");
        names.extend(joined.map(|n| text(n, "/metadata/name").to_owned()));
    }
    let seen = seen_outside(cluster, &Within::default()).await?;
    let mut done = Vec::new();
    for name in names {
        let mut namespace = judge(&name, &seen, &strictness);
        let is_meant = !args.names.is_empty() || !namespace.is_affected();
        if namespace.outcome != Outcome::Strict && is_meant && !args.dry_run {
            let change = json!({ "metadata": { "labels": { PROFILE: "strict" } } });
            let path = format!("/api/v1/namespaces/{name}");
            cluster.patch(&path, &change).await?;
            namespace.outcome = Outcome::Hardened;
        }
        done.push(namespace);
    }
    if !output::structured(&done, args.format.output)? {
        show(&done, args.dry_run);
    }
    let found = done.iter().any(|n| n.outcome == Outcome::Left);
    Ok(findings::exit(found))
}

fn judge(name: &str, seen: &Outside, strictness: &Strictness) -> Namespace {
    let let_through = |peers: &[Peer]| -> Vec<Peer> {
        let own = peers
            .iter()
            .filter(|p| p.namespace == name && p.allowed > 0);
        own.cloned().collect()
    };
    let (mtls, egress) = (
        strictness.refuses_plaintext(name),
        strictness.refuses_egress(name),
    );
    let mut judged = Namespace {
        namespace: name.to_owned(),
        outcome: Outcome::Strict,
        plaintext: Vec::new(),
        egress: Vec::new(),
        unknown: Vec::new(),
    };
    if mtls && egress {
        return judged;
    }
    if !mtls {
        judged.plaintext = let_through(&seen.plaintext);
    }
    if !egress {
        judged.egress = let_through(&seen.egress);
    }
    let unknown = seen.unknown.iter();
    let own = unknown.filter(|pod| pod.split('/').next() == Some(name));
    judged.unknown = own.cloned().collect();
    judged.outcome = match judged.is_affected() {
        true => Outcome::Left,
        false => Outcome::Ready,
    };
    judged
}

fn show(done: &[Namespace], dry_run: bool) {
    if done.is_empty() {
        line(NO_SIDECARS);
    }
    for namespace in done {
        let name = &namespace.namespace;
        let said = match namespace.outcome {
            Outcome::Strict => "it is strict already".to_owned(),
            Outcome::Ready => "nothing that was seen would be refused".to_owned(),
            Outcome::Left if dry_run => "strictness would refuse".to_owned(),
            Outcome::Left => format!(
                "it stays as it is, as strictness would refuse what follows; `tulle harden {name}` does it all the same"
            ),
            Outcome::Hardened if namespace.is_affected() => format!(
                "now strict, and refuses the traffic below; `kubectl label namespace {name} {PROFILE}-` \
                 undoes this"
            ),
            Outcome::Hardened => "now strict".to_owned(),
        };
        line(&format!("{name}: {said}"));
        for peer in &namespace.plaintext {
            let (own, port) = (peer.own(), peer.port);
            let times = times(peer);
            line(&format!(
                "  plaintext: {} calls {own} port {port}{times}",
                peer.peer
            ));
        }
        for peer in &namespace.egress {
            let (own, port) = (peer.own(), peer.port);
            let times = times(peer);
            line(&format!(
                "  egress: {own} reaches {} port {port}{times}",
                peer.peer
            ));
        }
        for pod in &namespace.unknown {
            line(&format!(
                "  unknown: the sidecar of pod {pod} does not report its traffic; restart the pod if its sidecar is of an earlier version"
            ));
        }
    }
}

fn times(peer: &Peer) -> String {
    format!(", {} times, the last {}", peer.allowed, peer.ago())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(namespace: &str, allowed: u64) -> Peer {
        Peer {
            namespace: namespace.into(),
            workload: "deployment/web".into(),
            peer: "apps/deployment/client".into(),
            port: 80,
            allowed,
            refused: 1,
            last: 0,
        }
    }

    #[test]
    fn only_what_was_let_through_and_would_be_refused_is_in_the_way() {
        let seen = Outside {
            plaintext: vec![peer("shop", 2), peer("apps", 0)],
            egress: vec![peer("other", 1)],
            unknown: vec!["old/web-1".into()],
        };
        let outcome = |name: &str, strictness: &Strictness| judge(name, &seen, strictness).outcome;
        let open = Strictness::default();
        assert_eq!(outcome("shop", &open), Outcome::Left);
        assert_eq!(outcome("apps", &open), Outcome::Ready);
        assert_eq!(outcome("other", &open), Outcome::Left);
        assert_eq!(outcome("old", &open), Outcome::Left);
        let strict = Strictness {
            namespaces: ["shop".to_owned()].into(),
            ..Strictness::default()
        };
        assert_eq!(outcome("shop", &strict), Outcome::Strict);
        // The mesh itself refuses plaintext; only egress is left to judge.
        let half = Strictness {
            mtls: true,
            ..Strictness::default()
        };
        assert_eq!(outcome("shop", &half), Outcome::Ready);
        assert_eq!(outcome("other", &half), Outcome::Left);
    }
}

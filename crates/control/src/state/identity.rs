//! Join tokens and certificates: who gets which identity, and for how long.

use super::{Actor, MeshState, Refused, TRUST_DOMAIN, record_trust_domain};
use crate::ca::membership::Membership;
use crate::ca::{Authority, IssuedCertificate, VerifiedCsr};
use crate::index;
use crate::store::Space;
use crate::tokens;
use std::time::{Duration, SystemTime};
use tokio::sync::watch;
use tulle_api::v1;
use tulle_model::identity::{SpiffeId, TrustDomain};

/// Lifetime of certificates when the Mesh does not say.
const DEFAULT_LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// Shorter lifetimes are not issued: renewal could not keep up.
const MIN_LIFETIME: Duration = Duration::from_secs(10);

impl MeshState {
    /// Makes a join token for `svc/<name>` or `node/<name>`. `check_actor` asks whether the actor's certificate is in force
    /// when no revocation can be under way: it may have been revoked while this waited.
    pub(crate) fn join_token(
        &self,
        actor: &Actor,
        asked: &v1::JoinTokenRequest,
        now: SystemTime,
        check_actor: impl FnOnce() -> Result<(), Refused>,
    ) -> Result<v1::JoinToken, Refused> {
        let index = self.index();
        check_actor()?;
        let inputs = index.inputs();
        let name = asked.identity.strip_prefix("svc/");
        let name = name.or_else(|| asked.identity.strip_prefix("node/"));
        let id = format!("spiffe://{}/{}", inputs.trust_domain, asked.identity);
        let id = match name {
            Some(name) if !name.contains('/') => SpiffeId::parse(&id).ok(),
            _ => None,
        };
        let id = id.ok_or_else(|| {
            Refused::Invalid(format!(
                "{:?} is no identity to join as: use svc/<name> or node/<name>",
                asked.identity
            ))
        })?;
        if index.revoked().identities.contains(&id) {
            return Err(Refused::Conflict(format!(
                "{id} is revoked: `tulle identity allow {}` comes first",
                asked.identity
            )));
        }
        if let Actor::Node(node) = actor {
            self.check_revocations()?;
            let own = asked.identity.starts_with("svc/")
                && self.runs_identity(inputs, node, id.name())?;
            if !own {
                return Err(Refused::NotAllowed(format!(
                    "node {node} runs no workload with the identity {id}: apply the Workload from \
                     this node first"
                )));
            }
        }
        let ttl = match asked.ttl_seconds {
            0 => tokens::DEFAULT_TTL,
            seconds => Duration::from_secs(seconds.into()),
        };
        self.fix_trust_domain(&inputs.trust_domain)?;
        let by = match actor {
            Actor::Operator => "",
            Actor::Node(node) => node,
        };
        let token = tokens::create(&*self.store, &id, by, ttl, now)?;
        Ok(v1::JoinToken {
            token,
            ca_fingerprint: self.authority().fingerprint().to_owned(),
            spiffe_id: id.to_string(),
        })
    }

    fn runs_identity(
        &self,
        inputs: &index::Inputs,
        node: &str,
        identity: &str,
    ) -> Result<bool, Refused> {
        for (name, spec) in &inputs.workloads {
            if index::identity_name_of(name, spec) == identity
                && self.store.value(Space::Owners, name)?.as_deref() == Some(node.as_bytes())
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Fixes the trust domain: from the first identity on it stays the same.
    fn fix_trust_domain(&self, is: &TrustDomain) -> Result<(), Refused> {
        if self.store.value(Space::Settings, TRUST_DOMAIN)?.is_none() {
            self.store.commit(&[record_trust_domain(is)])?;
        }
        Ok(())
    }

    /// Spends a join token for the identity it stands for, and the membership of the host that joins by it
    /// or asked for it.
    pub(crate) fn spend(
        &self,
        token: &str,
        now: SystemTime,
    ) -> Result<(SpiffeId, Option<Membership>), Refused> {
        // Whoever made it may have a certificate that is revoked.
        let maker = tokens::maker(&*self.store, token)?;
        if !maker.is_empty() {
            self.check_revocations()?;
            self.check_maker(&maker)?;
        }
        let spent = tokens::spend(&*self.store, token, now)?;
        let id = spent.identity;
        let host = match id.node() {
            Some(node) => {
                self.join(node)?;
                node
            }
            None if spent.by.is_empty() => return Ok((id, None)),
            None => &spent.by,
        };
        // It may be removed at the same time.
        let membership = self.membership_of(host);
        let membership = membership.ok_or_else(|| {
            Refused::NotAllowed(format!("node {host} has been removed from the mesh"))
        })?;
        Ok((id, Some(membership)))
    }

    /// Refuses the tokens of a host whose identity is revoked. It may have made them before.
    fn check_maker(&self, host: &str) -> Result<(), Refused> {
        let id = format!("spiffe://{}/node/{host}", self.trust_domain());
        let id = SpiffeId::parse(&id).map_err(|e| Refused::Failed(e.to_string()))?;
        match self.revoked.borrow().identities.contains(&id) {
            false => Ok(()),
            true => Err(Refused::NotAllowed(format!(
                "the join token was made by {id}, which is revoked: see `tulle identity list`"
            ))),
        }
    }

    /// Whether an identity may be renewed: that of a workload, gateway or node of this mesh.
    pub(crate) fn may_renew(&self, id: &SpiffeId) -> Result<bool, Refused> {
        self.check_revocations()?;
        Ok(match id.node() {
            Some(node) => id.trust_domain() == self.trust_domain().as_str() && self.is_node(node),
            None => self.index().inputs().has_identity(id),
        })
    }

    /// Issues a certificate to an identity that was proved, and that came by this membership of a host.
    pub(crate) fn issue(
        &self,
        authority: &Authority,
        request: &VerifiedCsr,
        id: &SpiffeId,
        membership: Option<Membership>,
        now: SystemTime,
    ) -> Result<IssuedCertificate, Refused> {
        let lifetime = match id.node() {
            Some(host) => self.terms_of_host(host).lifetime_seconds,
            None => self.certificate_terms.borrow().lifetime_seconds,
        };
        let lifetime = Duration::from_secs(u64::try_from(lifetime).unwrap_or_default());
        let issued = authority.issue(request, id, membership, lifetime, now);
        let issued = issued.map_err(|error| {
            tracing::error!(%error, identity = %id, "no certificate issued");
            Refused::Failed(error.to_string())
        })?;
        if let Some(membership) = membership {
            self.note_certificate(membership, issued.not_after)?;
        }
        Ok(issued)
    }

    pub(crate) fn lifetime(&self) -> Duration {
        lifetime(self.index().inputs())
    }

    /// Returns the terms of certificates, now and later.
    pub(crate) fn certificate_terms(&self) -> watch::Receiver<v1::CertificateTerms> {
        self.certificate_terms.subscribe()
    }
}

pub(super) fn lifetime(inputs: &index::Inputs) -> Duration {
    let mesh = inputs.mesh.as_ref();
    let lifetime = mesh.and_then(|m| m.certificate_lifetime().ok());
    lifetime.map_or(DEFAULT_LIFETIME, |l| l.max(MIN_LIFETIME))
}

/// Returns the terms of certificates that these objects name.
pub(super) fn certificate_terms(inputs: &index::Inputs) -> v1::CertificateTerms {
    let seconds = |d: Duration| i64::try_from(d.as_secs()).unwrap_or(i64::MAX);
    let mesh = inputs.mesh.as_ref();
    let renew_after = mesh.and_then(|m| m.certificate_renew_after().ok().flatten());
    v1::CertificateTerms {
        lifetime_seconds: seconds(lifetime(inputs)),
        renew_after_seconds: renew_after.map_or(0, seconds),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{apply, id, join, load, token, workload};
    use super::*;
    use crate::store::Memory;
    use std::sync::Arc;

    #[test]
    fn no_token_of_a_host_whose_identity_is_revoked_is_spent() {
        let state = load(&Arc::new(Memory::new()));
        join(&state, "n");
        let host = Actor::Node("n".to_owned());
        apply(&state, &host, &workload("n", "b"));
        let of_host = token(&state, &host, "svc/b");
        let of_operator = token(&state, &Actor::Operator, "svc/b");
        let revocation = || v1::Revocation {
            identity: id("node/n").to_string(),
            ..Default::default()
        };
        let now = SystemTime::now();
        state.revoke(revocation(), now).unwrap();
        let refused = state.spend(&of_host, now).map(drop).unwrap_err();
        assert!(matches!(refused, Refused::NotAllowed(_)), "{refused:?}");
        let why = refused.to_string();
        assert!(why.contains("/node/n, which is revoked"), "{why}");
        state.spend(&of_operator, now).unwrap();
        // The refusal has not spent it.
        state.allow(revocation()).unwrap();
        state.spend(&of_host, now).unwrap();
    }
}

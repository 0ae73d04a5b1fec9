//! The authorities that hosts have over their own workloads' identities: who has which, and from which
//! generation on they count.
//!
//! A certificate cannot be taken back from a host that is cut off, so all sidecars are told what they
//! refuse. One number for each host suffices: each authority of a host has a greater one than those
//! before, and as soon as a host may no longer have an identity that one of them lists, all up to now are
//! over.

use super::{MeshState, Refused, identity};
use crate::ca::membership::Membership;
use crate::ca::{Authority, IssuedCertificate, VerifiedCsr};
use crate::index::{Edit, Index, Inputs, identity_name_of};
use crate::store::{Space, Store, StoreError, Write};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tulle_api::v1;
use tulle_model::identity::SpiffeId;
use tulle_model::resource::Serial;
use tulle_tls::host_authority::{HostConstraint, MAX_IDENTITIES};

/// Certificates remembered of each host.
const MAX_ISSUED: usize = 64;
/// Seconds for which what has ended is still refused: clocks differ.
pub(super) const CLOCKS: i64 = 24 * 3600;

/// A host's authorities.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Given {
    /// The number of the last one.
    generation: u64,
    /// The lowest number that counts; above `generation`: none does.
    least: u64,
    /// All identities that those which count list.
    identities: BTreeSet<SpiffeId>,
    /// The list of the last one.
    last: BTreeSet<SpiffeId>,
    /// When all have ended, in Unix seconds.
    not_after: i64,
    /// The last certificates that the host says it has signed.
    #[serde(default)]
    issued: Vec<Issued>,
}

/// A certificate that a host has signed while it was cut off, as it says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Issued {
    serial: Serial,
    identity: SpiffeId,
    not_after: i64,
}

pub(super) type All = BTreeMap<String, Given>;

/// Workloads, and the host that each belongs to.
type Owners = Vec<(String, Vec<u8>)>;

/// Reads what is stored. An unreadable entry stops the controller: what it refuses must not be accepted
/// again unseen.
pub(super) fn all(store: &dyn Store) -> Result<All, StoreError> {
    let values = store.values(Space::HostAuthorities)?.into_iter();
    values
        .map(|(host, value)| match serde_json::from_slice(&value) {
            Ok(given) => Ok((host, given)),
            Err(e) => Err(StoreError::Failed {
                doing: "reading the authorities of hosts",
                reason: format!("{host}: {e}"),
            }),
        })
        .collect()
}

pub(super) fn unix(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

fn put(host: &str, given: &Given) -> Result<Write, String> {
    Ok(Write::PutValue {
        space: Space::HostAuthorities,
        key: host.to_owned(),
        value: serde_json::to_vec(given).map_err(|e| e.to_string())?,
    })
}

/// The identities of the workloads that belong to a host.
fn owned(inputs: &Inputs, owners: &Owners, host: &str) -> BTreeSet<SpiffeId> {
    let own = owners.iter().filter(|(_, owner)| owner == host.as_bytes());
    let ids = own.filter_map(|(workload, _)| {
        let spec = inputs.workloads.get(workload)?;
        let name = identity_name_of(workload, spec);
        inputs.trust_domain.service(name).ok()
    });
    ids.collect()
}

impl MeshState {
    /// How long an authority of this host is to be valid, if it is to have one at all.
    fn authority_lifetime(&self, inputs: &Inputs, host: &str) -> Option<Duration> {
        if self.accounts.is_some() || self.issuer.is_some() || !self.is_node(host) {
            return None;
        }
        let mesh = inputs.mesh.as_ref()?;
        let lifetime = mesh.host_authority_lifetime(host).ok()??;
        // The controller issues nothing shorter to workloads.
        Some(lifetime.max(identity::lifetime(inputs)))
    }

    /// The identities of a host's own workloads, as far as it may certify them.
    fn own_identities(
        &self,
        inputs: &Inputs,
        host: &str,
    ) -> Result<BTreeSet<SpiffeId>, StoreError> {
        match self.authority_lifetime(inputs, host) {
            None => Ok(BTreeSet::new()),
            Some(_) => Ok(owned(inputs, &self.store.values(Space::Owners)?, host)),
        }
    }

    /// The terms of a host's own certificate. With an authority it is valid as long as that, so that the
    /// host can come back for as long as it may stay away; it is renewed as often as others.
    pub(crate) fn terms_of_host(&self, host: &str) -> v1::CertificateTerms {
        let index = self.index();
        let terms = identity::certificate_terms(index.inputs());
        match self.authority_lifetime(index.inputs(), host) {
            None => terms,
            Some(lifetime) => v1::CertificateTerms {
                lifetime_seconds: i64::try_from(lifetime.as_secs()).unwrap_or(i64::MAX),
                renew_after_seconds: match terms.renew_after_seconds {
                    0 => (terms.lifetime_seconds / 3 * 2).max(1),
                    named => named,
                },
            },
        }
    }

    /// Whether a host that has an authority of this generation (0: none) is to ask for another, or to give
    /// it up.
    pub(crate) fn authority_is_due(&self, host: &str, generation: u64) -> Result<bool, Refused> {
        let index = self.index();
        let own = self.own_identities(index.inputs(), host)?;
        if own.is_empty() || has_too_many(host, &own) {
            return Ok(generation != 0);
        }
        let authorities = self.authorities.lock();
        let authorities = authorities.unwrap_or_else(PoisonError::into_inner);
        Ok(authorities.get(host).is_none_or(|given| {
            given.last != own || generation != given.generation || generation < given.least
        }))
    }

    /// Signs an authority for a host over the identities of its workloads; none: it is to have none. The host comes
    /// by this membership.
    pub(crate) fn issue_authority(
        &self,
        authority: &Authority,
        request: &VerifiedCsr,
        host: &SpiffeId,
        membership: Option<Membership>,
        now: SystemTime,
    ) -> Result<Option<IssuedCertificate>, Refused> {
        let Some(name) = host.node() else {
            return Ok(None);
        };
        let mut index = self.index();
        // Another host may have joined under its name while this waited, and the workloads are that one's.
        if self.membership_of(name) != membership {
            return Err(Refused::NotAllowed(format!(
                "node {name} has been removed from the mesh"
            )));
        }
        let own = self.own_identities(index.inputs(), name)?;
        let lifetime = self.authority_lifetime(index.inputs(), name);
        let Some(lifetime) = lifetime.filter(|_| !own.is_empty()) else {
            return Ok(None);
        };
        if has_too_many(name, &own) {
            return Ok(None);
        }
        let known = {
            let authorities = self.authorities.lock();
            let authorities = authorities.unwrap_or_else(PoisonError::into_inner);
            authorities.get(name).cloned()
        };
        let generation = known.as_ref().map_or(1, |g| g.generation + 1);
        let constraint = HostConstraint {
            host: host.clone(),
            generation,
            identities: own.iter().cloned().collect(),
        };
        let failed = |why: String| {
            tracing::error!(error = why, %host, "no authority for the host");
            Refused::Failed(why)
        };
        let issued = authority.issue_host(request, &constraint, lifetime, now);
        let issued = issued.map_err(|e| failed(e.to_string()))?;
        let live = known
            .as_ref()
            .filter(|g| g.least <= g.generation && unix(now) < g.not_after);
        let given = Given {
            generation,
            least: known.as_ref().map_or(1, |g| g.least),
            identities: match live {
                Some(live) => live.identities.union(&own).cloned().collect(),
                None => own.clone(),
            },
            last: own,
            not_after: unix(issued.not_after).max(known.as_ref().map_or(0, |g| g.not_after)),
            issued: known.map_or_else(Vec::new, |g| g.issued),
        };
        // It is written down before anybody has it.
        self.store.commit(&[put(name, &given).map_err(failed)?])?;
        {
            let authorities = self.authorities.lock();
            let mut authorities = authorities.unwrap_or_else(PoisonError::into_inner);
            authorities.insert(name.to_owned(), given);
        }
        self.change(&mut index, [], false);
        tracing::info!(%host, generation, "the host has an authority over its workloads");
        Ok(Some(issued))
    }

    /// Notes what a host says that its authority has signed. It is shown, and nothing rests on it.
    pub(crate) fn note_issued(&self, host: &str, told: &[v1::IssuedByHost]) {
        let read = |told: &v1::IssuedByHost| {
            Some(Issued {
                serial: Serial::parse(&told.serial).ok()?,
                identity: SpiffeId::parse(&told.spiffe_id).ok()?,
                not_after: told.not_after_unix_seconds,
            })
        };
        let news: Vec<_> = told.iter().take(MAX_ISSUED).filter_map(read).collect();
        if news.is_empty() {
            return;
        }
        // One writer: this writes all that is known of the host, and an authority that is given meanwhile would be
        // missing in the store. The next start of the controller could not end it.
        let _index = self.index();
        let authorities = self.authorities.lock();
        let mut authorities = authorities.unwrap_or_else(PoisonError::into_inner);
        let Some(given) = authorities.get_mut(host) else {
            return;
        };
        for issued in news {
            let Issued {
                serial, identity, ..
            } = &issued;
            if given.issued.iter().any(|known| known.serial == *serial) {
                continue;
            }
            let serial = serial.as_str();
            tracing::info!(host, %identity, serial, "the host certified a workload while it was cut off");
            given.issued.push(issued);
        }
        let old = given.issued.len().saturating_sub(MAX_ISSUED);
        given.issued.drain(..old);
        let stored = put(host, given).map(|write| self.store.commit(&[write]));
        if let Ok(Err(error)) = stored {
            tracing::warn!(host, %error, "cannot store what the host has signed");
        }
    }

    /// Describes a host's authority for operators; none: it has none.
    pub(super) fn authority_shown(&self, host: &str) -> Option<serde_json::Value> {
        let authorities = self.authorities.lock();
        let authorities = authorities.unwrap_or_else(PoisonError::into_inner);
        let given = authorities.get(host)?;
        Some(serde_json::json!({
            "generation": given.generation,
            "counts": given.least <= given.generation,
            "identities": given.last,
            "notAfterUnixSeconds": given.not_after,
            "issued": given.issued,
        }))
    }

    /// Ends the authorities that list an identity which their host may no longer have, and forgets those
    /// that have ended by themselves. Returns what sidecars are to refuse, if that is news.
    pub(super) fn limit_authorities(&self, index: &Index, now: SystemTime) -> Option<Edit> {
        let inputs = index.inputs();
        let authorities = self.authorities.lock();
        let mut authorities = authorities.unwrap_or_else(PoisonError::into_inner);
        let mut writes = Vec::new();
        // When the store cannot say whose a workload is, nothing is known to be a host's.
        let owners = match authorities.is_empty() {
            true => Owners::new(),
            false => self.store.values(Space::Owners).unwrap_or_default(),
        };
        authorities.retain(|host, given| {
            if given.not_after + CLOCKS <= unix(now) {
                writes.push(Write::DeleteValue {
                    space: Space::HostAuthorities,
                    key: host.clone(),
                });
                return false;
            }
            if given.least > given.generation {
                return true;
            }
            let own = match self.authority_lifetime(inputs, host) {
                None => BTreeSet::new(),
                Some(_) => owned(inputs, &owners, host),
            };
            if !given.identities.is_subset(&own) {
                given.least = given.generation + 1;
                given.identities.clear();
                tracing::warn!(
                    host,
                    generation = given.generation,
                    "what the host's authority has signed is refused from now on: it lists an identity \
                     that the host may no longer have"
                );
                writes.extend(put(host, given).ok());
            }
            true
        });
        if !writes.is_empty()
            && let Err(error) = self.store.commit(&writes)
        {
            // The next start of the controller finds the same.
            tracing::error!(%error, "cannot store which authorities of hosts are over");
        }
        let ended = authorities.iter().filter(|(_, given)| given.least > 1);
        let ended = ended.filter_map(|(host, given)| {
            let id = format!("spiffe://{}/node/{host}", inputs.trust_domain);
            Some((SpiffeId::parse(&id).ok()?, given.least))
        });
        let ended: BTreeMap<_, _> = ended.collect();
        (ended != inputs.revoked_hosts).then(|| Edit::RevokedHosts(ended))
    }
}

/// Whether a host has more identities than an authority may have. Logs it: such a host has none when it is cut off.
fn has_too_many(host: &str, own: &BTreeSet<SpiffeId>) -> bool {
    let identities = own.len();
    let many = identities > MAX_IDENTITIES;
    if many {
        tracing::warn!(
            host,
            identities,
            "the host gets no authority: it has more than {MAX_IDENTITIES} identities"
        );
    }
    many
}

#[cfg(test)]
mod tests;

//! Certificates that an operator refuses by command. A revocation takes effect before the command
//! has its answer: it is committed, and on its way to every proxy.

use super::{MeshState, Refused};
use crate::index::Edit;
use crate::store::{Space, Store, StoreError, Write};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};
use tulle_api::v1;
use tulle_model::identity::SpiffeId;
use tulle_model::manifest::RevocationSpec;
use tulle_model::resource::{Revoked, Serial};

/// Most that may be revoked by command; a list counts once. All of it goes to every proxy.
const MAX_REVOKED: usize = 1_000;

/// A revocation, as it is stored.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct StoredRevocation {
    what: RevocationSpec,
    since: i64,
}

/// All stored revocations, by key.
type All = BTreeMap<String, StoredRevocation>;

/// Reads all stored revocations. An unreadable one stops the controller: its certificates must not
/// be allowed again unseen.
pub(super) fn all(store: &dyn Store) -> Result<All, StoreError> {
    let values = store.values(Space::Revoked)?.into_iter();
    values
        .map(|(key, value)| match serde_json::from_slice(&value) {
            Ok(kept) => Ok((key, kept)),
            Err(e) => Err(StoreError::Failed {
                doing: "reading revocations",
                reason: format!("{key}: {e}"),
            }),
        })
        .collect()
}

pub(super) fn edit(all: &All) -> Edit {
    let mut revoked = Revoked::default();
    let read = all.values().filter_map(|kept| kept.what.read().ok());
    read.for_each(|more| revoked.extend(more));
    Edit::Revoked(Box::new(revoked))
}

impl MeshState {
    /// Refuses certificates from now on.
    pub(crate) fn revoke(
        &self,
        asked: v1::Revocation,
        now: SystemTime,
    ) -> Result<v1::Revocation, Refused> {
        let mut index = self.index();
        let (what, revoked) = self.asked(asked)?;
        let key = key(&revoked)?;
        let mut all = all(&*self.store)?;
        if !all.contains_key(&key) && all.len() >= MAX_REVOKED {
            return Err(Refused::TooMany(format!(
                "{MAX_REVOKED} identities, certificates and lists are revoked already: allow those \
                 that no longer matter, such as expired certificates"
            )));
        }
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let since = i64::try_from(since).unwrap_or(i64::MAX);
        let since = all.get(&key).map_or(since, |known| known.since);
        let unknown = |id: &SpiffeId| !index.inputs().has_identity(id) && id.node().is_none();
        let answer = v1::Revocation {
            since_unix_seconds: since,
            unknown: revoked.identities.iter().any(unknown),
            ..v1::Revocation::from_spec(&what, &revoked)
        };
        let kept = StoredRevocation { what, since };
        let value = serde_json::to_vec(&kept).map_err(|e| Refused::Failed(e.to_string()))?;
        self.store.commit(&[Write::PutValue {
            space: Space::Revoked,
            key: key.clone(),
            value,
        }])?;
        tracing::warn!(what = key, reason = kept.what.reason, "revoked");
        all.insert(key, kept);
        self.remember(&index, &[edit(&all)], "");
        self.change(&mut index, [edit(&all)], false);
        Ok(answer)
    }

    /// Refuses them no longer.
    pub(crate) fn allow(&self, asked: v1::Revocation) -> Result<v1::Revocation, Refused> {
        let mut index = self.index();
        let asked = match asked.issuer.is_empty() {
            true => key(&self.asked(asked)?.1)?,
            false => of_issuer(&asked.issuer.to_ascii_lowercase()),
        };
        let mut all = all(&*self.store)?;
        let of_mesh = index.inputs().mesh.iter().flat_map(|mesh| &mesh.revoked);
        let mut of_mesh = of_mesh.filter_map(|what| key(&what.read().ok()?).ok());
        let of_mesh = of_mesh.any(|key| key == asked);
        let Some(was) = all.remove(&asked) else {
            return Err(match of_mesh {
                true => Refused::Conflict(format!(
                    "the Mesh object revokes {asked}: remove it from its `spec.revoked`"
                )),
                false => Refused::NotFound(format!("{asked} is not revoked")),
            });
        };
        self.store.commit(&[Write::DeleteValue {
            space: Space::Revoked,
            key: asked.clone(),
        }])?;
        self.remember(&index, &[edit(&all)], "");
        self.change(&mut index, [edit(&all)], false);
        tracing::warn!(what = asked, "no longer revoked by command");
        Ok(v1::Revocation {
            of_mesh,
            ..shown(&was)
        })
    }

    /// Lists all revocations, and by whom they were made.
    pub(crate) fn list_revoked(&self) -> Result<Vec<v1::Revocation>, Refused> {
        let index = self.index();
        let mesh = index.inputs().mesh.iter().flat_map(|mesh| &mesh.revoked);
        let of_mesh = mesh.map(|what| v1::Revocation {
            of_mesh: true,
            ..v1::Revocation::from_spec(what, &what.read().unwrap_or_default())
        });
        let all = all(&*self.store)?;
        Ok(of_mesh.chain(all.values().map(shown)).collect())
    }

    /// Reads what an operator asks for.
    fn asked(&self, asked: v1::Revocation) -> Result<(RevocationSpec, Revoked), Refused> {
        let read = asked.asked().in_trust_domain(&self.trust_domain());
        read.map_err(|(field, problem)| Refused::Invalid(format!("{field}: {problem}")))
    }
}

/// Names what is revoked in the store.
fn key(revoked: &Revoked) -> Result<String, Refused> {
    let identity = revoked.identities.first().map(SpiffeId::to_string);
    let serial = revoked.serials.first().map(Serial::as_str);
    let issuer = revoked.issued.keys().next();
    identity
        .or_else(|| serial.map(|serial| format!("serial/{serial}")))
        .or_else(|| issuer.map(|issuer| of_issuer(issuer)))
        .ok_or_else(|| Refused::Invalid("nothing is named".to_owned()))
}

fn of_issuer(issuer: &str) -> String {
    format!("issuer/{issuer}")
}

fn shown(kept: &StoredRevocation) -> v1::Revocation {
    v1::Revocation {
        since_unix_seconds: kept.since,
        ..v1::Revocation::from_spec(&kept.what, &kept.what.read().unwrap_or_default())
    }
}

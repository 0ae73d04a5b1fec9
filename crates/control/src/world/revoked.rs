//! Certificates that an operator refuses by command. What is revoked takes effect before the command
//! has its answer: it is committed, and on its way to every proxy.

use super::{Refused, World};
use crate::index::Edit;
use crate::store::{Space, Store, StoreError, Write};
use serde::{Deserialize, Serialize};
use std::time::{SystemTime, UNIX_EPOCH};
use tulle_api::v1;
use tulle_model::identity::SpiffeId;
use tulle_model::manifest::RevocationSpec;
use tulle_model::resource::{Revoked, Serial};

/// Most that may be revoked by command; a list counts once. All of it goes to every proxy.
const MAX_REVOKED: usize = 1_000;

/// One thing, as it is kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Kept {
    what: RevocationSpec,
    since: i64,
}

/// Everything that is kept. What cannot be read stops the controller: it must not be allowed again
/// unseen.
pub(super) fn all(store: &dyn Store) -> Result<Vec<Kept>, StoreError> {
    let values = store.values(Space::Revoked)?.into_iter();
    values
        .map(|(key, value)| {
            serde_json::from_slice(&value).map_err(|e| StoreError::Failed {
                doing: "reading what is revoked",
                reason: format!("{key}: {e}"),
            })
        })
        .collect()
}

pub(super) fn edit(all: &[Kept]) -> Edit {
    let mut revoked = Revoked::default();
    let read = all.iter().filter_map(|kept| kept.what.read().ok());
    read.for_each(|more| revoked.extend(more));
    Edit::Revoked(Box::new(revoked))
}

/// What is asked for, and its key in the store.
struct Asked {
    what: RevocationSpec,
    revoked: Revoked,
    key: String,
}

impl World {
    /// Refuses certificates from now on.
    pub(crate) fn revoke(
        &self,
        asked: v1::Revocation,
        now: SystemTime,
    ) -> Result<v1::Revocation, Refused> {
        let mut index = self.index();
        let asked = self.asked(asked)?;
        let mut all = all(&*self.store)?;
        let known = all
            .iter()
            .find(|k| key(&k.what).as_ref() == Some(&asked.key));
        if known.is_none() && all.len() >= MAX_REVOKED {
            return Err(Refused::TooMany(format!(
                "{MAX_REVOKED} identities, certificates and lists are revoked already: allow what \
                 is over, such as certificates that have expired"
            )));
        }
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let since = i64::try_from(since).unwrap_or(i64::MAX);
        let kept = Kept {
            since: known.map_or(since, |known| known.since),
            what: asked.what,
        };
        let value = serde_json::to_vec(&kept).map_err(|e| Refused::Failed(e.to_string()))?;
        self.store.commit(&[Write::PutValue {
            space: Space::Revoked,
            key: asked.key.clone(),
            value,
        }])?;
        all.retain(|k| key(&k.what).as_ref() != Some(&asked.key));
        all.push(kept.clone());
        self.change(&mut index, [edit(&all)], false);
        tracing::warn!(what = asked.key, reason = kept.what.reason, "revoked");
        let unknown = |id| !index.inputs().has_identity(id) && id.node().is_none();
        let unknown = asked.revoked.identities.iter().any(unknown);
        Ok(v1::Revocation {
            unknown,
            ..shown(&kept.what, kept.since)
        })
    }

    /// Refuses them no longer.
    pub(crate) fn allow(&self, asked: v1::Revocation) -> Result<v1::Revocation, Refused> {
        let mut index = self.index();
        let key_asked = match asked.issuer.is_empty() {
            true => self.asked(asked)?.key,
            false => format!("issuer/{}", asked.issuer.to_ascii_lowercase()),
        };
        let mut all = all(&*self.store)?;
        let of_mesh = index.inputs().mesh.iter().flat_map(|mesh| &mesh.revoked);
        let of_mesh = of_mesh.filter_map(key).any(|key| key == key_asked);
        let position = all
            .iter()
            .position(|kept| key(&kept.what).as_ref() == Some(&key_asked));
        let Some(position) = position else {
            return Err(match of_mesh {
                true => Refused::Conflict(format!(
                    "the Mesh object revokes {key_asked}: remove it from its `spec.revoked`"
                )),
                false => Refused::NotFound(format!("{key_asked} is not revoked")),
            });
        };
        self.store.commit(&[Write::DeleteValue {
            space: Space::Revoked,
            key: key_asked.clone(),
        }])?;
        let was = all.remove(position);
        self.change(&mut index, [edit(&all)], false);
        tracing::warn!(what = key_asked, "no longer revoked by command");
        Ok(v1::Revocation {
            of_mesh,
            ..shown(&was.what, was.since)
        })
    }

    /// All that is revoked, and by whom.
    pub(crate) fn list_revoked(&self) -> Result<Vec<v1::Revocation>, Refused> {
        let index = self.index();
        let mesh = index.inputs().mesh.iter().flat_map(|mesh| &mesh.revoked);
        let of_mesh = mesh.map(|what| v1::Revocation {
            of_mesh: true,
            ..shown(what, 0)
        });
        let kept = all(&*self.store)?.into_iter();
        let kept = kept.map(|kept| shown(&kept.what, kept.since));
        Ok(of_mesh.chain(kept).collect())
    }

    /// Reads what an operator asks for. An identity may be given by its path alone.
    fn asked(&self, asked: v1::Revocation) -> Result<Asked, Refused> {
        let mut what = RevocationSpec {
            identity: asked.identity,
            serial: asked.serial,
            crl: asked.crl,
            reason: asked.reason,
        };
        if !what.identity.is_empty() && !what.identity.contains("://") {
            if !what.identity.contains('/') {
                return Err(Refused::Invalid(format!(
                    "{:?} is no identity: use svc/NAME, or the whole SPIFFE id",
                    what.identity
                )));
            }
            what.identity = format!("spiffe://{}/{}", self.trust_domain(), what.identity);
        }
        let revoked = what
            .read()
            .map_err(|(field, problem)| Refused::Invalid(format!("{field}: {problem}")))?;
        let controller = format!("spiffe://{}/controller", self.trust_domain());
        if what.identity == controller {
            return Err(Refused::Invalid(
                "the controller's certificates are not revoked: replace the root with \
                 `tulle ca rotate`"
                    .to_owned(),
            ));
        }
        let key = key_of(&revoked);
        let key = key.ok_or_else(|| Refused::Invalid("nothing is named".to_owned()))?;
        Ok(Asked { what, revoked, key })
    }
}

/// What a thing that is revoked is called in the store.
fn key(what: &RevocationSpec) -> Option<String> {
    key_of(&what.read().ok()?)
}

fn key_of(revoked: &Revoked) -> Option<String> {
    let identity = revoked.identities.first().map(SpiffeId::to_string);
    let serial = revoked.serials.first().map(Serial::as_str);
    let issuer = revoked.issued.keys().next();
    identity
        .or_else(|| serial.map(|serial| format!("serial/{serial}")))
        .or_else(|| issuer.map(|issuer| format!("issuer/{issuer}")))
}

fn shown(what: &RevocationSpec, since: i64) -> v1::Revocation {
    let read = what.read().unwrap_or_default();
    let list = read.issued.into_iter().next();
    let (issuer, listed) = list.map_or_else(Default::default, |(i, serials)| (i, serials.len()));
    v1::Revocation {
        identity: what.identity.clone(),
        serial: what.serial.clone(),
        reason: what.reason.clone(),
        issuer,
        listed: u32::try_from(listed).unwrap_or(u32::MAX),
        since_unix_seconds: since,
        ..Default::default()
    }
}

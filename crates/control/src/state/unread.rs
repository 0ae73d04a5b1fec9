//! Stored objects that this version cannot read, as another version's may be. They are kept, and the mesh does not stand
//! still for them.
//!
//! One that would have restricted who may call leaves nothing open: something denies everybody in its place until it is
//! applied again or deleted. What the Mesh revokes stays revoked: a Mesh that says nothing else takes its place.

use super::{MeshState, Refused};
use crate::index::{Edit, ObjectProblem};
use crate::objects;
use crate::store::{StoredObject, Write};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tulle_api::v1;
use tulle_model::identity::TrustDomain;
use tulle_model::manifest::{
    self, AuthorizationPolicySpec, AuthorizationRule, Manifest, MeshSpec, Metadata, Object,
    RevocationSpec, TargetRef,
};

/// The kind of what denies in the place of an object.
const POLICY: &str = "AuthorizationPolicy";
const MESH: &str = "Mesh";
/// The apiVersion of both.
const TULLE: &str = "tulle.dev/v1alpha1";

/// Kind and name of an object.
type Key = (String, String);
type All = BTreeMap<Key, UnreadObject>;

#[derive(Default)]
pub(super) struct Unread(Mutex<All>);

struct UnreadObject {
    problem: ObjectProblem,
    /// The name of the AuthorizationPolicy that denies in its place.
    denied_by: Option<String>,
    /// As much as can be read of what a Mesh revokes.
    revoked: Vec<RevocationSpec>,
}

impl MeshState {
    /// Returns the problem of each stored object that cannot be read. It is about each object that the index has in its
    /// place, or else about none.
    pub(crate) fn unread(&self) -> Vec<ObjectProblem> {
        let all = self.unread.all();
        let problems = all.iter().flat_map(|((kind, _), unread)| {
            let policy = unread.denied_by.iter();
            let policy = policy.map(|name| format!("{POLICY}/{name}"));
            // The index has one Mesh, and calls it so.
            let mesh = (kind == MESH).then(|| "Mesh/mesh".to_owned());
            let mut places: Vec<String> = policy.chain(mesh).collect();
            if places.is_empty() {
                places.push(String::new());
            }
            places.into_iter().map(move |object| ObjectProblem {
                object,
                text: unread.problem.to_string(),
            })
        });
        problems.collect()
    }

    /// Refuses certificates on the strength of others while it is unknown which are revoked: the new ones would outlast
    /// the revocation.
    pub(super) fn check_revocations(&self) -> Result<(), Refused> {
        let all = self.unread.all();
        let mut meshes = all.iter().filter(|((kind, _), _)| kind == MESH);
        match meshes.any(|(_, mesh)| mesh.denied_by.is_some()) {
            false => Ok(()),
            true => Err(Refused::Failed(
                "no certificate is renewed, nor given for a join token that a host has made: which ones the Mesh revokes \
                 cannot be read, see `tulle status`"
                    .to_owned(),
            )),
        }
    }

    /// Adds to an answer what cannot be read and what to do, if a policy that denies in its place decides, or is among those
    /// that were considered and denies: at a gateway with several listeners it may close only some.
    pub(super) fn with_unread(&self, mut answer: v1::Explanation) -> v1::Explanation {
        let mut about_policies = self.unread().into_iter();
        let rows = answer.considered.iter().filter(|row| {
            row.outcome.contains("denies") && !row.outcome.contains("does not match")
        });
        let rows = rows.map(|row| format!("{}/{}", row.kind, row.name));
        let denying: BTreeSet<String> = rows.chain([answer.policy.clone()]).collect();
        // The problem of an object that has no effect is about none, and an answer names no policy where none decides.
        let denies = |problem: &ObjectProblem| {
            !problem.object.is_empty() && denying.contains(&problem.object)
        };
        if let Some(problem) = about_policies.find(denies) {
            answer.reason.push_str(&format!("; {}", problem.text));
        }
        answer
    }
}

impl Unread {
    fn all(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes an object that cannot be read. Returns what takes its place: a policy that denies, if it restricted who may
    /// call, and a Mesh that revokes what it revoked.
    pub(super) fn note(
        &self,
        stored: &StoredObject,
        why: &str,
        trust_domain: &TrustDomain,
    ) -> Vec<Edit> {
        let (kind, name) = (&stored.kind, &stored.name);
        let object: Value = serde_json::from_str(&stored.json).unwrap_or_default();
        let spec = &object["spec"];
        let is_mesh = kind == MESH;
        let (revoked, policy) = match is_mesh {
            true => {
                let is_known = object["apiVersion"] == TULLE;
                let (revoked, is_all) = objects::revocations_in_place(spec, is_known);
                let denies = || denying(objects::name_in_place(kind, name), Vec::new());
                (revoked, (!is_all).then(denies))
            }
            false => (Vec::new(), in_place_of(stored, spec)),
        };
        let then = match &policy {
            None if is_mesh => {
                "only what it revokes is in force; all else is as without a Mesh, such as strict mutual TLS"
            }
            None => "it has no effect",
            Some(_) if is_mesh => {
                "nobody may call anything, and no certificate is renewed: which ones it revokes cannot be read either"
            }
            Some(policy) if policy.spec.target_refs.is_empty() => {
                "nobody may call anything: whom it is about cannot be read either"
            }
            Some(_) => "nobody may call its targets",
        };
        let cure = match manifest::kinds().any(|known| known == kind.as_str()) {
            true => format!(
                "Apply it again, delete it (`tulle delete {} {name}`), or start the version that wrote it",
                kind.to_lowercase()
            ),
            false => "The commands of this version know no such kind: to delete it, start the version that wrote it"
                .to_owned(),
        };
        let why = why.replace('\n', " ");
        let problem = ObjectProblem {
            object: format!("{kind}/{name}"),
            text: format!("this version cannot read it ({why}), so {then}. {cure}"),
        };
        tracing::error!(object = problem.object, "{}", problem.text);
        let denied_by = policy.as_ref().map(|policy| policy.metadata.name.clone());
        let unread = UnreadObject {
            problem,
            denied_by,
            revoked,
        };
        let mut all = self.all();
        all.insert((kind.clone(), name.clone()), unread);
        let mesh = match is_mesh {
            true => mesh_in_place(all.iter(), trust_domain),
            false => None,
        };
        let policy = policy.map(Object::AuthorizationPolicy);
        let policy = policy.map(|policy| Edit::Put(Box::new(policy)));
        mesh.into_iter().chain(policy).collect()
    }

    /// Objects are about to be applied or deleted. Returns the edits that end what denied in their place under other names.
    pub(super) fn endings(&self, writes: &[Write], trust_domain: &TrustDomain) -> Vec<Edit> {
        let all = self.all();
        let ended: BTreeSet<Key> = written(writes)
            .filter(|key| all.contains_key(key))
            .collect();
        let denying = ended.iter().filter_map(|key| {
            let denying = all.get(key)?.denied_by.as_ref();
            denying.filter(|denying| **denying != key.1)
        });
        let endings = denying.map(|name| Edit::Delete {
            kind: POLICY.to_owned(),
            name: name.clone(),
        });
        let mut endings: Vec<Edit> = endings.collect();
        // The index has one Mesh, and deletes it whatever its name is. That of another such object stays.
        if ended.iter().any(|(kind, _)| kind == MESH) {
            let left = all.iter().filter(|(key, _)| !ended.contains(*key));
            endings.extend(mesh_in_place(left, trust_domain));
        }
        endings
    }

    /// Forgets objects that were applied or deleted, now that this is in force: earlier, nobody would know what a Mesh among
    /// them revokes.
    pub(super) fn forget(&self, writes: &[Write]) {
        let mut all = self.all();
        for key in written(writes) {
            all.remove(&key);
        }
    }

    /// Says of each what it means and what to do.
    pub(super) fn problems(&self) -> Vec<String> {
        let all = self.all();
        all.values().map(|o| o.problem.to_string()).collect()
    }
}

/// The objects that are applied or deleted.
fn written(writes: &[Write]) -> impl Iterator<Item = Key> {
    writes.iter().filter_map(|write| match write {
        Write::Put { kind, name, .. } | Write::Delete { kind, name } => {
            Some((kind.clone(), name.clone()))
        }
        _ => None,
    })
}

/// Returns the Mesh that takes the place of each Mesh among these objects: it revokes what all of them do.
fn mesh_in_place<'a>(
    objects: impl Iterator<Item = (&'a Key, &'a UnreadObject)>,
    trust_domain: &TrustDomain,
) -> Option<Edit> {
    let mut meshes = objects.filter(|((kind, _), _)| kind == MESH).peekable();
    let ((_, name), _) = meshes.peek()?;
    let name = name.clone();
    // For who may call whom, saying nothing is the strict choice. Limits and the lifetime of certificates are those of a mesh
    // without one, and may have been stricter.
    let spec = MeshSpec {
        trust_domain: trust_domain.clone(),
        revoked: meshes.flat_map(|(_, mesh)| mesh.revoked.clone()).collect(),
        ..MeshSpec::default()
    };
    let mesh = Object::Mesh(stand_in(MESH, name, spec));
    Some(Edit::Put(Box::new(mesh)))
}

/// Returns what denies everybody in the place of an object: at its targets, or without these everywhere. `None`: it would
/// not have restricted who may call.
fn in_place_of(stored: &StoredObject, spec: &Value) -> Option<Manifest<AuthorizationPolicySpec>> {
    if !objects::restricts_callers(&stored.kind, spec) {
        return None;
    }
    let given = &spec["targetRefs"];
    // A Plugin without targets is for routes, which answer with an error while it is missing.
    let is_for_routes = given.is_null() || given.as_array().is_some_and(Vec::is_empty);
    if stored.kind == "Plugin" && spec.is_object() && is_for_routes {
        return None;
    }
    // A target that nobody knows may be anything.
    let targets = given.as_array().and_then(|all| {
        let targets = all.iter().map(objects::target_in_place);
        targets.collect::<Option<Vec<TargetRef>>>()
    });
    let name = objects::name_in_place(&stored.kind, &stored.name);
    Some(denying(name, targets.unwrap_or_default()))
}

/// A policy that denies everybody at these targets; none: everywhere.
fn denying(name: String, target_refs: Vec<TargetRef>) -> Manifest<AuthorizationPolicySpec> {
    let spec = AuthorizationPolicySpec {
        target_refs,
        action: Some("Deny".to_owned()),
        mode: None,
        rules: vec![AuthorizationRule::default()],
    };
    stand_in(POLICY, name, spec)
}

fn stand_in<S>(kind: &str, name: String, spec: S) -> Manifest<S> {
    Manifest {
        api_version: TULLE.to_owned(),
        kind: kind.to_owned(),
        metadata: Metadata {
            name,
            ..Metadata::default()
        },
        spec,
    }
}

#[cfg(test)]
mod tests;

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
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tulle_api::v1;
use tulle_model::identity::TrustDomain;
use tulle_model::manifest::{
    self, AuthorizationPolicySpec, AuthorizationRule, Manifest, MeshSpec, Metadata, Object,
    TargetRef,
};

/// The kind of what denies in the place of an object.
const POLICY: &str = "AuthorizationPolicy";
const MESH: &str = "Mesh";

/// Objects by kind and name.
type All = BTreeMap<(String, String), UnreadObject>;

#[derive(Default)]
pub(super) struct Unread(Mutex<All>);

struct UnreadObject {
    problem: ObjectProblem,
    /// The name of the AuthorizationPolicy that denies in its place.
    denied_by: Option<String>,
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
                "no certificate is renewed: which ones the Mesh revokes cannot be read, see `tulle status`"
                    .to_owned(),
            )),
        }
    }

    /// Adds to an answer what cannot be read and what to do, if the policy that decides denies in its place.
    pub(super) fn with_unread(&self, mut answer: v1::Explanation) -> v1::Explanation {
        let mut about_policies = self.unread().into_iter();
        // The problem of an object that has no effect is about none, and an answer names no policy where none decides.
        let decides =
            |problem: &ObjectProblem| !problem.object.is_empty() && problem.object == answer.policy;
        if let Some(problem) = about_policies.find(decides) {
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
        let (mesh, policy) = match kind == MESH {
            true => {
                let (revoked, is_all) = objects::revocations_in_place(spec);
                // Whatever else it may say, not saying it is the strict choice.
                let spec = MeshSpec {
                    trust_domain: trust_domain.clone(),
                    revoked,
                    ..MeshSpec::default()
                };
                let mesh = Object::Mesh(stand_in(MESH, name.clone(), spec));
                let denies = || denying(objects::name_in_place(kind, name), Vec::new());
                (Some(mesh), (!is_all).then(denies))
            }
            false => (None, in_place_of(stored, spec)),
        };
        let then = match &policy {
            None if mesh.is_some() => {
                "only what it revokes is in force; all else is as without a Mesh, such as strict mutual TLS"
            }
            None => "it has no effect",
            Some(_) if mesh.is_some() => {
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
        let unread = UnreadObject { problem, denied_by };
        self.all().insert((kind.clone(), name.clone()), unread);
        let policy = policy.map(Object::AuthorizationPolicy);
        let in_place = mesh.into_iter().chain(policy);
        in_place.map(|object| Edit::Put(Box::new(object))).collect()
    }

    /// Objects were applied or deleted. Returns the edits that end what denied in their place under other names.
    pub(super) fn written(&self, writes: &[Write]) -> Vec<Edit> {
        let mut all = self.all();
        if all.is_empty() {
            return Vec::new();
        }
        let mut endings = Vec::new();
        for write in writes {
            if let Write::Put { kind, name, .. } | Write::Delete { kind, name } = write
                && let Some(known) = all.remove(&(kind.clone(), name.clone()))
            {
                let other = known.denied_by.filter(|denying| denying != name);
                endings.extend(other.map(|name| Edit::Delete {
                    kind: POLICY.to_owned(),
                    name,
                }));
            }
        }
        endings
    }

    /// Says of each what it means and what to do.
    pub(super) fn problems(&self) -> Vec<String> {
        let all = self.all();
        all.values().map(|o| o.problem.to_string()).collect()
    }
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
        api_version: "tulle.dev/v1alpha1".to_owned(),
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

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
mod tests {
    use super::super::Actor;
    use super::*;
    use crate::ca::Authority;
    use crate::store::{Memory, Store};
    use serde_json::json;
    use std::sync::Arc;
    use std::time::SystemTime;
    use tulle_api::v1;
    use tulle_model::identity::SpiffeId;
    use tulle_model::manifest::MtlsSpec;
    use tulle_model::resource::Resource;

    const TULLE: &str = "tulle.dev/v1alpha1";
    /// A version that is not known.
    const NEWER: &str = "tulle.dev/v9";

    fn manifest(version: &str, kind: &str, name: &str, spec: &Value) -> Value {
        json!({ "apiVersion": version, "kind": kind, "metadata": { "name": name }, "spec": spec })
    }

    /// A workload that `a` may call.
    fn called(name: &str) -> [Value; 2] {
        let ports = json!([{ "port": 80, "appProtocol": "http" }]);
        let spec = json!({ "command": ["/bin/true"], "ports": ports });
        let account = |name: &str| json!({ "kind": "ServiceAccount", "name": name });
        let target = json!({ "destination": account(name), "sources": [account("a")] });
        [
            manifest(TULLE, "Workload", name, &spec),
            manifest(
                "access.smi-spec.io/v1alpha3",
                "TrafficTarget",
                name,
                &target,
            ),
        ]
    }

    fn text<'a>(object: &'a Value, place: &str) -> &'a str {
        object.pointer(place).and_then(Value::as_str).unwrap()
    }

    /// A mesh of `a`, `b`, `c` and a gateway, in whose store another version has left an object.
    fn started(left: &Value) -> MeshState {
        let listeners = json!([{ "name": "web", "port": 8080, "protocol": "HTTP" }]);
        let gateway = json!({ "gatewayClassName": "tulle", "listeners": listeners });
        let version = "gateway.networking.k8s.io/v1";
        let mut all = vec![manifest(version, "Gateway", "g", &gateway), left.clone()];
        all.extend(["a", "b", "c"].iter().flat_map(|name| called(name)));
        let writes = all.iter().map(|object| Write::Put {
            kind: text(object, "/kind").to_owned(),
            name: text(object, "/metadata/name").to_owned(),
            json: object.to_string(),
        });
        let writes: Vec<Write> = writes.collect();
        let store = Arc::new(Memory::new());
        store.commit(&writes).unwrap();
        let authority = Authority::open(&*store).unwrap();
        MeshState::load(store, authority).unwrap()
    }

    fn apply(state: &MeshState, objects: &[Value]) {
        let objects = objects.iter().map(|object| v1::Object {
            kind: text(object, "/kind").to_owned(),
            name: text(object, "/metadata/name").to_owned(),
            json: object.to_string(),
        });
        let asked = v1::ApplyRequest {
            objects: objects.collect(),
            ..Default::default()
        };
        state.apply(&Actor::Operator, &asked).unwrap();
    }

    fn may_call(state: &MeshState, to: &str) -> bool {
        let asked = v1::ExplainRequest {
            from: "a".into(),
            to: to.into(),
            ..Default::default()
        };
        state.explain(&asked).unwrap().allowed
    }

    /// Which services `a` may call, and whether the gateway lets clients in.
    fn open(state: &MeshState) -> (Vec<&'static str>, bool) {
        let services = ["b", "c"].into_iter().filter(|to| may_call(state, to));
        let gateway = state.with_index(|index| {
            let entry = index.get("gateway/g").unwrap();
            match tulle_api::decode_body(&entry.body).unwrap() {
                Resource::Gateway(gateway) => gateway.listeners[0].policy.is_none(),
                _ => panic!("it is a gateway"),
            }
        });
        (services.collect(), gateway)
    }

    /// Lists the problems about an object, which a host's status shows as warnings.
    fn problems(state: &MeshState, object: &str) -> Vec<String> {
        let begin = format!("{object}: this version cannot read it");
        let about = |mut all: Vec<String>| {
            all.retain(|text| text.starts_with(&begin));
            all
        };
        let problems = about(state.problems());
        assert_eq!(about(state.warnings()), problems);
        problems
    }

    #[test]
    fn a_restriction_that_cannot_be_read_closes_its_targets_until_it_is_deleted() {
        let all = (vec!["b", "c"], true);
        let not_b = (vec!["c"], true);
        let nothing = (vec![], false);
        let b = json!([{ "kind": "Service", "name": "b" }]);
        let newer = json!([{ "name": "b", "newer": 1 }]);
        let gateway = json!([{ "kind": "Gateway", "name": "g" }]);
        let unknown = json!([{ "kind": "Newer", "name": "b" }]);
        let group = json!([{ "group": "newer.io", "kind": "Service", "name": "b" }]);
        let one_unknown = json!([{ "name": "b" }, { "kind": "Newer", "name": "c" }]);
        let authorization = "AuthorizationPolicy";
        for (kind, spec, expected) in [
            (
                authorization,
                json!({ "targetRefs": b, "action": "Deny" }),
                &not_b,
            ),
            (authorization, json!({ "targetRefs": newer }), &not_b),
            (
                authorization,
                json!({ "targetRefs": gateway }),
                &(vec!["b", "c"], false),
            ),
            ("Authentication", json!({ "targetRefs": b }), &not_b),
            ("Plugin", json!({ "targetRefs": b }), &not_b),
            // It is not known whom these are about.
            (authorization, json!({ "targets": b }), &nothing),
            (authorization, json!({ "targetRefs": unknown }), &nothing),
            (authorization, json!({ "targetRefs": group }), &nothing),
            (
                authorization,
                json!({ "targetRefs": one_unknown }),
                &nothing,
            ),
            ("Authentication", json!(null), &nothing),
            ("Plugin", json!({ "targetRefs": "b" }), &nothing),
            // These do not say who may call.
            (
                authorization,
                json!({ "targetRefs": b, "mode": "Audit" }),
                &all,
            ),
            (
                "Plugin",
                json!({ "targetRefs": b, "failurePolicy": "Open" }),
                &all,
            ),
            ("Plugin", json!({ "script": "" }), &all),
            ("RateLimit", json!({ "targetRefs": b }), &all),
        ] {
            let state = started(&manifest(NEWER, kind, "p", &spec));
            assert_eq!(&open(&state), expected, "{kind} {spec}");
            let object = format!("{kind}/p");
            let told = problems(&state, &object);
            assert_eq!(told.len(), 1, "{kind} {spec}");
            let cure = format!("`tulle delete {} p`", kind.to_lowercase());
            assert!(told[0].contains(&cure), "{told:?}");
            let closes = told[0].contains("so nobody may call");
            assert_eq!(closes, *expected != all, "{told:?}");

            assert!(state.delete(&Actor::Operator, kind, "p").unwrap());
            assert_eq!(open(&state), all, "{kind} {spec}");
            assert!(problems(&state, &object).is_empty());
        }
    }

    #[test]
    fn what_an_unread_mesh_revokes_stays_revoked_and_all_else_of_it_is_strict() {
        let id = "spiffe://tulle.local/svc/c";
        let c = json!({ "identity": id, "newer": 1, "reason": [] });
        let both = json!({ "identity": id, "serial": "0a" });
        let serial = json!({ "serial": "0a:0b" });
        let unknown = json!({ "key": "0a" });
        // Revocations, whether an identity and a serial of theirs are refused, and whether all of them can be read.
        for (revoked, has_id, has_serial, is_all) in [
            (json!([c, serial]), true, true, true),
            (json!([]), false, false, true),
            (json!(null), false, false, true),
            (json!([unknown, serial]), false, true, false),
            (json!([both, c]), true, false, false),
            (json!([{ "crl": "none" }]), false, false, false),
            (json!({ "identity": id }), false, false, false),
        ] {
            let mut spec = json!({ "permissiveMode": true, "newer": 1, "revoked": revoked });
            spec["mtls"] = json!({ "mode": "permissive" });
            let state = started(&manifest(TULLE, "Mesh", "m", &spec));
            let refused = state.revoked();
            let known = refused.borrow().clone();
            assert_eq!(known.identities.len(), usize::from(has_id), "{revoked}");
            assert_eq!(known.serials.len(), usize::from(has_serial), "{revoked}");
            let mesh = state.with_index(|index| index.inputs().mesh.clone());
            let mesh = mesh.unwrap();
            assert_eq!(mesh.mtls, MtlsSpec::default(), "{revoked}");
            assert!(!mesh.permissive_mode, "{revoked}");

            assert_eq!(may_call(&state, "b"), is_all, "{revoked}");
            let b = SpiffeId::parse("spiffe://tulle.local/svc/b").unwrap();
            assert_eq!(state.may_renew(&b).is_ok(), is_all, "{revoked}");
            let asked = v1::JoinTokenRequest {
                identity: "svc/b".into(),
                ..Default::default()
            };
            let host = Actor::Node("n".to_owned());
            let token = state.join_token(&host, &asked, SystemTime::now());
            let why = token.map(drop).unwrap_err().to_string();
            assert_eq!(why.contains("cannot be read"), !is_all, "{why}");
            let told = problems(&state, "Mesh/m");
            assert_eq!(told.len(), 1, "{revoked}");
            assert!(told[0].contains("`tulle delete mesh m`"), "{told:?}");
            let closes = told[0].contains("so nobody may call anything");
            assert_eq!(closes, !is_all, "{told:?}");

            // The same, in a form that can be read.
            let spec = json!({ "revoked": [{ "identity": id }] });
            apply(&state, &[manifest(TULLE, "Mesh", "m", &spec)]);
            assert!(may_call(&state, "b") && state.may_renew(&b).unwrap());
            assert_eq!(refused.borrow().identities.len(), 1, "{revoked}");
            assert!(problems(&state, "Mesh/m").is_empty());
            assert!(state.delete(&Actor::Operator, "Mesh", "m").unwrap());
            assert!(refused.borrow().is_empty(), "{revoked}");
        }
    }

    #[test]
    fn no_command_is_named_that_does_not_know_the_kind() {
        let state = started(&manifest(NEWER, "Newer", "p", &json!({})));
        let told = problems(&state, "Newer/p");
        let [told] = told.as_slice() else {
            panic!("{told:?}");
        };
        assert!(!told.contains("tulle delete"), "{told}");
        assert!(told.ends_with("start the version that wrote it"), "{told}");
    }

    #[test]
    fn an_object_that_is_applied_again_takes_the_place_of_what_denied_for_it() {
        let b = json!([{ "name": "b" }]);
        let rules = json!([{ "from": { "serviceAccounts": ["c"] } }]);
        let auth = json!({ "protocol": "HTTP", "backendRef": { "name": "c", "port": 80 } });
        for (kind, spec) in [
            (
                "AuthorizationPolicy",
                json!({ "targetRefs": b, "action": "Deny", "rules": rules }),
            ),
            (
                "Authentication",
                json!({ "targetRefs": b, "externalAuth": auth }),
            ),
        ] {
            for left in [json!({ "targetRefs": b }), json!({})] {
                let state = started(&manifest(NEWER, kind, "p", &left));
                assert!(!may_call(&state, "b"), "{kind} {left}");
                apply(&state, &[manifest(TULLE, kind, "p", &spec)]);
                let policies = state.with_index(|index| {
                    let names = index.inputs().names().into_iter();
                    let names = names.map(|(kind, name)| format!("{kind}/{name}"));
                    let policies = names.filter(|name| name.starts_with("Auth"));
                    policies.collect::<Vec<_>>()
                });
                assert_eq!(policies, [format!("{kind}/p")]);
                assert!(
                    may_call(&state, "b") && may_call(&state, "c"),
                    "{kind} {left}"
                );
                assert!(problems(&state, &format!("{kind}/p")).is_empty());
            }
        }
    }

    #[test]
    fn what_is_closed_everywhere_is_closed_for_services_that_come_later() {
        let state = started(&manifest(NEWER, "AuthorizationPolicy", "p", &json!({})));
        apply(&state, &called("d"));
        assert!(!may_call(&state, "d"));
        let deleted = state.delete(&Actor::Operator, "AuthorizationPolicy", "p");
        assert!(deleted.unwrap());
        assert!(may_call(&state, "d"));
    }
}

//! Identities that are revoked: neither side has a connection with them.
//!
//! A certificate that is revoked by its serial number is not known here, because a question names
//! identities.

use super::Index;
use tulle_api::v1;
use tulle_model::manifest::RevocationSpec;

impl Index {
    pub(super) fn refuse_revoked(&self, answer: &mut v1::Explanation) {
        let identities = &self.revoked().identities;
        let is_revoked = |id: &str| identities.iter().any(|revoked| revoked.as_str() == id);
        if is_revoked(&answer.source_identity) {
            let text = format!(
                "{}: every sidecar refuses its certificates",
                self.why_revoked(&answer.source_identity)
            );
            refuse(answer, text);
            return;
        }
        let called = &answer.destination_identities;
        let revoked: Vec<&String> = called.iter().filter(|id| is_revoked(id)).collect();
        let Some(first) = revoked.first() else {
            return;
        };
        let text = format!("{}: nobody connects to it", self.why_revoked(first));
        if revoked.len() == called.len() {
            refuse(answer, text);
        } else {
            answer.reason.push_str(&format!("; {text}"));
        }
    }

    /// Says that an identity is revoked, and why: "spiffe://… is revoked (stolen)".
    fn why_revoked(&self, id: &str) -> String {
        let of_mesh = self.inputs.mesh.iter().flat_map(|mesh| &mesh.revoked);
        let mut about = of_mesh.filter(|spec: &&RevocationSpec| spec.identity == id);
        let reason = about.find(|spec| !spec.reason.is_empty());
        match reason {
            Some(spec) => format!("{id} is revoked ({})", spec.reason),
            None => format!("{id} is revoked"),
        }
    }
}

fn refuse(answer: &mut v1::Explanation, reason: String) {
    answer.allowed = false;
    answer.policy = "revoked".to_owned();
    answer.reason = reason;
}

//! Objects that only have a meaning for policies, and that no policy among the objects refers to. Whoever forgot to give the
//! policy should know.

use super::target::{Route, Server};
use crate::import::imported::Imported;
use crate::import::source::Source;

const GIVE: &str = "give the policy, too, or leave it out";

/// Names the authentications that no policy demands, and the routes that no policy is about.
pub(super) fn lose(
    policies: &[Source],
    authentications: &[Source],
    (servers, routes): (&[Server], &[Route]),
    imported: &mut Imported,
) {
    for one in authentications {
        if !policies.iter().any(|policy| demands(policy, one)) {
            let why = "no policy among the objects demands it";
            imported.lose(&one.id, "spec", why, GIVE);
        }
    }
    for route in routes {
        // With its Server it is a part of what policies about that are about.
        let is_here = servers.iter().any(|server| route.is_of(server));
        let is_used = is_here || policies.iter().any(|p| is_about(p, route));
        if !is_used {
            let why = "neither a policy about it nor its Server is among the objects";
            imported.lose(&route.id, "spec.parentRefs", why, GIVE);
        }
    }
}

fn demands(policy: &Source, one: &Source) -> bool {
    let all = policy.spec["requiredAuthenticationRefs"].as_array();
    let mut all = all.into_iter().flatten();
    all.any(|reference| {
        let namespace = reference["namespace"].as_str().or(policy.namespace());
        reference["kind"] == one.kind.as_str()
            && reference["name"] == one.name.as_str()
            && namespace == one.namespace()
    })
}

fn is_about(policy: &Source, route: &Route) -> bool {
    let target = &policy.spec["targetRef"];
    let text = |field: &str| target[field].as_str();
    let (kind, name) = (text("kind"), text("name"));
    policy.namespace == route.namespace
        && route.is_named(
            text("group"),
            kind.unwrap_or_default(),
            name.unwrap_or_default(),
        )
}

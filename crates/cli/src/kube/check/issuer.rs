//! Another issuer of workloads' certificates, if there is one: is it there, does it sign, are its roots
//! believed?

use super::Report;
use super::gather::{Facts, fingerprints};
use crate::kube::workloads::{items, text};
use tulle_kube::issuer::{CertManagerSettings, IssuerSettings};

pub(super) fn check(facts: &Facts, report: &mut Report) {
    let Some(settings) = facts.options().and_then(|options| options.issuer) else {
        return report.ok("TK042", "none: the mesh's root signs");
    };
    match &settings {
        IssuerSettings::CertManager(of) => cert_manager(of, facts, report),
        // How it is, no object of the cluster says: only the controller asks it.
        IssuerSettings::Vault(of) => match authorities(facts) {
            Err(why) => report.error("TK042", why),
            Ok(_) => report.ok("TK042", format!("Vault at {}", of.address)),
        },
    }
    signs(facts, report);
    roots(&settings, facts, report);
}

fn cert_manager(settings: &CertManagerSettings, facts: &Facts, report: &mut Report) {
    let CertManagerSettings {
        name, kind, group, ..
    } = settings;
    if let Err(why) = authorities(facts) {
        return report.error("TK042", why);
    }
    let found = match &facts.issuer {
        None => return,
        Some(Err(why)) => return report.warning("TK042", format!("{kind} {name}: {why}")),
        Some(Ok(None)) => {
            let why = match facts.served(group) {
                Some(_) => format!("there is no {kind} {name} of {group}"),
                None => format!("the API server knows no {group}: its issuer is not installed"),
            };
            return report.error("TK042", why);
        }
        Some(Ok(Some(found))) => found,
    };
    let ready = items(found, "/status/conditions").find(|c| text(c, "/type") == "Ready");
    match ready {
        Some(c) if text(c, "/status") == "True" => {
            report.ok("TK042", format!("{kind} {name} is ready"))
        }
        Some(c) => report.error(
            "TK042",
            format!("{kind} {name} is not ready: {}", text(c, "/message")),
        ),
        None => report.warning(
            "TK042",
            format!("{kind} {name} does not say that it is ready: does its controller run?"),
        ),
    }
}

/// The fingerprints of what the controller mounts for its issuer, if anything.
fn authorities(facts: &Facts) -> Result<Vec<String>, String> {
    let Some((name, map)) = &facts.issuer_ca else {
        return Ok(Vec::new());
    };
    let place = format!("ConfigMap {}/{name}", facts.home);
    let Some(map) = map else {
        return Err(format!(
            "there is no {place}: no pod of the controller starts"
        ));
    };
    match fingerprints(text(map, "/data/ca.crt")) {
        none if none.is_empty() => Err(format!("{place} has no authority in `ca.crt`")),
        found => Ok(found),
    }
}

/// Checks the controller's report on the issuer.
fn signs(facts: &Facts, report: &mut Report) {
    let Some(authority) = &facts.authority else {
        return;
    };
    if authority.issuer.is_empty() {
        report.error(
            "TK043",
            "the mesh's root signs: the controller was not started again since an issuer was set",
        );
    } else if !authority.issuer_trouble.is_empty() {
        let (issuer, why) = (&authority.issuer, &authority.issuer_trouble);
        report.error("TK043", format!("{issuer}: {why}"));
    } else {
        report.ok("TK043", authority.issuer.as_str());
    }
}

/// Sidecars are told the roots of the issuer. Whether they have heard them, TK070 says.
fn roots(settings: &IssuerSettings, facts: &Facts, report: &mut Report) {
    if facts.authority.is_none() {
        return;
    }
    let believed = facts.roots_of_sidecars();
    if believed.is_empty() {
        let why = "the controller knows none: nobody believes what the issuer signs";
        return report.error("TK044", why);
    }
    // For Vault, the ConfigMap holds the authority of its server and no root of workloads.
    let given = match settings {
        IssuerSettings::CertManager(_) => authorities(facts).unwrap_or_default(),
        IssuerSettings::Vault(_) => Vec::new(),
    };
    let missing = given.iter().filter(|root| !believed.contains(root));
    let missing = missing.map(|root| format!("sidecars are not told {root}, which was given"));
    let well = format!("sidecars are told {}", believed.len());
    report.each("TK044", super::Outcome::Error, missing.collect(), &well);
}

#[cfg(test)]
mod tests {
    use super::super::testing::{ONE, TWO};
    use super::*;
    use crate::check::Outcome;
    use serde_json::{Value, json};
    use tulle_api::v1::{AuthorityStatus, RootStatus};

    fn settings(issuer: &Value) -> Option<Value> {
        let settings = json!({
            "namespace": "tulle-system", "issuer": issuer,
            "sidecars": { "image": "i", "controller": "c:1", "trustDomain": "t" },
        });
        Some(json!({ "data": { "settings.json": settings.to_string() } }))
    }

    /// A mesh for which cert-manager signs, and all is well. The mesh's own root is ONE.
    fn well() -> Facts {
        let issuer = json!({ "certManager": {
            "name": "mesh", "kind": "ClusterIssuer", "group": "cert-manager.io",
        } });
        let ready = json!({ "type": "Ready", "status": "True" });
        Facts {
            home: "tulle-system".into(),
            groups: vec!["cert-manager.io/v1".into()],
            settings: settings(&issuer),
            issuer: Some(Ok(Some(json!({ "status": { "conditions": [ready] } })))),
            bundles: vec![map(ONE)],
            authority: Some(AuthorityStatus {
                issuer: "cert-manager, ClusterIssuer mesh".into(),
                roots: vec![root(ONE, "signing"), root(TWO, "issuer")],
                ..AuthorityStatus::default()
            }),
            ..Facts::default()
        }
    }

    fn map(pem: &str) -> Value {
        json!({ "metadata": { "namespace": "tulle-system" }, "data": { "ca.crt": pem } })
    }

    fn root(pem: &str, role: &str) -> RootStatus {
        RootStatus {
            sha256: fingerprints(pem).remove(0),
            role: role.into(),
            ..RootStatus::default()
        }
    }

    /// All that is not well: `id finding`.
    fn wrong(facts: &Facts) -> Vec<String> {
        let mut report = Report::default();
        check(facts, &mut report);
        let found = report.0.iter().filter(|f| f.outcome != Outcome::Ok);
        found.map(|f| format!("{} {}", f.id, f.finding)).collect()
    }

    fn only(facts: &Facts, expected: &str) {
        let found = wrong(facts);
        assert!(
            matches!(found.as_slice(), [one] if one.contains(expected)),
            "{expected}: {found:?}"
        );
    }

    #[test]
    fn the_issuer_is_there_and_ready() {
        assert!(wrong(&Facts::default()).is_empty());
        assert!(wrong(&well()).is_empty());
        let mut facts = well();
        facts.issuer = Some(Ok(None));
        only(&facts, "TK042 there is no ClusterIssuer mesh");
        facts.groups.clear();
        only(&facts, "TK042 the API server knows no cert-manager.io");
        let conditions = json!([{ "type": "Ready", "status": "False", "message": "no Secret" }]);
        facts.issuer = Some(Ok(Some(json!({ "status": { "conditions": conditions } }))));
        only(&facts, "TK042 ClusterIssuer mesh is not ready: no Secret");
        facts.issuer = Some(Ok(Some(json!({}))));
        only(&facts, "TK042 ClusterIssuer mesh does not say");
        facts.issuer = Some(Err("forbidden".into()));
        only(&facts, "TK042 ClusterIssuer mesh: forbidden");
    }

    #[test]
    fn what_the_controller_says_of_it() {
        let mut facts = well();
        let authority = facts.authority.as_mut().unwrap();
        authority.issuer_trouble = "no answer within 8 s".into();
        only(&facts, "TK043 cert-manager, ClusterIssuer mesh: no answer");
        facts.authority.as_mut().unwrap().issuer.clear();
        only(&facts, "TK043 the mesh's root signs");
    }

    #[test]
    fn its_roots_are_believed() {
        let mut facts = well();
        assert_eq!(facts.roots_of_sidecars(), fingerprints(TWO));
        facts.settings = settings(&Value::Null);
        assert_eq!(facts.roots_of_sidecars(), fingerprints(ONE));
        let mut facts = well();
        facts.authority.as_mut().unwrap().roots.pop();
        only(&facts, "TK044 the controller knows none");
        let mut facts = well();
        facts.issuer_ca = Some(("roots".into(), Some(map(TWO))));
        assert!(wrong(&facts).is_empty());
        facts.issuer_ca = Some(("roots".into(), Some(map("nothing"))));
        only(
            &facts,
            "TK042 ConfigMap tulle-system/roots has no authority",
        );
        facts.issuer_ca = Some(("roots".into(), None));
        only(&facts, "TK042 there is no ConfigMap tulle-system/roots");
        facts.issuer_ca = Some(("roots".into(), Some(map(ONE))));
        only(&facts, "TK044 sidecars are not told");
    }

    #[test]
    fn of_vault_the_controller_knows() {
        let mut facts = well();
        facts.settings = settings(&json!({ "vault": {
            "address": "https://vault:8200", "mount": "pki", "role": "tulle", "ca": "/etc/ca.crt",
            "auth": { "tokenFile": "/token" },
        } }));
        facts.issuer = None;
        // The authority of Vault's server signs no workload's certificate.
        facts.issuer_ca = Some(("vault".into(), Some(map(ONE))));
        assert!(wrong(&facts).is_empty());
        facts.issuer_ca = Some(("vault".into(), None));
        only(&facts, "TK042 there is no ConfigMap tulle-system/vault");
    }
}

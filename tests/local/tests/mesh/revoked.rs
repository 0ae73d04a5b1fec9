//! An identity that is revoked by command is refused everywhere at once, gets no certificate, and
//! whoever asks is told why.

use crate::policy::{assert_changes_are_quick, by_gateway};
use crate::rotation::kill_controller;
use serde_json::Value;
use std::path::Path;
use tests_local::{Demo, can_redirect, eventually, id};
use tulle_tls::testing::TestCa;

fn done(demo: &Demo, command: &[&str]) -> String {
    let done = demo.tulle(&[&["identity"], command].concat());
    assert_eq!(done.code, 0, "{done:?}");
    done.out
}

#[test]
fn who_is_revoked_is_refused_until_that_is_taken_back() {
    if !can_redirect() {
        return;
    }
    let demo = Demo::start(|text| text);
    assert_eq!(by_gateway(&demo).status(), 200);
    assert_eq!(done(&demo, &["list"]), "Nothing is revoked.\n");
    let said = done(
        &demo,
        &["revoke", "svc/gateway", "--reason", "its key was stolen"],
    );
    assert_eq!(said, format!("{} revoked\n", id("gateway")));
    eventually("gateway is refused", || by_gateway(&demo).status() >= 500);
    // Others go on.
    assert_eq!(demo.get("/productpage").status(), 200);
    let why = demo.tulle(&["why", "gateway", "ratings"]);
    assert_eq!(why.code, 1, "{why:?}");
    assert!(why.out.contains("gateway is revoked"), "{why:?}");
    let called = demo.tulle(&["why", "ingress", "gateway", "/bookinfo-ratings/ratings/x"]);
    assert_eq!(called.code, 1, "{called:?}");
    assert!(called.out.contains("gateway is revoked"), "{called:?}");
    // Its sidecar has lost the controller; nobody else gets a certificate for it.
    let token = demo.tulle(&["token", "create", "svc/gateway"]);
    assert_eq!(token.code, 65, "{token:?}");
    assert!(token.err.contains("revoked"), "{token:?}");

    // It survives the controller.
    kill_controller(&demo);
    let list: Value = serde_json::from_str(&done(&demo, &["list", "-o", "json"])).unwrap();
    assert_eq!(list[0]["identity"], id("gateway"), "{list}");
    assert_eq!(list[0]["reason"], "its key was stolen", "{list}");
    assert!(by_gateway(&demo).status() >= 500);

    done(&demo, &["allow", "svc/gateway"]);
    eventually("gateway may again", || by_gateway(&demo).status() == 200);
    let again = demo.tulle(&["identity", "allow", "svc/gateway"]);
    assert_eq!(again.code, 1, "{again:?}");
    eventually("its sidecar is back", || {
        let status = demo.status();
        let proxies = status["proxies"].as_array().unwrap().iter();
        let mut own = proxies.filter(|p| p["identity"] == id("gateway"));
        own.all(|p| p["connected"] == true)
    });
}

#[test]
fn certificates_of_a_revocation_list_are_refused_until_it_is_taken_back() {
    if !can_redirect() {
        return;
    }
    let demo = Demo::start(|text| text);
    assert_eq!(by_gateway(&demo).status(), 200);
    let certificates = demo.admin("gateway", "/certificates").body;
    let certificates: Value = serde_json::from_slice(&certificates).unwrap();
    let serial = certificates["serial"].as_str().unwrap();
    // The operator who gives the list is trusted: it counts for the authority that it names.
    let write = |issuer: &str, serials: &[&str]| {
        let text = TestCa::new(issuer).revocation_list_by_serial(serials);
        demo.write(&format!("{}.crl", issuer.replace(' ', "-")), &text)
    };
    let revoke = |list: &Path| {
        let list = list.to_str().unwrap();
        let reason = "its key was stolen";
        done(&demo, &["revoke", "--crl", list, "--reason", reason]);
        let rows = done(&demo, &["list", "-o", "json"]);
        serde_json::from_str::<Value>(&rows).unwrap()
    };
    let allow = |row: &Value| {
        let issuer = row["issuer"].as_str().unwrap();
        done(&demo, &["allow", "--issuer", issuer]);
    };
    // Lists of another authority, or of another number, touch nobody here.
    let others = [
        write("Another root", &[serial]),
        write("Tulle mesh root", &["42:42"]),
    ];
    for list in others {
        let rows = revoke(&list);
        assert_eq!(rows[0]["certificates"], 1, "{rows}");
        for _ in 0..20 {
            assert_eq!(by_gateway(&demo).status(), 200);
        }
        allow(&rows[0]);
    }
    let rows = revoke(&write("Tulle mesh root", &["42:42", serial]));
    assert_eq!(rows.as_array().unwrap().len(), 1, "{rows}");
    assert_eq!(rows[0]["certificates"], 2, "{rows}");
    assert_eq!(rows[0]["reason"], "its key was stolen", "{rows}");
    eventually("gateway is refused", || by_gateway(&demo).status() >= 500);
    // Others go on.
    assert_eq!(demo.get("/productpage").status(), 200);
    allow(&rows[0]);
    eventually("gateway may again", || by_gateway(&demo).status() == 200);
    assert_eq!(done(&demo, &["list"]), "Nothing is revoked.\n");
}

#[test]
fn what_is_asked_for_must_be_one_thing_that_exists() {
    if !can_redirect() {
        return;
    }
    let demo = Demo::start(|text| text);
    let crl = demo.write("no.crl", "no list");
    let refused = |command: &[&str], code: i32, says: &str| {
        let refused = demo.tulle(&[&["identity"], command].concat());
        assert_eq!(refused.code, code, "{refused:?}");
        assert!(refused.err.contains(says), "{refused:?}");
    };
    refused(&["revoke"], 64, "required");
    refused(&["revoke", "svc/a", "--serial", "1"], 64, "cannot be used");
    refused(&["revoke", "gateway"], 65, "svc/NAME");
    refused(&["revoke", "svc/../x"], 65, "identity");
    refused(&["revoke", "--serial", "xyz"], 65, "hex");
    refused(&["revoke", "--crl", crl.to_str().unwrap()], 65, "X509 CRL");
    refused(&["revoke", "controller"], 65, "svc/NAME");
    refused(&["revoke", "spiffe://tulle.local/controller"], 65, "rotate");
    refused(&["allow", "svc/gateway"], 1, "not revoked");
    let unknown = demo.tulle(&["identity", "revoke", "svc/gatewya"]);
    assert_eq!(unknown.code, 0, "{unknown:?}");
    assert!(
        unknown.err.contains("no workload of this mesh has"),
        "{unknown:?}"
    );
}

#[test]
fn a_revocation_takes_effect_within_a_tenth_of_a_second() {
    if !can_redirect() {
        return;
    }
    let demo = Demo::start(|text| text);
    assert_changes_are_quick(&demo, |allowed| {
        let command = if allowed { "allow" } else { "revoke" };
        done(&demo, &[command, "svc/gateway"]);
    });
}

//! Which peers are accepted: every kind of wrong certificate, at both sides of the connection.

#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use rustls::{AlertDescription, Error as TlsError};
use std::time::{Duration, SystemTime};
use tulle_tls::testing::{Issued, Leaf, TestCa};
use tulle_tls::{Alpn, TrustBundle};

/// Our client meets a server with this certificate and expects ratings.
fn as_client(ca: &TestCa, theirs: &Issued) -> Result<String, &'static str> {
    let mut client = End::client(&context(ca, REVIEWS), &[RATINGS], &[Alpn::Tulle1]);
    let told = connect_plain(&mut client, &mut plain_server(theirs));
    outcome(client, told)
}

/// Our server meets a client with this certificate.
fn as_server(ca: &TestCa, theirs: Option<&Issued>) -> Result<String, &'static str> {
    let mut server = End::server(&context(ca, RATINGS));
    let told = connect_plain(&mut server, &mut plain_client(theirs, &[b"tulle/1"]));
    outcome(server, told)
}

fn outcome(mut end: End, told: Option<TlsError>) -> Result<String, &'static str> {
    match end.failure {
        None => Ok(end.session().peer().to_string()),
        Some(failure) => {
            // A refused client gets an alert.
            assert!(
                matches!(told, Some(TlsError::AlertReceived(_))),
                "{failure:?}: {told:?}"
            );
            assert!(failure.to_string().len() > 40, "{failure}");
            Err(failure.code())
        }
    }
}

fn good() -> Leaf {
    Leaf::new(RATINGS)
}

#[test]
fn the_right_peer_is_accepted() {
    let ca = TestCa::new("mesh");
    let theirs = ca.issue(RATINGS);
    assert_eq!(as_client(&ca, &theirs), Ok(RATINGS.into()));
    assert_eq!(as_server(&ca, Some(&theirs)), Ok(RATINGS.into()));
    // Other names beside the id are harmless.
    let theirs = ca.issue_leaf(&Leaf {
        dns: vec!["ratings.internal".into()],
        ..good()
    });
    assert_eq!(as_client(&ca, &theirs), Ok(RATINGS.into()));
}

#[test]
fn an_intermediate_authority_is_accepted() {
    let ca = TestCa::new("mesh");
    let intermediate = ca.intermediate("mesh issuing");
    let theirs = intermediate.issue(RATINGS).with_issuer(&intermediate);
    assert_eq!(as_client(&ca, &theirs), Ok(RATINGS.into()));
    assert_eq!(as_server(&ca, Some(&theirs)), Ok(RATINGS.into()));
    let incomplete = intermediate.issue(RATINGS);
    assert_eq!(as_client(&ca, &incomplete), Err("unknown_issuer"));
}

#[test]
fn a_client_refuses_every_other_id() {
    let ca = TestCa::new("mesh");
    for id in [
        "spiffe://tulle.local/svc/ratings2",
        "spiffe://tulle.local/svc/rating",
        "spiffe://tulle.local/svc/ratings.",
        "spiffe://tulle.local/svc/Ratings",
        "spiffe://tulle.local/svc/ratings/v1",
        "spiffe://tulle.local/ratings",
    ] {
        let theirs = ca.issue(id);
        assert_eq!(as_client(&ca, &theirs), Err("wrong_identity"), "{id}");
        // It is still a genuine workload: the server only learns its identity.
        assert_eq!(as_server(&ca, Some(&theirs)), Ok(id.into()));
    }
}

/// Certificates that neither side may accept, with the reason it must give.
fn never_accepted(ca: &TestCa) -> Vec<(&'static str, Issued, &'static str)> {
    let day = Duration::from_secs(24 * 3600);
    let now = SystemTime::now();
    let with_uris = |uris: &[&str]| {
        let uris = uris.iter().map(|u| (*u).to_owned()).collect();
        ca.issue_leaf(&Leaf { uris, ..good() })
    };
    let dns_only = |dns: &str| {
        ca.issue_leaf(&Leaf {
            uris: vec![],
            dns: vec![dns.into()],
            ..good()
        })
    };
    let mut cases = vec![
        (
            "another authority",
            TestCa::new("mesh").issue(RATINGS),
            "unknown_issuer",
        ),
        (
            "another trust domain",
            ca.issue("spiffe://tulle.example/svc/ratings"),
            "wrong_trust_domain",
        ),
        (
            "a longer trust domain",
            ca.issue("spiffe://tulle.local2/svc/ratings"),
            "wrong_trust_domain",
        ),
        (
            "id as DNS name",
            dns_only("spiffe://tulle.local/svc/ratings"),
            "not_spiffe",
        ),
        ("DNS name only", dns_only("ratings"), "not_spiffe"),
        ("no names", with_uris(&[]), "not_spiffe"),
        ("the id twice", with_uris(&[RATINGS, RATINGS]), "not_spiffe"),
        (
            "two ids",
            with_uris(&[RATINGS, "spiffe://tulle.local/svc/admin"]),
            "not_spiffe",
        ),
        (
            "an id and another URI",
            with_uris(&[RATINGS, "https://tulle.local/"]),
            "not_spiffe",
        ),
        (
            "expired",
            ca.issue_leaf(&Leaf {
                not_before: now - 2 * day,
                not_after: now - day,
                ..good()
            }),
            "expired",
        ),
        (
            "not valid yet",
            ca.issue_leaf(&Leaf {
                not_before: now + day,
                not_after: now + 2 * day,
                ..good()
            }),
            "not_yet_valid",
        ),
        (
            "no extended usage",
            ca.issue_leaf(&Leaf {
                client_auth: false,
                server_auth: false,
                ..good()
            }),
            "bad_usage",
        ),
        (
            "an authority's",
            ca.issue_leaf(&Leaf {
                is_ca: true,
                ..good()
            }),
            "bad_usage",
        ),
        (
            "signed by a workload",
            ca.issue("spiffe://tulle.local/svc/reviews")
                .issue_leaf(&good()),
            "bad_usage",
        ),
    ];
    for id in [
        "spiffe://tulle.local/svc/../svc/ratings",
        "spiffe://tulle.local/svc/./ratings",
        "spiffe://tulle.local//svc/ratings",
        "spiffe://tulle.local/svc/ratings/",
        "spiffe://tulle.local",
        "SPIFFE://tulle.local/svc/ratings",
        "spiffe://Tulle.local/svc/ratings",
        "spiffe://tulle.local/svc/ratings?x",
        "spiffe://tulle.local/svc/rat%69ngs",
        "spiffe://tulle.local:443/svc/ratings",
        "https://tulle.local/svc/ratings",
        "",
    ] {
        cases.push((id, with_uris(&[id]), "not_spiffe"));
    }
    cases
}

#[test]
fn both_sides_refuse_what_is_no_workload_of_the_mesh() {
    let ca = TestCa::new("mesh");
    for (what, theirs, code) in never_accepted(&ca) {
        assert_eq!(as_client(&ca, &theirs), Err(code), "{what:?}, as client");
        assert_eq!(
            as_server(&ca, Some(&theirs)),
            Err(code),
            "{what:?}, as server"
        );
    }
}

#[test]
fn each_side_wants_its_own_extended_usage() {
    let ca = TestCa::new("mesh");
    let client_only = ca.issue_leaf(&Leaf {
        server_auth: false,
        ..good()
    });
    let server_only = ca.issue_leaf(&Leaf {
        client_auth: false,
        ..good()
    });
    assert_eq!(as_client(&ca, &client_only), Err("bad_usage"));
    assert_eq!(as_server(&ca, Some(&client_only)), Ok(RATINGS.into()));
    assert_eq!(as_server(&ca, Some(&server_only)), Err("bad_usage"));
    assert_eq!(as_client(&ca, &server_only), Ok(RATINGS.into()));
}

#[test]
fn a_client_without_certificate_is_refused_and_told() {
    let ca = TestCa::new("mesh");
    let mut server = End::server(&context(&ca, RATINGS));
    let told = connect_plain(&mut server, &mut plain_client(None, &[]));
    assert_eq!(server.failure.unwrap().code(), "no_certificate");
    assert_eq!(
        told,
        Some(TlsError::AlertReceived(
            AlertDescription::CertificateRequired
        ))
    );
}

#[test]
fn a_long_chain_is_refused() {
    let ca = TestCa::new("mesh");
    let mut authorities = vec![ca.intermediate("1")];
    for name in ["2", "3", "4"] {
        let next = authorities.last().unwrap().intermediate(name);
        authorities.push(next);
    }
    let mut theirs = authorities.last().unwrap().issue(RATINGS);
    for authority in authorities.iter().rev() {
        theirs = theirs.with_issuer(authority);
    }
    assert_eq!(as_client(&ca, &theirs), Err("chain_too_large"));
    assert_eq!(as_server(&ca, Some(&theirs)), Err("chain_too_large"));
}

#[test]
fn the_refused_side_learns_why_from_the_alert() {
    let (ca, other) = (TestCa::new("mesh"), TestCa::new("other"));
    // The client trusts the server, but not the other way round: it gets the alert once connected.
    let bundle = TrustBundle::from_der(vec![ca.der().clone(), other.der().clone()]).unwrap();
    let stranger = tulle_tls::Context::new(&other.identity(REVIEWS), &bundle).unwrap();
    let mut client = End::client(&stranger, &[RATINGS], &[Alpn::Tulle1]);
    let mut server = End::server(&context(&ca, RATINGS));
    connect(&mut client, &mut server, usize::MAX);
    assert_eq!(server.failure.unwrap().code(), "unknown_issuer");
    let error = End::read(&mut client).unwrap_err();
    assert_eq!(error.code(), "peer_alert");
    assert!(error.to_string().contains("trust bundle"), "{error}");
}

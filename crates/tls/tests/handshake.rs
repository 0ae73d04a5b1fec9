//! Handshakes: both roles, any split of the bytes, protocols, resumption, rotation, refusal.

#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tulle_model::manifest::RevocationSpec;
use tulle_model::resource::Revoked;
use tulle_tls::testing::{Leaf, TestCa};
use tulle_tls::{
    Alpn, Context, Handshake, HandshakeError, Identity, IdentityError, Revocations, TrustBundle,
    is_client_hello,
};

#[test]
fn both_ends_learn_who_the_other_is() {
    let ca = TestCa::new("mesh");
    let (mut client, mut server) = pair(&ca);
    assert_eq!(client.session().peer().as_str(), RATINGS);
    assert_eq!(server.session().peer().as_str(), REVIEWS);
    assert_eq!(client.session().alpn(), Alpn::Tulle1);
    assert_eq!(server.session().alpn(), Alpn::Tulle1);
    assert!(!client.session().resumed());
    assert!(client.session().peer_not_after() > SystemTime::now());
}

#[test]
fn bytes_may_arrive_in_any_split() {
    let ca = TestCa::new("mesh");
    let (reviews, ratings) = (context(&ca, REVIEWS), context(&ca, RATINGS));
    for chunk in [1, 2, 3, 5, 7, 64, 333, 1500] {
        // The second round resumes, so that path is split as well.
        for round in 0..2 {
            let mut client = End::client(&reviews, &[RATINGS], &[Alpn::Tulle1]);
            let mut server = End::server(&ratings);
            connect(&mut client, &mut server, chunk);
            client.seal(b"ping");
            deliver(&mut client, &mut server);
            assert_eq!(server.read().unwrap().0, b"ping", "{chunk} bytes, {round}");
            assert_eq!(client.read().unwrap().0, b"");
        }
    }
}

#[test]
fn data_right_behind_the_handshake_is_not_lost() {
    let ca = TestCa::new("mesh");
    let (reviews, ratings) = (context(&ca, REVIEWS), context(&ca, RATINGS));
    let mut client = End::client(&reviews, &[RATINGS], &[Alpn::Tulle1]);
    let mut server = End::server(&ratings);
    client.advance();
    deliver(&mut client, &mut server);
    server.advance();
    deliver(&mut server, &mut client);
    client.advance();
    client.seal(b"first");
    client.seal(b" second");
    // The client's Finished and its data arrive in one read.
    deliver(&mut client, &mut server);
    server.advance();
    assert_eq!(server.read().unwrap().0, b"first second");
    // The server's tickets and its data arrive in one read.
    server.seal(b"answer");
    deliver(&mut server, &mut client);
    assert_eq!(client.read().unwrap().0, b"answer");
}

#[test]
fn protocols_are_agreed_or_absent() {
    let ca = TestCa::new("mesh");
    let (reviews, ratings) = (context(&ca, REVIEWS), context(&ca, RATINGS));
    for (offer, agreed) in [
        (&[Alpn::Tulle1, Alpn::Http11][..], Alpn::Tulle1),
        (&[Alpn::Http11, Alpn::Http2], Alpn::Http2),
        (&[Alpn::Http11], Alpn::Http11),
        (&[Alpn::None], Alpn::None),
        (&[], Alpn::None),
    ] {
        let mut client = End::client(&reviews, &[RATINGS], offer);
        let mut server = End::server(&ratings);
        connect(&mut client, &mut server, usize::MAX);
        assert_eq!(client.session().alpn(), agreed);
        assert_eq!(server.session().alpn(), agreed);
    }
    let certificate = ca.issue(REVIEWS);
    let mut stranger = plain_client(Some(&certificate), &[b"h3"]);
    let mut server = End::server(&ratings);
    connect_plain(&mut server, &mut stranger);
    assert_eq!(server.failure.unwrap().code(), "protocol");
}

/// Returns how an end learns of the other's refusal, in its handshake or after it.
fn heard(end: &mut End) -> &'static str {
    match &end.failure {
        Some(failure) => failure.code(),
        None => end.read().unwrap_err().code(),
    }
}

/// Connects, lets the client read its tickets, and returns whether it was resumed.
fn visit(client: &Context, server: &Context, expected: &[&str]) -> Result<bool, &'static str> {
    let mut client = End::client(client, expected, &[Alpn::Tulle1]);
    let mut server = End::server(server);
    connect(&mut client, &mut server, usize::MAX);
    for (one, other) in [(0, 1), (1, 0)] {
        let ends = [&mut client, &mut server];
        let Some(failure) = ends[one].failure.clone() else {
            continue;
        };
        // `connect` has delivered the alert as well, so that the other end learns the reason.
        if !matches!(failure, HandshakeError::Alert(_)) {
            assert_eq!(heard(ends[other]), "peer_alert", "{failure}");
            return Err(failure.code());
        }
    }
    client.read().unwrap();
    let resumed = client.session().resumed();
    assert_eq!(server.session().resumed(), resumed);
    // A resumed session knows its peers' identities, too.
    assert_eq!(client.session().peer().as_str(), RATINGS);
    assert_eq!(server.session().peer().as_str(), REVIEWS);
    Ok(resumed)
}

#[test]
fn sessions_resume_with_the_same_peer_only() {
    let ca = TestCa::new("mesh");
    let (reviews, ratings) = (context(&ca, REVIEWS), context(&ca, RATINGS));
    assert_eq!(visit(&reviews, &ratings, &[RATINGS]), Ok(false));
    assert_eq!(visit(&reviews, &ratings, &[RATINGS]), Ok(true));
    assert_eq!(visit(&reviews, &ratings, &[RATINGS]), Ok(true));
    // Other expected ids have other sessions.
    let other = [RATINGS, "spiffe://tulle.local/svc/ratings-v2"];
    assert_eq!(visit(&reviews, &ratings, &other), Ok(false));
    assert_eq!(visit(&reviews, &ratings, &other), Ok(true));
    let details = ["spiffe://tulle.local/svc/details"];
    assert_eq!(visit(&reviews, &ratings, &details), Err("wrong_identity"));
}

#[test]
fn nothing_resumes_across_a_rotation() {
    let ca = TestCa::new("mesh");
    let (reviews, ratings) = (context(&ca, REVIEWS), context(&ca, RATINGS));
    assert_eq!(visit(&reviews, &ratings, &[RATINGS]), Ok(false));
    let renewed = context(&ca, RATINGS);
    assert!(renewed.epoch() > ratings.epoch());
    assert_eq!(visit(&reviews, &renewed, &[RATINGS]), Ok(false), "server");
    assert_eq!(visit(&reviews, &renewed, &[RATINGS]), Ok(true));
    let renewed_client = context(&ca, REVIEWS);
    assert_eq!(
        visit(&renewed_client, &renewed, &[RATINGS]),
        Ok(false),
        "client"
    );
}

#[test]
fn nothing_resumes_across_a_change_of_roots() {
    let (ca, other) = (TestCa::new("mesh"), TestCa::new("other"));
    let both = TrustBundle::from_der(vec![ca.der().clone(), other.der().clone()]).unwrap();
    let (client, server) = (ca.identity(REVIEWS), ca.identity(RATINGS));
    let make = |identity: &Identity, bundle: &TrustBundle| Context::new(identity, bundle).unwrap();
    // The identities stay the same, and so does the root that counts.
    let (one, two) = (make(&client, &ca.bundle()), make(&client, &both));
    let (three, four) = (make(&server, &ca.bundle()), make(&server, &both));
    assert_eq!(visit(&one, &three, &[RATINGS]), Ok(false));
    assert_eq!(visit(&one, &three, &[RATINGS]), Ok(true));
    assert_eq!(visit(&two, &three, &[RATINGS]), Ok(false), "client");
    assert_eq!(visit(&one, &four, &[RATINGS]), Ok(false), "server");
}

#[test]
fn a_new_root_replaces_the_old_one_step_by_step() {
    let (old, new) = (TestCa::new("old"), TestCa::new("new"));
    let both = TrustBundle::from_der(vec![old.der().clone(), new.der().clone()]).unwrap();
    let with = |ca: &TestCa, id: &str, bundle: &TrustBundle| {
        Context::new(&ca.identity(id), bundle).unwrap()
    };
    // If both roots are trusted, any mix of old and new identities works.
    for client in [&old, &new] {
        for server in [&old, &new] {
            let (client, server) = (with(client, REVIEWS, &both), with(server, RATINGS, &both));
            assert_eq!(visit(&client, &server, &[RATINGS]), Ok(false));
        }
    }
    // If one side removes the old root, it refuses the other's old identity.
    let client = with(&new, REVIEWS, &new.bundle());
    let server = with(&old, RATINGS, &both);
    assert_eq!(visit(&client, &server, &[RATINGS]), Err("unknown_issuer"));
    assert_eq!(both.fingerprints().count(), 2);
}

/// Revokes an identity by its name, its certificate's number, or the list of `ca`.
fn revoked(ca: &TestCa, id: &Identity, how: &str) -> Revoked {
    let mut spec = RevocationSpec::default();
    match how {
        "identity" => spec.identity = id.spiffe_id().to_string(),
        "serial" => spec.serial = id.public().serial,
        _ => spec.crl = ca.revocation_list(&[id]),
    }
    spec.read().unwrap()
}

#[test]
fn what_is_revoked_is_refused_at_once_on_both_sides_and_resumes_no_more() {
    let ca = TestCa::new("mesh");
    let (client, server) = (ca.identity(REVIEWS), ca.identity(RATINGS));
    for how in ["identity", "serial", "crl"] {
        for of_server in [false, true] {
            let (at_client, at_server) = (Revocations::default(), Revocations::default());
            let make = |identity, revocations| {
                Context::with_revocations(identity, &ca.bundle(), revocations).unwrap()
            };
            let (one, two) = (make(&client, &at_client), make(&server, &at_server));
            assert_eq!(visit(&one, &two, &[RATINGS]), Ok(false));
            assert_eq!(visit(&one, &two, &[RATINGS]), Ok(true));
            let (judge, judged) = match of_server {
                true => (&at_client, &server),
                false => (&at_server, &client),
            };
            judge.set(Arc::new(revoked(&ca, judged, how)));
            for _ in 0..2 {
                let refused = visit(&one, &two, &[RATINGS]);
                assert_eq!(refused, Err("revoked"), "{how} {of_server}");
            }
            // Another certificate of the same identity is only refused with the identity.
            let again = ca.identity(judged.spiffe_id().as_str());
            let (one, two) = match of_server {
                true => (one, make(&again, &at_server)),
                false => (make(&again, &at_client), two),
            };
            let renewed = visit(&one, &two, &[RATINGS]);
            assert_eq!(renewed.is_err(), how == "identity", "{how} {of_server}");
            judge.set(Arc::default());
            assert!(visit(&one, &two, &[RATINGS]).is_ok());
        }
    }
}

#[test]
fn a_serial_number_of_another_issuer_is_not_meant() {
    let (ca, other) = (TestCa::new("mesh"), TestCa::new("other"));
    let revocations = Revocations::default();
    let client = ca.identity(REVIEWS);
    let one = Context::new(&client, &ca.bundle()).unwrap();
    let server = ca.identity(RATINGS);
    let two = Context::with_revocations(&server, &ca.bundle(), &revocations).unwrap();
    revocations.set(Arc::new(revoked(&other, &client, "crl")));
    assert_eq!(visit(&one, &two, &[RATINGS]), Ok(false));
}

#[test]
fn a_session_does_not_outlive_the_certificate_of_its_peer() {
    let ca = TestCa::new("mesh");
    let now = SystemTime::now();
    let short = |id: &str| {
        let leaf = Leaf {
            not_after: now + Duration::from_secs(600),
            ..Leaf::new(id)
        };
        ca.issue_leaf(&leaf).identity()
    };
    for short_client in [false, true] {
        let clock = TestClock::at(now);
        let make = |id: &str, short_lived: bool| {
            let identity = if short_lived {
                short(id)
            } else {
                ca.identity(id)
            };
            Context::with_test_clock(&identity, &ca.bundle(), clock.clone()).unwrap()
        };
        let client = make(REVIEWS, short_client);
        let server = make(RATINGS, !short_client);
        assert_eq!(visit(&client, &server, &[RATINGS]), Ok(false));
        assert_eq!(visit(&client, &server, &[RATINGS]), Ok(true));
        clock.set(now + Duration::from_secs(601));
        assert_eq!(visit(&client, &server, &[RATINGS]), Err("expired"));
    }
}

#[test]
fn a_client_without_expectations_does_not_start() {
    let ca = TestCa::new("mesh");
    let refused = Handshake::client(&context(&ca, REVIEWS), Arc::new([]), &[]).unwrap_err();
    assert_eq!(refused.code(), "nothing_expected");
}

#[test]
fn a_hello_is_recognised_and_names_no_server() {
    let ca = TestCa::new("mesh");
    let mut client = End::client(&context(&ca, REVIEWS), &[RATINGS], &[Alpn::Tulle1]);
    client.advance();
    assert_eq!(is_client_hello(&client.outgoing), Some(true));
    // There is no SNI: the server's identity concerns only the two ends.
    for name in ["invalid", "ratings", "reviews", "tulle.local"] {
        let name = name.as_bytes();
        assert!(!client.outgoing.windows(name.len()).any(|w| w == name));
    }
}

#[test]
fn what_is_not_tls_is_refused() {
    let ca = TestCa::new("mesh");
    let ratings = context(&ca, RATINGS);
    for bytes in [
        &b"GET / HTTP/1.1\r\nhost: ratings\r\n\r\n"[..],
        &[22, 3, 1, 255, 255],
        &[22, 3, 1, 0, 0],
        &[22, 3, 1, 0, 4, 1, 255, 255, 255],
        &[23, 3, 3, 0, 1, 0],
        &[21, 3, 3, 0, 2, 2, 40],
    ] {
        let mut server = End::server(&ratings);
        server.incoming.extend_from_slice(bytes);
        server.advance();
        assert!(server.failure.is_some(), "{bytes:?}");
    }
}

#[test]
fn an_endless_handshake_is_cut_off() {
    let ca = TestCa::new("mesh");
    let mut server = End::server(&context(&ca, RATINGS));
    // A ClientHello of 65,535 bytes, a byte per record.
    let mut hello = vec![1, 0, 255, 255];
    hello.resize(4 + 65_535, 0);
    for byte in hello {
        server.incoming.extend_from_slice(&[22, 3, 3, 0, 1, byte]);
        server.advance();
        if server.failure.is_some() {
            break;
        }
    }
    assert_eq!(server.failure.unwrap().code(), "too_many_bytes");
}

#[test]
fn a_changed_byte_anywhere_ends_the_handshake_cleanly() {
    let ca = TestCa::new("mesh");
    let (reviews, ratings) = (context(&ca, REVIEWS), context(&ca, RATINGS));
    let mut client = End::client(&reviews, &[RATINGS], &[Alpn::Tulle1]);
    let mut server = End::server(&ratings);
    client.advance();
    let hello = client.outgoing.clone();
    deliver(&mut client, &mut server);
    server.advance();
    let flight = server.outgoing.clone();
    for at in (0..hello.len()).step_by(3) {
        let mut server = End::server(&ratings);
        server.incoming = hello.clone();
        server.incoming[at] ^= 0x41;
        server.advance();
        assert!(server.session.is_none());
    }
    // Each try needs a client that sent just this hello, so change one byte of a fresh answer.
    for at in (0..flight.len()).step_by(11) {
        let mut client = End::client(&context(&ca, REVIEWS), &[RATINGS], &[Alpn::Tulle1]);
        let mut server = End::server(&ratings);
        client.advance();
        deliver(&mut client, &mut server);
        server.advance();
        let versions = record_versions(&server.outgoing);
        if let Some(byte) = server.outgoing.get_mut(at) {
            *byte ^= 0x41;
        }
        deliver(&mut server, &mut client);
        client.advance();
        // TLS 1.3 has receivers ignore the version of a record; all else is protected.
        if client.session.is_some() {
            assert!(versions.contains(&at), "byte {at}");
        }
    }
}

/// Returns the places of the version bytes of these records.
fn record_versions(records: &[u8]) -> Vec<usize> {
    let mut versions = Vec::new();
    let mut at = 0;
    while at + 5 <= records.len() {
        versions.extend([at + 1, at + 2]);
        at += 5 + usize::from(u16::from_be_bytes([records[at + 3], records[at + 4]]));
    }
    versions
}

#[test]
fn identities_are_checked_when_loaded() {
    let ca = TestCa::new("mesh");
    let good = ca.issue(REVIEWS);
    let identity = good.identity();
    assert_eq!(identity.spiffe_id().as_str(), REVIEWS);
    assert_eq!(identity.public().chain_pem, good.chain_pem);
    let debug = format!("{identity:?} {:?}", context(&ca, REVIEWS));
    assert!(
        !debug.contains("PRIVATE") && !debug.contains("key"),
        "{debug}"
    );

    let other = ca.issue(REVIEWS);
    let mixed = Identity::from_pem(good.chain_pem.as_bytes(), other.key_pem.as_bytes());
    assert!(matches!(mixed, Err(IdentityError::KeyMismatch)));
    let no_usage = ca.issue_leaf(&Leaf {
        client_auth: false,
        ..Leaf::new(REVIEWS)
    });
    let refused = Identity::from_pem(no_usage.chain_pem.as_bytes(), no_usage.key_pem.as_bytes());
    assert!(matches!(refused, Err(IdentityError::Refused(e)) if e.code() == "bad_usage"));
    assert!(Identity::from_pem(b"", good.key_pem.as_bytes()).is_err());
    assert!(Identity::from_pem(good.chain_pem.as_bytes(), b"").is_err());
    // A workload's certificate in the bundle would make that workload an authority.
    assert!(TrustBundle::from_pem(good.chain_pem.as_bytes()).is_err());
    assert!(TrustBundle::from_pem(b"").is_err());
}

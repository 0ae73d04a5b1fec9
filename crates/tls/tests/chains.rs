//! A chain that was verified once is not verified again; every other check is repeated.

#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use rustls::pki_types::CertificateDer;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tulle_tls::testing::{AcceptAnyone, Issued, Leaf, TestCa};
use tulle_tls::{Alpn, Context};

const HOUR: Duration = Duration::from_secs(3600);

/// Returns the server's verdict on a client that shows this chain and signs with this key.
fn show(
    server: &Context,
    chain: &[CertificateDer<'static>],
    key: &Issued,
) -> Result<String, &'static str> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let key = provider.key_provider.load_private_key(key.key()).unwrap();
    // Whether they belong together is not checked here.
    let credentials = CertifiedKey::new(chain.to_vec(), key);
    let anyone = AcceptAnyone {
        certificate_required: true,
    };
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(anyone))
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(credentials)));
    let mut client = Plain::client(config);
    let mut server = End::server(server);
    connect_plain(&mut server, &mut client);
    match &server.failure {
        Some(failure) => Err(failure.code()),
        None => {
            assert!(!server.session().resumed());
            Ok(server.session().peer().to_string())
        }
    }
}

fn known(server: &Context, client: &Issued) {
    for _ in 0..2 {
        assert_eq!(show(server, &client.chain, client).unwrap(), REVIEWS);
    }
}

#[test]
fn a_known_chain_proves_nothing_without_its_key() {
    let ca = TestCa::new("mesh");
    let (server, client) = (context(&ca, RATINGS), ca.issue(REVIEWS));
    known(&server, &client);
    // Even the key of the same id from the same authority is not this certificate's.
    let other = ca.issue(REVIEWS);
    assert_eq!(show(&server, &client.chain, &other), Err("bad_certificate"));
    known(&server, &client);
}

#[test]
fn a_changed_certificate_is_not_a_known_one() {
    let ca = TestCa::new("mesh");
    let (server, client) = (context(&ca, RATINGS), ca.issue(REVIEWS));
    known(&server, &client);
    let bytes = client.chain[0].to_vec();
    // The end of the certificate is the signature, its middle is signed.
    for at in [bytes.len() - 1, bytes.len() - 9, bytes.len() / 2] {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1;
        let refused = show(&server, &[bytes.into()], &client);
        assert!(refused.is_err(), "byte {at}: {refused:?}");
    }
    let namesake = TestCa::new("mesh").issue(REVIEWS);
    let refused = show(&server, &namesake.chain, &namesake);
    assert_eq!(refused, Err("unknown_issuer"));
    known(&server, &client);
}

#[test]
fn a_known_certificate_still_needs_the_rest_of_its_chain() {
    let ca = TestCa::new("mesh");
    let middle = ca.intermediate("middle");
    let server = context(&ca, RATINGS);
    let client = middle.issue(REVIEWS).with_issuer(&middle);
    known(&server, &client);
    let alone = &client.chain[..1];
    assert_eq!(show(&server, alone, &client), Err("unknown_issuer"));
    let stranger = ca.intermediate("middle");
    let wrong = [client.chain[0].clone(), stranger.der().clone()];
    assert_eq!(show(&server, &wrong, &client), Err("unknown_issuer"));
    known(&server, &client);
}

#[test]
fn a_known_chain_is_refused_outside_its_validity() {
    let now = SystemTime::now();
    let ca = TestCa::new("mesh");
    let short = Leaf {
        not_after: now + HOUR,
        ..Leaf::new(REVIEWS)
    };
    let ended = ca.intermediate_until("middle", Some(now + HOUR));
    for client in [
        ca.issue_leaf(&short),
        // Its own certificate is valid for a day.
        ended.issue(REVIEWS).with_issuer(&ended),
    ] {
        let clock = TestClock::at(now);
        let server =
            Context::with_test_clock(&ca.identity(RATINGS), &ca.bundle(), clock.clone()).unwrap();
        known(&server, &client);
        clock.set(now + HOUR + Duration::from_secs(1));
        assert_eq!(show(&server, &client.chain, &client), Err("expired"));
        clock.set(now - 2 * HOUR);
        assert_eq!(show(&server, &client.chain, &client), Err("not_yet_valid"));
        clock.set(now);
        known(&server, &client);
    }
}

#[test]
fn a_chain_known_under_another_root_or_of_another_end_is_unknown() {
    let (ca, other) = (TestCa::new("mesh"), TestCa::new("mesh"));
    let client = ca.issue(REVIEWS);
    known(&context(&ca, RATINGS), &client);
    let refused = show(&context(&other, RATINGS), &client.chain, &client);
    assert_eq!(refused, Err("unknown_issuer"));

    // A certificate for clients is not valid for a server, and the other way round.
    let one_way = |client_auth: bool| {
        let leaf = Leaf {
            client_auth,
            server_auth: !client_auth,
            ..Leaf::new(RATINGS)
        };
        ca.issue_leaf(&leaf)
    };
    let own = context(&ca, REVIEWS);
    let dial = |certificate: &Issued| {
        let mut server = plain_server(certificate);
        let mut client = End::client(&own, &[RATINGS], &[Alpn::None]);
        connect_plain(&mut client, &mut server);
        client.failure.map(|f| f.code())
    };
    let (as_client, as_server) = (one_way(true), one_way(false));
    assert_eq!(show(&own, &as_client.chain, &as_client).unwrap(), RATINGS);
    assert_eq!(dial(&as_client), Some("bad_usage"));
    assert_eq!(dial(&as_server), None);
    let refused = show(&own, &as_server.chain, &as_server);
    assert_eq!(refused, Err("bad_usage"));
    // The id of a known server is still compared with the expected ones.
    assert_eq!(dial(&as_server), None);
    let mut server = plain_server(&as_server);
    let mut client = End::client(&own, &["spiffe://tulle.local/svc/details"], &[Alpn::None]);
    connect_plain(&mut client, &mut server);
    assert_eq!(client.failure.unwrap().code(), "wrong_identity");
}

use super::*;
use crate::context::provider;
use crate::host_authority::{HostConstraint, MAX_IDENTITIES, signer_of};
use crate::testing::{HostCa, Leaf as Described, TestCa};
use crate::{Alpn, Context, Handshake, Identity, Progress, Revocations, TrustBundle};
use rustls::server::WebPkiClientVerifier;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tulle_model::identity::SpiffeId;
use tulle_model::resource::{Revoked, Serial};
use x509_parser::prelude::{FromDer, X509Certificate};

const A: &str = "spiffe://tulle.local/svc/a";
const B: &str = "spiffe://tulle.local/svc/b";

fn id(text: &str) -> SpiffeId {
    SpiffeId::parse(text).unwrap()
}

fn constraint(identities: &[&str]) -> HostConstraint {
    HostConstraint {
        host: id("spiffe://tulle.local/node/edge"),
        generation: 7,
        identities: identities.iter().map(|i| id(i)).collect(),
    }
}

fn now() -> UnixTime {
    UnixTime::now()
}

/// The reason why a chain of this authority and root is refused.
fn refusal(root: &TestCa, ca: &HostCa, leaf: &Described) -> Option<HandshakeError> {
    let issued = ca.issue_leaf(leaf);
    check_chain(&root.bundle(), &issued.chain)
}

fn check_chain(bundle: &TrustBundle, chain: &[CertificateDer<'_>]) -> Option<HandshakeError> {
    let (leaf, others) = chain.split_first().unwrap();
    let algorithms = provider().signature_verification_algorithms;
    let checked = check(leaf, others, &bundle.store(), &algorithms, now());
    checked.err().map(HandshakeError::from_tls)
}

fn why(error: Option<HandshakeError>) -> String {
    error.expect("it was accepted").to_string()
}

#[test]
fn the_list_is_read_as_it_was_written() {
    for generation in [
        0,
        1,
        127,
        128,
        255,
        256,
        u64::from(u32::MAX),
        i64::MAX as u64,
        u64::MAX,
    ] {
        let names: Vec<String> = (0..MAX_IDENTITIES)
            .map(|n| format!("spiffe://tulle.local/svc/{n}{}", "x".repeat(n)))
            .collect();
        let mut written = constraint(&names.iter().map(String::as_str).collect::<Vec<_>>());
        written.generation = generation;
        let der = written.to_der().unwrap();
        assert_eq!(HostConstraint::parse(&der), Ok(written));
        for cut in 0..der.len() {
            assert!(HostConstraint::parse(&der[..cut]).is_err());
        }
        let mut longer = der.clone();
        longer.push(0);
        assert!(HostConstraint::parse(&longer).is_err());
    }
}

#[test]
fn lists_of_other_names_are_refused() {
    let many: Vec<String> = (0..=MAX_IDENTITIES)
        .map(|n| format!("spiffe://tulle.local/svc/{n}"))
        .collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for bad in [
        &["spiffe://tulle.local/controller"][..],
        &["spiffe://tulle.local/node/edge"],
        &["spiffe://tulle.local/svc/a/b"],
        &["spiffe://tulle.localx/svc/a"],
        &[A, "spiffe://other/svc/a"],
        &[],
        &many,
    ] {
        assert!(constraint(bad).to_der().is_err(), "{bad:?}");
    }
    let mut nobody = constraint(&[A]);
    nobody.host = id(A);
    assert!(nobody.to_der().is_err());
}

#[test]
fn a_chain_of_workload_host_and_root_is_accepted_in_both_roles() {
    let root = TestCa::new("root");
    let ca = root.host(&constraint(&[A, B]));
    for name in [A, B] {
        let issued = ca.issue_leaf(&ca.leaf(name));
        assert_eq!(check_chain(&root.bundle(), &issued.chain), None);
        assert_eq!(
            root.bundle().root_of(&issued.identity()),
            root.bundle().fingerprints().next()
        );
        assert!(issued.identity().is_signed_by_host());
        let signer = signer_of(&issued.chain[1..]).unwrap().unwrap();
        assert_eq!((signer.host.name(), signer.generation), ("edge", 7));
    }
    assert!(!root.identity(A).is_signed_by_host());
}

#[test]
fn an_authority_speaks_for_nobody_else() {
    let root = TestCa::new("root");
    let ca = root.host(&constraint(&[A]));
    for other in [
        B,
        "spiffe://tulle.local/svc/A",
        "spiffe://tulle.local/svc/a/",
        "spiffe://tulle.local/node/edge",
        "spiffe://tulle.local/node/other",
        "spiffe://tulle.local/controller",
        "spiffe://tulle.local/ns/x/sa/a",
        "spiffe://other/svc/a",
    ] {
        let error = refusal(&root, &ca, &ca.leaf(other)).expect(other);
        assert!(
            matches!(error.code(), "host_authority" | "not_spiffe"),
            "{other}: {error}"
        );
    }
    let mut two = ca.leaf(A);
    two.uris.push(B.into());
    assert_eq!(refusal(&root, &ca, &two).unwrap().code(), "not_spiffe");
    let mut authority = ca.leaf(A);
    authority.is_ca = true;
    assert_eq!(refusal(&root, &ca, &authority).unwrap().code(), "bad_usage");
}

#[test]
fn what_it_signs_is_valid_within_its_own_life() {
    let root = TestCa::new("root");
    let ca = root.host(&constraint(&[A]));
    let second = Duration::from_secs(2);
    for (before, after) in [(second, Duration::ZERO), (Duration::ZERO, second)] {
        let mut leaf = ca.leaf(A);
        leaf.not_before -= before;
        leaf.not_after += after;
        assert!(why(refusal(&root, &ca, &leaf)).contains("outside the validity"));
    }
    let hour = Duration::from_secs(3600);
    let ended = root.host_with(&constraint(&[A]), |params| {
        params.not_after = (SystemTime::now() - hour).into();
    });
    let mut leaf = ended.leaf(A);
    leaf.not_before = SystemTime::now() - 3 * hour;
    leaf.not_after = SystemTime::now() + hour;
    assert!(why(refusal(&root, &ended, &leaf)).contains("no controller has renewed it"));
}

#[test]
fn an_authority_with_more_rights_is_refused_whoever_signed_it() {
    use rcgen::{BasicConstraints, CustomExtension, IsCa, KeyUsagePurpose};
    let root = TestCa::new("root");
    let list = constraint(&[A]);
    type Change = fn(&mut rcgen::CertificateParams);
    let changes: [(&str, Change); 8] = [
        ("a longer path", |p| {
            p.is_ca = IsCa::Ca(BasicConstraints::Constrained(1))
        }),
        ("any path", |p| {
            p.is_ca = IsCa::Ca(BasicConstraints::Unconstrained)
        }),
        ("no authority", |p| p.is_ca = IsCa::ExplicitNoCa),
        ("signs lists, too", |p| {
            p.key_usages.push(KeyUsagePurpose::CrlSign)
        }),
        ("signs handshakes, too", |p| {
            p.key_usages.push(KeyUsagePurpose::DigitalSignature)
        }),
        ("no constraint of names", |p| {
            drop(p.custom_extensions.remove(0))
        }),
        ("a list that is not critical", |p| {
            p.custom_extensions[1].set_criticality(false)
        }),
        ("something unknown", |p| {
            let mut unknown = CustomExtension::from_oid_content(&[2, 25, 1], vec![5, 0]);
            unknown.set_criticality(true);
            p.custom_extensions.push(unknown);
        }),
    ];
    for (what, change) in changes {
        let ca = root.host_with(&list, change);
        assert!(refusal(&root, &ca, &ca.leaf(A)).is_some(), "{what}");
    }
    let unchanged = root.host_with(&list, |_| {});
    assert_eq!(refusal(&root, &unchanged, &unchanged.leaf(A)), None);
}

#[test]
fn only_a_root_makes_one_and_it_makes_none() {
    let root = TestCa::new("root");
    let list = constraint(&[A]);
    let other = TestCa::new("root");
    let ca = other.host(&list);
    assert_eq!(
        refusal(&root, &ca, &ca.leaf(A)),
        Some(HandshakeError::UnknownIssuer)
    );
    // Nothing else goes with it, not even what is harmless.
    let own = root.host(&list);
    let mut issued = own.issue_leaf(&own.leaf(A));
    assert_eq!(check_chain(&root.bundle(), &issued.chain), None);
    issued.chain.push(root.der().clone());
    let refused = check_chain(&root.bundle(), &issued.chain).unwrap();
    assert_eq!(refused.code(), "host_authority");
    // An authority of another host signs one with a longer list: its chain has one certificate too many.
    let first = root.host(&list);
    let second = first.host(&constraint(&[A, B]));
    let mut issued = second.issue_leaf(&second.leaf(B));
    assert!(check_chain(&root.bundle(), &issued.chain).is_some());
    issued.chain.push(first.der().clone());
    assert!(check_chain(&root.bundle(), &issued.chain).is_some());
    // An ordinary intermediate authority between does not help.
    let middle = root.intermediate("middle");
    let below = middle.host(&list);
    let mut issued = below.issue_leaf(&below.leaf(A));
    assert!(check_chain(&root.bundle(), &issued.chain).is_some());
    issued.chain.push(middle.der().clone());
    assert!(check_chain(&root.bundle(), &issued.chain).is_some());
}

#[test]
fn another_verifier_refuses_the_chain() {
    let root = TestCa::new("root");
    let ca = root.host(&constraint(&[A]));
    let issued = ca.issue_leaf(&ca.leaf(A));
    let roots = root.bundle().store();
    let webpki = WebPkiClientVerifier::builder_with_provider(roots, Arc::new(provider()));
    let chain = &issued.chain;
    let refused = webpki
        .build()
        .unwrap()
        .verify_client_cert(&chain[0], &chain[1..], now());
    assert!(refused.is_err());
}

/// Lets a client and a server shake hands; what became of both.
fn shake(client: &Context, server: &Context, expected: &str) -> [Option<HandshakeError>; 2] {
    let expected: Arc<[SpiffeId]> = [id(expected)].into();
    let mut client = Handshake::client(client, expected, &[Alpn::Tulle1]).unwrap();
    let mut server = Handshake::server(server).unwrap();
    let (mut to_client, mut to_server) = (Vec::new(), Vec::new());
    let (mut ends, mut done) = ([None, None], [false; 2]);
    for _ in 0..10 {
        for side in 0..2 {
            if done[side] {
                continue;
            }
            let advanced = match side {
                0 => client.advance(&mut to_client, &mut to_server),
                _ => server.advance(&mut to_server, &mut to_client),
            };
            match advanced {
                Ok(Progress::NeedsRead) => {}
                Ok(Progress::Done(_)) => done[side] = true,
                Err(error) => {
                    ends[side] = Some(error);
                    done[side] = true;
                }
            }
        }
    }
    ends
}

fn context(identity: &Identity, root: &TestCa, revocations: &Revocations) -> Context {
    Context::with_revocations(identity, &root.bundle(), revocations).unwrap()
}

#[test]
fn what_is_revoked_of_a_host_is_refused_at_once_on_both_sides() {
    let root = TestCa::new("root");
    let ca = root.host(&constraint(&[A]));
    let by_host = ca.issue_leaf(&ca.leaf(A)).identity();
    let plain = root.identity(B);
    let revocations = Revocations::default();
    let ours = context(&plain, &root, &revocations);
    let theirs = context(&by_host, &root, &Revocations::default());
    assert_eq!(shake(&ours, &theirs, A), [None, None]);
    assert_eq!(shake(&theirs, &ours, B), [None, None]);
    let (_, cert) = X509Certificate::from_der(ca.der()).unwrap();
    let serial = Serial::from_bytes(cert.raw_serial());
    let host = id("spiffe://tulle.local/node/edge");
    let all = [
        Revoked {
            identities: [host.clone()].into(),
            ..Revoked::default()
        },
        Revoked {
            serials: [serial].into(),
            ..Revoked::default()
        },
        Revoked {
            hosts: [(host.clone(), 8)].into(),
            ..Revoked::default()
        },
    ];
    for revoked in all {
        revocations.set(Arc::new(revoked));
        let code = |e: &Option<HandshakeError>| e.as_ref().map(HandshakeError::code);
        assert_eq!(code(&shake(&ours, &theirs, A)[0]), Some("revoked"));
        assert_eq!(code(&shake(&theirs, &ours, B)[1]), Some("revoked"));
    }
    // An authority of that generation counts, and so does what a root has signed.
    revocations.set(Arc::new(Revoked {
        hosts: [(host, 7)].into(),
        ..Revoked::default()
    }));
    assert_eq!(shake(&ours, &theirs, A), [None, None]);
}

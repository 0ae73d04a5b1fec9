//! An encoded resource decodes to the same value; one that is not wholly understood is refused.

#![allow(clippy::unwrap_used)] // helpers of tests

use proptest::collection::vec;
use proptest::prelude::*;
use tulle_api::{decode, decode_body, encode, encode_body};
use tulle_model::identity::SpiffeId;
use tulle_model::resource::*;

fn identity(name: &str) -> SpiffeId {
    SpiffeId::parse(&format!("spiffe://tulle.local/svc/{name}")).unwrap()
}

/// Returns one resource of each kind, with something in every list.
fn all() -> Vec<Resource> {
    let retry = Retry {
        attempts: 2,
        statuses: vec![502, 503],
        ..Default::default()
    };
    let rule = RouteRule {
        matches: vec![RouteMatch {
            path: PathMatch::Regex("/r/[0-9]+".into()),
            headers: vec![HeaderMatch {
                name: "x-team".into(),
                value: "a|b".into(),
                regex: true,
            }],
            method: "GET".into(),
            ..Default::default()
        }],
        backends: vec![Backend {
            service: "ratings".into(),
            port: 9080,
            weight: 0,
            filters: vec![Filter::RateLimit(RateLimit {
                tokens: 1,
                per_ms: 1000,
                ..Default::default()
            })],
        }],
        filters: vec![
            Filter::Rewrite(Rewrite {
                path: Some(PathEdit::Prefix("/x".into())),
                ..Default::default()
            }),
            Filter::Fault(Fault {
                abort_status: 503,
                abort_ppm: 1,
                ..Default::default()
            }),
        ],
        retry: Some(Box::new(retry)),
        request_timeout_ms: u32::MAX,
        ..Default::default()
    };
    let route = Route {
        name: "ratings".into(),
        hostnames: vec!["*.example.com".into()],
        rules: vec![rule],
        port: 0,
        listener: "web".into(),
        clients: "shop".into(),
    };
    let service = Service {
        name: "ratings".into(),
        addresses: vec!["10.0.0.7".parse().unwrap(), "fd00::7".parse().unwrap()],
        hostnames: vec!["ratings".into()],
        identities: vec![identity("ratings")],
        ports: vec![ServicePort {
            port: 9080,
            protocol: Protocol::Grpc,
            endpoints: vec![
                Endpoint::new("10.0.0.7:9080".parse().unwrap(), true),
                Endpoint {
                    weight: 0,
                    locality: "eu/a".into(),
                    ..Endpoint::new("[fd00::7]:9080".parse().unwrap(), false)
                },
            ],
            traffic: Some(Box::new(Traffic {
                balancer: Balancer::RingHash(HashKey::Header("x-user".into())),
                ..Default::default()
            })),
        }],
        routes: vec![route.clone()],
        split: vec![Target {
            service: "ratings-v2".into(),
            port: 0,
            weight: 10,
        }],
        ..Default::default()
    };
    let inbound = Inbound {
        service: "ratings".into(),
        ports: vec![InboundPort::new(
            9080,
            Protocol::Http,
            "127.0.0.1:9080".parse().unwrap(),
        )],
        policy: Policy {
            permissive: false,
            rules: vec![PolicyRule {
                name: "AuthorizationPolicy/a".into(),
                action: Action::AuditDeny,
                sources: vec![identity("reviews")],
                networks: vec!["10.0.0.0/8".parse().unwrap()],
                matches: vec![PolicyMatch {
                    path: Some(PathMatch::Exact("/".into())),
                    ..Default::default()
                }],
                ..Default::default()
            }],
        },
        locality: String::new(),
        workload: None,
    };
    let gateway = Gateway {
        name: "ingress".into(),
        listeners: vec![GatewayListener {
            name: "web".into(),
            port: 8443,
            protocol: ListenerProtocol::Https,
            tls: Some(Box::new(ListenerTls {
                certificates: vec![Certificate {
                    chain: "chain".into(),
                    key: "key".into(),
                }],
                ..Default::default()
            })),
            ..Default::default()
        }],
        routes: vec![route],
        ..Default::default()
    };
    let egress = Egress {
        rules: vec![EgressRule {
            name: "Egress/e".into(),
            hosts: vec!["*.example.com".into()],
            ports: vec![EgressPort {
                port: 443,
                protocol: Protocol::Tls,
            }],
            ..Default::default()
        }],
    };
    vec![
        Resource::Mesh(MeshSettings::default()),
        Resource::Service(service),
        Resource::Inbound(inbound),
        Resource::Gateway(gateway),
        Resource::Alias("ratings".into()),
        Resource::Catalog(vec!["ratings".into(), "reviews".into()]),
        Resource::Egress(egress),
        Resource::Host("ratings".into()),
    ]
}

#[test]
fn what_is_encoded_decodes_to_the_same() {
    for resource in all() {
        let body = encode_body(&resource);
        assert_eq!(body, encode_body(&resource), "the version is a hash of it");
        assert_eq!(decode_body(&body), Ok(resource));
    }
}

#[test]
fn every_field_that_is_not_known_is_refused() {
    for resource in all() {
        let text = String::from_utf8(encode_body(&resource).to_vec()).unwrap();
        // In each object of the body, of whatever depth.
        for (at, _) in text.match_indices('{') {
            let mut other = text.clone();
            let comma = if text[at + 1..].starts_with('}') {
                ""
            } else {
                ","
            };
            other.insert_str(at + 1, &format!("\"x-new\":1{comma}"));
            assert!(decode_body(other.as_bytes()).is_err(), "{other}");
        }
    }
}

#[test]
fn a_default_is_not_written_and_means_the_least() {
    let body = encode_body(&Resource::Inbound(Inbound {
        service: "ratings".into(),
        ..Default::default()
    }));
    assert_eq!(body, r#"{"inbound":{"service":"ratings","ports":[]}}"#);
    let Ok(Resource::Inbound(inbound)) = decode_body(&body) else {
        panic!("not an inbound");
    };
    assert_eq!(inbound.policy, Policy::default(), "allows nothing");
}

#[test]
fn values_without_the_right_form_are_refused() {
    for text in [
        "",
        "{}",
        r#"{"other":1}"#,
        r#"{"service":{"name":"a","ports":[{"port":70000}]}}"#,
        r#"{"service":{"name":"a","ports":[{"port":1,"protocol":"smtp"}]}}"#,
        r#"{"service":{"name":"a","ports":[{"port":1,"endpoints":[{"address":"ratings:9080"}]}]}}"#,
        r#"{"service":{"name":"a","identities":["spiffe://tulle.local/../x"],"ports":[]}}"#,
        r#"{"inbound":{"service":"a","ports":[],"policy":{"rules":[{"name":"r","networks":["10/8"]}]}}}"#,
        r#"{"alias":"a"}{}"#,
    ] {
        assert!(decode_body(text.as_bytes()).is_err(), "{text}");
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..200)) {
        let _ = decode_body(&bytes);
    }
}

#[test]
fn names_of_workloads_travel_beside_the_body() {
    let workload = Workload {
        name: "ratings-v1".into(),
        ..Default::default()
    };
    let known = KnownWorkload {
        workload: workload.clone(),
        identity: 0,
    };
    let service = |workloads| {
        Resource::Service(Service {
            name: "ratings".into(),
            workloads,
            ..Default::default()
        })
    };
    let inbound = |workload| {
        Resource::Inbound(Inbound {
            service: "ratings".into(),
            workload,
            ..Default::default()
        })
    };
    let table = Workloads {
        known: vec![known],
        endpoints: vec![vec![1, 0]],
    };
    for (named, plain) in [
        (service(table), service(Workloads::default())),
        (inbound(Some(Box::new(workload))), inbound(None)),
    ] {
        let encoded = encode(named.clone());
        // A proxy of version 0.1 reads the body alone.
        assert_eq!(encoded.body, encode_body(&plain));
        assert_eq!(decode_body(&encoded.body), Ok(plain.clone()));
        assert_eq!(decode(&encoded.body, &encoded.labels), Ok(named));
        // A controller of version 0.1 sends nothing beside it; names that are not understood are left out.
        for labels in [&b""[..], b"{", b"{\"workload\":{}}", b"[]"] {
            assert_eq!(decode(&encoded.body, labels), Ok(plain.clone()));
        }
        assert!(encode(plain).labels.is_empty());
    }
}

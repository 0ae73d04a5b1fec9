//! What is encoded decodes to the same value; what is not valid is refused with the field's name.

#![allow(clippy::unwrap_used)] // helpers of tests

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use prost::Message;
use std::net::{IpAddr, SocketAddr};
use tulle_api::{decode_body, encode_body, v1};
use tulle_model::identity::{SpiffeId, TrustDomain};
use tulle_model::resource::*;

fn text() -> impl Strategy<Value = String> {
    "\\PC{0,8}"
}

fn port() -> impl Strategy<Value = u16> {
    1..=u16::MAX
}

fn ip() -> impl Strategy<Value = IpAddr> {
    any::<IpAddr>()
}

fn socket() -> impl Strategy<Value = SocketAddr> {
    (ip(), any::<u16>()).prop_map(|(ip, port)| SocketAddr::new(ip, port))
}

fn identity() -> impl Strategy<Value = SpiffeId> {
    "spiffe://[a-z0-9._-]{1,8}/[A-Za-z0-9_-]{1,8}".prop_map(|text| SpiffeId::parse(&text).unwrap())
}

fn protocol() -> impl Strategy<Value = Protocol> {
    prop_oneof![
        Just(Protocol::Detect),
        Just(Protocol::Http),
        Just(Protocol::Tcp),
        Just(Protocol::Http2),
        Just(Protocol::Grpc),
        Just(Protocol::Tls),
    ]
}

fn mesh() -> impl Strategy<Value = MeshSettings> {
    (
        "[a-z0-9._-]{1,20}",
        text(),
        any::<[u32; 7]>(),
        any::<[bool; 3]>(),
    )
        .prop_map(|(domain, log_level, n, b)| MeshSettings {
            trust_domain: TrustDomain::parse(&domain).unwrap(),
            strict_mtls: b[0],
            log_level,
            access_log: b[1],
            detect_timeout_ms: n[0],
            header_timeout_ms: n[1],
            idle_timeout_ms: n[2],
            request_timeout_ms: n[3],
            connect_timeout_ms: n[4],
            max_header_bytes: n[5],
            max_headers: n[6],
            allow_egress: b[2],
        })
}

fn service() -> impl Strategy<Value = Service> {
    let endpoint = (socket(), any::<bool>()).prop_map(|(address, mutual_tls)| Endpoint {
        address,
        mutual_tls,
    });
    let ports =
        (port(), protocol(), vec(endpoint, 0..3)).prop_map(|(port, protocol, endpoints)| {
            ServicePort {
                port,
                protocol,
                endpoints,
            }
        });
    (
        text(),
        vec(ip(), 0..3),
        vec(text(), 0..3),
        vec(identity(), 0..3),
        vec(ports, 0..3),
        vec(route(), 0..3),
        any::<bool>(),
    )
        .prop_map(
            |(name, addresses, hostnames, identities, ports, routes, least_request)| Service {
                name,
                addresses,
                hostnames,
                identities,
                ports,
                routes,
                least_request,
            },
        )
}

fn inbound() -> impl Strategy<Value = Inbound> {
    let ports = (port(), protocol(), socket()).prop_map(|(port, protocol, target)| InboundPort {
        port,
        protocol,
        target,
    });
    let matches = (
        text(),
        vec(text(), 0..3),
        text(),
        btree_map(text(), text(), 0..3),
    )
        .prop_map(|(name, methods, path_regex, headers)| PolicyMatch {
            name,
            methods,
            path_regex,
            headers,
        });
    let rules = (
        text(),
        vec(identity(), 0..3),
        vec(port(), 0..3),
        vec(matches, 0..3),
    )
        .prop_map(|(name, sources, ports, matches)| PolicyRule {
            name,
            sources,
            ports,
            matches,
        });
    let policy = (any::<bool>(), vec(rules, 0..3))
        .prop_map(|(permissive, rules)| Policy { permissive, rules });
    (text(), vec(ports, 0..3), policy).prop_map(|(service, ports, policy)| Inbound {
        service,
        ports,
        policy,
    })
}

fn route() -> impl Strategy<Value = Route> {
    let path = prop_oneof![
        text().prop_map(PathMatch::Exact),
        text().prop_map(PathMatch::Prefix),
        text().prop_map(PathMatch::Regex),
    ];
    let header = (text(), text(), any::<bool>()).prop_map(|(name, value, regex)| HeaderMatch {
        name,
        value,
        regex,
    });
    let matches =
        (path, vec(header, 0..3), text()).prop_map(|(path, headers, method)| RouteMatch {
            path,
            headers,
            method,
        });
    let backend = (text(), port(), any::<u32>()).prop_map(|(service, port, weight)| Backend {
        service,
        port,
        weight,
    });
    let rules = (vec(matches, 0..3), vec(backend, 0..3), any::<u32>()).prop_map(
        |(matches, backends, request_timeout_ms)| RouteRule {
            matches,
            backends,
            request_timeout_ms,
        },
    );
    (text(), vec(text(), 0..3), vec(rules, 0..3), any::<u16>()).prop_map(
        |(name, hostnames, rules, port)| Route {
            name,
            hostnames,
            rules,
            port,
        },
    )
}

fn gateway() -> impl Strategy<Value = Gateway> {
    let listener = (text(), port(), text()).prop_map(|(name, port, hostname)| GatewayListener {
        name,
        port,
        hostname,
    });
    (text(), vec(listener, 0..3), vec(route(), 0..3)).prop_map(|(name, listeners, routes)| {
        Gateway {
            name,
            listeners,
            routes,
        }
    })
}

fn resource() -> impl Strategy<Value = Resource> {
    prop_oneof![
        mesh().prop_map(Resource::Mesh),
        service().prop_map(Resource::Service),
        inbound().prop_map(Resource::Inbound),
        gateway().prop_map(Resource::Gateway),
        text().prop_map(Resource::Alias),
        vec(text(), 0..4).prop_map(Resource::Catalog),
    ]
}

proptest! {
    #[test]
    fn what_is_encoded_decodes_to_the_same(resource in resource()) {
        let body = encode_body(&resource);
        prop_assert_eq!(&body, &encode_body(&resource));
        prop_assert_eq!(decode_body(&body).unwrap(), resource);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..200)) {
        let _ = decode_body(&bytes);
    }
}

fn refused(kind: v1::resource_body::Kind) -> String {
    let body = v1::ResourceBody { kind: Some(kind) }.encode_to_vec();
    decode_body(&body).unwrap_err().to_string()
}

fn service_with(ports: Vec<v1::ServicePort>) -> v1::resource_body::Kind {
    v1::resource_body::Kind::Service(v1::Service {
        ports,
        ..Default::default()
    })
}

#[test]
fn errors_name_the_field() {
    let port = |number, address: &str| v1::ServicePort {
        port: number,
        protocol: 0,
        endpoints: vec![v1::Endpoint {
            address: address.into(),
            mutual_tls: true,
        }],
    };
    assert_eq!(
        refused(service_with(vec![
            port(1, "10.0.0.1:1"),
            port(70_000, "10.0.0.1:1")
        ])),
        "invalid message: service.ports[1].port: expected a port from 1 to 65535, found 70000"
    );
    assert_eq!(
        refused(service_with(vec![port(1, "ratings:9080")])),
        "invalid message: service.ports[0].endpoints[0].address: expected ip:port, found \"ratings:9080\""
    );
    let service = v1::Service {
        identities: vec!["spiffe://tulle.local/../x".into()],
        ..Default::default()
    };
    let message = refused(v1::resource_body::Kind::Service(service));
    assert!(
        message.starts_with("invalid message: service.identities[0]: "),
        "{message}"
    );
    let mut unknown = port(1, "10.0.0.1:1");
    unknown.protocol = 99;
    assert_eq!(
        refused(service_with(vec![unknown])),
        "invalid message: service.ports[0].protocol: protocol number 99 is unknown to this version"
    );
}

#[test]
fn an_unknown_path_match_does_not_become_any_path() {
    let route = v1::Route {
        rules: vec![v1::RouteRule {
            matches: vec![v1::RouteMatch {
                path: Some(v1::PathMatch { kind: None }),
                ..Default::default()
            }],
            ..Default::default()
        }],
        ..Default::default()
    };
    let service = v1::Service {
        routes: vec![route],
        ..Default::default()
    };
    assert_eq!(
        refused(v1::resource_body::Kind::Service(service)),
        "invalid message: service.routes[0].rules[0].matches[0].path.kind: it is missing or unknown to this version"
    );
}

#[test]
fn an_empty_body_is_refused() {
    assert_eq!(
        decode_body(&[]).unwrap_err().to_string(),
        "invalid message: kind: it is missing or unknown to this version"
    );
}

#[test]
fn an_absent_policy_allows_nothing() {
    let inbound = v1::Inbound {
        service: "ratings".into(),
        ..Default::default()
    };
    let body = v1::ResourceBody {
        kind: Some(v1::resource_body::Kind::Inbound(inbound)),
    };
    let Ok(Resource::Inbound(inbound)) = decode_body(&body.encode_to_vec()) else {
        panic!("not an inbound");
    };
    assert_eq!(inbound.policy, Policy::default());
}

//! Reading never panics, and what is written reads as the same.

#![allow(clippy::unwrap_used)] // helpers of tests

use proptest::collection::{btree_map, vec};
use proptest::option::of;
use proptest::prelude::*;
use std::net::IpAddr;
use tulle_model::bootstrap::Bootstrap;
use tulle_model::identity::TrustDomain;
use tulle_model::manifest::*;
use tulle_model::resource::OtlpProtocol;

fn label() -> impl Strategy<Value = String> {
    "[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?"
}

/// Text that a careless writer of YAML would get wrong, or anything else.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(
            &[
                "",
                " ",
                "yes",
                "true",
                "null",
                "~",
                "<<",
                "0755",
                "1_000",
                "1.0",
                ".nan",
                "1e3",
                "a: b",
                "- a",
                "# a",
                "*a",
                "&a",
                "!a",
                "%a",
                "@a",
                "`a",
                "'",
                "\"",
                "\\",
                "{",
                "[",
                "|",
                ">",
                "---",
                "...",
                "a\nb",
                "a\n",
                "\ta",
                "0x10",
                "2026-01-01",
                "\u{85}",
                "\u{2028}",
                "\u{feff}",
                "\u{1}",
            ][..]
        )
        .prop_map(str::to_owned),
        "[^\0]{0,12}",
    ]
}

fn port() -> impl Strategy<Value = u16> {
    (1..=u16::MAX).prop_filter("the sidecar's own", |port| {
        ![15000, 15001, 15006, 15020, 15053].contains(port)
    })
}

fn duration() -> impl Strategy<Value = String> {
    (1..100u32, prop::sample::select(&["ms", "s", "m", "h"][..]))
        .prop_map(|(n, u)| format!("{n}{u}"))
}

fn method() -> impl Strategy<Value = String> {
    prop::sample::select(&["GET", "POST", "PATCH"][..]).prop_map(str::to_owned)
}

fn regex() -> impl Strategy<Value = String> {
    prop::sample::select(&[".*", "/a/[0-9]+", "a|b", "^x$", "", "'\"#: "][..])
        .prop_map(str::to_owned)
}

fn metadata() -> impl Strategy<Value = Metadata> {
    (
        label(),
        of(label()),
        btree_map(text(), text(), 0..4),
        btree_map(text(), text(), 0..4),
    )
        .prop_map(|(name, namespace, labels, annotations)| Metadata {
            name,
            namespace,
            labels,
            annotations,
            created: String::new(),
        })
}

fn manifest<S: std::fmt::Debug>(
    api_version: &'static str,
    kind: &'static str,
    spec: impl Strategy<Value = S>,
) -> impl Strategy<Value = Manifest<S>> {
    (metadata(), spec).prop_map(move |(metadata, spec)| Manifest {
        api_version: api_version.into(),
        kind: kind.into(),
        metadata,
        spec,
    })
}

fn mesh() -> impl Strategy<Value = MeshSpec> {
    let limits = (
        of(1024u32..65536),
        of(10u32..=128),
        of(1u16..256),
        of(1u32..9999),
    );
    let timeouts = (of(duration()), of(duration()), of(duration()));
    (any::<[bool; 4]>(), limits, timeouts, "[a-z0-9._-]{1,12}").prop_map(
        |(
            flags,
            (header_bytes, header_count, workers, milli),
            (idle, request, connect),
            domain,
        )| MeshSpec {
            trust_domain: TrustDomain::parse(&domain).unwrap(),
            permissive_mode: flags[0],
            mtls: MtlsSpec {
                mode: if flags[1] {
                    MtlsMode::Strict
                } else {
                    MtlsMode::Permissive
                },
            },
            certificates: CertificateSpec {
                lifetime: flags[2].then(|| "1h30m".into()),
                renew_after: flags[3].then(|| "10m".into()),
                host_authority: flags[2].then(|| HostAuthoritySpec {
                    lifetime: flags[3].then(|| "720h".into()),
                    hosts: vec!["edge".into()],
                }),
            },
            log_level: flags[3].then(|| "debug".into()),
            access_log: flags[2].then(|| AccessLogSpec {
                sampling: flags[3].then(|| "10%".into()),
                only_errors: flags[1],
                format: flags[0].then(|| "%PROTOCOL%".into()),
                ..Default::default()
            }),
            metrics: MetricSpec {
                labels: if flags[0] {
                    MetricLabels::Compact
                } else {
                    MetricLabels::Full
                },
                sizes: flags[1].then_some(false),
                osm_names: flags[2],
            },
            revoked: flags[1]
                .then(|| RevocationSpec {
                    serial: "3f:9a:01".into(),
                    reason: "lost".into(),
                    ..RevocationSpec::default()
                })
                .into_iter()
                .collect(),
            jwks: JwksSpec {
                hosts: workers.map_or_else(Vec::new, |port| {
                    vec![JwksHostSpec {
                        host: "login.example.com".into(),
                        port: Some(port),
                        roots: String::new(),
                        networks: vec!["10.0.0.0/8".parse().unwrap()],
                    }]
                }),
            },
            sidecar: SidecarSpec {
                cpu_limit: milli.map(|m| format!("{m}m")),
                memory_limit: milli.map(|m| format!("{m}")),
                workers,
                max_connections: workers.map(u32::from),
                economy: workers.map(|n| format!("{n}us")),
            },
            timeouts: TimeoutSpec {
                protocol_detection: flags[1].then(|| "50ms".into()),
                header: None,
                idle,
                request,
                connect,
            },
            limits: LimitSpec {
                header_bytes,
                header_count,
            },
            allow_egress: flags[0],
            dns: flags[1],
            tracing: flags[2].then(|| TracingSpec {
                endpoint: "https://[::1]:4317".into(),
                protocol: OtlpProtocol::Http,
                roots: String::new(),
                sampling: flags[0].then(|| "0.5%".into()),
                attributes: [("a".into(), "b".into())].into(),
            }),
            otlp: flags[1].then(|| OtlpSpec {
                endpoint: "collector:4317".into(),
                metrics: flags[0].then(|| "30s".into()),
                access_log: true,
                ..OtlpSpec::default()
            }),
        },
    )
}

fn workload() -> impl Strategy<Value = WorkloadSpec> {
    let start = prop_oneof![
        (vec(text(), 0..3), vec(text(), 0..3), of(text())).prop_map(
            |(arguments, values, directory)| {
                let mut command = vec!["run".to_owned()];
                command.extend(arguments);
                let env = values.into_iter().enumerate();
                let env = env
                    .map(|(i, value)| EnvVar {
                        name: format!("V{i}"),
                        value,
                    })
                    .collect();
                (command, env, directory, None)
            }
        ),
        any::<IpAddr>().prop_map(|ip| (vec![], vec![], None, Some(ip))),
    ];
    let ports = btree_map(port(), (of(port()), any::<bool>()), 0..4).prop_map(|ports| {
        let port = |(port, (target_port, named)): (u16, (Option<u16>, bool))| WorkloadPort {
            name: named.then(|| format!("p{port}")),
            port,
            target_port,
            app_protocol: named.then(|| "kubernetes.io/h2c".into()),
            proxy_protocol: named,
        };
        ports.into_iter().map(port).collect::<Vec<_>>()
    });
    let probe = prop_oneof![
        port().prop_map(|port| Probe {
            tcp_socket: Some(TcpSocket { port }),
            ..Probe::default()
        }),
        port().prop_map(|port| Probe {
            http_get: Some(HttpGet {
                path: "/ready?a=b#c".into(),
                port
            }),
            period_seconds: Some(3),
            ..Probe::default()
        }),
        vec(text(), 1..3).prop_map(|command| Probe {
            exec: Some(Exec { command }),
            failure_threshold: Some(1),
            ..Probe::default()
        }),
    ];
    let upstreams = btree_map((label(), port()), any::<bool>(), 0..3).prop_map(|all| {
        let upstream = |(i, ((service, port), more)): (usize, ((String, u16), bool))| Upstream {
            service,
            port,
            env: more.then(|| format!("UPSTREAM_{i}")),
            local_port: more.then(|| 1000 + u16::try_from(i).unwrap()),
        };
        all.into_iter()
            .enumerate()
            .map(upstream)
            .collect::<Vec<_>>()
    });
    (of(label()), of(label()), start, ports, of(probe), upstreams).prop_map(
        |(
            service,
            identity,
            (command, env, working_directory, address),
            ports,
            readiness_probe,
            upstreams,
        )| {
            WorkloadSpec {
                service,
                identity,
                user: command.first().map(|_| "1000".to_owned()),
                command,
                address,
                working_directory,
                pass_env: env.iter().map(|v| format!("{}_TOO", v.name)).collect(),
                env,
                ports,
                readiness_probe,
                upstreams,
                locality: None,
                weight: Some(3),
            }
        },
    )
}

fn gateway() -> impl Strategy<Value = GatewaySpec> {
    let listeners = btree_map(port(), of(label()), 1..4).prop_map(|ports| {
        let listener = |(port, host): (u16, Option<String>)| ListenerSpec {
            name: format!("l{port}"),
            port,
            protocol: "HTTP".into(),
            // A label of digits and dots could be an address.
            hostname: host.map(|h| format!("*.h{h}.example")),
            ..Default::default()
        };
        ports.into_iter().map(listener).collect()
    });
    (listeners, vec(any::<IpAddr>(), 0..2)).prop_map(|(listeners, addresses)| GatewaySpec {
        gateway_class_name: "tulle".into(),
        listeners,
        infrastructure: None,
        addresses: addresses
            .into_iter()
            .map(|value| GatewayAddress {
                kind: Some("IPAddress".into()),
                value,
            })
            .collect(),
    })
}

fn http_route() -> impl Strategy<Value = HttpRouteSpec> {
    let parent = (label(), any::<bool>(), of(port())).prop_map(|(name, service, port)| ParentRef {
        group: service.then(String::new),
        kind: service.then(|| "Service".into()),
        name,
        namespace: None,
        section_name: (!service).then(|| "web".into()),
        port,
    });
    let path = prop_oneof![
        regex().prop_map(|value| HttpPathMatch {
            kind: Some("RegularExpression".into()),
            value: Some(value)
        }),
        "/[!-~]{0,8}".prop_map(|value| HttpPathMatch {
            kind: None,
            value: Some(value)
        }),
    ];
    let header = (text(), any::<bool>()).prop_map(|(value, is_regex)| HttpHeaderMatch {
        kind: is_regex.then(|| "RegularExpression".into()),
        name: "X-Version".into(),
        value: if is_regex { "a.*".into() } else { value },
    });
    let matches =
        (of(path), vec(header, 0..2), of(method())).prop_map(|(path, headers, method)| {
            HttpRouteMatch {
                path,
                headers,
                method,
                ..Default::default()
            }
        });
    let backend = (label(), port(), of(0..1000u32)).prop_map(|(name, port, weight)| BackendRef {
        group: None,
        kind: Some("Service".into()),
        name,
        namespace: None,
        port,
        weight,
        ..Default::default()
    });
    let rule = (vec(matches, 0..3), vec(backend, 0..3), of(of(duration()))).prop_map(
        |(matches, backend_refs, timeouts)| HttpRouteRule {
            matches,
            backend_refs,
            timeouts: timeouts.map(|request| HttpRouteTimeouts {
                request,
                ..Default::default()
            }),
            ..Default::default()
        },
    );
    (
        vec(parent, 1..3),
        vec(label().prop_map(|l| format!("a{l}.example")), 0..3),
        vec(rule, 1..3),
    )
        .prop_map(|(parent_refs, hostnames, rules)| HttpRouteSpec {
            parent_refs,
            hostnames,
            rules,
        })
}

fn identity_ref(port: Option<u16>) -> impl Strategy<Value = IdentityRef> {
    (label(), of(label())).prop_map(move |(name, namespace)| IdentityRef {
        kind: "ServiceAccount".into(),
        name,
        namespace,
        port,
    })
}

fn traffic_target() -> impl Strategy<Value = TrafficTargetSpec> {
    let rule = (label(), any::<bool>()).prop_map(|(name, some)| TrafficTargetRule {
        kind: "HTTPRouteGroup".into(),
        name,
        matches: if some {
            vec!["a".into(), "b".into()]
        } else {
            vec![]
        },
    });
    let destination = of(port()).prop_flat_map(identity_ref);
    (destination, vec(identity_ref(None), 1..3), vec(rule, 0..3)).prop_map(
        |(destination, sources, rules)| TrafficTargetSpec {
            destination,
            sources,
            rules,
        },
    )
}

fn http_route_group() -> impl Strategy<Value = HttpRouteGroupSpec> {
    let parts = (
        vec(method(), 0..3),
        of(regex()),
        btree_map("[a-z-]{1,8}", regex(), 0..3),
    );
    vec(parts, 1..3).prop_map(|all| {
        let group = |(i, (methods, path_regex, headers)): (usize, _)| HttpRouteGroupMatch {
            name: format!("match {i}"),
            methods,
            path_regex,
            headers,
        };
        HttpRouteGroupSpec {
            matches: all.into_iter().enumerate().map(group).collect(),
        }
    })
}

fn object() -> impl Strategy<Value = Object> {
    let tulle = "tulle.dev/v1alpha1";
    let routing = "gateway.networking.k8s.io/v1";
    prop_oneof![
        manifest(tulle, "Mesh", mesh()).prop_map(Object::Mesh),
        manifest(tulle, "Workload", workload()).prop_map(Object::Workload),
        manifest(routing, "Gateway", gateway()).prop_map(Object::Gateway),
        manifest(routing, "HTTPRoute", http_route()).prop_map(Object::HttpRoute),
        manifest(
            "access.smi-spec.io/v1alpha3",
            "TrafficTarget",
            traffic_target()
        )
        .prop_map(Object::TrafficTarget),
        manifest(
            "specs.smi-spec.io/v1alpha4",
            "HTTPRouteGroup",
            http_route_group()
        )
        .prop_map(Object::HttpRouteGroup),
    ]
}

proptest! {
    #[test]
    fn what_is_written_reads_as_the_same(object in object()) {
        let yaml = object.to_yaml();
        let read = parse("a.yaml", &yaml);
        prop_assert!(read.is_ok(), "{:?}\n{yaml}", read);
        let read: Vec<_> = read.unwrap().into_iter().map(|o| o.object).collect();
        prop_assert_eq!(&read, std::slice::from_ref(&object), "{}", yaml);
        let json = object.to_json();
        prop_assert_eq!(Object::from_json(&json).unwrap(), object);
        prop_assert_eq!(read[0].to_json(), json);
    }

    #[test]
    fn arbitrary_text_never_panics(text in "\\PC{0,200}") {
        let _ = parse("a.yaml", &text);
        let _ = Bootstrap::parse("a.yaml", &text);
        let _ = Object::from_json(&text);
        let _ = (parse_duration(&text), parse_cpu(&text), parse_memory(&text));
    }

    #[test]
    fn text_like_yaml_never_panics(text in "([a-z&*!|>'\"#%@~-]{0,3}[:,\\[\\]{}\\- \n\t]{1,3}){0,40}") {
        let _ = parse("a.yaml", &text);
        let _ = Bootstrap::parse("a.yaml", &text);
    }

    /// Nearly right is where a reader goes wrong.
    #[test]
    fn a_damaged_document_never_panics(
        object in object(),
        at in any::<prop::sample::Index>(),
        length in 0..20usize,
        insert in text(),
    ) {
        let yaml: Vec<char> = object.to_yaml().chars().collect();
        let at = at.index(yaml.len());
        let after = yaml.iter().skip(at + length);
        let damaged: String = yaml[..at].iter().copied().chain(insert.chars()).chain(after.copied()).collect();
        if let Err(errors) = parse("a.yaml", &damaged) {
            prop_assert!(!errors.is_empty());
            for error in errors {
                prop_assert!(!error.to_string().contains('\n'), "{:?}", error);
            }
        }
    }
}

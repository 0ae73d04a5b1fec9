//! The subject with one more thing to do: what a feature costs, and what one costs that stands in
//! the configuration and has nothing to do with the requests.

use super::{Peer, SERVER, Sidecar, Topology, Tulle};
use crate::failure::Result;
use crate::payload::text;
use std::path::PathBuf;
use tulle_model::bootstrap::Bootstrap;
use tulle_model::resource::{
    Action, Affinity, Backend, Balancer, Breaker, ConnectionLimits, Cors, Fault, Filter, HashKey,
    Header, HeaderEdit, HeaderMatch, HealthCheck, InboundRule, Locality, PathEdit, PathMatch,
    Plugin, PolicyMatch, PolicyRule, RateLimit, Retry, Rewrite, Route, RouteMatch, RouteRule,
    Traffic,
};

/// A feature, and how the sidecars are told of it.
pub(super) struct Feature {
    /// The name for `--vs`.
    pub(super) name: &'static str,
    /// The description in the report.
    what: &'static str,
    client: fn(&mut Bootstrap),
    server: fn(&mut Bootstrap),
}

/// Asked by the proof of a caller's identity; whatever decides by the path lets it through.
const CALLER: &str = "/caller";

/// All of them. Requests of the load are `GET /bytes/N`.
pub(super) const FEATURES: [Feature; 21] = [
    Feature {
        name: "tulle+unused",
        what: "a route with fifty rules and every filter, policies and limits, none of which a request meets",
        client: |b| {
            routed(b, |route| {
                let never = |n| RouteRule {
                    matches: vec![prefix(&format!("/never/{n}"))],
                    backends: vec![backend()],
                    filters: vec![
                        set("x-never"),
                        fault(1_000_000),
                        limit(1),
                        Filter::Cors(cors()),
                    ],
                    retry: Some(Box::new(retry())),
                    ..Default::default()
                };
                route.rules.extend((0..50).map(never));
            });
        },
        server: |b| {
            denied(b);
            ruled(b, "/never", vec![fault(1_000_000), limit(1)]);
        },
    },
    Feature {
        name: "tulle+economy",
        what: "pauses of up to 300 µs before events are waited for, where those merge several (`sidecar.economy`)",
        client: |b| b.mesh.economy_us = 300,
        server: |b| b.mesh.economy_us = 300,
    },
    Feature {
        name: "tulle+route",
        what: "one route rule by path and header",
        client: |b| {
            routed(b, |route| {
                let by_header = RouteMatch {
                    headers: vec![HeaderMatch {
                        name: "host".into(),
                        value: ".+".into(),
                        regex: true,
                    }],
                    ..prefix("/bytes")
                };
                route.rules[0].matches = vec![by_header, prefix(CALLER)];
            });
        },
        server: |_| {},
    },
    Feature {
        name: "tulle+expressions",
        what: "a policy with ten conditions in CEL about path, headers and caller, all of which are judged",
        client: |_| {},
        server: conditioned,
    },
    Feature {
        name: "tulle+plugin",
        what: "a plugin in the server's sidecar that reads a header and sets one, of the request and of the response",
        client: |_| {},
        server: |b| {
            let source = "export function onRequest(request) { request.headers.set('x-set', request.headers.get('host')) }
                export function onResponse(response) { response.headers.set('x-set', response.headers.get('content-length')) }";
            ruled(b, "/", vec![plugin(source)]);
        },
    },
    Feature {
        name: "tulle+plugin-body",
        what: "a plugin in the server's sidecar that rewrites the body of the response, under load into the same one",
        client: |_| {},
        server: |b| {
            let source =
                "export const onResponseBody = (body) => body.text().replace(/^ok$/, 'Xk')";
            ruled(b, "/bytes", vec![plugin(source)]);
        },
    },
    Feature {
        name: "tulle+plugin-answers",
        what: "a plugin in the server's sidecar that answers itself, with 200 bytes",
        client: |_| {},
        server: |b| {
            // As the server would, whose answer the load compares.
            let body = String::from_utf8(text(200)).unwrap_or_default();
            let source =
                format!("const body = `{body}`; export const onRequest = () => new Response(body)");
            ruled(b, "/bytes", vec![plugin(&source)]);
        },
    },
    Feature {
        name: "tulle+plugin-unused",
        what: "a plugin for requests that do not come",
        client: |_| {},
        server: |b| {
            let source = "export function onRequest(request) { request.headers.set('x-set', '1') }";
            ruled(b, "/never", vec![plugin(source)]);
        },
    },
    Feature {
        name: "tulle+headers",
        what: "a header set on each request and another on each response",
        client: |b| {
            routed(b, |route| {
                let Filter::RequestHeaders(edit) = set("x-added") else {
                    return;
                };
                let response = Filter::ResponseHeaders(edit.clone());
                route.rules[0].filters = vec![Filter::RequestHeaders(edit), response];
            });
        },
        server: |_| {},
    },
    Feature {
        name: "tulle+rewrite",
        what: "the path's prefix rewritten (to itself)",
        client: |b| {
            routed(b, |route| {
                route.rules[0].matches = vec![prefix("/bytes")];
                route.rules[0].filters = vec![Filter::Rewrite(Rewrite {
                    path: Some(PathEdit::Prefix("/bytes".into())),
                    ..Default::default()
                })];
                route.rules.push(RouteRule {
                    matches: vec![prefix(CALLER)],
                    backends: vec![backend()],
                    ..Default::default()
                });
            });
        },
        server: |_| {},
    },
    Feature {
        name: "tulle+retry",
        what: "retries allowed, none needed",
        client: |b| treated(b, |t| t.retry = Some(Box::new(retry()))),
        server: |_| {},
    },
    Feature {
        name: "tulle+limits",
        what: "limits of connections, requests and pending requests, none reached",
        client: |b| {
            treated(b, |t| {
                t.limits = ConnectionLimits {
                    connections: 10_000,
                    requests: 10_000,
                    pending: 10_000,
                    retries: 10,
                    requests_per_connection: 0,
                };
            });
        },
        server: |_| {},
    },
    Feature {
        name: "tulle+breaker",
        what: "a circuit breaker that stays closed",
        client: |b| {
            treated(b, |t| {
                t.breaker = Some(Box::new(Breaker {
                    error_ppm: 500_000,
                    slow_ppm: 500_000,
                    ..Default::default()
                }));
            });
        },
        server: |_| {},
    },
    Feature {
        name: "tulle+outlier",
        what: "outlier ejection and active health checks",
        client: |b| {
            treated(b, |t| {
                t.outlier = Some(Box::default());
                t.health_check = Some(Box::new(HealthCheck {
                    path: "/bytes/0".into(),
                    ..Default::default()
                }));
            });
        },
        server: |_| {},
    },
    Feature {
        name: "tulle+ewma",
        what: "the balancer EWMA and locality preference",
        client: |b| {
            treated(b, |t| {
                t.balancer = Balancer::Ewma;
                t.locality = Some(Box::<Locality>::default());
            });
        },
        server: |_| {},
    },
    Feature {
        name: "tulle+ring",
        what: "the balancer RingHash by a header",
        client: |b| {
            treated(b, |t| {
                t.balancer = Balancer::RingHash(HashKey::Header("host".into()))
            })
        },
        server: |_| {},
    },
    Feature {
        name: "tulle+affinity",
        what: "session affinity; each request gets a new cookie, as the load keeps none",
        client: |b| {
            treated(b, |t| {
                t.affinity = Some(Box::new(Affinity {
                    name: "session".into(),
                    ..Default::default()
                }));
            });
        },
        server: |_| {},
    },
    Feature {
        name: "tulle+authorization",
        what: "a policy by path and method, and one that denies another path",
        client: |_| {},
        server: |b| {
            denied(b);
            if let Some(rule) = allow_rule(b) {
                let allowed = |path: &str| PolicyMatch {
                    methods: vec!["GET".into()],
                    path: Some(PathMatch::Prefix(path.into())),
                    ..Default::default()
                };
                rule.matches = vec![allowed("/bytes"), allowed(CALLER)];
            }
        },
    },
    Feature {
        name: "tulle+rate-limit",
        what: "a rate limit at the server's sidecar, not reached",
        client: |_| {},
        server: |b| ruled(b, "/", vec![limit(10_000_000)]),
    },
    Feature {
        name: "tulle+fault",
        what: "faults for one request in a million",
        client: |_| {},
        server: |b| ruled(b, "/", vec![fault(0)]),
    },
    Feature {
        name: "tulle+split",
        what: "requests split over two backends by weight, both the same service",
        client: |b| {
            routed(b, |route| {
                route.rules[0].backends = vec![
                    Backend {
                        weight: 9,
                        ..backend()
                    },
                    backend(),
                ];
            });
        },
        server: |_| {},
    },
];

/// Tulle with a feature.
pub(super) struct With {
    tulle: Tulle,
    feature: &'static Feature,
}

impl With {
    /// Returns the peer with the feature of that name, if there is one.
    pub(super) fn named(name: &str, program: PathBuf) -> Option<Self> {
        let feature = FEATURES.iter().find(|feature| feature.name == name)?;
        let tulle = Tulle { program };
        Some(Self { tulle, feature })
    }
}

impl Peer for With {
    fn name(&self) -> &'static str {
        self.feature.name
    }

    fn version(&self) -> Result<String> {
        self.tulle.version()
    }

    fn notes(&self) -> Vec<String> {
        vec![format!("{}: {}.", self.feature.name, self.feature.what)]
    }

    fn told_caller(&self) -> Option<String> {
        self.tulle.told_caller()
    }

    fn sidecars(&self, topology: &Topology) -> Result<Vec<Sidecar>> {
        let sidecar = |(role, mut model): (_, Bootstrap)| {
            let change = if role == "client" {
                self.feature.client
            } else {
                self.feature.server
            };
            change(&mut model);
            self.tulle.sidecar(topology, role, &model)
        };
        topology.models().into_iter().map(sidecar).collect()
    }

    fn prove(
        &self,
        topology: &Topology,
        answered: u64,
    ) -> std::result::Result<Vec<String>, String> {
        self.tulle.prove(topology, answered)
    }
}

fn backend() -> Backend {
    Backend {
        service: SERVER.into(),
        port: super::topology::PORT,
        weight: 1,
        filters: Vec::new(),
    }
}

/// A route of the service to itself, to be changed; its first rule takes every request.
fn routed(bootstrap: &mut Bootstrap, change: fn(&mut Route)) {
    let mut route = Route {
        name: "bench".into(),
        rules: vec![RouteRule {
            backends: vec![backend()],
            ..Default::default()
        }],
        ..Default::default()
    };
    change(&mut route);
    for service in &mut bootstrap.services {
        service.routes.push(route.clone());
    }
}

fn treated(bootstrap: &mut Bootstrap, change: fn(&mut Traffic)) {
    let mut traffic = Traffic {
        name: "TrafficPolicy/bench".into(),
        ..Default::default()
    };
    change(&mut traffic);
    let ports = bootstrap.services.iter_mut().flat_map(|s| &mut s.ports);
    for port in ports {
        port.traffic = Some(Box::new(traffic.clone()));
    }
}

fn ruled(bootstrap: &mut Bootstrap, path: &str, filters: Vec<Filter>) {
    let ports = bootstrap.inbound.iter_mut().flat_map(|i| &mut i.ports);
    for port in ports {
        port.rules.push(InboundRule {
            name: "bench".into(),
            matches: vec![PolicyMatch {
                path: Some(PathMatch::Prefix(path.into())),
                ..Default::default()
            }],
            filters: filters.clone(),
        });
    }
}

fn allow_rule(bootstrap: &mut Bootstrap) -> Option<&mut PolicyRule> {
    bootstrap.inbound.as_mut()?.policy.rules.first_mut()
}

fn denied(bootstrap: &mut Bootstrap) {
    if let Some(inbound) = &mut bootstrap.inbound {
        inbound.policy.rules.push(PolicyRule {
            name: "AuthorizationPolicy/bench".into(),
            action: Action::Deny,
            any_identity: true,
            matches: vec![PolicyMatch {
                path: Some(PathMatch::Prefix("/never".into())),
                ..Default::default()
            }],
            ..Default::default()
        });
    }
}

/// Ten rules that deny, none of which a request meets: the path, a header and the caller's identity by turns.
fn conditioned(bootstrap: &mut Bootstrap) {
    let Some(inbound) = &mut bootstrap.inbound else {
        return;
    };
    let conditions = (0..10).map(|n| match n % 3 {
        0 => format!("request.path.startsWith('/never/{n}')"),
        1 => {
            format!("has(request.headers.authorization) && request.headers.authorization == '{n}'")
        }
        _ => format!("source.identity.endsWith('/never-{n}') && request.method == 'GET'"),
    });
    let rules = conditions.map(|condition| PolicyRule {
        name: "AuthorizationPolicy/bench".into(),
        action: Action::Deny,
        any_identity: true,
        matches: vec![PolicyMatch {
            when: vec![condition],
            ..Default::default()
        }],
        ..Default::default()
    });
    inbound.policy.rules.extend(rules);
}

fn prefix(path: &str) -> RouteMatch {
    RouteMatch {
        path: PathMatch::Prefix(path.into()),
        ..Default::default()
    }
}

fn set(name: &str) -> Filter {
    Filter::RequestHeaders(HeaderEdit {
        set: vec![Header {
            name: name.into(),
            value: "1".into(),
        }],
        ..Default::default()
    })
}

fn plugin(source: &str) -> Filter {
    Filter::Plugin(Plugin {
        name: "bench".into(),
        source: source.into(),
        ..Default::default()
    })
}

fn fault(ppm: u32) -> Filter {
    Filter::Fault(Fault {
        abort_status: 503,
        abort_ppm: ppm,
        // Not without any share, or there would be nothing to do.
        delay_ms: 1,
        delay_ppm: 1,
    })
}

fn limit(tokens: u32) -> Filter {
    Filter::RateLimit(RateLimit {
        name: "bench".into(),
        tokens,
        per_ms: 1000,
        ..Default::default()
    })
}

fn retry() -> Retry {
    Retry {
        attempts: 2,
        statuses: vec![502, 503, 504],
        connect_failure: true,
        reset: true,
        ..Default::default()
    }
}

fn cors() -> Cors {
    Cors {
        allow_origins: vec!["https://shop.example".into()],
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::{Mode, Ports};
    use tulle_model::resource::Protocol;

    #[test]
    fn each_changes_what_a_sidecar_knows() {
        let directory = tempfile::tempdir().unwrap();
        let ports = Ports::from(20_000);
        let topology = Topology::new(directory.path(), Mode::Both, Protocol::Http, ports).unwrap();
        for feature in &FEATURES {
            let (mut client, mut server) = (topology.client(), topology.server());
            (feature.client)(&mut client);
            (feature.server)(&mut server);
            let changed = client != topology.client() || server != topology.server();
            assert!(changed, "{}", feature.name);
            // The proxy reads exactly the configuration that was written.
            let text = serde_saphyr::to_string(&client).unwrap();
            assert_eq!(Bootstrap::parse("client.yaml", &text).unwrap(), client);
            let text = serde_saphyr::to_string(&server).unwrap();
            assert_eq!(Bootstrap::parse("server.yaml", &text).unwrap(), server);
        }
    }
}

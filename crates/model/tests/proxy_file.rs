//! The proxy's file: what is accepted, what is refused and how.

#![allow(clippy::unwrap_used)] // helpers of tests

use std::net::SocketAddr;
use tulle_model::bootstrap::{Bootstrap, Listener, ListenerKind};

const HEAD: &str = "identity: spiffe://tulle.local/svc/a\n";
const FILES: &str = "certificates: {certificate: c, key: k, trustBundle: t}\n";
const CONTROL: &str = "control:\n  address: 10.0.0.1:15010\n  caFingerprint: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\n";

fn refused(rest: &str) -> String {
    match Bootstrap::parse("proxy.yaml", &format!("{HEAD}{rest}")) {
        Ok(bootstrap) => panic!("accepted: {bootstrap:?}"),
        Err(error) => error.to_string(),
    }
}

fn accepted(rest: &str) -> Bootstrap {
    match Bootstrap::parse("proxy.yaml", &format!("{HEAD}{rest}")) {
        Ok(bootstrap) => bootstrap,
        Err(error) => panic!("refused: {error}"),
    }
}

#[test]
fn a_short_file_has_the_defaults() {
    let bootstrap = accepted(FILES);
    assert_eq!(bootstrap.admin, SocketAddr::from(([127, 0, 0, 1], 15000)));
    assert_eq!(bootstrap.metrics, SocketAddr::from(([0, 0, 0, 0], 15020)));
    assert_eq!(bootstrap.drain_timeout_ms, 10_000);
    assert_eq!((bootstrap.workers, bootstrap.listeners.len()), (0, 0));
}

#[test]
fn every_kind_of_listener() {
    let bootstrap = accepted(&format!(
        "{CONTROL}listeners:
- {{address: '127.0.0.1:1', kind: outbound}}
- {{address: '127.0.0.1:2', kind: upstream, service: s, port: 80}}
- {{address: '[::1]:3', kind: inbound}}
- {{address: '127.0.0.1:0', kind: inboundPort, port: 80}}
- {{address: '127.0.0.1:0', kind: gateway, gateway: g, port: 80}}
"
    ));
    let kinds: Vec<_> = bootstrap.listeners.iter().map(|l| l.kind.clone()).collect();
    assert_eq!(
        kinds,
        [
            ListenerKind::Outbound,
            ListenerKind::Upstream {
                service: "s".into(),
                port: 80
            },
            ListenerKind::Inbound,
            ListenerKind::InboundPort { port: 80 },
            ListenerKind::Gateway {
                gateway: "g".into(),
                port: 80
            },
        ]
    );
    assert_eq!(bootstrap.listeners[2].address, "[::1]:3".parse().unwrap());
}

#[test]
fn what_is_written_reads_as_the_same() {
    let kinds = [
        ListenerKind::Outbound,
        ListenerKind::Upstream {
            service: "s".into(),
            port: 80,
        },
        ListenerKind::Inbound,
        ListenerKind::InboundPort { port: 80 },
        ListenerKind::Gateway {
            gateway: "g".into(),
            port: 80,
        },
    ];
    let mut bootstrap = accepted(CONTROL);
    for (i, kind) in kinds.into_iter().enumerate() {
        let address = SocketAddr::from(([127, 0, 0, 1], 100 + u16::try_from(i).unwrap()));
        bootstrap.listeners.push(Listener { address, kind });
    }
    assert_eq!(Vec::from_iter(bootstrap.gateway_names()), ["g"]);
    bootstrap.gateway_sockets = Some(7);
    bootstrap.heir_socket = Some("/run/heir.sock".into());
    assert_eq!(Vec::from_iter(bootstrap.gateway_names()), ["g", "a"]);
    let json = serde_json::to_string(&bootstrap).unwrap();
    assert_eq!(serde_json::from_str::<Bootstrap>(&json).unwrap(), bootstrap);
    assert_eq!(Bootstrap::parse("proxy.json", &json).unwrap(), bootstrap);
    let yaml = serde_saphyr::to_string(&bootstrap).unwrap();
    assert_eq!(Bootstrap::parse("proxy.yaml", &yaml).unwrap(), bootstrap);
}

#[test]
fn mistakes_are_named() {
    let service = "services: [{name: s, ports: [{port: 80}]}]\n";
    for (rest, expected) in [
        (
            "".to_owned(),
            "proxy.yaml:1:1: expected exactly one of `certificates` and `control`, found neither; add `control` to join a mesh, or `certificates` to run alone",
        ),
        (
            format!("{FILES}{CONTROL}"),
            "proxy.yaml:2:15: certificates: expected exactly one of `certificates` and `control`, found both; with a controller, certificates come from it",
        ),
        (
            format!("{FILES}admin: 0.0.0.0:15000"),
            "proxy.yaml:3:8: admin: expected a loopback address, found `0.0.0.0:15000`; use 127.0.0.1 or [::1]; it shows the proxy's configuration to anyone who connects",
        ),
        (
            format!("{FILES}workers: 257"),
            "proxy.yaml:3:10: workers: expected a number from 0 to 256, found the number 257; 0 is one for each core",
        ),
        (
            format!("{FILES}metrics: 15020"),
            "proxy.yaml:3:10: metrics: expected text, found the number 15020; put it in quotes",
        ),
        (
            format!("{FILES}metrics: localhost:15020"),
            "proxy.yaml:3:10: metrics: expected an address with port such as 127.0.0.1:8080, found `localhost:15020`",
        ),
        (
            format!("{FILES}metrics: 127.0.0.1:15000"),
            "proxy.yaml:3:10: metrics: `127.0.0.1:15000` is already the address of `admin`; choose another port",
        ),
        (
            format!(
                "{CONTROL}listeners:\n- {{address: '127.0.0.1:1', kind: inbound}}\n- {{address: '127.0.0.1:1', kind: outbound}}"
            ),
            "proxy.yaml:7:13: listeners[1].address: `127.0.0.1:1` is already the address of `listeners[0].address`; choose another port",
        ),
        (
            format!("{CONTROL}listeners:\n- {{address: '127.0.0.1:1', kind: inbound, prot: 1}}"),
            "proxy.yaml:6:43: listeners[0].prot: unknown field `prot`, expected one of `address`, `kind`, `service`, `gateway`, `port`; did you mean `port`?",
        ),
        (
            format!("{CONTROL}listeners:\n- {{address: '127.0.0.1:1', kind: inbound, port: 1}}"),
            "proxy.yaml:6:3: listeners[0]: kind `inbound` has no field but `address`",
        ),
        (
            format!("{CONTROL}listeners:\n- {{address: '127.0.0.1:1', kind: upstream, port: 1}}"),
            "proxy.yaml:6:3: listeners[0]: kind `upstream` has the fields `address`, `service` and `port`",
        ),
        (
            format!("{CONTROL}listeners:\n- {{address: '127.0.0.1:1', kind: outbond}}"),
            "proxy.yaml:6:34: listeners[0].kind: expected one of `outbound`, `upstream`, `inbound`, `inboundPort`, `gateway`, found `outbond`; did you mean `outbound`?",
        ),
        (
            format!("{CONTROL}{service}"),
            "proxy.yaml:5:11: services: with `control` it comes from the controller; remove it, or remove `control`",
        ),
        (
            "control: {address: '10.0.0.1:1', caFingerprint: abc}".into(),
            "proxy.yaml:2:49: control.caFingerprint: expected 64 lower-case hexadecimal digits, found `abc`; it is the SHA-256 of the root certificate's DER",
        ),
        (
            format!("{FILES}listeners: [{{address: '127.0.0.1:1', kind: inbound}}]"),
            "proxy.yaml:3:13: listeners[0]: there is no `inbound` it could serve; without `control` it must stand in this file",
        ),
        (
            format!("{FILES}listeners: [{{address: '127.0.0.1:1', kind: outbound}}]"),
            "proxy.yaml:3:13: listeners[0]: there are no `services` it could reach; without `control` it must stand in this file",
        ),
        (
            format!(
                "{FILES}{service}listeners: [{{address: '127.0.0.1:1', kind: upstream, service: s, port: 81}}]"
            ),
            "proxy.yaml:4:13: listeners[0]: there is no service `s` with port 81; without `control` it must stand in this file",
        ),
        (
            format!(
                "{FILES}listeners: [{{address: '127.0.0.1:1', kind: gateway, gateway: g, port: 80}}]"
            ),
            "proxy.yaml:3:13: listeners[0]: there is no gateway `g` with a listener on port 80; without `control` it must stand in this file",
        ),
        (
            format!(
                "{FILES}inbound: {{service: s, ports: [], policy: {{rules: [{{name: r, sources: [spiffe://a], matches: []}}]}}}}"
            ),
            "proxy.yaml:3:71: inbound.policy.rules[0].sources[0]: \"spiffe://a\" is not a valid identity: a workload's identity needs a path",
        ),
        (
            format!(
                "{FILES}inbound: {{service: s, ports: [], policy: {{rules: [{{name: r, sources: [], matches: [{{pathRegex: '('}}]}}]}}}}"
            ),
            "proxy.yaml:3:96: inbound.policy.rules[0].matches[0].pathRegex: not a valid regular expression: unclosed group",
        ),
        (
            format!(
                "{FILES}services: [{{name: s, ports: [], routes: [{{name: r, rules: [{{matches: [{{path: {{prefx: /}}}}]}}]}}]}}]"
            ),
            "proxy.yaml:3:78: services[0].routes[0].rules[0].matches[0].path: expected one of `exact`, `prefix`, `regex`, found `prefx`; did you mean `prefix`?",
        ),
        (
            format!("{FILES}---\n{FILES}"),
            "proxy.yaml: expected one document, found 2",
        ),
        (
            "a: [".into(),
            "proxy.yaml:2:4: not valid YAML: unclosed bracket '['; nothing of this file was read",
        ),
    ] {
        assert_eq!(refused(&rest), expected, "{rest}");
    }
}

#[test]
fn a_route_may_only_use_services_of_the_file() {
    let rest = format!(
        "{FILES}services: [{{name: s, ports: [{{port: 80}}]}}]
gateways:
- name: g
  listeners: [{{name: web, port: 8080}}]
  routes: [{{name: r, rules: [{{backends: [{{service: t, port: 80}}]}}]}}]
"
    );
    assert_eq!(
        refused(&rest),
        "proxy.yaml:7:42: gateways[0].routes[0].rules[0].backends[0]: there is no service `t` with port 80; without `control` it must stand in this file"
    );
    accepted(&rest.replace("service: t", "service: s"));
}

//! Good documents are read; bad ones are refused with file, line, object, field and what to do.

#![allow(clippy::unwrap_used)] // helpers of tests

use tulle_model::manifest::{Object, Severity, parse, validate_set};

fn errors(text: &str) -> Vec<String> {
    match parse("mesh.yaml", text) {
        Ok(objects) => panic!("accepted: {objects:?}"),
        Err(errors) => errors.iter().map(ToString::to_string).collect(),
    }
}

fn objects(text: &str) -> Vec<Object> {
    match parse("mesh.yaml", text) {
        Ok(objects) => objects.into_iter().map(|o| o.object).collect(),
        Err(errors) => panic!("refused: {}", errors[0]),
    }
}

/// A document of a kind with its `spec` (already indented).
fn document(kind: &str, spec: &str) -> String {
    let version = match kind {
        "Gateway" | "HTTPRoute" | "GRPCRoute" | "TLSRoute" | "TCPRoute" => {
            "gateway.networking.k8s.io/v1"
        }
        "TrafficTarget" => "access.smi-spec.io/v1alpha3",
        "HTTPRouteGroup" => "specs.smi-spec.io/v1alpha4",
        "TrafficSplit" => "split.smi-spec.io/v1alpha4",
        _ => "tulle.dev/v1alpha1",
    };
    format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: x}}\nspec:\n{spec}\n")
}

#[test]
fn documents_keep_their_place() {
    let text = format!(
        "# a comment\n---\n{}---\n---\n# nothing\n---\n{}",
        document("Mesh", "  accessLog: true"),
        document("Workload", "  address: 127.0.0.1"),
    );
    let all = parse("mesh.yaml", &text).unwrap();
    let places: Vec<_> = all
        .iter()
        .map(|o| (o.object.id(), o.document, o.line))
        .collect();
    assert_eq!(
        places,
        [("Mesh/x".into(), 0, 3), ("Workload/x".into(), 1, 12)]
    );
    assert_eq!(parse("empty.yaml", "").unwrap(), []);
}

#[test]
fn shapes_are_checked() {
    for (kind, spec, expected) in [
        (
            "Workload",
            "  comand: [ratings]",
            &[
                "mesh.yaml:5:3: Workload/x: spec.comand: unknown field `comand`, expected one of `service`, `identity`, `command`, `address`, `user`, `workingDirectory`, `env`, `passEnv`, `ports`, `readinessProbe`, `upstreams`, `locality`, `weight`; did you mean `command`?",
            ][..],
        ),
        (
            "Workload",
            "  command: [ratings]\n  ports:\n  - port: 70000\n  - name: x\n  - port: http\n  env: {A: b}",
            &[
                "mesh.yaml:7:11: Workload/x: spec.ports[0].port: expected a port from 1 to 65535, found the number 70000",
                "mesh.yaml:8:5: Workload/x: spec.ports[1].port: required field is missing; add `port: …`",
                "mesh.yaml:9:11: Workload/x: spec.ports[2].port: expected a port from 1 to 65535, found `http`",
                "mesh.yaml:10:8: Workload/x: spec.env: expected a list, found a mapping",
            ],
        ),
        (
            "Workload",
            "  command: [ratings, 9080]\n  env:\n  - {name: A, value: true}",
            &[
                "mesh.yaml:5:22: Workload/x: spec.command[1]: expected text, found the number 9080; put it in quotes",
                "mesh.yaml:7:22: Workload/x: spec.env[0].value: expected text, found `true`; put it in quotes",
            ],
        ),
        (
            "Workload",
            "  address: localhost",
            &[
                "mesh.yaml:5:12: Workload/x: spec.address: expected an IP address such as 10.0.0.1, found `localhost`",
            ],
        ),
        (
            "Mesh",
            "  accessLog: yes",
            &[
                "mesh.yaml:5:14: Mesh/x: spec.accessLog: expected `true`, `false` or a mapping, found `yes`",
            ],
        ),
        (
            "Mesh",
            "  accessLog: {samplin: 10%}",
            &[
                "mesh.yaml:5:14: Mesh/x: spec.accessLog: unknown field `samplin`, expected one of `sampling`, `onlyErrors`, `format`, `when`, `fields`",
            ],
        ),
        (
            "Mesh",
            "  accessLog: {sampling: 10, onlyErrors: true}",
            &[
                "mesh.yaml:5:25: Mesh/x: spec.accessLog.sampling: expected text, found the number 10; put it in quotes",
            ],
        ),
        (
            "Mesh",
            "  accessLog: {sampling: 101%, format: \"%PROTOCOL\"}",
            &[
                "mesh.yaml:5:25: Mesh/x: spec.accessLog.sampling: expected a share such as `10%` or `0.5%`, found `101%`",
                "mesh.yaml:5:39: Mesh/x: spec.accessLog.format: an operator has no `%` at its end; `%%` is a percent sign",
            ],
        ),
        (
            "Mesh",
            "  tracing: {endpoint: 'otel:4317/v1', sampling: 5%}",
            &[
                "mesh.yaml:5:23: Mesh/x: spec.tracing.endpoint: expected `host:port` of a collector of OTLP, with `https://` before it for TLS, found `otel:4317/v1`",
            ],
        ),
        (
            "Mesh",
            "  tracing: {endpoint: 'otel:4317', sampling: 0.05}",
            &[
                "mesh.yaml:5:46: Mesh/x: spec.tracing.sampling: expected text, found the number 0.05; put it in quotes",
            ],
        ),
        (
            "Mesh",
            "  tracing: {endpoint: 'otel:4317', sampling: 101%, attributes: {service.name: x}}",
            &[
                "mesh.yaml:5:46: Mesh/x: spec.tracing.sampling: expected a share such as `10%` or `0.5%`, found `101%`",
            ],
        ),
        (
            "Mesh",
            "  sidecar: {workers: \"2\"}",
            &[
                "mesh.yaml:5:22: Mesh/x: spec.sidecar.workers: expected a whole number, found the text `2`; remove the quotes",
            ],
        ),
        (
            "Mesh",
            "  mtls: {mode: strikt}\n  accessLog: true\n  accessLog: false",
            &[
                "mesh.yaml:5:16: Mesh/x: spec.mtls.mode: expected `strict` or `permissive`, found `strikt`; did you mean `strict`?",
                "mesh.yaml:7:3: Mesh/x: spec.accessLog: it is given twice, first on line 6; remove one of them",
            ],
        ),
        (
            "Mesh",
            "  trustDomain: Tulle",
            &[
                "mesh.yaml:5:16: Mesh/x: spec.trustDomain: \"Tulle\" is not a valid identity: a trust domain has only a-z, 0-9, '.', '-' and '_'",
            ],
        ),
        (
            "HTTPRoute",
            "  parentRefs: [{name: gw}]\n  rules:\n  - sessionPersistence: {idleTimeout: 1s}\n    filters: [{type: ExternalAuth, externalAuth: {}}]",
            &[
                "mesh.yaml:7:26: HTTPRoute/x: spec.rules[0].sessionPersistence.idleTimeout: `idleTimeout` is part of Gateway API but not supported yet; remove it",
                "mesh.yaml:8:36: HTTPRoute/x: spec.rules[0].filters[0].externalAuth: `externalAuth` is part of Gateway API but not supported yet; remove it",
            ],
        ),
        (
            "Gateway",
            "  listeners: [{name: a, port: 1, protocol: HTTP}]\n  tls: {}",
            &[
                "mesh.yaml:6:3: Gateway/x: spec.tls: `tls` is part of Gateway API but not supported yet; remove it",
            ],
        ),
        (
            "HTTPRouteGroup",
            "  matches: [{name: a, headers: [{a: x}, {a: y}]}]",
            &[
                "mesh.yaml:5:32: HTTPRouteGroup/x: spec.matches[0].headers: header `a` is given twice",
            ],
        ),
    ] {
        assert_eq!(errors(&document(kind, spec)), expected, "{spec}");
    }
}

#[test]
fn values_are_checked() {
    for (kind, spec, expected) in [
        (
            "Workload",
            "  env: []",
            "mesh.yaml:5:3: Workload/x: spec: expected exactly one of `command` and `address`, found neither; add `command: [program, argument]`, or `address: 127.0.0.1` if it already runs",
        ),
        (
            "Workload",
            "  command: [a]\n  address: 127.0.0.1",
            "mesh.yaml:6:12: Workload/x: spec.address: expected exactly one of `command` and `address`, found both; keep `command` to have it started, or `address` if it already runs",
        ),
        (
            "Workload",
            "  address: 127.0.0.1\n  ports: [{port: 1}, {port: 1}]",
            "mesh.yaml:6:29: Workload/x: spec.ports[1].port: port 1 is given twice; remove one of them",
        ),
        (
            "Workload",
            "  address: 127.0.0.1\n  ports: [{port: 0}]",
            "mesh.yaml:6:18: Workload/x: spec.ports[0].port: expected a port from 1 to 65535, found the number 0",
        ),
        (
            "Workload",
            "  address: 127.0.0.1\n  ports: [{port: 1, appProtocol: htp}]",
            "mesh.yaml:6:34: Workload/x: spec.ports[0].appProtocol: expected one of `http`, `http2`, `kubernetes.io/h2c`, `grpc`, `tcp`, `tcp-server-first`, `tls`, found `htp`; did you mean `http`?",
        ),
        (
            "Workload",
            "  address: 127.0.0.1\n  readinessProbe: {periodSeconds: 1}",
            "mesh.yaml:6:19: Workload/x: spec.readinessProbe: expected exactly one of `httpGet`, `tcpSocket` and `exec`, found 0",
        ),
        (
            "Workload",
            "  address: 127.0.0.1\n  readinessProbe: {httpGet: {path: live, port: 1}}",
            "mesh.yaml:6:36: Workload/x: spec.readinessProbe.httpGet.path: expected a path that starts with `/` and has no spaces, found `live`",
        ),
        (
            "Workload",
            "  address: 127.0.0.1\n  service: Ratings",
            "mesh.yaml:6:12: Workload/x: spec.service: expected a DNS label, found `Ratings`; use 1 to 63 of a-z, 0-9 and `-`, with a letter or digit first and last",
        ),
        (
            "HTTPRoute",
            "  parentRefs: [{name: edge..example}]\n  rules: [{backendRefs: [{name: a, port: 1}]}]",
            "mesh.yaml:5:23: HTTPRoute/x: spec.parentRefs[0].name: expected a name, found `edge..example`; use 1 to 253 of a-z, 0-9, `-` and `.`, with a letter or digit first, last and beside each `.`",
        ),
        (
            "HTTPRoute",
            "  parentRefs: [{kind: Service, name: web.example}]\n  rules: [{backendRefs: [{name: a, port: 1}]}]",
            "mesh.yaml:5:38: HTTPRoute/x: spec.parentRefs[0].name: expected a DNS label, found `web.example`; use 1 to 63 of a-z, 0-9 and `-`, with a letter or digit first and last",
        ),
        (
            "Workload",
            "  address: 127.0.0.1\n  passEnv: [A]",
            "mesh.yaml:6:12: Workload/x: spec.passEnv: not used with `address`; remove it; only what `command` starts has one",
        ),
        (
            "Workload",
            "  command: [a]\n  passEnv: [B, B]",
            "mesh.yaml:6:16: Workload/x: spec.passEnv[1]: `B` is given twice; each must be unique in its list",
        ),
        (
            "Workload",
            "  command: [a]\n  env: [{name: A, value: b}]\n  passEnv: [A]",
            "mesh.yaml:7:13: Workload/x: spec.passEnv[0]: `A` is given in `env`, too; remove one of them",
        ),
        (
            "Workload",
            "  command: [a]\n  passEnv: [A=B]",
            "mesh.yaml:6:13: Workload/x: spec.passEnv[0]: expected the name of a variable, found `A=B`; use letters, digits and `_`, not starting with a digit",
        ),
        (
            "Workload",
            "  address: 127.0.0.1\n  workingDirectory: /tmp",
            "mesh.yaml:6:21: Workload/x: spec.workingDirectory: not used with `address`; remove it; only what `command` starts has one",
        ),
        (
            "Workload",
            "  command: [a]\n  env: [{name: A=B, value: c}]",
            "mesh.yaml:6:16: Workload/x: spec.env[0].name: expected the name of a variable, found `A=B`; use letters, digits and `_`, not starting with a digit",
        ),
        (
            "Workload",
            "  command: [a]\n  upstreams: [{service: b, port: 1}, {service: b, port: 1}]",
            "mesh.yaml:6:38: Workload/x: spec.upstreams[1]: upstream b:1 is given twice; remove one of them",
        ),
        (
            "Mesh",
            "  certificates: {lifetime: 9s}",
            "mesh.yaml:5:28: Mesh/x: spec.certificates.lifetime: expected at least 10s, found `9s`",
        ),
        (
            "Mesh",
            "  certificates: {lifetime: 1h, renewAfter: 41m}",
            "mesh.yaml:5:44: Mesh/x: spec.certificates.renewAfter: expected at most two thirds of the lifetime (3600s), found `41m`; the last third is for the time in which no controller answers",
        ),
        (
            "Mesh",
            "  certificates: {renewAfter: 999ms}",
            "mesh.yaml:5:30: Mesh/x: spec.certificates.renewAfter: expected at least 1s, found `999ms`",
        ),
        (
            "Mesh",
            "  certificates: {hostAuthority: {lifetime: 721h}}",
            "mesh.yaml:5:44: Mesh/x: spec.certificates.hostAuthority.lifetime: expected at most 2592000s, found `721h`",
        ),
        (
            "Mesh",
            "  certificates: {lifetime: 1h, hostAuthority: {lifetime: 59m}}",
            "mesh.yaml:5:58: Mesh/x: spec.certificates.hostAuthority.lifetime: expected at least 3600s, found `59m`",
        ),
        (
            "Mesh",
            "  certificates: {hostAuthority: {hosts: [a/b]}}",
            "mesh.yaml:5:42: Mesh/x: spec.certificates.hostAuthority.hosts[0]: expected the name of a host that joined, found `a/b`",
        ),
        (
            "Mesh",
            "  timeouts: {protocolDetection: 2s}",
            "mesh.yaml:5:33: Mesh/x: spec.timeouts.protocolDetection: expected at most 1s, found `2s`",
        ),
        (
            "Mesh",
            "  timeouts: {idle: 5 minutes}",
            "mesh.yaml:5:20: Mesh/x: spec.timeouts.idle: expected a duration such as `24h`, `1m30s` or `100ms`, found `5 minutes`",
        ),
        (
            "Mesh",
            "  logLevel: warning",
            "mesh.yaml:5:13: Mesh/x: spec.logLevel: expected one of `error`, `warn`, `info`, `debug`, `trace`, found `warning`",
        ),
        (
            "Mesh",
            "  sidecar: {cpuLimit: 1 core}",
            "mesh.yaml:5:23: Mesh/x: spec.sidecar.cpuLimit: expected an amount of CPU such as `500m`, `2` or `0.5`, found `1 core`",
        ),
        (
            "Mesh",
            "  sidecar: {memoryLimit: 64mb}",
            "mesh.yaml:5:26: Mesh/x: spec.sidecar.memoryLimit: expected an amount of memory such as `64Mi` or `1G`, found `64mb`",
        ),
        (
            "Mesh",
            "  sidecar: {workers: 257}",
            "mesh.yaml:5:22: Mesh/x: spec.sidecar.workers: expected a number from 1 to 256, found the number 257",
        ),
        (
            "Gateway",
            "  listeners: []",
            "mesh.yaml:5:14: Gateway/x: spec.listeners: expected at least one listener, found none",
        ),
        (
            "Gateway",
            "  listeners: [{name: a, port: 1, protocol: HTTPS}]",
            "mesh.yaml:5:15: Gateway/x: spec.listeners[0].tls: required for HTTPS; add `tls: {certificateRefs: [{name: SECRET}]}`, or for TLS `tls: {mode: Passthrough}`",
        ),
        (
            "Gateway",
            "  listeners: [{name: a, port: 1, protocol: http}]",
            "mesh.yaml:5:44: Gateway/x: spec.listeners[0].protocol: expected one of `HTTP`, `HTTPS`, `TLS`, `TCP`, found `http`; did you mean `HTTP`?",
        ),
        (
            "Workload",
            "  command: [a]\n  user: \"\"",
            "mesh.yaml:6:9: Workload/x: spec.user: expected the name or the number of a user, found ``",
        ),
        (
            "Workload",
            "  command: [a]\n  user: 4294967295",
            "mesh.yaml:6:9: Workload/x: spec.user: expected the name or the number of a user, found `4294967295`",
        ),
        (
            "Workload",
            "  address: 127.0.0.1\n  user: ann",
            "mesh.yaml:6:9: Workload/x: spec.user: not used with `address`; remove it; only what `command` starts has one",
        ),
        (
            "Workload",
            "  command: [a]\n  ports: [{port: 15020}]",
            "mesh.yaml:6:18: Workload/x: spec.ports[0].port: port 15020 is the sidecar's own; choose another; 15000, 15001, 15006, 15020 and 15053 are taken",
        ),
        (
            "Workload",
            "  command: [a]\n  ports: [{port: 1, targetPort: 15006}]",
            "mesh.yaml:6:33: Workload/x: spec.ports[0].targetPort: port 15006 is the sidecar's own; choose another; 15000, 15001, 15006, 15020 and 15053 are taken",
        ),
        (
            "Gateway",
            "  listeners: [{name: a, port: 1, protocol: HTTP, hostname: a.*.b}]",
            "mesh.yaml:5:60: Gateway/x: spec.listeners[0].hostname: expected a host name or `*.` and a host name, found `a.*.b`; write it in lower case without port, such as `shop.example.com` or `*.example.com`",
        ),
        (
            "Gateway",
            "  listeners:\n  - {name: a, port: 1, protocol: HTTP}\n  - {name: b, port: 1, protocol: HTTP}",
            "mesh.yaml:7:21: Gateway/x: spec.listeners[1].port: port 1 is given twice for the same hostname; change the port or the hostname",
        ),
        (
            "HTTPRoute",
            "  parentRefs: [{name: g}]\n  rules: [{matches: [{path: {type: RegularExpression, value: \"(\"}}]}]",
            "mesh.yaml:6:62: HTTPRoute/x: spec.rules[0].matches[0].path.value: not a valid regular expression: unclosed group",
        ),
        (
            "HTTPRoute",
            "  parentRefs: [{name: g}]\n  rules: [{matches: [{path: {type: Prefix, value: /}}]}]",
            "mesh.yaml:6:36: HTTPRoute/x: spec.rules[0].matches[0].path.type: expected one of `Exact`, `PathPrefix`, `RegularExpression`, found `Prefix`",
        ),
        (
            "HTTPRoute",
            "  parentRefs: [{name: g}]\n  rules: [{matches: [{method: get}]}]",
            "mesh.yaml:6:31: HTTPRoute/x: spec.rules[0].matches[0].method: expected one of `GET`, `HEAD`, `POST`, `PUT`, `DELETE`, `CONNECT`, `OPTIONS`, `TRACE`, `PATCH`, found `get`; did you mean `GET`?",
        ),
        (
            "HTTPRoute",
            "  parentRefs: [{name: g, kind: Service, sectionName: a}]\n  rules: [{backendRefs: [{name: a, port: 1}]}]",
            "mesh.yaml:5:54: HTTPRoute/x: spec.parentRefs[0].sectionName: not supported for a Service; use `port` for a Service",
        ),
        (
            "Mesh",
            "  limits: {headerCount: 129}",
            "mesh.yaml:5:25: Mesh/x: spec.limits.headerCount: expected a number from 10 to 128, found the number 129",
        ),
        (
            "HTTPRoute",
            "  parentRefs: [{name: g}]\n  rules: [{backendRefs: [{name: a, port: 1, weight: 1000001}]}]",
            "mesh.yaml:6:53: HTTPRoute/x: spec.rules[0].backendRefs[0].weight: expected a number from 0 to 1000000, found the number 1000001",
        ),
        (
            "HTTPRoute",
            "  parentRefs: [{name: g}]\n  rules: [{timeouts: {request: 1d}}]",
            "mesh.yaml:6:32: HTTPRoute/x: spec.rules[0].timeouts.request: expected a duration such as `24h`, `1m30s` or `100ms`, found `1d`",
        ),
        (
            "TrafficTarget",
            "  destination: {kind: Service, name: a}\n  sources: [{kind: ServiceAccount, name: b}]",
            "mesh.yaml:5:23: TrafficTarget/x: spec.destination.kind: expected `ServiceAccount`, found `Service`",
        ),
        (
            "TrafficTarget",
            "  destination: {kind: ServiceAccount, name: a}\n  sources: []",
            "mesh.yaml:6:12: TrafficTarget/x: spec.sources: expected at least one source, found none",
        ),
        (
            "TrafficTarget",
            "  destination: {kind: ServiceAccount, name: a}\n  sources: [{kind: ServiceAccount, name: b}]\n  rules: [{kind: UDPRoute, name: c}]",
            "mesh.yaml:7:18: TrafficTarget/x: spec.rules[0].kind: `UDPRoute` is not supported yet; for now it can be `HTTPRouteGroup` or `TCPRoute`",
        ),
        (
            "HTTPRouteGroup",
            "  matches: [{name: a, pathRegex: \"[\"}]",
            "mesh.yaml:5:34: HTTPRouteGroup/x: spec.matches[0].pathRegex: not a valid regular expression: unclosed character class",
        ),
        (
            "HTTPRouteGroup",
            "  matches: [{name: a}, {name: a}]",
            "mesh.yaml:5:31: HTTPRouteGroup/x: spec.matches[1].name: `a` is given twice; each must be unique in its list",
        ),
        (
            "HTTPRouteGroup",
            "  matches: [{name: a, headers: [{\"a b\": c}]}]",
            "mesh.yaml:5:32: HTTPRouteGroup/x: spec.matches[0].headers[\"a b\"]: expected the name of a header, found `a b`",
        ),
    ] {
        assert_eq!(errors(&document(kind, spec)), [expected], "{spec}");
    }
}

#[test]
fn a_workload_has_no_name_of_a_log_of_tulles_own() {
    for name in ["supervisor", "controller", "janitor", "up"] {
        let text =
            document("Workload", "  command: [a]").replace("name: x", &format!("name: {name}"));
        let found = errors(&text);
        assert!(found[0].contains("is the name of a log"), "{found:?}");
    }
}

#[test]
fn a_user_is_a_name_or_a_number() {
    for (written, read) in [
        ("1000", "1000"),
        ("\"1000\"", "1000"),
        ("www-data", "www-data"),
        ("root", "root"),
    ] {
        let text = document("Workload", &format!("  command: [a]\n  user: {written}"));
        let objects = tulle_model::manifest::parse("mesh.yaml", &text).unwrap();
        let tulle_model::manifest::Object::Workload(workload) = &objects[0].object else {
            panic!("{objects:?}");
        };
        assert_eq!(workload.spec.user.as_deref(), Some(read));
    }
}

#[test]
fn documents_that_are_no_object() {
    let known = "`Mesh`, `Workload`, `Gateway`, `HTTPRoute`, `GRPCRoute`, `TLSRoute`, `TCPRoute`, `TrafficTarget`, `HTTPRouteGroup`, `TrafficSplit`, `TrafficPolicy`, `RateLimit`, `HTTPFilter`, `AuthorizationPolicy`, `Authentication`, `Plugin`, `IngressBackend`, `AccessControl`, `Egress`, `Secret`, `ConfigMap`";
    for (text, expected) in [
        ("a: [", "mesh.yaml:1:4: not valid YAML: unclosed bracket '['; nothing of this file was read".to_owned()),
        ("hello", "mesh.yaml:1:1: expected a mapping with `apiVersion`, `kind`, `metadata` and `spec`, found `hello`".into()),
        ("kind: Mesh", "mesh.yaml:1:1: Mesh: apiVersion: required field is missing; add `apiVersion: …`".into()),
        ("apiVersion: v1\nkind: Workload", "mesh.yaml:1:13: Workload: apiVersion: unknown version `v1` of Workload, expected `tulle.dev/v1alpha1`".into()),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: a}", format!("mesh.yaml:2:7: Pod/a: kind: unknown kind `Pod`, expected one of {known}")),
        ("apiVersion: v1\nkind: HttpRoute", format!("mesh.yaml:2:7: HttpRoute: kind: unknown kind `HttpRoute`, expected one of {known}; did you mean `HTTPRoute`?")),
        ("a: !secret b", "mesh.yaml:1:12: not valid YAML: unsupported tag `!secret`; nothing of this file was read".into()),
    ] {
        assert_eq!(errors(text), [expected], "{text}");
    }
}

#[test]
fn every_bad_document_is_reported() {
    let text = format!(
        "{}---\n{}---\n{}",
        document("Mesh", "  accessLog: 1"),
        document("Workload", "  address: 127.0.0.1"),
        document("Gateway", "  listeners: []"),
    );
    let errors = parse("mesh.yaml", &text).unwrap_err();
    let places: Vec<_> = errors.iter().map(|e| (e.document, e.line)).collect();
    assert_eq!(places, [(0, 5), (2, 17)]);
}

#[test]
fn bombs_are_refused() {
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for i in 1..12 {
        let all = vec![format!("*a{}", i - 1); 10].join(", ");
        bomb.push_str(&format!("a{i}: &a{i} [{all}]\n"));
    }
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let large = "a: b\n".repeat(2_000_000);
    let keys = "k: v\n".repeat(300_000);
    for text in [bomb, deep, large, keys] {
        let errors = errors(&text);
        assert!(errors.len() == 1, "{errors:?}");
    }
}

#[test]
fn a_hostile_value_gives_one_short_line() {
    let text = document(
        "Workload",
        &format!("  address: \"{}\"", "x\\n".repeat(5000)),
    );
    let errors = errors(&text);
    assert_eq!(errors.len(), 1);
    assert!(
        errors[0].len() < 600 && !errors[0].contains('\n'),
        "{}",
        errors[0]
    );
}

#[test]
fn stored_json_is_strict_and_the_same_each_time() {
    let yaml = document(
        "Workload",
        "  env: [{name: B, value: b}]\n  command: [run]\n  service: s",
    );
    let json = objects(&yaml)[0].to_json();
    assert_eq!(
        json,
        r#"{"apiVersion":"tulle.dev/v1alpha1","kind":"Workload","metadata":{"name":"x"},"spec":{"service":"s","command":["run"],"env":[{"name":"B","value":"b"}]}}"#
    );
    assert_eq!(Object::from_json(&json).unwrap().to_json(), json);
    for (json, expected) in [
        (
            json.replace("command", "comand"),
            "object: Workload/x: spec.comand: unknown field",
        ),
        (
            json.replace("\"run\"", "1"),
            "object: Workload/x: spec.command[0]: expected text",
        ),
        ("{".into(), "object: not valid JSON: "),
    ] {
        let errors = Object::from_json(&json).unwrap_err();
        assert!(errors[0].to_string().starts_with(expected), "{}", errors[0]);
    }
}

#[test]
fn numbers_and_lists_where_the_apis_allow_them() {
    let mesh = document("Mesh", "  sidecar: {cpuLimit: 2, memoryLimit: 67108864}");
    let Object::Mesh(mesh) = &objects(&mesh)[0] else {
        panic!()
    };
    assert_eq!(mesh.spec.sidecar_cpu_milli(), Ok(Some(2000)));
    assert_eq!(mesh.spec.sidecar_memory_bytes(), Ok(Some(64 << 20)));
    let map = document(
        "HTTPRouteGroup",
        "  matches: [{name: a, headers: {x: a, y: b}}]",
    );
    let list = document(
        "HTTPRouteGroup",
        "  matches: [{name: a, headers: [{x: a}, {y: b}]}]",
    );
    assert_eq!(objects(&map), objects(&list));
}

fn problems(text: &str) -> Vec<String> {
    validate_set(objects(text).iter())
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn references_are_checked_across_objects() {
    let text = format!(
        "{}---\n{}---\n{}---\n{}---\n{}",
        document(
            "Workload",
            "  address: 127.0.0.1\n  ports: [{port: 80}]\n  upstreams: [{service: nobody, port: 1}, {service: x, port: 81}]"
        ),
        document(
            "Gateway",
            "  gatewayClassName: nginx\n  listeners: [{name: web, port: 8080, protocol: HTTP}]"
        )
        .replace("name: x", "name: gw"),
        document(
            "HTTPRoute",
            "  parentRefs: [{name: gw, sectionName: api}, {name: other}, {name: x, kind: Service, port: 82}]\n  rules: [{backendRefs: [{name: x, port: 80}, {name: y, port: 80}]}]"
        ),
        document("HTTPRouteGroup", "  matches: [{name: read}]"),
        document(
            "TrafficTarget",
            "  destination: {kind: ServiceAccount, name: x}\n  sources: [{kind: ServiceAccount, name: gw}, {kind: ServiceAccount, name: z}]\n  rules: [{kind: HTTPRouteGroup, name: x, matches: [write]}, {kind: HTTPRouteGroup, name: none}]"
        ),
    );
    assert_eq!(
        problems(&text),
        [
            "warning TL0010: Workload/x: spec.upstreams[0].service: there is no workload of service `nobody` (yet); requests to it fail",
            "warning TL0011: Workload/x: spec.upstreams[1].port: service `x` has no port 81, its ports are: 80; requests to it fail",
            "warning TL0022: Gateway/gw: spec.gatewayClassName: the class is `nginx`, not `tulle`, so Tulle does not serve this gateway",
            "warning TL0013: HTTPRoute/x: spec.parentRefs[0].sectionName: Gateway `gw` has no listener `api`; the route has no effect there",
            "warning TL0012: HTTPRoute/x: spec.parentRefs[1].name: there is no Gateway `other` (yet); the route has no effect",
            "warning TL0011: HTTPRoute/x: spec.parentRefs[2].port: service `x` has no port 82, its ports are: 80; requests to it fail",
            "warning TL0010: HTTPRoute/x: spec.rules[0].backendRefs[1].name: there is no workload of service `y` (yet); requests to it fail",
            "warning TL0018: TrafficTarget/x: spec.sources[1].name: there is no workload or gateway with identity `z` (yet)",
            "warning TL0014: TrafficTarget/x: spec.rules[0].matches[0]: HTTPRouteGroup `x` has no match `write`; it allows nothing",
            "warning TL0014: TrafficTarget/x: spec.rules[1].name: there is no HTTPRouteGroup `none` (yet); the rule allows nothing",
        ]
    );
}

#[test]
fn two_of_a_name_are_an_error() {
    let workload = document("Workload", "  address: 127.0.0.1");
    let mesh = document("Mesh", "  permissiveMode: true");
    let text = format!(
        "{workload}---\n{workload}---\n{mesh}---\n{}",
        mesh.replace("name: x", "name: y")
    );
    let found = validate_set(objects(&text).iter());
    assert!(found.iter().all(|p| p.severity == Severity::Error));
    assert_eq!(
        problems(&text),
        [
            "error TL0001: Workload/x: metadata.name: there are two objects of kind Workload with this name; rename or remove one",
            "error TL0002: Mesh/y: metadata.name: there is already Mesh/x; a mesh has one Mesh object, remove one",
        ]
    );
}

#[test]
fn one_identity_for_a_gateway_and_a_workload_is_a_warning() {
    let text = format!(
        "{}---\n{}",
        document("Workload", "  address: 127.0.0.1"),
        document(
            "Gateway",
            "  listeners: [{name: web, port: 8080, protocol: HTTP}]"
        ),
    );
    assert_eq!(
        problems(&text),
        [
            "warning TL0021: Workload/x: spec.identity: Gateway/x has the same identity `x`, so policies cannot tell them apart; rename one"
        ]
    );
}

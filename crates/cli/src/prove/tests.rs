//! Statements about meshes of manifests, and a property: whoever is proven to be kept out is refused by the code that decides.

use super::reach::{Gate, Reach};
use super::statement::{self, Requests};
use super::view::View;
use super::{Proof, Statement, Verdict, judge};
use proptest::prelude::*;
use tulle_model::identity::SpiffeId;
use tulle_model::manifest::parse;
use tulle_model::resource::{Action, HeaderMatch, PathMatch, Policy, PolicyMatch, PolicyRule};
use tulle_proxy::config::authz::{self, Caller, Request};

const MESH: &str = r"
apiVersion: tulle.dev/v1alpha1
kind: Mesh
metadata: {name: m}
spec: {trustDomain: t.example}
---
apiVersion: tulle.dev/v1alpha1
kind: Workload
metadata: {name: ratings}
spec:
  command: [/bin/true]
  ports: [{name: http, port: 8101, appProtocol: http}, {name: db, port: 5432, appProtocol: tcp}]
---
apiVersion: tulle.dev/v1alpha1
kind: Workload
metadata: {name: gateway}
spec: {command: [/bin/true], ports: [{name: http, port: 80, appProtocol: http}]}
---
apiVersion: tulle.dev/v1alpha1
kind: Workload
metadata: {name: reviews}
spec: {command: [/bin/true], ports: [{name: http, port: 80, appProtocol: http}]}
";

const GATEWAY_READS: &str = r"
---
apiVersion: tulle.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: gateway-reads}
spec:
  targetRefs: [{kind: Service, name: ratings, sectionName: http}]
  rules:
    - from: {serviceAccounts: [gateway]}
      to: {methods: [GET, HEAD], paths: [{type: PathPrefix, value: /ratings}]}
";

const ANYBODY_HEALTH: &str = r"
---
apiVersion: tulle.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: health}
spec:
  targetRefs: [{kind: Service, name: ratings, sectionName: http}]
  rules:
    - from: {serviceAccounts: [gateway, reviews]}
      to: {paths: [{type: RegularExpression, value: '/(ratings|health)/[0-9]+'}]}
";

const NO_DRAFTS: &str = r"
---
apiVersion: tulle.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: nothing-of-reviews}
spec:
  targetRefs: [{kind: Service, name: ratings}]
  action: Deny
  rules: [{from: {serviceAccounts: [reviews]}}]
";

fn view(manifests: &str) -> View {
    let objects = parse("mesh.yaml", manifests).unwrap();
    View::of_manifests(objects.into_iter().map(|found| found.object).collect()).unwrap()
}

fn proof(manifests: &str, text: &str) -> Proof {
    let statement = Statement {
        text: text.to_owned(),
        claim: statement::parse(text).unwrap(),
    };
    judge(&view(manifests), &statement).unwrap_or_else(|failure| panic!("{text}: {failure}"))
}

fn assert_verdicts(manifests: &str, verdicts: &[(&str, Verdict)]) {
    for (text, verdict) in verdicts {
        let proof = proof(manifests, text);
        assert_eq!(proof.verdict, *verdict, "{text}: {}", proof.why);
    }
}

#[test]
fn statements_hold_as_the_policies_say() {
    let mesh = format!("{MESH}{GATEWAY_READS}");
    assert_verdicts(
        &mesh,
        &[
            ("only gateway reaches ratings", Verdict::Holds),
            ("only gateway reaches ratings:8101", Verdict::Holds),
            ("only reviews reaches ratings", Verdict::Fails),
            ("nobody reaches ratings", Verdict::Fails),
            ("nobody reaches ratings:5432", Verdict::Holds),
            ("nobody reaches ratings with DELETE", Verdict::Holds),
            ("nobody reaches ratings at /admin", Verdict::Holds),
            ("nobody reaches ratings at /ratings", Verdict::Fails),
            ("nobody reaches ratings at /", Verdict::Fails),
            ("no plaintext to anything", Verdict::Holds),
            (
                "gateway reaches ratings with GET at /ratings",
                Verdict::Holds,
            ),
            ("gateway reaches ratings with DELETE", Verdict::Fails),
            ("reviews reaches ratings", Verdict::Fails),
            ("gateway does not reach reviews", Verdict::Holds),
            ("nobody leaves the mesh", Verdict::Holds),
            ("gateway leaves the mesh", Verdict::Fails),
        ],
    );
    let found = proof(&mesh, "only reviews reaches ratings")
        .counterexample
        .unwrap();
    assert_eq!(found.from, "spiffe://t.example/svc/gateway");
    assert_eq!((found.to.as_str(), found.port), ("ratings", Some(8101)));
    assert_eq!(found.request.as_deref(), Some("GET /ratings"));
    assert!(found.rule.contains("gateway-reads"), "{}", found.rule);
}

#[test]
fn a_rule_that_denies_closes_what_another_opens() {
    let open = format!("{MESH}{GATEWAY_READS}{ANYBODY_HEALTH}");
    assert_verdicts(
        &open,
        &[
            ("only gateway reaches ratings", Verdict::Fails),
            ("nobody reaches ratings at /health", Verdict::Fails),
        ],
    );
    let found = proof(&open, "only gateway reaches ratings")
        .counterexample
        .unwrap();
    assert_eq!(found.from, "spiffe://t.example/svc/reviews");
    let request = found.request.unwrap();
    assert!(
        request.contains("/ratings/") || request.contains("/health/"),
        "{request}"
    );
    let closed = format!("{open}{NO_DRAFTS}");
    assert_verdicts(
        &closed,
        &[
            ("only gateway reaches ratings", Verdict::Holds),
            ("reviews does not reach ratings", Verdict::Holds),
        ],
    );
}

#[test]
fn a_permissive_mesh_lets_everybody_in() {
    let mesh = MESH.replace(
        "trustDomain: t.example",
        "trustDomain: t.example, permissiveMode: true, allowEgress: true",
    );
    assert_verdicts(
        &mesh,
        &[
            ("only gateway reaches ratings", Verdict::Fails),
            ("no plaintext to anything", Verdict::Holds),
            ("only gateway leaves the mesh", Verdict::Fails),
            ("reviews leaves the mesh", Verdict::Holds),
        ],
    );
    let permissive = mesh.replace("allowEgress: true", "mtls: {mode: permissive}");
    assert_verdicts(&permissive, &[("no plaintext to ratings", Verdict::Fails)]);
    let found = proof(&permissive, "no plaintext to ratings")
        .counterexample
        .unwrap();
    assert_eq!(
        (found.from.as_str(), found.rule.as_str()),
        ("plaintext", "permissiveMode of the Mesh")
    );
}

#[test]
fn a_statement_about_nobody_is_refused() {
    let view = view(MESH);
    for text in [
        "only gatewy reaches ratings",
        "only gateway reaches rating",
        "only gateway reaches ratings:81",
        "nobody outside namespace shop reaches ratings",
    ] {
        let claim = statement::parse(text).unwrap();
        let statement = Statement {
            text: text.to_owned(),
            claim,
        };
        assert!(judge(&view, &statement).is_err(), "{text}");
    }
}

// Random policies and requests.

const IDENTITIES: [&str; 3] = ["a", "b", "c"];
const PATHS: [&str; 6] = ["/", "/a", "/a/b", "/a/b/c", "/ab", "/x"];
const METHODS: [&str; 3] = ["GET", "POST", "PUT"];

fn id(name: &str) -> SpiffeId {
    SpiffeId::parse(&format!("spiffe://t.example/svc/{name}")).unwrap()
}

fn path() -> impl Strategy<Value = Option<PathMatch>> {
    let path = || proptest::sample::select(PATHS.as_slice());
    prop_oneof![
        Just(None),
        path().prop_map(|p| Some(PathMatch::Exact(p.into()))),
        path().prop_map(|p| Some(PathMatch::Prefix(p.into()))),
        Just(Some(PathMatch::Regex("/a(/[bc])*".into()))),
    ]
}

fn one_match() -> impl Strategy<Value = PolicyMatch> {
    let methods = proptest::sample::subsequence(METHODS.to_vec(), 0..=2);
    let regex = prop_oneof![3 => Just(String::new()), 1 => Just("/.*b.*".to_owned())];
    (methods, path(), regex, proptest::bool::weighted(0.2)).prop_map(
        |(methods, path, path_regex, header)| PolicyMatch {
            methods: methods.into_iter().map(str::to_owned).collect(),
            path,
            path_regex,
            header_matches: match header {
                true => vec![HeaderMatch {
                    name: "x-team".into(),
                    value: "red".into(),
                    regex: false,
                }],
                false => Vec::new(),
            },
            ..PolicyMatch::default()
        },
    )
}

fn rule() -> impl Strategy<Value = PolicyRule> {
    let sources = proptest::sample::subsequence(IDENTITIES.to_vec(), 0..=2);
    let matches = proptest::collection::vec(one_match(), 0..=2);
    let networks = proptest::sample::subsequence(vec!["10.0.0.0/8", "10.1.0.0/16", "::/0"], 0..=1);
    (
        any::<bool>(),
        proptest::bool::weighted(0.2),
        sources,
        networks,
        matches,
    )
        .prop_map(
            |(denies, any_identity, sources, networks, matches)| PolicyRule {
                name: "AuthorizationPolicy/p".into(),
                action: if denies { Action::Deny } else { Action::Allow },
                any_identity,
                sources: sources.into_iter().map(id).collect(),
                networks: networks.into_iter().map(|n| n.parse().unwrap()).collect(),
                matches,
                ..PolicyRule::default()
            },
        )
}

proptest! {
    /// Whoever gets in by any request is never said to be kept out.
    #[test]
    fn nobody_who_is_kept_out_gets_in(
        rules in proptest::collection::vec(rule(), 0..5),
        permissive in proptest::bool::weighted(0.2),
        strict in any::<bool>(),
        caller in proptest::sample::select(vec![Some("a"), Some("b"), Some("other"), None]),
        address in proptest::sample::select(vec!["10.0.0.1", "10.1.2.3", "192.0.2.1", "2001:db8::1"]),
        method in proptest::sample::select(METHODS.to_vec()),
        path in proptest::sample::select(PATHS.to_vec()),
        team in any::<bool>(),
        narrow in any::<bool>(),
    ) {
        let mut view = view(MESH);
        let server = view.servers.iter_mut().find(|s| s.name == "reviews").unwrap();
        server.inbound.policy = Policy { permissive, rules };
        let identity = caller.map(id);
        let requests = match narrow {
            true => Requests { methods: vec![method.to_owned()], path: Some(path.to_owned()) },
            false => Requests::default(),
        };
        let reach = Gate::new(server, strict).unwrap().reach(identity.as_ref(), &[], &requests);
        let policy = authz::Policy::compile(&server.inbound.policy).unwrap();
        let caller = Caller {
            identity: identity.as_ref(),
            address: Some(address.parse().unwrap()),
            port: 80,
            strict,
            by_identity: true,
        };
        let team = if team { "x-team: red\r\n" } else { "" };
        let head = format!("{method} {path} HTTP/1.1\r\nHost: reviews\r\n{team}\r\n");
        let request = Request::new(method.as_bytes(), path.as_bytes(), b"reviews", head.as_bytes());
        let gets_in = policy.caller_policy(&caller).judge(Some(&request)).is_ok();
        if reach == Reach::Kept {
            prop_assert!(!gets_in, "it is said to be kept out and gets in");
        }
    }
}

//! Ingresses, from the objects of the API server to the effect that a proxy has on a request.

mod made;

use super::*;
use crate::ingress::{self, CONTROLLER_NAME};
use crate::source::testing::World;
use serde_json::{Value, json};
use tulle_control::index::{Edit, Index};
use tulle_model::identity::TrustDomain;
use tulle_model::resource::Resource;
use tulle_proxy::config::route::{Entrance, Request};

/// A cluster with the class `tulle`, and Services `a` to `d`, `web` and `default` in two namespaces.
struct Cluster {
    world: World,
    own: Own,
    index: Index,
    told: BTreeMap<Key, ClusterGateway>,
}

impl Cluster {
    fn new() -> Self {
        let mut world = World::default();
        world.class("tulle", CONTROLLER_NAME, &json!({}));
        world.class("other", "example.org/other", &json!({}));
        for namespace in ["shop", "bank"] {
            for name in ["a", "b", "c", "d", "web", "default"] {
                let ports =
                    json!([{ "name": "http", "port": 80 }, { "name": "admin", "port": 9000 }]);
                world.service(&format!("{name}.{namespace}"), &ports);
            }
        }
        Self {
            world,
            own: Own::default(),
            index: Index::of_cluster(TrustDomain::default(), "tulle-system"),
            told: BTreeMap::new(),
        }
    }

    fn view(&self) -> View {
        View {
            ingresses: self.world.served().clone(),
            ..View::default()
        }
    }

    fn plan(&mut self) -> BTreeMap<Key, Planned> {
        let edits = self.world.edits();
        self.index.apply(edits);
        let settings =
            json!({ "image": "tulle-proxy", "controller": "c:15010", "trustDomain": "td" });
        let settings = serde_json::from_value(settings).unwrap();
        let plan = plan(
            &self.view(),
            &self.own,
            &settings,
            true,
            std::time::SystemTime::UNIX_EPOCH,
        );
        for (key, planned) in &plan {
            if let Some(told) = &planned.told {
                self.told.insert(key.clone(), told.clone());
                self.index.apply([Edit::Gateway(Box::new(told.clone()))]);
            }
        }
        plan
    }

    /// Returns the problems that are reported about Ingresses.
    fn problems(&mut self) -> Vec<String> {
        let plan = self.plan();
        let problems = plan.into_values().flat_map(|planned| planned.problems);
        problems.map(|p| p.to_string()).collect()
    }

    /// The Service and port that gets a request, or `none`; by a name if the client comes with TLS.
    fn ask(&mut self, namespace: &str, tls: Option<&str>, host: &str, path: &str) -> String {
        self.plan();
        let key = ingress::key(namespace, "tulle");
        let name = format!("gateway/{}", key.object_name());
        let Some(entry) = self.index.get(&name) else {
            return "no gateway".into();
        };
        let Resource::Gateway(told) = tulle_api::decode_body(&entry.body).unwrap() else {
            panic!("{name} is no gateway");
        };
        let gateway =
            tulle_proxy::config::gateway_listener::Gateway::compile(&told, None, None).unwrap();
        let port = if tls.is_some() { 443 } else { 80 };
        let asked = tls.unwrap_or(host);
        let Some(listener) = gateway.listener(port, asked.as_bytes()) else {
            return "no listener".into();
        };
        let head = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let request = Request {
            authority: host.as_bytes(),
            path: path.as_bytes(),
            target: path.as_bytes(),
            method: b"GET",
            head: head.as_bytes(),
            parties: None,
        };
        let entrance = Entrance {
            port,
            listener: &listener.name,
        };
        let found = gateway.routes.find(entrance, &request).unwrap();
        let Some(found) = found else {
            return "none".into();
        };
        let backend = found.rule.backend(0).unwrap();
        format!(
            "{}:{}",
            backend.service.replace(&format!(".{namespace}"), ""),
            backend.port
        )
    }
}

fn service(name: &str) -> Value {
    json!({ "service": { "name": name, "port": { "number": 80 } } })
}

/// `Kind path service` as a path of an Ingress.
fn paths(all: &[(&str, &str, &str)]) -> Value {
    let paths = all.iter().map(
        |(kind, path, name)| json!({ "pathType": kind, "path": path, "backend": service(name) }),
    );
    json!({ "paths": paths.collect::<Vec<_>>() })
}

fn ingress(spec: Value) -> Value {
    let mut spec = spec;
    spec["ingressClassName"] = "tulle".into();
    json!({ "spec": spec })
}

/// Kinds and paths of rules, a requested path, and which rule gets it.
type Row<'a> = (&'a [(&'a str, &'a str)], &'a str, Option<usize>);

/// The table of examples in Kubernetes' page about Ingress, row by row.
#[test]
fn paths_match_as_kubernetes_documents() {
    let rows: &[Row<'_>] = &[
        (&[("Prefix", "/")], "/", Some(0)),
        (&[("Prefix", "/")], "/any/path", Some(0)),
        (&[("Exact", "/foo")], "/foo", Some(0)),
        (&[("Exact", "/foo")], "/bar", None),
        (&[("Exact", "/foo")], "/foo/", None),
        (&[("Exact", "/foo/")], "/foo", None),
        (&[("Exact", "/foo")], "/FOO", None),
        (&[("Prefix", "/foo")], "/foo", Some(0)),
        (&[("Prefix", "/foo")], "/foo/", Some(0)),
        (&[("Prefix", "/foo/")], "/foo", Some(0)),
        (&[("Prefix", "/foo/")], "/foo/", Some(0)),
        (&[("Prefix", "/foo")], "/Foo", None),
        (&[("Prefix", "/aaa/bb")], "/aaa/bbb", None),
        (&[("Prefix", "/aaa/bbb")], "/aaa/bbb", Some(0)),
        (&[("Prefix", "/aaa/bbb/")], "/aaa/bbb", Some(0)),
        (&[("Prefix", "/aaa/bbb")], "/aaa/bbb/", Some(0)),
        (&[("Prefix", "/aaa/bbb")], "/aaa/bbb/ccc", Some(0)),
        (&[("Prefix", "/aaa/bbb")], "/aaa/bbbxyz", None),
        (&[("Prefix", "/"), ("Prefix", "/aaa")], "/aaa/ccc", Some(1)),
        (
            &[("Prefix", "/"), ("Prefix", "/aaa"), ("Prefix", "/aaa/bbb")],
            "/aaa/bbb",
            Some(2),
        ),
        (
            &[("Prefix", "/"), ("Prefix", "/aaa"), ("Prefix", "/aaa/bbb")],
            "/ccc",
            Some(0),
        ),
        (&[("Prefix", "/aaa")], "/ccc", None),
        (&[("Prefix", "/foo"), ("Exact", "/foo")], "/foo", Some(1)),
        (&[("Exact", "/foo"), ("Prefix", "/foo")], "/foo", Some(0)),
        (&[("Exact", "/foo"), ("Prefix", "/foo")], "/foo/x", Some(1)),
        // Read as Prefix here, and without a path every path.
        (&[("ImplementationSpecific", "/foo")], "/foo/x", Some(0)),
        (&[("ImplementationSpecific", "/foo")], "/foox", None),
        (&[("ImplementationSpecific", "")], "/x", Some(0)),
    ];
    let names = ["a", "b", "c"];
    // Without a host, with one, and with a wildcard the rules are the same.
    for host in ["", "foo.example", "*.example"] {
        for (given, path, expected) in rows {
            let given: Vec<_> = given
                .iter()
                .zip(names)
                .map(|((k, p), n)| (*k, *p, n))
                .collect();
            let mut rule = json!({ "http": paths(&given) });
            if !host.is_empty() {
                rule["host"] = host.into();
            }
            let mut cluster = Cluster::new();
            let spec = json!({ "rules": [rule], "defaultBackend": service("default") });
            cluster.world.ingress("i.shop", 0, ingress(spec));
            let expected =
                expected.map_or("default:80".to_owned(), |at| format!("{}:80", names[at]));
            let found = cluster.ask("shop", None, "foo.example", path);
            assert_eq!(found, expected, "{given:?} of {host:?}, {path}");
        }
    }
}

/// The table of host names in Kubernetes' page about Ingress, and what follows from its words.
#[test]
fn hosts_match_as_kubernetes_documents() {
    let mut cluster = Cluster::new();
    let rule =
        |host: &str, name: &str| json!({ "host": host, "http": paths(&[("Prefix", "/", name)]) });
    let spec = json!({ "rules": [rule("*.foo.com", "a"), rule("bar.foo.com", "b"), rule("*.Bar.foo.com", "c")] });
    cluster.world.ingress("i.shop", 0, ingress(spec));
    for (host, expected) in [
        ("x.foo.com", "a:80"),
        ("X.Foo.Com:8080", "a:80"),
        ("x.foo.com.", "a:80"),
        ("bar.foo.com", "b:80"),
        // A wildcard is one label and no less.
        ("baz.bar.foo.com", "c:80"),
        ("x.baz.bar.foo.com", "none"),
        ("x.y.foo.com", "none"),
        ("foo.com", "none"),
        ("xfoo.com", "none"),
        ("other.com", "none"),
    ] {
        assert_eq!(cluster.ask("shop", None, host, "/"), expected, "{host}");
    }
}

#[test]
fn what_no_rule_matches_goes_to_the_default_backend() {
    let mut cluster = Cluster::new();
    let spec = json!({
        "defaultBackend": service("default"),
        "rules": [
            { "host": "shop.example", "http": paths(&[("Prefix", "/cart", "a")]) },
            { "host": "whole.example" },
        ],
    });
    cluster.world.ingress("i.shop", 0, ingress(spec));
    assert_eq!(cluster.ask("shop", None, "shop.example", "/cart/1"), "a:80");
    assert_eq!(cluster.ask("shop", None, "shop.example", "/"), "default:80");
    assert_eq!(cluster.ask("shop", None, "x.example", "/"), "default:80");
    assert_eq!(
        cluster.ask("shop", None, "whole.example", "/x"),
        "default:80"
    );
    // A rule of another Ingress takes precedence, however young.
    let spec = json!({ "rules": [{ "http": paths(&[("Prefix", "/b", "b")]) }] });
    cluster.world.ingress("young.shop", 9, ingress(spec));
    assert_eq!(cluster.ask("shop", None, "x.example", "/b"), "b:80");
    assert_eq!(cluster.ask("shop", None, "x.example", "/"), "default:80");
    let spec = json!({ "rules": [{ "http": paths(&[("Prefix", "/", "c")]) }] });
    cluster.world.ingress("all.shop", 9, ingress(spec));
    assert_eq!(cluster.ask("shop", None, "x.example", "/"), "c:80");
    let problems = cluster.problems();
    let expected = "Ingress/i.shop: its defaultBackend gets no requests: all has `/` of every host";
    assert_eq!(problems, [expected]);
}

#[test]
fn of_two_ingresses_that_say_the_same_the_older_holds_and_the_other_is_told() {
    let mut cluster = Cluster::new();
    let spec = |name: &str| {
        json!({
            "defaultBackend": service(name),
            "rules": [{ "host": "a.example", "http": paths(&[("Prefix", "/x/", name), ("Exact", "/y", name)]) }],
        })
    };
    // In the order of their names the younger would come first.
    cluster.world.ingress("young.shop", 5, ingress(spec("a")));
    cluster.world.ingress("zold.shop", 1, ingress(spec("b")));
    cluster
        .world
        .ingress("elsewhere.bank", 0, ingress(spec("c")));
    for path in ["/x", "/y", "/z"] {
        assert_eq!(
            cluster.ask("shop", None, "a.example", path),
            "b:80",
            "{path}"
        );
        // Another namespace has another gateway.
        assert_eq!(
            cluster.ask("bank", None, "a.example", path),
            "c:80",
            "{path}"
        );
    }
    let expected = [
        "Ingress/young.shop: its rule for Prefix /x/ of a.example has no effect: zold has the same rule and is older",
        "Ingress/young.shop: its rule for Exact /y of a.example has no effect: zold has the same rule and is older",
        "Ingress/young.shop: its defaultBackend has no effect: zold has one, too, and is older",
    ];
    assert_eq!(cluster.problems(), expected);
    cluster.world.remove("zold.shop");
    assert_eq!(cluster.ask("shop", None, "a.example", "/x"), "a:80");
    assert!(cluster.problems().is_empty());
}

#[test]
fn backends_are_services_of_the_same_namespace_by_number_or_name() {
    let backend = |backend: Value| {
        let mut cluster = Cluster::new();
        let path = json!({ "pathType": "Prefix", "path": "/x", "backend": backend });
        let spec = json!({ "defaultBackend": service("default"), "rules": [{ "http": { "paths": [path] } }] });
        cluster.world.ingress("i.shop", 0, ingress(spec));
        cluster.world.service("only.bank", &json!([{ "port": 80 }]));
        let found = cluster.ask("shop", None, "x.example", "/x");
        (found, cluster.problems().join("\n"))
    };
    let port =
        |name: &str, port: Value| backend(json!({ "service": { "name": name, "port": port } }));
    let good = |found: &str| (found.to_owned(), String::new());
    assert_eq!(port("web", json!({ "number": 80 })), good("web:80"));
    assert_eq!(port("web", json!({ "name": "admin" })), good("web:9000"));
    // The backend's share fails rather than going to another backend.
    for (answer, why) in [
        (
            port("web", json!({ "number": 81 })),
            "Service web of the namespace shop has no port 81",
        ),
        (
            port("web", json!({ "name": "x" })),
            "Service web of the namespace shop has no port x",
        ),
        (
            port("only", json!({ "number": 80 })),
            "there is no Service only in the namespace shop",
        ),
        (
            backend(json!({ "resource": { "kind": "Bucket", "name": "icons" } })),
            "its backend is the Bucket icons: a backend must be a Service",
        ),
    ] {
        assert_eq!(answer.0, "unresolved-backend:1", "{why}");
        assert!(
            answer.1.starts_with(&format!("Ingress/i.shop: {why}")),
            "{}",
            answer.1
        );
        assert!(
            answer.1.ends_with("requests for it are answered with 500"),
            "{}",
            answer.1
        );
    }
}

#[test]
fn classes_are_named_by_field_annotation_or_default() {
    let class = |spec: Value, annotations: Value| {
        let mut cluster = Cluster::new();
        let object = json!({ "metadata": { "annotations": annotations }, "spec": spec });
        cluster.world.ingress("i.shop", 0, object);
        cluster.plan();
        !cluster.told.is_empty()
    };
    let backend = service("web");
    let named = |name: &str| json!({ "ingressClassName": name, "defaultBackend": backend });
    let old = |name: &str| json!({ "kubernetes.io/ingress.class": name });
    let none = || json!({ "defaultBackend": backend });
    assert!(class(named("tulle"), json!({})));
    assert!(!class(named("other"), json!({})));
    assert!(!class(named("missing"), json!({})));
    assert!(class(none(), old("tulle")));
    assert!(!class(none(), old("other")));
    // The field takes precedence over the annotation.
    assert!(!class(named("other"), old("tulle")));
    assert!(!class(none(), json!({})));
    let marked = |defaults: &[&str]| {
        let mut cluster = Cluster::new();
        for name in defaults {
            let controller = match *name {
                "other" => "example.org/other",
                _ => CONTROLLER_NAME,
            };
            let default = json!({ "ingressclass.kubernetes.io/is-default-class": "true" });
            cluster.world.class(name, controller, &default);
        }
        cluster
            .world
            .ingress("i.shop", 0, json!({ "spec": none() }));
        !cluster.plan().is_empty()
    };
    assert!(marked(&["tulle"]));
    assert!(!marked(&["other"]));
    assert!(!marked(&["tulle", "other"]));
}

#[test]
fn a_path_that_cannot_be_compared_refuses_the_ingress_and_what_it_said_before_holds() {
    let regex = |uid: &str| {
        let rules = paths(&[
            ("Prefix", "/", "web"),
            ("ImplementationSpecific", "/api(/|$)(.*)", "a"),
        ]);
        let mut object = ingress(json!({ "rules": [{ "http": rules }] }));
        object["metadata"] = json!({ "uid": uid });
        object
    };
    let mut cluster = Cluster::new();
    cluster.world.ingress("i.shop", 0, regex("one"));
    assert_eq!(cluster.ask("shop", None, "x.example", "/api"), "none");
    let problems = cluster.problems().join("\n");
    assert!(
        problems.contains("regular expression") && problems.contains("nothing of it is served"),
        "{problems}"
    );
    assert_eq!(cluster.world.refused(), Some(("Ingress", 1)));
    let mut good = ingress(json!({ "rules": [{ "http": paths(&[("Prefix", "/", "b")]) }] }));
    good["metadata"] = json!({ "uid": "one" });
    cluster.world.ingress("i.shop", 0, good);
    assert_eq!(cluster.ask("shop", None, "x.example", "/api"), "b:80");
    assert_eq!(cluster.world.refused(), Some(("Ingress", 0)));
    cluster.world.ingress("i.shop", 0, regex("one"));
    assert_eq!(cluster.ask("shop", None, "x.example", "/api"), "b:80");
    assert!(cluster.problems()[0].ends_with("its last valid version stays in force"));
    // Another Ingress of that name has no valid version before.
    cluster.world.ingress("i.shop", 0, regex("two"));
    assert_eq!(cluster.ask("shop", None, "x.example", "/api"), "none");
}

#[test]
fn what_has_no_effect_is_said() {
    let mut cluster = Cluster::new();
    let mut object =
        ingress(json!({ "defaultBackend": service("web"), "tls": [{ "hosts": ["a.example"] }] }));
    object["metadata"]["annotations"] = json!({
        "nginx.ingress.kubernetes.io/rewrite-target": "/", "tulle.dev/x": "y",
        "cert-manager.io/cluster-issuer": "acme",
    });
    cluster.world.ingress("i.shop", 0, object);
    let expected = [
        "Ingress/i.shop: its annotations nginx.ingress.kubernetes.io/rewrite-target, tulle.dev/x are not read: \
         use an HTTPRoute for what Ingress cannot say",
        "Ingress/i.shop: a part of its `tls` has no secretName: there is no certificate to show",
    ];
    assert_eq!(cluster.problems(), expected);
}

mod made_again;
mod named;
mod refusals;
mod refused_targets;
mod revoked_grants;

use super::*;
use crate::kinds::KINDS;
use k8s_openapi::api::core::v1::Service;
use tulle_model::namespaced::Namespaced;

fn kind(name: &str) -> &'static Kind {
    KINDS.iter().find(|k| k.kind == name).unwrap()
}

struct World {
    objects: Objects,
    state: State,
    wishes: StatusUpdates,
}

impl World {
    fn new() -> Self {
        let base = mesh(
            "mesh",
            json!({ "permissiveMode": true, "trustDomain": "td" }),
        );
        let mut state = State::default();
        let service = json!({"spec": {"ports": [{"name": "http", "port": 80}]}});
        let service: Service = serde_json::from_value(service).unwrap();
        for name in ["web.shop", "cart.shop"] {
            state.service(named(name), &service);
        }
        Self {
            objects: Objects::new(crate::object::read(&base).unwrap()),
            state,
            wishes: StatusUpdates::default(),
        }
    }

    /// Shows this object, and returns the edits that the index receives.
    fn see(&mut self, object: Value) -> Vec<Edit> {
        self.apply(object);
        self.edits()
    }

    fn apply(&mut self, object: Value) {
        let kind = Kind::find(
            object["apiVersion"]
                .as_str()
                .unwrap()
                .split('/')
                .next()
                .unwrap(),
            object["kind"].as_str().unwrap(),
        );
        let (kind, key) = (kind.unwrap(), key(&object));
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        self.objects.apply(kind, key, object);
    }

    fn edits(&mut self) -> Vec<Edit> {
        let mut edits = Vec::new();
        self.objects.edits(&self.state, &mut edits, &self.wishes);
        edits
    }

    fn status(&self, kind_name: &str, key: &str) -> Option<Value> {
        let wish = self.wishes.get(&(kind(kind_name), named(key).into()))?;
        Some(wish.status.value().clone())
    }
}

fn key(object: &Value) -> ObjectName {
    let meta = &object["metadata"];
    let namespace = meta["namespace"].as_str().unwrap_or_default();
    ObjectName::in_namespace(meta["name"].as_str().unwrap(), namespace)
}

fn named(qualified: &str) -> Namespaced {
    Namespaced::parse(qualified).unwrap()
}

fn mesh(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "tulle.dev/v1alpha1", "kind": "Mesh", "metadata": { "name": name },
        "spec": spec,
    })
}

fn object(version: &str, kind: &str, name: &str, namespace: &str, spec: Value) -> Value {
    json!({
        "apiVersion": version, "kind": kind, "spec": spec,
        "metadata": { "name": name, "namespace": namespace, "generation": 3, "resourceVersion": "9" },
    })
}

fn route(namespace: &str, parent: Value, backend: Value) -> Value {
    let spec = json!({
        "parentRefs": [parent], "rules": [{ "backendRefs": [backend] }],
    });
    object(
        "gateway.networking.k8s.io/v1",
        "HTTPRoute",
        "r",
        namespace,
        spec,
    )
}

fn service(name: &str) -> Value {
    json!({ "group": "", "kind": "Service", "name": name, "port": 80 })
}

fn put(edits: &[Edit]) -> Vec<String> {
    let each = edits.iter().map(|edit| match edit {
        Edit::Put(object) => format!("+{}", object.id()),
        Edit::Delete { kind, name } => format!("-{kind}/{name}"),
        other => panic!("{other:?}"),
    });
    each.collect()
}

fn condition<'a>(status: &'a Value, kind: &str) -> &'a Value {
    let mut all = status["conditions"].as_array().unwrap().iter();
    all.rfind(|c| c["type"] == kind).unwrap()
}

#[test]
fn an_object_says_when_it_was_made() {
    let mut world = World::new();
    world.edits();
    let mut made = route("shop", service("web"), service("cart"));
    made["metadata"]["creationTimestamp"] = "2026-01-31T00:00:00Z".into();
    let edits = world.see(made);
    let [Edit::Put(route)] = &*edits else {
        panic!("{edits:?}");
    };
    assert_eq!(route.metadata().created, "2026-01-31T00:00:00Z");
}

#[test]
fn a_policy_about_a_service_that_is_not_there_says_so() {
    let mut world = World::new();
    world.edits();
    let spec = json!({
        "targetRefs": [{ "kind": "Service", "name": "cart" }], "timeouts": { "request": "1s" },
    });
    let policy = object("tulle.dev/v1alpha1", "TrafficPolicy", "p", "shop", spec);
    world.see(policy);
    let resolved = |world: &World| {
        let status = world.status("TrafficPolicy", "p.shop").unwrap();
        assert_eq!(condition(&status, "Accepted")["status"], "True", "{status}");
        condition(&status, "ResolvedRefs").clone()
    };
    assert_eq!(resolved(&world)["status"], "True");
    world.state.remove_service(&named("cart.shop"));
    world.edits();
    let missing = resolved(&world);
    assert_eq!(missing["status"], "False");
    assert_eq!(missing["reason"], "TargetNotFound");
    let message = missing["message"].as_str().unwrap();
    assert!(
        message.contains("cart") && message.contains("shop"),
        "{message}"
    );
}

#[test]
fn a_policy_that_cannot_be_read_leaves_what_it_said_before() {
    let mut world = World::new();
    world.edits();
    let policy = |mode: Value| {
        let spec = json!({ "targetRefs": [{ "kind": "Service", "name": "web" }], "rules": mode });
        object(
            "tulle.dev/v1alpha1",
            "AuthorizationPolicy",
            "p",
            "shop",
            spec,
        )
    };
    let edits = world.see(policy(json!([{ "from": { "serviceAccounts": ["cart"] } }])));
    assert_eq!(put(&edits), ["+AuthorizationPolicy/p.shop"]);
    let status = world.status("AuthorizationPolicy", "p.shop").unwrap();
    assert_eq!(condition(&status, "Accepted")["status"], "True");
    assert_eq!(condition(&status, "Accepted")["observedGeneration"], 3);
    // The same object again changes nothing.
    assert!(
        world
            .see(policy(json!([{ "from": { "serviceAccounts": ["cart"] } }])))
            .is_empty()
    );

    assert!(world.see(policy(json!([{ "frm": {} }]))).is_empty());
    let status = world.status("AuthorizationPolicy", "p.shop").unwrap();
    let accepted = condition(&status, "Accepted");
    assert_eq!(accepted["status"], "False");
    assert!(
        accepted["message"].as_str().unwrap().contains("frm"),
        "{accepted}"
    );

    world
        .objects
        .keep(kind("AuthorizationPolicy"), &BTreeSet::new());
    assert_eq!(put(&world.edits()), ["-AuthorizationPolicy/p.shop"]);
    assert_eq!(world.status("AuthorizationPolicy", "p.shop"), None);
}

#[test]
fn a_policy_that_was_never_readable_lets_nobody_call() {
    let mut world = World::new();
    world.edits();
    let target = json!([{ "kind": "Service", "name": "web" }]);
    for (kind, name) in [
        ("AuthorizationPolicy", "p.shop"),
        ("Authentication", "authentication/p.shop"),
    ] {
        let spec = json!({ "targetRefs": target, "rules": [{ "frm": {} }], "jwt": 1 });
        let broken = object("tulle.dev/v1alpha1", kind, "p", "shop", spec);
        let edits = world.see(broken.clone());
        let [Edit::Put(closed)] = edits.as_slice() else {
            panic!("{edits:?}");
        };
        let Object::AuthorizationPolicy(policy) = &**closed else {
            panic!("{closed:?}");
        };
        assert_eq!(policy.metadata.name, name);
        assert_eq!(policy.spec.target_refs[0].name, "web.shop");
        assert_eq!(policy.spec.action.as_deref(), Some("Deny"));
        assert!(world.see(broken).is_empty());
        let status = world.status(kind, "p.shop").unwrap();
        assert_eq!(condition(&status, "Accepted")["reason"], "Invalid");
        let id = (self::kind(kind), &BTreeSet::new());
        world.objects.keep(id.0, id.1);
        let removed = put(&world.edits());
        assert_eq!(removed, [format!("-AuthorizationPolicy/{name}")]);
    }
}

#[test]
fn what_closes_for_an_unreadable_object_goes_when_the_object_no_longer_asks_for_it() {
    let mut world = World::new();
    world.edits();
    let plugin = |policy: &str| {
        let target = json!([{ "kind": "Service", "name": "web" }]);
        let spec = json!({ "targetRefs": target, "failurePolicy": policy, "scirpt": "" });
        object("tulle.dev/v1alpha1", "Plugin", "p", "shop", spec)
    };
    let closed = put(&world.see(plugin("Closed")));
    assert_eq!(closed, ["+AuthorizationPolicy/plugin/p.shop"]);
    assert_eq!(
        put(&world.see(plugin("Open"))),
        ["-AuthorizationPolicy/plugin/p.shop"]
    );
    assert!(world.see(plugin("Open")).is_empty());
    assert_eq!(put(&world.see(plugin("Closed"))), closed);
}

#[test]
fn a_policy_closes_nothing_outside_its_namespace() {
    let mut world = World::new();
    world.edits();
    for kind in ["AuthorizationPolicy", "Authentication"] {
        for target in [
            json!({ "kind": "Service", "name": "web", "namespace": "shop" }),
            json!({ "kind": "Gateway", "name": "edge", "namespace": "shop" }),
        ] {
            let elsewhere = target["kind"] == "Gateway";
            let mut targets = vec![target];
            if elsewhere {
                targets.push(json!({ "kind": "Service", "name": "own" }));
            }
            let spec = json!({ "targetRefs": targets, "rules": [{}], "jwt": 1 });
            let broken = object("tulle.dev/v1alpha1", kind, "p", "evil", spec);
            let edits = world.see(broken);
            let closed = edits.iter().map(|edit| match edit {
                Edit::Put(object) => match &**object {
                    Object::AuthorizationPolicy(policy) => &policy.spec.target_refs,
                    other => panic!("{other:?}"),
                },
                other => panic!("{other:?}"),
            });
            let closed: Vec<_> = closed.flatten().map(|t| t.name.as_str()).collect();
            assert_eq!(closed, if elsewhere { vec!["own.evil"] } else { vec![] });
            // Nor does its status tell the author which objects exist elsewhere.
            let status = world.status(kind, "p.evil").unwrap();
            assert_eq!(condition(&status, "Accepted")["reason"], "Invalid");
            assert!(
                !condition(&status, "ResolvedRefs")["message"]
                    .to_string()
                    .contains("shop")
            );
        }
        world.objects.keep(self::kind(kind), &BTreeSet::new());
        world.edits();
    }
}

#[test]
fn what_denied_in_place_of_an_authentication_goes_when_it_is_mended() {
    let mut world = World::new();
    world.edits();
    let authentication = |asks: Value| {
        let spec = json!({ "targetRefs": [{ "name": "web" }], "externalAuth": asks });
        object("tulle.dev/v1alpha1", "Authentication", "a", "shop", spec)
    };
    let denied = "AuthorizationPolicy/authentication/a.shop";
    let edits = world.see(authentication(json!(1)));
    assert_eq!(put(&edits), [format!("+{denied}")]);
    let good = json!({ "protocol": "HTTP", "backendRef": { "name": "cart", "port": 80 } });
    let edits = world.see(authentication(good));
    let all = [format!("-{denied}"), "+Authentication/a.shop".into()];
    assert_eq!(put(&edits), all);
    // Broken again: its last valid version stays in force.
    assert!(world.see(authentication(json!(1))).is_empty());
    world.objects.keep(kind("Authentication"), &BTreeSet::new());
    assert_eq!(put(&world.edits()), ["-Authentication/a.shop"]);
}

#[test]
fn the_mesh_of_the_installation_holds_until_there_is_one() {
    let mut world = World::new();
    let permissive = |edits: Vec<Edit>| match edits.as_slice() {
        [Edit::Put(object)] => match &**object {
            Object::Mesh(mesh) => (mesh.spec.permissive_mode, mesh.spec.trust_domain.clone()),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    let (first, domain) = permissive(world.edits());
    assert!(first);
    let strict = permissive(world.see(mesh("mesh", json!({ "permissiveMode": false }))));
    assert_eq!(strict, (false, domain.clone()));
    // Fields that the Mesh does not set stay as they were chosen at the installation.
    let revoked = json!([{ "identity": "spiffe://td/ns/shop/sa/web" }]);
    let loose = permissive(world.see(mesh("mesh", json!({ "revoked": revoked }))));
    assert_eq!(loose, (true, domain.clone()));
    // Another Mesh has no effect, nor has one that would change all identities.
    assert!(
        world
            .see(mesh("other", json!({ "permissiveMode": true })))
            .is_empty()
    );
    let other = json!({ "permissiveMode": true, "trustDomain": "other" });
    assert!(world.see(mesh("mesh", other)).is_empty());
    let mesh = ObjectName::Plain("mesh".into());
    world.objects.remove(kind("Mesh"), &mesh);
    assert_eq!(permissive(world.edits()), (true, domain));
}

#[test]
fn a_route_of_a_service() {
    let mut world = World::new();
    world.edits();
    let edits = world.see(route(
        "shop",
        service("web"),
        json!({ "name": "cart", "port": 80 }),
    ));
    assert_eq!(put(&edits), ["+HTTPRoute/r.shop"]);
    let parents = world.status("HTTPRoute", "r.shop").unwrap()["parents"].clone();
    assert_eq!(parents[0]["parentRef"], service("web"));
    assert_eq!(parents[0]["controllerName"], CONTROLLER_NAME);
    for kind in ["Accepted", "ResolvedRefs"] {
        assert_eq!(condition(&parents[0], kind)["status"], "True");
    }
    // The backend goes, and comes back.
    world.state.remove_service(&named("cart.shop"));
    world.edits();
    let parents = world.status("HTTPRoute", "r.shop").unwrap()["parents"].clone();
    let resolved = condition(&parents[0], "ResolvedRefs");
    assert_eq!(resolved["reason"], "BackendNotFound");
}

#[test]
fn routes_that_have_no_effect_say_so() {
    let mut world = World::new();
    world.edits();
    let backend = json!({ "name": "cart", "port": 80 });
    let edits = world.see(route("shop", service("nothing"), backend.clone()));
    assert!(edits.is_empty(), "{edits:?}");
    let status = world.status("HTTPRoute", "r.shop").unwrap();
    let accepted = condition(&status["parents"][0], "Accepted");
    assert_eq!(accepted["reason"], "NoMatchingParent");
    // The route of another controller's gateway gets no status.
    let edits = world.see(route("shop", json!({ "name": "theirs" }), backend));
    assert!(edits.is_empty(), "{edits:?}");
    assert_eq!(world.status("HTTPRoute", "r.shop"), None);
}

/// A route for a Service of another namespace holds for calls from the route's own namespace. The Service's
/// owner receives these calls and need not agree.
#[test]
fn a_route_of_another_namespaces_service() {
    let mut world = World::new();
    world.edits();
    let mut web = service("web");
    web["namespace"] = "shop".into();
    for (backend, resolved) in [("web", "True"), ("cart", "False")] {
        let backend = json!({ "name": backend, "namespace": "shop", "port": 80 });
        let edits = world.see(route("other", web.clone(), backend));
        assert_eq!(put(&edits), ["+HTTPRoute/r.other"]);
        let status = world.status("HTTPRoute", "r.other").unwrap();
        let entry = &status["parents"][0];
        assert_eq!(condition(entry, "Accepted")["status"], "True");
        assert_eq!(condition(entry, "ResolvedRefs")["status"], resolved);
    }
}

#[test]
fn a_route_hangs_on_listeners_that_allow_it() {
    let mut world = World::new();
    world.edits();
    let gateway = |from: &str| {
        object(
            "gateway.networking.k8s.io/v1",
            "Gateway",
            "edge",
            "infra",
            json!({
                "gatewayClassName": "tulle",
                "listeners": [
                    { "name": "a", "port": 80, "protocol": "HTTP",
                      "allowedRoutes": { "namespaces": { "from": from } } },
                    { "name": "b", "port": 81, "protocol": "HTTP" },
                ],
            }),
        )
    };
    // `crate::gateway` feeds the Gateway itself to the index.
    assert!(world.see(gateway("All")).is_empty());
    let class = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
        "metadata": { "name": "tulle" }, "spec": { "controllerName": CONTROLLER_NAME },
    });
    assert!(world.see(class).is_empty());
    let parent = json!({ "name": "edge", "namespace": "infra" });
    let edits = world.see(route("shop", parent, json!({ "name": "cart", "port": 80 })));
    let [Edit::Put(object)] = edits.as_slice() else {
        panic!("{edits:?}");
    };
    let Object::HttpRoute(route) = &**object else {
        panic!("{object:?}");
    };
    let attached: Vec<_> = route
        .spec
        .parent_refs
        .iter()
        .map(|p| p.section_name.as_deref())
        .collect();
    assert_eq!(attached, [Some("a")]);
    // The view for gateways has the same attachment.
    let attachment = Attachment {
        route: "HTTPRoute/r.shop".into(),
        listener: "a".into(),
    };
    let edge = Key::new("infra", "edge");
    let view = world.objects.view();
    assert_eq!(view.attached, [(edge, [attachment].into())].into());
    assert_eq!(put(&world.see(gateway("Same"))), ["-HTTPRoute/r.shop"]);
    assert!(world.objects.view().attached.is_empty());
    let status = world.status("HTTPRoute", "r.shop").unwrap();
    let accepted = condition(&status["parents"][0], "Accepted");
    assert_eq!(accepted["reason"], "NotAllowedByListeners");
}

#[test]
fn gateways_are_looked_at_when_something_of_theirs_changed() {
    let mut world = World::new();
    let classes = kind("GatewayClass");
    let empty = world.objects.view();
    // There is no class, but now there can be one.
    world.objects.keep(classes, &BTreeSet::new());
    let before = world.objects.view();
    assert_ne!(before, empty);
    world.see(route("shop", service("web"), service("cart")));
    let more = json!({"spec": {"ports": [{"name": "http", "port": 80}]}});
    let more: Service = serde_json::from_value(more).unwrap();
    world.state.service(named("more.shop"), &more);
    world.edits();
    assert_eq!(world.objects.view(), before);
    let gateway = |port: u16| {
        let listener = json!({ "name": "a", "port": port, "protocol": "HTTP" });
        let spec = json!({ "gatewayClassName": "tulle", "listeners": [listener] });
        let version = "gateway.networking.k8s.io/v1";
        object(version, "Gateway", "edge", "infra", spec)
    };
    world.see(gateway(80));
    let one = world.objects.view();
    assert_ne!(one, before);
    world.see(gateway(80));
    assert_eq!(world.objects.view(), one);
    world.see(gateway(81));
    assert_ne!(world.objects.view(), one);
}

#[test]
fn what_policies_refer_to_is_known() {
    let mut world = World::new();
    world.edits();
    let policy = |namespace: Option<&str>| {
        let mut keys = json!({ "name": "keys" });
        if let Some(namespace) = namespace {
            keys["namespace"] = namespace.into();
        }
        object(
            "tulle.dev/v1alpha1",
            "Authentication",
            "a",
            "shop",
            json!({
                "targetRefs": [{ "kind": "Service", "name": "web" }],
                "jwt": { "providers": [{ "issuer": "i", "jwksRef": keys }] },
            }),
        )
    };
    world.see(policy(None));
    let keys = TextKey {
        secret: false,
        key: Key::new("shop", "keys"),
    };
    let status = world.status("Authentication", "a.shop");
    let texts = BTreeSet::from([keys]);
    assert_eq!(world.objects.view().texts, texts, "{status:?}");
    // The reference counts only with a grant of its owner; the last valid form stays in force, with its own.
    world.see(policy(Some("other")));
    assert_eq!(world.objects.view().texts, texts);
}

#[test]
fn an_egress_gateway_is_named_by_its_service_and_takes_no_routes() {
    let mut world = World::new();
    let version = "gateway.networking.k8s.io/v1";
    world.see(json!({
        "apiVersion": version, "kind": "GatewayClass",
        "metadata": { "name": "tulle-egress" }, "spec": { "controllerName": CONTROLLER_NAME },
    }));
    // A listener of a protocol that routes are for does not change what the Gateway is.
    let listeners = json!([
        { "name": "connect", "port": 3128, "protocol": "tulle.dev/CONNECT" },
        { "name": "wrong", "port": 80, "protocol": "HTTP" },
    ]);
    let spec = json!({ "gatewayClassName": "tulle-egress", "listeners": listeners });
    world.see(object(version, "Gateway", "way-out", "shop", spec));
    let parent = json!({ "name": "way-out" });
    world.see(route("shop", parent, json!({ "name": "cart", "port": 80 })));
    let status = world.status("HTTPRoute", "r.shop").unwrap();
    let accepted = condition(&status["parents"][0], "Accepted");
    assert_eq!(accepted["reason"], "NotAllowedByListeners");
    assert!(world.objects.view().attached.is_empty());

    let mut resolved = |service: &str| {
        let gateway = json!({ "service": service, "port": 3128 });
        let spec = json!({ "hosts": ["a.test"], "gateway": gateway });
        world.see(object("tulle.dev/v1alpha1", "Egress", "e", "shop", spec));
        let status = world.status("Egress", "e.shop").unwrap();
        condition(&status, "ResolvedRefs")["message"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let hint = "there is no Service way-out in the namespace shop (that of the Gateway way-out is way-out-tulle)";
    let said = resolved("way-out");
    assert!(said.starts_with(hint), "{said}");
    let said = resolved("way-out-tulle");
    assert!(
        said.starts_with("there is no Service way-out-tulle in the namespace shop:"),
        "{said}"
    );
}

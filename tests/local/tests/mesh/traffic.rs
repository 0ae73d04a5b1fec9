//! Tests TrafficPolicy, RateLimit and routes of connections: the sidecars of a mesh of `tulle up` apply
//! them. One mesh, whose objects change.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use tests_local::{Client, Demo, Message, can_redirect, eventually};

const HTTP: u16 = 8104;
const TCP: u16 = 8106;

/// A workload that says its name, by HTTP and as opaque bytes.
fn echo(name: &str, service: &str, more: &str) -> String {
    format!(
        r#"---
apiVersion: tulle.dev/v1alpha1
kind: Workload
metadata:
  name: {name}
spec:
  service: {service}
  command: [./bookinfo, echo, --name, {name}{more}]
  ports:
    - port: {HTTP}
      appProtocol: http
    - port: {TCP}
      targetPort: {HTTP}
      appProtocol: tcp
"#
    )
}

fn mesh() -> String {
    let mesh = "apiVersion: tulle.dev/v1alpha1\nkind: Mesh\nmetadata:\n  name: traffic\n\
                spec:\n  permissiveMode: true\n";
    let client = "---\napiVersion: tulle.dev/v1alpha1\nkind: Workload\nmetadata:\n  name: client\n\
                  spec:\n  command: [sleep, infinity]\n";
    [
        mesh,
        client,
        &echo("one", "shop", ""),
        &echo("two", "shop", ""),
        &echo("good", "mixed", ""),
        &echo("bad", "mixed", ", --status, \"503\""),
        &echo("other", "other", ""),
    ]
    .concat()
}

struct Mesh(Demo);

impl Mesh {
    fn apply(&self, kind: &str, name: &str, spec: &str) {
        let version = match kind {
            "TCPRoute" => "gateway.networking.k8s.io/v1alpha2",
            _ => "tulle.dev/v1alpha1",
        };
        let text = format!(
            "apiVersion: {version}\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {spec}\n"
        );
        self.0.apply(&self.0.write("object.yaml", &text));
    }

    /// The policy of a service, in place of the one before.
    fn policy(&self, service: &str, spec: &str) {
        let spec = format!("{{targetRefs: [{{name: {service}}}], {spec}}}");
        self.apply("TrafficPolicy", service, &spec);
    }

    fn delete(&self, kind: &str, name: &str) {
        let deleted = self.0.tulle(&["delete", kind, name]);
        assert_eq!(deleted.code, 0, "{deleted:?}");
    }

    fn at(&self, service: &str, port: u16) -> SocketAddr {
        (self.0.address(service, true, false), port).into()
    }

    /// Runs this in the place of the client's application.
    fn client<T: Send>(&self, run: impl FnOnce() -> T + Send) -> T {
        self.0.inside("client", true, run)
    }

    /// One request of the client, on a connection of its own.
    fn get(&self, service: &str, target: &str, fields: &str) -> Message {
        let to = self.at(service, HTTP);
        self.client(|| one(to, target, fields))
    }

    /// Counts answers by endpoint among so many requests.
    fn answered(&self, service: &str, count: usize, fields: &str) -> BTreeMap<String, usize> {
        let to = self.at(service, HTTP);
        self.client(|| {
            let mut names = BTreeMap::new();
            for _ in 0..count {
                *names.entry(name(&one(to, "/", fields))).or_default() += 1;
            }
            names
        })
    }

    /// Waits until requests come back like this.
    fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        eventually(what, || holds(self));
    }
}

fn one(to: SocketAddr, target: &str, fields: &str) -> Message {
    let mut client = Client::connect(to);
    client.send(format!(
        "GET {target} HTTP/1.1\r\nHost: shop\r\n{fields}\r\n"
    ));
    client.response("GET")
}

fn name(answer: &Message) -> String {
    let text = answer.text();
    let rest = text.strip_prefix("{\"name\":\"").expect("an echo");
    rest.split('"').next().unwrap().to_owned()
}

fn told(answer: &Message) -> (u16, &str) {
    (answer.status(), answer.header("x-tulle-reason"))
}

#[test]
fn the_sidecars_do_what_the_objects_say() {
    if !can_redirect() {
        return;
    }
    let mesh = Mesh(Demo::start(|_| self::mesh()));
    balancers(&mesh);
    affinity_by_header(&mesh);
    requests_at_a_time(&mesh);
    connections_at_a_time(&mesh);
    timeouts(&mesh);
    retries(&mesh);
    breaker_with_an_answer_in_place(&mesh);
    slow_answers_open_the_circuit(&mesh);
    rate_limits(&mesh);
    tcp_route_of_a_service(&mesh);
}

fn balancers(mesh: &Mesh) {
    mesh.policy("shop", "loadBalancer: {type: RoundRobin}");
    mesh.until("in turn", |mesh| {
        mesh.answered("shop", 8, "") == BTreeMap::from([("one".into(), 4), ("two".into(), 4)])
    });
    for balancer in ["LeastRequest", "EWMA", "Random"] {
        mesh.policy("shop", &format!("loadBalancer: {{type: {balancer}}}"));
        mesh.until(balancer, |mesh| mesh.answered("shop", 60, "").len() == 2);
    }
    let hash = |by: &str| format!("loadBalancer: {{type: RingHash, hash: {{{by}}}}}");
    for (by, field) in [
        ("header: x-user", "x-user: "),
        ("cookie: user", "cookie: user="),
    ] {
        mesh.policy("shop", &hash(by));
        let with = |user: usize| format!("{field}{user}\r\n");
        mesh.until("a key stays", |mesh| {
            (0..4).all(|user| mesh.answered("shop", 8, &with(user)).len() == 1)
        });
        let all: BTreeMap<_, _> = (0..32)
            .map(|user| (name(&mesh.get("shop", "/", &with(user))), ()))
            .collect();
        assert_eq!(all.len(), 2, "by {by} both get some");
    }
    mesh.policy("shop", &hash("sourceAddress: true"));
    mesh.until("an address stays", |mesh| {
        mesh.answered("shop", 16, "").len() == 1
    });
}

fn affinity_by_header(mesh: &Mesh) {
    mesh.policy("shop", "sessionAffinity: {type: Header, name: x-session}");
    mesh.until("it is told who it was", |mesh| {
        !mesh.get("shop", "/", "").header("x-session").is_empty()
    });
    let first = mesh.get("shop", "/", "");
    let fields = format!("x-session: {}\r\n", first.header("x-session"));
    let names = mesh.answered("shop", 12, &fields);
    assert_eq!(names, BTreeMap::from([(name(&first), 12)]));
}

fn requests_at_a_time(mesh: &Mesh) {
    mesh.policy(
        "shop",
        "connections: {maxRequests: 1, maxPendingRequests: 1}",
    );
    let to = mesh.at("shop", HTTP);
    mesh.until("one of three is refused", |mesh| {
        let statuses = mesh.client(|| {
            let begun = [(); 3].map(|()| {
                let mut client = Client::connect(to);
                client.send("GET /delay/0.5 HTTP/1.1\r\nHost: shop\r\n\r\n");
                client
            });
            begun.map(|mut client| client.response("GET"))
        });
        let mut told = statuses.each_ref().map(told);
        told.sort_unstable();
        told == [(200, ""), (200, ""), (503, "overload")]
    });
}

fn connections_at_a_time(mesh: &Mesh) {
    mesh.policy("shop", "connections: {maxConnections: 1}");
    let to = mesh.at("shop", TCP);
    // HTTP to the service, opaque to the mesh.
    let served = |client: &mut Client| {
        let sent = client.try_send("GET / HTTP/1.1\r\nHost: shop\r\n\r\n");
        sent.and_then(|()| client.try_response("GET")).is_ok()
    };
    mesh.until("the second is cut", |mesh| {
        mesh.client(|| {
            // Where the one before is still counted this one is cut, perhaps while it connects.
            let Ok(mut first) = Client::try_connect(to) else {
                return false;
            };
            let is_first = served(&mut first);
            let second = Client::try_connect(to).is_ok_and(|mut client| served(&mut client));
            is_first && !second && served(&mut first)
        })
    });
}

fn timeouts(mesh: &Mesh) {
    mesh.policy("shop", "timeouts: {request: 300ms}");
    mesh.until("it takes too long", |mesh| {
        told(&mesh.get("shop", "/delay/2", "")) == (504, "request_timeout")
    });
    // A busy machine may take as long as that for anything.
    mesh.until("what takes no time is answered", |mesh| {
        mesh.get("shop", "/delay/0.01", "").status() == 200
    });
}

fn retries(mesh: &Mesh) {
    let statuses = |mesh: &Mesh| {
        let to = mesh.at("mixed", HTTP);
        mesh.client(|| [(); 8].map(|()| one(to, "/", "").status()))
    };
    let failed = |statuses: [u16; 8]| statuses.iter().filter(|s| **s == 503).count();
    mesh.until("one of the two fails", |mesh| failed(statuses(mesh)) == 4);
    mesh.policy("mixed", "retry: {attempts: 1, codes: [503]}");
    mesh.until("the other one is asked", |mesh| failed(statuses(mesh)) == 0);
    mesh.policy("mixed", "retry: {attempts: 1, codes: [502]}");
    mesh.until("not for this status", |mesh| failed(statuses(mesh)) > 0);
}

fn breaker_with_an_answer_in_place(mesh: &Mesh) {
    mesh.policy(
        "shop",
        "circuitBreaker: {minRequests: 2, errors: {amount: 2}, openFor: 1s, \
         status: 200, body: \"from yesterday\"}",
    );
    mesh.until("the circuit opens", |mesh| {
        mesh.get("shop", "/status/500", "").text() == "from yesterday"
    });
    let degraded = mesh.get("shop", "/", "");
    if degraded.text() == "from yesterday" {
        assert_eq!(told(&degraded), (200, "circuit_open"));
    }
    mesh.until("and closes again", |mesh| {
        mesh.get("shop", "/", "").text().starts_with('{')
    });
}

fn slow_answers_open_the_circuit(mesh: &Mesh) {
    mesh.policy(
        "shop",
        "circuitBreaker: {minRequests: 2, slow: {threshold: 100ms, percentage: 50%}, openFor: 1h}",
    );
    mesh.until("the circuit opens", |mesh| {
        told(&mesh.get("shop", "/delay/0.3", "")) == (503, "circuit_open")
    });
    assert_eq!(told(&mesh.get("shop", "/", "")), (503, "circuit_open"));
    mesh.delete("trafficpolicy", "shop");
    mesh.until("without the policy it is closed", |mesh| {
        mesh.get("shop", "/", "").status() == 200
    });
}

fn rate_limits(mesh: &Mesh) {
    let limit = "{count: 1, per: 1h, status: 430, headers: [{name: x-limit, value: mesh}]}";
    let spec = format!(
        "{{targetRefs: [{{name: other}}], connections: {{count: 2, per: 1h}}, \
         rules: [{{to: {{paths: [{{type: PathPrefix, value: /dear}}]}}, requests: {limit}}}]}}"
    );
    mesh.apply("RateLimit", "other", &spec);
    mesh.until("the second is too much", |mesh| {
        told(&mesh.get("other", "/dear", "")) == (430, "rate_limited")
    });
    let refused = mesh.get("other", "/dear", "");
    assert_eq!(refused.header("x-limit"), "mesh");
    assert!(!refused.header("retry-after").is_empty());
    assert_eq!(mesh.get("other", "/cheap", "").status(), 200);
    mesh.delete("ratelimit", "other");
    mesh.until("nothing is too much", |mesh| {
        mesh.get("other", "/dear", "").status() == 200
    });
}

fn tcp_route_of_a_service(mesh: &Mesh) {
    let to = mesh.at("shop", TCP);
    let named = |mesh: &Mesh| mesh.client(|| name(&one(to, "/", "")));
    assert!(["one", "two"].contains(&&*named(mesh)));
    let route = |one: u32, other: u32| {
        format!(
            "{{parentRefs: [{{group: \"\", kind: Service, name: shop, port: {TCP}}}], \
             rules: [{{backendRefs: [{{name: shop, port: {TCP}, weight: {one}}}, \
             {{name: other, port: {TCP}, weight: {other}}}]}}]}}"
        )
    };
    mesh.apply("TCPRoute", "shop", &route(0, 1));
    mesh.until("connections go elsewhere", |mesh| named(mesh) == "other");
    // One that is open stays where it is.
    let mut open = mesh.client(|| Client::connect(to));
    assert_eq!(name(&open.get("/")), "other");
    mesh.apply("TCPRoute", "shop", &route(1, 0));
    mesh.until("new ones do not", |mesh| named(mesh) != "other");
    assert_eq!(name(&open.get("/")), "other");
    // Requests to its other port are none of the route's business.
    assert_ne!(name(&mesh.get("shop", "/", "")), "other");
    let why = mesh.0.tulle(&["why", "client", "shop", "--port", "8106"]);
    assert!(why.out.contains("TCPRoute/shop"), "{why:?}");
}

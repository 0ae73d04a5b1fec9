//! Sidecars that dial each other again resume their session, as long as nothing that it rests on
//! has changed; who may do what is asked anew all the same.

use serde_json::{Value, json};
use tests_local::{
    CLIENT, Pair, SERVER, Server, Wire, eventually, id, inbound_config, ok, one, outbound_config,
};

struct Sidecars {
    pair: Pair,
    wire: Wire,
    _app: Server,
}

impl Sidecars {
    fn start() -> Self {
        let app = Server::http(|_| ok(b"yes"));
        let mut wire = None;
        let pair = Pair::with(app.address(), |_, _| {
            let server = inbound_config(app.address()).set("/inbound/policy", allow(&id(CLIENT)));
            let wire = wire.insert(Wire::to(server.address));
            (outbound_config(wire.address), server)
        });
        Self {
            pair,
            wire: wire.unwrap(),
            _app: app,
        }
    }

    /// Handshakes that both sidecars know, and how many of these were resumed.
    fn handshakes(&self) -> (f64, f64) {
        let count = |name| {
            let at = |proxy: &tests_local::Proxy| proxy.metric(name, &[]);
            let [client, server] = [&self.pair.client, &self.pair.server].map(at);
            assert_eq!(client, server, "{name}");
            client
        };
        (
            count("tulle_tls_handshakes_total"),
            count("tulle_tls_resumptions_total"),
        )
    }

    fn status(&self) -> u16 {
        one(self.pair.address, "/").status()
    }

    /// Has the client's sidecar dial again, and tells whether that handshake was resumed.
    fn dials_again(&self, because: impl FnOnce(), status: u16) -> bool {
        let (handshakes, resumed) = self.handshakes();
        because();
        // A request may still meet the connection that is about to end.
        eventually("a request over a new connection", || {
            let seen = self.status();
            let made = self.pair.client.metric("tulle_tls_handshakes_total", &[]);
            made > handshakes && seen == status
        });
        let now = self.handshakes();
        assert_eq!(now.0, handshakes + 1.0);
        now.1 > resumed
    }

    fn cut(&self, status: u16) -> bool {
        self.dials_again(|| self.wire.cut(), status)
    }
}

fn allow(who: &str) -> Value {
    json!({ "rules": [{ "name": "callers", "sources": [who] }] })
}

#[test]
fn sidecars_that_dial_again_resume_and_are_judged_again() {
    let sidecars = Sidecars::start();
    assert_eq!(sidecars.status(), 200);
    assert_eq!(sidecars.handshakes(), (1.0, 0.0));
    for _ in 0..3 {
        assert!(sidecars.cut(200), "a resumed session");
    }
    // The caller is known after a resumption as before it.
    let labels = [
        format!("source_principal=\"{}\"", id(CLIENT)),
        "connection_security_policy=\"mutual_tls\"".to_owned(),
    ];
    let labels = labels.each_ref().map(String::as_str);
    let server = &sidecars.pair.server;
    server.await_metric("istio_requests_total", &labels, 4.0);
    assert!(sidecars.pair.client.errors().is_empty());

    let mut file = server.config.clone();
    file["inbound"]["policy"] = allow(&id("other"));
    server.reload(&file);
    assert!(sidecars.cut(403), "resumed, and denied");
    file["inbound"]["policy"] = allow(&id(CLIENT));
    server.reload(&file);
    assert!(sidecars.cut(200), "resumed, and allowed");
}

#[test]
fn a_rotation_of_either_end_begins_with_a_full_handshake() {
    let sidecars = Sidecars::start();
    assert_eq!(sidecars.status(), 200);
    assert!(sidecars.cut(200));
    let mesh = &sidecars.pair.mesh;
    for (name, proxy) in [
        (SERVER, &sidecars.pair.server),
        (CLIENT, &sidecars.pair.client),
    ] {
        let renewed = mesh.ca.issue(&id(name));
        let rotate = || {
            proxy.reloads(|| {
                mesh.install(name, &renewed, mesh.ca.pem());
            });
        };
        assert!(!sidecars.dials_again(rotate, 200), "{name}");
        assert!(sidecars.cut(200), "{name}: tickets of the new context");
    }
}

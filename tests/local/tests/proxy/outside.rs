//! A host whose application is redirected to its sidecar, and another that is outside the mesh.

use serde_json::{Value, json};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, Command, Stdio};
use tests_local::{CLIENT, Client, Host, Mesh, Message, Proxy, Server, TLS13, TlsClient, Yard};
use tulle_tls::testing::{Leaf, TestCa};

/// Two addresses outside, on one host.
pub(crate) const OUTSIDE: [&str; 2] = ["198.51.100.2", "203.0.113.2"];
/// The same host's address in the mesh.
pub(crate) const GATEWAY: &str = "10.98.0.2";

pub(crate) fn at(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), port)
}

pub(crate) struct World {
    pub(crate) yard: Yard,
    pub(crate) mesh: Mesh,
    pub(crate) web: TestCa,
    sidecar: Option<Proxy>,
}

impl World {
    pub(crate) fn new() -> Self {
        let pair =
            |a: &str, b: &str| -> (IpAddr, IpAddr) { (a.parse().unwrap(), b.parse().unwrap()) };
        let yard = Yard::new(&[
            pair("198.51.100.1", OUTSIDE[0]),
            pair("203.0.113.1", OUTSIDE[1]),
            pair("10.98.0.1", GATEWAY),
        ]);
        yard.redirect_at(Host::Client, |rules| rules);
        Self {
            yard,
            mesh: Mesh::new(),
            web: TestCa::new("web root"),
            sidecar: None,
        }
    }

    /// Starts the sidecar with these rules, or puts them in the place of others.
    pub(crate) fn rules(&mut self, rules: Value, more: Value) {
        let mut config = json!({
            "listeners": [{ "address": "0.0.0.0:15001", "kind": "outbound" }],
            // Time enough for a client on a busy machine to say something after it has connected.
            "mesh": { "accessLog": true, "detectTimeoutMs": 3000 },
            "services": [],
            "egress": { "rules": rules },
        });
        for (key, value) in more.as_object().unwrap() {
            config[key] = value.clone();
        }
        let (yard, mesh, known) = (&self.yard, &self.mesh, &self.sidecar);
        let started = yard.sidecar(Host::Client, || match known {
            None => Some(Proxy::start(mesh, CLIENT, config)),
            Some(proxy) => {
                let mut file = proxy.config.clone();
                for (key, value) in config.as_object().unwrap() {
                    file[key] = value.clone();
                }
                proxy.reload(&file);
                None
            }
        });
        if started.is_some() {
            self.sidecar = started;
        }
    }

    /// Asks the sidecar's administration.
    pub(crate) fn sidecar<T: Send>(&self, ask: impl FnOnce(&Proxy) -> T + Send) -> T {
        let proxy = self.sidecar.as_ref().unwrap();
        self.yard.sidecar(Host::Client, || ask(proxy))
    }

    /// Runs this as the application.
    pub(crate) fn app<T: Send>(&self, run: impl FnOnce() -> T + Send) -> T {
        self.yard.application(Host::Client, run)
    }

    /// Runs this outside the mesh.
    pub(crate) fn outside<T: Send>(&self, run: impl FnOnce() -> T + Send) -> T {
        self.yard.sidecar(Host::Server, run)
    }

    /// A server outside that tells what it was asked.
    pub(crate) fn http(&self, address: SocketAddr) -> Server {
        self.outside(|| {
            Server::on(address, |mut connection| {
                while let Ok(request) = connection.request() {
                    let answer = tests_local::ok(request.head.as_bytes());
                    if connection.try_send(answer).is_err() {
                        return;
                    }
                }
            })
        })
    }

    /// A server outside that speaks first.
    pub(crate) fn greeter(&self, address: SocketAddr) -> Server {
        self.outside(|| {
            Server::on(address, |mut connection| {
                connection.send("hello ");
                while let Ok(bytes) = connection.read_some() {
                    if bytes.is_empty() {
                        return;
                    }
                    connection.send(bytes);
                }
            })
        })
    }

    /// OpenSSL's server outside, with a certificate for this name.
    pub(crate) fn openssl(&self, address: SocketAddr, name: &str) -> OpenSsl {
        let issued = self.web.issue_leaf(&Leaf {
            dns: vec![name.to_owned()],
            ..Leaf::new("spiffe://none/none")
        });
        let file = |what: &str, text: &str| {
            let path = self.mesh.path().join(format!("{}-{what}", address.port()));
            std::fs::write(&path, text).unwrap();
            path
        };
        let (chain, key) = (file("c", &issued.chain_pem), file("k", &issued.key_pem));
        self.outside(|| {
            let child = Command::new("openssl")
                .args([
                    "s_server",
                    "-www",
                    "-quiet",
                    "-accept",
                    &address.to_string(),
                ])
                .args(
                    [chain.as_os_str(), key.as_os_str()]
                        .into_iter()
                        .zip(["-cert", "-key"])
                        .flat_map(|(path, flag)| [std::ffi::OsStr::new(flag), path]),
                )
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let server = OpenSsl(child);
            tests_local::eventually("OpenSSL listens", || Client::try_connect(address).is_ok());
            server
        })
    }

    /// One request of the application, on a connection of its own.
    pub(crate) fn ask(&self, to: SocketAddr, host: &str, path: &str) -> Option<Message> {
        self.app(|| {
            let mut client = Client::try_connect(to).ok()?;
            client
                .try_send(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"))
                .ok()?;
            client.try_response("GET").ok()
        })
    }

    /// Whether a connection of the application is cut.
    #[allow(dead_code)]
    pub(crate) fn is_cut(&self, to: SocketAddr) -> bool {
        self.app(|| Client::is_cut(to, ""))
    }

    /// A TLS handshake of the application, and one request inside.
    #[allow(dead_code)]
    pub(crate) fn ask_tls(&self, to: SocketAddr, name: &str) -> Option<Message> {
        self.app(|| {
            let config = tests_local::client_config(None, TLS13, &[]);
            let mut client = TlsClient::connect_to(to, &config, name).ok()?;
            client.get("/").ok()
        })
    }
}

/// A process that ends with the value.
pub(crate) struct OpenSsl(Child);

impl Drop for OpenSsl {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The status and reason of an answer.
pub(crate) fn told(answer: Option<Message>) -> (u16, String) {
    let answer = answer.expect("an answer");
    (answer.status(), answer.header("x-tulle-reason").to_owned())
}

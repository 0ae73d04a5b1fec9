//! A real Envoy with a translated configuration, watched through its admin port.

use crate::{Client, Config, Mesh, Message, eventually, free_port, id, repository};
use serde_json::{Value, json};
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use tulle_envoy::TranslationOptions;
use tulle_model::bootstrap::Bootstrap;

/// The Envoy program. Tests that need one fail without it: to skip them would look like success.
pub fn envoy_binary() -> PathBuf {
    if let Some(named) = std::env::var_os("TULLE_ENVOY") {
        return named.into();
    }
    let pattern = repository().join("build/envoy-venv/lib");
    let packages = std::fs::read_dir(&pattern).into_iter().flatten().flatten();
    let mut found = packages.map(|p| p.path().join("site-packages/envoy/_bin/envoy"));
    found.find(|p| p.is_file()).unwrap_or_else(|| {
        panic!("there is no Envoy: run scripts/fetch-envoy.sh, or name one with TULLE_ENVOY")
    })
}

/// A proxy's file as `Proxy::start` would complete it, read as strictly.
pub fn bootstrap(mesh: &Mesh, name: &str, mut config: Value) -> Bootstrap {
    let certificates = mesh.path().join(name);
    if !certificates.exists() {
        mesh.certificate(name);
    }
    let loopback = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port)).to_string();
    let fields = config.as_object_mut().unwrap();
    let mut default = |key: &str, value: Value| {
        fields.entry(key).or_insert(value);
    };
    default("identity", id(name).into());
    default("admin", loopback(free_port()).into());
    default("metrics", loopback(free_port()).into());
    default(
        "certificates",
        json!({
            "certificate": certificates.join("cert.pem"),
            "key": certificates.join("key.pem"),
            "trustBundle": certificates.join("ca.pem"),
        }),
    );
    Bootstrap::parse("test", &config.to_string()).unwrap_or_else(|e| panic!("{e}"))
}

/// A running Envoy.
pub struct Envoy {
    child: Child,
    admin: SocketAddr,
    /// Where it listens.
    pub address: SocketAddr,
    log: PathBuf,
}

impl Envoy {
    /// Translates a proxy's configuration, starts Envoy with it and waits until it listens.
    pub fn start(mesh: &Mesh, name: &str, config: Config, options: TranslationOptions) -> Self {
        let bootstrap = bootstrap(mesh, name, config.file);
        let whole = tulle_envoy::static_config(&bootstrap, options).unwrap();
        let at = |what: &str| {
            let port = bootstrap.admin.port();
            mesh.path().join(format!("envoy-{name}-{port}.{what}"))
        };
        let (file, log) = (at("json"), at("log"));
        std::fs::write(&file, whole.to_string()).unwrap();
        let child = envoy(&file)
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let mut envoy = Self {
            child,
            admin: bootstrap.admin,
            address: config.address,
            log,
        };
        eventually("Envoy is ready", || {
            let ended = envoy.child.try_wait().unwrap();
            assert!(ended.is_none(), "Envoy ended at once: {}", envoy.log());
            let ready = Client::try_connect(envoy.admin).and_then(|mut c| {
                c.try_send("GET /ready HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
                c.try_response("GET")
            });
            ready.is_ok_and(|r| r.status() == 200)
        });
        envoy
    }

    /// A counter or gauge by its full name; 0 if there is none.
    pub fn stat(&self, name: &str) -> u64 {
        let text = crate::one(self.admin, "/stats").text();
        let line = text.lines().find_map(|l| {
            let (own, value) = l.split_once(": ")?;
            (own == name).then(|| value.parse().unwrap())
        });
        line.unwrap_or_default()
    }

    /// GET on its admin port.
    pub fn admin(&self, target: &str) -> Message {
        crate::one(self.admin, target)
    }

    /// A connection of a client.
    pub fn connect(&self) -> Client {
        Client::connect(self.address)
    }

    /// Returns its log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- Envoy's log:\n{}", self.log());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn envoy(file: &Path) -> Command {
    let mut command = Command::new(envoy_binary());
    command
        .arg("-c")
        .arg(file)
        .args(["--concurrency", "1", "--disable-hot-restart"])
        .args(["--log-level", "warn"]);
    command
}

/// Has Envoy check a configuration; what it says when it refuses.
pub fn validate(mesh: &Mesh, config: &Value) -> Result<(), String> {
    let file = mesh.path().join(format!("validate-{}.json", free_port()));
    std::fs::write(&file, config.to_string()).unwrap();
    let done = envoy(&file).args(["--mode", "validate"]).output().unwrap();
    if done.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&done.stderr).into_owned())
}

/// client → Envoy of `productpage` ═ mutual TLS ═ Envoy of `ratings` → application.
pub struct EnvoyPair {
    /// Sidecar of the client.
    pub client: Envoy,
    /// Sidecar of the server.
    pub server: Envoy,
    /// Their authority and files.
    pub mesh: Mesh,
}

impl EnvoyPair {
    /// The usual pair.
    pub fn start(app: SocketAddr) -> Self {
        Self::with(app, TranslationOptions::default(), |client, server| {
            (client, server)
        })
    }

    /// A pair with other configurations.
    pub fn with(
        app: SocketAddr,
        options: TranslationOptions,
        change: impl FnOnce(Config, Config) -> (Config, Config),
    ) -> Self {
        let mesh = Mesh::new();
        let server = crate::inbound_config(app);
        let (client, server) = change(crate::outbound_config(server.address), server);
        Self {
            client: Envoy::start(&mesh, crate::CLIENT, client, options),
            server: Envoy::start(&mesh, crate::SERVER, server, options),
            mesh,
        }
    }
}

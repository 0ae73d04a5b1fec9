//! A `tulle-proxy` process: started with a file, watched through its admin port, never left behind.

use crate::{
    Client, Mesh, Message, PATIENCE, eventually, free_port, holds_within, memory, proxy_binary,
};
use serde_json::Value;
use std::fs::File;
use std::io::{BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};

/// A running proxy.
pub struct Proxy {
    child: Child,
    admin: SocketAddr,
    metrics: SocketAddr,
    /// Its configuration file, to be replaced with `write_config`.
    pub file: PathBuf,
    /// The file's content, as it was at the start.
    pub config: Value,
    output: PathBuf,
    log: PathBuf,
}

fn loopback(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

impl Proxy {
    /// Starts a proxy and waits until it is ready. `config` lacks the fields that every test
    /// needs alike: they are added here.
    pub fn start(mesh: &Mesh, name: &str, config: Value) -> Self {
        Self::start_binary(proxy_binary(), mesh, name, config)
    }

    /// Like `start`, with a given program.
    pub fn start_binary(binary: &Path, mesh: &Mesh, name: &str, config: Value) -> Self {
        let proxy = Self::spawn(binary, mesh, name, config);
        proxy.until_it_says("/ready");
        proxy
    }

    /// Starts a proxy that takes its certificate and configuration from a controller, and does not
    /// wait for either.
    pub fn start_unready(mesh: &Mesh, name: &str, config: Value) -> Self {
        let proxy = Self::spawn(proxy_binary(), mesh, name, config);
        proxy.until_it_says("/live");
        proxy
    }

    fn spawn(binary: &Path, mesh: &Mesh, name: &str, mut config: Value) -> Self {
        let certificates = mesh.path().join(name);
        if !certificates.exists() {
            mesh.certificate(name);
        }
        let controlled = config.get("control").is_some();
        let (admin, metrics) = (loopback(free_port()), loopback(free_port()));
        let fields = config.as_object_mut().unwrap();
        let mut default = |key: &str, value: Value| {
            fields.entry(key).or_insert(value);
        };
        default("identity", crate::id(name).into());
        default("workers", 1.into());
        default("admin", admin.to_string().into());
        default("metrics", metrics.to_string().into());
        if !controlled {
            default(
                "certificates",
                serde_json::json!({
                    "certificate": certificates.join("cert.pem"),
                    "key": certificates.join("key.pem"),
                    "trustBundle": certificates.join("ca.pem"),
                }),
            );
        }
        let at = |what: &str| mesh.path().join(format!("{name}-{}.{what}", admin.port()));
        let file = at("yaml");
        write_config(&file, &config);
        let (output, log) = (at("out"), at("err"));
        let child = Command::new(binary)
            .arg("--config")
            .arg(&file)
            .stdout(File::create(&output).unwrap())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap_or_else(|e| panic!("{}: {e}", binary.display()));
        Self {
            child,
            admin,
            metrics,
            file,
            config,
            output,
            log,
        }
    }

    /// Waits until its administration answers so.
    fn until_it_says(&self, page: &str) {
        let pid = rustix::process::Pid::from_child(&self.child);
        eventually("the proxy has started", || {
            let ended = rustix::process::waitid(
                rustix::process::WaitId::Pid(pid),
                rustix::process::WaitIdOptions::EXITED
                    | rustix::process::WaitIdOptions::NOHANG
                    | rustix::process::WaitIdOptions::NOWAIT,
            );
            let ended = ended.unwrap();
            assert!(ended.is_none(), "the proxy ended at once: {ended:?}");
            let answer = Client::try_connect(self.admin).and_then(|mut c| {
                c.try_send(admin_request("GET", page))?;
                c.try_response("GET")
            });
            answer.is_ok_and(|r| r.status() == 200)
        });
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Replaces the configuration file. The proxy notices by itself.
    pub fn write_config(&self, config: &Value) {
        write_config(&self.file, config);
    }

    /// Number of times the configuration in force has changed.
    pub fn generation(&self) -> u64 {
        let config: Value = serde_json::from_str(&self.admin("/config").text()).unwrap();
        config["generation"].as_u64().unwrap()
    }

    /// Replaces the configuration and waits until it is in force.
    pub fn reload(&self, config: &Value) {
        self.reloads(|| self.write_config(config));
    }

    /// Waits until something that changes files is in force.
    pub fn reloads(&self, change: impl FnOnce()) {
        let before = self.generation();
        change();
        eventually("the change is in force", || self.generation() > before);
        // A worker may still have the one before; it answers after it has taken the new one.
        self.errors();
    }

    /// GET on the admin port.
    pub fn admin(&self, target: &str) -> Message {
        self.admin_request("GET", target)
    }

    /// A request to the admin port.
    pub fn admin_request(&self, method: &str, target: &str) -> Message {
        let mut client = Client::connect(self.admin);
        client.send(admin_request(method, target));
        client.response(method)
    }

    /// A request to the admin socket.
    pub fn socket_request(&self, method: &str, target: &str) -> Message {
        let path = self.config["adminSocket"].as_str().unwrap();
        let mut stream = UnixStream::connect(path).unwrap();
        stream
            .write_all(admin_request(method, target).as_bytes())
            .unwrap();
        crate::read_message(&mut BufReader::new(stream), Some(method)).unwrap()
    }

    /// Where metrics are scraped.
    pub fn metrics_address(&self) -> SocketAddr {
        self.metrics
    }

    /// The metrics page.
    pub fn metrics(&self) -> String {
        crate::one(self.metrics, "/metrics").text()
    }

    /// Sum of the samples of a metric whose labels hold all of `labels`.
    pub fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let text = self.metrics();
        let samples = text.lines().filter(|line| {
            line.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with(['{', ' ']))
                && labels.iter().all(|label| line.contains(label))
        });
        samples
            .map(|l| l.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
            .sum()
    }

    fn samples(&self, name: &str) -> String {
        let text = self.metrics();
        let lines: Vec<_> = text.lines().filter(|l| l.starts_with(name)).collect();
        lines.join("\n")
    }

    /// Waits until a metric has at least this value; it is counted after the bytes have gone.
    pub fn await_metric(&self, name: &str, labels: &[&str], at_least: f64) {
        let mut seen = 0.0;
        let counted = holds_within(PATIENCE, &format!("{name} is counted"), || {
            seen = self.metric(name, labels);
            seen >= at_least
        });
        assert!(
            counted,
            "{name}{labels:?} is {seen}, not {at_least}; there is:\n{}",
            self.samples(name)
        );
    }

    /// Recent failures.
    pub fn errors(&self) -> Vec<Value> {
        serde_json::from_str(&self.admin("/errors").text()).unwrap()
    }

    /// Waits for a failure with this reason and returns it.
    pub fn await_error(&self, reason: &str) -> Value {
        let mut found = None;
        eventually(&format!("{reason} in /errors"), || {
            found = self.errors().into_iter().find(|e| e["reason"] == reason);
            found.is_some()
        });
        found.unwrap()
    }

    /// Lines of the access log so far.
    pub fn access_log(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.output).unwrap();
        text.lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    /// Returns its log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Where the log is.
    pub fn log_files(&self) -> [&Path; 2] {
        [&self.output, &self.log]
    }

    /// Asks it to end.
    pub fn terminate(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }

    /// Ends it at once, as a crash would.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until it has ended.
    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the proxy ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Resident memory in bytes.
    pub fn memory(&self) -> u64 {
        memory::resident(self.pid())
    }

    /// Memory of its own in bytes: without the pages of its program, which come and go.
    pub fn own_memory(&self) -> u64 {
        memory::anonymous(self.pid())
    }

    /// Most resident memory so far, in bytes.
    pub fn memory_peak(&self) -> u64 {
        memory::peak(self.pid())
    }
}

fn admin_request(method: &str, target: &str) -> String {
    format!(
        "{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    )
}

/// JSON is YAML. A rename, so that the proxy never reads half a file.
fn write_config(file: &Path, config: &Value) {
    let new = file.with_extension("new");
    std::fs::write(&new, format!("{config:#}\n")).unwrap();
    std::fs::rename(new, file).unwrap();
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        if std::thread::panicking() {
            eprintln!("--- log of {}:\n{log}", self.file.display());
        } else {
            assert!(!log.contains("panicked"), "the proxy panicked:\n{log}");
        }
    }
}

//! Two nginx, HTTP/1.1 only.

use super::hop::{Hop, hops};
use super::{CLIENT, Mode, Peer, SERVER, Sidecar, Topology, http};
use crate::failure::Result;
use std::cell::Cell;
use std::path::PathBuf;
use std::process::Command;

/// nginx as a sidecar: certificates verified both ways, the client's by its subject.
pub struct Nginx {
    program: PathBuf,
    /// The module of njs, with which the server's sidecar runs [`NJS`].
    njs: Option<PathBuf>,
    /// Requests of the proofs themselves to the server's sidecar, since it was started.
    own: Cell<u64>,
}

/// The headers of `tulle+plugin`.
const NJS: &str = "function asked(r) { return r.headersIn.host }
function answered(r) { r.headersOut['x-set'] = r.headersOut['content-length'] }
export default { asked, answered };
";

impl Nginx {
    /// This program.
    pub fn new(program: PathBuf) -> Self {
        Self {
            program,
            njs: None,
            own: Cell::new(0),
        }
    }

    /// With a script in JavaScript that reads a header and sets one, both ways.
    pub fn njs(program: PathBuf, module: PathBuf) -> Self {
        Self {
            njs: Some(module),
            ..Self::new(program)
        }
    }
}

impl Peer for Nginx {
    fn name(&self) -> &'static str {
        match self.njs {
            Some(_) => "nginx+njs",
            None => "nginx",
        }
    }

    fn version(&self) -> Result<String> {
        crate::tools::version(Command::new(&self.program).arg("-v"))
    }

    fn notes(&self) -> Vec<String> {
        [
            "nginx: it cannot match a SPIFFE id. The client's sidecar verifies the server's certificate against the CA and its common name; the server's verifies the client's against the CA and compares its subject.",
            "nginx: its statistics (stub_status) are counters of the whole process: no status, no caller, no latency. How many of its requests were mutual TLS is not counted; its listener takes nothing else.",
            "nginx: bodies pass through its memory only (proxy_request_buffering off, proxy_max_temp_file_size 0); by default it writes large ones to files.",
            "nginx: it is a master and its workers; memory is that of both, pages they share counted twice. It lays out 12,288 connections in memory at its start, some 5 MiB, so that 10,000 idle ones fit.",
        ]
        .map(str::to_owned)
        .to_vec()
    }

    fn told_caller(&self) -> Option<String> {
        Some(format!("Subject=\"CN={CLIENT}\""))
    }

    fn sidecars(&self, topology: &Topology) -> Result<Vec<Sidecar>> {
        super::only_http("nginx", topology)?;
        self.own.set(0);
        let sidecar = |hop: &Hop| {
            let name = format!("nginx-{}.conf", hop.role);
            let mut text = configuration(hop);
            if let (Some(module), true) = (&self.njs, hop.caller.is_some()) {
                super::write(topology, "set.js", NJS)?;
                let directory = topology.directory.display();
                text = format!("load_module {};\n{text}", module.display());
                let script = format!(
                    "http {{\n    js_path {directory};\n    js_import set.js;\n    js_set $asked set.asked;\n"
                );
                text = text.replacen("http {\n", &script, 1);
                let both = "            proxy_set_header X-Set $asked;\n            js_header_filter set.answered;\n            proxy_http_version";
                text = text.replacen("            proxy_http_version", both, 1);
            }
            Sidecar::new(topology, hop.role, name, text, |path| {
                let mut command = Command::new(&self.program);
                command
                    .args(["-e", "stderr", "-p"])
                    .arg(&topology.directory);
                command.arg("-c").arg(path);
                command
            })
        };
        hops(topology)?.iter().map(sidecar).collect()
    }

    fn prove(
        &self,
        topology: &Topology,
        answered: u64,
    ) -> std::result::Result<Vec<String>, String> {
        if topology.mode == Mode::Baseline {
            return Ok(super::baseline());
        }
        let ports = topology.ports;
        if topology.mode != Mode::Both {
            let admin = match topology.mode {
                Mode::ServerSidecar => ports.server_admin,
                _ => ports.client_admin,
            };
            let requests = self.requests(admin)?;
            return super::one_sidecar(topology, "stub_status: requests", requests, answered);
        }
        let requests = self.requests(ports.server_admin)?;
        if requests < answered {
            return Err(format!(
                "{answered} requests were answered; the server's sidecar has seen {requests} (stub_status)"
            ));
        }
        self.own.set(self.own.get() + 1);
        let seen = http::get(ports.client, "/tls-peer")?;
        let right = format!("SUCCESS CN={CLIENT} TLSv1.3");
        if seen != right {
            return Err(format!(
                "through the client's sidecar, the server's saw {seen:?} instead of {right:?}"
            ));
        }
        Ok(vec![format!(
            "stub_status {requests} requests at a listener for TLS only; ssl_client_verify {seen}; the server's certificate is verified as CN={SERVER}"
        )])
    }
}

impl Nginx {
    /// Requests of others than the proofs.
    fn requests(&self, admin: u16) -> std::result::Result<u64, String> {
        let text = http::get(admin, "/")?;
        self.own.set(self.own.get() + 1);
        let count = requests_of(&text)
            .ok_or_else(|| format!("nginx's stub_status cannot be read: {text:?}"))?;
        Ok(count.saturating_sub(self.own.get()))
    }
}

/// The third number of the third line: "server accepts handled requests".
fn requests_of(status: &str) -> Option<u64> {
    let numbers = status.lines().nth(2)?;
    numbers.split_whitespace().nth(2)?.parse().ok()
}

fn configuration(hop: &Hop) -> String {
    let name = format!("nginx-{}", hop.role);
    // nginx started by root wants to be somebody else, who could not read the keys.
    let user = if rustix::process::geteuid().is_root() {
        "user root;\n"
    } else {
        ""
    };
    let kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temporary: Vec<String> = kinds
        .iter()
        .map(|kind| format!("    {kind}_temp_path {name}-{kind};\n"))
        .collect();
    // Connections are laid out in memory at the start: enough for 10,000 idle ones, not more.
    format!(
        "{user}daemon off;
worker_processes {workers};
pid {name}.pid;
worker_rlimit_nofile 20000;
events {{ worker_connections 12288; }}
http {{
    access_log off;
{temporary}    keepalive_requests 1000000000;
    keepalive_timeout 600s;
    tcp_nodelay on;
    client_max_body_size 0;
    proxy_request_buffering off;
    proxy_max_temp_file_size 0;
    server {{
        listen {admin};
        location / {{ stub_status; }}
    }}
    upstream next {{
        server {next};
        keepalive 512;
        keepalive_requests 1000000000;
        keepalive_timeout 600s;
    }}
{server}}}
",
        temporary = temporary.concat(),
        admin = hop.admin,
        workers = hop.workers,
        next = hop.next,
        server = server(hop),
    )
}

fn server(hop: &Hop) -> String {
    let listen = hop.listen;
    let [certificate, key, roots] = [
        hop.files.certificate.display(),
        hop.files.key.display(),
        hop.files.trust_bundle.display(),
    ];
    let inbound = match &hop.caller {
        None => format!("        listen {listen} backlog=4096;\n"),
        Some(caller) => format!(
            "        listen {listen} ssl backlog=4096;
        ssl_certificate {certificate};
        ssl_certificate_key {key};
        ssl_client_certificate {roots};
        ssl_verify_client on;
        ssl_protocols TLSv1.3;
        if ($ssl_client_s_dn != \"CN={caller}\") {{ return 403; }}
        location = /tls-peer {{ return 200 \"$ssl_client_verify $ssl_client_s_dn $ssl_protocol\"; }}
"
        ),
    };
    let caller = if hop.caller.is_some() {
        "            proxy_set_header X-Forwarded-Client-Cert 'Subject=\"$ssl_client_s_dn\"';\n"
    } else {
        ""
    };
    let (scheme, outbound) = match &hop.server {
        None => ("http", String::new()),
        Some(name) => (
            "https",
            format!(
                "            proxy_ssl_certificate {certificate};
            proxy_ssl_certificate_key {key};
            proxy_ssl_trusted_certificate {roots};
            proxy_ssl_protocols TLSv1.3;
            proxy_ssl_verify on;
            proxy_ssl_name {name};
"
            ),
        ),
    };
    format!(
        "    server {{
{inbound}        location / {{
            proxy_pass {scheme}://next;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
            proxy_set_header Host $host;
            proxy_set_header X-Request-Id $request_id;
{caller}{outbound}        }}
    }}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_stub_status() {
        let text = "Active connections: 2 \nserver accepts handled requests\n 11 11 42 \nReading: 0 Writing: 1 Waiting: 1 \n";
        assert_eq!(requests_of(text), Some(42));
        assert_eq!(requests_of("<html>"), None);
    }
}

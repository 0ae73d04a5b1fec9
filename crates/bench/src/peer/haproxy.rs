//! Two HAProxy with one thread each: as HTTP proxies, or as bare relays of TCP in TLS.

use super::hop::{Hop, hops};
use super::{CLIENT, Mode, Peer, SERVER, Sidecar, Topology, http};
use crate::failure::Result;
use std::path::PathBuf;
use std::process::Command;
use tulle_model::resource::Protocol;

/// HAProxy as a sidecar: certificates verified both ways by their common names.
pub struct HaProxy {
    program: PathBuf,
    relay: bool,
    /// Whether the server's sidecar runs [`LUA`].
    lua: bool,
}

/// The headers of `tulle+plugin`.
const LUA: &str = r#"
core.register_action("asked", { "http-req" }, function(txn)
  txn.http:req_set_header("x-set", txn.http:req_get_headers()["host"][0])
end)
core.register_action("answered", { "http-res" }, function(txn)
  local length = txn.http:res_get_headers()["content-length"]
  txn.http:res_set_header("x-set", length and length[0] or "")
end)
"#;

/// The layer that HAProxy relays.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layer {
    Tcp,
    Http1,
    Http2,
}

impl HaProxy {
    /// Makes an HTTP proxy with pooled connections; TCP is relayed.
    pub fn http(program: PathBuf) -> Self {
        Self {
            program,
            relay: false,
            lua: false,
        }
    }

    /// The same with a script in Lua that reads a header and sets one, both ways.
    pub fn lua(program: PathBuf) -> Self {
        Self {
            lua: true,
            ..Self::http(program)
        }
    }

    /// Makes a relay that does not look at the bytes: one connection for each of the client's.
    pub fn tcp(program: PathBuf) -> Self {
        Self {
            relay: true,
            ..Self::http(program)
        }
    }

    fn layer(&self, protocol: Protocol) -> Layer {
        match protocol {
            _ if self.relay => Layer::Tcp,
            Protocol::Http | Protocol::Detect => Layer::Http1,
            Protocol::Http2 | Protocol::Grpc => Layer::Http2,
            Protocol::Tcp | Protocol::Tls => Layer::Tcp,
        }
    }
}

impl Peer for HaProxy {
    fn name(&self) -> &'static str {
        match (self.relay, self.lua) {
            (true, _) => "haproxy-tcp",
            (false, true) => "haproxy+lua",
            (false, false) => "haproxy",
        }
    }

    fn version(&self) -> Result<String> {
        crate::tools::version(Command::new(&self.program).arg("-v"))
    }

    fn notes(&self) -> Vec<String> {
        let name = self.name();
        let mut notes = vec![format!(
            "{name}: it cannot match a SPIFFE id. Certificates are verified against the CA both ways and compared by their common names. Its tables are made for 12,288 connections, which takes some 1 MiB."
        )];
        notes.push(if self.relay {
            format!("{name}: it relays bytes: no requests, no routes, no pool, nothing the server is told of the caller, statistics of connections only. It is the floor of one TLS connection for each client connection; its handshakes fall into the measurement.")
        } else {
            format!("{name}: its statistics count requests and statuses by frontend and backend; none by caller.")
        });
        notes
    }

    fn told_caller(&self) -> Option<String> {
        (!self.relay).then(|| format!("Subject=\"CN={CLIENT}\""))
    }

    fn relays_tcp(&self) -> bool {
        self.relay
    }

    fn sidecars(&self, topology: &Topology) -> Result<Vec<Sidecar>> {
        let layer = self.layer(topology.protocol);
        let sidecar = |hop: &Hop| {
            let name = format!("{}-{}.cfg", self.name(), hop.role);
            let mut text = configuration(hop, layer);
            if self.lua && hop.caller.is_some() {
                let script = super::write(topology, "haproxy.lua", LUA)?;
                let load = format!("global\n    lua-load {}\n", script.display());
                text = text.replacen("global\n", &load, 1);
                let actions =
                    "backend app\n    http-request lua.asked\n    http-response lua.answered\n";
                text = text.replacen("backend app\n", actions, 1);
            }
            Sidecar::new(topology, hop.role, name, text, |path| {
                let mut command = Command::new(&self.program);
                command.args(["-db", "-f"]).arg(path);
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
        let layer = self.layer(topology.protocol);
        let unit = if layer == Layer::Tcp {
            "connections"
        } else {
            "requests"
        };
        // Connections are not requests: how many of these they carried, a relay does not know.
        let expected = if layer == Layer::Tcp { 1 } else { answered };
        let admin = match topology.mode {
            Mode::ClientSidecar => topology.ports.client_admin,
            _ => topology.ports.server_admin,
        };
        let statistics = http::get(admin, "/;csv")?;
        let count = |backend| {
            backend_total(&statistics, backend)
                .ok_or_else(|| format!("HAProxy's statistics have no backend {backend}"))
        };
        let good = count("app")?;
        if topology.mode != Mode::Both {
            return super::one_sidecar(topology, unit, good, expected);
        }
        let refused = count("refused")?;
        if good < expected || refused > 0 {
            return Err(format!(
                "{answered} requests were answered; the server's sidecar has counted {good} {unit} over TLS 1.3 with a verified certificate of CN={CLIENT}, and {refused} others"
            ));
        }
        Ok(vec![format!(
            "backend app {good} {unit}: TLS 1.3, certificate verified, CN={CLIENT}; others 0; the server's certificate is verified as CN={SERVER}"
        )])
    }
}

/// Sessions of a backend so far: each request is one, or each connection of TCP.
fn backend_total(csv: &str, backend: &str) -> Option<u64> {
    let mut lines = csv.lines();
    let head: Vec<&str> = lines.next()?.trim_start_matches("# ").split(',').collect();
    let column = head.iter().position(|name| *name == "stot")?;
    let row = lines.map(|line| line.split(',').collect::<Vec<_>>());
    let mut row = row.filter(|row| row.first() == Some(&backend) && row.get(1) == Some(&"BACKEND"));
    row.next()?.get(column)?.parse().ok()
}

fn configuration(hop: &Hop, layer: Layer) -> String {
    let mode = if layer == Layer::Tcp { "tcp" } else { "http" };
    // Enough for 10,000 idle connections. Without the right to that many descriptors it goes on
    // with fewer.
    let mut text = format!(
        "global
    nbthread {}
    maxconn 12288
    no strict-limits
    ssl-load-extra-del-ext
    ssl-default-bind-options ssl-min-ver TLSv1.3
    ssl-default-server-options ssl-min-ver TLSv1.3
defaults
    mode {mode}
    timeout connect 5s
    timeout client 600s
    timeout server 600s
",
        hop.workers
    );
    if layer != Layer::Tcp {
        text += "    timeout http-request 10s
    timeout http-keep-alive 600s
    option http-keep-alive
    http-reuse always
    unique-id-format %[uuid()]
    unique-id-header X-Request-Id
";
    }
    if layer == Layer::Tcp && hop.caller.is_none() && hop.server.is_none() {
        text += "    option splice-auto\n";
    }
    text += &frontend(hop, layer);
    text += &backends(hop, layer);
    text += &format!(
        "frontend statistics
    mode http
    bind {}
    stats enable
    stats uri /
",
        hop.admin
    );
    text
}

fn frontend(hop: &Hop, layer: Layer) -> String {
    let listen = hop.listen;
    let Some(caller) = &hop.caller else {
        let protocol = if layer == Layer::Http2 {
            " proto h2"
        } else {
            ""
        };
        return format!(
            "frontend in
    bind {listen} backlog 4096{protocol}
    default_backend app
"
        );
    };
    let alpn = if layer == Layer::Http2 {
        " alpn h2"
    } else {
        ""
    };
    format!(
        "frontend in
    bind {listen} backlog 4096 ssl crt {certificate} ca-file {roots} verify required{alpn}
    use_backend app if {{ ssl_c_used }} {{ ssl_c_verify 0 }} {{ ssl_c_s_dn(cn) -m str {caller} }} {{ ssl_fc_protocol -m str TLSv1.3 }}
    default_backend refused
",
        certificate = hop.files.certificate.display(),
        roots = hop.files.trust_bundle.display(),
    )
}

fn backends(hop: &Hop, layer: Layer) -> String {
    let mut text = "backend app\n".to_owned();
    if hop.caller.is_some() && layer != Layer::Tcp {
        text += "    http-request set-header X-Forwarded-Client-Cert Subject=\\\"CN=%[ssl_c_s_dn(cn)]\\\"\n";
    }
    text += &format!("    server next {}", hop.next);
    if let Some(name) = &hop.server {
        text += &format!(
            " ssl crt {} ca-file {} verify required verifyhost {name}",
            hop.files.certificate.display(),
            hop.files.trust_bundle.display(),
        );
        if layer == Layer::Http2 {
            text += " alpn h2";
        }
    } else if layer == Layer::Http2 {
        text += " proto h2";
    }
    text += "\n";
    if hop.caller.is_some() {
        text += match layer {
            Layer::Tcp => "backend refused\n    tcp-request content reject\n",
            _ => "backend refused\n    http-request deny deny_status 403\n",
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_sessions_of_a_backend() {
        let csv = "# pxname,svname,qcur,qmax,scur,smax,slim,stot,bin,\nin,FRONTEND,,,0,1,12288,1,2,\napp,next,0,0,0,1,,41,2,\napp,BACKEND,0,0,0,1,1,42,2,\n";
        assert_eq!(backend_total(csv, "app"), Some(42));
        assert_eq!(backend_total(csv, "refused"), None);
    }
}

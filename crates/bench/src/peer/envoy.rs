//! Two stock Envoys, configured by the same translation that `tulle` uses for
//! Envoy as a data plane.

use super::topology::spiffe;
use super::{CLIENT, Mode, Peer, SERVER, Sidecar, Topology, http};
use crate::failure::{OrFail, Result};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::process::Command;
use tulle_model::bootstrap::Bootstrap;

/// The headers of `tulle+plugin`, set by Lua.
const HEADERS: &str = r#"
function envoy_on_request(handle)
  local headers = handle:headers()
  headers:replace("x-set", headers:get(":authority"))
end
function envoy_on_response(handle)
  local headers = handle:headers()
  headers:replace("x-set", headers:get("content-length") or "")
end
"#;
/// The same as a module of WebAssembly.
const HEADERS_WAT: &str = include_str!("headers.wat");
/// The change of `tulle+plugin-body`.
const BODY: &str = r#"
function envoy_on_response(handle)
  local body = handle:body()
  local bytes = body:getBytes(0, body:length()):gsub("^ok$", "Xk")
  local size = body:setBytes(bytes)
  handle:headers():replace("content-length", size)
end
"#;

/// Envoy as lean as it gets with identities checked: connection manager, RBAC, router.
pub struct Envoy {
    program: PathBuf,
    name: &'static str,
    http2: bool,
    /// Run by the server's sidecar.
    script: Script,
}

/// Languages that Envoy runs.
#[derive(Clone, Copy)]
enum Script {
    None,
    Lua(&'static str),
    /// In its text format.
    Wasm(&'static str),
}

impl Script {
    /// The filter that runs it.
    fn filter(self) -> Result<Option<Value>> {
        Ok(match self {
            Self::None => None,
            Self::Lua(source) => Some(json!({
                "name": "envoy.filters.http.lua",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua",
                    "default_source_code": { "inline_string": source },
                },
            })),
            Self::Wasm(source) => {
                let what = || "the module of WebAssembly cannot be read".to_owned();
                let module = BASE64_STANDARD.encode(wat::parse_str(source).or_fail(what)?);
                Some(json!({
                    "name": "envoy.filters.http.wasm",
                    "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
                        "config": { "name": "script", "vm_config": {
                            "runtime": "envoy.wasm.runtime.v8",
                            "code": { "local": { "inline_bytes": module } },
                        } },
                    },
                }))
            }
        })
    }
}

impl Envoy {
    /// HTTP/1.1 between the sidecars.
    pub fn http1(program: PathBuf) -> Self {
        Self {
            program,
            name: "envoy",
            http2: false,
            script: Script::None,
        }
    }

    /// HTTP/2 between the sidecars.
    pub fn http2(program: PathBuf) -> Self {
        Self {
            name: "envoy-wasmless-h2",
            http2: true,
            ..Self::http1(program)
        }
    }

    /// With a filter in Lua that reads a header and sets one, both ways.
    pub fn lua(program: PathBuf) -> Self {
        Self {
            name: "envoy+lua",
            script: Script::Lua(HEADERS),
            ..Self::http1(program)
        }
    }

    /// With a filter in Lua that rewrites the body of the response.
    pub fn lua_body(program: PathBuf) -> Self {
        Self {
            name: "envoy+lua-body",
            script: Script::Lua(BODY),
            ..Self::http1(program)
        }
    }

    /// With a filter in WebAssembly that does what the one of [`Self::lua`] does.
    pub fn wasm(program: PathBuf) -> Self {
        Self {
            name: "envoy+wasm",
            script: Script::Wasm(HEADERS_WAT),
            ..Self::http1(program)
        }
    }
}

impl Peer for Envoy {
    fn name(&self) -> &'static str {
        self.name
    }

    fn version(&self) -> Result<String> {
        let line = crate::tools::version(Command::new(&self.program).arg("--version"))?;
        // PROGRAM  version: COMMIT/1.40.0/Clean/RELEASE/BoringSSL
        let version = line.rsplit_once("version: ").map_or(line.as_str(), |p| p.1);
        let mut parts = version.split('/').skip(1);
        Ok(parts.next().unwrap_or(version).to_owned())
    }

    fn notes(&self) -> Vec<String> {
        let name = self.name();
        let between = if self.http2 { "HTTP/2" } else { "HTTP/1.1" };
        let script = match self.script {
            Script::Lua(_) => "a Lua filter in the server's sidecar, no WASM",
            Script::Wasm(_) => "a filter in WebAssembly (V8) in the server's sidecar, no Lua",
            Script::None => "no WASM or Lua filter",
        };
        vec![format!(
            "{name}: {between} between the sidecars; SPIFFE ids checked both ways (SAN, RBAC), Envoy's default statistics, {script}, no access log. gRPC and TCP pass as bytes, as in Tulle."
        )]
    }

    fn told_caller(&self) -> Option<String> {
        Some(format!("URI={}", spiffe(CLIENT)))
    }

    fn relays_tcp(&self) -> bool {
        !self.http2
    }

    fn sidecars(&self, topology: &Topology) -> Result<Vec<Sidecar>> {
        let sidecar = |(role, model)| self.sidecar(topology, role, &model);
        topology.models().into_iter().map(sidecar).collect()
    }

    fn prove(
        &self,
        topology: &Topology,
        answered: u64,
    ) -> std::result::Result<Vec<String>, String> {
        let ports = topology.ports;
        let opaque = topology.protocol.is_opaque();
        // Connections are not requests: how many of these they carried, nobody counts.
        let (unit, expected, suffix) = if opaque {
            ("upstream_cx_total", 1, "|tcp")
        } else {
            ("upstream_rq_total", answered, "")
        };
        let outbound = format!("cluster.outbound|{SERVER}|80{suffix}");
        match topology.mode {
            Mode::Baseline => return Ok(super::baseline()),
            Mode::ClientSidecar => {
                let count =
                    Statistics::from_admin(ports.client_admin)?.get(&format!("{outbound}.{unit}"));
                return super::one_sidecar(topology, unit, count, expected);
            }
            Mode::ServerSidecar => {
                let count = Statistics::from_admin(ports.server_admin)?
                    .get(&format!("cluster.inbound|80.{unit}"));
                return super::one_sidecar(topology, unit, count, expected);
            }
            Mode::Both => {}
        }
        let server = Statistics::from_admin(ports.server_admin)?;
        let client = Statistics::from_admin(ports.client_admin)?;
        let listener =
            |name| server.get(&format!("listener.127.0.0.1_{}.ssl.{name}", ports.server));
        let handshakes = listener("handshake");
        let without = listener("no_certificate");
        let outgoing = client.get(&format!("{outbound}.ssl.handshake"));
        // TCP is allowed in the handshake, by the certificate's name.
        let (allowed, denied) = if opaque {
            let refused = listener("fail_verify_san") + listener("fail_verify_error");
            (server.get("tcp.inbound_80.downstream_cx_total"), refused)
        } else {
            let rbac = |name| server.get(&format!("http.inbound_80.rbac.{name}"));
            (rbac("allowed"), rbac("denied"))
        };
        let facts = format!(
            "ssl.handshake {handshakes} at the server's sidecar and {outgoing} at the client's, no_certificate {without}, allowed for {} {allowed}, denied {denied}",
            spiffe(CLIENT)
        );
        if handshakes == 0 || outgoing == 0 || without > 0 || allowed < expected || denied > 0 {
            return Err(format!("{answered} requests were answered; {facts}"));
        }
        Ok(vec![facts])
    }
}

impl Envoy {
    fn sidecar(
        &self,
        topology: &Topology,
        role: &'static str,
        model: &Bootstrap,
    ) -> Result<Sidecar> {
        let what = || format!("{} cannot be the {role}'s sidecar", self.name());
        let options = tulle_envoy::TranslationOptions {
            upstream_h2: self.http2,
            ..tulle_envoy::TranslationOptions::default()
        };
        let mut config = tulle_envoy::static_config(model, options).or_fail(what)?;
        if let Some(filter) = self.script.filter()?.filter(|_| role == "server") {
            insert(&mut config, &filter);
        }
        let text = serde_json::to_string_pretty(&config).or_fail(what)?;
        let name = format!("{}-{role}.json", self.name());
        let path = super::write(topology, &name, &text)?;
        let mut command = Command::new(&self.program);
        command.arg("-c").arg(path);
        command.args(["--concurrency", &model.workers.to_string()]);
        command.args(["--log-level", "warn"]);
        // Else two Envoys of a host fight for shared memory.
        command.arg("--disable-hot-restart");
        Ok(Sidecar {
            role,
            command,
            files: BTreeMap::from([(name, text)]),
        })
    }
}

/// Puts a filter before the router of every connection manager.
fn insert(config: &mut Value, filter: &Value) {
    match config {
        Value::Object(fields) => {
            if let Some(Value::Array(filters)) = fields.get_mut("http_filters") {
                filters.insert(filters.len().saturating_sub(1), filter.clone());
            }
            fields.values_mut().for_each(|field| insert(field, filter));
        }
        Value::Array(all) => all.iter_mut().for_each(|one| insert(one, filter)),
        _ => {}
    }
}

/// Counters and gauges of an Envoy.
struct Statistics(HashMap<String, u64>);

impl Statistics {
    fn from_admin(admin: u16) -> std::result::Result<Self, String> {
        let text = http::get(admin, "/stats")?;
        let pair = |line: &str| {
            let (name, value) = line.rsplit_once(": ")?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        Ok(Self(text.lines().filter_map(pair).collect()))
    }

    /// Returns a counter; one that was never incremented is 0.
    fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }
}

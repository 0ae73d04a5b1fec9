//! Calls that were seen, counted by who calls what.

use crate::metrics::is_denied;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// Most different calls that are kept.
const MOST: usize = 50_000;
/// Longest path that is kept as it is.
const LONGEST: usize = 1024;

/// The called port of a service, by one identity.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Called {
    /// SPIFFE id.
    pub(super) source: String,
    pub(super) service: String,
    /// The port on which the application was asked.
    pub(super) port: u16,
}

/// A destination outside the mesh, by one identity.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Outside {
    /// SPIFFE id.
    pub(super) source: String,
    /// Host name or address.
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) http: bool,
}

/// All that was seen.
#[derive(Debug, Default)]
pub(super) struct Observed {
    /// Methods and paths; empty: opaque bytes.
    pub(super) calls: BTreeMap<Called, BTreeSet<(String, String)>>,
    pub(super) outside: BTreeSet<Outside>,
    /// Services and the number of plaintext calls.
    pub(super) plaintext: BTreeMap<String, u64>,
    /// Services and the number of calls that a policy refused.
    pub(super) refused: BTreeMap<String, u64>,
    pub(super) requests: u64,
    /// Different calls that had no room.
    pub(super) left_out: u64,
    kept: usize,
}

/// Whether a policy refused the call: its caller, its way out of the mesh, or its rate.
fn is_refused(reason: &str) -> bool {
    is_denied(reason) || matches!(reason, "egress_denied" | "no_service" | "rate_limited")
}

impl Observed {
    /// Takes a line of the access log of the proxy with this identity.
    pub(super) fn add(&mut self, own: &str, line: &Value) {
        let text = |member: &str| line.get(member).and_then(Value::as_str).unwrap_or("-");
        self.requests += 1;
        let (source, destination) = (text("source_principal"), text("destination_principal"));
        let service = text("upstream_cluster");
        if is_refused(text("response_flags")) {
            *self.refused.entry(service.to_owned()).or_default() += 1;
            return;
        }
        let Ok(asked) = text("upstream_host").parse::<SocketAddr>() else {
            // The call reached nobody, or an application behind a path.
            return;
        };
        if destination == "-" && source == own {
            self.outside(own, text("authority"), asked, text("protocol"));
            return;
        }
        if destination != own {
            // The caller's side of a call, which the other side tells, too.
            return;
        }
        if source == "-" {
            *self.plaintext.entry(service.to_owned()).or_default() += 1;
            return;
        }
        let called = Called {
            source: source.to_owned(),
            service: service.to_owned(),
            port: asked.port(),
        };
        if text("protocol") == "TCP" {
            self.calls.entry(called).or_default();
            return;
        }
        let path = text("path").split('?').next().unwrap_or_default();
        if path.len() > LONGEST || !path.starts_with('/') {
            self.left_out += 1;
            return;
        }
        if self.kept >= MOST {
            self.left_out += 1;
            return;
        }
        let method = text("method").to_owned();
        let requests = self.calls.entry(called).or_default();
        self.kept += usize::from(requests.insert((method, path.to_owned())));
    }

    fn outside(&mut self, own: &str, authority: &str, asked: SocketAddr, protocol: &str) {
        let http = protocol != "TCP";
        let named = authority
            .rsplit_once(':')
            .map_or(authority, |(host, _)| host);
        let host = match named {
            "-" | "" => asked.ip().to_string(),
            host => host.trim_matches(['[', ']']).to_owned(),
        };
        if self.outside.len() < MOST {
            self.outside.insert(Outside {
                source: own.to_owned(),
                host,
                port: asked.port(),
                http,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const A: &str = "spiffe://t/svc/a";
    const B: &str = "spiffe://t/svc/b";

    fn line(change: Value) -> Value {
        let mut line = json!({
            "method": "GET", "path": "/x?q=1", "protocol": "HTTP/1.1", "response_code": 200,
            "response_flags": "-", "upstream_cluster": "b", "upstream_host": "10.0.0.2:80",
            "authority": "b", "source_principal": A, "destination_principal": B,
        });
        let members = change.as_object().unwrap().clone();
        line.as_object_mut().unwrap().extend(members);
        line
    }

    #[test]
    fn each_call_is_counted_by_its_destination() {
        let mut seen = Observed::default();
        seen.add(B, &line(json!({})));
        seen.add(B, &line(json!({"method": "POST"})));
        // The caller's line of the same call.
        seen.add(A, &line(json!({"path": "/other"})));
        seen.add(B, &line(json!({"source_principal": "-"})));
        seen.add(
            B,
            &line(json!({"response_flags": "denied", "upstream_host": "-"})),
        );
        seen.add(
            B,
            &line(json!({"protocol": "TCP", "upstream_host": "10.0.0.2:5432", "path": "-"})),
        );
        let keys: Vec<u16> = seen.calls.keys().map(|called| called.port).collect();
        assert_eq!(keys, [80, 5432]);
        let http = seen.calls.values().next().unwrap();
        let http: Vec<_> = http.iter().map(|(m, p)| format!("{m} {p}")).collect();
        assert_eq!(http, ["GET /x", "POST /x"]);
        assert_eq!(seen.plaintext["b"], 1);
        assert_eq!(seen.refused["b"], 1);
        assert_eq!(seen.requests, 6);
    }

    #[test]
    fn what_leaves_the_mesh_is_named_by_its_host() {
        let mut seen = Observed::default();
        let out = json!({"destination_principal": "-", "upstream_cluster": "unknown",
            "authority": "books.example:80", "upstream_host": "203.0.113.7:80"});
        seen.add(A, &line(out));
        let tcp = json!({"destination_principal": "-", "protocol": "TCP", "authority": "-",
            "upstream_host": "203.0.113.7:443"});
        seen.add(A, &line(tcp));
        let hosts: Vec<_> = seen
            .outside
            .iter()
            .map(|o| (o.host.as_str(), o.port, o.http))
            .collect();
        assert_eq!(
            hosts,
            [("203.0.113.7", 443, false), ("books.example", 80, true)]
        );
    }

    #[test]
    fn endless_paths_do_not_fill_memory() {
        let mut seen = Observed::default();
        for number in 0..MOST + 10 {
            seen.add(B, &line(json!({"path": format!("/{number}")})));
        }
        assert_eq!((seen.kept, seen.left_out), (MOST, 10));
    }
}

//! Proves that the measured traffic was mutual TLS between the right identities, and did not bypass the
//! mesh.

use super::place::{App, ReadyNamespace};
use crate::failure::Result;
use crate::peer::count;
use crate::results::NOT_LOOKED_AT;

/// Where Tulle's sidecars tell their counters.
const METRICS_PORT: u16 = 15020;
/// An application outside the mesh that asks the servers directly.
const STRANGER: &str = "stranger";

impl App {
    /// Returns the application without a sidecar that servers must refuse.
    pub fn stranger(image: &str) -> Self {
        Self {
            name: STRANGER,
            ..Self::client(image, false)
        }
    }
}

/// The request of a client outside the mesh, which the server's application would answer.
#[derive(Debug, Clone, Copy)]
pub enum StrangerRequest {
    /// A path that is answered with 200 over HTTP.
    Path(&'static str),
    /// A ping of Fortio's gRPC service.
    GrpcPing,
}

/// The counters of a server's sidecar before a load.
pub struct Proof {
    client: &'static str,
    server: &'static str,
    counter: &'static str,
    request: StrangerRequest,
    before: Counted,
}

/// Requests that have come to a sidecar.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counted {
    /// Requests in mutual TLS between the right identities.
    right: u64,
    all: u64,
}

impl ReadyNamespace {
    /// Begins one, before a load of `client` on `server`.
    ///
    /// # Errors
    /// The sidecar does not tell.
    pub fn proof(
        &self,
        client: &'static str,
        server: &'static str,
        counter: &'static str,
        request: StrangerRequest,
    ) -> Result<Proof> {
        let mut proof = Proof {
            client,
            server,
            counter,
            request,
            before: Counted::default(),
        };
        proof.before = self.counted(&proof)?;
        Ok(proof)
    }

    /// Proves that at least `answered` requests have reached the server since then, each in mutual TLS of
    /// the right identities, and that the server refuses callers without a sidecar. For meshes other than
    /// Tulle only the refusal is known.
    ///
    /// # Errors
    /// It was not so, in words.
    pub fn prove(&self, proof: &Proof, answered: u64) -> std::result::Result<Vec<String>, String> {
        // Count before the stranger asks: its request is counted, too.
        let now = self.counted(proof).map_err(|e| e.to_string())?;
        let mut evidence = vec![self.refuses_strangers(proof)?];
        if !self.mesh.is_tulle() {
            evidence.push(format!("{NOT_LOOKED_AT}: this mesh's counters are its own"));
            return Ok(evidence);
        }
        let all = now.all.saturating_sub(proof.before.all);
        let right = now.right.saturating_sub(proof.before.right);
        let [from, to] = [proof.client, proof.server].map(|app| self.principal(app));
        let counter = proof.counter;
        if right < answered || all > right {
            return Err(format!(
                "{answered} requests were answered; the sidecar of {} knows {right} ({counter}) as mutual TLS from {from}, and {} others",
                proof.server,
                all - right.min(all)
            ));
        }
        evidence.push(format!("{counter} {right}: mutual_tls, {from} -> {to}"));
        Ok(evidence)
    }

    fn counted(&self, proof: &Proof) -> Result<Counted> {
        let pod = self.pods.get(proof.server);
        let Some(pod) = pod.filter(|_| self.mesh.is_tulle()) else {
            return Ok(Counted::default());
        };
        let path = format!(
            "/api/v1/namespaces/{}/pods/{}:{METRICS_PORT}/proxy/metrics",
            self.namespace, pod.name
        );
        let metrics = self.kubectl.text(&["get", "--raw", &path])?;
        let come = "reporter=\"destination\"".to_owned();
        let right = [
            come.clone(),
            "connection_security_policy=\"mutual_tls\"".to_owned(),
            format!("{}\"", self.principal(proof.client)),
            format!("{}\"", self.principal(proof.server)),
        ];
        Ok(Counted {
            right: count(&metrics, proof.counter, &right).0,
            all: count(&metrics, proof.counter, &[come]).0,
        })
    }

    /// Asks the server's pod without a mesh.
    fn refuses_strangers(&self, proof: &Proof) -> std::result::Result<String, String> {
        let server = proof.server;
        let pod = self.pods.get(server).ok_or("no such pod")?;
        let port = self.apps.iter().find(|app| app.name == server);
        let port = port.and_then(|app| app.port).map_or(0, |(port, _)| port);
        let host = if pod.ip.contains(':') {
            format!("[{}]", pod.ip)
        } else {
            pod.ip.clone()
        };
        let target = match proof.request {
            StrangerRequest::Path(path) => format!("http://{host}:{port}{path}"),
            StrangerRequest::GrpcPing => format!("{host}:{port}"),
        };
        let stranger = format!("deployment/{STRANGER}");
        let words = ["-n", &self.namespace, "exec", &stranger, "-c", "app", "--"];
        let ask = match proof.request {
            StrangerRequest::Path(_) => vec!["curl", "-timeout", "3s", &target],
            StrangerRequest::GrpcPing => vec!["grpcping", "-n", "1", "-timeout", "3s", &target],
        };
        let ask = [&["fortio"][..], &ask].concat();
        let mut command = self.kubectl.command(&[&words[..], &ask].concat());
        let done = command.output().map_err(|e| e.to_string())?;
        let text = [done.stdout, done.stderr].concat();
        let said = String::from_utf8_lossy(&text);
        let refused = match proof.request {
            StrangerRequest::Path(_) => refused(&said),
            StrangerRequest::GrpcPing => refused_ping(&said),
        };
        match refused {
            Some(true) => Ok(format!(
                "refused to {}/{STRANGER}, which has no sidecar",
                self.namespace
            )),
            Some(false) => Err(format!(
                "a client outside the mesh was answered at {target}: mutual TLS is not demanded (Istio: PeerAuthentication STRICT)"
            )),
            None => Err(format!(
                "nobody could ask {target} from outside the mesh: {}",
                said.trim()
            )),
        }
    }
}

/// Whether what `fortio curl` says is that nobody or a sidecar answered; none: it did not ask.
fn refused(said: &str) -> Option<bool> {
    // An echo of bytes sends the request back.
    let answers = ["HTTP/1.1 200", "HTTP/1.0 200", "GET /"];
    if answers.iter().any(|answer| said.contains(answer)) {
        return Some(false);
    }
    let signs = ["HTTP/1.", "EOF", "reset", "refused", "timeout", "Unable to"];
    signs.iter().any(|sign| said.contains(sign)).then_some(true)
}

/// The same of what `fortio grpcping` says: an answered ping has a histogram of round trips.
fn refused_ping(said: &str) -> Option<bool> {
    if said.contains("RTT histogram") {
        return Some(false);
    }
    let signs = ["code = PermissionDenied", "code = Unavailable"];
    signs.iter().any(|sign| said.contains(sign)).then_some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_ping_that_came_back_is_an_answer() {
        let answered = "RTT histogram usec : count 3 avg 327.36067 +/- 102.3 min 202.751";
        assert_eq!(refused_ping(answered), Some(false));
        for text in [
            "[E] grpc error from Ping0 rpc error: code = PermissionDenied desc = tulle: denied",
            "[E] grpc error from Ping0 rpc error: code = Unavailable desc = connection error: desc = \"error reading server preface: read tcp 127.0.0.1:33320->127.0.0.1:38080: read: connection reset by peer\"",
        ] {
            assert_eq!(refused_ping(text), Some(true), "{text}");
        }
        let nobody = "error: unable to upgrade connection: pod does not exist";
        assert_eq!(refused_ping(nobody), None);
    }

    #[test]
    fn only_the_application_is_an_answer() {
        assert_eq!(refused("HTTP/1.1 200 OK\r\nServer: x\r\n\r\n"), Some(false));
        assert_eq!(
            refused("HTTP/1.1 403 Forbidden\r\nx-tulle-reason: plaintext\r\n"),
            Some(true)
        );
        assert_eq!(refused("GET /echo HTTP/1.1\r\nHost: x\r\n"), Some(false));
        assert_eq!(refused("Read error: connection reset by peer"), Some(true));
        assert_eq!(
            refused("error: unable to upgrade connection: pod does not exist"),
            None
        );
    }
}

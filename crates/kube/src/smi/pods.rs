//! Pods, their owners, and the counts of their proxies.

use super::scrape_window::{Account, Counts, Direction, PAIR_BYTES, Way, pairs};
use crate::names::{METRICS_PORT, SIDECAR};
use crate::pod::Pod;
use crate::workload;
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use std::net::{IpAddr, SocketAddr};
use tokio::net::TcpStream;
use tulle_model::samples::{CountedTraffic, MetricSample, parse_line};

/// Longest text that is read of a proxy: its series are bounded, and so is this.
const MAX_TEXT: usize = 64 * 1024 * 1024;
/// Longest line in it.
const MAX_LINE: usize = 16 * 1024;
/// Most [`pairs`] of a caller and a service that are distinguished in a pod; a proxy keeps 4096 series.
const MAX_WAYS: usize = 4096;

/// A pod with a proxy.
#[derive(Debug, Clone)]
pub(super) struct Measured {
    pub(super) uid: String,
    pub(super) account: Account,
    address: IpAddr,
    /// Kind and name of all that it belongs to. But for nodes and namespaces these are of its own.
    belongs: Vec<(String, String)>,
}

impl Measured {
    /// `None`: it has no proxy that could be asked now.
    pub(super) fn from_pod(pod: &Pod) -> Option<Self> {
        let spec = pod.spec.as_ref()?;
        let port = |p: &i32| u16::try_from(*p) == Ok(METRICS_PORT);
        let has_proxy = spec.all_containers().any(|container| {
            let ports = container.ports.iter().flatten();
            container.name == SIDECAR || ports.map(|p| &p.container_port).any(port)
        });
        let status = pod.status.as_ref()?;
        let runs = matches!(status.phase.as_deref(), Some("Running" | "Pending"));
        if !has_proxy || !runs || spec.host_network == Some(true) {
            return None;
        }
        let namespace = pod.namespace()?;
        let account = spec.service_account_name.clone();
        Some(Self {
            uid: pod.uid()?,
            address: status.pod_ip.as_ref()?.parse().ok()?,
            belongs: belongs(pod, &namespace),
            account: Account {
                namespace,
                name: account.unwrap_or_else(|| "default".to_owned()),
            },
        })
    }

    /// The names of those of a kind that it belongs to.
    pub(super) fn names(&self, kind: &str) -> impl Iterator<Item = &str> {
        let of_kind = self.belongs.iter().filter(move |(k, _)| k == kind);
        of_kind.map(|(_, name)| name.as_str())
    }
}

fn belongs(pod: &Pod, namespace: &str) -> Vec<(String, String)> {
    let mut all = vec![
        ("Pod".to_owned(), pod.name_any()),
        ("Namespace".to_owned(), namespace.to_owned()),
    ];
    let spec = pod.spec.as_ref();
    if let Some(node) = spec.and_then(|spec| spec.node_name.clone()) {
        all.push(("Node".to_owned(), node));
    }
    for owner in pod.owner_references() {
        if owner.controller != Some(true) {
            continue;
        }
        if owner.kind == "ReplicaSet"
            && let Some(hash) = pod.labels().get("pod-template-hash")
            && let Some(name) = workload::deployment(&owner.name, hash)
        {
            all.push(("Deployment".to_owned(), name.to_owned()));
        }
        all.push((owner.kind.clone(), owner.name.clone()));
    }
    all
}

/// Lists the pods of a namespace, or all.
pub(super) async fn list(client: &Client, namespace: Option<&str>) -> kube::Result<Vec<Measured>> {
    let api: Api<Pod> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let found = api.list(&ListParams::default()).await?;
    Ok(found.items.iter().filter_map(Measured::from_pod).collect())
}

/// Asks a pod's proxy for its counts.
pub(super) async fn ask(pod: &Measured) -> Result<Counts, String> {
    let address = SocketAddr::new(pod.address, METRICS_PORT);
    let asking = async {
        let stream = TcpStream::connect(address).await;
        let io = TokioIo::new(stream.map_err(|e| e.to_string())?);
        let connected = hyper::client::conn::http1::handshake(io).await;
        let (mut sender, connection) = connected.map_err(|e| e.to_string())?;
        // It ends when nobody reads its answer any more.
        tokio::spawn(connection);
        let request = Request::get("/metrics?only=proxy").header("host", address.to_string());
        let request = request.body(Empty::<Bytes>::new());
        let answer = sender
            .send_request(request.map_err(|e| e.to_string())?)
            .await;
        let answer = answer.map_err(|e| e.to_string())?;
        if answer.status() != StatusCode::OK {
            return Err(answer.status().to_string());
        }
        let mut body = answer.into_body();
        let mut reader = Reader::default();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|e| e.to_string())?;
            if let Some(data) = frame.data_ref() {
                reader.read(data)?;
            }
        }
        Ok(reader.counts)
    };
    let told = asking.await;
    told.map_err(|why: String| format!("http://{address}/metrics: {why}"))
}

/// Reads a scrape as it arrives: it keeps only the counts.
#[derive(Default)]
struct Reader {
    counts: Counts,
    /// The size of `counts` in [`pairs`].
    size: usize,
    /// The beginning of a line whose end has not come yet.
    begun: Vec<u8>,
    length: usize,
}

impl Reader {
    fn read(&mut self, mut data: &[u8]) -> Result<(), String> {
        self.length += data.len();
        if self.length > MAX_TEXT {
            return Err(format!("more than {MAX_TEXT} bytes"));
        }
        while let Some(end) = data.iter().position(|byte| *byte == b'\n') {
            self.begun.extend_from_slice(&data[..end]);
            data = &data[end + 1..];
            let line = String::from_utf8_lossy(&self.begun).into_owned();
            self.begun.clear();
            self.line(&line)?;
        }
        if self.begun.len() + data.len() > MAX_LINE {
            return Err(format!("a line of more than {MAX_LINE} bytes"));
        }
        self.begun.extend_from_slice(data);
        Ok(())
    }

    fn line(&mut self, line: &str) -> Result<(), String> {
        let Some(sample) = parse_line(line).filter(CountedTraffic::counts) else {
            return Ok(());
        };
        let Some(way) = way(&sample) else {
            return Ok(());
        };
        let known = self.counts.remove(&way);
        let before = known.as_ref().map_or(0, |known| pairs(&way, known));
        let mut counted = known.unwrap_or_default();
        counted.take(&sample);
        self.size += pairs(&way, &counted) - before;
        if self.size > MAX_WAYS {
            return Err(format!(
                "more than {MAX_WAYS} callers and services of {PAIR_BYTES} bytes each"
            ));
        }
        self.counts.insert(way, counted);
        Ok(())
    }
}

fn way(sample: &MetricSample) -> Option<Way> {
    let (direction, other) = match sample.label("reporter") {
        "destination" => (Direction::From, "source_principal"),
        "source" => (Direction::To, "destination_principal"),
        _ => return None,
    };
    Some(Way {
        direction,
        peer: Account::from_identity(sample.label(other)),
        service: sample.service().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const TEXT: &str = "\
# TYPE istio_requests_total counter
istio_requests_total{reporter=\"destination\",source_principal=\"spiffe://t/ns/shop/sa/client\",destination_service=\"web.shop\",response_code=\"200\"} 3
istio_requests_total{reporter=\"destination\",source_principal=\"spiffe://t/ns/shop/sa/client\",destination_service=\"web.shop\",response_code=\"503\"} 2
istio_requests_total{reporter=\"destination\",source_principal=\"unknown\",destination_service=\"web.shop\",response_code=\"403\"} 1
istio_requests_total{reporter=\"source\",source_principal=\"spiffe://t/ns/shop/sa/web\",destination_principal=\"spiffe://t/ns/db/sa/db\",destination_service=\"db.db\",response_code=\"200\"} 7
tulle_workers 1
";

    #[test]
    fn a_scrape_is_read_in_whatever_pieces_it_comes() {
        for size in [1, 7, 64, TEXT.len()] {
            let mut reader = Reader::default();
            for piece in TEXT.as_bytes().chunks(size) {
                reader.read(piece).unwrap();
            }
            let counted: Vec<_> = reader
                .counts
                .iter()
                .map(|(way, c)| (way.direction, way.peer.clone(), c.requests, c.failed))
                .collect();
            let account = |namespace: &str, name: &str| {
                Some(Account {
                    namespace: namespace.into(),
                    name: name.into(),
                })
            };
            assert_eq!(
                counted,
                [
                    (Direction::From, None, 1.0, 0.0),
                    (Direction::From, account("shop", "client"), 5.0, 2.0),
                    (Direction::To, account("db", "db"), 7.0, 0.0),
                ]
            );
        }
    }

    #[test]
    fn what_a_proxy_may_say_is_bounded() {
        let mut reader = Reader::default();
        assert!(reader.read(&vec![b'x'; MAX_LINE + 1]).is_err());
        let mut reader = Reader::default();
        let many = (0..=MAX_WAYS).map(|i| {
            format!("istio_requests_total{{reporter=\"source\",destination_service=\"s{i}\"}} 1\n")
        });
        let read: Result<Vec<()>, String> = many.map(|l| reader.read(l.as_bytes())).collect();
        assert!(read.unwrap_err().contains("4096"));
        assert_eq!(reader.counts.len(), MAX_WAYS);
    }

    #[test]
    fn long_names_and_many_buckets_count_as_more() {
        let line = |service: &str, bound: usize| {
            format!(
                "istio_request_duration_milliseconds_bucket{{reporter=\"source\",\
                 destination_service=\"{service}\",le=\"{bound}\"}} 1\n"
            )
        };
        let fill = |ways: usize| {
            let mut reader = Reader::default();
            let name = "s".repeat(15 * PAIR_BYTES);
            for way in 0..ways {
                let line = line(&format!("{name}{way}"), 1);
                reader.read(line.as_bytes()).unwrap();
            }
            reader
        };
        // With its number and its bucket each takes a little more than 15 usual pairs.
        let mut full = fill(MAX_WAYS / 16);
        let refused = full.read(line("s", 1).as_bytes()).unwrap_err();
        assert!(refused.contains("4096"), "{refused}");

        let mut nearly_full = fill(MAX_WAYS / 16 - 1);
        let mut bounds = 1..MAX_WAYS;
        let refused = bounds.find(|bound| nearly_full.read(line("s", *bound).as_bytes()).is_err());
        // A proxy has 20.
        assert!(refused.is_some_and(|bound| bound > 100), "{refused:?}");
    }

    fn pod(change: impl FnOnce(&mut serde_json::Value)) -> Option<Measured> {
        let mut pod = json!({
            "metadata": {
                "name": "web-5d9-x", "namespace": "shop", "uid": "u1",
                "labels": { "pod-template-hash": "5d9" },
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d9",
                    "uid": "u2", "controller": true,
                }],
            },
            "spec": {
                "nodeName": "n1", "serviceAccountName": "web",
                "initContainers": [{ "name": SIDECAR }],
                "containers": [{ "name": "web" }],
            },
            "status": { "phase": "Running", "podIP": "10.244.0.5" },
        });
        change(&mut pod);
        Measured::from_pod(&serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn a_pod_belongs_to_what_made_it() {
        let pod = pod(|_| {}).unwrap();
        for (kind, name) in [
            ("Pod", "web-5d9-x"),
            ("ReplicaSet", "web-5d9"),
            ("Deployment", "web"),
            ("Namespace", "shop"),
            ("Node", "n1"),
        ] {
            assert_eq!(pod.names(kind).collect::<Vec<_>>(), [name]);
        }
        assert_eq!(pod.names("Service").count(), 0);
    }

    #[test]
    fn only_who_has_a_proxy_is_asked() {
        let without = pod(|p| p["spec"]["initContainers"] = json!([]));
        assert!(without.is_none());
        let gateway = pod(|p| {
            let ports = json!([{ "containerPort": METRICS_PORT }]);
            p["spec"]["initContainers"] = json!([]);
            p["spec"]["containers"][0]["ports"] = ports;
        });
        assert!(gateway.is_some());
        assert!(pod(|p| p["status"]["phase"] = "Succeeded".into()).is_none());
        assert!(pod(|p| p["spec"]["hostNetwork"] = true.into()).is_none());
    }
}

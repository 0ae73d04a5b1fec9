//! Metrics of traffic have Istio's labels: both sides of a hop agree on them, and a real Prometheus answers the
//! queries of Kiali's graph and of Istio's dashboards.
//!
//! The proxies have the identities of a cluster's pods and files that name workloads, as a controller would.

use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use tests_local::{Client, Daemon, Mesh, Proxy, Server, eventually, free_port, one, post};
use tulle_tls::testing::Leaf;

const FRONT: &str = "spiffe://tulle.local/ns/shop/sa/front";
const REVIEWS: &str = "spiffe://tulle.local/ns/books/sa/reviews";

fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_port()).into()
}

fn workload(name: &str, app: &str, version: &str) -> Value {
    json!({
        "name": name, "app": app, "version": version,
        "canonicalService": app, "canonicalRevision": version,
    })
}

/// Front of `shop` in front of two versions of the reviews of `books`.
struct Shop {
    front: Proxy,
    reviews: [Proxy; 2],
    http: SocketAddr,
    tcp: SocketAddr,
    _mesh: Mesh,
}

impl Shop {
    fn open(app: &Server, settings: &Value, own: Option<Value>) -> Self {
        let mesh = Mesh::new();
        for (name, identity) in [("front", FRONT), ("v1", REVIEWS), ("v2", REVIEWS)] {
            mesh.certificate_as(name, &Leaf::new(identity), &mesh.ca);
        }
        let (http, tcp) = (loopback(), loopback());
        let served = ["v1", "v2"].map(|version| {
            let ports = [loopback(), loopback()];
            let workload = workload(&format!("reviews-{version}"), "reviews", version);
            let listener = |address: &SocketAddr, port: u16| {
                json!({ "address": address.to_string(), "kind": "inboundPort", "port": port })
            };
            let port = |port: u16, protocol: &str| {
                json!({ "port": port, "protocol": protocol, "target": app.address().to_string() })
            };
            let config = json!({
                "identity": REVIEWS, "mesh": settings,
                "listeners": [listener(&ports[0], 9080), listener(&ports[1], 9000)],
                "inbound": {
                    "service": "reviews.books",
                    "ports": [port(9080, "http"), port(9000, "tcp")],
                    "policy": { "permissive": true },
                    "workload": workload,
                },
            });
            (Proxy::start(&mesh, version, config), ports, workload)
        });
        let endpoints = |port: usize| -> Vec<Value> {
            let each = served.iter();
            each.map(|(_, ports, _)| json!({ "address": ports[port].to_string() }))
                .collect()
        };
        let listener = |address: &SocketAddr, port: u16| {
            json!({
                "address": address.to_string(), "kind": "upstream", "service": "reviews.books", "port": port,
            })
        };
        let mut config = json!({
            "identity": FRONT, "mesh": settings,
            "listeners": [listener(&http, 9080), listener(&tcp, 9000)],
            "services": [{
                "name": "reviews.books", "identities": [REVIEWS],
                "ports": [
                    { "port": 9080, "protocol": "http", "endpoints": endpoints(0) },
                    { "port": 9000, "protocol": "tcp", "endpoints": endpoints(1) },
                ],
                "workloads": {
                    "known": [{ "workload": served[0].2 }, { "workload": served[1].2 }],
                    "endpoints": [[1, 2], [1, 2]],
                },
            }],
        });
        if let Some(own) = own {
            config["inbound"] = json!({ "service": "front.shop", "ports": [], "workload": own });
        }
        let [one, two] = served.map(|(proxy, ..)| proxy);
        Self {
            front: Proxy::start(&mesh, "front", config),
            reviews: [one, two],
            http,
            tcp,
            _mesh: mesh,
        }
    }

    fn usual(app: &Server, settings: &Value) -> Self {
        Self::open(app, settings, Some(workload("front-v1", "front", "v1")))
    }

    /// Requests and connections, to each of the endpoints.
    fn load(&self) {
        let mut client = Client::connect(self.http);
        for _ in 0..4 {
            client.send(post("/", b"five stars"));
            assert_eq!(client.response("POST").status(), 200);
        }
        for _ in 0..2 {
            let mut client = Client::connect(self.tcp);
            client.send(post("/", b"five stars"));
            assert_eq!(client.response("POST").status(), 200);
        }
    }

    fn proxies(&self) -> impl Iterator<Item = &Proxy> {
        [&self.front].into_iter().chain(&self.reviews)
    }
}

/// Labels of the series of a metric that count something, but for who reports.
fn series(proxy: &Proxy, metric: &str) -> BTreeSet<BTreeMap<String, String>> {
    let text = proxy.metrics();
    let samples = text.lines().filter_map(|line| {
        let (labels, value) = line
            .strip_prefix(metric)?
            .strip_prefix('{')?
            .split_once("} ")?;
        (value != "0").then_some(labels)
    });
    let labels = samples.map(|labels| {
        let pairs = labels
            .split("\",")
            .filter_map(|label| label.split_once("=\""));
        let pairs =
            pairs.map(|(name, value)| (name.to_owned(), value.trim_end_matches('"').to_owned()));
        pairs.filter(|(name, _)| name != "reporter").collect()
    });
    labels.collect()
}

#[test]
fn both_reporters_agree_on_the_labels_of_a_hop() {
    let app = Server::echo();
    let shop = Shop::usual(&app, &json!({}));
    shop.load();
    for (metric, count) in [
        ("istio_requests_total", 4.0),
        ("istio_tcp_connections_opened_total", 2.0),
    ] {
        shop.front.await_metric(metric, &[], count);
        for proxy in &shop.reviews {
            proxy.await_metric(metric, &[], count / 2.0);
        }
        let told = series(&shop.front, metric);
        let heard = shop.reviews.each_ref().map(|proxy| series(proxy, metric));
        assert_eq!(told.len(), 2, "{metric}: {told:?}");
        assert_eq!(told, heard.into_iter().flatten().collect(), "{metric}");
        for labels in &told {
            let version = &labels["destination_version"];
            for (name, value) in [
                ("source_workload", "front-v1"),
                ("source_workload_namespace", "shop"),
                ("source_canonical_service", "front"),
                ("source_principal", FRONT),
                ("destination_workload", &*format!("reviews-{version}")),
                ("destination_workload_namespace", "books"),
                ("destination_canonical_revision", version),
                ("destination_principal", REVIEWS),
                ("destination_service", "reviews.books.svc.cluster.local"),
                ("destination_service_name", "reviews"),
                ("connection_security_policy", "mutual_tls"),
            ] {
                assert_eq!(labels[name], value, "{name} of {metric}");
            }
        }
    }
    let sent = ["response_code=\"200\""];
    assert_eq!(shop.front.metric("istio_request_bytes_sum", &sent), 40.0);
    assert!(shop.front.metric("istio_response_bytes_sum", &sent) > 40.0);
}

#[test]
fn a_peer_that_does_not_describe_itself_is_unknown() {
    let app = Server::echo();
    let shop = Shop::open(&app, &json!({}), None);
    shop.load();
    let labels = [
        "source_workload=\"unknown\"",
        "source_workload_namespace=\"unknown\"",
        &*format!("source_principal=\"{FRONT}\""),
        "destination_workload=\"reviews-v1\"",
    ];
    shop.reviews[0].await_metric("istio_requests_total", &labels, 2.0);
}

#[test]
fn fewer_labels_are_asked_for_by_the_mesh_or_by_a_scrape() {
    let app = Server::echo();
    let shop = Shop::usual(
        &app,
        &json!({ "metrics": { "compact": true, "withoutSizes": true } }),
    );
    shop.load();
    shop.front.await_metric("istio_requests_total", &[], 4.0);
    let full = Shop::usual(&app, &json!({ "metrics": { "osmNames": true } }));
    full.load();
    full.front.await_metric("istio_requests_total", &[], 4.0);
    assert_eq!(
        full.front
            .metric("osm_request_total", &["source_name=\"front-v1\""]),
        4.0
    );
    let asked = one(full.front.metrics_address(), "/metrics?only=proxy").text();
    for text in [shop.front.metrics(), asked] {
        let traffic: Vec<&str> = text
            .lines()
            .filter(|l| l.contains("destination_service="))
            .collect();
        assert!(traffic.len() > 20, "{text}");
        for word in [
            "_namespace=",
            "_version=",
            "_canonical_",
            "istio_request_bytes",
            "osm_",
        ] {
            assert!(!text.contains(word), "{word} in {text}");
        }
    }
}

/// Kiali's graph tells nodes and edges apart by these.
const KIALI_NODES: &str = "source_cluster,source_workload_namespace,source_workload,\
    source_canonical_service,source_canonical_revision,destination_cluster,\
    destination_service_namespace,destination_service,destination_service_name,\
    destination_workload_namespace,destination_workload,destination_canonical_service,\
    destination_canonical_revision";
const KIALI_HTTP: &str = "request_protocol,response_code,grpc_response_status,response_flags";

/// Queries of which each must find something.
fn queries() -> Vec<String> {
    let nodes = KIALI_NODES;
    let inside = "reporter=\"source\",source_workload_namespace=\"shop\"";
    let from_elsewhere = "reporter=\"source\",source_workload_namespace!=\"books\",\
        source_workload!=\"unknown\",destination_service_namespace=\"books\"";
    let at_books = "reporter=\"destination\",destination_workload_namespace=\"books\"";
    let mut all = Vec::new();
    // Kiali's graph: traffic, response times, throughput, mutual TLS.
    for traffic in [inside, from_elsewhere] {
        all.push(format!(
            "sum(rate(istio_requests_total{{{traffic}}}[30s])) by ({nodes},{KIALI_HTTP})"
        ));
        all.push(format!(
            "sum(rate(istio_tcp_sent_bytes_total{{{traffic}}}[30s])) by ({nodes},response_flags)"
        ));
        all.push(format!("sum(rate(istio_tcp_received_bytes_total{{{traffic}}}[30s])) by ({nodes},response_flags)"));
        all.push(format!(
            "histogram_quantile(0.95, sum(rate(istio_request_duration_milliseconds_bucket{{{traffic}}}[30s])) \
             by (le,{nodes},request_protocol)) > 0"
        ));
        for direction in ["request", "response"] {
            all.push(format!(
                "sum(rate(istio_{direction}_bytes_sum{{{traffic}}}[30s])) by ({nodes},request_protocol) > 0"
            ));
        }
    }
    all.push(format!(
        "sum(rate(istio_requests_total{{{at_books},connection_security_policy!=\"none\"}}[30s])) \
         by ({nodes},source_principal,destination_principal,connection_security_policy) > 0"
    ));
    // Its pages about workloads, services and applications.
    for whose in [
        "destination_workload=\"reviews-v1\",destination_workload_namespace=\"books\"",
        "destination_service_name=\"reviews\",destination_service_namespace=\"books\"",
        "destination_canonical_service=\"reviews\",destination_workload_namespace=\"books\"",
        "source_canonical_service=\"front\",source_workload_namespace=\"shop\"",
        "source_cluster=\"Kubernetes\",destination_cluster=\"Kubernetes\"",
    ] {
        all.push(format!(
            "sum(rate(istio_requests_total{{{whose}}}[30s])) by (request_protocol) > 0"
        ));
        for histogram in [
            "request_duration_milliseconds",
            "request_bytes",
            "response_bytes",
        ] {
            all.push(format!(
                "histogram_quantile(0.99, sum(rate(istio_{histogram}_bucket{{{whose}}}[30s])) by (le)) > 0"
            ));
        }
    }
    all.extend(mesh_dashboard());
    all.extend(service_and_workload_dashboards());
    all
}

/// Istio's dashboard of the mesh.
fn mesh_dashboard() -> Vec<String> {
    let by = "destination_workload, destination_workload_namespace";
    let reporter = "reporter=~\"source|waypoint\"";
    let mut all = vec![
        format!("round(sum(rate(istio_requests_total{{{reporter}}}[30s])), 0.01) > 0"),
        format!(
            "sum(rate(istio_requests_total{{{reporter},response_code!~\"5..\"}}[30s])) \
             / sum(rate(istio_requests_total{{{reporter}}}[30s])) > 0"
        ),
        format!(
            "label_join(sum(rate(istio_requests_total{{{reporter}}}[30s])) by ({by}, destination_service), \
             \"destination_workload_var\", \".\", \"destination_workload\", \"destination_workload_namespace\")"
        ),
    ];
    for quantile in ["0.5", "0.9", "0.99"] {
        all.push(format!(
            "histogram_quantile({quantile}, \
             sum(rate(istio_request_duration_milliseconds_bucket{{{reporter}}}[30s])) by (le, {by})) > 0"
        ));
    }
    for bytes in ["received", "sent"] {
        all.push(format!(
            "sum(rate(istio_tcp_{bytes}_bytes_total{{{reporter}}}[30s])) by ({by}, destination_service) > 0"
        ));
    }
    all
}

/// Istio's dashboards of a service and of a workload, with their variables.
fn service_and_workload_dashboards() -> Vec<String> {
    let service = "destination_service=~\"reviews.books.svc.cluster.local\"";
    let clients = "source_workload=~\"front-v1\",source_workload_namespace=~\"shop\"";
    let servers = "destination_workload=~\"reviews-v2\",destination_workload_namespace=~\"books\"";
    let mut all = vec![
        "sum(istio_requests_total{}) by (destination_service) \
         or sum(istio_tcp_sent_bytes_total{}) by (destination_service)"
            .to_owned(),
        format!(
            "sum(istio_requests_total{{reporter=~\"source\",{service}}}) by (source_workload_namespace) \
             or sum(istio_tcp_sent_bytes_total{{reporter=~\"source\",{service}}}) by (source_workload_namespace)"
        ),
        format!(
            "sum(istio_requests_total{{reporter=\"destination\",{service}}}) by (destination_cluster)"
        ),
    ];
    for (selector, by) in [
        (format!("reporter=~\"source\",{service}"), "le"),
        (
            format!(
                "connection_security_policy=\"mutual_tls\",{service},reporter=~\"destination\",{clients}"
            ),
            "source_workload, source_workload_namespace, le",
        ),
        (
            format!(
                "connection_security_policy=\"mutual_tls\",{service},reporter=~\"destination\",{servers}"
            ),
            "destination_workload, destination_workload_namespace, le",
        ),
        (
            format!("reporter=\"source\",{clients},{service}"),
            "destination_service, le",
        ),
    ] {
        all.push(format!(
            "round(sum(irate(istio_requests_total{{{selector}}}[1m])) by ({by}, response_code), 0.001) > 0"
        ));
        for histogram in [
            "request_duration_milliseconds",
            "request_bytes",
            "response_bytes",
        ] {
            all.push(format!(
                "histogram_quantile(0.95, sum(irate(istio_{histogram}_bucket{{{selector}}}[1m])) by ({by})) > 0"
            ));
        }
        all.push(format!(
            "round(sum(irate(istio_tcp_received_bytes_total{{{selector}}}[1m])), 0.001) > 0"
        ));
    }
    all
}

/// A real Prometheus that scrapes these proxies each second. `None`: it is not installed.
fn prometheus(shop: &Shop) -> Option<Daemon> {
    let targets: Vec<String> = shop
        .proxies()
        .map(|p| p.metrics_address().to_string())
        .collect();
    let config = json!({
        "global": { "scrape_interval": "1s" },
        "scrape_configs": [{ "job_name": "mesh", "static_configs": [{ "targets": targets }] }],
    });
    Daemon::start(
        "prometheus",
        "prometheus",
        // JSON is YAML.
        |_, directory| {
            std::fs::write(directory.join("prometheus.yml"), config.to_string()).unwrap();
        },
        |directory, port| {
            vec![
                format!(
                    "--config.file={}",
                    directory.join("prometheus.yml").display()
                ),
                format!("--storage.tsdb.path={}", directory.join("data").display()),
                format!("--web.listen-address=127.0.0.1:{port}"),
            ]
        },
    )
}

/// The result of a query.
fn ask(prometheus: &Daemon, query: &str) -> Vec<Value> {
    let encoded: String = query
        .bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        })
        .collect();
    let answer = one(
        prometheus.address,
        &format!("/api/v1/query?query={encoded}"),
    )
    .text();
    let body = answer
        .split_once("\r\n\r\n")
        .map_or(&*answer, |(_, body)| body);
    let answer: Value = serde_json::from_str(body).unwrap_or_default();
    assert_ne!(answer["status"], "error", "{query}: {answer}");
    let result = answer.pointer("/data/result").and_then(Value::as_array);
    result.cloned().unwrap_or_default()
}

#[test]
fn kiali_and_istios_dashboards_find_what_they_ask_for() {
    let app = Server::echo();
    let shop = Shop::usual(&app, &json!({}));
    let Some(prometheus) = prometheus(&shop) else {
        return;
    };
    let mut open = queries();
    assert!(open.len() > 50);
    eventually("every query finds something", || {
        shop.load();
        open.retain(|query| ask(&prometheus, query).is_empty());
        println!("nothing is found yet by {open:#?}");
        open.is_empty()
    });
    // The graph has the two edges that there are, and no node of Kiali's that is not whole.
    let graph = format!(
        "sum(rate(istio_requests_total{{reporter=\"source\",source_workload_namespace=\"shop\"}}[30s])) \
         by ({KIALI_NODES},{KIALI_HTTP}) > 0"
    );
    let edges: BTreeSet<String> = ask(&prometheus, &graph)
        .iter()
        .map(|row| {
            let label = |name: &str| row["metric"][name].as_str().unwrap_or("missing").to_owned();
            for name in KIALI_NODES.split(',') {
                assert_ne!(label(name.trim()), "missing", "{name} of {row}");
            }
            format!(
                "{} {}",
                label("source_workload"),
                label("destination_workload")
            )
        })
        .collect();
    let expected = ["front-v1 reviews-v1", "front-v1 reviews-v2"].map(str::to_owned);
    assert_eq!(edges, BTreeSet::from(expected));
    // Each scrape was accepted: no series is shown twice.
    assert_eq!(ask(&prometheus, "up == 1").len(), 3);
}

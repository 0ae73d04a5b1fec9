//! Metrics and the access log, sent to a collector.

use serde_json::json;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command};
use tests_local::{
    CLIENT, Client, Collector, Config, Message, Pair, SERVER, Server, eventually, said, skip,
};
use tulle_api::otlp::common::KeyValue;
use tulle_api::otlp::metrics::Metric;
use tulle_api::otlp::metrics::metric::Data;

fn telling(config: Config, collector: SocketAddr, protocol: &str) -> Config {
    let collector = json!({
        "endpoint": collector.to_string(),
        "protocol": protocol,
        "attributes": { "deployment.environment.name": "test" },
    });
    let otlp = json!({ "collector": collector, "metricsMs": 1000, "accessLog": true });
    config.set("/mesh/otlp", otlp)
}

fn pair(app: SocketAddr, collector: SocketAddr, protocol: &str) -> Pair {
    Pair::with(app, |client, server| {
        (
            telling(client, collector, protocol),
            telling(server, collector, protocol),
        )
    })
}

fn ask(address: SocketAddr) -> Message {
    let mut client = Client::connect(address);
    client.send("GET /ratings/7 HTTP/1.1\r\nHost: ratings:9080\r\n\r\n");
    client.response("GET")
}

fn find<'a>(metrics: &'a [Metric], name: &str) -> Option<&'a Data> {
    let metric = metrics.iter().find(|metric| metric.name == name)?;
    metric.data.as_ref()
}

fn is(attributes: &[KeyValue], wanted: &[(&str, &str)]) -> bool {
    wanted
        .iter()
        .all(|(key, value)| said(attributes, key) == *value)
}

/// Requests that a proxy reports as counted, and as measured.
fn counted(metrics: &[Metric]) -> (f64, u64) {
    let labels = [
        ("response_code", "200"),
        ("destination_service_name", SERVER),
    ];
    let Some(Data::Sum(sum)) = find(metrics, "istio_requests_total") else {
        return (0.0, 0);
    };
    let Some(Data::Histogram(times)) = find(metrics, "istio_request_duration_milliseconds") else {
        return (0.0, 0);
    };
    assert!(sum.is_monotonic);
    let point = sum.data_points.iter().find(|p| is(&p.attributes, &labels));
    let time = times
        .data_points
        .iter()
        .find(|p| is(&p.attributes, &labels));
    if let Some(time) = time {
        assert_eq!(time.bucket_counts.len(), time.explicit_bounds.len() + 1);
        assert_eq!(time.bucket_counts.iter().sum::<u64>(), time.count);
    }
    (
        point.map_or(0.0, |point| point.as_double),
        time.map_or(0, |time| time.count),
    )
}

/// Asserts that lines and counts told to an address come to the collector.
fn a_collector_hears_of_requests(collector: &Collector, told: SocketAddr, protocol: &str) {
    let app = Server::echo();
    let mut pair = pair(app.address(), told, protocol);
    for _ in 0..3 {
        assert_eq!(ask(pair.address).status(), 200);
    }
    for proxy in [CLIENT, SERVER] {
        eventually("the collector has all requests", || {
            counted(&collector.metrics(proxy)) == (3.0, 3)
        });
        eventually("the collector has all lines", || {
            collector.logs(proxy).len() == 3
        });
        let record = collector.logs(proxy).remove(0);
        for (key, value) in [
            ("method", "GET"),
            ("path", "/ratings/7"),
            ("response_code", "200"),
            ("response_flags", "-"),
            ("upstream_cluster", SERVER),
        ] {
            assert_eq!(said(&record.attributes, key), value, "{key}: {record:?}");
        }
        assert_eq!(record.severity_text, "INFO");
    }
    pair.client
        .await_metric("tulle_logs_exported_total", &[], 3.0);
    assert_eq!(pair.client.metric("tulle_logs_dropped_total", &[]), 0.0);
    // The log itself is off: nothing is written for the collector's sake.
    pair.client.terminate();
    assert_eq!(pair.client.wait().code(), Some(0));
}

#[test]
fn by_grpc() {
    let collector = Collector::default();
    a_collector_hears_of_requests(&collector, collector.address(), "grpc");
}

#[test]
fn by_http() {
    let collector = Collector::by_http();
    a_collector_hears_of_requests(&collector, collector.address(), "http");
}

/// The OpenTelemetry collector itself, which passes on what it takes to the tests' own.
struct Relay {
    child: Child,
    grpc: SocketAddr,
    http: SocketAddr,
    _directory: tempfile::TempDir,
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Relay {
    /// None: it is not built, because there is no Go.
    fn start(to: SocketAddr) -> Option<Self> {
        let program =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../build/tools/bin/otel-collector");
        if !program.exists() {
            skip("there is no collector: scripts/fetch-otel-collector.sh builds it, with Go");
            return None;
        }
        let local = || SocketAddr::from(([127, 0, 0, 1], tests_local::free_port()));
        let (grpc, http) = (local(), local());
        let exporter = json!({ "endpoint": format!("http://{to}"), "compression": "none" });
        let pipeline = json!({ "receivers": ["otlp"], "exporters": ["otlp_http"] });
        let configuration = json!({
            "receivers": { "otlp": { "protocols": {
                "grpc": { "endpoint": grpc.to_string() },
                "http": { "endpoint": http.to_string() },
            } } },
            "exporters": { "otlp_http": exporter },
            "service": {
                "telemetry": { "metrics": { "level": "none" }, "logs": { "level": "error" } },
                "pipelines": { "traces": pipeline, "metrics": pipeline, "logs": pipeline },
            },
        });
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("collector.json");
        fs::write(&file, configuration.to_string()).unwrap();
        let child = Command::new(program)
            .args(["--config", &format!("file:{}", file.display())])
            .spawn()
            .unwrap();
        let relay = Self {
            child,
            grpc,
            http,
            _directory: directory,
        };
        for address in [grpc, http] {
            eventually("the collector listens", || {
                TcpStream::connect(address).is_ok()
            });
        }
        Some(relay)
    }
}

#[test]
fn the_opentelemetry_collector_takes_it_by_grpc() {
    let collector = Collector::by_http();
    if let Some(relay) = Relay::start(collector.address()) {
        a_collector_hears_of_requests(&collector, relay.grpc, "grpc");
    }
}

#[test]
fn the_opentelemetry_collector_takes_it_by_http() {
    let collector = Collector::by_http();
    if let Some(relay) = Relay::start(collector.address()) {
        a_collector_hears_of_requests(&collector, relay.http, "http");
    }
}

#[test]
fn what_is_left_goes_out_at_the_end() {
    let collector = Collector::by_http();
    let app = Server::echo();
    let mut pair = pair(app.address(), collector.address(), "http");
    assert_eq!(ask(pair.address).status(), 200);
    pair.client.terminate();
    assert_eq!(pair.client.wait().code(), Some(0));
    assert_eq!(collector.logs(CLIENT).len(), 1);
    assert_eq!(counted(&collector.metrics(CLIENT)), (1.0, 1));
}

#[test]
fn a_collector_that_is_away_costs_lines_and_no_requests() {
    let nobody = tests_local::free_port();
    let nobody = SocketAddr::from(([127, 0, 0, 1], nobody));
    let app = Server::echo();
    let pair = pair(app.address(), nobody, "grpc");
    for _ in 0..20 {
        assert_eq!(ask(pair.address).status(), 200);
    }
    // One that comes later gets what was kept.
    let collector = Collector::on(nobody);
    eventually("the collector has all lines", || {
        collector.logs(CLIENT).len() == 20
    });
}

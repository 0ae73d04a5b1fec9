#![allow(clippy::unwrap_used)]

use super::*;
use crate::telemetry::grpc_status::ResponseStatus;
use std::collections::BTreeSet;
use std::time::Instant;
use tulle_model::identity::SpiffeId;
use tulle_model::resource::Workload;

const FULL: MetricSettings = MetricSettings {
    compact: false,
    without_sizes: false,
    osm_names: false,
};

fn id(text: &str) -> Option<SpiffeId> {
    Some(SpiffeId::parse(text).unwrap())
}

fn workload(name: &str, version: &str) -> Option<Arc<Workload>> {
    Some(Arc::new(Workload {
        name: name.into(),
        app: "reviews".into(),
        version: version.into(),
        canonical_service: "reviews".into(),
        canonical_revision: version.into(),
        ..Workload::default()
    }))
}

/// Labels of a host.
fn labels() -> Labels {
    Labels {
        reporter: Reporter::Destination,
        source: id("spiffe://t/svc/a"),
        source_workload: None,
        destination_service: "b".into(),
        destination: id("spiffe://t/svc/b"),
        destination_workload: None,
        mutual_tls: true,
        tcp: false,
    }
}

/// Labels of a cluster.
fn of_cluster(reporter: Reporter, version: &str) -> Labels {
    Labels {
        reporter,
        source: id("spiffe://t/ns/shop/sa/front"),
        source_workload: workload("front-v1", "v1"),
        destination_service: "reviews.books".into(),
        destination: id("spiffe://t/ns/books/sa/reviews"),
        destination_workload: workload("reviews", version),
        mutual_tls: true,
        tcp: false,
    }
}

fn text(metrics: &Metrics, settings: MetricSettings) -> String {
    metrics.report().into_text(settings).collect()
}

fn count(metrics: &Metrics, labels: Labels, status: u16, bytes: (u64, u64)) {
    let now = Instant::now();
    let series = metrics.series(labels);
    series.request(status.into(), Reason::Ok, (now, now), bytes);
}

/// The value of the first sample with all of these.
fn value(text: &str, wanted: &[&str]) -> String {
    let lines = text.lines().filter(|l| !l.starts_with('#'));
    let mut found = lines.filter(|l| wanted.iter().all(|w| l.contains(w)));
    let line = found.next().unwrap_or_default();
    line.rsplit(' ').next().unwrap_or_default().to_owned()
}

/// Labels of a sample by name.
fn parsed(text: &str, metric: &str) -> BTreeSet<String> {
    let mut lines = text.lines();
    let line = lines
        .find(|l| l.starts_with(&format!("{metric}{{")))
        .unwrap();
    let (labels, _) = line.split_once('{').unwrap().1.split_once('}').unwrap();
    labels.split(',').map(str::to_owned).collect()
}

#[test]
fn workers_are_merged_and_buckets_are_cumulative() {
    let (one, two) = (Metrics::default(), Metrics::default());
    let start = Instant::now();
    let took = |us| (start, start + Duration::from_micros(us));
    let request = |metrics: &Metrics, status: u16, reason, us, bytes| {
        let series = metrics.series(labels());
        series.request(status.into(), reason, took(us), bytes);
    };
    request(&one, 200, Reason::Ok, 400, (0, 30));
    request(&one, 200, Reason::Ok, 7000, (900, 5_000_000));
    request(&two, 200, Reason::Ok, 900, (3, 2));
    request(&two, 403, Reason::Denied, 100, (0, 0));
    let mut report = one.report();
    report.merge(two.report());
    let text: String = report.into_text(FULL).collect();
    let line = |wanted: &[&str]| value(&text, wanted);
    assert_eq!(
        line(&["istio_requests_total{", "response_code=\"200\""]),
        "3"
    );
    assert_eq!(
        line(&["response_flags=\"denied\"", "istio_requests_total{"]),
        "1"
    );
    let took = "milliseconds_bucket";
    assert_eq!(line(&[took, "\"200\"", "le=\"0.5\""]), "1");
    assert_eq!(line(&[took, "\"200\"", "le=\"1\""]), "2");
    assert_eq!(line(&[took, "\"200\"", "le=\"10\""]), "3");
    assert_eq!(line(&["tulle_workers "]), "2");
    let (asked, answered) = ("istio_request_bytes_bucket", "istio_response_bytes_bucket");
    assert_eq!(line(&[asked, "\"200\"", "le=\"0.5\""]), "1");
    assert_eq!(line(&[asked, "\"200\"", "le=\"1000\""]), "3");
    assert_eq!(line(&[answered, "\"200\"", "le=\"50\""]), "2");
    assert_eq!(line(&[answered, "\"200\"", "le=\"3600000\""]), "2");
    assert_eq!(line(&[answered, "\"200\"", "le=\"+Inf\""]), "3");
    assert_eq!(line(&["istio_response_bytes_sum", "\"200\""]), "5000032");
    assert_eq!(line(&["istio_request_bytes_count", "\"403\""]), "1");
}

#[test]
fn the_number_of_series_is_bounded() {
    let metrics = Metrics::default();
    for i in 0..MAX_SERIES + 100 {
        let source = SpiffeId::parse(&format!("spiffe://t/svc/w{i}")).ok();
        metrics.series(Labels { source, ..labels() });
    }
    assert!(metrics.series.borrow().len() <= MAX_SERIES + 1);
}

#[test]
fn statuses_beyond_a_number_are_counted_by_their_class() {
    let (metrics, now) = (Metrics::default(), Instant::now());
    let series = metrics.series(labels());
    let mut asked = 0;
    let mut answered = |answer: ResponseStatus, reason| {
        series.request(answer, reason, (now, now), (1, 1));
        asked += 1;
    };
    (200..1000).for_each(|status: u16| answered(status.into(), Reason::Ok));
    // Outcomes that have a place of their own keep it.
    (200..210).for_each(|status: u16| answered(status.into(), Reason::Ok));
    answered(403.into(), Reason::Denied);
    for grpc in 0..17 {
        answered(
            ResponseStatus::to_call(200, Some(grpc), Reason::Ok),
            Reason::Ok,
        );
    }
    let shown = text(&metrics, FULL);
    let lines = shown.lines();
    let lines: Vec<_> = lines
        .filter(|l| l.starts_with("istio_requests_total{"))
        .collect();
    let value = |line: &&str| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
    assert_eq!(lines.iter().map(value).sum::<u64>(), asked);
    // 2xx to 5xx and others; 4xx that the proxy denied; 2xx and 5xx of gRPC.
    assert_eq!(lines.len(), series::MAX_OUTCOMES + 5 + 1 + 2);
    let find = |wanted: &[&str]| {
        let mut found = lines
            .iter()
            .filter(|l| wanted.iter().all(|w| l.contains(w)));
        found.next().map(value)
    };
    assert_eq!(find(&["\"200\""]), Some(2));
    assert_eq!(find(&["\"2xx\"", "protocol=\"http\""]), Some(100 - 64));
    assert_eq!(find(&["\"5xx\"", "protocol=\"http\""]), Some(100));
    assert_eq!(find(&["\"other\""]), Some(400));
    assert_eq!(find(&["\"4xx\"", "\"denied\""]), Some(1));
    // UNKNOWN, DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE and DATA_LOSS are the server's failures.
    assert_eq!(find(&["\"5xx\"", "protocol=\"grpc\""]), Some(6));
    assert_eq!(find(&["\"2xx\"", "protocol=\"grpc\""]), Some(11));
    assert!(!shown.contains("grpc_response_status"));
}

#[test]
fn a_caller_cannot_take_all_series_by_naming_workloads() {
    let metrics = Metrics::default();
    let named = |i: usize| Labels {
        source_workload: workload(&format!("w{i}"), ""),
        ..of_cluster(Reporter::Destination, "v1")
    };
    let mut last = None;
    for i in 0..MAX_SERIES_OF_SOURCE + 100 {
        last = Some(metrics.series(named(i)));
    }
    assert_eq!(metrics.series.borrow().len(), MAX_SERIES_OF_SOURCE + 1);
    assert_eq!(last.unwrap().labels.source_workload, None);
    let other = Labels {
        source: id("spiffe://t/ns/shop/sa/other"),
        ..named(0)
    };
    assert!(metrics.series(other).labels.source_workload.is_some());
}

#[test]
fn labels_are_istios() {
    let metrics = Metrics::default();
    count(&metrics, of_cluster(Reporter::Source, "v2"), 200, (1, 2));
    let found = parsed(&text(&metrics, FULL), "istio_requests_total");
    let expected = [
        ("reporter", "source"),
        ("source_workload", "front-v1"),
        ("source_workload_namespace", "shop"),
        ("source_principal", "spiffe://t/ns/shop/sa/front"),
        ("source_app", "reviews"),
        ("source_version", "v1"),
        ("source_cluster", "Kubernetes"),
        ("source_canonical_service", "reviews"),
        ("source_canonical_revision", "v1"),
        ("destination_workload", "reviews"),
        ("destination_workload_namespace", "books"),
        ("destination_principal", "spiffe://t/ns/books/sa/reviews"),
        ("destination_app", "reviews"),
        ("destination_version", "v2"),
        ("destination_cluster", "Kubernetes"),
        ("destination_canonical_service", "reviews"),
        ("destination_canonical_revision", "v2"),
        ("destination_service", "reviews.books.svc.cluster.local"),
        ("destination_service_name", "reviews"),
        ("destination_service_namespace", "books"),
        ("request_protocol", "http"),
        ("connection_security_policy", "mutual_tls"),
        ("response_code", "200"),
        ("response_flags", "-"),
    ];
    let expected = expected.map(|(name, value)| format!("{name}=\"{value}\""));
    assert_eq!(found, BTreeSet::from(expected));
}

#[test]
fn what_is_not_known_is_unknown() {
    let metrics = Metrics::default();
    let outside = Labels {
        source: None,
        source_workload: None,
        ..of_cluster(Reporter::Destination, "")
    };
    count(&metrics, outside, 200, (0, 0));
    let found = parsed(&text(&metrics, FULL), "istio_requests_total");
    for label in [
        "source_workload=\"unknown\"",
        "source_workload_namespace=\"unknown\"",
        "source_cluster=\"unknown\"",
        "source_canonical_service=\"unknown\"",
        "source_canonical_revision=\"unknown\"",
        "destination_version=\"unknown\"",
        "destination_canonical_revision=\"latest\"",
    ] {
        assert!(found.contains(label), "{label} in {found:?}");
    }
    // A peer that does not describe itself. Its principal says who it is.
    let silent = Metrics::default();
    let peer = Labels {
        source_workload: None,
        ..of_cluster(Reporter::Destination, "v1")
    };
    count(&silent, peer, 200, (0, 0));
    let found = parsed(&text(&silent, FULL), "istio_requests_total");
    assert!(found.contains("source_workload=\"unknown\""), "{found:?}");
    assert!(
        found.contains("source_workload_namespace=\"unknown\""),
        "{found:?}"
    );
    // Without a cluster the identity has the service's name.
    let host = Metrics::default();
    count(&host, labels(), 200, (0, 0));
    let found = parsed(&text(&host, FULL), "istio_requests_total");
    assert!(found.contains("source_workload=\"a\""), "{found:?}");
    assert!(found.contains("destination_service=\"b\""), "{found:?}");
}

#[test]
fn compact_labels_are_few_and_tell_no_versions_apart() {
    let compact = MetricSettings {
        compact: true,
        without_sizes: true,
        ..FULL
    };
    let metrics = Metrics::default();
    metrics.set(compact);
    for version in ["v1", "v2"] {
        count(&metrics, of_cluster(Reporter::Source, version), 200, (1, 1));
    }
    let shown = text(&metrics, compact);
    let names: BTreeSet<String> = parsed(&shown, "istio_requests_total")
        .into_iter()
        .map(|label| label.split('=').next().unwrap().to_owned())
        .collect();
    let expected = "connection_security_policy destination_principal destination_service \
                    destination_service_name destination_workload reporter request_protocol \
                    response_code response_flags source_principal source_workload";
    assert_eq!(names.into_iter().collect::<Vec<_>>().join(" "), expected);
    assert_eq!(value(&shown, &["istio_requests_total{"]), "2");
    assert!(!shown.contains("istio_request_bytes"), "{shown}");
    // All begins anew when the labels are others.
    metrics.set(FULL);
    assert!(!text(&metrics, FULL).contains("istio_requests_total{"));
    count(&metrics, of_cluster(Reporter::Source, "v1"), 200, (1, 1));
    assert!(text(&metrics, FULL).contains("istio_request_bytes_sum"));
}

#[test]
fn osms_names_are_an_option() {
    let osm = MetricSettings {
        osm_names: true,
        ..FULL
    };
    let metrics = Metrics::default();
    assert!(!text(&metrics, FULL).contains("osm_"));
    count(&metrics, of_cluster(Reporter::Source, "v1"), 200, (0, 0));
    // Another service of the same workload: OSM tells them not apart.
    let other = Labels {
        destination_service: "other.books".into(),
        ..of_cluster(Reporter::Source, "v1")
    };
    count(&metrics, other, 200, (0, 0));
    count(&metrics, of_cluster(Reporter::Source, "v1"), 503, (0, 0));
    count(
        &metrics,
        of_cluster(Reporter::Destination, "v1"),
        200,
        (0, 0),
    );
    let shown = text(&metrics, osm);
    let row = "osm_request_total{source_namespace=\"shop\",source_kind=\"Deployment\",\
               source_name=\"front-v1\",source_pod=\"unknown\",destination_namespace=\"books\",\
               destination_kind=\"Deployment\",destination_name=\"reviews\",\
               destination_pod=\"unknown\",response_code=";
    assert!(shown.contains(&format!("{row}\"200\"}} 2\n")), "{shown}");
    assert!(shown.contains(&format!("{row}\"503\"}} 1\n")), "{shown}");
    assert_eq!(value(&shown, &["osm_request_duration_ms_count"]), "3");
}

#[test]
fn the_text_comes_in_pieces() {
    let metrics = Metrics::default();
    for i in 0..50 {
        let labels = Labels {
            destination_service: format!("s{i}.books").into(),
            ..of_cluster(Reporter::Source, "v1")
        };
        count(&metrics, labels, 200, (0, 0));
    }
    let pieces: Vec<String> = metrics.report().into_text(FULL).collect();
    assert!(pieces.len() > 10, "{}", pieces.len());
    // A piece ends with the series that makes it long enough: three histograms of 22 lines.
    assert!(pieces.iter().all(|p| p.len() < 100 * 1024));
    let whole = pieces.concat();
    let heads = whole
        .lines()
        .filter(|l| l.starts_with("# TYPE istio_requests_total "));
    assert_eq!(heads.count(), 1);
    let samples = whole
        .lines()
        .filter(|l| l.starts_with("istio_requests_total{"));
    assert_eq!(samples.count(), 50);
    assert!(whole.contains("tulle_policy_audit_total"));
}

#[test]
fn counters_go_on_past_32_bits() {
    let (metrics, much) = (Metrics::default(), (1 << 32) + 7);
    let series = metrics.series(Labels {
        tcp: true,
        ..labels()
    });
    series.tcp_opened();
    series.tcp_bytes(much, much + 1);
    count(&metrics, labels(), 200, (much, 0));
    // Two workers. Nobody sends so many requests in a test.
    let report = || {
        let mut report = metrics.report();
        for (_, _, histogram) in report.requests.values_mut().flatten() {
            histogram.count = much;
            histogram.buckets[0] = much;
        }
        report
    };
    let mut both = report();
    both.merge(report());
    let text: String = both.into_text(FULL).collect();
    for (sample, expected) in [
        ("istio_requests_total{", 2 * much),
        ("istio_request_duration_milliseconds_count{", 2 * much),
        ("istio_request_duration_milliseconds_bucket{", 2 * much),
        ("istio_request_bytes_sum{", 2 * much),
        ("istio_tcp_received_bytes_total{", 2 * much),
        ("istio_tcp_sent_bytes_total{", 2 * much + 2),
    ] {
        assert_eq!(value(&text, &[sample]), expected.to_string(), "{sample}");
    }
}

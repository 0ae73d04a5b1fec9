use super::*;
use crate::index::{Edit, Index};
use tulle_model::identity::TrustDomain;
use tulle_model::manifest::Object;

fn nodes(names: &[&str]) -> Nodes {
    let mut index = Index::new(TrustDomain::default());
    for name in names {
        let json = serde_json::json!({
            "apiVersion": "tulle.dev/v1alpha1", "kind": "Workload", "metadata": { "name": name },
            "spec": { "command": ["/bin/true"], "ports": [{ "port": 80, "appProtocol": "http" }] },
        });
        let object = Object::from_json(&json.to_string()).unwrap();
        index.apply([Edit::Put(Box::new(object))]);
    }
    index.nodes()
}

fn id(name: &str) -> String {
    format!("spiffe://tulle.local/svc/{name}")
}

fn join(
    reports: &Reports,
    name: &str,
) -> (Arc<Proxy>, mpsc::Receiver<Result<Box<v1::ToProxy>, Status>>) {
    let (to, asked) = mpsc::channel(4);
    let reporter = v1::Reporter {
        instance: name.into(),
        ..Default::default()
    };
    let joined = reports.join(SpiffeId::parse(&id(name)).unwrap(), reporter, to);
    (joined.unwrap(), asked)
}

fn outcome(class: u32, reason: &str, count: u64) -> v1::OutcomeCount {
    v1::OutcomeCount {
        status_class: class,
        reason: reason.into(),
        count,
        grpc: false,
    }
}

fn edge(at_source: bool, from: &str, to: &str, outcomes: Vec<v1::OutcomeCount>) -> v1::EdgeCounts {
    v1::EdgeCounts {
        at_source,
        source: if from.is_empty() {
            String::new()
        } else {
            id(from)
        },
        destination_service: to.into(),
        destination: id(to),
        mutual_tls: true,
        outcomes,
        ..Default::default()
    }
}

fn told(edges: Vec<v1::EdgeCounts>) -> v1::FromProxy {
    v1::FromProxy {
        interval: Some(v1::Interval {
            milliseconds: 5000,
            edges,
            cpu_milliseconds: 250,
            resident_bytes: 8 << 20,
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// All edges, as (id, requests, failed, denied).
fn seen(reports: &Reports) -> Vec<(String, u64, u64, u64)> {
    let history = reports.history();
    let at = now() + 10.0;
    let span = history.span(at, 60);
    let mut all: Vec<_> = history
        .edges(span)
        .map(|((from, to), c)| (format!("{from}>{to}"), c.requests, c.failed, c.denied))
        .collect();
    all.sort();
    all
}

#[test]
fn a_claim_of_another_identity_is_dropped() {
    let (reports, nodes) = (Reports::default(), nodes(&["a", "b", "c"]));
    let (a, _asked) = join(&reports, "a");
    let ok = || vec![outcome(2, "", 10)];
    let claims = vec![
        edge(true, "a", "b", ok()),
        edge(true, "c", "b", ok()),
        edge(false, "c", "b", ok()),
        // It is its own identity, but not its own service.
        v1::EdgeCounts {
            destination: id("a"),
            ..edge(false, "c", "b", ok())
        },
    ];
    reports.hear(&a, &nodes, told(claims));
    assert_eq!(seen(&reports), [("service/a>service/b".into(), 10, 0, 0)]);
    assert_eq!(a.dropped_count(), 3);
    let failed = v1::FailedRequest {
        source: id("c"),
        destination_service: "b".into(),
        ..Default::default()
    };
    assert!(claims::sample(&a, &nodes, failed).is_none());
}

#[test]
fn a_call_that_both_sides_tell_of_counts_once_and_says_why_it_was_denied() {
    let (reports, nodes) = (Reports::default(), nodes(&["a", "b"]));
    let (a, _asked) = join(&reports, "a");
    let (b, _asked) = join(&reports, "b");
    // A refusal of b is for a an answer like any other.
    let at_a = edge(
        true,
        "a",
        "b",
        vec![outcome(2, "", 7), outcome(4, "", 3), outcome(5, "", 2)],
    );
    let at_b = edge(
        false,
        "a",
        "b",
        vec![
            outcome(2, "", 7),
            outcome(4, "denied", 3),
            outcome(5, "", 2),
        ],
    );
    reports.hear(&a, &nodes, told(vec![at_a]));
    reports.hear(&b, &nodes, told(vec![at_b]));
    assert_eq!(seen(&reports), [("service/a>service/b".into(), 12, 2, 3)]);
    // Nobody else tells of a client outside the mesh.
    let outside = edge(false, "", "b", vec![outcome(4, "plaintext_refused", 4)]);
    reports.hear(&b, &nodes, told(vec![outside]));
    assert_eq!(seen(&reports)[0], ("outside>service/b".into(), 4, 0, 4));
    // Nor of a caller whose proxy does not report.
    reports.leave(&a);
    let alone = edge(false, "a", "b", vec![outcome(2, "", 5)]);
    reports.hear(&b, &nodes, told(vec![alone]));
    assert_eq!(seen(&reports)[1].1, 17);
    let facts = b.facts();
    assert_eq!((facts.cpu, facts.memory), (Some(0.05), Some(8 << 20)));
}

#[test]
fn what_is_beyond_32_bits_is_counted_whole() {
    let (reports, nodes) = (Reports::default(), nodes(&["a", "b"]));
    let (a, _asked) = join(&reports, "a");
    let much = (1 << 32) + 7;
    let outcomes = vec![outcome(2, "", much), outcome(4, "denied", 2 * much)];
    for _ in 0..2 {
        let told = told(vec![edge(true, "a", "b", outcomes.clone())]);
        reports.hear(&a, &nodes, told);
    }
    assert_eq!(
        seen(&reports),
        [("service/a>service/b".into(), 6 * much, 0, 4 * much)]
    );
}

#[tokio::test]
async fn a_question_is_answered_by_the_proxy_that_was_asked() {
    let reports = Arc::new(Reports::default());
    let (a, mut asked) = join(&reports, "a");
    let (b, _asked) = join(&reports, "b");
    let nodes = nodes(&[]);
    let asking = tokio::spawn({
        let (reports, a) = (reports.clone(), a.clone());
        async move {
            let config = v1::question::Kind::Config(true);
            reports.questions.ask(&a, config).await
        }
    });
    let question = asked.recv().await.unwrap().unwrap().question.unwrap().id;
    let part = |json: &str, more| v1::FromProxy {
        answer: Some(v1::Answer {
            question,
            json: json.as_bytes().to_vec(),
            more,
            error: String::new(),
        }),
        ..Default::default()
    };
    reports.hear(&b, &nodes, part("false", false));
    reports.hear(&a, &nodes, part("tr", true));
    reports.hear(&a, &nodes, part("ue", false));
    assert_eq!(asking.await.unwrap(), Ok(b"true".to_vec()));
    drop(asked);
    let config = v1::question::Kind::Config(true);
    assert_eq!(
        reports.questions.ask(&a, config).await,
        Err(Silence::Silent)
    );
}

/// A line of a tap.
fn line(source: &str, destination: &str, service: &str) -> String {
    let line = serde_json::json!({
        "path": "/", "source_principal": source, "destination_principal": destination,
        "upstream_cluster": service,
    });
    line.to_string()
}

fn lines(tap: u64, lines: &[String]) -> v1::TapLines {
    v1::TapLines {
        tap,
        lines: lines.to_vec(),
        dropped: 0,
    }
}

#[test]
fn a_tap_shows_of_a_proxy_its_own_requests_alone() {
    let (reports, nodes) = (Reports::default(), nodes(&["a", "b", "c"]));
    let (a, _asked) = join(&reports, "a");
    let taps = &reports.taps;
    let everybody = std::slice::from_ref(&a);
    let mut tapping = taps
        .begin(v1::Tap::default(), Vec::new(), everybody)
        .unwrap();
    let tap = tapping.id;
    let own = vec![
        line(&id("a"), &id("b"), "b"),
        line(&id("a"), "-", "unknown"),
        line(&id("b"), &id("a"), "a"),
        line("-", &id("a"), "a"),
        // Neither side is told apart.
        line("-", "-", "a"),
    ];
    let twice = line(&id("c"), &id("b"), "b").replacen(
        '{',
        &format!("{{\"source_principal\":\"{}\",", id("a")),
        1,
    );
    let others = vec![
        line(&id("c"), &id("b"), "b"),
        line("-", &id("b"), "b"),
        line("-", "-", "b"),
        line(&id("c"), "-", "unknown"),
        // It is its own identity, but not its own service.
        line(&id("c"), &id("a"), "b"),
        twice,
        "{}".to_owned(),
        "no JSON".to_owned(),
    ];
    taps.hear(&a, &nodes, lines(tap, &[&*others, &*own].concat()));
    let shown = tapping.lines.try_recv().unwrap();
    assert_eq!((shown.lines, shown.dropped), (own.clone(), 0));
    assert_eq!(a.dropped_count(), others.len() as u64);
    // However often it tells of others, there is room for who tells of itself.
    for _ in 0..200 {
        taps.hear(&a, &nodes, lines(tap, &others));
    }
    taps.hear(&a, &nodes, lines(tap, &own));
    assert_eq!(tapping.lines.try_recv().unwrap().lines, own);
    assert!(tapping.lines.try_recv().is_err());
}

#[test]
fn a_tap_shows_nothing_of_a_proxy_that_was_not_asked() {
    let (reports, nodes) = (Reports::default(), nodes(&["a", "b"]));
    let (a, _asked) = join(&reports, "a");
    let (b, _asked_of_b) = join(&reports, "b");
    let of = vec![SpiffeId::parse(&id("b")).unwrap()];
    let all = [a.clone(), b.clone()];
    let mut tapping = reports.taps.begin(v1::Tap::default(), of, &all).unwrap();
    let call = lines(tapping.id, &[line(&id("a"), &id("b"), "b")]);
    reports.taps.hear(&a, &nodes, call.clone());
    assert!(tapping.lines.try_recv().is_err());
    assert_eq!(a.dropped_count(), 1);
    reports.taps.hear(&b, &nodes, call);
    assert_eq!(&*tapping.lines.try_recv().unwrap().proxy, b.id);
    assert_eq!(b.dropped_count(), 0);
}

#[tokio::test]
async fn a_watcher_that_is_slow_is_told_what_it_missed() {
    let (reports, nodes) = (Reports::default(), nodes(&["a", "b"]));
    let (a, mut asked) = join(&reports, "a");
    let taps = &reports.taps;
    let mut tapping = taps
        .begin(v1::Tap::default(), Vec::new(), std::slice::from_ref(&a))
        .unwrap();
    let tap = asked.recv().await.unwrap().unwrap().tap.unwrap().id;
    for _ in 0..100 {
        let two = vec![line(&id("a"), &id("b"), "b"); 2];
        taps.hear(&a, &nodes, lines(tap, &two));
    }
    let mut shown = 0;
    while let Ok(tapped) = tapping.lines.try_recv() {
        assert_eq!(tapped.dropped, 0);
        shown += tapped.lines.len();
    }
    taps.hear(&a, &nodes, lines(tap, &[line(&id("a"), &id("b"), "b")]));
    let missed = tapping.lines.try_recv().unwrap().dropped;
    assert_eq!(shown as u64 + missed, 200);
    // One that comes later is asked, too.
    let (b, mut asked_of_b) = join(&reports, "b");
    assert_eq!(
        asked_of_b.recv().await.unwrap().unwrap().tap.unwrap().id,
        tap
    );
    taps.end(tap, &[a, b]);
    assert_eq!(asked_of_b.recv().await.unwrap().unwrap().end_tap, tap);
}

#[test]
fn a_clock_that_is_set_begins_the_series_of_a_proxy_anew() {
    let reports = Reports::default();
    let (proxy, _asked) = join(&reports, "a");
    let step = f64::from(SERIES_STEP);
    let length = |at: f64| {
        proxy.used(&v1::Interval::default(), at);
        proxy.facts().series.len()
    };
    let today = 1_800_000_000.0;
    assert_eq!(length(today), 1);
    assert_eq!(length(today + step), 2);
    assert_eq!(length(today + step), 2);
    assert_eq!(length(today - 10.0 * step), 1, "set back");
    assert_eq!(length(0.0), 1);
    assert_eq!(length(today), 1, "set right after a start without a clock");
    assert_eq!(length(today + 3.0 * step), 2);
}

#[test]
fn reports_have_begun_when_a_clock_that_was_ahead_is_set_back() {
    let reports = Reports::default();
    assert_eq!(reports.since_as_of(1000.0), 0.0);
    assert!(reports.began.set(Mutex::new(1600.0)).is_ok());
    assert_eq!(reports.since_as_of(1700.0), 1600.0);
    reports.tick(1010.0);
    // It stays there while time goes on.
    assert_eq!(reports.since_as_of(1100.0), 1010.0);
}

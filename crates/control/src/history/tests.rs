use super::*;

const BEGIN: f64 = 1_790_000_000.0;

fn pair(from: usize, to: usize) -> Pair {
    (
        format!("service/from-{from}").into(),
        format!("service/to-{to}").into(),
    )
}

/// Five seconds of 20 requests a second.
fn busy() -> Counts {
    let mut counts = Counts {
        requests: 100,
        mutual: 100,
        ..Counts::default()
    };
    counts.durations[..5].copy_from_slice(&[10, 40, 30, 15, 5]);
    counts
}

/// Reports of so many proxies, three edges each, over fifteen minutes.
fn fill(history: &mut History, proxies: usize) -> f64 {
    let names: Vec<Pair> = (0..proxies * 3).map(|i| pair(i / 3, i)).collect();
    let counts = busy();
    let mut time = BEGIN;
    for _ in 0..KEPT + FINE {
        for name in &names {
            history.add(time, name, &counts);
        }
        history.tick(time);
        time += f64::from(STEP);
    }
    time
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    let kib: u64 = line
        .split_ascii_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap();
    kib * 1024
}

#[test]
fn rates_are_those_that_were() {
    let mut history = History::default();
    let end = fill(&mut history, 1);
    let span = history.span(end, 60);
    let (_, counts) = history.edges(span).next().unwrap();
    assert_eq!(counts.requests as f64 / span.seconds(), 20.0);
    let span = history.span(end - 600.0, 60);
    let counts = history.edge(&pair(0, 0), span).unwrap();
    assert_eq!(counts.requests as f64 / span.seconds(), 20.0);
    assert_eq!(history.rest(span), None);
}

#[test]
fn edges_without_room_are_summed_up_and_the_busy_ones_stay() {
    let mut history = History::new(64 << 10);
    let (few, many) = (
        Counts {
            requests: 1,
            ..Counts::default()
        },
        busy(),
    );
    let mut time = BEGIN;
    for _ in 0..30 {
        for i in 0..500 {
            history.add(time, &pair(i, 0), if i < 10 { &many } else { &few });
        }
        history.tick(time);
        time += f64::from(STEP);
    }
    assert!(
        history.bytes <= history.most + history.most / 10,
        "{}",
        history.bytes
    );
    let span = history.span(time, 60);
    for busy in 0..10 {
        let counts = history.edge(&pair(busy, 0), span).unwrap();
        assert_eq!(counts.requests, 1200, "edge {busy}");
    }
    let own: u64 = history.edges(span).map(|(_, c)| c.requests).sum();
    let (edges, requests) = history.rest(span).unwrap();
    assert!(edges > 100, "{edges}");
    let all = own + requests;
    assert!(all >= 12 * 1490 * 9 / 10, "{own} and {requests}");
}

fn event(at: f64) -> Event {
    Event {
        at,
        kind: "object",
        what: "TrafficTarget t".into(),
        verb: "created",
        who: String::new(),
    }
}

#[test]
fn what_is_too_old_is_forgotten() {
    let mut history = History::default();
    history.add(BEGIN, &pair(0, 0), &busy());
    history.failed(
        &pair(0, 0),
        Sample {
            at: BEGIN,
            ..Sample::default()
        },
    );
    history.happened(event(BEGIN));
    history.happened(event(BEGIN + 1000.0));
    history.tick(BEGIN);
    assert_eq!(history.samples(&pair(0, 0), 0.0).len(), 1);
    history.tick(BEGIN + 1100.0);
    assert!(history.edges.is_empty());
    assert_eq!((history.samples, history.bytes), (0, 0));
    assert_eq!(history.events(0.0, f64::MAX), [event(BEGIN + 1000.0)]);
}

#[test]
fn a_history_goes_on_when_a_clock_that_was_ahead_is_set_back() {
    let mut history = History::default();
    let kept = pair(0, 0);
    history.add(BEGIN, &kept, &busy());
    history.tick(BEGIN);
    // The clock is ten minutes ahead.
    let ahead = BEGIN + 600.0;
    for edge in [&kept, &pair(1, 1)] {
        history.add(ahead, edge, &busy());
    }
    history.failed(
        &kept,
        Sample {
            at: ahead,
            ..Sample::default()
        },
    );
    history.happened(event(ahead));
    history.tick(ahead);
    // It is set back: the future is forgotten, and the history goes on at once.
    let now = BEGIN + 5.0;
    history.tick(now);
    assert_eq!(history.edges.len(), 1);
    assert_eq!(history.events(BEGIN, now), [event(now)]);
    assert_eq!(history.samples(&kept, BEGIN)[0].at, now);
    history.add(now, &kept, &busy());
    history.tick(now + 5.0);
    let span = history.span(now + 5.0, 60);
    assert_eq!(history.edge(&kept, span).unwrap().requests, 200);
}

#[test]
fn events_and_samples_are_bounded() {
    let mut history = History::default();
    for i in 0..MAX_MARKS + 10 {
        history.happened(Event {
            at: BEGIN,
            kind: "object",
            what: i.to_string(),
            verb: "changed",
            who: String::new(),
        });
    }
    assert_eq!(history.events(0.0, f64::MAX).len(), MAX_MARKS);
    for edge in 0..MAX_SAMPLES {
        history.add(BEGIN, &pair(edge, 0), &busy());
        for path in 0..3 {
            let sample = Sample {
                at: BEGIN,
                path: format!("/{path}"),
                ..Sample::default()
            };
            history.failed(&pair(edge, 0), sample);
        }
    }
    assert!(history.samples <= MAX_SAMPLES);
}

/// With the console a controller of 1,000 sidecars may take 32 MiB more than without.
#[test]
fn a_large_mesh_is_within_its_memory() {
    // A quarter of it, to be quick.
    let mut history = History::new(MAX_BYTES / 4);
    fill(&mut history, 250);
    assert_eq!(history.edges.len(), 750, "all have a place");
    assert!(history.bytes <= MAX_BYTES / 4, "{}", history.bytes);
}

#[test]
#[ignore = "measures this process: run it alone"]
fn a_large_mesh_is_measured() {
    let before = resident();
    let mut history = History::default();
    fill(&mut history, 1000);
    let grown = resident() - before;
    println!(
        "{} edges: {} KiB by its own account, {} KiB resident",
        history.edges.len(),
        history.bytes >> 10,
        grown >> 10
    );
    assert!(grown <= 16 << 20, "{grown}");
}

//! Results of each study as they look after real runs: published figures with some noise.

use super::histograms;
use crate::environment::Environment;
use crate::results::stats::Summary;
use crate::results::{Results, SCHEMA, Sample, Scenario, Series, figure};
use crate::verdict::{BudgetVerdict, Finding};
use hdrhistogram::Histogram;
use std::collections::BTreeMap;

/// The same numbers in each run.
struct Noise(u64);

impl Noise {
    /// Returns a pseudo-random number from 0 to 1.
    fn next(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f64 / f64::from(1 << 24)
    }

    /// Up to a share more or less.
    fn about(&mut self, value: f64, share: f64) -> f64 {
        value * (1.0 + share * (2.0 * self.next() - 1.0))
    }
}

fn results(study: &str, scenarios: Vec<Scenario>) -> Results {
    Results {
        schema: SCHEMA,
        study: study.into(),
        date: "2026-11-21 17:17 UTC".into(),
        environment: Environment {
            cpu: "AMD EPYC".into(),
            cpus: 2,
            memory_gib: 8,
            kernel: "6.1.0-42-cloud-amd64".into(),
            architecture: "x86_64".into(),
            system: "Debian GNU/Linux 12 (bookworm)".into(),
            governor: None,
            cgroup: Some("v2".into()),
            commit: Some("7949632f0a1b".into()),
        },
        command: vec!["target/release/tulle".into(), "bench".into(), study.into(), "--quick".into()],
        directory: "/home/me/tulle".into(),
        planned: 0,
        done: 0,
        options: serde_json::json!({"quick": true, "repeats": 5}),
        versions: [
            ("tulle", "tulle-proxy 0.1.0"),
            ("envoy", "version: 2d9a3c/1.40.0/Clean/RELEASE/BoringSSL"),
            ("nginx", "nginx version: nginx/1.22.1"),
            ("haproxy", "HAProxy version 2.6.12-1+deb12u2 2025/04/16"),
        ]
        .map(|(name, version)| (name.to_owned(), version.to_owned()))
        .into(),
        notes: vec![
            "nginx: cannot match a SPIFFE id: the client's sidecar compares the common name, the server's the subject; any certificate of the authority with that name would do.".into(),
            "envoy: lean: `router`, `rbac` and default statistics; no WASM, no Lua, no access log.".into(),
        ],
        configurations: BTreeMap::from([
            ("tulle-client.yaml".into(), "identity: spiffe://tulle.local/client\nworkers: 1\n".into()),
            ("nginx-server.conf".into(), "events { worker_connections 16384; }\n# a < b && c > d\n".into()),
        ]),
        scenarios,
        verdicts: Vec::new(),
        headline: Summary::default(),
        summaries: BTreeMap::new(),
        samples: Vec::new(),
    }
}

fn scenario(name: &str, title: &str, labels: &[(&str, &str)]) -> Scenario {
    let labels = labels
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    Scenario {
        name: name.into(),
        title: title.into(),
        labels: labels.collect(),
    }
}

fn set(sample: &mut Sample, figures: &[(&str, f64)]) {
    let figures = figures
        .iter()
        .map(|(name, value)| ((*name).to_owned(), *value));
    sample.figures.extend(figures);
}

/// Latencies with a tail, in microseconds, and their percentiles as figures.
fn latencies(sample: &mut Sample, noise: &mut Noise, p50: f64, p99: f64, count: u32) {
    let mut histogram = Histogram::<u64>::new_with_bounds(1, 60_000_000, 3).unwrap();
    let tail = (p99 / p50).ln() / 50f64.ln();
    for _ in 0..count {
        let beyond = 1.0 / (1.0 - noise.next()).max(1e-6);
        let ms = p50 * (beyond / 2.0).powf(tail).max(0.4 + 0.3 * noise.next());
        histogram.record((ms * 1000.0).max(1.0) as u64).unwrap();
    }
    for (figure, quantile) in [
        (figure::P50_MS, 0.5),
        (figure::P90_MS, 0.9),
        (figure::P95_MS, 0.95),
        (figure::P99_MS, 0.99),
        (figure::P999_MS, 0.999),
    ] {
        let ms = histogram.value_at_quantile(quantile) as f64 / 1000.0;
        sample.figures.insert(figure.into(), ms);
    }
    sample.histogram = Some(histograms::encode(&histogram));
}

fn evidence(peer: &str, count: u32) -> Vec<String> {
    let known = match peer {
        "none" => return vec!["no mutual TLS: this is the baseline".to_owned()],
        "nginx" | "haproxy" => {
            format!("{count} requests over TLS 1.3, certificate verified, CN=client")
        }
        _ => format!(
            "istio_requests_total {count}: mutual_tls, spiffe://tulle.local/svc/client -> spiffe://tulle.local/svc/echo"
        ),
    };
    let refused = "refused spiffe://tulle.local/svc/stranger: status 403";
    vec![known, refused.to_owned()]
}

/// Peer, CPU µs, requests/s, p50, p99, idle and peak MiB, ms to start, KiB of a connection.
type Pair = (&'static str, [f64; 8]);
const PAIR: [Pair; 6] = [
    ("tulle", [15.0, 65_588.0, 2.9, 5.8, 3.1, 8.6, 6.1, 9.4]),
    (
        "envoy",
        [142.9, 7_004.0, 28.0, 58.0, 65.0, 79.4, 46.0, 20.9],
    ),
    (
        "envoy-wasmless-h2",
        [86.0, 11_600.0, 17.0, 34.0, 64.0, 73.0, 47.0, 20.9],
    ),
    ("nginx", [51.3, 19_470.0, 9.6, 18.0, 19.0, 28.7, 8.0, 14.4]),
    (
        "haproxy",
        [46.0, 21_800.0, 8.4, 17.0, 15.0, 28.0, 29.0, 13.1],
    ),
    ("none", [0.0, 72_483.0, 1.9, 2.8, 0.0, 0.0, 0.0, 0.0]),
];

/// Results of `pair`: Envoy lost requests in one run, HAProxy in all.
pub(super) fn pair() -> Results {
    let mut results = results(
        "pair",
        vec![
            scenario(
                "saturated-200B",
                "200 connections, saturated, 200 bytes",
                &[("connections", "200")],
            ),
            scenario(
                "rate-1000",
                "1,000 requests/s over 64 connections",
                &[("connections", "64")],
            ),
            scenario("idle", "Idle: start, memory, connections", &[]),
        ],
    );
    let mut noise = Noise(7);
    for repeat in 0..5 {
        for (peer, [cpu, rps, p50, p99, idle, peak, start, connection]) in PAIR {
            let sample = |scenario: &str| Sample {
                scenario: scenario.into(),
                peer: peer.into(),
                repeat,
                evidence: evidence(peer, 1000 * (repeat + 1)),
                ..Sample::default()
            };
            let machine = noise.about(1.0, 0.15);
            let mut saturated = sample("saturated-200B");
            let rate = noise.about(rps / machine, 0.03);
            latencies(
                &mut saturated,
                &mut noise,
                p50 * machine,
                p99 * machine,
                20_000,
            );
            set(
                &mut saturated,
                &[
                    (figure::RPS, rate),
                    (figure::REQUESTS, rate * 10.0),
                    (figure::ERRORS, 0.0),
                    (figure::LOAD_CORES, (rps / 66_000.0).min(1.0)),
                ],
            );
            let mut slow = sample("rate-1000");
            latencies(
                &mut slow,
                &mut noise,
                0.06 + cpu / 300.0,
                0.2 + cpu / 50.0,
                5000,
            );
            set(
                &mut slow,
                &[
                    (figure::RPS, 1000.0),
                    (figure::REQUESTS, 5000.0),
                    (figure::ERRORS, 0.0),
                ],
            );
            if peer != "none" {
                let used = noise.about(cpu * machine, 0.02);
                set(
                    &mut saturated,
                    &[
                        (figure::CPU_US_PER_REQUEST, used),
                        (figure::RSS_PEAK_MIB, noise.about(peak, 0.03)),
                        (figure::SIDECAR_CORES, 0.99),
                    ],
                );
                set(&mut slow, &[(figure::CPU_US_PER_REQUEST, used * 1.8)]);
                let mut quiet = sample("idle");
                set(
                    &mut quiet,
                    &[
                        (figure::RSS_IDLE_MIB, noise.about(idle, 0.02)),
                        (figure::START_MS, noise.about(start, 0.2)),
                        (figure::IDLE_CONNECTION_KIB, noise.about(connection, 0.05)),
                    ],
                );
                results.samples.push(quiet);
            }
            if rps > 60_000.0 {
                let busy = 96.0 + f64::from(repeat) / 2.0;
                saturated.remarks.push(format!(
                    "load generator saturated: its CPU was {busy}% busy"
                ));
            }
            if peer == "haproxy" || (peer == "envoy" && repeat == 3) {
                // An average would show these values.
                set(
                    &mut saturated,
                    &[(figure::ERRORS, 17.0), (figure::RPS, 999_999.0)],
                );
            }
            saturated.judge();
            results.samples.extend([saturated, slow]);
        }
    }
    results.verdicts.push(BudgetVerdict {
        against: "the budgets of bench/budgets.toml".into(),
        findings: vec![Finding {
            what: "saturated-200B: cpu_us_per_request ÷ envoy's".into(),
            allowed: "at most 0.1".into(),
            measured: "0.105".into(),
        }],
        skipped: vec!["pipy was not measured in saturated-200B".into()],
        checked: 9,
    });
    (results.planned, results.done) = (90, 90);
    results.summarise();
    results
}

fn over_time(noise: &mut Noise, sidecar: &str, cores: f64, rss: f64) -> Series {
    let mut series = Series {
        sidecar: sidecar.into(),
        ..Series::default()
    };
    for step in 0..60 {
        let at = f64::from(step) * 0.5;
        series.at_s.push(at);
        let warm = (1.0 - (-at / 2.0).exp()).max(0.2);
        series.cpu_cores.push(noise.about(cores * warm, 0.06));
        series
            .rss_mib
            .push(noise.about(rss * (0.7 + 0.3 * warm), 0.01));
    }
    series
}

/// Results of `seeds`: two limits, as in its rounds.
pub(super) fn seeds() -> Results {
    let shares = ["0.5", "0.25"];
    let paths = ["gateway-ratings", "ratings"];
    let mut scenarios = Vec::new();
    for share in shares {
        for path in paths {
            let labels = [
                ("app", "native"),
                ("load", "oha"),
                ("path", path),
                ("cpu", share),
                ("connections", "200"),
            ];
            let title = format!("ingress → {path}, each sidecar limited to {share} of a core");
            scenarios.push(scenario(&format!("{path}@{share}"), &title, &labels));
        }
    }
    let mut results = results("seeds", scenarios);
    let mut noise = Noise(3);
    for repeat in 0..3 {
        for (peer, us, mib) in [
            ("tulle", 33.0, 9.0),
            ("envoy", 190.0, 78.0),
            ("none", 0.0, 0.0),
        ] {
            for path in paths {
                let mut baseline: Option<Sample> = None;
                for share in shares {
                    let name = format!("{path}@{share}");
                    if let Some(same) = &baseline {
                        results.samples.push(Sample {
                            scenario: name,
                            ..same.clone()
                        });
                        continue;
                    }
                    let limit: f64 = share.parse().unwrap();
                    let proxied = if path == "ratings" { 1.0 } else { 2.0 };
                    let limited: f64 = if us > 0.0 {
                        limit * 1e6 / (us * proxied)
                    } else {
                        9_000.0
                    };
                    let tps = noise.about(limited.min(9_000.0), 0.05);
                    let mut sample = Sample {
                        scenario: name,
                        peer: peer.into(),
                        repeat,
                        evidence: evidence(peer, 1000),
                        ..Sample::default()
                    };
                    let p50 = 200_000.0 / tps;
                    if peer == "envoy" {
                        // JMeter and oha leave percentiles and no histogram.
                        set(
                            &mut sample,
                            &[
                                (figure::P50_MS, p50),
                                (figure::P90_MS, p50 * 1.4),
                                (figure::P95_MS, p50 * 1.5),
                                (figure::P99_MS, p50 * 2.2),
                                (figure::P999_MS, p50 * 3.0),
                            ],
                        );
                    } else {
                        latencies(&mut sample, &mut noise, p50, p50 * 2.0, 20_000);
                    }
                    set(
                        &mut sample,
                        &[
                            (figure::RPS, tps),
                            (figure::REQUESTS, tps * 30.0),
                            (figure::ERRORS, 0.0),
                            ("machine_idle", 0.1),
                            ("app_gateway_cores", tps / 20_000.0),
                            ("app_ratings_cores", tps / 25_000.0),
                            (figure::LOAD_CORES, tps / 30_000.0),
                            ("ingress_cores", tps / 30_000.0),
                        ],
                    );
                    if peer == "none" {
                        results.samples.push(sample.clone());
                        baseline = Some(sample);
                        continue;
                    }
                    for (i, sidecar) in ["gateway", "ratings"].iter().enumerate() {
                        let idle = path == "ratings" && i == 0;
                        let cores = if idle {
                            0.001
                        } else {
                            limit * (1.0 - 0.35 * i as f64)
                        };
                        let rss = noise.about(mib, 0.02);
                        sample
                            .series
                            .push(over_time(&mut noise, sidecar, cores, rss));
                        set(
                            &mut sample,
                            &[
                                (&format!("{sidecar}_cpu_cores"), cores),
                                (&format!("{sidecar}_cpu_us_per_request"), cores * 1e6 / tps),
                                (&format!("{sidecar}_rss_peak_mib"), rss),
                            ],
                        );
                    }
                    set(
                        &mut sample,
                        &[
                            ("sidecar_cpu_percent", limit * 100.0),
                            ("sidecar_mib", noise.about(mib, 0.02)),
                            (figure::CPU_US_PER_REQUEST, us * proxied * 1.3),
                        ],
                    );
                    results.samples.push(sample);
                }
            }
        }
    }
    (results.planned, results.done) = (15, 15);
    results.summarise();
    results
}

/// Results of an interrupted `sweep`.
pub(super) fn sweep() -> Results {
    let mut scenarios = Vec::new();
    let mut results = results("sweep", Vec::new());
    let mut noise = Noise(5);
    for (rate, name) in [(1000.0, "1000"), (0.0, "max")] {
        for mode in ["baseline", "both", "clientsidecar"] {
            for connections in [2u32, 4, 8, 16, 32, 64] {
                let scenario_name = format!("{mode}-qps{name}-c{connections}");
                let text = connections.to_string();
                let labels = [
                    ("mode", mode),
                    ("qps", name),
                    ("connections", text.as_str()),
                    ("protocol", "http"),
                ];
                scenarios.push(scenario(
                    &scenario_name,
                    &format!("{mode}, {text} connections"),
                    &labels,
                ));
                let peers: &[(&str, f64, f64)] = if mode == "baseline" {
                    &[("none", 0.0, 0.0)]
                } else {
                    &[("tulle", 0.09, 5.0), ("envoy", 0.5, 70.0)]
                };
                for repeat in 0..3 {
                    for (peer, added, mib) in peers {
                        let n = f64::from(connections);
                        let p50 = if rate > 0.0 {
                            0.08 + added * (1.0 + n / 120.0)
                        } else {
                            (0.05 + added) * n / 1.5
                        };
                        let mut sample = Sample {
                            scenario: scenario_name.clone(),
                            peer: (*peer).into(),
                            repeat,
                            evidence: evidence(peer, 1000),
                            ..Sample::default()
                        };
                        let rps = if rate > 0.0 { rate } else { n / p50 * 1000.0 };
                        let p50 = noise.about(p50, 0.06);
                        set(
                            &mut sample,
                            &[
                                (figure::RPS, noise.about(rps, 0.001)),
                                (figure::REQUESTS, 1000.0),
                                (figure::ERRORS, 0.0),
                                (figure::P50_MS, p50),
                                (figure::P90_MS, p50 * 1.4),
                                (figure::P99_MS, noise.about(p50 * 2.5, 0.2)),
                                (figure::P999_MS, noise.about(p50 * 5.0, 0.3)),
                            ],
                        );
                        if *peer != "none" {
                            let cpu = (rps * (added * 160.0 + 5.0) / 1000.0).min(900.0);
                            set(
                                &mut sample,
                                &[
                                    ("client_cpu_milli", noise.about(cpu, 0.05)),
                                    ("server_cpu_milli", noise.about(cpu * 0.9, 0.05)),
                                    ("client_rss_mib", noise.about(mib + n / 20.0, 0.02)),
                                    ("server_rss_mib", noise.about(mib + n / 25.0, 0.02)),
                                    (figure::CPU_US_PER_REQUEST, cpu * 2.0 * 1000.0 / rps),
                                ],
                            );
                            if mode == "clientsidecar" {
                                sample.figures.remove("server_cpu_milli");
                                sample.figures.remove("server_rss_mib");
                            }
                        }
                        results.samples.push(sample);
                    }
                }
            }
        }
    }
    results.scenarios = scenarios;
    (results.planned, results.done) = (200, 180);
    results.summarise();
    results
}

//! oha: one run for the warm-up, another for the measurement.

use super::load::{Measured, Order};
use super::watch::{Record, Watch, now};
use crate::failure::{Failure, OrFail, Result};
use crate::interrupt::Interrupt;
use crate::process::Process;
use crate::results::figure;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A request that takes longer is lost.
const TIMEOUT: &str = "30s";
/// Time for the last requests and for oha's own accounts, beyond the time of the load.
const PATIENCE: Duration = Duration::from_secs(90);

/// Its report, as far as it is needed.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    summary: Summary,
    latency_percentiles: BTreeMap<String, Option<f64>>,
    status_code_distribution: BTreeMap<String, u64>,
    error_distribution: BTreeMap<String, u64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Summary {
    /// Seconds.
    total: f64,
    /// Bytes of all bodies.
    total_data: u64,
}

/// Runs both.
pub(super) fn run(
    program: &Path,
    order: &Order<'_>,
    interrupt: &Interrupt,
    watch: impl FnOnce(u32) -> Watch,
) -> Result<(Measured, Record)> {
    let mut warm = Measured::default();
    if order.warmup > 0 {
        let mut process = start(program, order, order.warmup)?;
        warm = finish(&mut process, order, order.warmup, interrupt)?;
    }
    let begin = now();
    let mut process = start(program, order, order.seconds)?;
    let watch = watch(process.id());
    let measured = finish(&mut process, order, order.seconds, interrupt);
    let record = watch.stop();
    let measured = measured?;
    Ok((
        Measured {
            begin,
            end: begin + measured.end,
            answered_besides: warm.answered,
            lost_besides: warm.lost,
            ..measured
        },
        record,
    ))
}

fn start(program: &Path, order: &Order<'_>, seconds: u64) -> Result<Process> {
    let output = order.directory.join("oha.json");
    let _ = fs::remove_file(&output);
    let mut command = Command::new(program);
    command
        .args(["--no-tui", "--output-format", "json", "--output"])
        .arg(output)
        .args(["-c", &order.connections.to_string()])
        .args(["-z", &format!("{seconds}s"), "-t", TIMEOUT])
        // Without this option, requests in flight at the end are cut and counted as errors.
        .arg("--wait-ongoing-requests-after-deadline")
        .arg("--disable-compression")
        .arg(format!("http://127.0.0.1:{}{}", order.port, order.path));
    Process::start("oha", command, &[], &order.directory.join("oha.log"))
}

/// `end` is how long it took.
fn finish(
    process: &mut Process,
    order: &Order<'_>,
    seconds: u64,
    interrupt: &Interrupt,
) -> Result<Measured> {
    let status = process.wait(Duration::from_secs(seconds) + PATIENCE, interrupt)?;
    let text = fs::read(order.directory.join("oha.json")).unwrap_or_default();
    if !status.success() {
        let tail = process.tail();
        return Err(Failure::failed(format!("oha ended ({status}): {tail}")));
    }
    parse(&text, order.body.len() as u64)
}

/// `begin` is 0, `end` how long it took; `length` is that of a right answer's body.
fn parse(text: &[u8], length: u64) -> Result<Measured> {
    let report: Report =
        serde_json::from_slice(text).or_fail(|| "cannot read oha's report".to_owned())?;
    let mut measured = Measured {
        end: report.summary.total,
        lost: report.error_distribution,
        ..Measured::default()
    };
    for (status, count) in report.status_code_distribution {
        if status == "200" {
            measured.answered = count;
        } else {
            measured.lost.insert(format!("answered {status}"), count);
        }
    }
    // It does not look at bodies, but adds their lengths up.
    let (bytes, right) = (report.summary.total_data, measured.answered * length);
    if measured.lost.is_empty() && bytes != right {
        let why = format!("or more: the bodies have {bytes} bytes and not {right}");
        measured.lost.insert(why, 1);
    }
    for (figure, percentile) in [
        (figure::P50_MS, "p50"),
        (figure::P90_MS, "p90"),
        (figure::P95_MS, "p95"),
        (figure::P99_MS, "p99"),
        (figure::P999_MS, "p99.9"),
    ] {
        if let Some(Some(seconds)) = report.latency_percentiles.get(percentile) {
            measured.latencies.insert(figure, seconds * 1000.0);
        }
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// oha 1.16.0, asked of a server that answers every 50th request with 503.
    const REPORT: &[u8] = include_bytes!("testdata/oha.json");
    /// oha 1.16.0, asked of a server that closes a connection at its sixth request.
    const LOSSES: &[u8] = include_bytes!("testdata/oha-lost.json");
    /// oha 1.16.0, nobody listening.
    const NOBODY: &[u8] = include_bytes!("testdata/oha-nobody.json");

    #[test]
    fn what_is_not_200_is_lost() {
        let measured = parse(REPORT, 2).unwrap();
        assert_eq!(measured.answered, 196);
        assert_eq!(measured.lost, BTreeMap::from([("answered 503".into(), 4)]));
        assert!((measured.end - 0.005_738_84).abs() < 1e-9);
        assert!((measured.latencies[figure::P50_MS] - 0.060_47).abs() < 1e-9);
        assert!((measured.latencies[figure::P999_MS] - 1.074_432).abs() < 1e-9);
        assert_eq!(measured.latencies.len(), 5);
    }

    #[test]
    fn requests_lost_with_their_connection_are_lost() {
        let measured = parse(LOSSES, 2).unwrap();
        assert_eq!(measured.answered, 169);
        assert_eq!(measured.lost.values().sum::<u64>(), 31);
    }

    #[test]
    fn answers_that_are_cut_are_lost() {
        let text = String::from_utf8(REPORT.to_vec()).unwrap();
        let all_good = text
            .replace("\"503\": 4", "\"200\": 200")
            .replace("\"200\": 196,", "");
        assert_eq!(parse(all_good.as_bytes(), 2).unwrap().lost, BTreeMap::new());
        let lost = parse(all_good.as_bytes(), 3).unwrap().lost;
        assert_eq!(
            lost.keys().next().unwrap(),
            "or more: the bodies have 400 bytes and not 600"
        );
    }

    #[test]
    fn no_answer_at_all_has_no_latencies() {
        let measured = parse(NOBODY, 2).unwrap();
        assert_eq!((measured.answered, measured.latencies.len()), (0, 0));
        assert_eq!(measured.lost.values().sum::<u64>(), 20);
    }

    #[test]
    fn what_is_no_report_is_said() {
        let text = parse(b"", 2).unwrap_err().to_string();
        assert!(text.contains("cannot read oha's report"), "{text}");
    }
}

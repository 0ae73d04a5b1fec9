//! JMeter: one run, whose first seconds are the warm-up.

use super::load::{Measured, Order};
use super::watch::{Record, Watch};
use crate::failure::{Failure, OrFail, Result};
use crate::interrupt::Interrupt;
use crate::process::Process;
use crate::results::figure;
use hdrhistogram::Histogram;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const PLAN: &str = include_str!("../../../../bench/jmeter/seeds.jmx");
const PROPERTIES: &str = include_str!("../../../../bench/jmeter/seeds.properties");
/// Time for the start, and for the answers outstanding at the end.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);
/// The file of its results.
pub(super) const RESULTS: &str = "seeds.jtl";
/// Longest latency, in microseconds; the plan's timeouts are shorter.
const LONGEST: u64 = 60_000_000;

/// The plan and its settings: file name and text.
pub(super) fn configurations() -> [(&'static str, &'static str); 2] {
    [("seeds.jmx", PLAN), ("seeds.properties", PROPERTIES)]
}

/// Runs JMeter.
pub(super) fn run(
    archive: &Path,
    order: &Order<'_>,
    interrupt: &Interrupt,
    watch: impl FnOnce(u32) -> Watch,
) -> Result<(Measured, Record)> {
    let file = |name: &str| order.directory.join(name);
    for (name, text) in configurations() {
        fs::write(file(name), text).or_fail(|| format!("cannot write {name}"))?;
    }
    let results = file(RESULTS);
    let _ = fs::remove_file(&results);
    let words = words(&Words {
        archive,
        plan: order.directory,
        own: order.directory,
        host: "127.0.0.1",
        port: order.port,
        path: order.path,
        connections: order.connections,
        warmup: order.warmup,
        seconds: order.seconds,
    });
    let mut command = Command::new("java");
    command.args(words).current_dir(order.directory);
    let mut process = Process::start("JMeter", command, &[], &file("jmeter.out"))?;
    let watch = watch(process.id());
    let load = Duration::from_secs(order.warmup + order.seconds);
    let status = process.wait(load + PATIENCE, interrupt);
    let record = watch.stop();
    let status = status?;
    if !status.success() {
        let tail = process.tail();
        return Err(Failure::failed(format!("JMeter ended ({status}): {tail}")));
    }
    let what = || format!("cannot read {}", results.display());
    let read = BufReader::new(File::open(&results).or_fail(what)?);
    let measured = parse(read, order.warmup, order.seconds)?;
    let _ = fs::remove_file(&results);
    Ok((measured, record))
}

/// Settings of a run of JMeter.
pub(super) struct Words<'a> {
    /// Its archive, in the distribution's directories.
    pub(super) archive: &'a Path,
    /// The directory of the plan and its settings.
    pub(super) plan: &'a Path,
    /// The directory that it may write to. Its results come to [`RESULTS`] there.
    pub(super) own: &'a Path,
    /// The address that it calls.
    pub(super) host: &'a str,
    pub(super) port: u16,
    pub(super) path: &'a str,
    pub(super) connections: u32,
    pub(super) warmup: u64,
    pub(super) seconds: u64,
}

/// Arguments of `java`.
pub(super) fn words(told: &Words<'_>) -> Vec<String> {
    let own = |name: &str| told.own.join(name).display().to_string();
    let plan = |name: &str| told.plan.join(name).display().to_string();
    let directory = told.own.display();
    vec![
        // JMeter's own script sets the same, except for where Java keeps its files.
        "-Xmx1g".to_owned(),
        "-XX:-UsePerfData".to_owned(),
        format!("-Djava.util.prefs.userRoot={directory}"),
        format!("-Djava.io.tmpdir={directory}"),
        "-jar".to_owned(),
        told.archive.display().to_string(),
        "--nongui".to_owned(),
        // It would add to the results of an earlier run.
        "--forceDeleteResultFile".to_owned(),
        "--testfile".to_owned(),
        plan("seeds.jmx"),
        "--addprop".to_owned(),
        plan("seeds.properties"),
        "--logfile".to_owned(),
        own(RESULTS),
        "--jmeterlogfile".to_owned(),
        own("jmeter.log"),
        format!("-Jhost={}", told.host),
        format!("-Jport={}", told.port),
        format!("-Jpath={}", told.path),
        format!("-Jexpect={}", super::SEEDED),
        format!("-Jthreads={}", told.connections),
        format!("-Jwarmup={}", told.warmup),
        format!("-Jduration={}", told.seconds),
    ]
}

/// Where the columns are.
struct Columns {
    start: usize,
    elapsed: usize,
    code: usize,
    success: usize,
}

impl Columns {
    fn from_head(head: &str) -> Option<Self> {
        let place = |name: &str| head.trim().split(',').position(|column| column == name);
        Some(Self {
            start: place("timeStamp")?,
            elapsed: place("elapsed")?,
            code: place("responseCode")?,
            success: place("success")?,
        })
    }
}

/// Reads results: a line for each sample, its start and duration in milliseconds.
pub(super) fn parse(results: impl BufRead, warmup: u64, seconds: u64) -> Result<Measured> {
    let what = || "cannot read JMeter's results".to_owned();
    let mut lines = results.lines();
    let head = lines.next().transpose().or_fail(what)?.unwrap_or_default();
    let columns = Columns::from_head(&head)
        .ok_or_else(|| Failure::failed(format!("JMeter's results begin with {head:?}")))?;
    let mut samples = Vec::new();
    for line in lines {
        let line = line.or_fail(what)?;
        let fields: Vec<&str> = line.split(',').collect();
        let number = |place: usize| fields.get(place).and_then(|f| f.parse::<u64>().ok());
        // A code that has a comma in it (an exception's text) is quoted; then its own place and
        // those after it are off, and it is certainly not a success.
        let (Some(start), Some(elapsed)) = (number(columns.start), number(columns.elapsed)) else {
            return Err(Failure::failed(format!(
                "JMeter's results have a line that is no sample: {line:?}"
            )));
        };
        let code = fields.get(columns.code).copied().unwrap_or_default();
        let good = code == "200" && fields.get(columns.success) == Some(&"true");
        let lost = (!good).then(|| match code.parse::<u16>() {
            Ok(200) => "answered 200 with another body".to_owned(),
            Ok(status) => format!("answered {status}"),
            Err(_) => code.trim_start_matches('"').to_owned(),
        });
        samples.push((start, elapsed, lost));
    }
    let first = samples.iter().map(|s| s.0).min();
    let first = first.ok_or_else(|| Failure::failed("JMeter sent no request; see its log"))?;
    let begin = first + warmup * 1000;
    let end = begin + seconds * 1000;
    #[allow(clippy::cast_precision_loss)] // milliseconds since 1970 have 41 bits
    let mut measured = Measured {
        begin: begin as f64 / 1000.0,
        end: end as f64 / 1000.0,
        ..Measured::default()
    };
    let mut histogram = Histogram::<u64>::new_with_bounds(1, LONGEST, 3).or_fail(what)?;
    for (start, elapsed, lost) in samples {
        let inside = (begin..end).contains(&(start + elapsed));
        match (inside, lost) {
            (true, None) => {
                measured.answered += 1;
                histogram.saturating_record(elapsed * 1000);
            }
            (false, None) => measured.answered_besides += 1,
            (true, Some(why)) => *measured.lost.entry(why).or_default() += 1,
            (false, Some(why)) => *measured.lost_besides.entry(why).or_default() += 1,
        }
    }
    if !histogram.is_empty() {
        for (figure, quantile) in [
            (figure::P50_MS, 0.5),
            (figure::P90_MS, 0.9),
            (figure::P95_MS, 0.95),
            (figure::P99_MS, 0.99),
            (figure::P999_MS, 0.999),
        ] {
            // It was whole milliseconds; the histogram's buckets are not.
            #[allow(clippy::cast_precision_loss)] // at most LONGEST
            let value = (histogram.value_at_quantile(quantile) as f64 / 1000.0).round();
            measured.latencies.insert(figure, value);
        }
        measured.histogram = Some(crate::load::encode(&histogram));
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// JMeter 5.6.3 with the plan and settings of bench/jmeter, 4 threads, 2 s, of a server that
    /// answers some requests with 503 and drops some connections.
    const WRITTEN: &[u8] = include_bytes!("testdata/jmeter.jtl");

    #[test]
    fn reads_what_jmeter_wrote() {
        let measured = parse(WRITTEN, 0, 60).unwrap();
        let lines = WRITTEN.split(|b| *b == b'\n').filter(|l| !l.is_empty());
        let samples = lines.count() as u64 - 1;
        let lost: u64 = measured.lost.values().sum();
        assert_eq!(measured.answered + lost, samples, "{measured:?}");
        assert!(measured.lost["answered 503"] > 0, "{measured:?}");
        assert!(
            measured
                .lost
                .keys()
                .any(|why| why.contains("exception") || why.contains("Exception")),
            "{measured:?}"
        );
    }

    #[test]
    fn a_sample_counts_when_it_ends_in_the_measurement() {
        let text = "timeStamp,elapsed,responseCode,success\n\
            10000,500,200,true\n\
            10500,1500,200,true\n\
            12000,10,200,true\n\
            12010,30,503,false\n\
            12020,30,200,false\n\
            13990,20,200,true\n\
            13995,20,Non HTTP response code: java.net.SocketException,false\n";
        let measured = parse(text.as_bytes(), 2, 2).unwrap();
        assert!((measured.begin - 12.0).abs() < 1e-9 && (measured.end - 14.0).abs() < 1e-9);
        assert_eq!((measured.answered, measured.answered_besides), (2, 2));
        let lost = [("answered 200 with another body", 1), ("answered 503", 1)];
        let lost = lost.map(|(why, count)| (why.to_owned(), count));
        assert_eq!(measured.lost, BTreeMap::from(lost));
        assert_eq!(measured.lost_besides.values().sum::<u64>(), 1);
        assert!((measured.latencies[figure::P50_MS] - 10.0).abs() < 1e-9);
        assert!((measured.latencies[figure::P999_MS] - 1500.0).abs() < 1.0);
    }

    #[test]
    fn percentiles_of_known_latencies() {
        let mut text = "timeStamp,elapsed,responseCode,success\n".to_owned();
        for elapsed in 1..=1000 {
            text += &format!("1000,{elapsed},200,true\n");
        }
        let measured = parse(text.as_bytes(), 0, 10).unwrap();
        let latencies = measured.latencies;
        assert_eq!(latencies.len(), 5);
        let histogram = crate::load::decode(&measured.histogram.unwrap()).unwrap();
        assert_eq!(histogram.len(), 1000);
        for (name, expected) in [
            (figure::P50_MS, 500.0),
            (figure::P90_MS, 900.0),
            (figure::P95_MS, 950.0),
            (figure::P99_MS, 990.0),
            (figure::P999_MS, 999.0),
        ] {
            assert!(
                (latencies[name] - expected).abs() <= 1.0,
                "{name} {latencies:?}"
            );
        }
    }

    #[test]
    fn what_is_no_result_is_said() {
        for text in [
            "",
            "a,b\n",
            "timeStamp,elapsed,responseCode,success\nx,1,200,true\n",
        ] {
            assert!(parse(text.as_bytes(), 0, 1).is_err(), "{text:?}");
        }
        let none = parse("timeStamp,elapsed,responseCode,success\n".as_bytes(), 0, 1);
        assert!(none.unwrap_err().to_string().contains("sent no request"));
    }
}

//! Fortio: its command lines and what it reports.

use crate::failure::{Failure, Result};
use crate::peer::http;
use crate::process::Process;
use crate::results::{Sample, figure};
use serde::{Deserialize, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tulle_model::resource::Protocol;

/// Bytes that a request asks the server for, or sends to have them echoed.
pub(crate) const PAYLOAD: usize = 1024;
/// Finest bucket of its histogram, in seconds. Its own default, 1 ms, is longer than most answers.
const RESOLUTION: &str = "0.00001";
/// How long it may take to listen, and to end after its time is over.
const PATIENCE: Duration = Duration::from_secs(15);

/// Codes of what was answered as it should be: of HTTP, of TCP, of gRPC.
const GOOD: [&str; 3] = ["200", "OK", "SERVING"];

/// Requests in a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rate {
    /// This many, over all connections.
    Fixed(u32),
    /// The maximum rate: each connection sends the next request when it gets an answer.
    Max,
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(rate) => write!(f, "{rate}"),
            Self::Max => f.write_str("max"),
        }
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Parses a rate of the command line.
pub(crate) fn rate(text: &str) -> std::result::Result<Rate, String> {
    match text {
        "max" => Ok(Rate::Max),
        _ => match text.parse() {
            Ok(rate) if rate > 0 => Ok(Rate::Fixed(rate)),
            _ => Err("requests in a second, or max".into()),
        },
    }
}

/// The program.
pub(crate) struct Fortio {
    program: PathBuf,
}

impl Fortio {
    pub(crate) fn new(program: PathBuf) -> Self {
        Self { program }
    }

    pub(crate) fn version(&self) -> Result<String> {
        crate::tools::version(Command::new(&self.program).arg("version"))
    }

    /// Starts its server for a protocol and waits until it listens.
    ///
    /// # Errors
    /// It does not.
    pub(crate) fn serve(
        &self,
        protocol: Protocol,
        port: u16,
        cpus: &[usize],
        directory: &Path,
    ) -> Result<Process> {
        let mut command = Command::new(&self.program);
        command.args(["server", "-loglevel", "Error", "-ui-path", ""]);
        let wanted = match protocol {
            Protocol::Tcp => "-tcp-port",
            Protocol::Grpc => "-grpc-port",
            _ => "-http-port",
        };
        for option in [
            "-tcp-port",
            "-grpc-port",
            "-http-port",
            "-udp-port",
            "-redirect-port",
        ] {
            command.arg(option);
            if option == wanted {
                command.arg(format!("127.0.0.1:{port}"));
            } else {
                command.arg("disabled");
            }
        }
        let log = directory.join("fortio-server.log");
        let mut process = Process::start("Fortio's server", command, cpus, &log)?;
        let end = Instant::now() + PATIENCE;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if let Some(why) = process.ended() {
                return Err(Failure::failed(why));
            }
            if Instant::now() > end {
                return Err(Failure::failed(format!(
                    "Fortio's server does not listen on port {port}: {}",
                    process.tail()
                )));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(process)
    }

    /// One request, to see whether there is an answer.
    ///
    /// # Errors
    /// There is none, in words.
    pub(crate) fn ask(
        &self,
        protocol: Protocol,
        entry: SocketAddr,
    ) -> std::result::Result<(), String> {
        match protocol {
            Protocol::Grpc => {
                let mut command = Command::new(&self.program);
                command.args(["grpcping", "-n", "1", "-loglevel", "Critical"]);
                command.arg(entry.to_string());
                command.stdout(Stdio::null()).stderr(Stdio::null());
                let status = command.status().map_err(|e| e.to_string())?;
                let answered = status.success().then_some(());
                answered.ok_or_else(|| format!("no answer to a gRPC ping at {entry}"))
            }
            Protocol::Tcp => echo(entry).map_err(|e| format!("no echo at {entry}: {e}")),
            _ => http::get(entry.port(), "/echo").map(drop),
        }
    }

    /// Loads for a time and leaves its report in a file.
    pub(crate) fn load(
        &self,
        protocol: Protocol,
        entry: SocketAddr,
        rate: Rate,
        connections: u32,
        time: Duration,
        report: &Path,
    ) -> Command {
        let mut command = Command::new(&self.program);
        let target = match protocol {
            Protocol::Grpc | Protocol::Tcp => entry.to_string(),
            _ => format!("{entry}/echo?size={PAYLOAD}"),
        };
        let report = report.display().to_string();
        command.args(words(protocol, &target, rate, connections, time, &report));
        command
    }
}

/// Its words for a load. `target` is host and port, for HTTP with what is asked for there.
pub(crate) fn words(
    protocol: Protocol,
    target: &str,
    rate: Rate,
    connections: u32,
    time: Duration,
    report: &str,
) -> Vec<String> {
    let rate = match rate {
        Rate::Fixed(rate) => rate,
        Rate::Max => 0,
    };
    // A lost request is counted; it does not end the load.
    let fixed = "load -quiet -loglevel Error -jitter -allow-initial-errors -log-errors=false -p 50,90,95,99,99.9";
    let mut words: Vec<String> = fixed.split(' ').map(str::to_owned).collect();
    words.extend(["-r", RESOLUTION].map(str::to_owned));
    words.extend(["-qps".to_owned(), rate.to_string()]);
    words.extend(["-c".to_owned(), connections.to_string()]);
    words.extend(["-t".to_owned(), format!("{}ms", time.as_millis())]);
    words.extend(["-json".to_owned(), report.to_owned()]);
    let payload = ["-payload-size".to_owned(), PAYLOAD.to_string()];
    match protocol {
        Protocol::Grpc => {
            words.extend(["-grpc", "-ping"].map(str::to_owned));
            words.extend(payload);
            words.push(target.to_owned());
        }
        Protocol::Tcp => {
            words.extend(payload);
            words.push(format!("tcp://{target}"));
        }
        _ => words.push(format!("http://{target}")),
    }
    words
}

fn echo(entry: SocketAddr) -> std::io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&entry, PATIENCE)?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    stream.write_all(b"?")?;
    stream.read_exact(&mut [0])
}

/// The parts of Fortio's report that are used. Times are seconds.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Report {
    /// RFC 3339.
    pub start_time: String,
    #[serde(rename = "ActualQPS")]
    /// Requests in a second.
    pub actual_qps: f64,
    /// Nanoseconds.
    pub actual_duration: u64,
    /// Connections.
    pub num_threads: u32,
    duration_histogram: Histogram,
    /// Absent when there was no answer at all.
    #[serde(default)]
    ret_codes: BTreeMap<String, u64>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Histogram {
    count: u64,
    #[serde(default)]
    percentiles: Option<Vec<Percentile>>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Percentile {
    percentile: f64,
    value: f64,
}

impl Report {
    /// Reads a report.
    ///
    /// # Errors
    /// It is none, in words.
    pub fn parse(text: &str) -> std::result::Result<Self, String> {
        serde_json::from_str(text).map_err(|e| format!("Fortio's report cannot be read: {e}"))
    }

    /// Requests that were answered as they should be: of HTTP 200, of TCP OK, of gRPC SERVING.
    pub fn answered(&self) -> u64 {
        let codes = self.ret_codes.iter();
        codes
            .filter(|(code, _)| GOOD.contains(&code.as_str()))
            .map(|(_, count)| *count)
            .sum()
    }

    /// All others.
    pub fn errors(&self) -> u64 {
        self.duration_histogram
            .count
            .saturating_sub(self.answered())
    }

    /// Requests that were not, by what became of them.
    pub fn lost(&self) -> BTreeMap<String, u64> {
        let codes = self.ret_codes.iter();
        let bad = codes.filter(|(code, _)| !GOOD.contains(&code.as_str()));
        let mut lost: BTreeMap<String, u64> = bad
            .map(|(code, n)| (format!("answered {code}"), *n))
            .collect();
        let known: u64 = lost.values().sum();
        if self.errors() > known {
            lost.insert("without an answer".to_owned(), self.errors() - known);
        }
        lost
    }

    /// The begin and the end of the load, in seconds since 1970.
    pub fn time(&self) -> (f64, f64) {
        let time = OffsetDateTime::parse(&self.start_time, &Rfc3339);
        #[allow(clippy::cast_precision_loss)] // seconds with a millionth
        let begin = time.map_or(f64::MAX, |time| time.unix_timestamp_nanos() as f64 / 1e9);
        #[allow(clippy::cast_precision_loss)] // nanoseconds of minutes
        (begin, begin + self.actual_duration as f64 / 1e9)
    }

    /// Puts what it has measured into a sample.
    #[allow(clippy::cast_precision_loss)] // requests of minutes
    pub fn tell(&self, sample: &mut Sample) {
        let mut set = |name: &str, value: f64| {
            sample.figures.insert(name.to_owned(), value);
        };
        set(figure::RPS, self.actual_qps);
        set(figure::REQUESTS, self.answered() as f64);
        set(figure::ERRORS, self.errors() as f64);
        for (name, milliseconds) in self.latencies() {
            set(name, milliseconds);
        }
    }

    /// Returns the percentiles of a sample that it has, by the name of the figure, in milliseconds.
    pub fn latencies(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let asked = [
            (figure::P50_MS, 50.0),
            (figure::P90_MS, 90.0),
            (figure::P95_MS, 95.0),
            (figure::P99_MS, 99.0),
            (figure::P999_MS, 99.9),
        ];
        let found = |(name, percentile)| Some((name, self.percentile(percentile)? * 1e3));
        asked.into_iter().filter_map(found)
    }

    /// Lists the codes and their counts, for a message.
    pub fn codes(&self) -> String {
        let codes = self.ret_codes.iter();
        let codes: Vec<String> = codes.map(|(code, n)| format!("{code}: {n}")).collect();
        codes.join(", ")
    }

    /// A percentile in seconds, if it was asked for and there were requests.
    pub fn percentile(&self, percentile: f64) -> Option<f64> {
        let all = self.duration_histogram.percentiles.iter().flatten();
        let mut found = all.filter(|p| (p.percentile - percentile).abs() < 1e-9);
        found.next().map(|p| p.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_fortio_writes() {
        let report = Report::parse(include_str!("testdata/http.json")).unwrap();
        assert_eq!(report.errors(), 1399);
        assert_eq!(report.answered(), 3185);
        assert_eq!(report.codes(), "200: 3185, 503: 1399");
        assert_eq!(
            report.lost(),
            BTreeMap::from([("answered 503".into(), 1399)])
        );
        let (begin, end) = report.time();
        assert!(begin > 1.7e9 && end > begin, "{begin} {end}");
        assert_eq!(report.num_threads, 4);
        assert!(report.percentile(99.9).unwrap() > report.percentile(50.0).unwrap());
        assert_eq!(report.percentile(75.0), None);
        assert!(report.actual_qps > 10_000.0);

        for (text, answered) in [
            (include_str!("testdata/tcp.json"), 16662),
            (include_str!("testdata/grpc.json"), 3863),
        ] {
            let report = Report::parse(text).unwrap();
            assert_eq!((report.answered(), report.errors()), (answered, 0));
        }
        let error = Report::parse("{}").unwrap_err();
        assert!(error.contains("Fortio's report"), "{error}");
    }

    #[test]
    fn asks_for_what_was_published() {
        let fortio = Fortio::new("fortio".into());
        let words = |protocol, rate| {
            let entry = ([127, 0, 0, 1], 80).into();
            let time = Duration::from_millis(2500);
            let command = fortio.load(protocol, entry, rate, 16, time, Path::new("r.json"));
            let words: Vec<_> = command.get_args().map(|w| w.to_str().unwrap()).collect();
            words.join(" ")
        };
        let http = words(Protocol::Http, Rate::Fixed(1000));
        assert!(
            http.ends_with("-json r.json http://127.0.0.1:80/echo?size=1024"),
            "{http}"
        );
        assert!(http.contains("-jitter"), "{http}");
        assert!(http.contains("-qps 1000 -c 16 -t 2500ms"), "{http}");
        let max = words(Protocol::Tcp, Rate::Max);
        assert!(max.contains("-qps 0 "), "{max}");
        assert!(
            max.ends_with("-payload-size 1024 tcp://127.0.0.1:80"),
            "{max}"
        );
        let grpc = words(Protocol::Grpc, Rate::Max);
        assert!(
            grpc.ends_with("-grpc -ping -payload-size 1024 127.0.0.1:80"),
            "{grpc}"
        );
    }
}

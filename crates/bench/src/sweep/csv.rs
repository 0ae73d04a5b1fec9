//! `sweep.csv`: the columns, units and rounding of istio/tools, so that its plotter reads it.

use crate::fortio::Report;
use std::fmt::Write;

/// A measurement that counts.
pub(super) struct Row {
    pub(super) peer: String,
    pub(super) mode: &'static str,
    pub(super) rate: String,
    pub(super) report: Report,
    pub(super) client: Option<Average>,
    pub(super) server: Option<Average>,
}

/// Average usage of one sidecar over the measurement.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Average {
    pub(super) cpu_milli: f64,
    pub(super) rss_mib: f64,
}

const HEAD: &str = "StartTime,ActualDuration,Labels,NumThreads,ActualQPS,p50,p90,p99,p999,cpu_mili_avg_istio_proxy_fortioclient,cpu_mili_avg_istio_proxy_fortioserver,mem_Mi_avg_istio_proxy_fortioclient,mem_Mi_avg_istio_proxy_fortioserver\n";

/// The file. Durations are seconds, percentiles microseconds; what there is none of is empty.
pub(super) fn text(rows: &[Row]) -> String {
    let mut text = HEAD.to_owned();
    for row in rows {
        let report = &row.report;
        let micros = |percentile| {
            let value = report.percentile(percentile);
            value.map_or(String::new(), |v| format!("{:.0}", (v * 1e6).floor()))
        };
        // The plotter finds peer and mode at the end of the label.
        let label = format!(
            "qps_{}_c_{}_1024_{}_{}",
            row.rate, report.num_threads, row.peer, row.mode
        );
        let cpu = |a: Option<Average>| a.map_or(String::new(), |a| format!("{:.3}", a.cpu_milli));
        let rss = |a: Option<Average>| a.map_or(String::new(), |a| format!("{:.3}", a.rss_mib));
        let _ = writeln!(
            text,
            "{},{},{label},{},{:.0},{},{},{},{},{},{},{},{}",
            report.start_time,
            report.actual_duration / 1_000_000_000,
            report.num_threads,
            report.actual_qps,
            micros(50.0),
            micros(90.0),
            micros(99.0),
            micros(99.9),
            cpu(row.client),
            cpu(row.server),
            rss(row.client),
            rss(row.server),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_those_of_istio() {
        let average = Average {
            cpu_milli: 12.5,
            rss_mib: 5.25,
        };
        let row = |peer: &str, mode, client, server| Row {
            peer: peer.into(),
            mode,
            rate: "1000".into(),
            report: Report::parse(include_str!("../testdata/tcp.json")).unwrap(),
            client,
            server,
        };
        let text = text(&[
            row("tulle", "both", Some(average), Some(average)),
            row("none", "baseline", None, None),
        ]);
        let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split(',').collect()).collect();
        assert_eq!(lines.len(), 3);
        for line in &lines {
            assert_eq!(line.len(), 13, "{line:?}");
        }
        let [head, tulle, none] = &lines[..] else {
            unreachable!()
        };
        let get = |line: &Vec<&str>, name: &str| {
            let index = head.iter().position(|column| *column == name).unwrap();
            line[index].to_owned()
        };
        assert_eq!(get(tulle, "Labels"), "qps_1000_c_4_1024_tulle_both");
        assert_eq!(get(tulle, "NumThreads"), "4");
        assert_eq!(get(tulle, "ActualQPS"), "83111");
        let p50: u32 = get(tulle, "p50").parse().unwrap();
        let p999: u32 = get(tulle, "p999").parse().unwrap();
        assert!(20 < p50 && p50 < p999 && p999 < 5000, "{p50} {p999}");
        assert_eq!(
            get(tulle, "cpu_mili_avg_istio_proxy_fortioclient"),
            "12.500"
        );
        assert_eq!(get(none, "mem_Mi_avg_istio_proxy_fortioserver"), "");
    }
}

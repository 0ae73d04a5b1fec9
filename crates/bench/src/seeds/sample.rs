//! A sample from what the client and the kernel saw.

use super::Path;
use super::load::Measured;
use super::plane::{Plane, SIDECARS};
use super::watch::Record;
use crate::results::{Sample, figure};

/// Series of the ingress.
pub(super) const INGRESS: &str = "ingress";
/// The load generator's name among the watched processes.
pub(super) const LOAD: &str = "load";
/// Share of the machine's time below which it counts as saturated.
const IDLE: f64 = 0.05;
/// Share of the machine that a load generator may use before it is suspected.
const BUSY_LOAD: f64 = 0.9;

/// Series of a workload's application.
pub(super) fn app(workload: &str) -> String {
    format!("app_{workload}")
}

/// Series of what brings Envoy its configuration.
pub(super) fn agent(workload: &str) -> String {
    format!("agent_{workload}")
}

/// Everything but the proof.
pub(super) fn from_measured(
    measured: &Measured,
    record: &Record,
    path: Path,
    plane: Plane,
) -> Sample {
    let mut sample = from_client(measured);
    let (begin, end) = (measured.begin, measured.end);
    let answered = sample.figure(figure::REQUESTS).unwrap_or_default();
    let mut set = |name: &str, value: f64| {
        sample.figures.insert(name.to_owned(), value);
    };
    let used = |target: &str| record.used(target, begin, end);
    let per_request = |cpu: f64| cpu * 1e6 / answered.max(1.0);

    let ingress = used(INGRESS);
    set("ingress_cpu_us_per_request", per_request(ingress.cpu));
    set("ingress_cores", ingress.average);
    let load = used(LOAD);
    set(figure::LOAD_CORES, load.average);
    for workload in SIDECARS {
        let used = used(&app(workload));
        set(&format!("app_{workload}_cores"), used.average);
        set(&format!("app_{workload}_rss_peak_mib"), used.rss_peak);
    }
    let idle = record.idle(begin, end);
    set("machine_idle", idle);

    let mut series = Vec::new();
    if plane != Plane::None {
        let (mut cpu, mut cores, mut peak) = (0.0, 0.0, 0.0_f64);
        for workload in SIDECARS {
            let sidecar = used(workload);
            set(
                &format!("{workload}_cpu_us_per_request"),
                per_request(sidecar.cpu),
            );
            set(&format!("{workload}_cpu_cores"), sidecar.average);
            set(&format!("{workload}_cpu_cores_max"), sidecar.highest);
            set(&format!("{workload}_rss_peak_mib"), sidecar.rss_peak);
            cpu += sidecar.cpu;
            cores += sidecar.average;
            peak = peak.max(sidecar.rss_peak);
            series.push(sidecar.series);
        }
        set(figure::CPU_US_PER_REQUEST, per_request(cpu));
        set(figure::SIDECAR_CORES, cores);
        set(figure::RSS_PEAK_MIB, peak);
        // The one that the published table shows: before the service that clients call.
        if let Some((_, first)) = path.hops().first() {
            let sidecar = used(first);
            set("sidecar_cpu_percent", sidecar.average * 100.0);
            set("sidecar_mib", sidecar.rss_peak);
        }
    }
    if plane == Plane::Envoy {
        let agents = SIDECARS.map(|workload| used(&agent(workload)));
        let cpu = agents.iter().map(|a| a.cpu).sum();
        set("agents_cpu_us_per_request", per_request(cpu));
        set(
            "agents_rss_peak_mib",
            agents.iter().map(|a| a.rss_peak).fold(0.0, f64::max),
        );
    }
    series.push(ingress.series);
    sample.series = series;
    sample.remarks.extend(saturation(idle, load.average));
    sample
}

/// Returns the sample of what the client saw alone.
pub(super) fn from_client(measured: &Measured) -> Sample {
    let mut sample = Sample {
        histogram: measured.histogram.clone(),
        remarks: losses(measured),
        ..Sample::default()
    };
    let time = (measured.end - measured.begin).max(f64::MIN_POSITIVE);
    #[allow(clippy::cast_precision_loss)] // requests of minutes
    let (answered, lost) = (
        measured.answered as f64,
        measured.lost.values().sum::<u64>() as f64,
    );
    let mut set = |name: &str, value: f64| {
        sample.figures.insert(name.to_owned(), value);
    };
    set(figure::RPS, answered / time);
    set(figure::REQUESTS, answered);
    set(figure::ERRORS, lost);
    for (name, value) in &measured.latencies {
        set(name, *value);
    }
    sample
}

fn losses(measured: &Measured) -> Vec<String> {
    let mut remarks = Vec::new();
    let words = |lost: &std::collections::BTreeMap<String, u64>| {
        let words = lost.iter().map(|(why, count)| format!("{count} {why}"));
        words.collect::<Vec<_>>().join(", ")
    };
    if !measured.lost.is_empty() {
        remarks.push(format!("lost: {}", words(&measured.lost)));
    }
    if !measured.lost_besides.is_empty() {
        let lost = words(&measured.lost_besides);
        remarks.push(format!("lost outside the measurement: {lost}"));
    }
    remarks
}

fn saturation(idle: f64, load: f64) -> Option<String> {
    #[allow(clippy::cast_precision_loss)] // CPUs
    let cpus = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    if load > BUSY_LOAD * cpus {
        return Some(format!(
            "load generator saturated: it used {load:.1} of {cpus} CPUs"
        ));
    }
    (idle < IDLE).then(|| {
        format!(
            "machine saturated: {:.0}% idle, load generator {load:.1} CPUs",
            idle * 100.0
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn lost_requests_are_counted_and_named() {
        let measured = Measured {
            begin: 100.0,
            end: 110.0,
            answered: 1000,
            lost: BTreeMap::from([("answered 503".into(), 2), ("connection closed".into(), 1)]),
            latencies: BTreeMap::from([(figure::P50_MS, 7.0)]),
            ..Measured::default()
        };
        let mut sample = from_measured(&measured, &Record::default(), Path::Ratings, Plane::None);
        assert_eq!(sample.figure(figure::RPS), Some(100.0));
        assert_eq!(sample.figure(figure::ERRORS), Some(3.0));
        assert_eq!(sample.figure(figure::P50_MS), Some(7.0));
        assert_eq!(sample.figure(figure::CPU_US_PER_REQUEST), None);
        assert_eq!(
            sample.remarks[0],
            "lost: 2 answered 503, 1 connection closed"
        );
        sample.judge();
        assert_eq!(sample.invalid.as_deref(), Some("3 requests were lost"));
    }

    #[test]
    fn saturation_is_said() {
        assert_eq!(saturation(0.5, 0.1), None);
        let busy = saturation(0.01, 0.1).unwrap();
        assert!(busy.starts_with("machine saturated: 1% idle"), "{busy}");
        let load = saturation(0.01, 1e6).unwrap();
        assert!(load.starts_with("load generator saturated"), "{load}");
    }
}

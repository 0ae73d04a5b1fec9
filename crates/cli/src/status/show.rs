//! A [`Report`] for people.

use super::edges::{edges_table, verdict};
use super::report::{Proxy, Report, Workload};
use crate::args::output::Format;
use crate::data_plane::DataPlane;
use crate::output::{Columns, Mark, bytes, coarse, paint};
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// The whole report; `Wide` has every column.
pub(crate) fn render(report: &Report, format: Format) -> String {
    let wide = format == Format::Wide;
    let mut parts = vec![heading(report)];
    if !report.services.is_empty() {
        parts.push(services(report, wide));
    }
    if !report.gateways.is_empty() {
        parts.push(gateways(report));
    }
    if !report.proxies.is_empty() {
        parts.push(proxies(report, wide));
    }
    parts.extend(traffic(report, wide));
    if !report.unreached.is_empty() {
        parts.push(unreached(report));
    }
    if !report.away.is_empty() && !report.narrowed {
        let lines = report.away.iter().map(|away| away.line());
        parts.push(lines.collect::<Vec<_>>().join("\n"));
    }
    parts.extend(warnings(report));
    parts.join("\n\n")
}

/// The report if `--problems` leaves nothing of it but what concerns the whole mesh.
pub(super) fn nothing_wrong(report: &Report) -> String {
    let mut parts = vec![heading(report), "no problems".to_owned()];
    parts.extend(warnings(report));
    parts.join("\n\n")
}

fn warnings(report: &Report) -> impl Iterator<Item = String> {
    let warnings = report.warnings.iter();
    warnings.map(|w| paint(&format!("warning: {w}"), Mark::Doubtful))
}

/// The report as it fits a screen that is drawn again and again: one row for each workload with
/// its sidecar. Also the number of lines at the end that matter most.
pub(crate) fn live(report: &Report) -> (Vec<String>, usize) {
    let mut text = format!("{}\n\n{}", heading(report), units(report));
    let mut foot = 1;
    if let Some(traffic) = traffic(report, false) {
        text.push_str(&format!("\n\n{traffic}"));
    }
    if !report.unreached.is_empty() {
        let table = unreached(report);
        foot += table.lines().count() + 1;
        text.push_str(&format!("\n\n{table}"));
    }
    for warning in &report.warnings {
        foot += 1;
        let warning = paint(&format!("warning: {warning}"), Mark::Doubtful);
        text.push_str(&format!("\n{warning}"));
    }
    (text.lines().map(str::to_owned).collect(), foot)
}

/// Returns who talked to whom, with the verdict; none if it was left out.
fn traffic(report: &Report, wide: bool) -> Option<String> {
    match edges_table(&report.edges, wide) {
        Some(table) => Some(format!("{table}\n{}", verdict(&report.edges).1)),
        None if report.narrowed => None,
        None => Some("no traffic between services yet".to_owned()),
    }
}

/// Workloads with their sidecars, then gateways.
fn units(report: &Report) -> String {
    let mut heads = vec![
        "WORKLOAD",
        "READY",
        "CERTIFICATE",
        "MEMORY",
        "CPU",
        "RESTARTS",
        "NOTE",
    ];
    let several = hosts_have_joined(report);
    if several {
        heads.insert(1, "HOST");
    }
    let mut columns = Columns::new(&heads);
    let controller = report.controller.ready && report.mesh.node.is_empty();
    let mut row = |shown: &str, host: &str, key: &str, ready, restarts: u32, notes: [String; 2]| {
        let proxy = report.proxies.iter().find(|p| p.workload == key);
        let notes = notes.into_iter().chain(proxy.map(|p| note(p, controller)));
        let notes: Vec<String> = notes.filter(|n| !n.is_empty()).collect();
        let of_proxy = |show: fn(&Proxy) -> String| proxy.map(show).unwrap_or_default();
        let mut cells = vec![
            shown.to_owned(),
            yes_no(ready),
            of_proxy(certificate),
            of_proxy(|p| bytes(p.rss_bytes)),
            of_proxy(|p| format!("{:.1}s", p.cpu_seconds)),
            restarts
                .saturating_add(proxy.map_or(0, |p| p.restarts))
                .to_string(),
            notes.join("; "),
        ];
        if several {
            cells.insert(1, shown_host(host));
        }
        columns.row(cells);
    };
    for workload in report.services.iter().flat_map(|s| &s.workloads) {
        let notes = [workload.message.clone(), String::new()];
        let name = &workload.name;
        // A proxy of that name here would be another workload's.
        let key = if workload.host == report.mesh.node {
            name
        } else {
            ""
        };
        row(
            name,
            &workload.host,
            key,
            workload.ready,
            workload.restarts,
            notes,
        );
    }
    for gateway in &report.gateways {
        let notes = [
            gateway.message.clone(),
            format!("on {}", list(&gateway.listeners)),
        ];
        let key = format!("gateway.{}", gateway.name);
        let shown = format!("{} (gateway)", gateway.name);
        row(&shown, &report.mesh.node, &key, gateway.ready, 0, notes);
    }
    columns.render()
}

fn heading(report: &Report) -> String {
    let mesh = &report.mesh;
    let controller = &report.controller;
    let ready = if mesh.ready {
        paint("every service answers", Mark::Good)
    } else {
        paint("not every service answers", Mark::Doubtful)
    };
    let controller = if controller.away {
        let text = format!(
            "joined as node {}; the controller at {} does not answer; traffic goes on as last known",
            mesh.node, controller.address
        );
        paint(&text, Mark::Bad)
    } else if !mesh.node.is_empty() {
        format!(
            "joined as node {}; the controller is at {}",
            mesh.node, controller.address
        )
    } else if controller.ready {
        format!(
            "controller {} ({} objects, {} proxies connected)",
            controller.address, controller.objects, controller.proxies_connected
        )
    } else {
        paint(
            "the controller does not answer; traffic goes on as last configured",
            Mark::Bad,
        )
    };
    let mode = serde_json::to_value(mesh.mode).unwrap_or_default();
    let data_plane = match mesh.data_plane {
        DataPlane::Tulle => "",
        DataPlane::Envoy => "Envoy sidecars, ",
        DataPlane::None => "no sidecars, ",
    };
    let dashboard = report.controller.dashboard.as_ref();
    let dashboard =
        dashboard.map(|url| format!("\ndashboard {url} (`tulle dashboard` opens a session)"));
    format!(
        "mesh {} ({} mode, {data_plane}trust domain {}): {ready}\n{controller}{}",
        mesh.name,
        mode.as_str().unwrap_or_default(),
        mesh.trust_domain,
        dashboard.unwrap_or_default()
    )
}

fn services(report: &Report, wide: bool) -> String {
    let mut heads = vec!["SERVICE", "READY", "RESTARTS", "ENDPOINTS", "NOTE"];
    let several = hosts_have_joined(report);
    if several {
        heads.insert(1, "HOST");
    }
    if wide {
        heads.extend(["WORKLOADS", "PIDS", "ADDRESSES"]);
    }
    let mut columns = Columns::new(&heads);
    for service in &report.services {
        // One row for each host that runs workloads of the service.
        let mut hosts: BTreeMap<&str, Vec<&Workload>> = BTreeMap::new();
        for workload in &service.workloads {
            hosts.entry(&workload.host).or_default().push(workload);
        }
        for (host, workloads) in hosts {
            let ready = workloads.iter().filter(|w| w.ready).count();
            let restarts: u32 = workloads.iter().map(|w| w.restarts).sum();
            let notes = workloads.iter().map(|w| w.message.as_str());
            let notes: Vec<&str> = notes.filter(|m| !m.is_empty()).collect();
            let endpoints = workloads.iter().flat_map(|w| w.endpoints.clone());
            let mut cells = vec![
                service.name.clone(),
                format!("{ready}/{}", workloads.len()),
                restarts.to_string(),
                list(&endpoints.collect::<Vec<_>>()),
                notes.join("; "),
            ];
            if several {
                cells.insert(1, shown_host(host));
            }
            if wide {
                let names: Vec<&str> = workloads.iter().map(|w| w.name.as_str()).collect();
                let pids = workloads.iter().filter_map(|w| w.pid);
                cells.push(names.join(" "));
                cells.push(list(&pids.collect::<Vec<_>>()));
                cells.push(list(&service.addresses));
            }
            columns.row(cells);
        }
    }
    columns.render()
}

/// Whether workloads of the report run on a host that joined.
fn hosts_have_joined(report: &Report) -> bool {
    let mut workloads = report.services.iter().flat_map(|s| &s.workloads);
    workloads.any(|w| !w.host.is_empty())
}

fn shown_host(host: &str) -> String {
    match host {
        "" => "this host".to_owned(),
        joined => joined.to_owned(),
    }
}

fn gateways(report: &Report) -> String {
    let mut columns = Columns::new(&["GATEWAY", "READY", "LISTENS", "NOTE"]);
    for gateway in &report.gateways {
        columns.row(vec![
            gateway.name.clone(),
            yes_no(gateway.ready),
            list(&gateway.listeners),
            gateway.message.clone(),
        ]);
    }
    columns.render()
}

fn proxies(report: &Report, wide: bool) -> String {
    let mut heads = vec![
        "PROXY OF",
        "READY",
        "CERTIFICATE",
        "MEMORY",
        "CPU",
        "RESTARTS",
        "NOTE",
    ];
    if wide {
        heads.extend(["PID", "IDENTITY"]);
    }
    let mut columns = Columns::new(&heads);
    for proxy in &report.proxies {
        let mut cells = vec![
            proxy.workload.clone(),
            yes_no(proxy.ready),
            certificate(proxy),
            bytes(proxy.rss_bytes),
            format!("{:.1}s", proxy.cpu_seconds),
            proxy.restarts.to_string(),
            note(
                proxy,
                report.controller.ready && report.mesh.node.is_empty(),
            ),
        ];
        if wide {
            cells.push(proxy.pid.map(|p| p.to_string()).unwrap_or_default());
            cells.push(proxy.identity.clone());
        }
        columns.row(cells);
    }
    columns.render()
}

fn certificate(proxy: &Proxy) -> String {
    left(proxy).map(coarse).unwrap_or_default()
}

/// Whether its certificate has expired.
pub(super) fn has_expired(proxy: &Proxy) -> bool {
    left(proxy).is_some_and(|seconds| seconds <= 0)
}

/// How many seconds its certificate is valid for.
fn left(proxy: &Proxy) -> Option<i64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |d| i64::try_from(d.as_secs()).unwrap_or(i64::MAX));
    Some(proxy.certificate_not_after? - now)
}

fn note(proxy: &Proxy, controller: bool) -> String {
    let mut notes = Vec::new();
    if let Some(why) = &proxy.last_nack {
        notes.push(format!("refused its configuration: {why}"));
    }
    if let Some(why) = &proxy.faults {
        notes.push(format!("not all of its configuration is in force: {why}"));
    }
    if controller && !proxy.connected {
        notes.push("not connected to the controller".into());
    }
    if let (true, Some(exit)) = (proxy.restarts > 0, &proxy.last_exit) {
        notes.push(format!("last ended with {exit}"));
    }
    notes.join("; ")
}

fn unreached(report: &Report) -> String {
    let mut columns = Columns::new(&["SOURCE", "SERVICE NOT REACHED", "REASON", "REQUESTS"]);
    for lost in &report.unreached {
        columns.row(vec![
            lost.source.clone(),
            lost.destination_service.clone(),
            lost.reason.clone(),
            lost.requests.to_string(),
        ]);
    }
    columns.render()
}

fn yes_no(value: bool) -> String {
    if value {
        paint("yes", Mark::Good)
    } else {
        paint("no", Mark::Bad)
    }
}

fn list<T: ToString>(items: &[T]) -> String {
    let items: Vec<String> = items.iter().map(ToString::to_string).collect();
    items.join(" ")
}

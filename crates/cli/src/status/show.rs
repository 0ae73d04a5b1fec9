//! A [`Report`] for people.

use super::report::{Proxy, Report, Workload};
use crate::args::output::Format;
use crate::data_plane::DataPlane;
use crate::metrics::{EGRESS, Edge};
use crate::output::{Columns, Mark, bytes, coarse, is_terminal, paint, terminal_size, visible};
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

/// Returns the table of edges; none if nobody talked.
pub(crate) fn edges_table(edges: &[Edge], wide: bool) -> Option<String> {
    let table = edges_columns(edges, wide, "")?;
    let widest = table.lines().map(visible).max().unwrap_or(0);
    let short = common(edges).filter(|_| is_terminal() && widest > terminal_size().0);
    let Some(common) = short else {
        return Some(table);
    };
    let table = edges_columns(edges, wide, &common)?;
    Some(format!("identities, each below {common}\n{table}"))
}

/// Returns the beginning that all identities share, up to the name; none if they share none.
fn common(edges: &[Edge]) -> Option<String> {
    let ids = edges.iter().flat_map(|e| [&e.source, &e.destination]);
    let mut starts = ids
        .filter(|id| !id.is_empty())
        .map(|id| id.rsplit_once('/').map(|(start, _)| start));
    let first = starts.next()??;
    starts
        .all(|start| start == Some(first))
        .then(|| format!("{first}/"))
}

fn edges_columns(edges: &[Edge], wide: bool, common: &str) -> Option<String> {
    let below = |id: &str| id.strip_prefix(common).unwrap_or(id).to_owned();
    let mut heads = vec![
        "SOURCE",
        "DESTINATION",
        "SECURITY",
        "REQUESTS",
        "SUCCESS",
        "P50",
        "P99",
    ];
    // A denial must not hide in a column that nobody asked for.
    let denied = wide || edges.iter().any(|e| e.denied > 0);
    if denied {
        heads.insert(4, "DENIED");
    }
    if wide {
        heads.extend(["SERVICE", "CONNECTIONS"]);
    }
    let mut columns = Columns::new(&heads);
    for edge in edges {
        let ms = |v: Option<f64>| v.map(|v| format!("{v:.1} ms")).unwrap_or_default();
        let source = if edge.source.is_empty() {
            "outside the mesh"
        } else {
            &edge.source
        };
        let mut cells = vec![
            below(source),
            destination(edge, below),
            security(&edge.security),
            edge.requests.max(edge.connections).to_string(),
            edge.success_rate
                .map(|r| format!("{:.1}%", r * 100.0))
                .unwrap_or_default(),
            ms(edge.p50_ms),
            ms(edge.p99_ms),
        ];
        if denied {
            let count = match edge.denied {
                0 => "0".to_owned(),
                count => paint(&count.to_string(), Mark::Bad),
            };
            cells.insert(4, count);
        }
        if wide {
            cells.push(edge.destination_service.clone());
            cells.push(edge.connections.to_string());
        }
        columns.row(cells);
    }
    (!columns.is_empty()).then(|| columns.render())
}

/// The called side: an identity, or what was named of a server outside the mesh.
fn destination(edge: &Edge, below: impl Fn(&str) -> String) -> String {
    match (&*edge.security, &*edge.destination_service) {
        (EGRESS, "") => "outside the mesh".to_owned(),
        (EGRESS, rule) => format!("outside, by {rule}"),
        (_, service) if edge.destination.is_empty() => service.to_owned(),
        _ => below(&edge.destination),
    }
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

/// Whether every hop within the mesh was mutual TLS between known identities, in words. Plaintext
/// that was refused went nowhere, and no server outside has an identity of the mesh.
pub(crate) fn verdict(edges: &[Edge]) -> (bool, String) {
    let proven =
        |e: &&Edge| e.security == "mutual_tls" && !e.source.is_empty() && !e.destination.is_empty();
    let refused = |e: &&Edge| e.security != "mutual_tls" && e.denied == e.requests + e.connections;
    let within = |e: &&Edge| e.security != EGRESS && !refused(e);
    let edges: Vec<&Edge> = edges.iter().filter(within).collect();
    let good = edges.iter().copied().filter(proven).count();
    let hops = |n: usize| format!("{n} {}", if n == 1 { "hop" } else { "hops" });
    if good == edges.len() {
        let text = format!(
            "√ {}, each mutual TLS between the two identities shown",
            hops(good)
        );
        return (true, paint(&text, Mark::Good));
    }
    let bad = edges.len() - good;
    let text = format!("× {} of {} not mutual TLS", hops(bad), edges.len());
    (false, paint(&text, Mark::Bad))
}

fn security(name: &str) -> String {
    let mark = match name {
        "mutual_tls" => Mark::Good,
        EGRESS => Mark::Doubtful,
        _ => Mark::Bad,
    };
    paint(name, mark)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn edge(source: &str, security: &str) -> Edge {
        Edge {
            source: source.into(),
            destination: "spiffe://t/svc/b".into(),
            source_workload: String::new(),
            destination_service: "b".into(),
            security: security.into(),
            requests: 3,
            connections: 0,
            denied: 0,
            success_rate: Some(1.0),
            p50_ms: Some(0.25),
            p99_ms: None,
        }
    }

    #[test]
    fn one_plaintext_hop_spoils_the_verdict() {
        let good = edge("spiffe://t/svc/a", "mutual_tls");
        assert!(verdict(std::slice::from_ref(&good)).0);
        assert!(!verdict(&[good.clone(), edge("spiffe://t/svc/a", "plaintext")]).0);
        assert!(!verdict(&[good.clone(), edge("", "mutual_tls")]).0);
        let refused = Edge {
            denied: 3,
            ..edge("", "plaintext")
        };
        assert!(verdict(&[good.clone(), refused]).0, "it went nowhere");
        let outside = Edge {
            destination: String::new(),
            destination_service: "Egress/books".into(),
            ..edge("spiffe://t/svc/a", EGRESS)
        };
        let (proven, text) = verdict(&[good, outside.clone()]);
        assert!(proven && text.contains("1 hop,"), "{text}");
        let table = edges_table(&[outside], false).unwrap();
        assert!(
            table.contains("outside, by Egress/books  egress"),
            "{table}"
        );
    }

    #[test]
    fn only_what_all_identities_share_is_left_out() {
        let same = edge("spiffe://t/svc/a", "mutual_tls");
        assert_eq!(
            common(std::slice::from_ref(&same)).as_deref(),
            Some("spiffe://t/svc/")
        );
        assert_eq!(
            common(&[same, edge("spiffe://u/svc/a", "mutual_tls")]),
            None
        );
        assert_eq!(common(&[]), None);
    }

    #[test]
    fn denials_are_shown_without_being_asked_for() {
        let mut denied = edge("spiffe://t/svc/a", "mutual_tls");
        let quiet = edges_table(std::slice::from_ref(&denied), false).unwrap();
        assert!(!quiet.contains("DENIED"), "{quiet}");
        denied.denied = 2;
        let table = edges_table(&[denied], false).unwrap();
        assert!(table.contains("REQUESTS  DENIED  SUCCESS"), "{table}");
        assert!(table.contains("mutual_tls  3         2       "), "{table}");
    }

    #[test]
    fn edges_show_both_identities() {
        let table = edges_table(&[edge("spiffe://t/svc/a", "mutual_tls")], false).unwrap();
        for text in [
            "spiffe://t/svc/a",
            "spiffe://t/svc/b",
            "mutual_tls",
            "100.0%",
            "0.2 ms",
        ] {
            assert!(table.contains(text), "{text} in {table}");
        }
        assert_eq!(edges_table(&[], true), None);
        let short = edges_columns(
            &[edge("spiffe://t/svc/a", "mutual_tls")],
            false,
            "spiffe://t/svc/",
        );
        assert!(short.unwrap().contains("\na       b            mutual_tls"));
    }
}

//! Edges as a table, who talked to whom, and the verdict whether each hop was mutual TLS.

use crate::metrics::{EGRESS, Edge};
use crate::output::{Columns, Mark, is_terminal, paint, terminal_size, visible};

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

//! The traffic of a mesh, wherever it runs, as its proxies count and report it: `tulle stat`, `edges`, `tap` and
//! `top`.

mod edges;
mod outside;
mod stat;
mod tap;
mod watch;

use edges::edges;
pub(crate) use edges::{seen as seen_edges, table as edges_table};
pub(crate) use outside::{Outside, Peer, seen as seen_outside, tables as outside_tables};
use stat::stat;
use tap::{tap, top};
pub(crate) use watch::Watch;

use crate::args::Command;
use crate::failure::Result;
use crate::proxies::{self, ProxySource};

/// Runs a command that shows what proxies say. Where they are makes no difference.
pub(crate) async fn run<S: ProxySource>(source: &S, command: &Command) -> Result<()> {
    match command {
        Command::Stat(args) => stat(source, args).await,
        Command::Edges(args) => edges(source, args).await,
        Command::Tap(args) => tap(source, args).await,
        Command::Top(args) => top(source, args).await,
        Command::Proxy(command) => proxies::run(source, command).await,
        Command::Metrics(args) => match args.serve {
            Some(address) => proxies::serve_page(source, &args.within, address).await,
            None => proxies::page(source, &args.within).await,
        },
        // No other command gets here.
        _ => Ok(()),
    }
}

/// `ns/shop/sa/web`: all identities of a mesh share what is before it.
pub(crate) fn short(identity: &str) -> &str {
    let rest = identity.strip_prefix("spiffe://").unwrap_or(identity);
    rest.split_once('/').map_or(identity, |(_, path)| path)
}

fn percent(share: f64) -> String {
    // Rounded down, so that 100% means none failed.
    format!("{}%", (share * 10_000.0).floor() / 100.0)
}

fn milliseconds(ms: f64) -> String {
    format!("{ms:.1}ms")
}

fn rate(per_second: f64) -> String {
    format!("{per_second:.1}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short_and_do_not_flatter() {
        assert_eq!(percent(0.999_99), "99.99%");
        assert_eq!(percent(1.0), "100%");
        assert_eq!(short("spiffe://cluster.local/ns/a/sa/b"), "ns/a/sa/b");
    }
}

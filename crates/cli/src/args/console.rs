//! The console: where it answers, and `tulle dashboard`, which opens it.

use super::output::Output;
use clap::Args;
use std::fmt;
use std::net::SocketAddr;

/// Where the console answers, if the operator says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConsoleChoice {
    /// Nowhere.
    Off,
    /// At this loopback address.
    At(SocketAddr),
}

impl fmt::Display for ConsoleChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::At(address) => address.fmt(f),
        }
    }
}

/// Parses an address of the console. It speaks no TLS, so nobody but this host may reach it.
pub(super) fn console(text: &str) -> Result<ConsoleChoice, String> {
    if text == "off" {
        return Ok(ConsoleChoice::Off);
    }
    let address: SocketAddr = text.parse().map_err(|_| {
        "expected off, or an address with a port such as 127.0.0.1:15012".to_owned()
    })?;
    match address.ip().is_loopback() {
        true => Ok(ConsoleChoice::At(address)),
        false => Err(
            "the console answers on a loopback address only; reach it from elsewhere with `ssh -L 15012:127.0.0.1:15012`"
                .into(),
        ),
    }
}

/// `tulle dashboard`
#[derive(Debug, Clone, Args)]
pub(crate) struct Dashboard {
    /// Local port on 127.0.0.1 (default: a free one)
    #[arg(
        long,
        value_name = "PORT",
        default_value_t = 0,
        hide_default_value = true
    )]
    pub(crate) port: u16,
    /// Another dashboard of a cluster: the Service `grafana` or `prometheus` of any namespace, or
    /// NAMESPACE/SERVICE:PORT (default: the mesh's own)
    #[arg(value_name = "WHAT")]
    pub(crate) what: Option<String>,
    /// Print the URL and open no browser
    #[arg(long)]
    pub(crate) no_open: bool,
    /// Print nothing but the URL, for a program; it opens one session, within a minute
    #[arg(long, conflicts_with = "what")]
    pub(crate) print_url: bool,
    #[command(flatten)]
    pub(crate) format: Output,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_console_is_off_or_on_loopback() {
        assert_eq!(console("off"), Ok(ConsoleChoice::Off));
        for text in ["127.0.0.1:15012", "[::1]:0"] {
            assert_eq!(console(text).unwrap().to_string(), text);
        }
        for text in ["", "on", "15012", "0.0.0.0:15012", "192.0.2.1:1", "[::]:1"] {
            assert!(console(text).is_err(), "{text}");
        }
    }
}

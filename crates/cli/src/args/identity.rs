//! Command lines of identities: `tulle token`, `ca` and `identity`.

use super::duration::{duration, whole_seconds};
use super::output::Output;
use crate::examples;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

/// `tulle token`
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Token {
    /// Make a token for one identity, such as node/edge-2
    #[command(after_help = examples::TOKEN)]
    Create {
        /// `node/NAME` for a host, `svc/NAME` for a proxy that is started by hand
        identity: String,
        /// Lifetime of the token; at least 1s
        #[arg(long, value_name = "TIME", value_parser = whole_seconds, default_value = "1h")]
        ttl: Duration,
        #[command(flatten)]
        format: Output,
    },
}

/// `tulle ca`
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Ca {
    /// Show the trusted roots and the progress of a rotation
    #[command(after_help = examples::CA)]
    Show {
        #[command(flatten)]
        format: Output,
    },
    /// Replace the root without restarts and without lost requests
    #[command(after_help = examples::CA)]
    Rotate {
        /// Minimum time of each step (default: 10s; 2m on Kubernetes)
        #[arg(long, value_name = "TIME", value_parser = duration)]
        hold: Option<Duration>,
        /// Return when the rotation has begun
        #[arg(long)]
        no_wait: bool,
        #[command(flatten)]
        format: Output,
    },
}

/// `tulle identity`
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Identity {
    /// Revoke an identity, one certificate or all certificates of a revocation list, at once and
    /// everywhere
    #[command(after_help = examples::IDENTITY)]
    Revoke {
        #[command(flatten)]
        what: Revoked,
        /// Certificate revocation list (PEM) from the issuer of workloads' certificates
        #[arg(long, value_name = "FILE", group = "what")]
        crl: Option<PathBuf>,
        /// Reason to show in the list
        #[arg(long, value_name = "TEXT", default_value = "")]
        reason: String,
        #[command(flatten)]
        format: Output,
    },
    /// Accept a revoked identity or certificate again
    #[command(after_help = examples::IDENTITY)]
    Allow {
        #[command(flatten)]
        what: Revoked,
        /// Issuer of a revocation list, as `tulle identity list` prints it
        #[arg(long, value_name = "HEX", group = "what")]
        issuer: Option<String>,
        #[command(flatten)]
        format: Output,
    },
    /// Show revoked identities and certificates
    #[command(after_help = examples::IDENTITY)]
    List {
        #[command(flatten)]
        format: Output,
    },
}

/// An identity or a certificate.
#[derive(Debug, Clone, Args)]
#[group(id = "what", required = true, multiple = false)]
pub(crate) struct Revoked {
    /// `svc/NAME`, `node/NAME`, `ns/NAMESPACE/sa/NAME`, or a whole SPIFFE id
    pub(crate) identity: Option<String>,
    /// The serial number of one certificate, in hex
    #[arg(long, value_name = "HEX")]
    pub(crate) serial: Option<String>,
}

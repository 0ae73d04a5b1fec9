//! Command lines of stored objects: `tulle apply`, `get`, `delete` and `secret`.

use super::output::{Format, ObjectFormat, Output};
use crate::examples;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Manifests, named or by `-f`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Files {
    /// Manifests; `-` is standard input
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// A manifest (may be repeated)
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    pub(crate) filename: Vec<PathBuf>,
}

impl Files {
    /// Both ways of naming them.
    pub(crate) fn all(&self) -> Vec<PathBuf> {
        self.files.iter().chain(&self.filename).cloned().collect()
    }
}

/// `tulle apply`
#[derive(Debug, Clone, Args)]
pub(crate) struct Apply {
    #[command(flatten)]
    pub(crate) files: Files,
    /// Change nothing; print findings, with exit code 79 if there are any
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Output format for the findings of `--dry-run`
    #[arg(
        short,
        long = "output",
        value_name = "FORMAT",
        value_enum,
        default_value = "table",
        requires = "dry_run"
    )]
    pub(crate) output: Format,
}

/// `tulle get`
#[derive(Debug, Clone, Args)]
pub(crate) struct Get {
    /// Kind, such as workload (default: all)
    pub(crate) kind: Option<String>,
    /// Name (default: all of the kind)
    #[arg(value_name = "NAME")]
    pub(crate) object: Option<String>,
    #[command(flatten)]
    pub(crate) format: Output,
}

/// `tulle delete`
#[derive(Debug, Clone, Args)]
pub(crate) struct Delete {
    /// Kind, such as workload
    #[arg(required_unless_present = "filename")]
    pub(crate) kind: Option<String>,
    /// Names
    #[arg(value_name = "NAME")]
    pub(crate) objects: Vec<String>,
    /// Remove the objects in this manifest (may be repeated)
    #[arg(
        short = 'f',
        long = "filename",
        value_name = "FILE",
        conflicts_with = "kind"
    )]
    pub(crate) filename: Vec<PathBuf>,
}

/// `tulle secret`
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Secret {
    /// Store a certificate and its key as a Secret for listeners
    #[command(after_help = examples::SECRET)]
    Tls {
        /// Name of the Secret, as `certificateRefs` of a listener has it
        #[arg(value_name = "NAME")]
        secret: String,
        /// File with the certificates in PEM, the server's own first
        #[arg(long, value_name = "FILE")]
        cert: PathBuf,
        /// File with the private key in PEM, not encrypted
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// Print the manifest, with the key in it, and store nothing
        #[arg(short, long, value_name = "FORMAT", value_enum)]
        output: Option<ObjectFormat>,
    },
}

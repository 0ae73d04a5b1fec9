//! `tulle plugin` and its options.

use super::output::Output;
use crate::examples;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `tulle plugin`
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Plugin {
    /// Run a plugin on one request, without a mesh, and show what it does
    #[command(after_help = examples::PLUGIN_TEST)]
    Test(PluginTrial),
    /// Run a plugin on one request again and again, and show what one run takes
    #[command(after_help = examples::PLUGIN_BENCH)]
    Bench(PluginBench),
}

/// `tulle plugin bench`
#[derive(Debug, Clone, Args)]
pub(crate) struct PluginBench {
    #[command(flatten)]
    pub(crate) trial: PluginTrial,
    /// Number of runs, after a first one
    #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
    pub(crate) times: u32,
}

/// `tulle plugin test`
#[derive(Debug, Clone, Args)]
pub(crate) struct PluginTrial {
    /// A manifest with a Plugin, or its module alone (.js)
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Choose one of several Plugins of the manifest
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Configuration of a module, as JSON
    #[arg(long, value_name = "JSON")]
    pub(crate) config: Option<String>,
    /// Method of the request
    #[arg(short = 'X', long, default_value = "GET")]
    pub(crate) method: String,
    /// Path of the request, with its query
    #[arg(long, default_value = "/")]
    pub(crate) path: String,
    /// Header of the request
    #[arg(short = 'H', long, value_name = "NAME: VALUE")]
    pub(crate) header: Vec<String>,
    /// Body of the request
    #[arg(short = 'd', long, value_name = "TEXT")]
    pub(crate) body: Option<String>,
    /// SPIFFE id of the caller
    #[arg(long, value_name = "ID", default_value = "")]
    pub(crate) source: String,
    /// Backend of the route's rule, for a plugin that chooses one
    #[arg(long, value_name = "SERVICE:PORT")]
    pub(crate) backend: Vec<String>,
    /// Answer of a service to `mesh.fetch`
    #[arg(long, value_name = "TARGET=BODY")]
    pub(crate) fetch: Vec<String>,
    /// Status of the application's response
    #[arg(long, default_value_t = 200)]
    pub(crate) status: u16,
    /// Header of the application's response
    #[arg(long, value_name = "NAME: VALUE")]
    pub(crate) response_header: Vec<String>,
    /// Body of the application's response
    #[arg(long, value_name = "TEXT")]
    pub(crate) response_body: Option<String>,
    #[command(flatten)]
    pub(crate) output: Output,
}

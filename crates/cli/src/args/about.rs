//! Command lines about `tulle` itself: its version, documentation and completions.

use super::output::Output;
use clap::Args;

/// `tulle version`
#[derive(Debug, Clone, Args)]
pub(crate) struct Version {
    #[command(flatten)]
    pub(crate) format: Output,
}

/// `tulle docs`
#[derive(Debug, Clone, Args)]
pub(crate) struct Docs {
    /// Page, by its name, such as reasons or features/access (default: the first one)
    pub(crate) page: Option<String>,
    /// Language (default: Chinese if LANG says so, else English)
    #[arg(long)]
    pub(crate) language: Option<Language>,
    /// Print nothing but the URL, and open no browser
    #[arg(long)]
    pub(crate) print_url: bool,
}

/// Languages of the documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Language {
    En,
    Zh,
}

/// Shells of Linux; every other one would be in the program, too.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Fish,
    Zsh,
}

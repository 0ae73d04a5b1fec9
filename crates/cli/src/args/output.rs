//! Formats in which commands print.

use clap::{Args, ValueEnum};

/// How to print. The variants have no doc comments: those would make every help longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Format {
    #[default]
    Table,
    Wide,
    Json,
    Yaml,
}

/// `-o`
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Output {
    /// Output format; `wide` is a table with every column
    #[arg(
        short,
        long = "output",
        value_name = "FORMAT",
        value_enum,
        default_value = "table"
    )]
    pub(crate) output: Format,
}

/// Output formats for objects of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ObjectFormat {
    /// Documents of YAML
    Yaml,
    /// A `List` of JSON
    Json,
}

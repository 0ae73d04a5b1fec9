//! `tulle status`: services, proxies, and who talks to whom.
//!
//! Three sources: the supervisor's file (processes), each proxy's metrics (traffic) and the
//! controller (certificates, accepted configuration). A source that is silent leaves its fields
//! empty; it does not hide the others.

mod report;
mod show;

pub(crate) use report::{Proxy, Report, collect};
pub(crate) use show::{edges_table, render, verdict};

use crate::args::Status;
use crate::failure::Result;
use crate::output::{self, line};
use crate::paths::Paths;
use std::time::Duration;

/// Prints once, or again every second.
pub(crate) async fn status(paths: &Paths, args: &Status) -> Result<()> {
    let format = args.format.output;
    loop {
        let report = collect(paths).await?;
        if args.watch && output::is_terminal() {
            line("\x1b[2J\x1b[H");
        }
        if !output::structured(&report, format)? {
            line(&render(&report, format));
        }
        if !args.watch {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

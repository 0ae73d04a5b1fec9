//! `tulle status`: services, proxies, and who talks to whom.
//!
//! Three sources: the supervisor's file (processes), each proxy's metrics (traffic) and the
//! controller (certificates, accepted configuration). A source that is silent leaves its fields
//! empty; it does not hide the others.

mod away;
mod edges;
mod narrow;
mod report;
mod show;

pub(crate) use edges::{edges_table, verdict};
pub(crate) use report::{Proxy, Report, Service, Workload, collect};
use show::nothing_wrong;
pub(crate) use show::{live, render};

use crate::args::diagnosis::Status;
use crate::args::output::Format;
use crate::failure::Result;
use crate::output::{self, Screen, line};
use crate::paths::Paths;
use std::time::Duration;

/// Prints once, or again every second.
pub(crate) async fn status(paths: &Paths, args: &Status) -> Result<()> {
    let format = args.format.output;
    let mut screen = Screen::default();
    loop {
        let mut report = collect(paths).await?;
        report.only(&args.names)?;
        if args.problems {
            report.only_problems();
        }
        if args.watch && format == Format::Table && output::is_terminal() {
            let (lines, foot) = live(&report);
            screen.draw(&lines, foot);
        } else if !output::structured(&report, format)? {
            let nothing = args.problems && report.has_no_rows();
            line(&match nothing {
                true => nothing_wrong(&report),
                false => render(&report, format),
            });
        }
        if !args.watch {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

//! `tulle status`: services, proxies, and who talks to whom.
//!
//! Three sources: the supervisor's file (processes), each proxy's metrics (traffic) and the
//! controller (certificates, accepted configuration). A source that is silent leaves its fields
//! empty; it does not hide the others.

mod report;
mod show;

pub(crate) use report::{Proxy, Report, collect};
pub(crate) use show::{edges_table, live, render, verdict};

use crate::args::{Format, Status};
use crate::failure::Result;
use crate::output::{self, Screen, line};
use crate::paths::Paths;
use std::time::Duration;

/// Prints once, or again every second.
pub(crate) async fn status(paths: &Paths, args: &Status) -> Result<()> {
    let format = args.format.output;
    let mut screen = Screen::default();
    loop {
        let report = collect(paths).await?;
        if args.watch && format == Format::Table && output::is_terminal() {
            let (lines, foot) = live(&report);
            screen.draw(&lines, foot);
        } else if !output::structured(&report, format)? {
            line(&render(&report, format));
        }
        if !args.watch {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

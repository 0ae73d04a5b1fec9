//! `tulle service status`: what is installed, and how the init system says it is doing.

use super::init::Place;
use super::unit::{Author, joins};
use crate::args::output::Output;
use crate::args::service::{Init, Installed};
use crate::failure::Result;
use crate::join;
use crate::output::{self, coarse, line, one_line};
use crate::paths::Paths;
use crate::service_record::ServiceRecord;
use serde::Serialize;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

/// The result of `status`.
#[derive(Serialize)]
struct Report {
    service: String,
    init: &'static str,
    file: PathBuf,
    installed: bool,
    /// Somebody changed the file, or wrote it.
    changed: bool,
    enabled: bool,
    active: bool,
    state: String,
    since: Option<i64>,
    pid: Option<i32>,
    restarts: Option<u32>,
    message: String,
    manifests: Vec<PathBuf>,
    /// Where the controller is, if that is another host.
    controller: Option<String>,
}

/// Shows it; the exit code says whether the service is active.
pub(crate) fn status(paths: &Paths, installed: &Installed, format: Output) -> Result<ExitCode> {
    let place = Place::find(&paths.name, installed)?;
    let text = fs::read_to_string(place.file()).ok();
    let packaged = place.packaged();
    let author = text.as_deref().map(Author::new);
    let author = author.or(packaged.is_some().then_some(Author::Package));
    let activity = place.activity();
    let here = installed.root.is_none();
    let of_join = text.as_deref().is_some_and(joins);
    let joined = join::service::joined(paths).filter(|_| here && of_join);
    let (controller, joined) = joined.unzip();
    let record = ServiceRecord::read(paths).filter(|_| here);
    let report = Report {
        init: match place.init {
            Init::Systemd => "systemd",
            Init::Openrc => "openrc",
        },
        file: packaged.unwrap_or_else(|| place.file()),
        installed: author.is_some(),
        changed: [Some(Author::Changed), Some(Author::SomebodyElse)].contains(&author),
        enabled: place.is_enabled(),
        active: ["active", "started"].contains(&activity.state.as_str()),
        state: activity.state,
        since: activity.since,
        pid: activity.pid,
        restarts: activity.restarts,
        message: activity.message,
        manifests: joined.or(record.map(|r| r.files)).unwrap_or_default(),
        controller,
        service: place.name,
    };
    if !output::structured(&report, format.output)? {
        show(&report, author);
    }
    Ok(ExitCode::from(u8::from(!report.active)))
}

fn show(report: &Report, author: Option<Author>) {
    let written = match author {
        None => "not installed",
        Some(Author::Tulle) => "as installed",
        Some(Author::Changed) => "changed since it was installed",
        Some(Author::SomebodyElse) => "written by somebody else",
        Some(Author::Package) => "of the package",
    };
    let enabled = match report.enabled {
        true => "starts at boot",
        false => "does not start at boot",
    };
    let state = match report.state.as_str() {
        "" => "not known: its init system does not run here".to_owned(),
        state => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let now = i64::try_from(now.unwrap_or_default().as_secs()).unwrap_or(i64::MAX);
            let since = report
                .since
                .map(|s| format!(" for {}", coarse((now - s).max(0))));
            let pid = report.pid.map(|pid| format!(", process {pid}"));
            let restarts = report.restarts.filter(|n| *n > 0);
            let restarts = restarts.map(|n| format!(", restarted {n} times"));
            [Some(state.to_owned()), since, pid, restarts]
                .into_iter()
                .flatten()
                .collect()
        }
    };
    let files = report.manifests.iter().map(|f| f.display().to_string());
    for (name, value) in [
        ("service", report.service.clone()),
        ("file", format!("{} ({written})", report.file.display())),
        ("enabled", enabled.to_owned()),
        ("state", state),
        ("message", one_line(&report.message)),
        ("manifests", files.collect::<Vec<_>>().join(" ")),
        ("controller", report.controller.clone().unwrap_or_default()),
    ] {
        if !value.is_empty() {
            line(&format!("{name:<10} {value}"));
        }
    }
}

//! Writes where Prometheus scrapes the proxies of this host: one file in the form of its `file_sd`,
//! replaced whenever a proxy comes, goes or moves.

use super::state::{Proxy, RunState};
use crate::failure::{OrFail, Result};
use crate::new_file::NewFile;
use crate::paths::{Paths, make_dir};
use serde::Serialize;
use std::cell::RefCell;
use std::fs::Permissions;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;

/// One proxy, as Prometheus reads it.
#[derive(Debug, Serialize)]
struct Target<'a> {
    targets: [SocketAddr; 1],
    labels: Labels<'a>,
}

#[derive(Debug, Serialize)]
struct Labels<'a> {
    mesh: &'a str,
    /// Name of the joined host; empty: the controller's.
    host: &'a str,
    /// The workload, or `gateway.<name>`.
    proxy: String,
    /// The workload's service; empty for a gateway.
    service: &'a str,
}

/// Writes the file when it has changed.
#[derive(Debug, Default)]
pub(crate) struct Targets {
    written: RefCell<Option<String>>,
}

impl Targets {
    /// Replaces the file if it says something else.
    pub(crate) fn write(&self, state: &RunState, paths: &Paths) -> Result<()> {
        let file = paths.metrics_targets();
        let what = || format!("cannot write {}", file.display());
        let text = serde_json::to_string_pretty(&targets(state)).or_fail(what)?;
        if self.written.borrow().as_ref() == Some(&text) {
            return Ok(());
        }
        // Prometheus is another user, and watches the directory.
        if let Some(directory) = file.parent() {
            make_dir(directory, 0o755)?;
        }
        let mut new = NewFile::create(&file).or_fail(what)?;
        new.out.write_all(text.as_bytes()).or_fail(what)?;
        let for_all = Permissions::from_mode(0o644);
        new.out.set_permissions(for_all).or_fail(what)?;
        new.replace().or_fail(what)?;
        *self.written.borrow_mut() = Some(text);
        Ok(())
    }
}

fn targets(state: &RunState) -> Vec<Target<'_>> {
    let target = |proxy: &Proxy, name: String, service| {
        Some(Target {
            targets: [proxy.metrics?],
            labels: Labels {
                mesh: &state.mesh,
                host: &state.node,
                proxy: name,
                service,
            },
        })
    };
    let workloads = state.workloads.iter().filter_map(|w| {
        let sidecar = w.sidecar.as_ref()?;
        target(sidecar, w.name.clone(), w.service.as_str())
    });
    let gateways = state
        .gateways
        .iter()
        .filter_map(|g| target(&g.proxy, format!("gateway.{}", g.name), ""));
    workloads.chain(gateways).collect()
}

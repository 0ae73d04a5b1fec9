//! The command for each start of a proxy: its configuration in a file, its user, its limits, and what it inherits.

use super::Maker;
use super::files::write_for;
use crate::failure::{Failure, OrFail, Result};
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::UnixStream;
use tulle_model::bootstrap::Bootstrap;
use tulle_model::to_yaml;
use tulle_redirect::{Cgroup, LaunchSpec, ProcessLimits};

impl Maker {
    pub(super) async fn make(&self) -> Result<tokio::process::Command> {
        let token = self.directory.join("token");
        if !self.moves.take() && !self.starts_alone()? {
            self.enrol(&token).await?;
        }
        let mut bootstrap = self.bootstrap(token)?;
        let own = match &self.description.passes_listeners {
            Some(listening) => Some(listening.renew(&mut bootstrap)?),
            None => self.certified_by_host(&mut bootstrap)?,
        };
        let services = self.told_by_host(&mut bootstrap)?;
        let passed = own.into_iter().chain(services).collect();
        let file = self.directory.join("bootstrap.yaml");
        let text = to_yaml(&bootstrap).or_fail(|| {
            format!(
                "cannot write the configuration of {}",
                self.description.name
            )
        })?;
        self.write(&file, text.as_bytes())?;
        // A socket left by a killed proxy would keep its successor from binding.
        let _ = fs::remove_file(self.context.paths.admin_socket(&self.description.name));
        let launch = LaunchSpec {
            namespace: self.description.namespace.clone(),
            cgroup: self.cgroup(),
            user: self.user.map(|u| (u, u)),
            ..LaunchSpec::default()
        };
        let log = self
            .context
            .paths
            .log(&format!("{}.sidecar", self.description.name));
        // A gateway is Tulle's own proxy in any data plane.
        let envoy = self.context.envoy.as_ref();
        let envoy = envoy.filter(|_| self.description.workload.is_some());
        let program = envoy.map_or(&self.context.proxy, |e| &e.agent);
        let mut command = self
            .context
            .own_command(&launch, program, &log, passed)
            .map_err(Failure::new)?;
        if let Some(programs) = envoy {
            command.arg("--envoy").arg(&programs.envoy);
        }
        let memory = self
            .memory
            .try_clone()
            .or_fail(|| "cannot pass on a memory file".to_owned())?;
        command
            .arg("--config")
            .arg(&file)
            .current_dir(&self.directory)
            .stdin(std::process::Stdio::from(memory));
        Ok(command)
    }

    /// Gives a proxy of a joined host a socket over which this supervisor tells it of services.
    fn told_by_host(&self, bootstrap: &mut Bootstrap) -> Result<Option<OwnedFd>> {
        // The agent of an Envoy asks the controller.
        let (Some(services), None) = (&self.context.host_services, &self.context.envoy) else {
            return Ok(None);
        };
        let what = || "cannot make the socket over which a proxy is told of services".to_owned();
        let (ours, theirs) = UnixStream::pair().or_fail(what)?;
        let theirs = OwnedFd::from(theirs.into_std().or_fail(what)?);
        if let Some(control) = &mut bootstrap.control {
            control.host_services = Some(u16::try_from(theirs.as_raw_fd()).or_fail(what)?);
        }
        // It ends with the process that has the other end.
        tokio::spawn(Arc::clone(services).serve(bootstrap.identity.clone(), ours));
        Ok(Some(theirs))
    }

    /// Where the next process of a sidecar takes its listeners over. A gateway's come from the supervisor, and the agent of an Envoy has
    /// none.
    pub(super) fn heir_socket(&self) -> Option<PathBuf> {
        let has_heirs = self.description.passes_listeners.is_none() && self.context.envoy.is_none();
        has_heirs.then(|| self.directory.join("heir.sock"))
    }

    /// The file with the configuration that it had last.
    pub(super) fn snapshot(&self) -> PathBuf {
        self.context.paths.snapshot(&self.description.name)
    }

    /// Directories of the proxy's cgroup, as far as limits are asked for and permitted.
    fn cgroup(&self) -> Vec<PathBuf> {
        let limits = {
            // The controller stores no Mesh whose quantities cannot be read.
            let mesh = self.context.mesh.borrow();
            ProcessLimits {
                cpu_millis: mesh.sidecar_cpu_milli().ok().flatten(),
                memory_bytes: mesh.sidecar_memory_bytes().ok().flatten(),
            }
        };
        if limits.is_none() {
            return Vec::new();
        }
        match Cgroup::create(&self.context.paths.name, &self.description.name, &limits) {
            Ok(group) => group.directories().to_vec(),
            Err(e) => {
                self.context
                    .warn(format!("the limits of sidecars have no effect: {e}"));
                Vec::new()
            }
        }
    }

    pub(super) fn write(&self, file: &Path, bytes: &[u8]) -> Result<()> {
        write_for(file, bytes, self.user)
    }
}

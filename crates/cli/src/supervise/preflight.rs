//! Checks that this host has the programs, users, directories and addresses that manifests need.
//! `up`, `join`, `apply` and its dry run do so before anything is stored or started.
//!
//! If something goes missing later, the workload's state tells.

use super::gateway::proxy_name;
use super::objects::NODE_LABEL;
use super::state::{Mode, RunState};
use super::{ports, user};
use crate::failure::Result;
use crate::manifests::{Manifests, refuse};
use crate::paths::{LONGEST_SOCKET_PATH, Paths};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use tulle_model::manifest::{Manifest, Object, WorkloadSpec};
use tulle_redirect::find_program;

/// The host that runs the workloads.
pub(crate) struct Host {
    /// The mesh's files.
    paths: Paths,
    /// How workloads are separated; none: not known yet, so addresses are not looked at.
    pub(crate) mode: Option<Mode>,
    /// The `PATH` that applications get.
    pub(crate) path: Option<OsString>,
    /// Objects that the mesh has already. They are not checked again, and their addresses are its own.
    pub(crate) stored: Vec<Object>,
}

impl Host {
    /// This process will be the supervisor.
    pub(crate) fn starting(paths: &Paths, mode: Option<Mode>) -> Self {
        Self {
            paths: paths.clone(),
            mode,
            path: std::env::var_os("PATH"),
            stored: Vec::new(),
        }
    }

    /// A mesh is up: its supervisor's environment counts, not that of this command.
    pub(crate) fn running(paths: &Paths, state: &RunState) -> Self {
        let environ = std::fs::read(format!("/proc/{}/environ", state.supervisor.pid));
        let path = environ.map(|environ| {
            let mut variables = environ.split(|b| *b == 0);
            let path = variables.find_map(|v| v.strip_prefix(b"PATH="));
            path.map(|p| OsString::from_vec(p.to_vec()))
        });
        Self {
            paths: paths.clone(),
            mode: Some(state.mode),
            // One that cannot be read is probably the same.
            path: path.unwrap_or_else(|_| std::env::var_os("PATH")),
            stored: Vec::new(),
        }
    }

    /// Refuses manifests that cannot run here, with everything that is missing.
    pub(crate) fn check(&self, manifests: &Manifests) -> Result<()> {
        let kept: BTreeSet<(String, String)> =
            self.stored.iter().map(|o| (o.id(), o.to_json())).collect();
        let mut errors = Vec::new();
        for object in &manifests.objects {
            if kept.contains(&(object.id(), object.to_json())) {
                continue;
            }
            let mut found = Vec::new();
            match object {
                Object::Workload(workload) => found.extend(self.workload(workload)),
                Object::Gateway(gateway) => {
                    found.extend(self.name(&proxy_name(&gateway.metadata.name)));
                }
                _ => {}
            }
            if let Some(mode) = self.mode {
                let free = ports::check(object, mode, &self.stored);
                found.extend(free.err().map(|f| f.to_string()));
            }
            let place = manifests.place(object);
            errors.extend(
                found
                    .iter()
                    .map(|why| format!("{place}{}: {why}", object.id())),
            );
        }
        match errors.is_empty() {
            true => Ok(()),
            false => Err(refuse(&errors)),
        }
    }

    fn workload(&self, workload: &Manifest<WorkloadSpec>) -> Vec<String> {
        let elsewhere = workload.metadata.labels.contains_key(NODE_LABEL);
        let spec = &workload.spec;
        if elsewhere || spec.command.is_empty() {
            return Vec::new();
        }
        let mut errors = Vec::from_iter(self.name(&workload.metadata.name));
        if let Some(asked) = &spec.user {
            let known = user::named(&workload.metadata.name, asked);
            errors.extend(known.err().map(|f| format!("spec.user: {f}")));
        }
        let directory = spec.working_directory.as_ref().map(PathBuf::from);
        if let Some(directory) = directory.as_ref().filter(|d| !d.is_dir()) {
            errors.push(format!(
                "spec.workingDirectory: {} does not exist; make it or name another",
                directory.display()
            ));
            return errors;
        }
        let directory = directory.unwrap_or_default();
        let probe = spec.readiness_probe.as_ref().and_then(|p| p.exec.as_ref());
        for (field, command) in [
            ("spec.command", Some(&spec.command)),
            (
                "spec.readinessProbe.exec.command",
                probe.map(|e| &e.command),
            ),
        ] {
            let program = command.and_then(|c| c.first());
            let found = program.map(|p| self.program(p, spec, &directory));
            if let Some(Err(why)) = found {
                errors.push(format!("{field}: {why}"));
            }
        }
        errors
    }

    /// Why no proxy of that name can be asked anything.
    fn name(&self, proxy: &str) -> Option<String> {
        let socket = self.paths.admin_socket(proxy);
        (socket.as_os_str().len() > LONGEST_SOCKET_PATH).then(|| {
            format!(
                "metadata.name: its sidecar's socket would be {}, and a socket's path has at most {LONGEST_SOCKET_PATH} \
                 bytes; choose a shorter name here, or for the mesh with --name or --state",
                socket.display()
            )
        })
    }

    fn program(
        &self,
        program: &str,
        spec: &WorkloadSpec,
        directory: &Path,
    ) -> std::result::Result<PathBuf, tulle_redirect::NoProgram> {
        let own = spec.env.iter().rfind(|v| v.name == "PATH");
        let own = own.map(|v| OsStr::new(&v.value));
        find_program(OsStr::new(program), own.or(self.path.as_deref()), directory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::Surroundings;

    #[test]
    fn names_too_long_for_a_sockets_path_are_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let longest = "a".repeat(63);
        let text = format!(
            "apiVersion: tulle.dev/v1alpha1\nkind: Workload\nmetadata: {{name: {longest}}}\nspec:\n  command: [sleep, '9']\n---\n\
             apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: {longest}}}\nspec:\n  gatewayClassName: tulle\n  listeners: [{{name: a, port: 8080, protocol: HTTP}}]\n---\n\
             apiVersion: tulle.dev/v1alpha1\nkind: Workload\nmetadata: {{name: short}}\nspec:\n  command: [sleep, '9']\n"
        );
        std::fs::write(&file, text).unwrap();
        let manifests = crate::manifests::read(&[file.path().to_owned()]).unwrap();
        let check = |mesh| {
            let around = Surroundings {
                root: true,
                uid: 0,
                xdg_state: None,
                xdg_runtime: None,
                home: None,
            };
            let paths = Paths::choose(None, mesh, &around).unwrap();
            Host::starting(&paths, None).check(&manifests)
        };
        check(None).unwrap();
        let said = check(Some("a-mesh-with-a-long-name"))
            .unwrap_err()
            .to_string();
        for object in ["Workload/", "Gateway/"] {
            let name = format!("{object}{longest}: metadata.name: ");
            assert!(said.contains(&name), "{said}");
        }
        assert!(
            said.contains("107 bytes") && !said.contains("short:"),
            "{said}"
        );
    }
}

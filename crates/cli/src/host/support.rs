//! `tulle support bug-report` of a host. It works after a crash, too: then it has the logs and what `check` finds.

use super::source::HostMesh;
use crate::args::diagnosis::Support;
use crate::bug_report::{self, Archive};
use crate::check;
use crate::client;
use crate::failure::{OrFail, Result};
use crate::logs::last_lines;
use crate::paths::Paths;
use crate::status;

/// Makes it.
pub(crate) async fn support(paths: &Paths, command: &Support) -> Result<()> {
    let Support::BugReport { file, lines, pods } = command;
    let mut archive = Archive::create(file)?;
    archive.add("version.txt", &versions(paths))?;
    archive.json("check.json", check::found(paths).await?)?;
    match status::collect(paths).await {
        Ok(report) => {
            let report = serde_json::to_value(report);
            archive.json(
                "status.json",
                report.or_fail(|| "cannot print the status".to_owned())?,
            )?;
        }
        Err(failure) => archive.add("status.txt", &failure.to_string())?,
    }
    let objects = bug_report::mesh(client::lazy(&paths.socket())).await;
    archive.list("objects/mesh.json", objects)?;
    logs(paths, &mut archive, *lines, *pods)?;
    match HostMesh::open(paths).await {
        Ok(mesh) => {
            mesh.say_elsewhere();
            bug_report::proxies(&mesh, &mut archive, *pods).await?;
        }
        Err(failure) => archive.add("proxies.txt", &failure.to_string())?,
    }
    archive.finish()
}

fn versions(paths: &Paths) -> String {
    let kernel = rustix::system::uname();
    format!(
        "tulle {}\nLinux {}\nmesh {}\n",
        env!("CARGO_PKG_VERSION"),
        kernel.release().to_string_lossy(),
        paths.name
    )
}

/// Logs of the mesh's own processes. Those of applications are theirs.
fn logs(paths: &Paths, archive: &mut Archive, lines: usize, most: usize) -> Result<()> {
    let known = crate::logs::known(&paths.logs());
    let of_mesh = |name: &&String| matches!(name.as_str(), "supervisor" | "controller");
    let of_proxy = |name: &&String| name.ends_with(".sidecar");
    let proxies = known.iter().filter(of_proxy).take(most);
    for name in known.iter().filter(of_mesh).chain(proxies) {
        let text = match std::fs::read(paths.log(name)) {
            Ok(bytes) => String::from_utf8_lossy(last_lines(&bytes, Some(lines))).into_owned(),
            Err(error) => error.to_string(),
        };
        archive.log(&format!("logs/{name}.log"), &text)?;
    }
    Ok(())
}

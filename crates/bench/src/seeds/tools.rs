//! The application's programs and JMeter: found, fetched or built.

use super::{App, Tool};
use crate::failure::{Failure, FailureKind, OrFail, Result};
use crate::tools::{roots, run, version};
use std::path::PathBuf;
use std::process::Command;

pub(super) const JMETER_VERSION: &str = "Apache JMeter 5.6.3";
pub(super) const SPRING_VERSION: &str =
    "Spring Boot 3.5, Spring Cloud Gateway 4.3 (demo/bookinfo-spring/pom.xml)";

/// The directory that a checkout of Tulle is in: found from here or from this program.
fn checkout() -> Result<PathBuf> {
    let mut found = roots().filter(|root| root.join("demo/bookinfo-spring/pom.xml").is_file());
    found.next().ok_or_else(|| {
        let text = "no checkout of Tulle here, which has what --app spring and --load jmeter need: run this at the top of one";
        Failure::new(FailureKind::Usage, text)
    })
}

/// A program that lies beside this one.
pub(super) fn beside(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().or_fail(|| "cannot find this program".to_owned())?;
    let program = own.with_file_name(name);
    if program.is_file() {
        return Ok(program);
    }
    Err(Failure::failed(format!(
        "{} is not there: build it with `make build`",
        program.display()
    )))
}

/// Fetches JMeter if need be; its main archive.
pub(super) fn jmeter() -> Result<PathBuf> {
    let checkout = checkout()?;
    let script = checkout.join("scripts/fetch-jmeter.sh");
    run(&mut Command::new(&script), "fetch JMeter")?;
    Ok(checkout.join("build/tools/jmeter/bin/ApacheJMeter.jar"))
}

/// Builds bookinfo's Spring applications, as their sources are now; their archives.
pub(super) fn spring() -> Result<Vec<(&'static str, PathBuf)>> {
    let project = checkout()?.join("demo/bookinfo-spring");
    let archives = ["ratings", "gateway"].map(|name| {
        let file = project.join(format!("{name}/target/{name}.jar"));
        (name, file)
    });
    let mut maven = Command::new("mvn");
    maven.args(["-q", "-B", "-DskipTests", "package", "-f"]);
    let to = "build demo/bookinfo-spring, which needs Maven and Java 17 (on Debian: apt-get install maven openjdk-17-jdk-headless)";
    run(maven.arg(&project), to)?;
    Ok(archives.into())
}

/// Versions of the load generator and the application's platform.
pub(super) fn versions(load: Tool, app: App) -> Result<Vec<(String, String)>> {
    let mut versions = Vec::new();
    match load {
        Tool::Oha => {
            let oha = version(Command::new(crate::tools::oha()?).arg("--version"))?;
            versions.push(("oha".into(), oha));
        }
        Tool::Jmeter => versions.push(("jmeter".into(), JMETER_VERSION.into())),
    }
    if app == App::Spring {
        versions.push(("spring".into(), SPRING_VERSION.into()));
    }
    if load == Tool::Jmeter || app == App::Spring {
        let java = version(Command::new("java").arg("-version"))?;
        versions.push(("java".into(), java));
    }
    Ok(versions)
}

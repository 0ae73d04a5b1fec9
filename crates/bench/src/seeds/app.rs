//! The mesh of a round as manifests: those in bench/seeds, with the round's own settings.

use super::App;
use super::tools;
use crate::failure::{Failure, OrFail, Result};
use serde_json::{Value, json};
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

const NATIVE: &str = include_str!("../../../../bench/seeds/native.yaml");
const SPRING: &str = include_str!("../../../../bench/seeds/spring.yaml");

/// The manifests as they lie in the repository: name and text.
pub(super) fn manifests(app: App) -> (&'static str, &'static str) {
    match app {
        App::Native => ("native.yaml", NATIVE),
        App::Spring => ("spring.yaml", SPRING),
    }
}

/// The settings that a round writes into the manifests.
pub(super) struct Settings {
    /// Where clients come in.
    pub(super) ingress: u16,
    /// Share of a core of each sidecar; none: there are none.
    pub(super) share: Option<f64>,
    /// Worker threads of each proxy, the ingress too.
    pub(super) workers: u32,
}

/// The application's programs, laid where the users that run them can read them.
pub(super) struct Programs {
    app: App,
    directory: PathBuf,
    native: PathBuf,
}

impl Programs {
    /// Finds or builds them. `place` is a directory that everybody may pass through.
    pub(super) fn prepare(app: App, place: &Path) -> Result<Self> {
        let directory = place.join("app");
        let what = || format!("cannot make {}", directory.display());
        DirBuilder::new()
            .mode(0o755)
            .create(&directory)
            .or_fail(what)?;
        let mut native = PathBuf::new();
        match app {
            App::Native => native = tools::beside("bookinfo")?,
            App::Spring => {
                for (name, archive) in tools::spring()? {
                    let copy = directory.join(format!("{name}.jar"));
                    fs::copy(&archive, &copy)
                        .or_fail(|| format!("cannot copy {}", archive.display()))?;
                }
                // Where Java puts what it unpacks, so that it is removed with the rest.
                let scratch = directory.join("tmp");
                fs::create_dir(&scratch).or_fail(what)?;
                let everybody = fs::Permissions::from_mode(0o1777);
                fs::set_permissions(&scratch, everybody).or_fail(what)?;
            }
        }
        Ok(Self {
            app,
            directory,
            native,
        })
    }

    fn command(&self, service: &str) -> Value {
        match self.app {
            App::Native => json!([self.native, service]),
            App::Spring => {
                let scratch = self.directory.join("tmp");
                let archive = self.directory.join(format!("{service}.jar"));
                json!([
                    "java",
                    "-Xmx256m",
                    "-XX:-UsePerfData",
                    format!("-Djava.io.tmpdir={}", scratch.display()),
                    "-jar",
                    archive
                ])
            }
        }
    }

    /// The manifests of a round, as JSON documents, which are YAML.
    pub(super) fn manifest(&self, settings: &Settings) -> Result<String> {
        let (name, text) = manifests(self.app);
        let mut objects: Vec<Value> = serde_saphyr::from_multiple(text)
            .or_fail(|| format!("bench/seeds/{name} cannot be read"))?;
        for object in &mut objects {
            let kind = object["kind"].as_str().unwrap_or("").to_owned();
            let name = object["metadata"]["name"].as_str().unwrap_or("").to_owned();
            let spec = &mut object["spec"];
            match kind.as_str() {
                "Mesh" => {
                    spec["sidecar"] = json!({ "workers": settings.workers });
                    if let Some(share) = settings.share {
                        spec["sidecar"]["cpuLimit"] = json!(format!("{}m", millis(share)));
                    }
                }
                "Gateway" => spec["listeners"][0]["port"] = json!(settings.ingress),
                "Workload" => {
                    spec["command"] = self.command(&name);
                    spec["workingDirectory"] = json!(self.directory);
                }
                _ => {}
            }
        }
        let mut all = String::new();
        for object in objects {
            let document = serde_json::to_string_pretty(&object)
                .map_err(|e| Failure::failed(format!("cannot write a manifest: {e}")))?;
            all += &document;
            all += "\n---\n";
        }
        Ok(all)
    }
}

/// A share of a core as manifests have it.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // 0.05 to 64 cores
fn millis(share: f64) -> u32 {
    (share * 1000.0).round() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_sets_port_share_and_programs_and_nothing_else() {
        let programs = Programs {
            app: App::Native,
            directory: "/place/app".into(),
            native: "/bin/bookinfo".into(),
        };
        let settings = Settings {
            ingress: 4711,
            share: Some(0.25),
            workers: 1,
        };
        let text = programs.manifest(&settings).unwrap();
        let objects: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        let kinds: Vec<&str> = objects.iter().filter_map(|o| o["kind"].as_str()).collect();
        assert_eq!(
            kinds,
            [
                "Mesh",
                "Workload",
                "Workload",
                "Gateway",
                "HTTPRoute",
                "TrafficTarget",
                "TrafficTarget"
            ]
        );
        assert_eq!(
            objects[0]["spec"],
            json!({
                "trustDomain": "tulle.local",
                "permissiveMode": true,
                "mtls": {"mode": "strict"},
                "sidecar": {"workers": 1, "cpuLimit": "250m"},
            })
        );
        assert_eq!(
            objects[1]["spec"]["command"],
            json!(["/bin/bookinfo", "ratings"])
        );
        assert_eq!(objects[2]["spec"]["upstreams"][0]["env"], "RATINGS_URL");
        assert_eq!(objects[3]["spec"]["listeners"][0]["port"], 4711);
    }

    #[test]
    fn both_applications_are_the_same_mesh() {
        let of = |app| {
            let mut objects: Vec<Value> = serde_saphyr::from_multiple(manifests(app).1).unwrap();
            for object in &mut objects {
                if object["kind"] == "Workload" {
                    let spec = object["spec"].as_object_mut().unwrap();
                    spec.remove("command");
                    spec["readinessProbe"]
                        .as_object_mut()
                        .unwrap()
                        .remove("failureThreshold");
                }
            }
            objects
        };
        assert_eq!(of(App::Native), of(App::Spring));
    }
}

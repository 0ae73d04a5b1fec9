//! Reads manifest files for the controller. It never sees where a file stood, so what depends on
//! that, the directory a workload's command runs in, is made absolute here.

use crate::failure::{Failure, Result};
use crate::plugin_trial;
use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use tulle_api::v1;
use tulle_model::manifest::{
    Object, PluginSpec, Problem, SAME_NAME, Severity, TWO_MESHES, parse, validate_set,
};

/// No sensible manifest is longer.
const LONGEST: u64 = 16 << 20;

/// The objects of some files.
#[derive(Debug, Default)]
pub(crate) struct Manifests {
    /// The objects in the files' order.
    pub(crate) objects: Vec<Object>,
    places: Places,
    /// Files without any object.
    empty: Vec<PathBuf>,
}

impl Manifests {
    /// These objects, which stand in no file.
    pub(crate) fn new(objects: Vec<Object>) -> Self {
        Self {
            objects,
            ..Self::default()
        }
    }

    /// `file:line: ` of an object, for the beginning of a message.
    pub(crate) fn place(&self, object: &Object) -> String {
        let id = object.id();
        let mut all = self.places.all.iter();
        let found = all.find(|(known, _)| *known == id);
        found.map_or_else(String::new, |(_, place)| format!("{place}: "))
    }

    /// Returns warnings about these objects together with the stored ones.
    pub(crate) fn findings_beside(&self, stored: &[Object]) -> Vec<Problem> {
        let new: BTreeSet<String> = self.objects.iter().map(Object::id).collect();
        let kept = stored.iter().filter(|o| !new.contains(&o.id()));
        validate_set(self.objects.iter().chain(kept))
            .into_iter()
            .filter(|p| p.severity == Severity::Warning && new.contains(&p.object))
            .collect()
    }

    /// Returns the objects for the controller's API.
    pub(crate) fn to_api(&self) -> Vec<v1::Object> {
        self.objects.iter().map(to_api).collect()
    }
}

/// One object as the controller takes it.
pub(crate) fn to_api(object: &Object) -> v1::Object {
    v1::Object {
        kind: object.kind().to_owned(),
        name: object.name().to_owned(),
        json: object.to_json(),
    }
}

/// Reads all files; says everything that is wrong in them, not only the first.
pub(crate) fn read(files: &[PathBuf]) -> Result<Manifests> {
    let mut manifests = Manifests::default();
    let mut errors = Vec::new();
    for file in files {
        let (text, directory) = text(file)?;
        match parse(&file.display().to_string(), &text) {
            Ok(found) => {
                if found.is_empty() {
                    manifests.empty.push(file.clone());
                }
                for located in found {
                    let place = format!("{}:{}", located.file, located.line);
                    let mut object = located.object;
                    if let Object::Plugin(plugin) = &mut object
                        && let Err(why) = with_source(&mut plugin.spec, &directory)
                    {
                        errors.push(format!("{place}: spec.sourceFile: {why}"));
                    }
                    manifests.places.all.push((object.id(), place));
                    manifests.objects.push(settle(object, &directory));
                }
            }
            Err(found) => errors.extend(found.iter().map(ToString::to_string)),
        }
    }
    if errors.is_empty() {
        for (object, (_, place)) in manifests.objects.iter().zip(&manifests.places.all) {
            if let Object::Plugin(plugin) = object
                && let Some(why) = plugin_trial::refusal(plugin, &manifests.objects)
            {
                errors.push(format!("{place}: spec.source: {why}"));
            }
        }
    }
    if errors.is_empty() {
        let problems = validate_set(manifests.objects.iter());
        let wrong = problems.iter().filter(|p| p.severity == Severity::Error);
        errors.extend(wrong.map(|p| manifests.places.tell(p)));
    }
    match errors.is_empty() {
        true => Ok(manifests),
        false => Err(refuse(&errors)),
    }
}

/// Reads the manifests of a service or of a host that joined, where objects that their files no longer have are deleted. A file
/// without any is refused: an editor leaves one behind on a full disk.
pub(crate) fn read_full(files: &[PathBuf]) -> Result<Manifests> {
    let manifests = read(files)?;
    let empty = manifests.empty.iter();
    let empty = empty.map(|file| format!("{}: there is no object in it", file.display()));
    let errors: Vec<_> = empty.collect();
    if errors.is_empty() {
        return Ok(manifests);
    }
    Err(refuse(&errors).fix(
        "write the objects into it, or leave it out of the command; all objects that it had would be deleted",
    ))
}

/// Refuses manifests for all of these errors.
pub(crate) fn refuse(errors: &[String]) -> Failure {
    let count = match errors.len() {
        1 => "1 error".to_owned(),
        n => format!("{n} errors"),
    };
    Failure::input(format!(
        "{}\nthe manifests have {count}; nothing was changed",
        errors.join("\n")
    ))
}

/// The place of each object: its `Kind/name`, then `file:line`.
#[derive(Debug, Default)]
struct Places {
    all: Vec<(String, String)>,
    /// Objects whose later definition was told of, once for each time.
    told: Vec<String>,
}

impl Places {
    /// A problem after the place of its object, with the place of what it collides with.
    fn tell(&mut self, problem: &Problem) -> String {
        let own: Vec<&String> = self
            .all
            .iter()
            .filter(|(id, _)| *id == problem.object)
            .map(|(_, place)| place)
            .collect();
        // The first is as good as any other; each later one is a problem of its own.
        let later = match problem.code == SAME_NAME {
            true => 1 + self.told.iter().filter(|id| **id == problem.object).count(),
            false => 0,
        };
        let Some(place) = own.get(later).or(own.first()) else {
            return problem.to_string();
        };
        let other = match &*problem.code {
            SAME_NAME => own.first().copied(),
            TWO_MESHES => {
                let mut all = self.all.iter();
                all.find(|(id, _)| id.starts_with("Mesh/")).map(|(_, p)| p)
            }
            _ => None,
        };
        let mut text = format!("{place}: {problem}");
        if let Some(other) = other {
            text.push_str(&format!(" (the other is at {other})"));
        }
        if problem.code == SAME_NAME {
            self.told.push(problem.object.clone());
        }
        text
    }
}

/// A file's text and the directory that relative paths in it are meant from.
fn text(file: &Path) -> Result<(String, PathBuf)> {
    let what = || format!("cannot read {}", file.display());
    let input = |e: std::io::Error| {
        Failure::input(what())
            .because(e)
            .fix("name an existing manifest; `-` is standard input")
    };
    let mut text = String::new();
    if file == Path::new("-") {
        std::io::stdin()
            .take(LONGEST)
            .read_to_string(&mut text)
            .map_err(input)?;
        return Ok((text, std::env::current_dir().map_err(input)?));
    }
    std::fs::File::open(file)
        .and_then(|f| f.take(LONGEST).read_to_string(&mut text))
        .map_err(input)?;
    let directory = file.canonicalize().map_err(input)?;
    let directory = directory.parent().unwrap_or(Path::new("/")).to_owned();
    Ok((text, directory))
}

/// Puts the module of a file into a plugin that names it.
fn with_source(plugin: &mut PluginSpec, directory: &Path) -> std::result::Result<(), String> {
    if let Some(file) = plugin.source_file.take() {
        let path = directory.join(file);
        let read = std::fs::read_to_string(&path);
        plugin.source = read.map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    }
    Ok(())
}

fn settle(mut object: Object, directory: &Path) -> Object {
    if let Object::Workload(workload) = &mut object
        && !workload.spec.command.is_empty()
    {
        let relative = workload.spec.working_directory.as_deref().unwrap_or(".");
        let absolute = directory.join(relative);
        // One that does not exist yet is named as it is; the workload's state will say so.
        let absolute = absolute.canonicalize().unwrap_or(absolute);
        workload.spec.working_directory = Some(absolute.to_string_lossy().into_owned());
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Exit;

    const WORKLOAD: &str = "apiVersion: tulle.dev/v1alpha1\nkind: Workload\nmetadata:\n  name: a\nspec:\n  command: [./a]\n";

    #[test]
    fn commands_run_where_their_manifest_is() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        std::fs::create_dir(dir.join("sub")).unwrap();
        let file = dir.join("sub/a.yaml");
        for (line, expected) in [
            ("", dir.join("sub")),
            ("  workingDirectory: ..\n", dir.clone()),
        ] {
            std::fs::write(&file, format!("{WORKLOAD}{line}")).unwrap();
            let read = read(std::slice::from_ref(&file)).unwrap();
            let Object::Workload(workload) = &read.objects[0] else {
                panic!("not a workload")
            };
            assert_eq!(
                workload.spec.working_directory.as_deref(),
                expected.to_str()
            );
        }
    }

    #[test]
    fn every_error_of_every_file_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let files = ["a.yaml", "b.yaml"].map(|n| dir.path().join(n));
        for file in &files {
            std::fs::write(file, format!("{WORKLOAD}  wrong: 1\n")).unwrap();
        }
        let failure = read(&files).unwrap_err();
        assert_eq!(failure.exit, Exit::Input);
        let text = failure.to_string();
        assert!(text.contains("a.yaml") && text.contains("b.yaml"), "{text}");
    }

    #[test]
    fn a_missing_file_is_an_input_error() {
        let failure = read(&["/nowhere/at/all.yaml".into()]).unwrap_err();
        assert_eq!(failure.exit, Exit::Input);
    }
}

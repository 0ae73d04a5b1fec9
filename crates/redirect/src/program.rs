//! Finds a program's file as `exec` finds it, to report errors before anything is started.

use std::ffi::OsStr;
use std::fmt;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Directories that `exec` searches when there is no `PATH`.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Why a program cannot be run by anybody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoProgram {
    /// The file does not exist.
    NoFile(PathBuf),
    /// No directory of the `PATH` has a program of this name.
    NotInPath {
        /// The program as it was named.
        name: String,
        /// The directories that were searched.
        path: String,
    },
    /// The file exists, but nobody may execute it.
    NotExecutable(PathBuf),
}

impl fmt::Display for NoProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFile(file) => write!(f, "{} does not exist", file.display()),
            Self::NotInPath { name, path } => write!(
                f,
                "there is no program {name} in any directory of the PATH ({path}); install it or name its file"
            ),
            Self::NotExecutable(file) => write!(
                f,
                "{} is not executable; `chmod +x` makes a program so",
                file.display()
            ),
        }
    }
}

impl std::error::Error for NoProgram {}

/// Returns the file of `program`: itself if it has a slash, otherwise the first match in `path`.
/// Relative names start at `directory`. A file that this process may not examine is accepted:
/// `exec` decides.
///
/// # Errors
/// No file has that name, or the file is not a program.
pub fn find_program(
    program: &OsStr,
    path: Option<&OsStr>,
    directory: &Path,
) -> Result<PathBuf, NoProgram> {
    if program.as_encoded_bytes().contains(&b'/') {
        let file = directory.join(program);
        return match look(&file) {
            Seen::Program | Seen::Hidden => Ok(file),
            Seen::Other => Err(NoProgram::NotExecutable(file)),
            Seen::Nothing => Err(NoProgram::NoFile(file)),
        };
    }
    let path = path.unwrap_or(OsStr::new(DEFAULT_PATH));
    let candidates = std::env::split_paths(path).map(|d| directory.join(d).join(program));
    let mut best: Option<(Seen, PathBuf)> = None;
    for file in candidates {
        let seen = look(&file);
        if seen == Seen::Program {
            return Ok(file);
        }
        if seen != Seen::Nothing && best.as_ref().is_none_or(|(known, _)| seen > *known) {
            best = Some((seen, file));
        }
    }
    match best {
        Some((Seen::Hidden, file)) => Ok(file),
        Some((_, file)) => Err(NoProgram::NotExecutable(file)),
        None => Err(NoProgram::NotInPath {
            name: program.to_string_lossy().into_owned(),
            path: path.to_string_lossy().into_owned(),
        }),
    }
}

/// The kinds of things at a path, from nothing to a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Seen {
    Nothing,
    /// A file that nobody can execute.
    Other,
    /// This process may not examine it, such as root on a file system of another host.
    Hidden,
    Program,
}

fn look(file: &Path) -> Seen {
    match std::fs::metadata(file) {
        Ok(found) if found.is_file() && found.permissions().mode() & 0o111 != 0 => Seen::Program,
        Ok(_) => Seen::Other,
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Seen::Nothing
        }
        Err(_) => Seen::Hidden,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn programs_are_found_by_path_and_by_name() {
        let directory = std::env::temp_dir().join(format!("tulle-program-{}", std::process::id()));
        fs::create_dir_all(directory.join("bin")).unwrap();
        let good = directory.join("bin/good");
        fs::write(&good, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&good, fs::Permissions::from_mode(0o755)).unwrap();
        let plain = directory.join("bin/plain");
        fs::write(&plain, "").unwrap();
        let path = directory.join("bin").into_os_string();
        let find = |name: &str| find_program(OsStr::new(name), Some(&path), &directory);

        assert_eq!(find("good"), Ok(good.clone()));
        assert_eq!(find("bin/good"), Ok(good.clone()));
        assert_eq!(find("./bin/good"), Ok(directory.join("./bin/good")));
        assert_eq!(find("plain"), Err(NoProgram::NotExecutable(plain.clone())));
        assert_eq!(find("bin/plain"), Err(NoProgram::NotExecutable(plain)));
        assert_eq!(
            find("bin/none"),
            Err(NoProgram::NoFile(directory.join("bin/none")))
        );
        assert!(matches!(find("none"), Err(NoProgram::NotInPath { .. })));
        assert!(matches!(find("bin/"), Err(NoProgram::NotExecutable(_))));
        let long = "x".repeat(300);
        assert!(
            find(&long).is_ok(),
            "a file that cannot be looked at may be one"
        );
        let relative = find_program(OsStr::new("good"), Some(OsStr::new("bin")), &directory);
        assert_eq!(relative, Ok(good));
        assert!(find_program(OsStr::new("sh"), None, &directory).is_ok());
        fs::remove_dir_all(&directory).unwrap();
    }
}

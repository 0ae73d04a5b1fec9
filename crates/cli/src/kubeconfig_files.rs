//! Finds kubeconfig files, by the rules of `kubectl`.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Lists the files that may name a cluster, the first one first. They need not exist.
pub(crate) fn list() -> Vec<PathBuf> {
    let (named, home) = (env::var_os("KUBECONFIG"), env::var_os("HOME"));
    listed(
        &named.unwrap_or_default(),
        Path::new(&home.unwrap_or_default()),
    )
}

/// Lists those that KUBECONFIG names, or the usual one if it is empty. Empty names are left out, and a file comes once.
///
/// Without HOME `kubectl` looks in the working directory. That is left out here: a kubeconfig names programs to run, and
/// the directory may be anybody's.
fn listed(named: &OsStr, home: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    if named.is_empty() {
        let home = (!home.as_os_str().is_empty()).then_some(home);
        files.extend(home.map(|home| home.join(".kube/config")));
        return files;
    }
    for file in env::split_paths(named) {
        if !file.as_os_str().is_empty() && !files.contains(&file) {
            files.push(file);
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_comes_before_the_home_directory() {
        for (named, home, expected) in [
            ("", "/root", &["/root/.kube/config"][..]),
            ("", "", &[]),
            ("/a", "/root", &["/a"]),
            ("/a:b", "", &["/a", "b"]),
            (":/b::/a:/b", "/root", &["/b", "/a"]),
            // It is set, though to nothing that can be read.
            (":", "/root", &[]),
        ] {
            let expected: Vec<PathBuf> = expected.iter().map(PathBuf::from).collect();
            let files = listed(OsStr::new(named), Path::new(home));
            assert_eq!(files, expected, "KUBECONFIG={named} HOME={home}");
        }
    }
}

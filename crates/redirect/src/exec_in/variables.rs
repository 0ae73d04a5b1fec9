//! The names under which a program's variables pass through the process that becomes it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Start of those names. No variable of Tulle's own has it.
const PREFIX: &str = "TULLE_PROGRAM_";

/// The name of a program's variable on the way to it.
pub(super) fn disguise(name: &OsStr) -> OsString {
    let mut disguised = OsString::from(PREFIX);
    disguised.push(name);
    disguised
}

/// The program's variables, among those of this process.
pub(super) fn of_program(
    all: impl Iterator<Item = (OsString, OsString)>,
) -> BTreeMap<OsString, OsString> {
    let own = all.filter_map(|(name, value)| {
        let name = name.as_bytes().strip_prefix(PREFIX.as_bytes())?;
        Some((OsString::from_vec(name.to_vec()), value))
    });
    own.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LaunchSpec;

    fn pair(name: &[u8], value: &[u8]) -> (OsString, OsString) {
        let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        (text(name), text(value))
    }

    #[test]
    fn the_variables_of_a_program_are_not_those_of_its_launch() {
        let given = [
            pair(b"LD_PRELOAD", b"/tmp/evil.so"),
            pair(b"PATH", b"/usr/bin"),
            pair(b"GLIBC_TUNABLES", b"x"),
        ];
        let command = LaunchSpec::default().command("true", given).unwrap();
        let set: Vec<_> = command.get_envs().map(|(name, _)| name).collect();
        let disguised = [
            "TULLE_PROGRAM_GLIBC_TUNABLES",
            "TULLE_PROGRAM_LD_PRELOAD",
            "TULLE_PROGRAM_PATH",
        ];
        assert_eq!(set, disguised.map(OsStr::new));
        let arguments: Vec<_> = command.get_args().collect();
        assert!(!format!("{arguments:?}").contains("evil"), "{arguments:?}");
    }

    #[test]
    fn a_program_gets_its_variables_as_they_were_given() {
        let given = [
            pair(b"", b"X=of no name"),
            pair(b"A", b""),
            pair(b"B", b"x=y=\n"),
            pair(b"C", b"\xff\xfe"),
            pair(b"D\xff", b"1"),
            pair(b"TULLE_PROGRAM_X", b"2"),
        ];
        let mut command = LaunchSpec::default()
            .command("true", given.clone())
            .unwrap();
        command.env("PATH", "/sbin").env("TULLE_MESH", "/run/x");
        let set = command.get_envs();
        let set = set.map(|(name, value)| (name.to_owned(), value.unwrap().to_owned()));
        let got: Vec<_> = of_program(set).into_iter().collect();
        assert_eq!(got, given);
    }
}

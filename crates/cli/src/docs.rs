//! `tulle docs`: opens the pages of the documentation that are on this host, without a network.
//!
//! They are too large to be part of the program. A release has them beside it; a checkout has them after `make docs`.

use crate::args::about::{Docs, Language};
use crate::browser;
use crate::failure::{Failure, OrFail, Result};
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Places of the pages, from the program's directory: of an installation, of a checkout.
const PLACES: [&str; 2] = ["../share/doc/tulle/html", "../../build/docs"];
/// Variables that name the user's language; the first that is set counts.
const LOCALE: [&str; 3] = ["LC_ALL", "LC_MESSAGES", "LANG"];

/// Opens the page that the options name.
pub(crate) fn docs(args: &Docs) -> Result<()> {
    let program = std::env::current_exe().or_fail(|| "cannot tell where this program is".into())?;
    let language = args.language.unwrap_or_else(|| {
        let mut set = LOCALE
            .into_iter()
            .filter_map(|name| std::env::var(name).ok());
        usual_language(&set.find(|value| !value.is_empty()).unwrap_or_default())
    });
    let page = find(&program, language, args.page.as_deref())?;
    browser::show(&url(&page), args.print_url);
    Ok(())
}

fn usual_language(locale: &str) -> Language {
    match locale.starts_with("zh") {
        true => Language::Zh,
        false => Language::En,
    }
}

fn find(program: &Path, language: Language, page: Option<&str>) -> Result<PathBuf> {
    let directory = program.parent().unwrap_or(program);
    let places = PLACES.map(|place| normal(&directory.join(place)));
    let Some(place) = places
        .iter()
        .find(|place| place.join("en/index.html").is_file())
    else {
        let [installed, checkout] = places.map(|place| place.display().to_string());
        return Err(Failure::new("the documentation is not on this host")
            .because(format!("neither {installed} nor {checkout} has it"))
            .fix(format!(
                "copy share/doc/tulle/html of the release to {installed}, or run `make docs` in a checkout; every command has --help"
            )));
    };
    let book = place.join(match language {
        Language::En => "en",
        Language::Zh => "zh",
    });
    let Some(page) = page else {
        return Ok(book.join("index.html"));
    };
    let name = page.trim_matches('/');
    let name = name
        .strip_suffix(".html")
        .or(name.strip_suffix(".md"))
        .unwrap_or(name);
    let found = [format!("{name}.html"), format!("{name}/index.html")];
    let mut found = found.into_iter().map(|file| book.join(file));
    found.find(|file| file.is_file()).ok_or_else(|| {
        Failure::usage(format!("the documentation has no page {page}"))
            .because(format!("{} has no such file", book.display()))
            .fix("`tulle docs` opens the first page, which leads to all; names are such as reasons and features/access")
    })
}

/// Removes `..` for people: the directory of the program is known without symbolic links.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => drop(normal.pop()),
            part => normal.push(part),
        }
    }
    normal
}

/// Writes a path as a URL, whatever characters it has.
fn url(path: &Path) -> String {
    let mut url = "file://".to_owned();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' | b'-' | b'.' | b'_' | b'~' => url.push(char::from(*byte)),
            byte if byte.is_ascii_alphanumeric() => url.push(char::from(*byte)),
            byte => drop(write!(url, "%{byte:02X}")),
        }
    }
    url
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Exit;

    #[test]
    fn the_language_is_that_of_the_locale() {
        for (locale, language) in [
            ("zh_CN.UTF-8", Language::Zh),
            ("zh", Language::Zh),
            ("de_DE.UTF-8", Language::En),
            ("C", Language::En),
            ("", Language::En),
        ] {
            assert_eq!(usual_language(locale), language, "{locale}");
        }
    }

    #[test]
    fn a_path_becomes_a_url() {
        assert_eq!(
            url(Path::new("/a b/é#?%.html")),
            "file:///a%20b/%C3%A9%23%3F%25.html"
        );
    }

    #[test]
    fn pages_are_found_beside_the_program_and_in_a_checkout() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path();
        let program = top.join("target/debug/tulle");
        let failure = find(&program, Language::En, None).unwrap_err();
        assert_eq!(failure.exit, Exit::Failed);
        let told = failure.to_string();
        assert!(
            told.contains(&format!("{}/build/docs", top.display())),
            "{told}"
        );
        for place in ["build/docs", "target/share/doc/tulle/html"] {
            for page in ["en/index.html", "zh/reasons.html", "zh/features/index.html"] {
                let file = top.join(place).join(page);
                std::fs::create_dir_all(file.parent().unwrap()).unwrap();
                std::fs::write(file, "").unwrap();
            }
            let book = top.join(place);
            assert_eq!(
                find(&program, Language::En, None).unwrap(),
                book.join("en/index.html")
            );
            for name in ["reasons", "reasons.md", "/reasons.html"] {
                let found = find(&program, Language::Zh, Some(name)).unwrap();
                assert_eq!(found, book.join("zh/reasons.html"), "{name}");
            }
            let found = find(&program, Language::Zh, Some("features/")).unwrap();
            assert_eq!(found, book.join("zh/features/index.html"));
            let failure = find(&program, Language::En, Some("reasons")).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage);
        }
    }
}

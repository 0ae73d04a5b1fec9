//! Packs the page into the program: every file of `page/`, compressed, with its type. A file of an unknown type and a
//! page without `index.html` fail the build.

#![allow(clippy::unwrap_used)] // a build that fails says why

use flate2::{Compression, GzBuilder};
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

fn main() {
    println!("cargo::rerun-if-changed=page");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap());
    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap()).join("page");
    let mut files = Vec::new();
    collect(&root, &root, &mut files);
    files.sort();
    assert!(
        files.iter().any(|path| path == "index.html"),
        "{} has no index.html",
        root.display()
    );
    let mut table = String::from("&[\n");
    for (number, path) in files.iter().enumerate() {
        // Beside the table, and so named: the directory of builds may be moved.
        let packed = format!("page-{number}.gz");
        fs::write(out.join(&packed), pack(&fs::read(root.join(path)).unwrap())).unwrap();
        let url = match path.as_str() {
            "index.html" => "/".to_owned(),
            other => format!("/{other}"),
        };
        let kind = content_type(path);
        writeln!(
            table,
            "    Asset {{ url: {url:?}, kind: {kind:?}, packed: include_bytes!({packed:?}) }},"
        )
        .unwrap();
    }
    table.push_str("]\n");
    fs::write(out.join("page.rs"), table).unwrap();
}

fn collect(root: &Path, directory: &Path, files: &mut Vec<String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => collect(root, &path, files),
            false => files.push(
                path.strip_prefix(root)
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .to_owned(),
            ),
        }
    }
}

/// The same bytes for the same file: no name and no time are in it.
fn pack(bytes: &[u8]) -> Vec<u8> {
    let mut packer = GzBuilder::new().write(Vec::new(), Compression::best());
    packer.write_all(bytes).unwrap();
    packer.finish().unwrap()
}

fn content_type(path: &str) -> &'static str {
    match path.rsplit_once('.').map(|(_, end)| end) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("ico") => "image/x-icon",
        Some("woff2") => "font/woff2",
        Some("json" | "map") => "application/json",
        Some("txt") => "text/plain; charset=utf-8",
        Some("webmanifest") => "application/manifest+json",
        _ => panic!("page/{path}: build.rs knows no content type for it"),
    }
}

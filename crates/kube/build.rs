//! Packs what `tulle install` takes from the charts in `deploy/charts`: definitions of kinds, and the schema of values. A
//! test makes both of the types anew and compares; the program carries the result and not the code that makes it.

#![allow(clippy::unwrap_used, reason = "the build fails")]

use flate2::{Compression, GzBuilder};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

fn main() {
    // Relative: where checkouts share a target directory, a name of one of them would make each build the crate anew.
    let charts = Path::new("../../deploy/charts");
    let kinds = charts.join("tulle-crds/templates");
    let schema = charts.join("tulle/values.schema.json");
    for path in [&kinds, &schema] {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    let files = fs::read_dir(&kinds).unwrap();
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    let texts = files.iter().map(|file| fs::read_to_string(file).unwrap());
    let documents: Vec<String> = texts.collect();
    pack("kinds.yaml.gz", &documents.join("---\n"));
    pack(
        "values.schema.json.gz",
        &fs::read_to_string(schema).unwrap(),
    );
}

/// The same bytes for the same text: no name and no time are in it.
fn pack(name: &str, text: &str) {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap());
    let mut packer = GzBuilder::new().write(Vec::new(), Compression::best());
    packer.write_all(text.as_bytes()).unwrap();
    fs::write(Path::new(&out).join(name), packer.finish().unwrap()).unwrap();
}

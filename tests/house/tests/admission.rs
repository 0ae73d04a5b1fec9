//! Connections are accepted where their number is limited, and nowhere else: a listener that is new goes through
//! `tulle_net::places`, or its file is listed here with the limits that it has.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Files that accept connections, and who gives way there.
const ADMITTING: [(&str, &str); 6] = [
    (
        "control/src/serve/accept.rs",
        "places of arrivals, strangers and members; a socket of the operator's own",
    ),
    (
        "net/src/passing.rs",
        "its tests alone: the listeners that it passes on are the proxy's",
    ),
    (
        "net/src/places.rs",
        "the places themselves: health, metrics, administration, DNS, webhooks",
    ),
    (
        "proxy/src/admin/mod.rs",
        "places of a socket that is its owner's alone",
    ),
    (
        "proxy/src/listener/accept.rs",
        "the ledger of each worker, in `context/admission.rs`",
    ),
    (
        "proxy/src/takeover.rs",
        "one at a time, at a socket that is its owner's alone",
    ),
];

/// Ways to accept.
const ACCEPTS: [&str; 6] = [
    ".accept()",
    "poll_accept(",
    ".incoming()",
    "TcpIncoming",
    "TcpListenerStream",
    "UnixListenerStream",
];

fn look(directory: &Path, crates: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            look(&path, crates, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            if ACCEPTS.iter().any(|way| text.contains(way)) {
                let name = path.strip_prefix(crates).unwrap();
                found.insert(name.to_string_lossy().into_owned());
            }
        }
    }
}

#[test]
fn connections_are_accepted_where_they_are_limited() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates");
    let mut found = BTreeSet::new();
    for name in ["console", "control", "kube", "net", "proxy"] {
        look(&crates.join(name).join("src"), &crates, &mut found);
    }
    let listed: BTreeSet<String> = ADMITTING
        .iter()
        .map(|(file, _)| (*file).to_owned())
        .collect();
    assert_eq!(found, listed, "who limits the connections there?");
}

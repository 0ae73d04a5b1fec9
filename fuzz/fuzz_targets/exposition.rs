//! Metrics of an application, whoever made their text.
#![no_main]

use libfuzzer_sys::fuzz_target;

// Pure; depending on its crate would put all of the proxy under the sanitizer.
#[path = "../../crates/proxy/src/codec/exposition.rs"]
mod exposition;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let mut once = "up 1\n".to_owned();
    if exposition::merge(text, &mut once).is_err() {
        return;
    }
    // The merged text has whole lines, none of them the mesh's, and merges again unchanged.
    assert!(once.ends_with('\n'));
    assert!(!once.lines().any(|line| line.starts_with("tulle_") || line.starts_with("istio_")));
    let mut again = String::new();
    assert_eq!(exposition::merge(&once, &mut again), Ok(()));
    assert_eq!(again, once);
});

#![allow(clippy::unwrap_used)]
use super::*;
#[test]
fn show() {
    for o in objects() { println!("{o:#}"); }
}

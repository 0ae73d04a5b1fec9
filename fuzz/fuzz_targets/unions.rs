//! All demands of a pod's Services on a request apply, in whatever order they are written.
//!
//! The test (`crates/control/tests/properties`) defines the property and its inputs.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proptest::strategy::{BoxedStrategy, Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

#[allow(dead_code)]
#[path = "../../crates/control/tests/properties/edits.rs"]
mod edits;
#[allow(dead_code)]
#[path = "../../crates/control/tests/properties/manifests.rs"]
mod manifests;
#[path = "../../crates/control/tests/properties/unions.rs"]
mod unions;

thread_local! {
    static CASES: BoxedStrategy<unions::Case> = unions::cases().boxed();
}

fuzz_target!(|data: &[u8]| {
    let config = Config {
        failure_persistence: None,
        max_local_rejects: 100,
        ..Config::default()
    };
    // The strategy draws from the input in place of random numbers.
    let random = TestRng::from_seed(RngAlgorithm::PassThrough, data);
    let mut runner = TestRunner::new_with_rng(config, random);
    if let Ok(tree) = CASES.with(|cases| cases.new_tree(&mut runner)) {
        let case = tree.current();
        if let Err(why) = unions::check(case.clone()) {
            panic!("{why}: {case:#?}");
        }
    }
});

//! Whatever is written into one namespace of a cluster, the others are told the same, byte for
//! byte.
//!
//! The test (`crates/control/tests/properties`) defines the property and its inputs. A fuzzer finds
//! the orders and combinations that chance does not.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proptest::strategy::{BoxedStrategy, Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

#[path = "../../crates/control/tests/properties/edits.rs"]
mod edits;
#[allow(dead_code)]
#[path = "../../crates/control/tests/properties/manifests.rs"]
mod manifests;
#[path = "../../crates/control/tests/properties/tenants.rs"]
mod tenants;
#[path = "../../crates/control/tests/properties/told.rs"]
mod told;

thread_local! {
    static CASES: BoxedStrategy<tenants::Case> = tenants::cases().boxed();
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
        if let Err(why) = tenants::check(case.clone()) {
            panic!("{why}: {case:#?}");
        }
    }
});

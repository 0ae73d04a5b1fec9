//! Draws what a test's strategies draw, from the fuzzer's input.

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Draws one value. Its seed is a few bytes of the input, so that a mutation changes, moves or repeats single values
/// and the rest of a case stays as it was.
pub(crate) fn draw<S: Strategy>(strategy: &S, seed: &[u8]) -> Option<S::Value> {
    let config = Config {
        failure_persistence: None,
        max_local_rejects: 100,
        ..Config::default()
    };
    let mut whole = [0; 32];
    for (to, from) in whole.iter_mut().zip(seed) {
        *to = *from;
    }
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &whole);
    let mut runner = TestRunner::new_with_rng(config, random);
    Some(strategy.new_tree(&mut runner).ok()?.current())
}

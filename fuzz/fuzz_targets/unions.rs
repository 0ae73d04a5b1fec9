//! All demands of a pod's Services on a request apply, in whatever order they are written.
//!
//! The test (`crates/control/tests/properties`) defines the property and its inputs.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proptest::strategy::{BoxedStrategy, Strategy};

mod draw;
#[allow(dead_code)]
#[path = "../../crates/control/tests/properties/edits.rs"]
mod edits;
#[allow(dead_code)]
#[path = "../../crates/control/tests/properties/manifests.rs"]
mod manifests;
#[allow(dead_code)]
#[path = "../../crates/control/tests/properties/unions.rs"]
mod unions;

/// As in the test.
const MOST: usize = 20;

thread_local! {
    static DEMAND: BoxedStrategy<unions::Demand> = unions::demand().boxed();
    static REQUEST: BoxedStrategy<unions::Asked> = unions::request().boxed();
}

// The first byte is the number of demands, two are each of these, seven the order of arrival, two more each request.
fuzz_target!(|data: &[u8]| {
    let Some((count, rest)) = data.split_first() else {
        return;
    };
    let Some((demands, rest)) = rest.split_at_checked(2 * (usize::from(*count) % 3 + 1)) else {
        return;
    };
    let Some((arrival, requests)) = rest.split_first_chunk() else {
        return;
    };
    let demands = demands.chunks_exact(2);
    let demands = demands.filter_map(|seed| DEMAND.with(|demand| draw::draw(demand, seed)));
    let requests = requests.chunks_exact(2).take(MOST);
    let requests = requests.filter_map(|seed| REQUEST.with(|request| draw::draw(request, seed)));
    let case = unions::Case {
        demands: demands.collect(),
        arrival: *arrival,
        requests: requests.collect(),
    };
    if let Err(why) = unions::check(case.clone()) {
        panic!("{why}: {case:#?}");
    }
});

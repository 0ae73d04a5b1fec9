//! Whatever is written into one namespace of a cluster, the others are told the same, byte for
//! byte.
//!
//! The test (`crates/control/tests/properties`) defines the property and its inputs. A fuzzer finds
//! the orders and combinations that chance does not.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proptest::strategy::{BoxedStrategy, Strategy};
use tulle_control::index::Edit;

mod draw;
#[path = "../../crates/control/tests/properties/edits.rs"]
mod edits;
#[allow(dead_code)]
#[path = "../../crates/control/tests/properties/manifests.rs"]
mod manifests;
#[allow(dead_code)]
#[path = "../../crates/control/tests/properties/tenants.rs"]
mod tenants;
#[path = "../../crates/control/tests/properties/told.rs"]
mod told;

/// As in the test: more edits find little that these do not, and take long.
const MOST: usize = 24;

thread_local! {
    static OTHERS: BoxedStrategy<Vec<Edit>> = tenants::others().boxed();
    static OWN: BoxedStrategy<Edit> = tenants::own_edits().boxed();
}

// The first byte says whether edits come singly, the second in which order the others' come. Three more are an edit
// of `evil` and its place.
fuzz_target!(|data: &[u8]| {
    let [singly, order, own @ ..] = data else {
        return;
    };
    let others = OTHERS.with(|others| draw::draw(others, &[*order]));
    let own = own
        .chunks_exact(3)
        .take(MOST)
        .filter_map(|bytes| match bytes {
            [first, second, at] => {
                let edit = OWN.with(|own| draw::draw(own, &[*first, *second]))?;
                Some((edit, *at))
            }
            _ => None,
        });
    let case = tenants::Case::new(others.unwrap_or_default(), own.collect(), singly % 2 == 1);
    if let Err(why) = tenants::check(case.clone()) {
        panic!("{why}: {case:#?}");
    }
});

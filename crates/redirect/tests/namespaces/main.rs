//! Interception and limits as they really are: namespaces, rules and cgroups of this machine.
//! Needs root; without it every test is skipped, and says so. Everything made carries the name of
//! a mesh that only this process uses.
//!
//! No test harness: the processes inside the namespaces (listeners, dialers, …) are this same
//! binary with other arguments (`roles`), entered by the same door as real workloads.

// A test says what is wrong by panicking; clippy knows a test only by its attribute.
#![allow(clippy::unwrap_used)]

mod cgroups;
mod crash;
mod redirection;
mod roles;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Takes the name of a mesh to make and leave, or not.
type Test = fn(&str);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if roles::play(&arguments) {
        return;
    }
    let missing = tulle_redirect::available().why_not;
    if !missing.is_empty() {
        println!("skipped: {}", missing.join("; "));
        return;
    }
    let tests: [(&str, Test); 9] = [
        ("redirection", redirection::by_nft),
        ("redirection_by_iptables", redirection::by_iptables),
        ("repair", redirection::repair),
        ("two_meshes", redirection::two_meshes),
        ("crash", crash::crash),
        ("half_made", crash::half_made),
        ("parent_death", crash::parent_death),
        ("cpu_and_memory", cgroups::cpu_and_memory),
        ("limits_change", cgroups::limits_change),
    ];
    let filter = arguments.iter().find(|a| !a.starts_with('-'));
    let mut failed = 0;
    for (name, test) in tests {
        if filter.is_some_and(|filter| !name.contains(filter.as_str())) {
            continue;
        }
        let mesh = format!("{}-{}", name.replace('_', ""), std::process::id());
        let before = world::World::look();
        let outcome = catch_unwind(AssertUnwindSafe(|| test(&mesh)));
        // Also after a failure, so that the next test starts from nothing.
        let removed = catch_unwind(|| world::remove(&mesh));
        let left = world::World::look().beyond(&before);
        let ok = outcome.is_ok() && removed.is_ok() && left.is_empty();
        println!("test {name} ... {}", if ok { "ok" } else { "FAILED" });
        for line in left {
            println!("  left behind: {line}");
        }
        failed += i32::from(!ok);
    }
    std::process::exit(i32::from(failed > 0));
}

//! Limits, as the kernel counts them.

use crate::waits::holds_within;
use crate::world::{PATIENCE, start};
use tulle_redirect::{Cgroup, LaunchSpec, ProcessLimits};

const MIB: u64 = 1 << 20;

fn inside(cgroup: &Cgroup) -> LaunchSpec {
    LaunchSpec {
        cgroup: cgroup.directories().to_vec(),
        ..LaunchSpec::default()
    }
}

/// Returns the first of these files that some directory of the group has.
fn value(cgroup: &Cgroup, names: &[&str]) -> String {
    let paths = cgroup
        .directories()
        .iter()
        .flat_map(|d| names.iter().map(|name| d.join(name)));
    let text = paths.map(std::fs::read_to_string).find_map(Result::ok);
    text.unwrap_or_else(|| panic!("no {names:?} in {:?}", cgroup.directories()))
        .trim()
        .to_owned()
}

pub(crate) fn cpu_and_memory(mesh: &str) {
    let limits = ProcessLimits {
        cpu_millis: Some(50),
        memory_bytes: Some(64 * MIB),
    };
    let limited = Cgroup::create(mesh, "limited", &limits).unwrap();
    let free = Cgroup::create(mesh, "free", &ProcessLimits::default()).unwrap();
    let memory = value(&limited, &["memory.limit_in_bytes", "memory.max"]);
    assert_eq!(memory, (64 * MIB).to_string());

    let burner = start(&inside(&limited), &["burn"]);
    let rival = start(&inside(&free), &["burn"]);
    assert_eq!(limited.procs().unwrap(), [burner.0.id()]);
    assert!(limited.memory_bytes().unwrap().unwrap() > 0);

    // Both do the same work at the same time on the same machine; the accounts tell them apart.
    let start_limited = limited.cpu_usage_us().unwrap().unwrap();
    let start_free = free.cpu_usage_us().unwrap().unwrap();
    let used_free = || free.cpu_usage_us().unwrap().unwrap() - start_free;
    let burnt = holds_within(PATIENCE, "the processes compute", || used_free() >= 600_000);
    assert!(burnt, "0.6 s of processor time in {PATIENCE:?}");
    let (used, rival_used) = (
        limited.cpu_usage_us().unwrap().unwrap() - start_limited,
        used_free(),
    );
    assert!(used > 0, "the limited process ran");
    assert!(
        used * 2 < rival_used,
        "limited {used} µs, free {rival_used} µs"
    );
    let throttled = |cgroup| -> u64 {
        let stat = value(cgroup, &["cpu.stat"]);
        // Version 1 with separate trees has another file of that name for accounting only.
        stat.lines()
            .find_map(|l| l.strip_prefix("nr_throttled "))
            .unwrap()
            .parse()
            .unwrap()
    };
    assert!(throttled(&limited) > 0);
    assert_eq!(throttled(&free), 0);

    // An existing process is added, and then all are killed.
    let third = start(&LaunchSpec::default(), &["sleep"]);
    limited.add(third.0.id()).unwrap();
    assert_eq!(limited.procs().unwrap().len(), 2);
    limited.remove().unwrap();
    limited.remove().unwrap();
    for mut killed in [burner, third] {
        assert!(!killed.0.wait().unwrap().success());
    }
    drop(rival);
    assert_eq!(Cgroup::remove_all(mesh).unwrap(), ["free"]);
    assert_eq!(Cgroup::remove_all(mesh).unwrap(), [""; 0]);
}

pub(crate) fn limits_change(mesh: &str) {
    let set = |cpu_millis, memory_bytes| {
        let cgroup = Cgroup::create(
            mesh,
            "a",
            &ProcessLimits {
                cpu_millis,
                memory_bytes,
            },
        )
        .unwrap();
        let memory = value(&cgroup, &["memory.limit_in_bytes", "memory.max"]);
        (value(&cgroup, &["cpu.cfs_quota_us", "cpu.max"]), memory)
    };
    let is = |got: (String, String), cpu: &str, memory: u64| {
        assert!(got.0 == cpu || got.0 == format!("{cpu} 100000"), "{got:?}");
        assert_eq!(got.1, memory.to_string());
    };
    is(set(Some(250), Some(32 * MIB)), "25000", 32 * MIB);
    is(set(Some(1500), Some(128 * MIB)), "150000", 128 * MIB);
    is(set(Some(10), Some(16 * MIB)), "1000", 16 * MIB);
    let (cpu, memory) = set(None, None);
    assert!(cpu == "-1" || cpu == "max 100000", "{cpu}");
    // Version 1 has a very large number for "none".
    assert!(
        memory == "max" || memory.parse::<u64>().unwrap() > 1 << 60,
        "{memory}"
    );

    let too_small = ProcessLimits {
        cpu_millis: Some(9),
        memory_bytes: None,
    };
    let error = Cgroup::create(mesh, "b", &too_small)
        .unwrap_err()
        .to_string();
    assert!(error.contains("least is 10"), "{error}");
    assert!(Cgroup::create(mesh, "../b", &ProcessLimits::default()).is_err());
}

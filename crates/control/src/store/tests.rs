//! The same expectations for both stores, and those that only a file can fulfil.

use super::*;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

fn put(kind: &str, name: &str, json: &str) -> Write {
    Write::Put {
        kind: kind.into(),
        name: name.into(),
        json: json.into(),
    }
}

fn delete(kind: &str, name: &str) -> Write {
    Write::Delete {
        kind: kind.into(),
        name: name.into(),
    }
}

fn value(space: Space, key: &str, value: &[u8]) -> Write {
    Write::PutValue {
        space,
        key: key.into(),
        value: value.into(),
    }
}

/// Runs a test with each implementation.
fn each(test: impl Fn(&dyn Store)) {
    test(&Memory::new());
    let directory = tempfile::tempdir().unwrap();
    test(&Embedded::open(&directory.path().join("store")).unwrap());
}

#[test]
fn tells_created_configured_and_unchanged() {
    each(|store| {
        let outcome = |json| store.commit(&[put("Workload", "a", json)]).unwrap()[0];
        assert_eq!(outcome("1"), WriteOutcome::Created);
        assert_eq!(outcome("1"), WriteOutcome::Unchanged);
        assert_eq!(outcome("2"), WriteOutcome::Configured);
        let objects = store.objects().unwrap();
        assert_eq!(objects.len(), 1);
        assert_eq!((objects[0].json.as_str(), objects[0].revision), ("2", 2));
        store.commit(&[put("Workload", "a", "345")]).unwrap();
        assert_eq!(store.object_bytes("Workload", "a").unwrap(), Some(3));
        assert_eq!(store.object_bytes("Workload", "b").unwrap(), None);
        assert_eq!(store.object_bytes("Mesh", "a").unwrap(), None);
        let gone = store.commit(&[delete("Workload", "a"), delete("Workload", "b")]);
        assert_eq!(gone.unwrap(), [WriteOutcome::Deleted, WriteOutcome::Absent]);
        assert!(store.objects().unwrap().is_empty());
    });
}

#[test]
fn spaces_do_not_mix() {
    each(|store| {
        let writes = [
            value(Space::Placements, "a", b"1"),
            value(Space::Tokens, "a", b"2"),
            value(Space::Owners, "b", b"3"),
        ];
        store.commit(&writes).unwrap();
        let placements = store.values(Space::Placements).unwrap();
        assert_eq!(placements, [("a".to_owned(), b"1".to_vec())]);
        assert_eq!(store.value(Space::Owners, "a").unwrap(), None);
    });
}

#[test]
fn a_value_is_taken_once() {
    each(|store| {
        store.commit(&[value(Space::Tokens, "t", b"x")]).unwrap();
        let winners: usize = std::thread::scope(|scope| {
            let takers: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| store.take(Space::Tokens, "t").unwrap().is_some()))
                .collect();
            takers
                .into_iter()
                .map(|t| usize::from(t.join().unwrap()))
                .sum()
        });
        assert_eq!(winners, 1);
        assert_eq!(store.value(Space::Tokens, "t").unwrap(), None);
    });
}

#[test]
fn a_watcher_sees_the_present_then_every_commit() {
    each(|store| {
        store.commit(&[put("Mesh", "m", "1")]).unwrap();
        let mut watch = store.watch().unwrap();
        assert_eq!(watch.objects.len(), 1);
        store.commit(&[put("Mesh", "m", "1")]).unwrap();
        let batch = [put("Mesh", "m", "2"), put("Workload", "w", "3")];
        store.commit(&batch).unwrap();
        store.commit(&[delete("Mesh", "m")]).unwrap();
        let first = watch.commits.try_recv().unwrap();
        assert_eq!((first.revision, first.changes.len()), (2, 2));
        let second = watch.commits.try_recv().unwrap();
        assert!(matches!(&second.changes[..], [Change::Deleted { .. }]));
        assert!(watch.commits.try_recv().is_err());
    });
}

#[test]
fn a_watcher_that_lags_is_told_so() {
    each(|store| {
        let mut watch = store.watch().unwrap();
        // The embedded store syncs each commit, so there are only just enough of them.
        for i in 0..WATCH_BACKLOG + 1 {
            store.commit(&[put("Mesh", "m", &i.to_string())]).unwrap();
        }
        let lagged = watch.commits.try_recv();
        assert!(matches!(
            lagged,
            Err(broadcast::error::TryRecvError::Lagged(_))
        ));
    });
}

#[test]
fn only_the_owner_reads_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    drop(Embedded::open(&path).unwrap());
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_damaged_file_is_refused_and_left_alone() {
    for content in [b"".as_slice(), b"not a store", &[0xff; 9000]] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        std::fs::write(&path, content).unwrap();
        let error = Embedded::open(&path).unwrap_err();
        assert!(matches!(error, StoreError::Unusable { .. }), "{error}");
        assert!(error.to_string().contains("left as it is"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), content);
    }
}

#[test]
fn a_second_opener_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let _first = Embedded::open(&path).unwrap();
    let error = Embedded::open(&path).unwrap_err();
    assert!(matches!(error, StoreError::InUse { .. }), "{error}");
}

const WRITER: &str = "TULLE_TEST_STORE_WRITER";

/// The process that the next test kills; by itself it is no test.
#[test]
#[ignore = "another test starts it, as a process"]
fn writer_process() {
    use std::io::Write as _;
    let Ok(path) = std::env::var(WRITER) else {
        return;
    };
    let store = Embedded::open(std::path::Path::new(&path)).unwrap();
    for i in 0u64.. {
        let pair = [
            put("Workload", "a", &i.to_string()),
            put("Workload", "b", &i.to_string()),
        ];
        store.commit(&pair).unwrap();
        println!("committed {i}");
        std::io::stdout().flush().unwrap();
    }
}

#[test]
fn what_was_committed_survives_kill_9() {
    use std::io::BufRead;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    for round in 0..3 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "store::tests::writer_process",
                "--include-ignored",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(WRITER, &path)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        let mut last = None;
        for line in lines {
            let line = line.unwrap();
            if let Some((_, number)) = line.split_once("committed ") {
                last = Some(number.parse::<u64>().unwrap());
                if last == Some(20 + round) {
                    child.kill().unwrap();
                }
            }
        }
        child.wait().unwrap();
        let last = last.expect("the writer committed something");
        let store = Embedded::open(&path).unwrap();
        let objects = store.objects().unwrap();
        let number = |name: &str| -> u64 {
            let object = objects.iter().find(|o| o.name == name).unwrap();
            object.json.parse().unwrap()
        };
        assert!(
            number("a") >= last,
            "commit {last} was answered and is lost"
        );
        assert_eq!(number("a"), number("b"), "a batch was half written");
    }
}

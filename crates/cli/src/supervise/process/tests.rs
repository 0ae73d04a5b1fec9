use super::*;
use tokio::task::LocalSet;

fn keep(script: &'static str) -> (SupervisedProcess, Rc<Notify>) {
    let changed = Rc::new(Notify::new());
    let make: Make = Box::new(move |starts| {
        Box::pin(async move {
            // A shell cannot catch what it was started to pass over.
            let mut command = Command::new("env");
            command
                .args(["--default-signal=QUIT", "sh", "-c", script])
                .env("STARTS", starts.to_string());
            Ok(command)
        })
    });
    let grace = Duration::from_millis(300);
    let kept = SupervisedProcess::start("test".into(), grace, Rc::clone(&changed), make);
    (kept, changed)
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(LocalSet::new().run_until(test));
}

#[test]
fn what_ends_is_started_again() {
    run(async {
        let (kept, changed) = keep("[ $STARTS -ge 2 ] && exec sleep 60; exit 7");
        while !(kept.process().restarts == 2 && kept.process().id.is_some()) {
            changed.notified().await;
        }
        assert_eq!(kept.process().last_exit.as_deref(), Some("exit code 7"));
        let id = kept.process().id.unwrap();
        kept.stop().await;
        assert!(!id.is_alive());
    });
}

#[test]
fn one_takes_over_while_the_other_goes_on() {
    run(async {
        // The second one fails at first.
        let (kept, changed) = keep("[ $STARTS -eq 1 ] && exit 7; exec sleep 60");
        while kept.process().id.is_none() {
            changed.notified().await;
        }
        let old = kept.process().id.unwrap();
        kept.succeed();
        while !(kept.process().restarts == 1 && kept.process().id.is_some_and(|new| new != old)) {
            changed.notified().await;
            assert!(old.is_alive());
        }
        let new = kept.process().id.unwrap();
        assert!(kept.has_predecessor() && old.is_alive() && new.is_alive());
        kept.retire();
        while old.is_alive() {
            sleep(Duration::from_millis(5)).await;
        }
        assert!(!kept.has_predecessor() && new.is_alive());
        // Whoever is told to stop ends both.
        kept.succeed();
        while kept.process().id == Some(new) {
            changed.notified().await;
        }
        let last = kept.process().id.unwrap();
        assert!(new.is_alive());
        kept.stop().await;
        assert!(!new.is_alive() && !last.is_alive());
    });
}

#[test]
fn one_that_was_taken_over_from_has_time_until_the_next_one_is() {
    run(async {
        let (kept, changed) = keep("trap : QUIT; while :; do sleep 0.05; done");
        let mut processes = Vec::new();
        for _ in 0..3 {
            while kept.process().id.is_none_or(|id| processes.contains(&id)) {
                changed.notified().await;
            }
            let id = kept.process().id.unwrap();
            processes.push(id);
            while !proc::catches(Pid::from_raw(id.pid).unwrap(), Signal::QUIT) {
                sleep(Duration::from_millis(5)).await;
            }
            kept.retire();
            kept.succeed();
        }
        while kept.process().id.is_none_or(|id| processes.contains(&id)) {
            changed.notified().await;
        }
        kept.retire();
        while processes[1].is_alive() {
            sleep(Duration::from_millis(5)).await;
        }
        assert!(!processes[0].is_alive() && processes[2].is_alive());
        while kept.process().leaving != [processes[2]] {
            changed.notified().await;
        }
        kept.stop().await;
        assert!(!processes[2].is_alive());
    });
}

#[test]
fn one_that_knows_no_farewell_is_ended_as_any_other() {
    run(async {
        let (kept, changed) =
            keep("trap 'sleep 0.1; echo done; exit' TERM; while :; do sleep 0.01; done");
        while kept.process().id.is_none() {
            changed.notified().await;
        }
        let old = kept.process().id.unwrap();
        let pid = Pid::from_raw(old.pid).unwrap();
        while !proc::catches(pid, Signal::TERM) {
            sleep(Duration::from_millis(5)).await;
        }
        assert!(!proc::catches(pid, Signal::QUIT));
        kept.succeed();
        while kept.process().id.is_none_or(|id| id == old) {
            changed.notified().await;
        }
        let begun = Instant::now();
        kept.retire();
        while old.is_alive() {
            sleep(Duration::from_millis(5)).await;
        }
        assert!(begun.elapsed() >= Duration::from_millis(100), "it finished");
        kept.stop().await;
    });
}

#[test]
fn one_that_dies_before_the_other_takes_over_is_noticed() {
    run(async {
        let (kept, changed) = keep("[ $STARTS -ge 1 ] && exit 7; exec sleep 60");
        while kept.process().id.is_none() {
            changed.notified().await;
        }
        let old = kept.process().id.unwrap();
        kept.succeed();
        while kept.process().restarts < 3 {
            changed.notified().await;
        }
        assert!(kept.has_predecessor());
        // The next start is most of a second away.
        old.signal(Signal::KILL);
        let restarts = kept.process().restarts;
        while kept.has_predecessor() {
            changed.notified().await;
        }
        assert_eq!(kept.process().restarts, restarts);
        kept.stop().await;
    });
}

#[test]
fn what_ignores_sigterm_is_killed_with_its_children() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        // A closure cannot borrow the path for 'static; the shell finds it by this variable.
        let script = format!(
            "trap '' TERM; sleep 60 & echo $! > {}; wait; wait",
            file.display()
        );
        let (kept, _changed) = keep(script.leak());
        let grandchild = loop {
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            if let Ok(pid) = text.trim().parse() {
                break ProcessId::from_pid(pid).unwrap();
            }
            sleep(Duration::from_millis(5)).await;
        };
        kept.stop().await;
        while grandchild.is_alive() {
            sleep(Duration::from_millis(5)).await;
        }
    });
}

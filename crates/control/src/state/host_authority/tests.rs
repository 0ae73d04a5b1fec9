use super::super::Actor;
use super::super::testing::{apply, csr, id, join, load, mesh, workload};
use super::*;
use crate::store::double::Double;
use serde_json::json;
use std::sync::{Arc, mpsc};
use std::thread;

/// Time enough for a write to memory.
const WHILE: Duration = Duration::from_secs(1);

/// A mesh whose host `n` may have an authority over its workload `b`.
fn with_host(store: &Arc<Double>) -> (MeshState, Membership) {
    let state = load(store);
    apply(
        &state,
        &Actor::Operator,
        &mesh(&json!({ "hostAuthority": {} })),
    );
    let membership = join(&state, "n");
    apply(&state, &Actor::Node("n".to_owned()), &workload("n", "b"));
    (state, membership)
}

fn ask(state: &MeshState, membership: Membership) -> Result<Option<IssuedCertificate>, Refused> {
    let (authority, host) = (state.authority(), id("node/n"));
    state.issue_authority(
        &authority,
        &csr(),
        &host,
        Some(membership),
        SystemTime::now(),
    )
}

#[test]
fn an_authority_that_is_given_while_its_host_tells_of_certificates_is_stored() {
    let store = Arc::new(Double::default());
    let (state, membership) = with_host(&store);
    let state = &state;
    assert!(ask(state, membership).unwrap().is_some());
    let (committed, is_committed) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel();
    store.after_commit(move || {
        committed.send(()).unwrap();
        may_go_on.recv().unwrap();
    });
    let (told, is_told) = mpsc::channel();
    thread::scope(|scope| {
        let asking = scope.spawn(move || ask(state, membership));
        is_committed.recv().unwrap();
        scope.spawn(move || {
            let issued = v1::IssuedByHost {
                serial: "3f9a".into(),
                spiffe_id: id("svc/b").to_string(),
                not_after_unix_seconds: 1,
            };
            state.note_issued("n", &[issued]);
            told.send(()).unwrap();
        });
        // The host is heard only after the authority is in force.
        let early = is_told.recv_timeout(WHILE);
        go_on.send(()).unwrap();
        assert!(asking.join().unwrap().unwrap().is_some());
        assert!(early.is_err());
    });
    let stored = all(&*store).unwrap();
    assert_eq!(stored, *state.authorities.lock().unwrap());
    assert_eq!(stored["n"].generation, 2);
    assert_eq!(stored["n"].issued.len(), 1);
}

#[test]
fn a_removed_host_gets_no_authority_over_workloads_of_another_of_its_name() {
    let store = Arc::new(Double::default());
    let (state, old) = with_host(&store);
    assert!(state.delete(&Actor::Operator, "Node", "n").unwrap());
    let new = join(&state, "n");
    apply(&state, &Actor::Node("n".to_owned()), &workload("n", "b"));
    let refused = ask(&state, old).map(drop);
    assert!(
        matches!(refused, Err(Refused::NotAllowed(_))),
        "{refused:?}"
    );
    assert!(ask(&state, new).unwrap().is_some());
}

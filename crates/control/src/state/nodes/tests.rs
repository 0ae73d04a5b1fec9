use super::super::Actor;
use super::super::testing::{apply, csr, id, join, load, mesh};
use super::*;
use crate::store::Memory;
use crate::store::double::Double;
use serde_json::json;
use std::sync::Arc;

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn a_removed_host_is_refused_until_certificates_of_an_earlier_lifetime_have_ended() {
    let store = Arc::new(Memory::new());
    let state = load(&store);
    let lifetime = |hours: &str| mesh(&json!({ "lifetime": hours }));
    apply(&state, &Actor::Operator, &lifetime("8760h"));
    let membership = join(&state, "n");
    let now = SystemTime::now();
    let days = |days: u32| now + 24 * HOUR * days;
    let host = id("node/n");
    let issued = state.issue(&state.authority(), &csr(), &host, Some(membership), now);
    assert!(issued.unwrap().not_after > days(364));

    // Also a controller that starts after that knows until when it is valid.
    let state = load(&store);
    apply(&state, &Actor::Operator, &lifetime("24h"));
    assert!(state.delete(&Actor::Operator, "Node", "n").unwrap());
    let state = load(&store);
    let membership = Serial::from(membership);
    for (after, is_refused) in [(60, true), (365, true), (368, false)] {
        state.with_index(|index| state.limit_removed(index, days(after)));
        let removed = state.removed.lock().unwrap();
        let is = removed.contains_key(&membership);
        assert_eq!(is, is_refused, "after {after} days");
    }
    assert!(store.values(Space::Removed).unwrap().is_empty());
}

#[test]
fn nobody_has_a_certificate_by_a_host_before_its_end_is_noted() {
    let store = Arc::new(Double::default());
    let state = load(&store);
    let membership = Some(join(&state, "n"));
    let (now, authority, workload) = (SystemTime::now(), state.authority(), id("svc/b"));
    let issue = |membership, now| {
        let issued = state.issue(&authority, &csr(), &workload, membership, now);
        issued.map(drop)
    };
    store.fail(true);
    let refused = issue(membership, now);
    assert!(matches!(refused, Err(Refused::Failed(_))), "{refused:?}");
    // No host could take it along.
    issue(None, now).unwrap();
    store.fail(false);
    issue(membership, now).unwrap();

    // Ends within the next day are noted with it, and nothing is written.
    store.fail(true);
    issue(membership, now + 23 * HOUR).unwrap();
    let refused = issue(membership, now + 25 * HOUR);
    assert!(matches!(refused, Err(Refused::Failed(_))), "{refused:?}");
    store.fail(false);
    issue(membership, now + 25 * HOUR).unwrap();
    // A smaller end takes the place of no greater one.
    issue(membership, now).unwrap();
    let noted = certificates_end(&*store).unwrap().into_inner();
    assert!(noted >= unix(now + 72 * HOUR), "{noted}");

    assert!(state.delete(&Actor::Operator, "Node", "n").unwrap());
    let refused = issue(membership, now);
    assert!(
        matches!(refused, Err(Refused::NotAllowed(_))),
        "{refused:?}"
    );
}

#[test]
fn a_note_that_cannot_be_read_stops_the_controller() {
    let store = Memory::new();
    let note = Write::PutValue {
        space: Space::Settings,
        key: CERTIFICATES_END.to_owned(),
        value: vec![1],
    };
    store.commit(&[note]).unwrap();
    let why = certificates_end(&store).unwrap_err().to_string();
    assert!(why.contains(CERTIFICATES_END), "{why}");
}

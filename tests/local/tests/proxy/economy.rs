//! Workers pause before they wait for events, where the configuration allows it and events come fast.

use tests_local::{Load, Pair, Server, eventually, ok};

/// Enough for events to come faster than a proxy without optimisation serves one at a time.
const CLIENTS: usize = 16;

#[test]
fn fast_events_are_served_together_when_that_is_allowed() {
    let app = Server::start(|mut connection| {
        while connection.request().is_ok() {
            connection.send(ok(b"served"));
        }
    });
    let pair = Pair::start(app.address());
    let pauses = || pair.client.metric("tulle_pauses_total", &[]);
    let load = Load::start(pair.address, CLIENTS, "/");
    load.await_more(500);
    assert_eq!(pauses(), 0.0, "nothing has allowed a pause");

    let economy = |us: u32| {
        let mut config = pair.client.config.clone();
        config["mesh"]["economyUs"] = us.into();
        pair.client.reload(&config);
    };
    economy(1000);
    eventually("it pauses", || pauses() > 20.0);
    load.await_more(500);

    economy(0);
    let before = pauses();
    load.await_more(500);
    assert_eq!(pauses(), before, "the permission is withdrawn");
    assert!(load.assert_no_failure() >= 1500);
}

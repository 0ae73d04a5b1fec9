//! Joined hosts that lose their controller go on past the end of two certificates, and stop when their authority ends;
//! the thirty of a month are in `month.rs`. And a host whose authority was stolen, which is
//! believed for its own workloads only, and until the centre says otherwise.

use crate::cli_join::{only, terminate};
use crate::cut_off::{
    LIFETIME, Story, await_answer, call, call_until, cut_power, is_ratings, joining, mesh,
    one_host, shown, sleeper, start_again, two_hosts,
};
use rustix::process::Signal;
use serde_json::Value;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};
use tests_local::{
    Answer, Client, Demo, RATING, TLS13, TlsClient, eventually, free_port, pause, signal,
};
use tulle_tls::testing::HostCa;

#[test]
fn hosts_go_on_without_their_controller_and_come_back_to_it() {
    let story = Story::start(|_| mesh(60));
    let (two, three, ratings) = two_hosts(true);
    let mut joined = [story.join(&two, "two"), story.join(&three, "three")];
    story.await_authority("two", &["ratings", "spare"]);
    story.await_authority("three", &["caller"]);
    await_answer(ratings);
    assert_eq!((shown(&two, "ratings"), shown(&three, "caller")), (1, 1));

    // Twice as long as any certificate of the centre lives.
    story.kill();
    let lost = Instant::now();
    let past =
        |lifetimes: u32| lost + Duration::from_secs(LIFETIME) * lifetimes + Duration::from_secs(1);
    call_until(ratings, past(1));
    assert_eq!((shown(&two, "ratings"), shown(&three, "caller")), (2, 2));
    // A sidecar that is restarted here goes on, too.
    signal(two.sidecar("ratings"), Signal::KILL);
    signal(three.sidecar("caller"), Signal::KILL);
    await_answer(ratings);
    call_until(ratings, past(2));

    // While the hosts are still cut off, the operator removes a workload of one of them.
    story.up(free_port());
    let deleted = story.centre.tulle(&["delete", "workload", "spare"]);
    assert_eq!(deleted.code, 0, "{deleted:?}");
    assert_eq!(story.authority("two")["counts"], false);
    assert_eq!(story.centre.tulle(&["down"]).code, 0);
    story.up(story.port);
    eventually("the centre certifies both again", || {
        shown(&two, "ratings") == 1 && shown(&three, "caller") == 1
    });
    await_answer(ratings);
    // Neither lost nor resurrected.
    assert_eq!(story.workloads(), ["caller", "ratings"]);
    eventually("the host has ended it", || {
        two.application_now("spare").is_none()
    });
    assert_eq!(story.workloads(), ["caller", "ratings"]);
    story.await_authority("two", &["ratings"]);
    // The centre knows what was certified without it.
    eventually("both hosts have told what they certified", || {
        ["two", "three"].iter().all(|host| {
            let issued = story.authority(host)["issued"].clone();
            issued.as_array().is_some_and(|issued| issued.len() >= 2)
        })
    });
    for child in &mut joined {
        assert_eq!(terminate(child), 0);
    }
}

#[test]
fn a_host_starts_again_although_no_controller_answers() {
    let closed = "apiVersion: tulle.dev/v1alpha1\nkind: AuthorizationPolicy\nmetadata: {name: closed}\nspec:\n  \
                  action: Deny\n  targetRefs: [{name: ratings}]\n  rules:\n    - to: {paths: [{type: PathPrefix, value: /closed}]}\n";
    let story = Story::start(|_| format!("{}---\n{closed}", mesh(600)));
    let (host, ratings) = one_host();
    let is_closed = || {
        let mut client = Client::connect(ratings);
        client.get("/closed").status()
    };
    let made = story.token("two");
    let joined = story.join(&host, "two");
    story.await_authority("two", &["caller", "ratings"]);
    await_answer(ratings);
    assert_eq!(is_closed(), 403);
    await_known(&host, &["caller", "ratings"]);

    // First the centre is lost, then the host's power; and no certificate is left of before.
    story.kill();
    let lost = Instant::now();
    cut_power(&host, joined);
    while lost.elapsed() < Duration::from_secs(LIFETIME) {
        pause("certificates end", Duration::from_millis(100));
    }
    let mut joined = start_again(&host, &made, &[]);
    await_answer(ratings);
    assert_eq!((shown(&host, "ratings"), shown(&host, "caller")), (2, 2));
    assert_eq!(is_closed(), 403, "policy is as it was");
    eventually("it says that it is well", || {
        host.status()["mesh"]["phase"] == "running"
    });
    let status = host.tulle(&["status"]).out;
    assert!(
        status.contains("does not answer; traffic goes on"),
        "{status}"
    );

    // An end in order leaves nothing that it would not find again. What is new waits, and holds up nobody.
    assert_eq!(terminate(&mut joined), 0);
    let text = std::fs::read_to_string(&host.manifest).unwrap();
    std::fs::write(
        &host.manifest,
        format!("{text}\n---\n{}", sleeper("late", "")),
    )
    .unwrap();
    // Somebody takes connections in the place of the controller, and says nothing.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, story.port)).unwrap();
    let mut joined = start_again(&host, &made, &["--stay"]);
    await_answer(ratings);
    eventually("the new workload says what it waits for", || {
        let status = host.tulle(&["status"]).out;
        status.contains("cannot start while no controller answers")
    });
    assert!(host.application_now("late").is_none());

    drop(silent);
    story.up(story.port);
    let is_back = || shown(&host, "ratings") == 1 && shown(&host, "caller") == 1;
    eventually("the centre certifies them again", is_back);
    eventually("the new workload runs", || {
        host.application_now("late").is_some()
    });
    assert_eq!(story.workloads(), ["caller", "late", "ratings"]);
    assert_eq!(host.status()["controller"]["away"], false);
    await_answer(ratings);
    assert_eq!(is_closed(), 403);

    // Shut down while the centre is there, and started while it is not.
    story.await_authority("two", &["caller", "late", "ratings"]);
    await_known(&host, &["caller", "late", "ratings"]);
    assert_eq!(terminate(&mut joined), 0);
    assert_eq!(story.workloads(), ["caller", "late", "ratings"]);
    story.kill();
    let mut joined = start_again(&host, &made, &[]);
    await_answer(ratings);
    eventually("all of it runs without a centre", || {
        host.application_now("late").is_some()
    });
    story.up(story.port);
    eventually("the centre certifies them again", is_back);

    // A host that has left is not of the mesh, whoever answers.
    assert_eq!(terminate(&mut joined), 0);
    assert!(story.workloads().is_empty());
    let known = host.path().join("state/host-last-known");
    let known_file = known.with_extension("json");
    assert!(!known.exists() && !known_file.exists());
    let refused = |part: &str| {
        let refused = joining(&host, &made).output().unwrap();
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.contains(part), "{part}: {said}");
    };

    // Nor is one that was removed while it was off.
    let joined = story.join(&host, "two");
    story.await_authority("two", &["caller", "late", "ratings"]);
    await_answer(ratings);
    cut_power(&host, joined);
    assert!(known_file.exists());
    let removed = story.centre.tulle(&["delete", "node", "two"]);
    assert_eq!(removed.code, 0, "{removed:?}");
    refused("no longer a host of the mesh");
    assert!(!known_file.exists() && !host.path().join("state/host-authority.json").exists());
    story.kill();
    refused("cannot reach the controller");
}

#[test]
fn a_host_whose_port_was_taken_while_it_was_off_says_so() {
    let story = Story::start(|_| mesh(600));
    let (host, ratings) = one_host();
    let made = story.token("two");
    let joined = story.join(&host, "two");
    story.await_authority("two", &["caller", "ratings"]);
    await_answer(ratings);
    await_known(&host, &["caller", "ratings"]);

    // The centre is lost, then the host's power, and another process takes the host's port.
    let lose_and_take = |joined| {
        story.kill();
        cut_power(&host, joined);
        let known = std::fs::read(host.path().join("state/host-last-known.json")).unwrap();
        let known: Value = serde_json::from_slice(&known).unwrap();
        let port = u16::try_from(known["ports"]["ratings/8101"].as_u64().unwrap()).unwrap();
        (
            TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap(),
            format!("another process has 127.0.0.1:{port}, where the mesh knows it"),
        )
    };
    let says = |said: &str| host.tulle(&["status"]).out.contains(said);
    let (_taken, said) = lose_and_take(joined);
    let joined = start_again(&host, &made, &[]);
    eventually("it says which port another process has", || says(&said));
    story.up(story.port);
    await_answer(ratings);
    eventually("nothing is the matter any more", || !says(&said));
    await_known(&host, &["caller", "ratings"]);

    // Without a controller the mesh knows that port still, however often the host starts.
    let (taken, said) = lose_and_take(joined);
    let joined = start_again(&host, &made, &[]);
    eventually("it says so of the port of today", || says(&said));
    cut_power(&host, joined);
    let joined = start_again(&host, &made, &[]);
    eventually("it says so again", || says(&said));
    drop(taken);
    cut_power(&host, joined);
    let mut joined = start_again(&host, &made, &[]);
    await_answer(ratings);
    assert!(!says(&said));
    assert_eq!(terminate(&mut joined), 0);
}

fn await_known(host: &Demo, workloads: &[&str]) {
    let known = host.path().join("state/host-last-known");
    eventually("what the sidecars know is on the disk", || {
        workloads.iter().all(|workload| {
            let now = host.path().join("state/run/proxies").join(workload);
            let now = std::fs::read(now.join("snapshot")).unwrap();
            std::fs::read(known.join(format!("{workload}.json"))).is_ok_and(|kept| kept == now)
        })
    });
}

#[test]
fn a_host_starts_alone_only_for_the_mesh_that_it_was_of() {
    let story = Story::start(|_| mesh(600));
    let (two, _, _) = two_hosts(false);
    let joined = story.join(&two, "two");
    story.await_authority("two", &["ratings"]);
    let made = story.token("two");
    let known = two.path().join("state/host-last-known/ratings.json");
    eventually("ratings runs, and what it knows is kept", || {
        two.application_now("ratings").is_some() && known.exists()
    });
    cut_power(&two, joined);
    story.kill();
    let mut other = made.clone();
    other["ca_fingerprint"] = Value::from("0a".repeat(32));
    let mut elsewhere = made.clone();
    elsewhere["controller"] = Value::from(format!("127.0.0.1:{}", free_port()));
    for made in [other, elsewhere] {
        let refused = joining(&two, &made).output().unwrap();
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.contains("cannot reach the controller"), "{said}");
    }
    let mut joined = start_again(&two, &made, &[]);
    eventually("ratings runs", || {
        let status = two.tulle(&["status", "-o", "json"]).out;
        status.contains(r#""phase": "running""#)
    });
    assert_eq!(terminate(&mut joined), 0);
}

/// The authority comes from the mesh's root, as the host's own certificate does, and is replaced with it.
#[test]
fn hosts_go_on_alone_after_the_root_was_replaced() {
    let story = Story::start(|_| mesh(60));
    let (two, three, ratings) = two_hosts(false);
    let mut joined = [story.join(&two, "two"), story.join(&three, "three")];
    story.await_authority("two", &["ratings"]);
    story.await_authority("three", &["caller"]);
    await_answer(ratings);
    let rotated = story.centre.tulle(&["ca", "rotate", "--hold", "1s"]);
    assert_eq!(rotated.code, 0, "{rotated:?}");
    assert_eq!(call(ratings), Ok(()));

    story.kill();
    call_until(ratings, Instant::now() + Duration::from_secs(LIFETIME + 1));
    assert_eq!((shown(&two, "ratings"), shown(&three, "caller")), (2, 2));
    for child in &mut joined {
        terminate(child);
    }
}

/// Hosts that are cut off for longer than their authority lasts, in seconds, serve until shortly before its end.
pub(crate) fn assert_hosts_stop(authority: u64, serve: u64) {
    let story = Story::start(|_| mesh(authority));
    let (two, three, ratings) = two_hosts(false);
    let joined = [story.join(&two, "two"), story.join(&three, "three")];
    story.await_authority("two", &["ratings"]);
    story.await_authority("three", &["caller"]);
    await_answer(ratings);
    let token = story
        .centre
        .tulle(&["token", "create", "node/two", "-o", "json"]);
    story.kill();
    let lost = Instant::now();
    call_until(ratings, lost + Duration::from_secs(serve));
    for child in joined {
        let ended = child.wait_with_output().unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(1), "{said}");
        for part in [
            "no longer a host",
            "expired before the controller",
            "tulle token create",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
    assert!(
        lost.elapsed() <= Duration::from_secs(authority + 10),
        "{:?}",
        lost.elapsed()
    );
    assert!(call(ratings).is_err());

    // It comes back with a new token only.
    story.up(story.port);
    let made: Value = serde_json::from_str(&token.out).unwrap();
    let late = joining(&two, &made).output().unwrap();
    let late = Answer {
        code: late.status.code().unwrap_or(-1),
        out: String::new(),
        err: String::from_utf8(late.stderr).unwrap(),
    };
    assert_eq!(late.code, 1, "{late:?}");
    assert!(late.err.contains("has expired"), "{late:?}");
}

#[test]
fn hosts_stop_when_their_authority_ends() {
    assert_hosts_stop(20, LIFETIME + 1);
}

#[test]
fn a_stolen_authority_speaks_for_its_host_until_the_centre_says_otherwise() {
    let lasting = "apiVersion: tulle.dev/v1alpha1\nkind: Mesh\nmetadata: {name: m}\nspec:\n  \
                   permissiveMode: true\n  certificates: {hostAuthority: {}}\n---\n";
    let story = Story::start(|text| format!("{lasting}{}", only(&text, is_ratings)));
    let host = Demo::prepare_without_privileges(|_| {
        [sleeper("shop", ""), sleeper("till", "")].join("---\n")
    });
    let mut joined = story.join(&host, "edge");
    story.await_authority("edge", &["shop", "till"]);
    let steal = || {
        let kept = host.path().join("state/host-authority.json");
        // The host keeps it a moment after the centre has given it.
        eventually("the host has it", || kept.exists());
        let kept: Value = serde_json::from_slice(&std::fs::read(kept).unwrap()).unwrap();
        HostCa::from_pem(kept["pem"].as_str().unwrap())
    };
    let services = story.centre.status()["services"].clone();
    let services = services.as_array().unwrap().iter();
    let mut workloads = services.flat_map(|s| s["workloads"].as_array().unwrap());
    let ratings = workloads.find(|w| w["name"] == "ratings").unwrap();
    let endpoint = ratings["endpoints"][0].as_str().unwrap();
    let endpoint: SocketAddr = endpoint.rsplit(' ').next().unwrap().parse().unwrap();
    let connect = |ca: &HostCa, path: &str| {
        let leaf = ca.leaf(&format!("spiffe://tulle.local/{path}"));
        TlsClient::connect(endpoint, Some(&ca.issue_leaf(&leaf)), TLS13, &["http/1.1"])
    };
    let target = format!("/ratings/{RATING}");
    let status = |ca: &HostCa, path: &str| {
        let answer = connect(ca, path).and_then(|mut client| client.get(&target));
        answer.map(|answer| answer.status())
    };
    let stolen = steal();
    assert_eq!(status(&stolen, "svc/shop").unwrap(), 200);
    for other in [
        "svc/ratings",
        "svc/unheard-of",
        "node/edge",
        "node/other",
        "controller",
    ] {
        assert!(status(&stolen, other).is_err(), "{other}");
        let errors = story.centre.admin("ratings", "/errors").text();
        let said = format!("may not certify spiffe://tulle.local/{other}");
        assert!(errors.contains(&said), "{said}: {errors}");
    }

    // The removal of one of its workloads ends the authority. The host gets another over the rest.
    let deleted = story.centre.tulle(&["delete", "workload", "till"]);
    assert_eq!(deleted.code, 0, "{deleted:?}");
    eventually("it is refused", || status(&stolen, "svc/shop").is_err());
    eventually("the next is believed", || {
        status(&steal(), "svc/shop").is_ok()
    });
    let stolen = steal();
    assert!(status(&stolen, "svc/till").is_err());

    // The centre revokes the host: what is open ends, and nothing new begins. The host leaves the mesh.
    let mut open = connect(&stolen, "svc/shop").unwrap();
    assert_eq!(open.get(&target).unwrap().status(), 200);
    let done = story.centre.tulle(&["identity", "revoke", "node/edge"]);
    assert_eq!(done.code, 0, "{done:?}");
    let revoked = Instant::now();
    while open.get(&target).is_ok() {
        assert!(revoked.elapsed() < Duration::from_secs(1), "it goes on");
    }
    assert!(status(&stolen, "svc/shop").is_err());
    assert_eq!(joined.wait().unwrap().code(), Some(1));
}

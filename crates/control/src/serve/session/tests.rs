use super::*;
use bytes::Bytes;

struct Mesh(BTreeMap<&'static str, (u64, Option<&'static str>)>);

impl Mesh {
    fn lookup(&self) -> impl Fn(&str) -> Option<EncodedResource> + '_ {
        |name| {
            let (version, owner) = self.0.get(name)?;
            Some(EncodedResource {
                version: *version,
                owner: owner.map(id),
                ..resource(Bytes::from_static(b"body"))
            })
        }
    }
}

/// A resource in its first version, which everybody may have.
fn resource(body: Bytes) -> EncodedResource {
    EncodedResource {
        version: 1,
        patch: None,
        body,
        labels: Bytes::new(),
        owner: None,
        service: None,
        backends: Vec::new(),
        is_incomplete: false,
    }
}

fn id(name: &str) -> SpiffeId {
    SpiffeId::parse(&format!("spiffe://t/svc/{name}")).unwrap()
}

fn ack(nonce: u64, error: &str) -> v1::Ack {
    v1::Ack {
        nonce,
        error: error.into(),
        ..v1::Ack::default()
    }
}

fn names(update: &v1::ConfigUpdate) -> Vec<&str> {
    update.resources.iter().map(|r| r.name.as_str()).collect()
}

fn subscribe(session: &mut Session, mesh: &Mesh, names: &[&str]) -> Result<(), Violation> {
    let names = names.iter().map(|n| (*n).to_owned()).collect();
    let known = BTreeMap::new();
    let subscribed = session.subscribe(names, &known, &BTreeSet::new(), mesh.lookup());
    subscribed.map(|_| ())
}

#[test]
fn what_a_proxy_says_is_cut_and_commands_no_terminal() {
    let mut session = Session::new(id("x"));
    let mesh = Mesh(BTreeMap::new());
    subscribe(&mut session, &mesh, &["service/a"]).unwrap();
    session.next(mesh.lookup()).unwrap();
    // U+009B begins a command, too.
    let refused = session.acknowledged(ack(1, "b is\u{1b}[2J\r\n\u{9b}2J bäd"));
    let shown = "b is [2J   2J bäd".to_owned();
    assert_eq!(refused, AckResult::Refused(1, shown));
    let long = format!("a{}", "ä".repeat(MAX_ERROR_BYTES));
    assert_eq!(bounded(long).len(), MAX_ERROR_BYTES - 1);
}

#[test]
fn sends_once_and_then_only_what_changed() {
    let mut mesh = Mesh(BTreeMap::from([
        ("service/a", (1, None)),
        ("service/b", (1, None)),
    ]));
    let mut session = Session::new(id("x"));
    subscribe(
        &mut session,
        &mesh,
        &["service/a", "service/b", "service/c"],
    )
    .unwrap();
    let update = session.next(mesh.lookup()).unwrap();
    assert_eq!(names(&update), ["service/a", "service/b"]);
    assert_eq!(update.removed, ["service/c"]);
    // One update is in flight: changes wait and are coalesced.
    mesh.0.insert("service/a", (2, None));
    session.changed(["service/a".into()]);
    mesh.0.insert("service/a", (3, None));
    session.changed(["service/a".into(), "service/b".into()]);
    assert!(session.next(mesh.lookup()).is_none());
    assert_eq!(session.acknowledged(ack(9, "")), AckResult::Stale);
    assert_eq!(session.acknowledged(ack(1, "")), AckResult::Applied(1));
    let update = session.next(mesh.lookup()).unwrap();
    assert_eq!(names(&update), ["service/a"]);
    assert_eq!(update.resources[0].version, 3);
    session.acknowledged(ack(2, ""));
    assert!(session.next(mesh.lookup()).is_none());
}

#[test]
fn known_versions_are_not_sent_again() {
    let mesh = Mesh(BTreeMap::from([
        ("service/a", (7, None)),
        ("service/b", (8, None)),
    ]));
    let mut session = Session::new(id("x"));
    let known = [("service/a".to_owned(), 7), ("service/b".to_owned(), 7)];
    let wanted = vec!["service/a".to_owned(), "service/b".to_owned()];
    session
        .subscribe(wanted, &known.into(), &BTreeSet::new(), mesh.lookup())
        .unwrap();
    let update = session.next(mesh.lookup()).unwrap();
    assert_eq!(names(&update), ["service/b"]);
}

#[test]
fn a_proxy_keeps_what_it_has_while_the_new_one_is_incomplete() {
    let mesh = Mesh(BTreeMap::from([
        ("service/a", (2, None)),
        ("service/b", (2, None)),
    ]));
    let awaiting = |name: &str| {
        let is_incomplete = name == "service/a";
        let entry = mesh.lookup()(name)?;
        Some(EncodedResource {
            is_incomplete,
            ..entry
        })
    };
    let mut session = Session::new(id("x"));
    let known = BTreeMap::from([("service/a".to_owned(), 1)]);
    let wanted = vec!["service/a".to_owned(), "service/b".to_owned()];
    session
        .subscribe(wanted, &known, &BTreeSet::new(), awaiting)
        .unwrap();
    let update = session.next(awaiting).unwrap();
    assert_eq!(names(&update), ["service/b"]);
    assert!(update.removed.is_empty());
    session.acknowledged(ack(1, ""));
    session.changed(["service/a".into()]);
    assert_eq!(names(&session.next(mesh.lookup()).unwrap()), ["service/a"]);
}

#[test]
fn a_refused_update_is_taken_apart_and_the_bad_one_waits_for_a_change() {
    let mut mesh = Mesh(BTreeMap::from([
        ("service/a", (1, None)),
        ("service/b", (1, None)),
    ]));
    let mut session = Session::new(id("x"));
    subscribe(&mut session, &mesh, &["service/a", "service/b"]).unwrap();
    session.next(mesh.lookup()).unwrap();
    let refused = session.acknowledged(ack(1, "b is bad"));
    assert_eq!(refused, AckResult::Refused(1, "b is bad".into()));
    assert_eq!(names(&session.next(mesh.lookup()).unwrap()), ["service/a"]);
    session.acknowledged(ack(2, ""));
    assert_eq!(names(&session.next(mesh.lookup()).unwrap()), ["service/b"]);
    session.acknowledged(ack(3, "b is bad"));
    session.changed(["service/b".into()]);
    assert!(session.next(mesh.lookup()).is_none());
    mesh.0.insert("service/b", (2, None));
    session.changed(["service/b".into()]);
    assert_eq!(names(&session.next(mesh.lookup()).unwrap()), ["service/b"]);
}

#[test]
fn while_memory_is_short_many_small_messages_add_no_more_than_one() {
    let mesh = Mesh(BTreeMap::new());
    let mut session = Session::new(id("x"));
    let add = |session: &mut Session, from: usize, to: usize, is_short: bool| {
        let may = session.may_add(to - from, is_short);
        if may {
            let names: Vec<String> = (from..to).map(|n| format!("service/{n}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            subscribe(session, &mesh, &names).unwrap();
        }
        may
    };
    assert!(add(&mut session, 0, 1000, false));
    // A few addresses that are new to a proxy with many names.
    for name in 1000..1000 + FEW_NAMES {
        assert!(add(&mut session, name, name + 1, true), "{name}");
    }
    let full = 1000 + FEW_NAMES;
    assert!(!add(&mut session, full, full + 1, true));
    // Names that it gives up make room.
    session.unsubscribe(&["service/7".to_owned()]);
    assert!(add(&mut session, full, full + 1, true));
    assert!(!add(&mut session, full + 1, full + 2, true));
    // Once memory is not short any more, it may add as many as ever.
    assert!(add(&mut session, full + 1, 2000, false));
    assert!(add(&mut session, 2000, 2000 + FEW_NAMES, true));
    assert!(!add(&mut session, 3000, 3001, true));
}

#[test]
fn a_resource_that_goes_is_removed_once() {
    let mut mesh = Mesh(BTreeMap::from([("service/a", (1, None))]));
    let mut session = Session::new(id("x"));
    subscribe(&mut session, &mesh, &["service/a"]).unwrap();
    session.next(mesh.lookup()).unwrap();
    session.acknowledged(ack(1, ""));
    mesh.0.remove("service/a");
    session.changed(["service/a".into()]);
    assert_eq!(session.next(mesh.lookup()).unwrap().removed, ["service/a"]);
    session.acknowledged(ack(2, ""));
    session.changed(["service/a".into()]);
    assert!(session.next(mesh.lookup()).is_none());
}

#[test]
fn what_belongs_to_others_is_refused_or_withheld() {
    let mut mesh = Mesh(BTreeMap::from([("inbound/y", (1, Some("y")))]));
    let mut session = Session::new(id("x"));
    let refused = subscribe(&mut session, &mesh, &["inbound/y"]);
    assert_eq!(refused, Err(Violation::NotYours("inbound/y".into())));
    subscribe(&mut session, &mesh, &["inbound/z"]).unwrap();
    mesh.0.insert("inbound/z", (1, Some("z")));
    let update = session.next(mesh.lookup()).unwrap();
    assert!(update.resources.is_empty());
    assert_eq!(update.removed, ["inbound/z"]);
}

#[test]
fn names_and_their_number_are_limited() {
    let mesh = Mesh(BTreeMap::new());
    let mut session = Session::new(id("x"));
    let long = format!("service/{}", "x".repeat(MAX_NAME_BYTES));
    for bad in ["", "service/", "secret/x", "mesh/x", &long] {
        let refused = subscribe(&mut session, &mesh, &[bad]);
        assert!(matches!(refused, Err(Violation::BadName(_))), "{bad}");
    }
    let many = (0..=MAX_SUBSCRIPTIONS).map(|i| format!("service/{i}"));
    let (known, unused) = (BTreeMap::new(), BTreeSet::new());
    let refused = session.subscribe(many.collect(), &known, &unused, mesh.lookup());
    assert_eq!(refused, Err(Violation::TooMany));
}

#[test]
fn large_updates_are_split() {
    let big = |_: &str| Some(resource(Bytes::from(vec![0; 600 * 1024])));
    let mut session = Session::new(id("x"));
    let wanted = (0..3).map(|i| format!("service/{i}")).collect();
    let (known, unused) = (BTreeMap::new(), BTreeSet::new());
    session.subscribe(wanted, &known, &unused, big).unwrap();
    assert_eq!(session.next(big).unwrap().resources.len(), 2);
    session.acknowledged(ack(1, ""));
    assert_eq!(session.next(big).unwrap().resources.len(), 1);
}

#[test]
fn what_a_proxy_is_told_unasked_is_forgotten_unless_it_asks() {
    let mut mesh = Mesh(BTreeMap::from([
        ("service/a", (1, None)),
        ("service/b", (1, None)),
        ("service/c", (1, None)),
    ]));
    let mut session = Session::new(id("x"));
    subscribe(&mut session, &mesh, &["service/a"]).unwrap();
    let all = ["service/a", "service/b", "service/c"].map(Arc::from);
    let new = session.anticipate(all.to_vec());
    assert_eq!(new, all[1..]);
    let update = session.next(mesh.lookup()).unwrap();
    assert_eq!(names(&update).len(), 3);
    assert!(!update.more);
    session.acknowledged(ack(1, ""));
    // The resource changes and is then deleted: nobody has asked whose the name is.
    assert!(session.anticipates(&BTreeSet::from([all[1].clone()])));
    assert!(!session.anticipates(&BTreeSet::from([all[0].clone()])));
    mesh.0.insert("service/b", (2, None));
    session.changed([all[1].clone()]);
    assert_eq!(names(&session.next(mesh.lookup()).unwrap()), ["service/b"]);
    session.acknowledged(ack(2, ""));
    mesh.0.remove("service/b");
    session.changed([all[1].clone()]);
    let update = session.next(mesh.lookup()).unwrap();
    assert_eq!(
        (update.forgotten, update.removed),
        (vec!["service/b".into()], vec![])
    );
    assert_eq!(session.take_dropped(), all[1..2]);
    session.acknowledged(ack(3, ""));
    // A service that is used stays when it is no longer likely.
    subscribe(&mut session, &mesh, &["service/c"]).unwrap();
    assert!(session.anticipate(Vec::new()).is_empty());
    assert!(session.next(mesh.lookup()).is_none());
    assert_eq!(session.subscription_count(), 2);
}

fn whole(update: &v1::ConfigUpdate) -> Vec<(&str, bool)> {
    let sent = update.resources.iter();
    sent.map(|r| (r.name.as_str(), !r.by_host)).collect()
}

#[test]
fn a_proxy_with_services_of_its_host_is_told_names_once_and_all_again_when_the_host_is_away() {
    let mut mesh = Mesh(BTreeMap::from([
        ("mesh", (1, None)),
        ("service/a", (1, None)),
        ("service/b", (1, None)),
    ]));
    let mut session = Session::new(id("x"));
    session.services_from_host();
    subscribe(&mut session, &mesh, &["mesh", "service/a", "service/c"]).unwrap();
    session.anticipate(["service/a", "service/b"].map(Arc::from).to_vec());
    // Its host tells of those that it has asked for, also that they do not exist.
    let update = session.next(mesh.lookup()).unwrap();
    assert_eq!(whole(&update), [("mesh", true), ("service/b", false)]);
    assert!(update.removed.is_empty());
    session.acknowledged(ack(1, ""));
    for name in ["service/a", "service/b"] {
        mesh.0.insert(name, (2, None));
        session.changed([Arc::from(name)]);
        assert!(session.next(mesh.lookup()).is_none());
    }
    // The host is away: this proxy has the new one of one of them.
    let known = BTreeMap::from([("service/a".to_owned(), 2), ("service/b".to_owned(), 1)]);
    session.services_from_here(&known);
    let update = session.next(mesh.lookup()).unwrap();
    assert_eq!(whole(&update), [("service/b", true)]);
    assert_eq!(update.removed, ["service/c"]);
    session.acknowledged(ack(2, ""));
    // It is back.
    session.services_from_host();
    mesh.0.insert("service/a", (3, None));
    mesh.0.remove("service/b");
    session.changed(["service/a", "service/b"].map(Arc::from));
    let update = session.next(mesh.lookup()).unwrap();
    assert_eq!(whole(&update), []);
    assert_eq!(update.forgotten, ["service/b"]);
}

/// A proxy says what it holds before it reads what is on its way to it.
#[test]
fn what_is_in_flight_when_the_host_is_away_is_sent_again() {
    let mut mesh = Mesh(BTreeMap::from([("service/a", (6, None))]));
    let mut session = Session::new(id("x"));
    subscribe(&mut session, &mesh, &["service/a"]).unwrap();
    assert_eq!(names(&session.next(mesh.lookup()).unwrap()), ["service/a"]);
    session.services_from_host();
    mesh.0.insert("service/a", (7, None));
    session.changed([Arc::from("service/a")]);
    let known = BTreeMap::from([("service/a".to_owned(), 7)]);
    session.services_from_here(&known);
    session.acknowledged(ack(1, ""));
    let update = session.next(mesh.lookup()).unwrap();
    assert_eq!(update.resources[0].version, 7);
    session.acknowledged(ack(2, ""));
    // Said again it changes nothing.
    session.services_from_here(&BTreeMap::new());
    assert!(session.next(mesh.lookup()).is_none());
}

#[test]
fn a_host_may_subscribe_to_services_alone() {
    let mesh = Mesh(BTreeMap::from([("service/a", (1, None))]));
    let host = SpiffeId::parse("spiffe://t/node/edge").unwrap();
    let mut session = Session::new(host);
    subscribe(&mut session, &mesh, &["service/a"]).unwrap();
    for name in [
        "mesh",
        "egress",
        "inbound/a",
        "gateway/a",
        "address/10.0.0.1",
    ] {
        let refused = subscribe(&mut session, &mesh, &[name]);
        assert_eq!(refused, Err(Violation::NoService(name.into())));
    }
}

#[test]
fn the_last_update_of_many_says_so_also_when_nothing_is_left_to_say() {
    let big = |_: &str| Some(resource(Bytes::from(vec![0; 1024 * 1024])));
    let mut session = Session::new(id("x"));
    let known = BTreeMap::from([("service/c".to_owned(), 1)]);
    let names = vec!["service/a".into(), "service/c".into()];
    session
        .subscribe(names, &known, &BTreeSet::from(["service/c"]), big)
        .unwrap();
    session.anticipate(vec!["service/b".into(), "service/c".into()]);
    let mut more = Vec::new();
    for nonce in 1..=3 {
        more.push(session.next(big).unwrap().more);
        session.acknowledged(ack(nonce, ""));
    }
    assert_eq!(more, [true, true, false]);
    assert!(session.next(big).is_none());
}

/// A service with so many endpoints, and what makes it of the version before.
fn service(endpoints: u16, before: Option<&EncodedResource>) -> EncodedResource {
    let all = (0..endpoints).map(|n| format!(r#"{{"address":"10.0.0.1:{}"}}"#, 10_000 + n));
    let body: Bytes = all.collect::<Vec<_>>().join(",").into();
    let mut service = EncodedResource {
        version: tulle_api::version(&body, &[]),
        ..resource(body)
    };
    if let Some(before) = before {
        service.follow(before);
    }
    service
}

fn sent(session: &mut Session, present: &EncodedResource) -> v1::Resource {
    session.changed([Arc::from("service/a")]);
    let update = session.next(|_| Some(present.clone())).unwrap();
    let [resource] = &update.resources[..] else {
        panic!("{update:?}");
    };
    resource.clone()
}

#[test]
fn a_proxy_that_takes_patches_is_sent_what_differs_from_what_it_has() {
    let first = service(20, None);
    let second = service(21, Some(&first));
    let third = service(22, Some(&second));
    for takes in [false, true] {
        let mut session = Session::new(id("x"));
        if takes {
            session.send_patches();
        }
        let known = BTreeMap::from([("service/a".to_owned(), first.version)]);
        let name = vec!["service/a".to_owned()];
        session
            .subscribe(name, &known, &BTreeSet::new(), |_| None)
            .unwrap();
        let resource = sent(&mut session, &second);
        assert_eq!(
            (resource.patch.is_some(), resource.body.is_empty()),
            (takes, takes)
        );
        if !takes {
            continue;
        }
        let patch = resource.patch.unwrap();
        let encoded = |e: &EncodedResource| tulle_api::Encoded {
            body: e.body.clone(),
            labels: e.labels.clone(),
        };
        assert_eq!(
            tulle_api::apply_patch(&encoded(&first), &patch),
            Some((encoded(&second), second.version))
        );
        // One that missed a version, or refuses a patch, is sent the whole.
        session.acknowledged(ack(1, ""));
        let fourth = service(23, Some(&third));
        assert!(sent(&mut session, &fourth).patch.is_none());
        session.acknowledged(ack(2, ""));
        let fifth = service(24, Some(&fourth));
        assert!(sent(&mut session, &fifth).patch.is_some());
        session.acknowledged(ack(3, "it does not fit"));
        let update = session.next(|_| Some(fifth.clone())).unwrap();
        assert_eq!(update.resources[0].body, fifth.body);
        session.acknowledged(ack(4, ""));
        let sixth = service(25, Some(&fifth));
        assert!(
            sent(&mut session, &sixth).patch.is_none(),
            "it is of another version"
        );
    }
}

#[path = "../../tests/common/host_proxy.rs"]
mod host_proxy;

use super::*;
use host_proxy::Proxy;
use prost::Message;
use tulle_api::v1::host_services::Say;

impl Proxy {
    async fn connected(&mut self) -> bool {
        match self.next().await {
            Some(Say::Connected(is)) => is,
            other => panic!("{other:?}"),
        }
    }

    /// Names with versions, and names that do not exist, of the next update, which it takes.
    async fn versions(&mut self) -> (Vec<(String, u64)>, Vec<String>) {
        let update = self.update().await;
        let resources = update.resources.into_iter();
        (
            resources.map(|r| (r.name, r.version)).collect(),
            update.removed,
        )
    }
}

/// Services in one update of the controller.
fn told(services: &[(&str, &str)], removed: &[&str]) -> v1::ConfigUpdate {
    let resource = |(name, body): &(&str, &str)| v1::Resource {
        name: (*name).to_owned(),
        version: tulle_api::version(body.as_bytes(), b""),
        body: body.as_bytes().to_vec().into(),
        ..Default::default()
    };
    v1::ConfigUpdate {
        resources: services.iter().map(resource).collect(),
        removed: removed.iter().map(ToString::to_string).collect(),
        ..Default::default()
    }
}

fn version(body: &str) -> u64 {
    tulle_api::version(body.as_bytes(), b"")
}

fn one(name: &str, body: &str) -> (Vec<(String, u64)>, Vec<String>) {
    (vec![(name.to_owned(), version(body))], Vec::new())
}

/// Services of so many bytes, which are also their versions, in one update of the controller.
fn sized(services: &[(&str, usize)], removed: &[&str]) -> v1::ConfigUpdate {
    let resource = |(name, bytes): &(&str, usize)| v1::Resource {
        name: (*name).to_owned(),
        version: *bytes as u64,
        body: vec![0; *bytes].into(),
        ..Default::default()
    };
    v1::ConfigUpdate {
        resources: services.iter().map(resource).collect(),
        ..told(&[], removed)
    }
}

/// The next request to the controller: names that are wanted, and those that are not any longer.
async fn asked(services: &HostServices) -> (Vec<String>, Vec<String>) {
    loop {
        services.changed.notified().await;
        if let Some(request) = services.next_request() {
            return (request.subscribe, request.unsubscribe);
        }
    }
}

#[tokio::test]
async fn a_service_that_two_proxies_want_is_asked_for_once_and_told_to_both() {
    let services = Arc::new(HostServices::default());
    let (mut a, mut b) = (Proxy::attach(&services, "a"), Proxy::attach(&services, "b"));
    assert!(!a.connected().await && !b.connected().await);
    services.session.send_replace(1);
    assert!(a.connected().await && b.connected().await);
    a.subscribe(&["service/x"], &[]).await;
    assert_eq!(asked(&services).await, (vec!["service/x".into()], vec![]));
    assert_eq!(services.take(told(&[("service/x", "1")], &[])).error, "");
    assert_eq!(a.versions().await, one("service/x", "1"));
    // The second is told at once, and no more if it has that version.
    b.subscribe(&["service/x", "service/y"], &[("service/x", version("1"))])
        .await;
    assert_eq!(asked(&services).await, (vec!["service/y".into()], vec![]));
    // Proxies are not told that a service does not exist before the controller has said so.
    services.take(told(&[("service/x", "2")], &[]));
    assert_eq!(a.versions().await, one("service/x", "2"));
    assert_eq!(b.versions().await, one("service/x", "2"));
    services.take(told(&[], &["service/y"]));
    assert_eq!(b.versions().await, (vec![], vec!["service/y".into()]));
    // It is wanted until the last one has gone.
    drop(a);
    b.say(v1::SubscribeRequest {
        unsubscribe: vec!["service/y".into()],
        ..Default::default()
    })
    .await;
    assert_eq!(asked(&services).await, (vec![], vec!["service/y".into()]));
    drop(b);
    assert_eq!(asked(&services).await, (vec![], vec!["service/x".into()]));
    assert!(services.wanted().names.is_empty());
}

#[tokio::test]
async fn a_change_comes_as_a_patch_of_what_the_host_holds() {
    let services = Arc::new(HostServices::default());
    let mut proxy = Proxy::attach(&services, "a");
    assert!(!proxy.connected().await);
    proxy.subscribe(&["service/x"], &[]).await;
    asked(&services).await;
    let whole = |text: &str| {
        format!(
            "{{\"name\":\"x\",\"endpoints\":[{}{text}]}}",
            "1,".repeat(80)
        )
    };
    let (old, new) = (whole("7"), whole("8"));
    services.take(told(&[("service/x", &old)], &[]));
    assert_eq!(proxy.versions().await, one("service/x", &old));
    let encoded = |text: &str| tulle_api::Encoded {
        body: text.as_bytes().to_vec().into(),
        labels: Bytes::new(),
    };
    let patch = tulle_api::patch(&encoded(&old), &encoded(&new), version(&new));
    let update = v1::ConfigUpdate {
        resources: vec![v1::Resource {
            name: "service/x".into(),
            patch,
            ..Default::default()
        }],
        ..Default::default()
    };
    assert_eq!(services.take(update.clone()).error, "");
    assert_eq!(proxy.versions().await, one("service/x", &new));
    // Proxies of the host take none, so it makes none.
    assert_eq!(services.get("service/x").unwrap().patch, None);
    // It does not fit another version.
    let other = new.replace("1,", "2,");
    services.take(told(&[("service/x", &other)], &[]));
    let refused = services.take(update).error;
    assert!(refused.contains("service/x"), "{refused}");
}

#[tokio::test]
async fn a_new_session_begins_with_what_is_held_and_each_proxy_says_anew_what_it_wants() {
    let services = Arc::new(HostServices::default());
    services.session.send_replace(1);
    let mut proxy = Proxy::attach(&services, "a");
    assert!(proxy.connected().await);
    proxy.subscribe(&["service/x", "service/y"], &[]).await;
    asked(&services).await;
    services.take(told(&[("service/x", "1")], &["service/y"]));
    let (told_it, gone) = proxy.versions().await;
    assert_eq!(told_it, one("service/x", "1").0);
    assert_eq!(gone, ["service/y"]);
    // The controller is away, and the proxy has another one of the two from it meanwhile.
    services.session.send_replace(0);
    assert!(!proxy.connected().await);
    let first = services.first_request();
    assert_eq!(first.subscribe, ["service/x", "service/y"]);
    let known: Vec<(String, u64)> = first.known.into_iter().collect();
    assert_eq!(known, one("service/x", "1").0);
    services.session.send_replace(2);
    assert!(proxy.connected().await);
    proxy
        .say(v1::SubscribeRequest {
            subscribe: vec!["service/x".into()],
            known: [("service/x".to_owned(), version("0"))].into(),
            anew: true,
            ..Default::default()
        })
        .await;
    assert_eq!(proxy.versions().await, one("service/x", "1"));
    // A service that it does not want any more is given up, and the other one is not asked for again.
    assert_eq!(asked(&services).await, (vec![], vec!["service/y".into()]));
    services.take(told(&[("service/x", "2")], &[]));
    assert_eq!(proxy.versions().await, one("service/x", "2"));
}

/// A proxy writes what it holds before it reads what is on its way to it.
#[tokio::test]
async fn what_is_in_flight_when_a_proxy_says_anew_what_it_holds_is_sent_again() {
    let services = Arc::new(HostServices::default());
    services.session.send_replace(1);
    let mut proxy = Proxy::attach(&services, "a");
    assert!(proxy.connected().await);
    proxy.subscribe(&["service/x"], &[]).await;
    asked(&services).await;
    services.take(told(&[("service/x", "1")], &[]));
    assert_eq!(proxy.versions().await, one("service/x", "1"));
    // It goes, and comes back as it was before the proxy has answered.
    services.take(told(&[], &["service/x"]));
    let Some(Say::Update(gone)) = proxy.next().await else {
        panic!("no update");
    };
    assert_eq!(gone.removed, ["service/x"]);
    services.take(told(&[("service/x", "1")], &[]));
    let ack = v1::Ack {
        nonce: gone.nonce,
        ..Default::default()
    };
    proxy
        .say(v1::SubscribeRequest {
            subscribe: vec!["service/x".into()],
            known: [("service/x".to_owned(), version("1"))].into(),
            ack: Some(ack),
            anew: true,
            ..Default::default()
        })
        .await;
    assert_eq!(proxy.versions().await, one("service/x", "1"));
}

#[tokio::test]
async fn a_proxy_hears_that_the_host_is_alive() {
    let services = Arc::new(HostServices::default());
    let mut proxy = Proxy::attach(&services, "a");
    loop {
        let message = proxy.incoming.next().await.unwrap().unwrap();
        let say = v1::HostServices::decode(message).unwrap().say;
        if say == Some(Say::Alive(true)) {
            break;
        }
    }
}

#[test]
fn what_is_given_up_and_wanted_again_at_once_is_asked_for_anew() {
    let services = HostServices::default();
    let name: [Arc<str>; 1] = ["service/x".into()];
    assert!(services.want(1, &name));
    assert!(services.next_request().is_some());
    services.take(told(&[("service/x", "1")], &[]));
    services.want_no_longer(1, &name);
    assert!(services.want(1, &name));
    // Nothing is held of it, and the controller would not send again what it has sent.
    let request = services.next_request().unwrap();
    assert_eq!(request.unsubscribe, ["service/x"]);
    assert_eq!(request.subscribe, ["service/x"]);
    assert!(services.get("service/x").unwrap().is_incomplete);
    assert_eq!(services.next_request(), None);
}

#[test]
fn what_there_is_no_room_for_is_not_held() {
    let services = HostServices::default();
    let names: [Arc<str>; 2] = ["service/x".into(), "service/y".into()];
    assert!(services.want(1, &names));
    assert!(services.next_request().is_some());
    // A service counts once, however often it changes.
    for bytes in [MOST_HELD - 2, MOST_HELD - 1] {
        services.take(sized(&[("service/x", bytes), ("service/y", 1)], &[]));
        assert_eq!(services.get("service/x").unwrap().version, bytes as u64);
        assert_eq!(services.wanted().held, bytes + 1);
    }
    // It has grown by too much. Nobody is told that it does not exist.
    let update = sized(&[("service/x", MOST_HELD)], &[]);
    assert_eq!(services.take(update).error, "");
    for name in &names {
        assert!(services.get(name).unwrap().is_incomplete);
        assert!(services.hub.get(name).is_none());
    }
    assert_eq!(services.wanted().held, 0);
    let request = services.next_request().unwrap();
    assert_eq!(request.unsubscribe, ["service/x", "service/y"]);
    services.want_no_longer(1, &names);
    assert_eq!(services.wanted().bytes, 0);
    assert!(services.want(2, &names));
}

#[test]
fn the_result_of_an_update_has_to_fit_in_whatever_order_it_comes() {
    const HALF: usize = MOST_HELD / 2;
    let services = HostServices::default();
    let names: [Arc<str>; 3] = ["service/x".into(), "service/y".into(), "service/z".into()];
    assert!(services.want(1, &names));
    services.take(sized(&[("service/x", HALF), ("service/y", HALF)], &[]));
    // One comes and another goes.
    services.take(sized(&[("service/z", HALF)], &["service/y"]));
    assert_eq!(services.wanted().held, MOST_HELD);
    assert_eq!(services.get("service/z").unwrap().version, HALF as u64);
    assert!(services.get("service/y").is_none());
    // One grows before another shrinks.
    let update = sized(&[("service/x", MOST_HELD - 1), ("service/z", 1)], &[]);
    services.take(update);
    assert_eq!(services.wanted().held, MOST_HELD);
    assert_eq!(services.get("service/z").unwrap().version, 1);
    assert_eq!(services.wanted().names.len(), 3);
}

#[test]
fn a_service_that_a_proxy_wants_no_longer_does_not_count_for_it() {
    let services = HostServices::default();
    let [x, y]: [Arc<str>; 2] = ["service/x".into(), "service/y".into()];
    assert!(services.want(1, &[x.clone(), y.clone()]));
    assert!(services.want(2, std::slice::from_ref(&y)));
    services.take(sized(&[("service/x", 1)], &[]));
    services.want_no_longer(1, &[y]);
    services.take(sized(&[("service/y", MOST_HELD)], &[]));
    assert_eq!(services.get("service/x").unwrap().version, 1);
    assert!(services.wanted().names.keys().eq([&x]));
}

#[test]
fn bytes_of_a_service_count_in_equal_parts_for_those_that_want_it() {
    let services = HostServices::default();
    let [all, two, own] = ["service/all", "service/two", "service/own"].map(Arc::<str>::from);
    for proxy in 1..=5 {
        assert!(services.want(proxy, std::slice::from_ref(&all)));
    }
    for proxy in 1..=2 {
        assert!(services.want(proxy, std::slice::from_ref(&two)));
    }
    assert!(services.want(3, std::slice::from_ref(&own)));
    let bytes = [
        ("service/all", 15),
        ("service/two", 20),
        ("service/own", 11),
    ];
    services.take(sized(&bytes, &[]));
    assert_eq!(services.wanted().greediest(), Some((3, own.clone())));
    services.want_no_longer(3, &[own]);
    assert_eq!(services.wanted().greediest(), Some((2, two)));
}

#[test]
fn those_that_share_services_keep_them_where_another_frees_enough() {
    let services = HostServices::default();
    let [all, own]: [Arc<str>; 2] = ["service/all".into(), "service/own".into()];
    for proxy in 1..=3 {
        assert!(services.want(proxy, std::slice::from_ref(&all)));
    }
    assert!(services.want(4, std::slice::from_ref(&own)));
    services.take(sized(&[("service/all", MOST_HELD - 1)], &[]));
    services.take(sized(&[("service/own", 2)], &[]));
    assert!(services.wanted().names.keys().eq([&all]));
    assert_eq!(services.wanted().names[&all].proxies.len(), 3);
    assert_eq!(services.wanted().held, MOST_HELD - 1);
}

#[tokio::test]
async fn the_proxy_that_takes_the_most_room_is_left_to_the_controller_and_not_all_others() {
    let services = Arc::new(HostServices::default());
    let mut proxies = Vec::new();
    for own in ["a", "b", "c"] {
        let mut proxy = Proxy::attach(&services, own);
        assert!(!proxy.connected().await);
        let own = format!("service/{own}");
        proxy.subscribe(&["service/shared", &own], &[]).await;
        assert!(asked(&services).await.0.contains(&own));
        proxies.push(proxy);
    }
    let bytes = [
        ("service/a", MOST_HELD - 1),
        ("service/b", 2),
        ("service/c", 3),
        ("service/shared", 4),
    ];
    services.take(sized(&bytes, &[]));
    // It may be told before of the service that the others want, too.
    while proxies[0].next().await.is_some() {}
    assert_eq!(asked(&services).await, (vec![], vec!["service/a".into()]));
    for (proxy, own) in proxies[1..].iter_mut().zip([bytes[1], bytes[2]]) {
        let told = [own, bytes[3]].map(|(name, bytes)| (name.to_owned(), bytes as u64));
        assert_eq!(proxy.versions().await, (told.to_vec(), vec![]));
    }
}

#[tokio::test]
async fn a_proxy_that_wants_what_there_is_no_room_for_is_left_to_the_controller() {
    let services = Arc::new(HostServices::default());
    let (mut a, mut b) = (Proxy::attach(&services, "a"), Proxy::attach(&services, "b"));
    assert!(!a.connected().await && !b.connected().await);
    a.subscribe(&["service/x"], &[]).await;
    assert_eq!(asked(&services).await, (vec!["service/x".into()], vec![]));
    services.take(told(&[("service/x", "1")], &[]));
    assert_eq!(a.versions().await, one("service/x", "1"));
    b.subscribe(&["service/y"], &[]).await;
    assert_eq!(asked(&services).await, (vec!["service/y".into()], vec![]));
    services.take(sized(&[("service/y", MOST_HELD)], &[]));
    assert_eq!(b.next().await, None);
    // It is given up, and the other proxy goes on.
    assert_eq!(asked(&services).await, (vec![], vec!["service/y".into()]));
    services.take(told(&[("service/x", "2")], &[]));
    assert_eq!(a.versions().await, one("service/x", "2"));
}

#[tokio::test]
async fn a_proxy_that_asks_for_something_else_is_left_to_the_controller() {
    let services = Arc::new(HostServices::default());
    let long = format!("service/{}", "x".repeat(300));
    for name in ["inbound/b", "mesh", "service/", &long] {
        let mut proxy = Proxy::attach(&services, "a");
        assert!(!proxy.connected().await);
        proxy.subscribe(&["service/x", name], &[]).await;
        assert_eq!(proxy.next().await, None, "{name}");
    }
    let mut proxy = Proxy::attach(&services, "a");
    assert!(!proxy.connected().await);
    proxy.outgoing.send(vec![0xff]).await.unwrap();
    assert_eq!(proxy.next().await, None);
    // Nor may it have all the room.
    let many: Vec<String> = (0..20)
        .map(|i| format!("service/{i}{}", "x".repeat(250)))
        .collect();
    let mut proxy = Proxy::attach(&services, "a");
    assert!(!proxy.connected().await);
    for i in 0..60 {
        let names: Vec<String> = many.iter().map(|name| format!("{name}{i}")).collect();
        let request = v1::SubscribeRequest {
            subscribe: names,
            ..Default::default()
        };
        // It may have hung up before all is said.
        let _ = proxy.outgoing.send(request.encode_to_vec()).await;
    }
    while let Ok(Some(_)) = proxy.incoming.next().await {}
    assert!(services.wanted().names.is_empty());
    assert!(services.hub.streams().is_empty());
}

use super::*;
use crate::control::publish::Publisher;
use tulle_model::bootstrap::{Bootstrap, Control};
use tulle_model::resource::Resource;

/// The end of the supervisor.
struct Supervisor {
    incoming: Incoming,
    outgoing: Outgoing,
}

impl Supervisor {
    async fn say(&mut self, say: Say) {
        let message = v1::HostServices { say: Some(say) };
        self.outgoing.send(message.encode_to_vec()).await.unwrap();
    }

    async fn heard(&mut self) -> v1::SubscribeRequest {
        let message = self.incoming.next().await.unwrap().unwrap();
        v1::SubscribeRequest::decode(message).unwrap()
    }
}

fn client() -> (ControlClient<Publisher>, Supervisor) {
    let bootstrap = serde_json::json!({ "identity": "spiffe://tulle.local/svc/a" });
    let bootstrap: Bootstrap = serde_json::from_value(bootstrap).unwrap();
    let control = serde_json::json!({ "address": "127.0.0.1:1" });
    let control: Control = serde_json::from_value(control).unwrap();
    let publisher = Publisher::new(bootstrap.identity.clone());
    let mut client = ControlClient::new(&bootstrap, control, publisher);
    let (ours, theirs) = UnixStream::pair().unwrap();
    client.services = Some(HostServices::over(ours));
    let (incoming, outgoing) = messages::over(theirs, MAX_BYTES);
    (client, Supervisor { incoming, outgoing })
}

/// A service as it is told, of this version.
fn service(name: &str, version: u64) -> v1::Resource {
    let body = serde_json::json!({ "name": name, "ports": [{ "port": version }] });
    let body = Resource::Service(serde_json::from_value(body).unwrap());
    v1::Resource {
        name: format!("service/{name}"),
        version,
        body: tulle_api::encode_body(&body),
        ..Default::default()
    }
}

fn update(resources: Vec<v1::Resource>) -> v1::ConfigUpdate {
    v1::ConfigUpdate {
        nonce: 7,
        resources,
        ..Default::default()
    }
}

/// Takes an update of the controller as in a session.
fn controller_says(client: &mut ControlClient<Publisher>, mut update: v1::ConfigUpdate) {
    client.leave_services_to_host(&mut update);
    assert_eq!(client.apply(update).error, "");
}

fn held(client: &ControlClient<Publisher>) -> Vec<(&str, u64)> {
    let mut held: Vec<_> = client
        .held
        .iter()
        .map(|(n, (v, _))| (n.as_str(), *v))
        .collect();
    held.sort_unstable();
    held
}

#[tokio::test]
async fn services_come_from_the_host_while_it_hears_of_changes() {
    let (mut client, mut supervisor) = client();
    client.names.insert("service/x".into());
    controller_says(&mut client, update(vec![service("x", 1)]));
    assert_eq!(client.services_from(), v1::ServicesFrom::Controller);
    supervisor.say(Say::Connected(true)).await;
    let said = next(&mut client.services).await;
    let told = client.host_says(said).unwrap();
    assert_eq!(told.services_from(), v1::ServicesFrom::Host);
    client.tell_host().await;
    let asked = supervisor.heard().await;
    assert!(asked.anew);
    assert_eq!(asked.subscribe, ["service/x"]);
    assert_eq!(asked.known["service/x"], 1);
    // An older one was on its way from the controller.
    supervisor
        .say(Say::Update(update(vec![service("x", 3)])))
        .await;
    let said = next(&mut client.services).await;
    assert_eq!(client.host_says(said), None);
    controller_says(&mut client, update(vec![service("x", 2)]));
    assert_eq!(held(&client), [("service/x", 3)]);
    client.tell_host().await;
    assert_eq!(supervisor.heard().await.ack.unwrap().nonce, 7);
    // A name is asked for, and is not used by the application until then.
    let name = v1::Resource {
        name: "service/y".into(),
        by_host: true,
        ..Default::default()
    };
    controller_says(&mut client, update(vec![name]));
    assert!(client.unused.contains("service/y") && client.awaited.contains("service/y"));
    assert!(client.unanswered.as_ref().unwrap().contains("service/y"));
    client.tell_host().await;
    assert_eq!(supervisor.heard().await.subscribe, ["service/y"]);
    supervisor
        .say(Say::Update(update(vec![service("y", 1), service("z", 1)])))
        .await;
    let said = next(&mut client.services).await;
    client.host_says(said);
    // The other one was not asked for.
    assert_eq!(held(&client), [("service/x", 3), ("service/y", 1)]);
    assert!(client.awaited.is_empty());
    // One that the application is likely to call was on its way whole.
    controller_says(&mut client, update(vec![service("z", 1)]));
    client.tell_host().await;
    assert_eq!(supervisor.heard().await.subscribe, ["service/z"]);
    let forgotten = v1::ConfigUpdate {
        forgotten: vec!["service/y".into()],
        ..Default::default()
    };
    controller_says(&mut client, forgotten);
    client.tell_host().await;
    assert_eq!(supervisor.heard().await.unsubscribe, ["service/y"]);
}

#[tokio::test]
async fn the_controller_tells_of_services_again_when_the_host_does_not() {
    for ends in [false, true] {
        let (mut client, mut supervisor) = client();
        client.names.insert("service/x".into());
        supervisor.say(Say::Connected(true)).await;
        supervisor
            .say(Say::Update(update(vec![service("x", 5)])))
            .await;
        client.take_what_was_said().await;
        assert_eq!(client.services_from(), v1::ServicesFrom::Host);
        match ends {
            false => supervisor.say(Say::Connected(false)).await,
            true => drop(supervisor),
        }
        let said = next(&mut client.services).await;
        let told = client.host_says(said).unwrap();
        assert_eq!(told.services_from(), v1::ServicesFrom::Controller);
        assert_eq!(told.known["service/x"], 5);
        controller_says(&mut client, update(vec![service("x", 6)]));
        assert_eq!(held(&client), [("service/x", 6)]);
        assert_eq!(client.services.is_none(), ends);
    }
}

#[tokio::test]
async fn a_supervisor_that_hangs_is_given_up() {
    let (mut client, mut supervisor) = client();
    let silent = |client: &mut ControlClient<Publisher>| {
        let host = client.services.as_mut().unwrap();
        host.heard = host.heard.checked_sub(SILENCE).unwrap();
    };
    supervisor.say(Say::Connected(true)).await;
    supervisor.say(Say::Alive(true)).await;
    // This proxy may have been stopped as well.
    silent(&mut client);
    client.take_what_was_said().await;
    assert_eq!(client.services_from(), v1::ServicesFrom::Host);
    silent(&mut client);
    let said = next(&mut client.services).await;
    let told = client.host_says(said).unwrap();
    assert_eq!(told.services_from(), v1::ServicesFrom::Controller);
    assert!(client.services.is_none());
}

#[tokio::test]
async fn what_nobody_has_asked_for_keeps_no_proxy_from_being_ready() {
    for comes in [false, true] {
        let (mut client, mut supervisor) = client();
        client.unanswered = Some(BTreeSet::new());
        supervisor.say(Say::Connected(true)).await;
        client.take_what_was_said().await;
        let name = v1::Resource {
            by_host: true,
            ..service("y", 1)
        };
        controller_says(&mut client, update(vec![name]));
        client.settle();
        assert!(client.unanswered.is_some(), "its first calls would wait");
        if comes {
            let bad = v1::Resource {
                body: b"{".to_vec().into(),
                ..service("y", 1)
            };
            client.host_says(Some(Say::Update(update(vec![bad]))));
        } else {
            client.wait_no_longer();
        }
        client.settle();
        assert!(client.unanswered.is_none());
    }
}

/// A controller of an earlier version does not know who tells, and sends what is left out once.
#[tokio::test]
async fn what_was_left_to_the_host_is_asked_for_anew_when_the_host_is_away() {
    let (mut client, mut supervisor) = client();
    client.names.insert("service/x".into());
    supervisor.say(Say::Connected(true)).await;
    client.take_what_was_said().await;
    controller_says(&mut client, update(vec![service("x", 1)]));
    assert!(!client.has_missed_services());
    client.host_says(Some(Say::Connected(false)));
    assert!(client.has_missed_services());
}

#[tokio::test]
async fn a_refusal_is_told_to_both() {
    let (mut client, mut supervisor) = client();
    client.names.insert("service/x".into());
    supervisor.say(Say::Connected(true)).await;
    client.take_what_was_said().await;
    supervisor.heard().await;
    let bad = v1::Resource {
        body: b"{".to_vec().into(),
        ..service("x", 1)
    };
    for (sent, refused) in [(bad, true), (service("x", 2), false)] {
        supervisor.say(Say::Update(update(vec![sent]))).await;
        let said = next(&mut client.services).await;
        let ack = client.host_says(said).unwrap().ack.unwrap();
        // It answers no update of the controller.
        assert_eq!((ack.nonce, ack.error.as_str()), (0, ""));
        assert_eq!(ack.faults.contains("service/x"), refused, "{ack:?}");
        client.tell_host().await;
        let ack = supervisor.heard().await.ack.unwrap();
        assert_eq!(ack.error.contains("service/x"), refused, "{ack:?}");
    }
}

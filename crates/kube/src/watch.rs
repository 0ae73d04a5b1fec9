//! Lists and watches one kind. When a watch expires or fails, it starts anew; meanwhile the known
//! state stays. `T` is that state: what [`crate::source`] knows, or what only gateways need.

use futures_util::{Stream, StreamExt};
use kube::runtime::watcher::{self, Event};
use kube::{Resource, ResourceExt};
use std::collections::BTreeSet;
use std::fmt::Debug;
use tokio::sync::mpsc;
use tulle_model::namespaced::ObjectName;

/// A watch's change, to be applied to what is known.
pub(crate) type Step<T> = Box<dyn FnOnce(&mut T) + Send>;

/// A message to the keeper of the state.
pub(crate) enum WatchEvent<T> {
    Step(Step<T>),
    /// Nothing is fed before this kind was listed.
    Expected(&'static str),
    /// Everything of a kind was listed, or the kind is gone.
    Listed(&'static str),
    /// The API server refuses to list a kind that was never listed.
    Forbidden(&'static str),
}

/// Takes objects of one kind in.
pub(crate) trait Taker<T, K>: Copy + Send + 'static {
    /// An object exists, or has changed.
    fn apply(self, known: &mut T, key: ObjectName, object: K);
    /// An object is gone.
    fn remove(self, known: &mut T, key: &ObjectName);
    /// These are all.
    fn keep(self, known: &mut T, listed: &BTreeSet<ObjectName>);
}

/// Passes on the events of a kind's watch until the receiver is gone.
pub(crate) async fn pass_on<T, K>(
    kind: &'static str,
    events: impl Stream<Item = watcher::Result<Event<K>>> + Send,
    taker: impl Taker<T, K>,
    said: mpsc::Sender<WatchEvent<T>>,
) where
    T: 'static,
    K: Resource + Debug + Send + 'static,
{
    let mut events = events.boxed();
    // The names of a list that is under way.
    let mut listing: BTreeSet<ObjectName> = BTreeSet::new();
    let mut listed = false;
    while let Some(event) = events.next().await {
        let mut first_list = false;
        let step: Step<T> = match event {
            Ok(Event::Init) => {
                listing.clear();
                continue;
            }
            Ok(Event::InitApply(object)) => {
                let key = key(&object);
                listing.insert(key.clone());
                Box::new(move |known| taker.apply(known, key, object))
            }
            Ok(Event::InitDone) => {
                let all = std::mem::take(&mut listing);
                first_list = !std::mem::replace(&mut listed, true);
                Box::new(move |known| taker.keep(known, &all))
            }
            Ok(Event::Apply(object)) => {
                let key = key(&object);
                Box::new(move |known| taker.apply(known, key, object))
            }
            Ok(Event::Delete(object)) => {
                let key = key(&object);
                Box::new(move |known| taker.remove(known, &key))
            }
            Err(error) => {
                tracing::warn!(kind, %error, "the watch is interrupted; the last known state stays in use");
                if !listed
                    && is_forbidden(&error)
                    && said.send(WatchEvent::Forbidden(kind)).await.is_err()
                {
                    return;
                }
                continue;
            }
        };
        if said.send(WatchEvent::Step(step)).await.is_err() {
            return;
        }
        if first_list && said.send(WatchEvent::Listed(kind)).await.is_err() {
            return;
        }
    }
}

fn is_forbidden(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status)) => status.code == 403,
        _ => false,
    }
}

/// The name of an object, with its namespace if it has one.
fn key(object: &impl Resource) -> ObjectName {
    let namespace = object.namespace().unwrap_or_default();
    ObjectName::in_namespace(&object.name_any(), &namespace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;
    use k8s_openapi::api::core::v1::Service;
    use std::collections::BTreeMap;

    type Names = BTreeMap<ObjectName, ()>;

    #[derive(Clone, Copy)]
    struct ByName;

    impl Taker<Names, Service> for ByName {
        fn apply(self, names: &mut Names, key: ObjectName, _: Service) {
            names.insert(key, ());
        }
        fn remove(self, names: &mut Names, key: &ObjectName) {
            names.remove(key);
        }
        fn keep(self, names: &mut Names, listed: &BTreeSet<ObjectName>) {
            names.retain(|key, ()| listed.contains(key));
        }
    }

    fn service(name: &str) -> Service {
        let mut service = Service::default();
        service.metadata.name = Some(name.into());
        service.metadata.namespace = Some("shop".into());
        service
    }

    #[tokio::test]
    async fn what_is_known_stays_until_a_whole_list_lacks_it() {
        let (sender, mut said) = mpsc::channel(64);
        let events = stream::iter([
            Ok(Event::Init),
            Ok(Event::InitApply(service("a"))),
            Ok(Event::InitApply(service("b"))),
            Ok(Event::InitDone),
            Ok(Event::Apply(service("c"))),
            Ok(Event::Delete(service("a"))),
            Err(watcher::Error::NoResourceVersion),
            // This list breaks off.
            Ok(Event::Init),
            Ok(Event::InitApply(service("d"))),
            Err(watcher::Error::NoResourceVersion),
            Ok(Event::Init),
            Ok(Event::InitApply(service("c"))),
            Ok(Event::InitDone),
        ]);
        pass_on("Service", events, ByName, sender).await;
        let mut names = Names::new();
        let mut seen = Vec::new();
        while let Some(said) = said.recv().await {
            match said {
                WatchEvent::Step(step) => {
                    step(&mut names);
                    let all: Vec<&str> = names.keys().map(|key| key.name()).collect();
                    seen.push(all.concat());
                }
                WatchEvent::Listed(kind) => seen.push(kind.into()),
                WatchEvent::Expected(kind) | WatchEvent::Forbidden(kind) => panic!("{kind}"),
            }
        }
        let lists = ["a", "ab", "ab", "Service", "abc", "bc", "bcd", "bcd", "c"];
        assert_eq!(seen, lists);
    }

    /// A kind that was listed stays known, even if a later list is refused.
    #[tokio::test]
    async fn a_first_list_that_is_forbidden_is_told() {
        let (sender, mut said) = mpsc::channel(64);
        let refused = |code: u16| {
            let status = kube::core::Status::failure("no", "Forbidden").with_code(code);
            let refused = kube::Error::Api(status.boxed());
            Err(watcher::Error::InitialListFailed(refused))
        };
        let events = [
            refused(429),
            refused(403),
            Ok(Event::Init),
            Ok(Event::InitDone),
            refused(403),
        ];
        pass_on("Service", stream::iter(events), ByName, sender).await;
        let mut seen = Vec::new();
        while let Some(said) = said.recv().await {
            seen.push(match said {
                WatchEvent::Step(_) => "step",
                WatchEvent::Listed(_) => "listed",
                WatchEvent::Expected(_) => "expected",
                WatchEvent::Forbidden(_) => "forbidden",
            });
        }
        assert_eq!(seen, ["forbidden", "step", "listed"]);
    }
}

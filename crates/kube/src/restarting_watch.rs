//! A watch that is begun anew after each error, with a list.
//!
//! kube's watcher goes on with the watch that failed, and its backoff waits at each error. An API
//! server that refuses a watch, as it does for a moment after its start, says so over many lines.
//! Each line is an error there, so it would take minutes until the next try.

use crate::metrics::{WATCHES_BEGUN, WATCHES_FAILED};
use futures_util::{Stream, StreamExt, stream};
use kube::runtime::watcher::{Event, Result};
use std::pin::Pin;
use std::time::Duration;

const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// Events of the watches that `watch` makes, one after the other. Errors are passed on; a pause
/// follows each. They are counted under `name`.
pub(crate) fn restarting_watch<K, S>(
    name: &'static str,
    watch: impl Fn() -> S + Send,
) -> impl Stream<Item = Result<Event<K>>> + Send
where
    K: Send,
    S: Stream<Item = Result<Event<K>>> + Send,
{
    // The metric exists from the start, so that an increase can be seen.
    WATCHES_FAILED.add([name], 0);
    let state = Watching {
        name,
        watch,
        running: None,
        pause: Duration::ZERO,
    };
    stream::unfold(state, |mut state| async {
        let event = state.next().await;
        Some((event, state))
    })
}

struct Watching<W, S> {
    name: &'static str,
    watch: W,
    running: Option<Pin<Box<S>>>,
    /// The pause before the next try.
    pause: Duration,
}

impl<K, S, W> Watching<W, S>
where
    S: Stream<Item = Result<Event<K>>>,
    W: Fn() -> S,
{
    async fn next(&mut self) -> Result<Event<K>> {
        loop {
            if self.running.is_none() {
                tokio::time::sleep(self.pause).await;
                self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
            }
            let watch = &self.watch;
            let running = self.running.get_or_insert_with(|| Box::pin(watch()));
            match running.next().await {
                Some(Ok(event)) => {
                    if matches!(event, Event::InitDone) {
                        self.pause = FIRST_PAUSE;
                        WATCHES_BEGUN.add([self.name], 1);
                    }
                    return Ok(event);
                }
                Some(Err(error)) => {
                    WATCHES_FAILED.add([self.name], 1);
                    self.running = None;
                    return Err(error);
                }
                None => self.running = None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::runtime::watcher::Error;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[tokio::test]
    async fn after_an_error_there_is_a_new_list() {
        let made = AtomicU32::new(0);
        let mut events = Box::pin(restarting_watch("of the test", || {
            let number = made.fetch_add(1, Ordering::SeqCst);
            stream::iter([
                Ok(Event::Init),
                Ok(Event::InitApply(number)),
                Ok(Event::InitDone),
                Err(Error::NoResourceVersion),
                // Items after an error are dropped: they belong to the answer that failed.
                Err(Error::NoResourceVersion),
            ])
        }));
        for number in 0..3 {
            assert!(matches!(events.next().await, Some(Ok(Event::Init))));
            let listed = events.next().await;
            assert!(matches!(listed, Some(Ok(Event::InitApply(n))) if n == number));
            assert!(matches!(events.next().await, Some(Ok(Event::InitDone))));
            assert!(matches!(events.next().await, Some(Err(_))));
        }
        for tally in [&WATCHES_BEGUN, &WATCHES_FAILED] {
            let mut text = tulle_control::metrics::Text::default();
            tally.write(&mut text, "n", ["kind"], "");
            assert!(text.end().contains("n{kind=\"of the test\"} 3\n"));
        }
    }
}

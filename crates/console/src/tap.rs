//! The stream of requests as they happen.

use crate::query::Query;
use crate::response::refusal;
use crate::stream::{End, Next, Source, event};
use hyper::StatusCode;
use serde_json::json;
use tokio::sync::mpsc;
use tulle_control::observe::{Observer, Refusal, TapEvent, TapFilter};

/// Most requests in one frame.
const TOGETHER: usize = 64;

/// Requests that a filter lets through.
pub(crate) struct Requests {
    events: mpsc::Receiver<TapEvent>,
    id: u64,
}

/// Begins to follow what a query asks for.
pub(crate) fn follow(observer: &Observer, query: &Query) -> Result<Requests, Refusal> {
    let query = query.only(&[
        "source",
        "destination",
        "path",
        "method",
        "status",
        "failed",
    ])?;
    let status = query.number("status")?;
    let failed = match query.text("failed") {
        "" | "false" | "0" => false,
        "true" | "1" => true,
        other => {
            let what = format!("failed={other} is neither true nor false");
            let fix = "leave it out, or say failed=true";
            return Err(refusal(StatusCode::BAD_REQUEST, "bad_query", what, fix));
        }
    };
    let events = observer.tap(TapFilter {
        source: query.text("source").to_owned(),
        destination: query.text("destination").to_owned(),
        path: query.text("path").to_owned(),
        method: query.text("method").to_owned(),
        status,
        failed,
    })?;
    Ok(Requests { events, id: 0 })
}

impl Source for Requests {
    async fn next(&mut self) -> Next {
        let mut events = Vec::new();
        if self.events.recv_many(&mut events, TOGETHER).await == 0 {
            return Next::End(End::Finished);
        }
        let mut text = String::new();
        for told in events {
            self.id += 1;
            match told {
                TapEvent::Line(line) => event(&mut text, self.id, "request", &line),
                TapEvent::Dropped { count } => {
                    event(&mut text, self.id, "dropped", &json!({ "count": count }));
                }
                // Nothing comes after it: the next wait finds the end.
                TapEvent::End => self.events.close(),
            }
        }
        match text.is_empty() {
            true => Next::End(End::Finished),
            false => Next::Frame(text.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[tokio::test]
    async fn lines_that_come_together_go_together_and_the_end_comes_last() {
        let (sender, events) = mpsc::channel(8);
        let mut requests = Requests { events, id: 0 };
        let line = BTreeMap::from([("path".to_owned(), json!("/a\nb"))]);
        sender.try_send(TapEvent::Line(line)).unwrap();
        sender.try_send(TapEvent::Dropped { count: 7 }).unwrap();
        sender.try_send(TapEvent::End).unwrap();
        let expected = "id: 1\nevent: request\ndata: {\"path\":\"/a\\nb\"}\n\n\
                        id: 2\nevent: dropped\ndata: {\"count\":7}\n\n";
        assert_eq!(requests.next().await, Next::Frame(expected.into()));
        assert_eq!(requests.next().await, Next::End(End::Finished));
    }
}

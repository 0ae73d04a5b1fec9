//! Questions to proxies: their configuration, endpoints, the level of their log, and requests as they end.

use super::pages::{Question, Refusal};
use super::shown::{TapEvent, TapFilter};
use super::{Observer, not_found};
use crate::index::Nodes;
use crate::reports::{Silence, Tapped};
use crate::state::MeshState;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tulle_api::v1;
use tulle_api::v1::question::Kind;
use tulle_model::identity::SpiffeId;

/// How long a tap lasts.
const LIFETIME: Duration = Duration::from_secs(600);
/// Lines that wait for a watcher.
const WAITING: usize = 256;
/// Most lines of a tap in a second.
const MAX_LINES: u32 = 1000;

impl Observer {
    /// Asks a proxy.
    ///
    /// # Errors
    /// It is not there, does not report, or says nothing within five seconds.
    pub async fn ask(&self, proxy: &str, question: Question) -> Result<Value, Refusal> {
        let reports = &self.state.reports;
        let Some(asked) = reports.proxy(proxy) else {
            return Err(match self.proxies().iter().any(|row| row.id == proxy) {
                true => Refusal {
                    code: "not_reporting",
                    message: format!("{proxy} does not report: it is of an earlier version"),
                    fix: "replace it by this version".into(),
                    status: 409,
                },
                false => not_found(proxy),
            });
        };
        let kind = match &question {
            Question::Config => Kind::Config(true),
            Question::Endpoints => Kind::Endpoints(true),
            Question::SetLogLevel { level, seconds } => Kind::LogLevel(v1::SetLogLevel {
                level: level.clone(),
                seconds: *seconds,
            }),
        };
        let answer = reports.questions.ask(&asked, kind).await;
        let answer = answer.map_err(|silence| silent(proxy, silence))?;
        let answer: Value = serde_json::from_slice(&answer)
            .map_err(|_| silent(proxy, Silence::Refused("its answer is no JSON".into())))?;
        Ok(match question {
            Question::Config => json!({ "config": answer }),
            Question::Endpoints => json!({ "services": services(&answer) }),
            Question::SetLogLevel { .. } => answer,
        })
    }

    /// Follows requests as they happen. Dropping the receiver ends it.
    ///
    /// # Errors
    /// Too many are followed already, or a name is not known.
    pub fn tap(&self, filter: TapFilter) -> Result<mpsc::Receiver<TapEvent>, Refusal> {
        let nodes = self.state.nodes_known();
        let (wanted, of) = wanted(&nodes, filter)?;
        let reports = &self.state.reports;
        let tapping = reports.taps.begin(wanted, of, &reports.proxies());
        let tapping = tapping.ok_or_else(|| Refusal {
            code: "busy",
            message: "too many follow requests already".into(),
            fix: "end another one first".into(),
            status: 429,
        })?;
        let (events, receiver) = mpsc::channel(WAITING);
        let state = self.state.clone();
        tokio::spawn(async move {
            show(tapping.lines, &events).await;
            // An end that is late fails when nobody listens.
            let _ = events.try_send(TapEvent::End);
            end(&state, tapping.id);
        });
        Ok(receiver)
    }
}

fn end(state: &Arc<MeshState>, id: u64) {
    state.reports.taps.end(id, &state.reports.proxies());
}

/// Passes lines on until the watcher leaves or the time has passed. What a watcher has no room for is counted.
async fn show(mut lines: mpsc::Receiver<Tapped>, events: &mpsc::Sender<TapEvent>) {
    let end = Instant::now() + LIFETIME;
    let (mut second, mut shown, mut dropped) = (Instant::now(), 0, 0);
    loop {
        let tapped = tokio::select! {
            tapped = lines.recv() => tapped,
            () = events.closed() => return,
            () = sleep_until(end) => return,
        };
        let Some(tapped) = tapped else { return };
        if second.elapsed() >= Duration::from_secs(1) {
            (second, shown) = (Instant::now(), 0);
        }
        dropped += tapped.dropped;
        for line in tapped.lines {
            let read = serde_json::from_str::<BTreeMap<String, Value>>(&line);
            let Ok(mut fields) = read else { continue };
            fields.insert("proxy".into(), Value::from(&*tapped.proxy));
            let fits = shown < MAX_LINES && events.try_send(TapEvent::Line(fields)).is_ok();
            shown += u32::from(fits);
            dropped += u64::from(!fits);
        }
        if dropped > 0
            && events
                .try_send(TapEvent::Dropped { count: dropped })
                .is_ok()
        {
            dropped = 0;
        }
    }
}

/// Says what proxies show, and which ones: those of either side, if one is named.
fn wanted(nodes: &Nodes, filter: TapFilter) -> Result<(v1::Tap, Vec<SpiffeId>), Refusal> {
    let find = |name: &str| match name {
        "" => Ok(None),
        name => nodes.find(name).map(Some).ok_or_else(|| not_found(name)),
    };
    let source = match filter.source.as_str() {
        "outside" => None,
        name => find(name)?,
    };
    let destination = find(&filter.destination)?;
    let sources = match filter.source.as_str() {
        "outside" => vec!["-".to_owned()],
        _ => source
            .map(|node| node.identities.iter().cloned().collect())
            .unwrap_or_default(),
    };
    // The caller knows the way there, the called one why it refused.
    let asked = source.into_iter().chain(destination);
    let of = asked.flat_map(|node| &node.identities);
    let of = of.filter_map(|id| SpiffeId::parse(id).ok()).collect();
    let tap = v1::Tap {
        id: 0,
        sources,
        destination_services: destination
            .map(|node| node.name.clone())
            .into_iter()
            .collect(),
        path_prefix: filter.path,
        method: filter.method,
        status: filter.status.unwrap_or_default().into(),
        failed: filter.failed,
    };
    Ok((tap, of))
}

fn silent(proxy: &str, silence: Silence) -> Refusal {
    let (code, message, status) = match silence {
        Silence::Busy => ("busy", "too many proxies are being asked".to_owned(), 429),
        Silence::Silent => (
            "proxy_silent",
            format!("{proxy} did not answer within 5 s"),
            504,
        ),
        Silence::Refused(why) => ("proxy_refused", format!("{proxy}: {why}"), 502),
    };
    Refusal {
        code,
        message,
        fix: "try again; the proxy's log may say more".into(),
        status,
    }
}

/// Puts the ports that a proxy tells of into the shape that is shown.
fn services(told: &Value) -> Value {
    let ports = told.as_array().into_iter().flatten();
    let services = ports.map(|port| {
        let endpoints = port["endpoints"].as_array().into_iter().flatten();
        let endpoints: Vec<Value> = endpoints
            .map(|endpoint| {
                let state = endpoint["state"].as_str().unwrap_or_default();
                json!({
                    "address": endpoint["address"],
                    "healthy": matches!(state, "ready" | "warming"),
                    "ejected": state == "ejected",
                    "state": state,
                    "active": endpoint["active"],
                    "latencyMs": endpoint["latencyMs"],
                })
            })
            .collect();
        json!({ "name": port["service"], "port": port["port"], "endpoints": endpoints })
    });
    services.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_as_they_are_shown() {
        let told = json!([{
            "service": "b", "port": 80,
            "endpoints": [{ "address": "127.0.0.1:1", "state": "ejected", "active": 2 }],
        }]);
        let shown = services(&told);
        assert_eq!(shown[0]["name"], "b");
        assert_eq!(shown[0]["endpoints"][0]["ejected"], true);
        assert_eq!(shown[0]["endpoints"][0]["healthy"], false);
    }

    #[tokio::test]
    async fn a_watcher_that_does_not_read_misses_lines_and_is_told() {
        let (sender, lines) = mpsc::channel(8);
        let (events, mut receiver) = mpsc::channel(4);
        let showing = tokio::spawn(async move { show(lines, &events).await });
        let tapped = |count, dropped| Tapped {
            proxy: "p".into(),
            lines: vec!["{}".to_owned(); count],
            dropped,
        };
        sender.send(tapped(10, 1)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        let mut shown = 0;
        while let Ok(TapEvent::Line(_)) = receiver.try_recv() {
            shown += 1;
        }
        assert_eq!(shown, 4);
        sender.send(tapped(0, 0)).await.unwrap();
        assert_eq!(receiver.recv().await, Some(TapEvent::Dropped { count: 7 }));
        drop(sender);
        showing.await.unwrap();
    }
}

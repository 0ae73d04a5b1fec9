//! Requests of a proxy as they end: lines of its access log, over its administration (`GET /tap`).

use crate::failure::{Failure, Result};
use crate::proxies::{Meshed, ProxySource, open};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;

/// Longest line that is taken for a request.
const LONGEST: usize = 256 * 1024;

/// A watch. It ends by itself after a while.
pub(crate) struct Watch {
    body: Incoming,
    read: Vec<u8>,
}

impl Watch {
    /// Begins to watch a proxy.
    pub(crate) async fn begin<S: ProxySource>(source: &S, pod: &Meshed) -> Result<Self> {
        let answer = open(source, pod, "/tap").await?;
        if answer.status() != 200 {
            let what = format!("{} does not show its requests", pod.subject());
            return Err(Failure::new(what)
                .because(answer.status())
                .fix("restart one with a sidecar of an older version, or end another tap: a proxy serves four at a time; an Envoy serves none"));
        }
        Ok(Self {
            body: answer.into_body(),
            read: Vec::new(),
        })
    }

    /// The next request; none when the watch has ended.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            while let Some(end) = self.read.iter().position(|b| *b == b'\n') {
                let rest = self.read.split_off(end + 1);
                let whole = std::mem::replace(&mut self.read, rest);
                if let Ok(value) = serde_json::from_slice(&whole) {
                    return Some(value);
                }
            }
            if self.read.len() > LONGEST {
                self.read.clear();
            }
            let frame = self.body.frame().await?.ok()?;
            if let Ok(data) = frame.into_data() {
                self.read.extend_from_slice(&data);
            }
        }
    }
}

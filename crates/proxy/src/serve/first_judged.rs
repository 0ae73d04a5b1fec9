//! Shows the first bytes of a connection to plugins, which say whether it may go on to the application.

use crate::codec::detect::Detected;
use crate::decision::between::Between;
use crate::decision::inbound::InboundContext;
use crate::filter::plugin::Configured;
use crate::http::plugin_call::{self, Shown};
use crate::tcp::forward::Opaque;
use crate::telemetry::reason::{Failure, Reason};
use crate::upstream::link::Link;
use crate::worker::{Worker, WorkerConfig};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tulle_net::Deadline;

/// Shows a connection to these plugins; false: its bytes are those of TLS or of a request after all.
///
/// # Errors
/// It may not go on.
pub async fn judge(
    worker: &Rc<Worker>,
    link: &mut Link,
    opaque: &mut Opaque,
    scope: &InboundContext,
    plugins: &[Arc<Configured>],
) -> Result<bool, Failure> {
    let config = worker.config();
    let time = config.snapshot.mesh.header_timeout_ms;
    let deadline = worker.deadlines.register();
    deadline.arm(Duration::from_millis(time.into()));
    for plugin in plugins {
        let Some(plugin) = plugin.runs()? else {
            continue;
        };
        let parties = plugin_call::parties(&Between::inbound(scope, &config));
        let Some(shown) = plugin_call::begin_connection(plugin.clone(), worker, parties)? else {
            continue;
        };
        if !shows(&shown, &config, link, opaque, &deadline).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Shows a connection to one plugin until that has decided.
async fn shows(
    shown: &Shown,
    config: &Rc<WorkerConfig>,
    link: &mut Link,
    opaque: &mut Opaque,
    deadline: &Deadline,
) -> Result<bool, Failure> {
    if !shown.looks_at_connections() {
        return Ok(true);
    }
    let mut seen = 0;
    loop {
        if opaque.received.len() == seen && !read(link, opaque, deadline).await? {
            return Ok(false);
        }
        let bytes = opaque.received.as_slice();
        seen = bytes.len();
        if shown.look_at_connection(config, bytes).await? {
            return Ok(true);
        }
    }
}

/// Reads on; false: it is TLS, or a request.
async fn read(link: &mut Link, opaque: &mut Opaque, deadline: &Deadline) -> Result<bool, Failure> {
    poll_fn(|cx| {
        loop {
            if deadline.poll_expired(cx) {
                let text = "no plugin has decided on the first bytes in time: does the server speak first?";
                return Poll::Ready(Err(Failure::new(Reason::HeaderTimeout, text)));
            }
            let before = opaque.received.len();
            match link.poll_read(cx, &mut opaque.received) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(count)) if count > 0 => {}
                Poll::Ready(_) => {
                    let text = "the client ended the connection before its plugins had decided";
                    return Poll::Ready(Err(Failure::new(Reason::ClientClosed, text)));
                }
            }
            let bytes = opaque.received.as_slice();
            if opaque.tls_may_begin {
                match tulle_tls::is_client_hello(bytes) {
                    Some(true) => return Poll::Ready(Ok(false)),
                    None => continue,
                    Some(false) => {}
                }
            }
            let new = bytes.get(before..).unwrap_or_default();
            if let Some(watch) = &mut opaque.watch
                && watch.read(new) == Detected::Http
            {
                return Poll::Ready(Ok(false));
            }
            return Poll::Ready(Ok(true));
        }
    })
    .await
}

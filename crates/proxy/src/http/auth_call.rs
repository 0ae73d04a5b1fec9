//! Asks the service that decides whether a request goes on (`filter/ext_authz`).

use crate::balance::Port;
use crate::filter::ext_authz::{Asker, ExternalAuth, Fields, Verdict};
use crate::filter::header_edit::Draft;
use crate::http::call;
use crate::telemetry::reason::{Failure, Reason};
use crate::worker::{Worker, WorkerConfig};
use std::rc::Rc;

/// Asks about a request and edits its head as the answer says. Returns fields for the response.
///
/// # Errors
/// The request may not pass; the failure is the answer.
pub async fn ask(
    filter: &ExternalAuth,
    worker: &Rc<Worker>,
    config: &WorkerConfig,
    draft: &mut Draft<'_>,
    asker: &Asker,
) -> Result<Fields, Failure> {
    let limit = filter.timeout();
    let asking = verdict(filter, worker, config, draft, asker);
    let verdict = tokio::time::timeout(limit, asking).await;
    let verdict = verdict.unwrap_or_else(|_| {
        let text = format!("no answer within {limit:?}");
        Err(Failure::new(Reason::RequestTimeout, text))
    });
    let (outcome, result) = filter.apply(verdict, draft);
    worker.metrics.internal(|i| i.external_auth.add(outcome, 1));
    result
}

async fn verdict(
    filter: &ExternalAuth,
    worker: &Rc<Worker>,
    config: &WorkerConfig,
    draft: &Draft<'_>,
    asker: &Asker,
) -> Result<Verdict, Failure> {
    let port = find(filter, worker, config)?;
    let (kind, method, request) = filter.question(draft, asker)?;
    // A question changes nothing, whatever its method.
    let answer = call::call(worker, &port, kind, method, true, &request).await?;
    filter.verdict(answer)
}

fn find(
    filter: &ExternalAuth,
    worker: &Worker,
    config: &WorkerConfig,
) -> Result<Rc<Port>, Failure> {
    let (service, number) = (filter.service(), filter.port());
    let destination = worker.destination(config, service).ok_or_else(|| {
        let text = format!("service {service} does not exist");
        Failure::new(Reason::NoService, text)
    })?;
    destination.port(number).cloned().ok_or_else(|| {
        let text = format!("service {service} has no port {number}");
        Failure::new(Reason::NoPort, text)
    })
}

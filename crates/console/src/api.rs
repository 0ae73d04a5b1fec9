//! The page's questions, answered by the observer of the mesh.

use crate::query::Query;
use crate::response::{Answer, found, refusal};
use hyper::StatusCode;
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};
use tulle_control::observe::{Observer, Question, Refusal, WhyQuery};

/// The longest history.
const HISTORY: f64 = 900.0;

/// Answers a GET of the API. The path is without what all paths begin with.
pub(crate) async fn answer(
    observer: &Observer,
    path: &str,
    query: &Query,
) -> Result<Answer, Refusal> {
    Ok(match path {
        "graph" => {
            let query = query.only(&["window", "at"])?;
            found(&observer.graph(query.time("at")?, query.window(60)?))
        }
        "edge" => {
            let query = query.only(&["id", "window"])?;
            let id = query.required("id")?;
            one(id, observer.edge(id, query.window(900)?))?
        }
        "why" => found(&observer.why(why(query)?)?),
        "services" => list(query, "services", || json!(observer.services()))?,
        "service" => {
            let name = query.only(&["name"])?.required("name")?;
            one(name, observer.service(name))?
        }
        "proxies" => list(query, "proxies", || json!(observer.proxies()))?,
        "proxy" => {
            let id = query.only(&["id"])?.required("id")?;
            one(id, observer.proxy(id))?
        }
        "proxy/config" => asked(observer, query, Question::Config).await?,
        "proxy/endpoints" => asked(observer, query, Question::Endpoints).await?,
        "objects" => {
            let kind = query.only(&["kind"])?.optional("kind");
            found(&json!({ "objects": observer.objects(kind) }))
        }
        "object" => {
            let query = query.only(&["kind", "name", "namespace"])?;
            let (kind, name) = (query.required("kind")?, query.required("name")?);
            let object = observer.object(kind, name, query.optional("namespace"));
            one(&format!("{kind} {name}"), object)?
        }
        "certificates" => {
            query.only(&[])?;
            found(&observer.certificates())
        }
        "findings" => list(query, "findings", || json!(observer.findings()))?,
        "marks" => {
            let query = query.only(&["from", "to"])?;
            let to = query.time("to")?.unwrap_or_else(now);
            let from = query.time("from")?.unwrap_or(to - HISTORY);
            found(&json!({ "marks": observer.marks(from, to) }))
        }
        "compare" => {
            let query = query.only(&["before", "after", "window"])?;
            let before = query.time("before")?;
            let before = before.ok_or_else(|| missing("before"))?;
            let after = query.time("after")?.unwrap_or_else(now);
            found(&observer.compare(before, after, query.window(60)?))
        }
        _ => return Err(no_path()),
    })
}

/// Says that there is no such path.
pub(crate) fn no_path() -> Refusal {
    let what = "the console has no such path";
    let fix = "docs/console.md lists them";
    refusal(StatusCode::NOT_FOUND, "not_found", what, fix)
}

fn missing(name: &str) -> Refusal {
    let what = format!("the parameter {name} is missing");
    let fix = "docs/console.md lists the parameters";
    refusal(StatusCode::BAD_REQUEST, "bad_query", what, fix)
}

fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

/// A list that has no parameters.
fn list(query: &Query, name: &str, rows: impl FnOnce() -> Value) -> Result<Answer, Refusal> {
    query.only(&[])?;
    Ok(found(&json!({ name: rows() })))
}

fn one(what: &str, page: Option<impl serde::Serialize>) -> Result<Answer, Refusal> {
    let page = page.ok_or_else(|| {
        let what = format!("the mesh has no {what}, or nothing was seen of it");
        let fix = "it may have been renamed or deleted: go back to the list";
        refusal(StatusCode::NOT_FOUND, "not_found", what, fix)
    })?;
    Ok(found(&page))
}

fn why(query: &Query) -> Result<WhyQuery, Refusal> {
    let query = query.only(&["from", "to", "port", "method", "path", "at"])?;
    Ok(WhyQuery {
        from: query.required("from")?.to_owned(),
        to: query.required("to")?.to_owned(),
        port: query.number::<u16>("port")?.unwrap_or_default().into(),
        method: query.text("method").to_owned(),
        path: query.text("path").to_owned(),
        at: query.time("at")?,
    })
}

async fn asked(observer: &Observer, query: &Query, question: Question) -> Result<Answer, Refusal> {
    let proxy = query.only(&["id"])?.required("id")?;
    let name = match question {
        Question::Config => "config",
        _ => "services",
    };
    let told = observer.ask(proxy, question).await?;
    // A proxy's answer about endpoints may have the name already.
    Ok(match told.get(name) {
        Some(_) => found(&told),
        None => found(&json!({ name: told })),
    })
}

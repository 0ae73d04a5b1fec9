//! The mesh's own dashboard in a cluster: shows the controller who this user is, and leads a port of this host to it.
//!
//! The controller hears of the user by a token: that of the kubeconfig, or else one of the service account
//! `tulle-console`, which the API server makes for those who may have it. It asks the API server whose it is.

use super::cluster::Cluster;
use super::dashboard::{forward, listen};
use crate::args::console::Dashboard;
use crate::browser;
use crate::failure::{Failure, OrFail, Result};
use http::StatusCode;
use http::header::{CONTENT_TYPE, HOST, ORIGIN};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::time::Duration;
use tulle_kube::names::{CONSOLE, CONSOLE_AUDIENCE, CONSOLE_PORT};

/// Lifetime of a token of the service account; the API server makes none for less.
const TOKEN_SECONDS: u32 = 600;
/// Longest wait for a session: the controller asks the API server meanwhile.
const TIME: Duration = Duration::from_secs(30);
/// Longest answer.
const MAX_ANSWER: usize = 64 * 1024;
/// Seconds in which the code is good.
const CODE_SECONDS: u32 = 60;

/// Opens it and leads connections there until Ctrl-C.
pub(super) async fn open(cluster: &Cluster, args: &Dashboard) -> Result<()> {
    let home = cluster.home().await?;
    let pod = cluster.controller(&home).await?;
    let token = match cluster.bearer_token().await? {
        Some(own) => own,
        None => account_token(cluster, &home).await?,
    };
    let code = code(cluster, &home, &pod, token).await?;
    let (listener, address) = listen(args.port).await?;
    let url = format!("http://{address}/#code={code}");
    browser::present(&url, CODE_SECONDS, args)?;
    crate::output::progress("the port leads to the controller until Ctrl-C");
    forward(cluster, &listener, (home, pod), CONSOLE_PORT).await
}

/// A token that is good for the console alone.
async fn account_token(cluster: &Cluster, home: &str) -> Result<String> {
    let path = format!("/api/v1/namespaces/{home}/serviceaccounts/{CONSOLE}/token");
    let asked = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": { "audiences": [CONSOLE_AUDIENCE], "expirationSeconds": TOKEN_SECONDS },
    });
    let made = cluster.create(&path, &asked).await.map_err(|failure| {
        failure.fix(format!(
            "the dashboard needs the right to create serviceaccounts/token of {home}/{CONSOLE}, and `console.enabled` \
             of the installation"
        ))
    })?;
    let token = made.pointer("/status/token").and_then(Value::as_str);
    token
        .map(str::to_owned)
        .ok_or_else(|| Failure::new("the API server made no token"))
}

/// Exchanges a token for a code that opens one session.
async fn code(cluster: &Cluster, home: &str, pod: &str, token: String) -> Result<String> {
    let what = || format!("cannot open the dashboard of the controller in pod {home}/{pod}");
    let fix = "`console.enabled` of the installation must be true; `tulle check` shows what else is wrong";
    let asked = tokio::time::timeout(TIME, ask(cluster, home, pod, token)).await;
    let (status, answer) = match asked {
        Ok(asked) => asked.map_err(|why| Failure::new(what()).because(why).fix(fix))?,
        Err(_) => return Err(Failure::new(what()).because("it does not answer").fix(fix)),
    };
    let text = |pointer| answer.pointer(pointer).and_then(Value::as_str);
    match text("/code") {
        Some(code) if status.is_success() => Ok(code.to_owned()),
        _ => Err(Failure::new(what())
            .because(text("/error/message").unwrap_or("its answer is not as expected"))
            .fix(text("/error/fix").unwrap_or(fix))),
    }
}

async fn ask(
    cluster: &Cluster,
    home: &str,
    pod: &str,
    token: String,
) -> Result<(StatusCode, Value)> {
    let what = || "the connection broke".to_owned();
    let stream = cluster.forward((home, pod), CONSOLE_PORT).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.or_fail(what)?;
    tokio::spawn(connection);
    let host = format!("127.0.0.1:{CONSOLE_PORT}");
    let request = http::Request::post("/api/v1/session")
        .header(HOST, &host)
        .header(ORIGIN, format!("http://{host}"))
        .header(CONTENT_TYPE, "application/json")
        .body(Full::<Bytes>::from(json!({ "token": token }).to_string()));
    let answer = sender.send_request(request.or_fail(what)?).await;
    let answer = answer.or_fail(what)?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
    let body = body.map_err(|why| Failure::new(what()).because(why))?;
    let value = serde_json::from_slice(&body.to_bytes());
    Ok((
        status,
        value.or_fail(|| "the answer is not JSON".to_owned())?,
    ))
}

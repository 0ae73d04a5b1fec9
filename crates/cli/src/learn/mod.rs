//! `tulle learn`: the smallest policies that allow what is seen.
//!
//! All proxies of the mesh are watched for a while. A call is told by the proxy that lets it in, so policies name the callers
//! as those are known there. Nothing is stored: the manifests are printed, to be looked at and applied.

mod observed;
mod paths;
mod policies;

use crate::args::output::Format;
use crate::args::policies::Learn;
use crate::client::Objects;
use crate::failure::{Failure, OrFail, Result};
use crate::output::{self, line};
use crate::prove::{Permission, View};
use crate::proxies::{Meshed, ProxySource};
use crate::traffic::Watch;
use observed::Observed;
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout_at};

/// Proxies that are watched at a time.
const PROXIES: usize = 500;
/// A watch is followed by another before it ends by itself, so that no request is missed between two.
const WATCH: Duration = Duration::from_secs(40);
/// How long two watches overlap.
const OVERLAP: Duration = Duration::from_secs(1);

/// Watches, then prints policies, or with `--diff` what policies allow and nobody used.
pub(crate) async fn learn<S: ProxySource>(
    source: &S,
    objects: &mut Objects,
    args: &Learn,
) -> Result<()> {
    let view = View::running(objects).await?;
    let proxies = source.proxies(&args.within).await?;
    let mut proxies: Vec<Meshed> = { proxies }.into_iter().filter(|p| p.sidecar_runs).collect();
    if proxies.is_empty() {
        return Err(Failure::new("there is nothing to learn from").because(source.no_proxies()));
    }
    if proxies.len() > PROXIES {
        output::progress(&format!(
            "warning: {} proxies are not watched, as there are more than {PROXIES}; -n learns of one namespace",
            proxies.len() - PROXIES
        ));
        proxies.truncate(PROXIES);
    }
    output::progress(&format!(
        "watching {} proxies for {:?}; Ctrl-C ends it, too",
        proxies.len(),
        args.run_for
    ));
    let seen = watch(source, proxies, Instant::now() + args.run_for).await?;
    remark(&seen);
    match args.diff {
        true => print_unused(&view, &seen, args.format.output),
        false => print_policies(&view, &seen, args),
    }
}

/// Watches all of them until then, or until Ctrl-C.
async fn watch<S: ProxySource>(source: &S, proxies: Vec<Meshed>, end: Instant) -> Result<Observed> {
    let (sender, mut requests) = mpsc::channel::<Result<(String, Value)>>(4096);
    for proxy in proxies {
        let (source, sender) = (source.clone(), sender.clone());
        tokio::spawn(async move {
            let following = follow(&source, &proxy, &sender);
            if let Ok(Err(failure)) = timeout_at(end, following).await {
                let _ = sender.send(Err(failure)).await;
            }
        });
    }
    drop(sender);
    let mut seen = Observed::default();
    loop {
        tokio::select! {
            () = sleep_until(end) => return Ok(seen),
            told = tokio::signal::ctrl_c() => {
                told.or_fail(|| "cannot wait for Ctrl-C".to_owned())?;
                return Ok(seen);
            }
            request = requests.recv() => match request {
                Some(Ok((own, line))) => seen.add(&own, &line),
                // The others are watched all the same.
                Some(Err(failure)) => output::progress(&format!("warning: {failure}")),
                None => return Ok(seen),
            },
        }
    }
}

/// Hands a proxy's requests on with its identity. Some come twice, none is left out between watches.
async fn follow<S: ProxySource>(
    source: &S,
    proxy: &Meshed,
    sender: &mpsc::Sender<Result<(String, Value)>>,
) -> Result<()> {
    let own = crate::proxies::ask(source, proxy, "/config").await?;
    let own: Value =
        serde_json::from_str(&own).or_fail(|| format!("{} has no identity", proxy.subject()))?;
    let own = own
        .get("identity")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let mut last: Option<tokio::task::JoinHandle<()>> = None;
    loop {
        let mut watch = Watch::begin(source, proxy).await?;
        let (own, requests) = (own.to_owned(), sender.clone());
        let reading = tokio::spawn(async move {
            while let Some(line) = watch.next().await {
                if requests.send(Ok((own.clone(), line))).await.is_err() {
                    return;
                }
            }
        });
        tokio::time::sleep(OVERLAP).await;
        if let Some(last) = last.replace(reading) {
            last.abort();
        }
        tokio::time::sleep(WATCH).await;
        if sender.is_closed() {
            return Ok(());
        }
    }
}

/// Says on standard error what the policies do not cover.
fn remark(seen: &Observed) {
    output::progress(&format!(
        "{} requests and connections were seen, counted by both sides",
        seen.requests
    ));
    for (service, count) in &seen.plaintext {
        output::progress(&format!(
            "note: {service} was called {count} times in plaintext: a policy cannot name who did so; `tulle edges` shows from where"
        ));
    }
    for (service, count) in &seen.refused {
        output::progress(&format!(
            "note: {count} calls of {service} were refused, and are not allowed by these policies"
        ));
    }
    if seen.left_out > 0 {
        output::progress(&format!(
            "warning: {} requests had no room and are not covered",
            seen.left_out
        ));
    }
}

fn print_policies(view: &View, seen: &Observed, args: &Learn) -> Result<()> {
    let port_of = |service: &str, own: u16| view.service_port(service, own);
    let learned = policies::of_observed(seen, port_of, args.audit);
    if learned.is_empty() {
        return Err(Failure::new("nothing was seen that a policy could allow")
            .fix("let the mesh do what it usually does, and learn for longer: --for 1h"));
    }
    if args.format.output == Format::Json {
        return output::structured(&serde_json::json!({ "items": learned }), Format::Json)
            .map(drop);
    }
    for (number, object) in learned.iter().enumerate() {
        if number > 0 {
            line("---");
        }
        output::structured(object, Format::Yaml)?;
    }
    Ok(())
}

/// Prints what policies allow and nobody used.
fn print_unused(view: &View, seen: &Observed, format: Format) -> Result<()> {
    let used: BTreeSet<(&str, &str)> = seen
        .calls
        .keys()
        .map(|called| (called.source.as_str(), called.service.as_str()))
        .collect();
    let is_unused = |p: &Permission| !used.contains(&(p.from.as_str(), p.to.as_str()));
    let unused: Vec<Permission> = view.permissions()?.into_iter().filter(is_unused).collect();
    if output::structured(&unused, format)? {
        return Ok(());
    }
    let mut columns = output::Columns::new(&["FROM", "TO", "ALLOWED BY"]);
    for permission in unused {
        columns.row(vec![permission.from, permission.to, permission.rule]);
    }
    match columns.is_empty() {
        true => line("everything that is allowed was used"),
        false => line(&columns.render()),
    }
    Ok(())
}

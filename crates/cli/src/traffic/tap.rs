//! `tulle tap` and `tulle top`: requests as they end, told by the proxies themselves (`GET /tap`).

use super::short;
use super::watch::Watch;
use crate::args::output::Format;
use crate::args::traffic::Tap;
use crate::failure::{OrFail, Result};
use crate::output::{self, Columns, Screen, line};
use crate::proxies::{Meshed, ProxySource};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tulle_model::grpc_status;

/// Pods that are watched at a time.
const PODS: usize = 20;
/// Rows of `top` that are kept; those that came first.
const ROWS: usize = 1000;

/// A request, and whose proxy tells it.
struct Request {
    pod: String,
    value: Value,
}

impl Request {
    fn text(&self, member: &str) -> &str {
        let found = self.value.get(member).and_then(Value::as_str);
        found.unwrap_or_default()
    }

    fn code(&self) -> u64 {
        let found = self.value.get("response_code").and_then(Value::as_u64);
        found.unwrap_or_default()
    }

    /// Status of a call of gRPC.
    fn grpc_status(&self) -> Option<u64> {
        self.value.get("grpc_status").and_then(Value::as_u64)
    }

    fn failed(&self) -> bool {
        self.code() >= 500
            || self.code() == 0
            || self.grpc_status().is_some_and(grpc_status::is_failure)
    }

    fn milliseconds(&self) -> f64 {
        let found = self.value.get("duration").and_then(Value::as_f64);
        found.unwrap_or_default()
    }

    fn is_wanted(&self, args: &Tap) -> bool {
        let method = args.method.as_deref();
        let path = args.path.as_deref().unwrap_or_default();
        method.is_none_or(|m| m.eq_ignore_ascii_case(self.text("method")))
            && self.text("path").starts_with(path)
    }

    fn shown(&self) -> String {
        let side = |member| match self.text(member) {
            "" | "-" => "-",
            identity => short(identity),
        };
        let time = self.text("start_time");
        let flags = match self.text("response_flags") {
            "" | "-" => String::new(),
            flags => format!(" {flags}"),
        };
        let grpc = self.value.get("grpc_status").and_then(Value::as_u64);
        let grpc = grpc
            .map(|status| format!(" grpc={status}"))
            .unwrap_or_default();
        format!(
            "{time} {} {} → {} {} {} {}{grpc}{flags} {:.1}ms {}",
            self.pod,
            side("source_principal"),
            side("destination_principal"),
            self.text("method"),
            self.text("path"),
            self.code(),
            self.milliseconds(),
            self.text("connection_security_policy"),
        )
    }
}

/// Requests of the pods that are meant, until enough, late or told to end.
async fn watch<S: ProxySource>(
    source: &S,
    args: &Tap,
    mut show: impl FnMut(Option<Request>) -> Result<()>,
) -> Result<()> {
    let mut pods = source.select(&args.target, &args.within).await?;
    pods.retain(|pod| pod.sidecar_runs);
    pods.truncate(PODS);
    let (sender, mut requests) = mpsc::channel(1024);
    for pod in pods {
        let (source, sender) = (source.clone(), sender.clone());
        tokio::spawn(async move {
            if let Err(failure) = follow(&source, &pod, &sender).await {
                // The reader may have ended first.
                let _ = sender.send(Err(failure)).await;
            }
        });
    }
    drop(sender);
    let end = args.run_for.map(|time| Instant::now() + time);
    let mut count = 0;
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    let mut last = None;
    loop {
        if end.is_some_and(|end| Instant::now() >= end) {
            return Ok(());
        }
        tokio::select! {
            request = requests.recv() => match request {
                Some(Ok(request)) if request.is_wanted(args) => {
                    show(Some(request))?;
                    count += 1;
                    if args.count.is_some_and(|most| count >= most) {
                        return Ok(());
                    }
                }
                Some(Ok(_)) => {}
                Some(Err(failure)) => last = Some(failure),
                // Nobody is left to tell anything.
                None => return last.map_or(Ok(()), Err),
            },
            _ = tick.tick() => show(None)?,
            told = tokio::signal::ctrl_c() => return told.or_fail(|| "cannot wait for Ctrl-C".to_owned()),
        }
    }
}

/// A watch ends by itself after a while, and is begun again.
async fn follow<S: ProxySource>(
    source: &S,
    pod: &Meshed,
    sender: &mpsc::Sender<Result<Request>>,
) -> Result<()> {
    loop {
        let mut watch = Watch::begin(source, pod).await?;
        while let Some(value) = watch.next().await {
            let pod = pod.shown();
            if sender.send(Ok(Request { pod, value })).await.is_err() {
                return Ok(());
            }
        }
        // A pod that has gone fails above.
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Prints each.
pub(crate) async fn tap<S: ProxySource>(source: &S, args: &Tap) -> Result<()> {
    let mesh = source.mesh();
    watch(source, args, |request| {
        let Some(request) = request else {
            return Ok(());
        };
        match args.format.output {
            Format::Table | Format::Wide => line(&request.shown()),
            // A line each, for programs that read as it comes.
            Format::Json | Format::Yaml => {
                let mut value = request.value;
                value["pod"] = request.pod.into();
                mesh.name_in(&mut value);
                line(&value.to_string());
            }
        }
        Ok(())
    })
    .await
}

#[derive(Default, Serialize)]
struct Row {
    source: String,
    destination: String,
    method: String,
    path: String,
    requests: u64,
    failed: u64,
    best_ms: f64,
    worst_ms: f64,
    last_ms: f64,
}

#[derive(Default)]
struct Rows(BTreeMap<(String, String, String, String), Row>);

impl Rows {
    fn add(&mut self, request: &Request) {
        // Queries are endless.
        let path = request.text("path").split('?').next().unwrap_or_default();
        let key = (
            short(request.text("source_principal")).to_owned(),
            short(request.text("destination_principal")).to_owned(),
            request.text("method").to_owned(),
            path.to_owned(),
        );
        if self.0.len() >= ROWS && !self.0.contains_key(&key) {
            return;
        }
        let ms = request.milliseconds();
        let row = self.0.entry(key.clone()).or_insert_with(|| Row {
            source: key.0,
            destination: key.1,
            method: key.2,
            path: key.3,
            best_ms: ms,
            ..Row::default()
        });
        row.requests += 1;
        row.failed += u64::from(request.failed());
        row.best_ms = row.best_ms.min(ms);
        row.worst_ms = row.worst_ms.max(ms);
        row.last_ms = ms;
    }

    /// The busiest first.
    fn sorted(&self) -> Vec<&Row> {
        let mut rows: Vec<&Row> = self.0.values().collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.requests));
        rows
    }

    fn lines(&self) -> Vec<String> {
        let mut columns = Columns::new(&[
            "SOURCE",
            "DESTINATION",
            "METHOD",
            "PATH",
            "COUNT",
            "FAILED",
            "BEST",
            "WORST",
            "LAST",
        ]);
        for row in self.sorted() {
            let ms = |ms: f64| format!("{ms:.1}ms");
            columns.row(vec![
                row.source.clone(),
                row.destination.clone(),
                row.method.clone(),
                row.path.clone(),
                row.requests.to_string(),
                row.failed.to_string(),
                ms(row.best_ms),
                ms(row.worst_ms),
                ms(row.last_ms),
            ]);
        }
        columns.render().lines().map(str::to_owned).collect()
    }
}

/// Counts them by path, and draws that anew each second.
pub(crate) async fn top<S: ProxySource>(source: &S, args: &Tap) -> Result<()> {
    let mut rows = Rows::default();
    let mut screen = output::is_terminal().then(Screen::default);
    watch(source, args, |request| {
        match request {
            Some(request) => rows.add(&request),
            None => {
                if let Some(screen) = &mut screen {
                    screen.draw(&rows.lines(), 0);
                }
            }
        }
        Ok(())
    })
    .await?;
    if let Some(screen) = &mut screen {
        screen.clear();
    }
    if !output::structured(&rows.sorted(), args.format.output)? {
        line(&rows.lines().join("\n"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn request(path: &str, code: u16, ms: f64) -> Request {
        let value = json!({
            "start_time": "2026-01-31T12:00:00.123Z", "method": "GET", "path": path,
            "response_code": code, "response_flags": "-", "duration": ms,
            "source_principal": "spiffe://t/ns/a/sa/b", "destination_principal": "-",
            "connection_security_policy": "mutual_tls",
        });
        Request {
            pod: "shop/web".into(),
            value,
        }
    }

    #[test]
    fn requests_are_shown_and_counted_by_path() {
        let shown = request("/x", 200, 1.25).shown();
        assert_eq!(
            shown,
            "2026-01-31T12:00:00.123Z shop/web ns/a/sa/b → - GET /x 200 1.2ms mutual_tls"
        );
        let mut rows = Rows::default();
        for request in [
            request("/x?a", 200, 2.0),
            request("/x?b", 503, 8.0),
            request("/y", 200, 1.0),
        ] {
            rows.add(&request);
        }
        let sorted = rows.sorted();
        assert_eq!((sorted.len(), sorted[0].path.as_str()), (2, "/x"));
        assert_eq!((sorted[0].requests, sorted[0].failed), (2, 1));
        assert_eq!((sorted[0].best_ms, sorted[0].worst_ms), (2.0, 8.0));
        for n in 0..2 * ROWS {
            rows.add(&request(&format!("/{n}"), 200, 1.0));
        }
        assert_eq!(rows.0.len(), ROWS);
    }
}

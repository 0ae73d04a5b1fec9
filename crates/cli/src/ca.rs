//! `tulle ca`: whose certificates are believed, and replacing the root.

use crate::args::identity::Ca;
use crate::args::output::Format;
use crate::client::{Objects, Rpc};
use crate::failure::Result;
use crate::output::{self, Columns, line};
use serde::Serialize;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::{Instant, sleep};
use tulle_api::v1::{AuthorityStatus, RotateRootRequest, ShowAuthorityRequest};

/// Least time of each step on a host.
pub(crate) const HOLD: Duration = Duration::from_secs(10);
/// Between looks at how far it is.
const LOOK: Duration = Duration::from_millis(500);

/// The authority as it is shown.
#[derive(Debug, Clone, Serialize)]
struct Authority {
    /// `steady`, `spreading` or `renewing`.
    step: String,
    /// When the step began, in Unix seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<i64>,
    /// How long it lasts at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    hold_seconds: Option<u64>,
    roots: Vec<Root>,
    /// The issuer of workloads' certificates, if the root does not sign them.
    #[serde(skip_serializing_if = "String::is_empty")]
    issuer: String,
    /// Why it gave none when it was asked last.
    #[serde(skip_serializing_if = "String::is_empty")]
    issuer_trouble: String,
    /// How many sidecars and hosts have not done yet what the step asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<u32>,
    /// Some of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    waiting_for: Vec<String>,
}

/// A root that is believed.
#[derive(Debug, Clone, Serialize)]
struct Root {
    sha256: String,
    /// `signing`, `next` or `previous`.
    role: String,
    not_after: i64,
}

/// Shows or rotates the root of the mesh that `open` reaches. Each step of a rotation lasts at least
/// `usual_hold` unless `--hold` says otherwise.
pub(crate) async fn ca(
    mut open: impl AsyncFnMut() -> Result<Objects>,
    args: &Ca,
    usual_hold: Duration,
) -> Result<()> {
    let mut objects = open().await?;
    let (hold, no_wait, format) = match args {
        Ca::Show { format } => return show(&ask(&mut objects).await?, format.output),
        Ca::Rotate {
            hold,
            no_wait,
            format,
        } => (hold.unwrap_or(usual_hold), *no_wait, format.output),
    };
    let request = RotateRootRequest {
        hold_seconds: u32::try_from(hold.as_secs()).unwrap_or(u32::MAX),
    };
    let answer = objects.rotate_root(request).await;
    let begun = seen(answer.rpc(|| "the root cannot be replaced".to_owned())?);
    if no_wait {
        return show(&begun, format);
    }
    let look = async || {
        let asked = ask(&mut objects).await;
        if asked.is_err() {
            // The controller that was asked may be gone; another one is.
            if let Ok(again) = open().await {
                objects = again;
            }
        }
        asked
    };
    wait(begun, format, look).await
}

async fn ask(objects: &mut Objects) -> Result<Authority> {
    let answer = objects.show_authority(ShowAuthorityRequest {}).await;
    let answer = answer.rpc(|| "cannot ask about the certificate authority".to_owned())?;
    Ok(seen(answer))
}

fn seen(status: AuthorityStatus) -> Authority {
    let steady = status.step == "steady";
    let roots = status.roots.into_iter().map(|root| Root {
        sha256: root.sha256,
        role: root.role,
        not_after: root.not_after_unix_seconds,
    });
    Authority {
        step: status.step,
        since: (!steady).then_some(status.since_unix_seconds),
        hold_seconds: (!steady).then_some(status.hold_seconds.into()),
        roots: roots.collect(),
        waiting: (!steady).then_some(status.waiting),
        waiting_for: status.waiting_for,
        issuer: status.issuer,
        issuer_trouble: status.issuer_trouble,
    }
}

/// Tells of each step until the last one is over. What cannot be asked for a while is asked again: the
/// rotation goes on without this command.
async fn wait(
    begun: Authority,
    format: Format,
    mut ask: impl AsyncFnMut() -> Result<Authority>,
) -> Result<()> {
    let people = matches!(format, Format::Table | Format::Wide);
    let mut step = String::new();
    let mut since = Instant::now();
    let mut now = begun;
    loop {
        if now.step != step {
            if people && !step.is_empty() {
                line(&format!("{step}: {:.1}s", since.elapsed().as_secs_f64()));
            }
            step.clone_from(&now.step);
            since = Instant::now();
        }
        if step == "steady" {
            return show(&now, format);
        }
        sleep(LOOK).await;
        if let Ok(seen) = ask().await {
            now = seen;
        }
    }
}

/// Prints it.
fn show(authority: &Authority, format: Format) -> Result<()> {
    if output::structured(authority, format)? {
        return Ok(());
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |d| i64::try_from(d.as_secs()).unwrap_or(i64::MAX));
    let mut columns = Columns::new(&["ROOT (SHA-256)", "ROLE", "VALID FOR"]);
    for root in &authority.roots {
        let days = (root.not_after - now) / 86_400;
        columns.row(vec![
            root.sha256.clone(),
            root.role.clone(),
            format!("{days}d"),
        ]);
    }
    line(&columns.render());
    if !authority.issuer.is_empty() {
        line(&format!("\nworkloads' certificates: {}", authority.issuer));
    }
    if !authority.issuer_trouble.is_empty() {
        line(&format!(
            "  gave none when asked last: {}",
            authority.issuer_trouble
        ));
    }
    let (Some(since), Some(hold)) = (authority.since, authority.hold_seconds) else {
        return Ok(());
    };
    let waiting = match authority.waiting {
        Some(0) | None => "everybody connected has done it".to_owned(),
        Some(count) => format!("{count} sidecars and hosts have not done it yet:"),
    };
    let (step, age) = (&authority.step, now - since);
    line(&format!("\n{step} for {age}s, at least {hold}s; {waiting}"));
    for id in &authority.waiting_for {
        line(&format!("  {id}"));
    }
    Ok(())
}

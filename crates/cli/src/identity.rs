//! `tulle identity`: certificates that are refused although they are valid.

use crate::args::identity::{Identity, Revoked};
use crate::args::output::Format;
use crate::client::{Objects, Rpc};
use crate::failure::{Failure, OrFail, Result};
use crate::output::{self, Columns, coarse, line};
use serde::Serialize;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use tulle_api::v1::{ListRevokedRequest, Revocation};

/// Longest list that is read: what the controller takes in one message.
const LONGEST_LIST: u64 = 3 * 1024 * 1024;

/// One thing that is revoked, as it is shown.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    #[serde(skip_serializing_if = "String::is_empty")]
    identity: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    serial: String,
    /// Issuer of a list: its name (DER) in hex.
    #[serde(skip_serializing_if = "String::is_empty")]
    issuer: String,
    /// Number of certificates in the list.
    #[serde(skip_serializing_if = "Option::is_none")]
    certificates: Option<u32>,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    /// When it was revoked, in Unix seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<i64>,
    /// `command` or `Mesh`: who revoked it.
    by: &'static str,
}

/// Carries the command out in the mesh on this host.
pub(crate) async fn identity(mut objects: Objects, args: &Identity) -> Result<()> {
    match args {
        Identity::List { format } => list(&mut objects, format.output).await,
        Identity::Revoke { format, .. } => {
            let (what, asked) = asked(args)?;
            let answer = objects.revoke(asked).await;
            let revoked = answer.rpc(|| format!("{what} is not revoked"))?;
            if revoked.unknown {
                warn_unknown(&revoked.identity);
            }
            said(revoked, "revoked", format.output)
        }
        Identity::Allow { format, .. } => {
            let (what, asked) = asked(args)?;
            let answer = objects.allow(asked).await;
            let allowed = answer.rpc(|| format!("{what} is not allowed"))?;
            if allowed.of_mesh {
                anstream::eprintln!("warning: it stays revoked, because the Mesh object lists it");
            }
            said(allowed, "allowed", format.output)
        }
    }
}

/// Shows what is revoked.
pub(crate) async fn list(objects: &mut Objects, format: Format) -> Result<()> {
    let answer = objects.list_revoked(ListRevokedRequest {}).await;
    let answer = answer.rpc(|| "cannot ask what is revoked".to_owned())?;
    let rows: Vec<Row> = answer.revoked.into_iter().map(row).collect();
    if output::structured(&rows, format)? {
        return Ok(());
    }
    if rows.is_empty() {
        line("Nothing is revoked.");
        return Ok(());
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |d| i64::try_from(d.as_secs()).unwrap_or(i64::MAX));
    let mut columns = Columns::new(&["REVOKED", "BY", "SINCE", "REASON"]);
    for row in rows {
        let since = row.since.map(|since| coarse((now - since).max(0)));
        columns.row(vec![
            name(&row),
            row.by.to_owned(),
            since.unwrap_or_default(),
            row.reason,
        ]);
    }
    line(&columns.render());
    Ok(())
}

/// Reads what a command asks for; returns it in words, too.
pub(crate) fn asked(args: &Identity) -> Result<(String, Revocation)> {
    let of = |what: &Revoked| Revocation {
        identity: what.identity.clone().unwrap_or_default(),
        serial: what.serial.clone().unwrap_or_default(),
        ..Default::default()
    };
    let asked = match args {
        Identity::List { .. } => Revocation::default(),
        Identity::Revoke {
            what, crl, reason, ..
        } => Revocation {
            crl: crl.as_deref().map(read).transpose()?.unwrap_or_default(),
            reason: reason.clone(),
            ..of(what)
        },
        Identity::Allow { what, issuer, .. } => Revocation {
            issuer: issuer.clone().unwrap_or_default(),
            ..of(what)
        },
    };
    let words = if !asked.identity.is_empty() {
        asked.identity.clone()
    } else if !asked.serial.is_empty() {
        format!("the certificate {}", asked.serial)
    } else {
        "the list".to_owned()
    };
    Ok((words, asked))
}

fn read(file: &Path) -> Result<String> {
    let mut text = String::new();
    let opened = File::open(file);
    opened
        .and_then(|f| f.take(LONGEST_LIST + 1).read_to_string(&mut text))
        .or_fail(|| format!("cannot read {}", file.display()))?;
    if text.len() as u64 > LONGEST_LIST {
        let what = format!("{} is longer than 3 MiB", file.display());
        return Err(Failure::input(what)
            .fix("split the list, or revoke certificates one by one with --serial"));
    }
    Ok(text)
}

pub(crate) fn warn_unknown(identity: &str) {
    anstream::eprintln!(
        "note: no workload of this mesh has the identity {identity} now; it is refused if one appears"
    );
}

/// Tells what was done.
pub(crate) fn said(revocation: Revocation, done: &str, format: Format) -> Result<()> {
    let row = row(revocation);
    if output::structured(&row, format)? {
        return Ok(());
    }
    line(&format!("{} {done}", name(&row)));
    Ok(())
}

fn row(revocation: Revocation) -> Row {
    let of_list = !revocation.issuer.is_empty();
    Row {
        identity: revocation.identity,
        serial: revocation.serial,
        issuer: revocation.issuer,
        certificates: of_list.then_some(revocation.listed),
        reason: revocation.reason,
        since: (!revocation.of_mesh).then_some(revocation.since_unix_seconds),
        by: if revocation.of_mesh {
            "Mesh"
        } else {
            "command"
        },
    }
}

fn name(row: &Row) -> String {
    if !row.identity.is_empty() {
        return row.identity.clone();
    }
    if !row.serial.is_empty() {
        return format!("serial {}", row.serial);
    }
    let certificates = row.certificates.unwrap_or_default();
    format!("{certificates} certificates of issuer {}", row.issuer)
}

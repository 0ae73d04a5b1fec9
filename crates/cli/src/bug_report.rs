//! The archive of `tulle support bug-report`: what helps to find out what is wrong.
//!
//! No Secret is asked for, what applications are told (environment, arguments) is left out, and what
//! looks like a key or token in anything else is, too.

use crate::args::cluster::Within;
use crate::client::Objects;
use crate::failure::{Failure, OrFail, Result};
use crate::new_file::create_anew;
use crate::output::line;
use crate::proxies::{ProxySource, ask_all};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Map, Value};
use std::fs::{self, File};
use std::path::Path;
use tulle_api::v1::ListRequest;
use tulle_kube::names::{INIT, SIDECAR};

const LEFT_OUT: &str = "(left out)";
/// Fields of requests whose values are secrets.
const CREDENTIALS: [&str; 5] = [
    "authorization",
    "proxy-authorization",
    "cookie",
    "set-cookie",
    "x-api-key",
];

/// Objects that the controller has in force; never a Secret.
pub(crate) async fn mesh(mut objects: Objects) -> Result<Vec<Value>> {
    let listed = objects.list(ListRequest::default()).await;
    let listed = listed
        .or_fail(|| "the controller lists nothing".to_owned())?
        .into_inner();
    let known = listed.objects.iter().filter(|o| o.kind != "Secret");
    Ok(known
        .filter_map(|o| serde_json::from_str(&o.json).ok())
        .collect())
}

/// Adds what up to so many proxies say of themselves.
pub(crate) async fn proxies<S: ProxySource>(
    source: &S,
    archive: &mut Archive,
    most: usize,
) -> Result<()> {
    let mut all = source.proxies(&Within::default()).await?;
    all.truncate(most);
    for what in [
        "config",
        "certificates",
        "endpoints",
        "errors",
        "outside",
        "metrics",
    ] {
        for (proxy, answer) in ask_all(source, &all, &format!("/{what}")).await {
            let answer = answer.unwrap_or_else(|failure| failure.to_string());
            let name = format!("proxies/{}/{what}", proxy.shown());
            match serde_json::from_str(&answer) {
                Ok(value) => archive.json(&format!("{name}.json"), value)?,
                Err(_) => archive.add(&format!("{name}.txt"), &answer)?,
            }
        }
    }
    Ok(())
}

/// Removes values that repeat others, and hides the environment and arguments of programs that are not
/// Tulle's, the commands of probes, and values of fields that carry credentials.
fn scrub(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(scrub),
        Value::Object(members) => {
            members.remove("managedFields");
            members.remove("kubectl.kubernetes.io/last-applied-configuration");
            let ours = members
                .get("name")
                .and_then(Value::as_str)
                .is_some_and(|name| matches!(name, SIDECAR | INIT | "controller"));
            if members.contains_key("image") && !ours {
                hide(members, &["env", "args", "command", "envFrom"]);
            }
            if members.get("kind").and_then(Value::as_str) == Some("Workload")
                && let Some(Value::Object(spec)) = members.get_mut("spec")
            {
                hide(spec, &["env", "command"]);
            }
            if let Some(Value::Object(exec)) = members.get_mut("exec") {
                hide(exec, &["command"]);
            }
            let name = members.get("name").and_then(Value::as_str);
            if name.is_some_and(|name| CREDENTIALS.contains(&&*name.to_ascii_lowercase())) {
                hide(members, &["value"]);
            }
            for (name, member) in members {
                if let (true, Value::String(path)) = (name == "path", &mut *member)
                    && let Some((before, _)) = path.split_once('?')
                {
                    *member = format!("{before}?{LEFT_OUT}").into();
                }
                scrub(member);
            }
        }
        _ => {}
    }
}

/// Hides in a line of a log what `scrub` hides, every query, and the values of fields that the Mesh adds to the access
/// log. A line without any stays as it is.
fn scrub_line(line: &str) -> String {
    if let Ok(Value::Object(told)) = serde_json::from_str(line) {
        let told = Value::Object(told);
        let mut shown = told.clone();
        scrub(&mut shown);
        if let Some(Value::Object(fields)) = shown.get_mut("fields") {
            fields.values_mut().for_each(|v| *v = LEFT_OUT.into());
        }
        hide_queries(&mut shown);
        if shown != told {
            let end = if line.ends_with('\n') { "\n" } else { "" };
            return format!("{shown}{end}");
        }
    }
    // JSON comes here, too: of a member that is there twice, only the last was looked at.
    without_queries(line)
}

fn hide_queries(value: &mut Value) {
    match value {
        Value::String(text) => *text = without_queries(text),
        Value::Array(items) => items.iter_mut().for_each(hide_queries),
        Value::Object(members) => members.values_mut().for_each(hide_queries),
        _ => {}
    }
}

/// Hides what stands between a question mark and the next blank or quotation mark. An apostrophe is no end: queries may
/// have one.
fn without_queries(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('?') {
        out.push_str(before);
        out.push('?');
        rest = after;
        if after.starts_with(LEFT_OUT) {
            continue;
        }
        let mut last = ' ';
        let end = after.find(|c: char| {
            let ends = c.is_whitespace() || (c == '"' && last != '\\');
            last = c;
            ends
        });
        let (query, after) = after.split_at(end.unwrap_or(after.len()));
        if !query.is_empty() {
            out.push_str(LEFT_OUT);
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

fn hide(members: &mut Map<String, Value>, names: &[&str]) {
    for name in names {
        if let Some(told) = members.get_mut(*name) {
            *told = LEFT_OUT.into();
        }
    }
}

/// Hides whatever looks like a private key or a token (RFC 7519), wherever it stands.
fn clean(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut in_key = false;
    for line in text.split_inclusive('\n') {
        if in_key || line.contains("PRIVATE KEY-----") {
            in_key = !line.contains("-----END");
            out.push_str(LEFT_OUT);
            out.push('\n');
            continue;
        }
        out.push_str(&without_tokens(line));
    }
    out
}

fn without_tokens(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some(at) = rest.find("eyJ") {
        let (before, from) = rest.split_at(at);
        let end = from.find(|c: char| !(c.is_ascii_alphanumeric() || "._-".contains(c)));
        let (word, after) = from.split_at(end.unwrap_or(from.len()));
        out.push_str(before);
        out.push_str(if word.len() > 40 { LEFT_OUT } else { word });
        rest = after;
    }
    out.push_str(rest);
    out
}

/// The archive that is written.
pub(crate) struct Archive {
    tar: tar::Builder<GzEncoder<File>>,
    shown: String,
}

impl Archive {
    /// Makes the file anew, for its owner alone: one that lies there may be open to others, or lead elsewhere.
    pub(crate) fn create(file: &Path) -> Result<Self> {
        let shown = file.display().to_string();
        // A device is not taken away.
        if fs::metadata(file).is_ok_and(|there| !there.is_file()) {
            return Err(
                Failure::new(format!("{shown} is no file")).fix("name a file to write with --file")
            );
        }
        let made = create_anew(file);
        let made = made.or_fail(|| format!("cannot write {shown}"))?;
        let tar = tar::Builder::new(GzEncoder::new(made, Compression::default()));
        Ok(Self { tar, shown })
    }

    /// Adds objects.
    pub(crate) fn list(&mut self, name: &str, objects: Result<Vec<Value>>) -> Result<()> {
        match objects {
            Ok(objects) => self.json(name, objects.into()),
            // A list that cannot be read is recorded with its error, and the archive goes on.
            Err(failure) => self.add(name, &failure.to_string()),
        }
    }

    /// Adds an object.
    pub(crate) fn json(&mut self, name: &str, mut value: Value) -> Result<()> {
        scrub(&mut value);
        self.add(name, &format!("{value:#}\n"))
    }

    /// Adds the lines of a log.
    pub(crate) fn log(&mut self, name: &str, text: &str) -> Result<()> {
        let lines: String = text.split_inclusive('\n').map(scrub_line).collect();
        self.add(name, &lines)
    }

    /// Adds a text.
    pub(crate) fn add(&mut self, name: &str, text: &str) -> Result<()> {
        let text = clean(text);
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        let path = format!("tulle-bug-report/{name}");
        let added = self.tar.append_data(&mut header, path, text.as_bytes());
        added.or_fail(|| format!("cannot write {}", self.shown))
    }

    /// Ends the archive and says where it is.
    pub(crate) fn finish(self) -> Result<()> {
        let written = self.tar.into_inner().and_then(GzEncoder::finish);
        written.or_fail(|| format!("cannot write {}", self.shown))?;
        line(&format!(
            "wrote {}, without secrets and keys; review it before you share it",
            self.shown
        ));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::read::GzDecoder;
    use serde_json::json;
    use std::fs::Permissions;
    use std::io::Read;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn secrets_are_left_out_wherever_they_stand() {
        let mut pod = json!({
            "metadata": { "annotations": { "kubectl.kubernetes.io/last-applied-configuration": "hush" } },
            "spec": { "containers": [
                { "name": "app", "image": "a", "env": [{ "name": "P", "value": "hush" }], "args": ["hush"] },
                { "name": SIDECAR, "image": "p", "args": ["shown"] },
            ] },
            "errors": [{ "path": "/x?token=hush" }],
            "workloads": [{
                "kind": "Workload",
                "spec": {
                    "command": ["hush"], "env": [{ "name": "P", "value": "hush" }], "ports": [{ "port": 8101 }],
                    "readinessProbe": { "exec": { "command": ["hush"] } },
                },
            }],
            "set": [{ "name": "Authorization", "value": "Basic hush" }],
        });
        scrub(&mut pod);
        let text = pod.to_string();
        assert!(
            !text.contains("hush")
                && text.contains("shown")
                && text.contains("/x?")
                && text.contains("8101"),
            "{text}"
        );

        let token = format!("eyJ{}.{}.c", "a".repeat(30), "b".repeat(30));
        let key = "a\n-----BEGIN PRIVATE KEY-----\nhush\n-----END PRIVATE KEY-----\nb\n";
        let text = clean(&format!("{key}Bearer {token} eyJ\n"));
        assert_eq!(
            text,
            "a\n(left out)\n(left out)\n(left out)\nb\nBearer (left out) eyJ\n"
        );

        let lines = [
            (
                r#"{"method":"GET","path":"/x?token=hush","duration":1.5,"fields":{"tenant":"hush"}}"#,
                r#"{"method":"GET","path":"/x?(left out)","duration":1.5,"fields":{"tenant":"(left out)"}}"#,
            ),
            (
                r#"{"path":"/x?a b=\"hush","message":"GET /y?a='hush' failed"}"#,
                r#"{"path":"/x?(left out)","message":"GET /y?(left out) failed"}"#,
            ),
            (
                r#"{"target":"/x?a=\"hush","cause":"reset","target":"tulle_proxy"}"#,
                r#"{"target":"/x?(left out)","cause":"reset","target":"tulle_proxy"}"#,
            ),
            (
                r#"[t] "GET /x?a='hush' HTTP/1.1" 200 "http://a/?hush""#,
                r#"[t] "GET /x?(left out) HTTP/1.1" 200 "http://a/?(left out)""#,
            ),
            (r#"{"path":"/x?hush"#, r#"{"path":"/x?(left out)"#),
        ];
        for (line, shown) in lines {
            assert_eq!(scrub_line(line), shown);
            assert_eq!(scrub_line(&format!("{line}\n")), format!("{shown}\n"));
        }
        let kept = "{\"b\":1,  \"a\": \"is it so? yes\"}\r\n";
        assert_eq!(scrub_line(kept), kept);
    }

    #[test]
    fn the_archive_is_a_new_file_of_its_owner_alone() {
        let directory = tempfile::tempdir().unwrap();
        let (file, other) = (directory.path().join("a"), directory.path().join("b"));
        fs::write(&other, "kept").unwrap();
        let is_new = || {
            let mut archive = Archive::create(&file).unwrap();
            archive.log("logs/a.log", "/x?hush\n").unwrap();
            archive.finish().unwrap();
            let made = fs::symlink_metadata(&file).unwrap();
            assert!(made.is_file(), "{made:?}");
            assert_eq!(made.permissions().mode() & 0o777, 0o600);
            let mut log = String::new();
            let archive = GzDecoder::new(File::open(&file).unwrap());
            for entry in tar::Archive::new(archive).entries().unwrap() {
                entry.unwrap().read_to_string(&mut log).unwrap();
            }
            assert_eq!(log, "/x?(left out)\n");
        };
        is_new();
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        is_new();
        fs::remove_file(&file).unwrap();
        symlink(&other, &file).unwrap();
        is_new();
        assert_eq!(fs::read_to_string(&other).unwrap(), "kept");
        assert!(Archive::create(directory.path()).is_err());
        assert!(directory.path().exists());
    }
}

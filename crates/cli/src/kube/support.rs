//! `tulle support bug-report`: an archive of what helps to find out what is wrong.
//!
//! No Secret is asked for, what applications are told (environment, arguments) is left out, and what
//! looks like a key or token in anything else is, too.

use super::check;
use super::cluster::Cluster;
use super::workloads::{self, Meshed, text};
use crate::args::cluster::{Support, Within};
use crate::failure::{OrFail, Result};
use crate::output::line;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use tulle_api::v1::ListRequest;
use tulle_kube::names::{CONTROLLER, INIT, SIDECAR};

const LEFT_OUT: &str = "(left out)";

/// Kinds that are in it as the API server has them, scrubbed.
const KINDS: [&str; 9] = [
    "/api/v1/nodes",
    "/api/v1/namespaces",
    "/api/v1/services",
    "/apis/discovery.k8s.io/v1/endpointslices",
    "/apis/apps/v1/deployments",
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    "/apis/gateway.networking.k8s.io/v1/gatewayclasses",
    "/api/v1/events",
];

/// Makes it.
pub(crate) async fn support(cluster: &Cluster, command: &Support) -> Result<()> {
    let Support::BugReport { file, lines, pods } = command;
    let mut archive = Archive::create(file)?;
    archive.add("version.txt", &versions(cluster).await)?;
    match check::findings(cluster).await {
        Ok(found) => archive.json("check.json", found)?,
        Err(failure) => archive.add("check.json", &failure.to_string())?,
    }
    for kind in KINDS {
        let name = kind.rsplit('/').next().unwrap_or(kind);
        archive.list(&format!("objects/{name}.json"), cluster.list(kind).await)?;
    }
    archive.list("objects/mesh.json", mesh(cluster).await)?;
    let home = cluster.home().await?;
    let settings = format!("/api/v1/namespaces/{home}/configmaps/tulle-settings");
    archive.list(
        "objects/settings.json",
        cluster
            .get(&settings)
            .await
            .map(|s| s.into_iter().collect()),
    )?;
    let all = workloads::pods(cluster, None).await?;
    let ours = |pod: &&Value| {
        Meshed::from_pod(pod).is_some()
            || (text(pod, "/metadata/namespace") == home
                && text(pod, "/metadata/labels/app.kubernetes.io~1part-of") == "tulle")
    };
    let of_mesh: Vec<Value> = all.iter().filter(ours).take(*pods).cloned().collect();
    for pod in &of_mesh {
        logs(cluster, &mut archive, pod, *lines).await?;
    }
    proxies(cluster, &mut archive, *pods).await?;
    archive.list("objects/pods.json", Ok(of_mesh))?;
    archive.finish()?;
    line(&format!(
        "wrote {}, without secrets and keys; review it before you share it",
        file.display()
    ));
    Ok(())
}

async fn versions(cluster: &Cluster) -> String {
    let server = cluster
        .get("/version")
        .await
        .ok()
        .flatten()
        .unwrap_or_default();
    format!(
        "tulle {}\nKubernetes {}\n",
        env!("CARGO_PKG_VERSION"),
        text(&server, "/gitVersion")
    )
}

/// Objects that the controller has in force; never a Secret.
async fn mesh(cluster: &Cluster) -> Result<Vec<Value>> {
    let mut objects = cluster.objects().await?;
    let listed = objects.list(ListRequest::default()).await;
    let listed = listed
        .or_fail(|| "the controller lists nothing".to_owned())?
        .into_inner();
    let known = listed.objects.iter().filter(|o| o.kind != "Secret");
    Ok(known
        .filter_map(|o| serde_json::from_str(&o.json).ok())
        .collect())
}

async fn logs(cluster: &Cluster, archive: &mut Archive, pod: &Value, lines: usize) -> Result<()> {
    let (namespace, name) = (
        text(pod, "/metadata/namespace"),
        text(pod, "/metadata/name"),
    );
    let is_controller = text(pod, "/metadata/labels/app.kubernetes.io~1name") == CONTROLLER;
    let is_gateway = Meshed::from_pod(pod).is_some_and(|pod| pod.gateway);
    for container in workloads::containers(pod).map(|c| text(c, "/name")) {
        if !is_controller && !is_gateway && !matches!(container, SIDECAR | INIT) {
            continue;
        }
        let path = format!(
            "/api/v1/namespaces/{namespace}/pods/{name}/log?container={container}&tailLines={lines}"
        );
        let log = cluster
            .text(&path)
            .await
            .unwrap_or_else(|failure| failure.to_string());
        archive.add(&format!("logs/{namespace}/{name}/{container}.log"), &log)?;
    }
    Ok(())
}

async fn proxies(cluster: &Cluster, archive: &mut Archive, most: usize) -> Result<()> {
    let mut pods = workloads::meshed(cluster, &Within::default()).await?;
    pods.truncate(most);
    for what in ["config", "certificates", "endpoints", "errors", "metrics"] {
        for (pod, answer) in workloads::ask_all(cluster, &pods, &format!("/{what}")).await {
            let answer = answer.unwrap_or_else(|failure| failure.to_string());
            let name = format!("proxies/{}/{what}", pod.shown());
            match serde_json::from_str(&answer) {
                Ok(value) => archive.json(&format!("{name}.json"), value)?,
                Err(_) => archive.add(&format!("{name}.txt"), &answer)?,
            }
        }
    }
    Ok(())
}

/// Removes values that repeat others, and hides the environment and arguments of programs that are not
/// Tulle's.
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
                for told in ["env", "args", "command", "envFrom"] {
                    if let Some(told) = members.get_mut(told) {
                        *told = LEFT_OUT.into();
                    }
                }
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

struct Archive {
    tar: tar::Builder<GzEncoder<File>>,
    shown: String,
}

impl Archive {
    fn create(file: &Path) -> Result<Self> {
        let shown = file.display().to_string();
        let made = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(file);
        let made = made.or_fail(|| format!("cannot write {shown}"))?;
        let tar = tar::Builder::new(GzEncoder::new(made, Compression::default()));
        Ok(Self { tar, shown })
    }

    fn list(&mut self, name: &str, objects: Result<Vec<Value>>) -> Result<()> {
        match objects {
            Ok(objects) => self.json(name, objects.into()),
            // A list that cannot be read is recorded with its error, and the archive goes on.
            Err(failure) => self.add(name, &failure.to_string()),
        }
    }

    fn json(&mut self, name: &str, mut value: Value) -> Result<()> {
        scrub(&mut value);
        self.add(name, &format!("{value:#}\n"))
    }

    fn add(&mut self, name: &str, text: &str) -> Result<()> {
        let text = clean(text);
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        let path = format!("tulle-bug-report/{name}");
        let added = self.tar.append_data(&mut header, path, text.as_bytes());
        added.or_fail(|| format!("cannot write {}", self.shown))
    }

    fn finish(self) -> Result<()> {
        let written = self.tar.into_inner().and_then(GzEncoder::finish);
        written
            .map(drop)
            .or_fail(|| format!("cannot write {}", self.shown))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn secrets_are_left_out_wherever_they_stand() {
        let mut pod = json!({
            "metadata": { "annotations": { "kubectl.kubernetes.io/last-applied-configuration": "hush" } },
            "spec": { "containers": [
                { "name": "app", "image": "a", "env": [{ "name": "P", "value": "hush" }], "args": ["hush"] },
                { "name": SIDECAR, "image": "p", "args": ["shown"] },
            ] },
            "errors": [{ "path": "/x?token=hush" }],
        });
        scrub(&mut pod);
        let text = pod.to_string();
        assert!(
            !text.contains("hush") && text.contains("shown") && text.contains("/x?"),
            "{text}"
        );

        let token = format!("eyJ{}.{}.c", "a".repeat(30), "b".repeat(30));
        let key = "a\n-----BEGIN PRIVATE KEY-----\nhush\n-----END PRIVATE KEY-----\nb\n";
        let text = clean(&format!("{key}Bearer {token} eyJ\n"));
        assert_eq!(
            text,
            "a\n(left out)\n(left out)\n(left out)\nb\nBearer (left out) eyJ\n"
        );
    }
}

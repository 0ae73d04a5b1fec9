//! Checks a single object, beyond its types. `set` checks what objects must fulfil together.

pub(super) mod access;
pub(super) mod filters;
pub(super) mod plugin;
pub(super) mod routing;
pub(super) mod secret;
pub(super) mod smi;
mod targets;
pub(super) mod traffic;

use super::allowed::{LOG_LEVELS, MAX_WEIGHT};
use super::meaning::MAX_HOST_AUTHORITY;
use super::names::{is_dns_label, is_env_name, is_host_pattern, is_object_name};
use super::quantity::{parse_cpu, parse_duration, parse_memory, parse_pause};
use super::{
    AccessLogSpec, JwksHostSpec, Manifest, MeshSpec, Metadata, Probe, TimeoutSpec, Upstream,
    WorkloadPort, WorkloadSpec,
};
use crate::condition;
use crate::document::{Path, Report, did_you_mean, shorten};
use crate::https_uri::is_host;
use crate::identity::SpiffeId;
use crate::log_format::LogFormat;
use std::collections::HashSet;
use std::time::Duration;

/// Longest timeout: what fits into `u32` milliseconds, rounded down.
const MAX_TIMEOUT: Duration = Duration::from_hours(49 * 24);

/// The values of `appProtocol`.
pub(super) const APP_PROTOCOLS: [&str; 7] = [
    "http",
    "http2",
    "kubernetes.io/h2c",
    "grpc",
    "tcp",
    "tcp-server-first",
    "tls",
];

/// Ports on which the sidecar itself listens beside an application.
const SIDECAR_PORTS: [u16; 5] = [15000, 15001, 15006, 15020, 15053];

/// A workload's log has its name.
const OWN_LOGS: [&str; 4] = ["supervisor", "controller", "janitor", "up"];

pub(super) fn spec() -> Path {
    Path::default().key("spec")
}

/// Checks the metadata, which every kind has. `name` checks the object's name.
pub(super) fn metadata(
    metadata: &Metadata,
    name: fn(&Path, &str, &mut Report),
    report: &mut Report,
) {
    let at = Path::default().key("metadata");
    name(&at.key("name"), &metadata.name, report);
    if let Some(namespace) = &metadata.namespace {
        label(&at.key("namespace"), namespace, report);
    }
}

/// Any text that is not too long.
pub(super) fn free_name(at: &Path, name: &str, report: &mut Report) {
    if name.is_empty() || name.len() > 253 {
        report.add(at, "expected a name of 1 to 253 characters", "");
    }
}

pub(super) fn label(at: &Path, name: &str, report: &mut Report) {
    if !is_dns_label(name) {
        report.add(
            at,
            format!("expected a DNS label, found `{}`", shorten(name)),
            "use 1 to 63 of a-z, 0-9 and `-`, with a letter or digit first and last",
        );
    }
}

/// The name of an object that is no host's: services and workloads have labels.
pub(super) fn object_name(at: &Path, name: &str, report: &mut Report) {
    if !is_object_name(name) {
        report.add(
            at,
            format!("expected a name, found `{}`", shorten(name)),
            "use 1 to 253 of a-z, 0-9, `-` and `.`, with a letter or digit first, last and beside each `.`",
        );
    }
}

pub(super) fn port(at: &Path, number: u16, report: &mut Report) {
    if number == 0 {
        report.add(
            at,
            "expected a port from 1 to 65535, found the number 0",
            "",
        );
    }
}

/// A port that no earlier item of the list has.
pub(super) fn unique_port(at: &Path, number: u16, seen: &mut HashSet<u16>, report: &mut Report) {
    port(at, number, report);
    if !seen.insert(number) {
        report.add(
            at,
            format!("port {number} is given twice"),
            "remove one of them",
        );
    }
}

/// A text that no earlier item of the list has.
pub(super) fn unique<'a>(
    at: &Path,
    text: &'a str,
    seen: &mut HashSet<&'a str>,
    report: &mut Report,
) {
    if !seen.insert(text) {
        let problem = format!("`{}` is given twice", shorten(text));
        report.add(at, problem, "each must be unique in its list");
    }
}

/// Checks that a text is one of a few words.
pub(super) fn word(at: &Path, text: &str, known: &[&str], report: &mut Report) {
    if known.contains(&text) {
        return;
    }
    let problem = match known {
        [only] => format!("expected `{only}`, found `{}`", shorten(text)),
        _ => format!(
            "expected one of `{}`, found `{}`",
            known.join("`, `"),
            shorten(text)
        ),
    };
    let hint = did_you_mean(text, known.iter().copied());
    report.add(
        at,
        problem,
        hint.map_or_else(String::new, |w| format!("did you mean `{w}`?")),
    );
}

/// A word the API defines but Tulle does not do, or else one of `known`.
pub(super) fn word_or_later(
    at: &Path,
    text: &str,
    known: &[&str],
    later: &[&str],
    report: &mut Report,
) {
    if later.contains(&text) {
        report.add(
            at,
            format!("`{text}` is not supported yet"),
            format!("for now it can be `{}`", known.join("` or `")),
        );
    } else {
        word(at, text, known, report);
    }
}

pub(super) fn host(at: &Path, name: &str, report: &mut Report) {
    if !is_host_pattern(name) {
        report.add(
            at,
            format!(
                "expected a host name or `*.` and a host name, found `{}`",
                shorten(name)
            ),
            "write it in lower case without port, such as `shop.example.com` or `*.example.com`",
        );
    }
}

pub(super) fn regex(at: &Path, pattern: &str, report: &mut Report) {
    if let Err(problem) = crate::pattern::compile(pattern) {
        report.add(at, problem, "");
    }
}

pub(super) fn not_empty<T>(at: &Path, list: &[T], what: &str, report: &mut Report) {
    if list.is_empty() {
        report.add(at, format!("expected at least one {what}, found none"), "");
    }
}

pub(super) fn duration(
    at: &Path,
    text: Option<&str>,
    least: Duration,
    most: Duration,
    report: &mut Report,
) {
    let Some(text) = text else { return };
    match parse_duration(text) {
        Err(e) => report.add(at, e.to_string(), ""),
        Ok(found) if found < least => {
            report.add(
                at,
                format!("expected at least {least:?}, found `{text}`"),
                "",
            );
        }
        Ok(found) if found > most => {
            report.add(at, format!("expected at most {most:?}, found `{text}`"), "");
        }
        Ok(_) => {}
    }
}

/// A certificate that ends before it is renewed would be an outage.
fn renewal(at: &Path, mesh: &MeshSpec, report: &mut Report) {
    let text = mesh.certificates.renew_after.as_deref();
    let (least, most) = (Duration::from_secs(1), Duration::from_hours(10 * 366 * 24));
    duration(at, text, least, most, report);
    let lifetime = mesh.certificate_lifetime();
    if let (Ok(Some(age)), Ok(lifetime)) = (mesh.certificate_renew_after(), lifetime)
        && age > lifetime / 3 * 2
    {
        let text = text.unwrap_or_default();
        report.add(
            at,
            format!("expected at most two thirds of the lifetime ({lifetime:?}), found `{text}`"),
            "the last third is for the time in which no controller answers",
        );
    }
}

/// An authority that ends before what it signs could sign nothing.
fn host_authority(at: &Path, mesh: &MeshSpec, report: &mut Report) {
    let Some(spec) = &mesh.certificates.host_authority else {
        return;
    };
    let least = mesh.certificate_lifetime().unwrap_or_default();
    let text = spec.lifetime.as_deref();
    duration(&at.key("lifetime"), text, least, MAX_HOST_AUTHORITY, report);
    if text.is_none() && least > MAX_HOST_AUTHORITY {
        let problem = "expected `certificates.lifetime` of at most `720h` with it";
        report.add(at, problem.to_owned(), "");
    }
    for (n, host) in spec.hosts.iter().enumerate() {
        let id = format!("spiffe://t/node/{host}");
        if SpiffeId::parse(&id)
            .ok()
            .is_none_or(|id| id.node() != Some(host.as_str()))
        {
            let problem = format!("expected the name of a host that joined, found `{host}`");
            report.add(&at.key("hosts").index(n), problem, "");
        }
    }
}

pub(super) fn mesh(mesh: &Manifest<MeshSpec>, report: &mut Report) {
    metadata(&mesh.metadata, free_name, report);
    let at = spec();
    let mesh = &mesh.spec;
    if let Some(level) = &mesh.log_level {
        word(&at.key("logLevel"), level, &LOG_LEVELS, report);
    }
    duration(
        &at.key("certificates").key("lifetime"),
        mesh.certificates.lifetime.as_deref(),
        Duration::from_secs(10),
        Duration::from_hours(10 * 366 * 24),
        report,
    );
    renewal(&at.key("certificates").key("renewAfter"), mesh, report);
    host_authority(&at.key("certificates").key("hostAuthority"), mesh, report);
    timeouts(&at.key("timeouts"), &mesh.timeouts, report);
    let sidecar = at.key("sidecar");
    if let Some(Err(e)) = mesh.sidecar.cpu_limit.as_deref().map(parse_cpu) {
        report.add(&sidecar.key("cpuLimit"), e.to_string(), "");
    }
    if let Some(Err(e)) = mesh.sidecar.memory_limit.as_deref().map(parse_memory) {
        report.add(&sidecar.key("memoryLimit"), e.to_string(), "");
    }
    if let Some(workers) = mesh.sidecar.workers {
        let at = sidecar.key("workers");
        range(
            &at,
            workers.into(),
            1,
            crate::bootstrap::MAX_WORKERS.into(),
            report,
        );
    }
    if let Some(most) = mesh.sidecar.max_connections {
        range(&sidecar.key("maxConnections"), most, 1, u32::MAX, report);
    }
    if let Some(Err(e)) = mesh.sidecar.economy.as_deref().map(parse_pause) {
        report.add(&sidecar.key("economy"), e.to_string(), "");
    }
    let limits = at.key("limits");
    if let Some(bytes) = mesh.limits.header_bytes {
        range(&limits.key("headerBytes"), bytes, 1024, 1 << 20, report);
    }
    if let Some(count) = mesh.limits.header_count {
        let most = crate::resource::MOST_HEADERS;
        range(&limits.key("headerCount"), count, 10, most, report);
    }
    for (n, revocation) in mesh.revoked.iter().enumerate() {
        let at = at.key("revoked").index(n);
        if let Err((field, problem)) = revocation.read() {
            report.add(&at.key(field), problem, "");
        }
    }
    jwks_hosts(&at.key("jwks").key("hosts"), &mesh.jwks.hosts, report);
    if let Some(log) = &mesh.access_log {
        access_log(&at.key("accessLog"), log, report);
    }
    if let Some(tracing) = &mesh.tracing {
        let at = at.key("tracing");
        match tracing.settings() {
            Err(e) => report.add(&at.key("sampling"), e.to_string(), ""),
            Ok(settings) => {
                for (field, problem) in settings.problems() {
                    report.add(&at.key(field), problem, "");
                }
            }
        }
    }
    if let Some(otlp) = &mesh.otlp {
        let at = at.key("otlp");
        match otlp.settings() {
            Err(e) => report.add(&at.key("metrics"), e.to_string(), ""),
            Ok(settings) => {
                for (field, problem) in settings.problems() {
                    report.add(&at.key(field), problem, "");
                }
            }
        }
    }
}

fn access_log(at: &Path, log: &AccessLogSpec, report: &mut Report) {
    if let Err(e) = log.lines() {
        report.add(&at.key("sampling"), e.to_string(), "");
    }
    if let Some(Err(e)) = log.format.as_deref().map(LogFormat::parse) {
        report.add(&at.key("format"), e.to_string(), "");
    }
    if let Some(when) = &log.when {
        condition::check(&at.key("when"), condition::log(when), report);
    }
    let mut seen = HashSet::new();
    for (i, field) in log.fields.iter().enumerate() {
        let at = at.key("fields").index(i);
        if field.name.is_empty() || !seen.insert(&field.name) {
            report.add(&at.key("name"), "each field needs a name of its own", "");
        }
        condition::check(
            &at.key("expression"),
            condition::text(&field.expression),
            report,
        );
    }
    if !log.fields.is_empty() && log.format.is_some() {
        let problem = "they are for lines in JSON, and there is a `format`";
        report.add(&at.key("fields"), problem, "remove one of the two");
    }
}

fn jwks_hosts(at: &Path, hosts: &[JwksHostSpec], report: &mut Report) {
    let mut seen = HashSet::new();
    for (i, spec) in hosts.iter().enumerate() {
        let at = at.index(i);
        if !is_host(&spec.host) {
            let problem = format!(
                "expected a host name in lower case or an IP address, found `{}`",
                shorten(&spec.host)
            );
            report.add(&at.key("host"), problem, "");
        }
        port(&at.key("port"), spec.port(), report);
        if !seen.insert((&spec.host, spec.port())) {
            let problem = format!("{}:{} is listed twice", shorten(&spec.host), spec.port());
            report.add(&at, problem, "");
        }
        if !spec.roots.is_empty() && !spec.roots.contains("-----BEGIN CERTIFICATE-----") {
            let problem = "expected certificates as PEM, found none";
            report.add(&at.key("roots"), problem, "");
        }
    }
}

fn range(at: &Path, found: u32, least: u32, most: u32, report: &mut Report) {
    if !(least..=most).contains(&found) {
        let problem = format!("expected a number from {least} to {most}, found the number {found}");
        report.add(at, problem, "");
    }
}

fn timeouts(at: &Path, timeouts: &TimeoutSpec, report: &mut Report) {
    let least = Duration::from_millis(1);
    for (name, value, least, most) in [
        (
            "protocolDetection",
            &timeouts.protocol_detection,
            least,
            Duration::from_secs(1),
        ),
        ("header", &timeouts.header, least, MAX_TIMEOUT),
        ("idle", &timeouts.idle, least, MAX_TIMEOUT),
        ("request", &timeouts.request, Duration::ZERO, MAX_TIMEOUT),
        ("connect", &timeouts.connect, least, MAX_TIMEOUT),
    ] {
        duration(&at.key(name), value.as_deref(), least, most, report);
    }
}

pub(super) fn workload(workload: &Manifest<WorkloadSpec>, report: &mut Report) {
    metadata(&workload.metadata, label, report);
    if OWN_LOGS.contains(&workload.metadata.name.as_str()) {
        report.add(
            &Path::default().key("metadata").key("name"),
            format!(
                "`{}` is the name of a log of Tulle's own",
                workload.metadata.name
            ),
            "choose another name; `service` may be this one",
        );
    }
    let at = spec();
    let workload = &workload.spec;
    for (name, value) in [
        ("service", &workload.service),
        ("identity", &workload.identity),
    ] {
        if let Some(value) = value {
            label(&at.key(name), value, report);
        }
    }
    match (workload.command.first(), workload.address) {
        (Some(_), Some(_)) => report.add(
            &at.key("address"),
            "expected exactly one of `command` and `address`, found both",
            "keep `command` to have it started, or `address` if it already runs",
        ),
        (None, None) => report.add(
            &at,
            "expected exactly one of `command` and `address`, found neither",
            "add `command: [program, argument]`, or `address: 127.0.0.1` if it already runs",
        ),
        (Some(program), None) if program.is_empty() => {
            report.add(
                &at.key("command").index(0),
                "expected a program, found ``",
                "",
            );
        }
        _ => {}
    }
    if workload.address.is_some() {
        if workload.working_directory.is_some() {
            let hint = "remove it; only what `command` starts has one";
            report.add(&at.key("workingDirectory"), "not used with `address`", hint);
        }
        if workload.user.is_some() {
            let hint = "remove it; only what `command` starts has one";
            report.add(&at.key("user"), "not used with `address`", hint);
        }
        if !workload.env.is_empty() {
            let hint = "remove it; only what `command` starts has one";
            report.add(&at.key("env"), "not used with `address`", hint);
        }
        if !workload.pass_env.is_empty() {
            let hint = "remove it; only what `command` starts has one";
            report.add(&at.key("passEnv"), "not used with `address`", hint);
        }
    }
    if let Some(name) = &workload.user {
        user(&at.key("user"), name, report);
    }
    for (i, argument) in workload.command.iter().enumerate() {
        no_nul(&at.key("command").index(i), argument, report);
    }
    environment(&at, workload, report);
    workload_ports(&at.key("ports"), &workload.ports, report);
    if let Some(probe) = &workload.readiness_probe {
        readiness(&at.key("readinessProbe"), probe, report);
    }
    upstreams(&at.key("upstreams"), &workload.upstreams, report);
    if let Some(text) = &workload.locality {
        locality(&at.key("locality"), text, report);
    }
    if let Some(weight) = workload.weight {
        range(&at.key("weight"), weight, 0, MAX_WEIGHT, report);
    }
}

/// Variables that are set, and those that are passed on.
fn environment(at: &Path, workload: &WorkloadSpec, report: &mut Report) {
    let mut set = HashSet::new();
    for (i, variable) in workload.env.iter().enumerate() {
        let at = at.key("env").index(i);
        env_name(&at.key("name"), &variable.name, report);
        unique(&at.key("name"), &variable.name, &mut set, report);
        no_nul(&at.key("value"), &variable.value, report);
    }
    let mut passed = HashSet::new();
    for (i, name) in workload.pass_env.iter().enumerate() {
        let at = at.key("passEnv").index(i);
        env_name(&at, name, report);
        unique(&at, name, &mut passed, report);
        if set.contains(name.as_str()) {
            let what = format!("`{}` is given in `env`, too", shorten(name));
            report.add(&at, what, "remove one of them");
        }
    }
}

/// `region` or `region/zone`.
fn locality(at: &Path, text: &str, report: &mut Report) {
    if text.split('/').count() > 2 || !text.split('/').all(is_dns_label) {
        report.add(
            at,
            format!(
                "expected `region` or `region/zone`, found `{}`",
                shorten(text)
            ),
            "use a-z, 0-9 and `-` on both sides of the `/`",
        );
    }
}

/// Checks a user's name. Only the host on which it runs knows whether the user exists.
fn user(at: &Path, name: &str, report: &mut Report) {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'$');
    let number = name.parse::<u32>();
    let digits = name.bytes().all(|b| b.is_ascii_digit());
    // To the kernel, the number with all bits set is no user.
    let known = (1..=64).contains(&name.len()) && name.bytes().all(plain) && !name.starts_with('-');
    if !known || (digits && number.as_ref().map_or(true, |n| *n == u32::MAX)) {
        report.add(
            at,
            format!(
                "expected the name or the number of a user, found `{}`",
                shorten(name)
            ),
            "",
        );
    }
}

fn env_name(at: &Path, name: &str, report: &mut Report) {
    if !is_env_name(name) {
        report.add(
            at,
            format!("expected the name of a variable, found `{}`", shorten(name)),
            "use letters, digits and `_`, not starting with a digit",
        );
    }
}

fn no_nul(at: &Path, text: &str, report: &mut Report) {
    if text.contains('\0') {
        report.add(at, "expected text without NUL characters", "");
    }
}

fn workload_ports(at: &Path, ports: &[WorkloadPort], report: &mut Report) {
    let (mut numbers, mut names) = (HashSet::new(), HashSet::new());
    for (i, p) in ports.iter().enumerate() {
        let at = at.index(i);
        unique_port(&at.key("port"), p.port, &mut numbers, report);
        let own = [("port", Some(p.port)), ("targetPort", p.target_port)];
        for (key, number) in own {
            if let Some(number) = number.filter(|n| SIDECAR_PORTS.contains(n)) {
                report.add(
                    &at.key(key),
                    format!("port {number} is the sidecar's own"),
                    "choose another; 15000, 15001, 15006, 15020 and 15053 are taken",
                );
            }
        }
        if let Some(name) = &p.name {
            label(&at.key("name"), name, report);
            unique(&at.key("name"), name, &mut names, report);
        }
        if let Some(target) = p.target_port {
            port(&at.key("targetPort"), target, report);
        }
        if let Some(protocol) = &p.app_protocol {
            word(&at.key("appProtocol"), protocol, &APP_PROTOCOLS, report);
        }
    }
}

fn readiness(at: &Path, probe: &Probe, report: &mut Report) {
    let given = [
        probe.http_get.is_some(),
        probe.tcp_socket.is_some(),
        probe.exec.is_some(),
    ];
    let given = given.iter().filter(|given| **given).count();
    if given != 1 {
        report.add(
            at,
            format!("expected exactly one of `httpGet`, `tcpSocket` and `exec`, found {given}"),
            "",
        );
    }
    if let Some(get) = &probe.http_get {
        port(&at.key("httpGet").key("port"), get.port, report);
        path(&at.key("httpGet").key("path"), &get.path, report);
    }
    if let Some(socket) = &probe.tcp_socket {
        port(&at.key("tcpSocket").key("port"), socket.port, report);
    }
    if let Some(exec) = &probe.exec {
        let at = at.key("exec").key("command");
        not_empty(&at, &exec.command, "word: the program", report);
        for (i, argument) in exec.command.iter().enumerate() {
            no_nul(&at.index(i), argument, report);
        }
    }
    for (name, value) in [
        ("periodSeconds", probe.period_seconds),
        ("failureThreshold", probe.failure_threshold),
    ] {
        if let Some(value) = value {
            range(&at.key(name), value, 1, 86_400, report);
        }
    }
}

/// A path as it stands in a request, where no space or control character can be.
pub(super) fn path(at: &Path, text: &str, report: &mut Report) {
    if !text.starts_with('/') || text.bytes().any(|b| b <= b' ' || b == 0x7f) {
        report.add(
            at,
            format!(
                "expected a path that starts with `/` and has no spaces, found `{}`",
                shorten(text)
            ),
            "",
        );
    }
}

fn upstreams(at: &Path, upstreams: &[Upstream], report: &mut Report) {
    let (mut targets, mut variables, mut locals) = (HashSet::new(), HashSet::new(), HashSet::new());
    for (i, upstream) in upstreams.iter().enumerate() {
        let at = at.index(i);
        label(&at.key("service"), &upstream.service, report);
        port(&at.key("port"), upstream.port, report);
        if !targets.insert((&upstream.service, upstream.port)) {
            report.add(
                &at,
                format!(
                    "upstream {}:{} is given twice",
                    shorten(&upstream.service),
                    upstream.port
                ),
                "remove one of them",
            );
        }
        if let Some(name) = &upstream.env {
            env_name(&at.key("env"), name, report);
            unique(&at.key("env"), name, &mut variables, report);
        }
        if let Some(local) = upstream.local_port {
            unique_port(&at.key("localPort"), local, &mut locals, report);
        }
    }
}

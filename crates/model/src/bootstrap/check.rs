//! Reads the proxy's file strictly, and checks what the types cannot express.

use super::{Bootstrap, Control, Listener, ListenerKind, MAX_WORKERS};
use crate::condition;
use crate::document::{Finding, ManifestError, Node, Path, Report, decode, shorten};
use crate::resource::{
    Gateway, Inbound, LONGEST_PAUSE_US, MOST_HEADERS, PathMatch, Route, Service,
};
use std::collections::HashMap;
use std::net::SocketAddr;

impl Bootstrap {
    /// Reads the file's text. `file` is only used in messages.
    ///
    /// # Errors
    /// The first thing found wrong, with its place.
    #[allow(clippy::result_large_err)] // read once, at start
    pub fn parse(file: &str, text: &str) -> Result<Self, ManifestError> {
        let documents = Node::parse_yaml(text)
            .map_err(|finding| finding.into_error(file, 0, &Node::empty(), None))?;
        let [root] = documents.as_slice() else {
            let problem = format!("expected one document, found {}", documents.len());
            let finding = Finding::new(problem);
            return Err(finding.into_error(file, 0, &Node::empty(), None));
        };
        let mut report = Report::default();
        let bootstrap: Option<Self> = decode(root, |_, _| None, &mut report);
        if let Some(bootstrap) = &bootstrap {
            bootstrap.check(&mut report);
        }
        match (report.into_findings().into_iter().next(), bootstrap) {
            (None, Some(bootstrap)) => Ok(bootstrap),
            (Some(finding), _) => Err(finding.into_error(file, 0, root, None)),
            (None, None) => {
                let finding = Finding::new("it cannot be read".into());
                Err(finding.into_error(file, 0, root, None))
            }
        }
    }

    fn check(&self, report: &mut Report) {
        let top = Path::default();
        match (&self.certificates, &self.control) {
            (Some(_), Some(_)) => report.add(
                &top.key("certificates"),
                "expected exactly one of `certificates` and `control`, found both",
                "with a controller, certificates come from it",
            ),
            (None, None) => report.add(
                &top,
                "expected exactly one of `certificates` and `control`, found neither",
                "add `control` to join a mesh, or `certificates` to run alone",
            ),
            _ => {}
        }
        if !self.admin.ip().is_loopback() {
            report.add(
                &top.key("admin"),
                format!("expected a loopback address, found `{}`", self.admin),
                "use 127.0.0.1 or [::1]; it shows the proxy's configuration to anyone who connects",
            );
        }
        for (i, address) in self.dns.iter().flat_map(|d| &d.addresses).enumerate() {
            if !address.ip().is_loopback() {
                report.add(
                    &top.key("dns").key("addresses").index(i),
                    format!("expected a loopback address, found `{address}`"),
                    "use 127.0.0.1 or [::1]; anybody who connects could ask anything",
                );
            }
        }
        if self.health.is_none() && !self.probes.is_empty() {
            let hint = "add `health`, the address that answers them";
            report.add(&top.key("probes"), "no address answers them", hint);
        }
        if let Some(source) = &self.application_metrics
            && [self.metrics.port(), self.admin.port(), 0].contains(&source.port)
        {
            let at = top.key("applicationMetrics").key("port");
            let problem = format!("expected a port of the application, found {}", source.port);
            report.add(&at, problem, "the proxy would ask itself");
        }
        if self.workers > MAX_WORKERS {
            let problem = format!(
                "expected a number from 0 to {MAX_WORKERS}, found the number {}",
                self.workers
            );
            report.add(&top.key("workers"), problem, "0 is one for each core");
        }
        for (field, problem) in self.mesh.access_log_lines.problems() {
            let at = top.key("mesh").key("accessLogLines").key(field);
            report.add(&at, problem, "");
        }
        for (field, problem) in self.mesh.tracing.iter().flat_map(|t| t.problems()) {
            report.add(&top.key("mesh").key("tracing").key(field), problem, "");
        }
        for (field, problem) in self.mesh.otlp.iter().flat_map(|o| o.problems()) {
            report.add(&top.key("mesh").key("otlp").key(field), problem, "");
        }
        if self.mesh.economy_us > LONGEST_PAUSE_US {
            let problem = format!(
                "expected a number from 0 to {LONGEST_PAUSE_US}, found the number {}",
                self.mesh.economy_us
            );
            let at = top.key("mesh").key("economyUs");
            report.add(&at, problem, "0 is no pause");
        }
        if self.mesh.max_headers > MOST_HEADERS {
            let problem = format!(
                "expected a number from 0 to {MOST_HEADERS}, found the number {}",
                self.mesh.max_headers
            );
            let at = top.key("mesh").key("maxHeaders");
            report.add(&at, problem, "HTTP/1.1 takes no more");
        }
        self.check_addresses(report);
        if let Some(control) = &self.control {
            check_control(&top.key("control"), control, report);
            for (name, given) in [
                ("services", !self.services.is_empty()),
                ("inbound", self.inbound.is_some()),
                ("gateways", !self.gateways.is_empty()),
                ("egress", self.egress.is_some()),
            ] {
                if given {
                    let hint = "remove it, or remove `control`";
                    report.add(
                        &top.key(name),
                        "with `control` it comes from the controller",
                        hint,
                    );
                }
            }
        } else {
            self.check_resources(report);
            for (i, listener) in self.listeners.iter().enumerate() {
                self.check_listener(&top.key("listeners").index(i), listener, report);
            }
        }
    }

    /// Checks that no two sockets have one address; port 0 is a different free port each time.
    fn check_addresses(&self, report: &mut Report) {
        let top = Path::default();
        let mut all = vec![
            (top.key("admin"), self.admin),
            (top.key("metrics"), self.metrics),
        ];
        all.extend(self.health.map(|address| (top.key("health"), address)));
        for (i, listener) in self.listeners.iter().enumerate() {
            let at = top.key("listeners").index(i).key("address");
            all.push((at, listener.address));
        }
        for (i, address) in self.dns.iter().flat_map(|d| &d.addresses).enumerate() {
            all.push((top.key("dns").key("addresses").index(i), *address));
        }
        let mut seen: HashMap<SocketAddr, &Path> = HashMap::new();
        for (at, address) in &all {
            if address.port() == 0 {
                continue;
            }
            if let Some(first) = seen.insert(*address, at) {
                let problem = format!("`{address}` is already the address of `{first}`");
                report.add(at, problem, "choose another port");
            }
        }
    }

    /// Without a controller, the file must contain everything that a listener serves.
    fn check_listener(&self, at: &Path, listener: &Listener, report: &mut Report) {
        let hint = "without `control` it must stand in this file";
        match &listener.kind {
            ListenerKind::Outbound => {
                let outside = self.mesh.allow_egress || self.egress.is_some();
                if self.services.is_empty() && !outside {
                    report.add(at, "there are no `services` it could reach", hint);
                }
            }
            ListenerKind::Upstream { service, port } => {
                if !self.has_service(service, *port) {
                    let service = shorten(service);
                    let problem = format!("there is no service `{service}` with port {port}");
                    report.add(at, problem, hint);
                }
            }
            ListenerKind::Inbound => {
                if self.inbound.is_none() {
                    report.add(at, "there is no `inbound` it could serve", hint);
                }
            }
            ListenerKind::InboundPort { port } => {
                let known = |inbound: &Inbound| inbound.ports.iter().any(|p| p.port == *port);
                if !self.inbound.as_ref().is_some_and(known) {
                    report.add(at, format!("`inbound` has no port {port}"), hint);
                }
            }
            ListenerKind::Gateway { gateway, port } => {
                let known =
                    |g: &Gateway| g.name == *gateway && g.listeners.iter().any(|l| l.port == *port);
                if !self.gateways.iter().any(known) {
                    let gateway = shorten(gateway);
                    let problem =
                        format!("there is no gateway `{gateway}` with a listener on port {port}");
                    report.add(at, problem, hint);
                }
            }
        }
    }

    fn has_service(&self, name: &str, port: u16) -> bool {
        let known = |s: &Service| s.name == name && s.ports.iter().any(|p| p.port == port);
        self.services.iter().any(known)
    }

    fn check_resources(&self, report: &mut Report) {
        let top = Path::default();
        let mut names = HashMap::new();
        for (i, service) in self.services.iter().enumerate() {
            let at = top.key("services").index(i);
            if names.insert(service.name.as_str(), i).is_some() {
                let problem = format!("service `{}` is given twice", shorten(&service.name));
                report.add(&at.key("name"), problem, "rename or remove one");
            }
            let ports = service.ports.iter().map(|p| p.port);
            check_ports(&at.key("ports"), ports, report);
            self.check_routes(&at.key("routes"), &service.routes, report);
        }
        let mut names = HashMap::new();
        for (i, gateway) in self.gateways.iter().enumerate() {
            let at = top.key("gateways").index(i);
            if names.insert(gateway.name.as_str(), i).is_some() {
                let problem = format!("gateway `{}` is given twice", shorten(&gateway.name));
                report.add(&at.key("name"), problem, "rename or remove one");
            }
            self.check_routes(&at.key("routes"), &gateway.routes, report);
        }
        if let Some(inbound) = &self.inbound {
            let at = top.key("inbound");
            let ports = inbound.ports.iter().map(|p| p.port);
            check_ports(&at.key("ports"), ports, report);
            for (i, rule) in inbound.policy.rules.iter().enumerate() {
                for (j, m) in rule.matches.iter().enumerate() {
                    let at = at
                        .key("policy")
                        .key("rules")
                        .index(i)
                        .key("matches")
                        .index(j);
                    check_regex(&at.key("pathRegex"), &m.path_regex, report);
                    for (name, pattern) in &m.headers {
                        check_regex(&at.key("headers").key(name), pattern, report);
                    }
                    for (k, source) in m.when.iter().enumerate() {
                        condition::check(
                            &at.key("when").index(k),
                            condition::policy(source),
                            report,
                        );
                    }
                }
            }
        }
    }

    fn check_routes(&self, at: &Path, routes: &[Route], report: &mut Report) {
        for (i, route) in routes.iter().enumerate() {
            for (j, rule) in route.rules.iter().enumerate() {
                let at = at.index(i).key("rules").index(j);
                for (k, m) in rule.matches.iter().enumerate() {
                    let at = at.key("matches").index(k);
                    if let PathMatch::Regex(pattern) = &m.path {
                        check_regex(&at.key("path").key("regex"), pattern, report);
                    }
                    for (l, header) in m.headers.iter().enumerate() {
                        if header.regex {
                            let at = at.key("headers").index(l).key("value");
                            check_regex(&at, &header.value, report);
                        }
                    }
                }
                for (k, backend) in rule.backends.iter().enumerate() {
                    if !self.has_service(&backend.service, backend.port) {
                        let problem = format!(
                            "there is no service `{}` with port {}",
                            shorten(&backend.service),
                            backend.port
                        );
                        let hint = "without `control` it must stand in this file";
                        report.add(&at.key("backends").index(k), problem, hint);
                    }
                }
            }
        }
    }
}

fn check_control(at: &Path, control: &Control, report: &mut Report) {
    let port = control.address.rsplit_once(':');
    let port =
        port.and_then(|(host, port)| (!host.is_empty()).then(|| port.parse::<u16>().ok())?);
    if port.is_none_or(|p| p == 0) {
        report.add(
            &at.key("address"),
            format!(
                "expected `host:port`, found `{}`",
                shorten(&control.address)
            ),
            "the host is an IP address ([..] around IPv6) or a name",
        );
    }
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    let fingerprint = &control.ca_fingerprint;
    match (fingerprint.is_empty(), &control.trust_bundle) {
        (false, Some(_)) => report.add(
            &at.key("trustBundle"),
            "expected exactly one of `caFingerprint` and `trustBundle`, found both",
            "remove one of them",
        ),
        (true, None) => report.add(
            &at.key("caFingerprint"),
            "expected exactly one of `caFingerprint` and `trustBundle`, found neither",
            "`tulle token create` prints the fingerprint",
        ),
        (false, None) if fingerprint.len() != 64 || !fingerprint.bytes().all(hex) => report.add(
            &at.key("caFingerprint"),
            format!(
                "expected 64 lower-case hexadecimal digits, found `{}`",
                shorten(fingerprint)
            ),
            "it is the SHA-256 of the root certificate's DER",
        ),
        _ => {}
    }
    if control.join_token_file.is_some() && control.service_account_token.is_some() {
        report.add(
            &at.key("serviceAccountToken"),
            "expected at most one of `joinTokenFile` and `serviceAccountToken`, found both",
            "in a cluster the service account's token is enough",
        );
    }
}

fn check_ports(at: &Path, ports: impl Iterator<Item = u16>, report: &mut Report) {
    let mut seen = HashMap::new();
    for (i, port) in ports.enumerate() {
        let at = at.index(i).key("port");
        if port == 0 {
            report.add(
                &at,
                "expected a port from 1 to 65535, found the number 0",
                "",
            );
        }
        if seen.insert(port, i).is_some() {
            report.add(
                &at,
                format!("port {port} is given twice"),
                "remove one of them",
            );
        }
    }
}

fn check_regex(at: &Path, pattern: &str, report: &mut Report) {
    if let Err(problem) = crate::pattern::compile(pattern) {
        report.add(at, problem, "");
    }
}

//! Checks filters of routes, beyond their types.

use super::routing::{backend_ref, object_ref, token};
use super::{
    MAX_TIMEOUT, duration, host, metadata, not_empty, object_name, path, port, range, spec, word,
};
use crate::condition;
use crate::document::{Path, Report, shorten};
use crate::https_uri::HttpsUri;
use crate::manifest::allowed::{AUTH_PROTOCOLS, METHODS};
use crate::manifest::{
    CorsFilter, ExternalAuthSpec, HeaderModifier, HeaderValue, HttpFilterSpec, JwtSpec, Manifest,
    PathModifier, RequestLimit, RequestMirror, RouteFilter, parse_percent,
};
use crate::resource::{MOST_AUTH_BODY, is_protected_header};
use std::collections::HashSet;
use std::time::Duration;

const KINDS: [&str; 7] = [
    "RequestHeaderModifier",
    "ResponseHeaderModifier",
    "RequestMirror",
    "RequestRedirect",
    "URLRewrite",
    "CORS",
    "ExtensionRef",
];

/// A status that an answer may have.
pub(super) const STATUSES: std::ops::RangeInclusive<u32> = 200..=599;

/// The filters of a rule or backend. `prefixes`: every match is by path prefix.
pub(super) fn route_filters(
    at: &Path,
    filters: &[RouteFilter],
    prefixes: bool,
    report: &mut Report,
) {
    let mut seen = HashSet::new();
    for (i, filter) in filters.iter().enumerate() {
        let at = at.index(i);
        route_filter(&at, filter, prefixes, report);
        // Gateway API lets these types be repeated, and no others.
        if !["RequestMirror", "ExtensionRef"].contains(&filter.kind.as_str())
            && !seen.insert(filter.kind.as_str())
        {
            let problem = format!("there are two filters of type `{}`", shorten(&filter.kind));
            report.add(&at.key("type"), problem, "make one of them");
        }
    }
    if seen.contains("RequestRedirect") && seen.contains("URLRewrite") {
        let problem = "a rule either redirects or rewrites";
        report.add(at, problem, "remove one of the two");
    }
}

fn route_filter(at: &Path, filter: &RouteFilter, prefixes: bool, report: &mut Report) {
    word(&at.key("type"), &filter.kind, &KINDS, report);
    let given = [
        filter.request_header_modifier.is_some(),
        filter.response_header_modifier.is_some(),
        filter.request_mirror.is_some(),
        filter.request_redirect.is_some(),
        filter.url_rewrite.is_some(),
        filter.cors.is_some(),
        filter.extension_ref.is_some(),
    ];
    let fields = [
        "requestHeaderModifier",
        "responseHeaderModifier",
        "requestMirror",
        "requestRedirect",
        "urlRewrite",
        "cors",
        "extensionRef",
    ];
    for ((kind, field), given) in KINDS.iter().zip(fields).zip(given) {
        if *kind == filter.kind && !given {
            let problem = format!("required for type `{kind}`");
            report.add(&at.key(field), problem, format!("add `{field}: …`"));
        } else if *kind != filter.kind && given {
            let problem = format!("not used with type `{}`", shorten(&filter.kind));
            report.add(
                &at.key(field),
                problem,
                format!("remove it, or use `{kind}`"),
            );
        }
    }
    if let Some(edit) = &filter.request_header_modifier {
        header_modifier(&at.key("requestHeaderModifier"), edit, report);
    }
    if let Some(edit) = &filter.response_header_modifier {
        header_modifier(&at.key("responseHeaderModifier"), edit, report);
    }
    if let Some(mirror) = &filter.request_mirror {
        request_mirror(&at.key("requestMirror"), mirror, report);
    }
    if let Some(redirect) = &filter.request_redirect {
        let at = at.key("requestRedirect");
        if let Some(scheme) = &redirect.scheme {
            word(&at.key("scheme"), scheme, &["http", "https"], report);
        }
        hostname(&at, redirect.hostname.as_deref(), report);
        path_modifier(&at, redirect.path.as_ref(), prefixes, report);
        if let Some(number) = redirect.port {
            port(&at.key("port"), number, report);
        }
        let known = [301, 302, 303, 307, 308];
        if let Some(status) = redirect.status_code.filter(|s| !known.contains(s)) {
            let problem = format!("expected one of {known:?}, found {status}");
            report.add(&at.key("statusCode"), problem, "");
        }
    }
    if let Some(rewrite) = &filter.url_rewrite {
        let at = at.key("urlRewrite");
        hostname(&at, rewrite.hostname.as_deref(), report);
        path_modifier(&at, rewrite.path.as_ref(), prefixes, report);
    }
    if let Some(cors) = &filter.cors {
        self::cors(&at.key("cors"), cors, report);
    }
    if let Some(reference) = &filter.extension_ref {
        let at = at.key("extensionRef");
        let kind = reference.kind.as_deref().unwrap_or_default();
        word(&at.key("kind"), kind, &["HTTPFilter", "Plugin"], report);
        let group = reference.group.as_deref().unwrap_or_default();
        word(&at.key("group"), group, &["tulle.dev"], report);
        object_name(&at.key("name"), &reference.name, report);
    }
}

fn hostname(at: &Path, name: Option<&str>, report: &mut Report) {
    if let Some(name) = name {
        let at = at.key("hostname");
        if name.starts_with('*') {
            report.add(&at, "expected one host, not a pattern", "");
        } else {
            host(&at, name, report);
        }
    }
}

fn path_modifier(at: &Path, edit: Option<&PathModifier>, prefixes: bool, report: &mut Report) {
    let Some(edit) = edit else { return };
    let at = at.key("path");
    let known = ["ReplaceFullPath", "ReplacePrefixMatch"];
    word(&at.key("type"), &edit.kind, &known, report);
    for (kind, field, value) in [
        (
            "ReplaceFullPath",
            "replaceFullPath",
            &edit.replace_full_path,
        ),
        (
            "ReplacePrefixMatch",
            "replacePrefixMatch",
            &edit.replace_prefix_match,
        ),
    ] {
        match value {
            None if kind == edit.kind => {
                let problem = format!("required for type `{kind}`");
                report.add(&at.key(field), problem, format!("add `{field}: …`"));
            }
            Some(_) if kind != edit.kind => {
                let problem = format!("not used with type `{}`", shorten(&edit.kind));
                report.add(&at.key(field), problem, "remove it");
            }
            // An empty prefix is Gateway API's way to cut the prefix off.
            Some(value) if !value.is_empty() => path(&at.key(field), value, report),
            _ => {}
        }
    }
    if edit.kind == "ReplacePrefixMatch" && !prefixes {
        let problem = "needs rules that match by PathPrefix only: there is no prefix to replace";
        report.add(&at.key("type"), problem, "use ReplaceFullPath");
    }
}

pub(super) fn header_modifier(at: &Path, edit: &HeaderModifier, report: &mut Report) {
    let mut seen = HashSet::new();
    header_values(&at.key("set"), &edit.set, &mut seen, report);
    header_values(&at.key("add"), &edit.add, &mut HashSet::new(), report);
    for (i, name) in edit.remove.iter().enumerate() {
        header_name(&at.key("remove").index(i), name, report);
    }
    if edit.set.is_empty() && edit.add.is_empty() && edit.remove.is_empty() {
        report.add(at, "expected `set`, `add` or `remove`, found none", "");
    }
}

pub(super) fn header_values(
    at: &Path,
    headers: &[HeaderValue],
    seen: &mut HashSet<String>,
    report: &mut Report,
) {
    for (i, header) in headers.iter().enumerate() {
        let at = at.index(i);
        header_name(&at.key("name"), &header.name, report);
        if !seen.insert(header.name.to_ascii_lowercase()) {
            let problem = format!("`{}` is given twice", shorten(&header.name));
            report.add(&at.key("name"), problem, "each must be unique in its list");
        }
        if header
            .value
            .bytes()
            .any(|b| b < b' ' && b != b'\t' || b == 0x7f)
        {
            let problem = "a header's value has no line ends or control characters";
            report.add(&at.key("value"), problem, "");
        }
    }
}

fn header_name(at: &Path, name: &str, report: &mut Report) {
    token(at, name, report);
    if is_protected_header(name) {
        let problem = format!("`{}` is the proxy's to set", shorten(name));
        let hint = "remove it; for the host use URLRewrite";
        report.add(at, problem, hint);
    }
}

fn request_mirror(at: &Path, mirror: &RequestMirror, report: &mut Report) {
    backend_ref(&at.key("backendRef"), &mirror.backend_ref, false, report);
    if let Some(percent) = mirror.percent {
        range(&at.key("percent"), percent, 0, 100, report);
        if mirror.fraction.is_some() {
            let problem = "expected `percent` or `fraction`, found both";
            report.add(&at.key("fraction"), problem, "remove one of them");
        }
    }
    if let Some(fraction) = &mirror.fraction {
        let at = at.key("fraction");
        let of = fraction.denominator.unwrap_or(100);
        range(&at.key("denominator"), of, 1, u32::MAX, report);
        if fraction.numerator > of {
            let problem = format!("expected at most {of}, found {}", fraction.numerator);
            report.add(&at.key("numerator"), problem, "");
        }
    }
}

fn cors(at: &Path, cors: &CorsFilter, report: &mut Report) {
    not_empty(
        &at.key("allowOrigins"),
        &cors.allow_origins,
        "origin",
        report,
    );
    for (i, origin) in cors.allow_origins.iter().enumerate() {
        let rest = ["https://", "http://"]
            .iter()
            .find_map(|s| origin.strip_prefix(s));
        let good = origin == "*"
            || rest.is_some_and(|r| {
                !r.is_empty() && !r.contains(['/', ' ']) && r.matches('*').count() < 2
            });
        if !good {
            let problem = format!(
                "expected `*` or an origin such as `https://shop.example` or \
                 `https://*.shop.example`, found `{}`",
                shorten(origin)
            );
            report.add(&at.key("allowOrigins").index(i), problem, "");
        }
    }
    for (i, method) in cors.allow_methods.iter().enumerate() {
        if method != "*" {
            word(&at.key("allowMethods").index(i), method, &METHODS, report);
        }
    }
    for (field, names) in [
        ("allowHeaders", &cors.allow_headers),
        ("exposeHeaders", &cors.expose_headers),
    ] {
        for (i, name) in names.iter().enumerate() {
            token(&at.key(field).index(i), name, report);
        }
    }
}

pub(in crate::manifest) fn http_filter(filter: &Manifest<HttpFilterSpec>, report: &mut Report) {
    metadata(&filter.metadata, object_name, report);
    let at = spec();
    let filter = &filter.spec;
    if *filter == HttpFilterSpec::default() {
        report.add(
            &at,
            "expected at least one of `match`, `rateLimit`, `fault`, `jwt`, `externalAuth`, \
             `requestHeaders`, `mirror` and `directResponse`, found none",
            "",
        );
    }
    if let Some(source) = &filter.match_when {
        condition::check(&at.key("match"), condition::condition(source), report);
    }
    if let Some(source) = &filter.when {
        condition::check(&at.key("when"), condition::condition(source), report);
        if filter.is_bare() {
            let problem = "there are no filters that it could be about";
            report.add(
                &at.key("when"),
                problem,
                "use `match` to choose the rule's requests",
            );
        }
    }
    for (i, header) in filter.request_headers.iter().enumerate() {
        let at = at.key("requestHeaders").index(i);
        header_name(&at.key("name"), &header.name, report);
        condition::check(
            &at.key("expression"),
            condition::text(&header.expression),
            report,
        );
    }
    if let Some(mirror) = &filter.mirror {
        request_mirror(&at.key("mirror"), mirror, report);
    }
    if let Some(limit) = &filter.rate_limit {
        request_limit(&at.key("rateLimit"), limit, report);
    }
    if let Some(fault) = &filter.fault {
        let at = at.key("fault");
        if fault.delay.is_none() && fault.abort.is_none() {
            report.add(&at, "expected `delay`, `abort` or both, found neither", "");
        }
        if let Some(delay) = &fault.delay {
            let at = at.key("delay");
            let most = Duration::from_hours(1);
            let least = Duration::from_millis(1);
            duration(
                &at.key("duration"),
                Some(&delay.duration),
                least,
                most,
                report,
            );
            percentage(&at, delay.percentage.as_deref(), report);
        }
        if let Some(abort) = &fault.abort {
            let at = at.key("abort");
            status(&at.key("status"), abort.status, report);
            percentage(&at, abort.percentage.as_deref(), report);
        }
    }
    if let Some(jwt) = &filter.jwt {
        self::jwt(&at.key("jwt"), jwt, report);
    }
    if let Some(auth) = &filter.external_auth {
        external_auth(&at.key("externalAuth"), auth, report);
    }
    if let Some(answer) = &filter.direct_response {
        status(
            &at.key("directResponse").key("status"),
            Some(answer.status),
            report,
        );
    }
}

pub(super) fn percentage(at: &Path, text: Option<&str>, report: &mut Report) {
    if let Some(Err(e)) = text.map(parse_percent) {
        report.add(&at.key("percentage"), e.to_string(), "");
    }
}

pub(super) fn status(at: &Path, status: Option<u16>, report: &mut Report) {
    if let Some(status) = status {
        range(
            at,
            status.into(),
            *STATUSES.start(),
            *STATUSES.end(),
            report,
        );
    }
}

pub(super) fn request_limit(at: &Path, limit: &RequestLimit, report: &mut Report) {
    interval(at, limit.per.as_deref(), report);
    if let Some(status) = limit.status {
        range(&at.key("status"), status.into(), 400, 599, report);
    }
    let headers = at.key("headers");
    header_values(&headers, &limit.headers, &mut HashSet::new(), report);
    if let Some(source) = &limit.by {
        condition::check(&at.key("by"), condition::text(source), report);
    }
}

pub(super) fn interval(at: &Path, per: Option<&str>, report: &mut Report) {
    let (least, most) = (Duration::from_millis(1), Duration::from_hours(24));
    duration(&at.key("per"), per, least, most, report);
}

pub(super) fn external_auth(at: &Path, auth: &ExternalAuthSpec, report: &mut Report) {
    let protocol = auth.protocol.as_deref().unwrap_or("HTTP");
    word(&at.key("protocol"), protocol, &AUTH_PROTOCOLS, report);
    backend_ref(&at.key("backendRef"), &auth.backend_ref, false, report);
    if let Some(prefix) = &auth.path_prefix {
        path(&at.key("pathPrefix"), prefix, report);
    }
    let least = Duration::from_millis(1);
    duration(
        &at.key("timeout"),
        auth.timeout.as_deref(),
        least,
        MAX_TIMEOUT,
        report,
    );
    for (field, names) in [
        ("requestHeaders", &auth.request_headers),
        ("upstreamHeaders", &auth.upstream_headers),
        ("clientHeaders", &auth.client_headers),
    ] {
        for (i, name) in names.iter().enumerate() {
            token(&at.key(field).index(i), name, report);
        }
    }
    let body = at.key("bodyBytes");
    range(&body, auth.body_bytes, 0, MOST_AUTH_BODY, report);
}

pub(super) fn jwt(at: &Path, jwt: &JwtSpec, report: &mut Report) {
    let at = at.key("providers");
    not_empty(&at, &jwt.providers, "provider", report);
    for (i, provider) in jwt.providers.iter().enumerate() {
        let at = at.index(i);
        if provider.issuer.is_empty() {
            report.add(&at.key("issuer"), "expected an issuer, found ``", "");
        }
        match (&provider.jwks, &provider.jwks_ref, &provider.jwks_uri) {
            (Some(text), None, None) => {
                let keys = serde_json::from_str::<serde_json::Value>(text).ok();
                if keys.is_none_or(|k| !k.get("keys").is_some_and(serde_json::Value::is_array)) {
                    let problem = "expected a JSON Web Key Set: `{\"keys\": […]}`";
                    report.add(&at.key("jwks"), problem, "");
                }
            }
            (None, None, Some(address)) => {
                if let Err(problem) = HttpsUri::parse(address) {
                    let problem = format!("expected an address to fetch keys from: {problem}");
                    report.add(&at.key("jwksUri"), problem, "");
                }
            }
            (None, Some(reference), None) => {
                let kinds = ["ConfigMap", "Secret"];
                object_ref(&at.key("jwksRef"), reference, "ConfigMap", &kinds, report);
            }
            _ => {
                let problem = "expected exactly one of `jwks`, `jwksRef` and `jwksUri`";
                report.add(&at, problem, "give keys here, by reference or by address");
            }
        }
        if let Some(name) = &provider.header {
            token(&at.key("header"), name, report);
        }
        for (i, claim) in provider.claim_headers.iter().enumerate() {
            let at = at.key("claimHeaders").index(i);
            header_name(&at.key("header"), &claim.header, report);
        }
    }
}

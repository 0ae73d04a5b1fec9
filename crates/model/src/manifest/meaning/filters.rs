//! Turns filters of routes, and HTTPFilters, into those of a proxy.

use super::super::{
    ConnectionRate, ExternalAuthSpec, HeaderExpression, HeaderModifier, HeaderValue,
    HttpFilterSpec, JwtProviderSpec, JwtSpec, ObjectRef, PLUGIN_KEY, PathModifier, PluginSpec,
    RequestLimit, RequestMirror, RouteFilter, parse_memory, parse_percent,
};
use super::ms_or_0;
use crate::resource::{
    ClaimHeader, Cors, ExternalAuth, Fault, FieldValue, Filter, Header, HeaderEdit, Jwt,
    JwtProvider, Mirror, PathEdit, Plugin, RateLimit, Redirect, Respond, Rewrite, When,
};

/// The whole, in millionths.
const ALL: u32 = 1_000_000;

/// The objects that filters may refer to.
pub trait FilterRefs {
    /// An HTTPFilter by name.
    fn http_filter(&self, name: &str) -> Option<&HttpFilterSpec>;
    /// The condition of an HTTPFilter by name, which a rule that refers to it adds to its matches.
    fn condition(&self, name: &str) -> Option<&String> {
        self.http_filter(name)?.match_when.as_ref()
    }
    /// A Plugin by name.
    fn plugin(&self, name: &str) -> Option<&PluginSpec>;
    /// The text under a key of a ConfigMap (the default) or Secret.
    fn text(&self, reference: &ObjectRef, key: &str) -> Option<String>;
    /// The set of keys that was fetched from an address.
    fn fetched_keys(&self, address: &str) -> Option<String>;
}

/// Builds a proxy's filters from a list. A filter that refers to something absent becomes an answer
/// with 500, as Gateway API says: skipping it could let in requests that it would have refused.
pub fn filters_of(filters: &[RouteFilter], refs: &dyn FilterRefs) -> Vec<Filter> {
    filters.iter().flat_map(|f| filter(f, refs)).collect()
}

fn broken(why: String) -> Vec<Filter> {
    vec![Filter::Respond(Respond {
        status: 500,
        body: why,
        content_type: String::new(),
    })]
}

fn filter(filter: &RouteFilter, refs: &dyn FilterRefs) -> Vec<Filter> {
    let one = |f: Filter| vec![f];
    if let Some(edit) = &filter.request_header_modifier {
        return one(Filter::RequestHeaders(header_edit(edit)));
    }
    if let Some(edit) = &filter.response_header_modifier {
        return one(Filter::ResponseHeaders(header_edit(edit)));
    }
    if let Some(mirror) = &filter.request_mirror {
        return one(Filter::Mirror(mirror.mirror()));
    }
    if let Some(redirect) = &filter.request_redirect {
        return one(Filter::Redirect(Redirect {
            scheme: redirect.scheme.clone().unwrap_or_default(),
            hostname: redirect.hostname.clone().unwrap_or_default(),
            port: redirect.port.unwrap_or(0),
            path: redirect.path.as_ref().and_then(path_edit),
            status: redirect.status_code.unwrap_or(0),
        }));
    }
    if let Some(rewrite) = &filter.url_rewrite {
        return one(Filter::Rewrite(Rewrite {
            hostname: rewrite.hostname.clone().unwrap_or_default(),
            path: rewrite.path.as_ref().and_then(path_edit),
        }));
    }
    if let Some(cors) = &filter.cors {
        return one(Filter::Cors(Cors {
            allow_origins: cors.allow_origins.clone(),
            allow_methods: cors.allow_methods.clone(),
            allow_headers: lower(&cors.allow_headers),
            expose_headers: lower(&cors.expose_headers),
            allow_credentials: cors.allow_credentials,
            max_age_s: cors.max_age.unwrap_or(0),
        }));
    }
    if let Some(reference) = &filter.extension_ref {
        let name = &reference.name;
        let found = match reference.is_plugin() {
            true => refs
                .plugin(name)
                .map(|spec| one(Filter::Plugin(spec.route_filter(name, refs)))),
            false => refs.http_filter(name).map(|spec| spec.filters(name, refs)),
        };
        let kind = reference.kind.as_deref().unwrap_or("HTTPFilter");
        return found.unwrap_or_else(|| broken(format!("{kind}/{name} does not exist\n")));
    }
    broken(format!("a filter of type {} is empty\n", filter.kind))
}

fn path_edit(edit: &PathModifier) -> Option<PathEdit> {
    let full = edit.replace_full_path.clone().map(PathEdit::Full);
    full.or_else(|| edit.replace_prefix_match.clone().map(PathEdit::Prefix))
}

fn lower(names: &[String]) -> Vec<String> {
    names.iter().map(|n| n.to_ascii_lowercase()).collect()
}

fn header_edit(edit: &HeaderModifier) -> HeaderEdit {
    HeaderEdit {
        set: headers(&edit.set),
        add: headers(&edit.add),
        remove: lower(&edit.remove),
    }
}

fn headers(values: &[HeaderValue]) -> Vec<Header> {
    let header = |h: &HeaderValue| Header {
        name: h.name.to_ascii_lowercase(),
        value: h.value.clone(),
    };
    values.iter().map(header).collect()
}

impl RequestMirror {
    fn mirror(&self) -> Mirror {
        let ppm = match (&self.fraction, self.percent) {
            (Some(fraction), _) => {
                let of = u64::from(fraction.denominator.unwrap_or(100).max(1));
                let ppm = u64::from(fraction.numerator) * u64::from(ALL) / of;
                u32::try_from(ppm).unwrap_or(ALL).min(ALL)
            }
            (None, Some(percent)) => percent.min(100) * 10_000,
            (None, None) => ALL,
        };
        Mirror {
            service: self.backend_ref.name.clone(),
            port: self.backend_ref.port,
            ppm,
        }
    }
}

/// Names as `named` writes them, and their values in CEL.
pub(super) fn field_values(
    given: &[HeaderExpression],
    named: fn(&str) -> String,
) -> Vec<FieldValue> {
    let value = |field: &HeaderExpression| FieldValue {
        name: named(&field.name),
        expression: field.expression.clone(),
    };
    given.iter().map(value).collect()
}

impl HttpFilterSpec {
    /// Builds the proxy's filters. Where there is a condition, they are for requests that meet it.
    pub fn filters(&self, name: &str, refs: &dyn FilterRefs) -> Vec<Filter> {
        let filters = self.unconditional(name, refs);
        match &self.when {
            Some(condition) if !filters.is_empty() => vec![Filter::When(When {
                condition: condition.clone(),
                filters,
            })],
            _ => filters,
        }
    }

    /// Builds the filters in this order: rate limit, fault, token, external decision, headers, copy,
    /// answer.
    fn unconditional(&self, name: &str, refs: &dyn FilterRefs) -> Vec<Filter> {
        let object = format!("HTTPFilter/{name}");
        let mut filters = Vec::new();
        if let Some(limit) = &self.rate_limit {
            filters.push(Filter::RateLimit(limit.limit(object.clone())));
        }
        if let Some(fault) = &self.fault {
            let share =
                |text: Option<&String>| text.map_or(ALL, |text| parse_percent(text).unwrap_or(0));
            let mut found = Fault::default();
            if let Some(delay) = &fault.delay {
                found.delay_ms = ms_or_0(Some(&delay.duration));
                found.delay_ppm = share(delay.percentage.as_ref());
            }
            if let Some(abort) = &fault.abort {
                found.abort_status = abort.status.unwrap_or(0);
                found.abort_ppm = share(abort.percentage.as_ref());
            }
            filters.push(Filter::Fault(found));
        }
        if let Some(jwt) = &self.jwt {
            filters.extend(jwt.filter(object.clone(), refs));
        }
        if let Some(auth) = &self.external_auth {
            filters.push(Filter::ExternalAuth(auth.filter(object)));
        }
        if !self.request_headers.is_empty() {
            let values = field_values(&self.request_headers, str::to_ascii_lowercase);
            filters.push(Filter::RequestValues(values));
        }
        if let Some(mirror) = &self.mirror {
            filters.push(Filter::Mirror(mirror.mirror()));
        }
        if let Some(answer) = &self.direct_response {
            filters.push(Filter::Respond(Respond {
                status: answer.status,
                body: answer.body.clone(),
                content_type: answer.content_type.clone().unwrap_or_default(),
            }));
        }
        filters
    }
}

/// A second, unless it is given.
fn interval_ms(per: Option<&String>) -> u32 {
    match ms_or_0(per) {
        0 => 1000,
        ms => ms,
    }
}

impl RequestLimit {
    /// The bucket of a proxy. Its name tells it from others.
    pub fn limit(&self, name: String) -> RateLimit {
        RateLimit {
            name,
            tokens: self.count,
            per_ms: interval_ms(self.per.as_ref()),
            burst: self.burst,
            status: self.status.unwrap_or(0),
            headers: headers(&self.headers),
            by: self.by.clone().unwrap_or_default(),
        }
    }
}

impl PluginSpec {
    /// The filter that runs it on requests of a route: in the sidecars of callers, or a Gateway. With their identities it asks
    /// nobody.
    fn route_filter(&self, name: &str, refs: &dyn FilterRefs) -> Plugin {
        Plugin {
            services: Vec::new(),
            ..self.filter(name.to_owned(), |reference, key| refs.text(reference, key))
        }
    }

    /// The filter that runs it. `text` reads a key of a ConfigMap (the default) or Secret. A module that is not where it should be
    /// is one that cannot start: sidecars keep the last good one.
    pub fn filter(
        &self,
        name: String,
        text: impl FnOnce(&ObjectRef, &str) -> Option<String>,
    ) -> Plugin {
        let absent = |why: String| format!("throw new Error({})", serde_json::Value::from(why));
        let source = match (&self.source_ref, &self.source_file) {
            (Some(reference), _) => text(reference, PLUGIN_KEY).unwrap_or_else(|| {
                let kind = reference.kind.as_deref().unwrap_or("ConfigMap");
                absent(format!("{kind} {} has no key {PLUGIN_KEY}", reference.name))
            }),
            (None, Some(file)) => {
                absent(format!("sourceFile {file} is read by `tulle apply` alone"))
            }
            (None, None) => self.source.clone(),
        };
        let limits = self.limits.clone().unwrap_or_default();
        let kib = |size: Option<String>| {
            let bytes = size.and_then(|size| parse_memory(&size).ok());
            bytes.map_or(0, |bytes| u32::try_from(bytes / 1024).unwrap_or(u32::MAX))
        };
        let config = self.config.as_ref();
        Plugin {
            name,
            source,
            config: config
                .map(|c| serde_json::Value::from(c.clone()).to_string())
                .unwrap_or_default(),
            fail_open: self.failure_policy.as_deref() == Some("Open"),
            cpu_ms: ms_or_0(limits.cpu.as_ref()),
            memory_kib: kib(limits.memory),
            calls: limits.calls.unwrap_or(0),
            body_kib: kib(limits.body),
            services: self.services.clone(),
        }
    }
}

impl ConnectionRate {
    /// The bucket of a proxy.
    pub fn limit(&self, name: String) -> RateLimit {
        RateLimit {
            name,
            tokens: self.count,
            per_ms: interval_ms(self.per.as_ref()),
            burst: self.burst,
            ..Default::default()
        }
    }
}

impl ExternalAuthSpec {
    /// Builds the filter that asks the external server.
    pub fn filter(&self, name: String) -> ExternalAuth {
        ExternalAuth {
            name,
            service: self.backend_ref.name.clone(),
            port: self.backend_ref.port,
            grpc: self.protocol.as_deref() == Some("GRPC"),
            path_prefix: self.path_prefix.clone().unwrap_or_default(),
            timeout_ms: ms_or_0(self.timeout.as_ref()),
            fail_open: self.fail_open,
            request_headers: lower(&self.request_headers),
            upstream_headers: lower(&self.upstream_headers),
            client_headers: lower(&self.client_headers),
            body_bytes: self.body_bytes,
        }
    }
}

impl JwtSpec {
    /// Builds the filter that checks tokens. A provider whose keys are absent accepts no token; if
    /// no provider is left, every request is refused.
    pub fn filter(&self, name: String, refs: &dyn FilterRefs) -> Vec<Filter> {
        let providers = self.providers.iter().filter_map(|p| provider(p, refs));
        let providers: Vec<JwtProvider> = providers.collect();
        if providers.is_empty() {
            let fetched = self.providers.iter().any(|p| p.jwks_uri.is_some());
            let why = match fetched {
                true => ": none were fetched yet, `tulle status` says why",
                false => "",
            };
            return broken(format!("{name} has no keys to check tokens with{why}\n"));
        }
        vec![Filter::Jwt(Jwt {
            name,
            providers,
            optional: self.optional,
        })]
    }
}

fn provider(provider: &JwtProviderSpec, refs: &dyn FilterRefs) -> Option<JwtProvider> {
    let jwks = match (&provider.jwks, &provider.jwks_ref, &provider.jwks_uri) {
        (Some(text), ..) => text.clone(),
        (None, Some(reference), _) => refs.text(reference, "jwks")?,
        (None, None, Some(address)) => refs.fetched_keys(address)?,
        (None, None, None) => return None,
    };
    let claims = provider.claim_headers.iter().map(|c| ClaimHeader {
        claim: c.claim.clone(),
        header: c.header.to_ascii_lowercase(),
    });
    Some(JwtProvider {
        issuer: provider.issuer.clone(),
        audiences: provider.audiences.clone(),
        jwks,
        header: provider
            .header
            .as_ref()
            .map(|h| h.to_ascii_lowercase())
            .unwrap_or_default(),
        claim_headers: claims.collect(),
        forward: provider.forward,
        expiry_optional: provider.require_expiry == Some(false),
    })
}

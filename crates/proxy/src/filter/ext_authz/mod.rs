//! Another service decides whether a request goes on: Envoy's ext_authz over HTTP, where 200 lets
//! it pass and any other status is the answer, or over gRPC (`ext_authz/grpc.rs`). `http/auth_call.rs` asks.
//!
//! If the service does not answer, the request is refused, unless the filter says that it fails
//! open.

mod grpc;

use crate::codec::answered::Answered;
use crate::filter::header_edit::Draft;
use crate::telemetry::reason::{Failure, LocalResponse, Reason};
use std::net::IpAddr;
use std::time::Duration;
use tulle_http1::{Method, is_field_name, write_line};
use tulle_model::resource::{self, MOST_AUTH_BODY, is_protected_header};
use tulle_transport::StreamKind;

/// Timeout of a filter that names none.
const USUAL_TIMEOUT: Duration = Duration::from_secs(1);

/// The service to ask, and the parts of the request it gets.
pub struct ExternalAuth {
    name: String,
    service: String,
    port: u16,
    grpc: bool,
    path_prefix: String,
    timeout: Duration,
    fail_open: bool,
    request_headers: Vec<String>,
    upstream_headers: Vec<String>,
    client_headers: Vec<String>,
    /// Body bytes it gets.
    pub body_bytes: usize,
}

/// The client whose request is judged.
pub struct Asker {
    /// The verified identity; `None`: not known.
    pub identity: Option<String>,
    /// Source address of its connection.
    pub address: Option<IpAddr>,
    /// Identity of the destination, where it is known already.
    pub destination: String,
}

/// Header fields, names in lower case.
pub type Fields = Vec<(String, Vec<u8>)>;

/// Decision of the service.
pub enum Verdict {
    /// The request may pass, with these edits of its fields.
    Allowed {
        set: Fields,
        append: Fields,
        if_absent: Fields,
        remove: Vec<String>,
        /// Fields for the client's response.
        response: Fields,
    },
    /// The request may not pass; this is the answer.
    Denied(LocalResponse),
}

impl Verdict {
    /// The request may pass unchanged.
    fn pass() -> Self {
        Self::Allowed {
            set: Fields::new(),
            append: Fields::new(),
            if_absent: Fields::new(),
            remove: Vec::new(),
            response: Fields::new(),
        }
    }
}

impl ExternalAuth {
    /// Checks and compiles the filter.
    ///
    /// # Errors
    /// A header or the path makes no sense.
    pub fn compile(filter: &resource::ExternalAuth) -> Result<Self, String> {
        let named = |e: String| format!("{}: {e}", filter.name);
        let names = |names: &[String]| {
            let usable = |name: &String| match is_field_name(name.as_bytes())
                && !is_protected_header(name)
            {
                true => Ok(name.to_ascii_lowercase()),
                false => Err(named(format!(
                    "{name:?} is no header, or one of the proxy's own"
                ))),
            };
            names.iter().map(usable).collect::<Result<Vec<_>, _>>()
        };
        let prefix = &filter.path_prefix;
        let fits = |b: u8| b.is_ascii_graphic() && !matches!(b, b'?' | b'#');
        let is_path = prefix.starts_with('/') && prefix.bytes().all(fits);
        if !prefix.is_empty() && !is_path {
            return Err(named(format!("pathPrefix {prefix:?} is no path")));
        }
        if filter.body_bytes > MOST_AUTH_BODY {
            return Err(named(format!("bodyBytes is at most {MOST_AUTH_BODY}")));
        }
        Ok(Self {
            name: filter.name.clone(),
            service: filter.service.clone(),
            port: filter.port,
            grpc: filter.grpc,
            path_prefix: prefix.trim_end_matches('/').to_owned(),
            timeout: match filter.timeout_ms {
                0 => USUAL_TIMEOUT,
                ms => Duration::from_millis(ms.into()),
            },
            fail_open: filter.fail_open,
            request_headers: names(&filter.request_headers)?,
            upstream_headers: names(&filter.upstream_headers)?,
            client_headers: names(&filter.client_headers)?,
            body_bytes: filter.body_bytes as usize,
        })
    }

    /// Returns the name of the service.
    pub fn service(&self) -> &str {
        &self.service
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Longest wait for an answer.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The question about a request, and how it is sent.
    ///
    /// # Errors
    /// It cannot be asked about that way.
    pub fn question(
        &self,
        draft: &Draft<'_>,
        asker: &Asker,
    ) -> Result<(StreamKind, Method, Vec<u8>), Failure> {
        if self.grpc {
            let request = grpc::request(&self.service, draft, asker, self.body_bytes);
            return Ok((StreamKind::Http2, Method::Post, request));
        }
        let method = Method::from_bytes(draft.method());
        if method == Method::Connect {
            let text = "a tunnel (CONNECT) needs a check over gRPC";
            return Err(Failure::new(Reason::BadRequest, text));
        }
        Ok((StreamKind::Http, method, self.request(draft)))
    }

    /// Reads the answer.
    ///
    /// # Errors
    /// It decides nothing.
    pub fn verdict(&self, answer: Answered) -> Result<Verdict, Failure> {
        match self.grpc {
            true => grpc::verdict(&answer),
            false => self.read(answer),
        }
    }

    /// Does to a request what the other service says, or what is done where it cannot be asked. Returns how it is
    /// counted, and fields for the response.
    ///
    /// The failure, if it may not pass, is the answer.
    pub fn apply(
        &self,
        verdict: Result<Verdict, Failure>,
        draft: &mut Draft<'_>,
    ) -> (&'static str, Result<Fields, Failure>) {
        match verdict {
            Ok(Verdict::Allowed {
                set,
                append,
                if_absent,
                remove,
                response,
            }) => {
                let new = |(name, _): &&(String, Vec<u8>)| draft.field(name).is_none();
                let absent: Vec<_> = if_absent.iter().filter(new).cloned().collect();
                self.edit(draft, &set, &[append, absent].concat(), &remove);
                ("allowed", Ok(response))
            }
            Ok(Verdict::Denied(answer)) => {
                let text = format!("{}: service {} denies it", self.name, self.service);
                let failure = Failure::new(Reason::ExternalDenied, text);
                ("denied", Err(failure.with_response(answer)))
            }
            Err(failure) if self.fail_open => {
                tracing::debug!(filter = self.name, %failure, "passes unasked");
                self.edit(draft, &[], &[], &[]);
                ("failed_open", Ok(Vec::new()))
            }
            Err(failure) => {
                let text = format!(
                    "{}: service {} cannot be asked: {failure}",
                    self.name, self.service
                );
                let failure = Failure::new(Reason::ExternalUnavailable, text);
                ("failed", Err(failure))
            }
        }
    }

    /// The question over HTTP: method, path and host of the request, and the headers that are told.
    fn request(&self, draft: &Draft<'_>) -> Vec<u8> {
        let (path, query) = draft.path_and_query();
        let body = content(draft, self.body_bytes);
        let mut out = Vec::with_capacity(256 + body.len());
        out.extend_from_slice(draft.method());
        out.push(b' ');
        out.extend_from_slice(self.path_prefix.as_bytes());
        // `OPTIONS *`
        if path.first() != Some(&b'/') {
            out.push(b'/');
        }
        out.extend_from_slice(path);
        out.extend_from_slice(query);
        out.extend_from_slice(b" HTTP/1.1\r\n");
        for (name, value) in tulle_http1::headers(draft.head()) {
            let told = |own: &str| name.eq_ignore_ascii_case(own.as_bytes());
            if told("host") || told("authorization") || self.request_headers.iter().any(|h| told(h))
            {
                let name = String::from_utf8_lossy(name);
                write_line(&name.to_ascii_lowercase(), value, &mut out);
            }
        }
        write_line(
            "content-length",
            body.len().to_string().as_bytes(),
            &mut out,
        );
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(&body);
        out
    }

    fn read(&self, answer: Answered) -> Result<Verdict, Failure> {
        let fields = || {
            tulle_http1::headers(&answer.head).map(|(name, value)| {
                let name = String::from_utf8_lossy(name).to_ascii_lowercase();
                (name, value.to_vec())
            })
        };
        match answer.status {
            200 => Ok(Verdict::Allowed {
                set: fields()
                    .filter(|(name, _)| self.upstream_headers.contains(name))
                    .collect(),
                append: Fields::new(),
                if_absent: Fields::new(),
                remove: Vec::new(),
                response: Fields::new(),
            }),
            // The service did not decide.
            500.. => {
                let text = format!("it answered {}", answer.status);
                Err(Failure::new(Reason::BadResponse, text))
            }
            status => {
                let goes_back = |name: &str| {
                    matches!(name, "www-authenticate" | "location")
                        || self.client_headers.is_empty()
                        || self.client_headers.iter().any(|h| h == name)
                };
                let kind = fields().find(|(name, _)| name == "content-type");
                let kind = kind.and_then(|(_, value)| String::from_utf8(value).ok());
                let headers = fields()
                    .filter(|(name, _)| name != "content-type" && name != "server")
                    .filter(|(name, _)| goes_back(name) && !is_protected_header(name))
                    .collect();
                Ok(Verdict::Denied(LocalResponse {
                    // Any other 2xx would look like success.
                    status: if status < 300 { 403 } else { status },
                    headers,
                    body: (!answer.body.is_empty()).then(|| {
                        let kind = kind.unwrap_or_else(|| "text/plain; charset=utf-8".into());
                        (kind, answer.body)
                    }),
                }))
            }
        }
    }

    /// Removes fields of the client that only the service may set, unless the service has seen and
    /// judged them.
    fn edit(
        &self,
        draft: &mut Draft<'_>,
        set: &[(String, Vec<u8>)],
        append: &[(String, Vec<u8>)],
        remove: &[String],
    ) {
        let told = |name: &str| {
            self.grpc || name == "authorization" || self.request_headers.iter().any(|h| h == name)
        };
        let goes = |name: &[u8]| {
            let name = String::from_utf8_lossy(name).to_ascii_lowercase();
            let plain = name.replace('_', "-");
            let set_anew = set.iter().any(|(n, _)| *n == name || *n == plain);
            let removed = remove.iter().any(|n| *n == name || *n == plain);
            let trusted = self.upstream_headers.contains(&plain);
            set_anew || removed || trusted && !(told(&name) && name == plain)
        };
        let changes = tulle_http1::headers(draft.head()).any(|(name, _)| goes(name));
        if changes || !set.is_empty() || !append.is_empty() {
            let add = set.iter().chain(append);
            let add: Vec<_> = add.map(|(n, v)| (n.as_str(), v.as_slice())).collect();
            draft.edit(None, |name| !goes(name), &add);
        }
    }
}

/// Returns the content of a request that is at hand, at most `limit` bytes.
fn content(draft: &Draft<'_>, limit: usize) -> Vec<u8> {
    if limit == 0 {
        return Vec::new();
    }
    let mut content = draft.content();
    content.truncate(limit);
    content
}

#[cfg(test)]
mod tests {
    use super::*;
    use tulle_model::manifest::{self, Object};

    /// The filter of a manifest with this `bodyBytes`; an error if the manifest is refused.
    fn filter(body_bytes: u32) -> Result<resource::ExternalAuth, String> {
        let text = format!(
            "apiVersion: tulle.dev/v1alpha1\nkind: Authentication\nmetadata: {{name: a}}\nspec:\n  \
             targetRefs: [{{kind: Service, name: a}}]\n  externalAuth:\n    \
             backendRef: {{name: b, port: 80}}\n    bodyBytes: {body_bytes}\n"
        );
        let mut objects = manifest::parse("a.yaml", &text).map_err(|e| format!("{e:?}"))?;
        match objects.remove(0).object {
            Object::Authentication(object) => {
                let auth = object.spec.external_auth.ok_or("no externalAuth")?;
                Ok(auth.filter("a".into()))
            }
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn bodies_that_a_manifest_may_name_are_accepted_by_proxies() {
        let largest = filter(MOST_AUTH_BODY).unwrap();
        let compiled = ExternalAuth::compile(&largest).unwrap();
        assert_eq!(compiled.body_bytes, 1 << 20);
        let refused = filter(MOST_AUTH_BODY + 1).unwrap_err();
        assert!(refused.contains("bodyBytes"), "{refused}");
        let more = resource::ExternalAuth {
            body_bytes: MOST_AUTH_BODY + 1,
            ..largest
        };
        assert!(ExternalAuth::compile(&more).is_err());
    }
}

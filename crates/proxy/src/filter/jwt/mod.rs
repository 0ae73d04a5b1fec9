//! Checks signed tokens of requests (RFC 7519, RFC 6750).
//!
//! A token in a request must be valid, whether one is required or not: otherwise an application
//! could take an unchecked token for a checked one. Claims become headers, which a client cannot
//! send itself.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

pub mod keys;
pub mod token;

use crate::filter::header_edit::Draft;
use crate::telemetry::reason::{Failure, LocalResponse, Reason};
use aws_lc_rs::digest;
use keys::Keys;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use token::{BadToken, Claims, Token};
use tulle_expression::Value;
use tulle_http1::{is_field_name, is_field_value};
use tulle_model::resource::{self, is_protected_header};

/// Most valid tokens kept, so that their signatures are not checked again.
const REMEMBERED: usize = 512;
/// Schemes of `Authorization` whose credentials are not tokens, by IANA's registry and common use:
/// an application may have its own users beside an optional token. Any other scheme is refused.
/// Servers read more than RFC 6750 allows (`JWT x`, a tab after `Bearer`), and some registered
/// schemes carry tokens, too (DPoP, GNAP). An application would take such an unchecked token for a
/// checked one.
const ONE_WORD_SCHEMES: [&str; 3] = ["basic", "negotiate", "ntlm"];
/// Schemes whose credentials are parameters.
const PARAMETER_SCHEMES: [&str; 5] = ["digest", "hoba", "mutual", "scram-sha-1", "scram-sha-256"];
/// Longest claims kept with a valid token, in bytes of JSON; values take more. Longer ones are read again for each request
/// whose policy asks for them.
const KEPT_CLAIMS: usize = 2048;
/// Longest value of a header made from a claim; a longer one is left out.
const MAX_CLAIM: usize = 4096;

/// The allowed issuers, and where a token is looked for.
pub struct Jwt {
    name: String,
    providers: Vec<Provider>,
    optional: bool,
    /// The header of each provider, once.
    token_headers: Vec<String>,
    claim_headers: Vec<String>,
    /// Valid tokens by SHA-256 of the header's place and the token. Checking a signature takes
    /// longer than any wait for this lock.
    good: Mutex<HashMap<[u8; 32], Verified>>,
}

struct Provider {
    issuer: String,
    audiences: Vec<String>,
    keys: Keys,
    header: String,
    claims: Vec<resource::ClaimHeader>,
    forward: bool,
    expiry_optional: bool,
}

#[derive(Clone)]
struct Verified {
    provider: usize,
    expires: f64,
    add: Arc<[(String, Vec<u8>)]>,
    /// Its claims; `None`: nobody has asked for them, or they are long.
    claims: Option<Arc<Value<'static>>>,
}

/// The part of a valid token that is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Headers,
    Claims,
}

/// Why a request does not pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    Missing,
    Repeated,
    Scheme,
    Bad(BadToken),
}

impl Jwt {
    /// Compiles the requirements.
    ///
    /// # Errors
    /// A key set or a header makes no sense.
    pub fn compile(jwt: &resource::Jwt) -> Result<Self, String> {
        let named = |e: String| format!("{}: {e}", jwt.name);
        if jwt.providers.is_empty() {
            return Err(named("no provider: nobody could sign a token".into()));
        }
        let providers: Result<Vec<_>, _> = jwt.providers.iter().map(Provider::compile).collect();
        let providers = providers.map_err(named)?;
        let mut token_headers: Vec<String> = Vec::new();
        let mut claim_headers: Vec<String> = Vec::new();
        for provider in &providers {
            token_headers.push(provider.header.clone());
            claim_headers.extend(provider.claims.iter().map(|c| c.header.clone()));
        }
        token_headers.sort_unstable();
        token_headers.dedup();
        if let Some(both) = claim_headers.iter().find(|h| token_headers.contains(h)) {
            return Err(named(format!(
                "header {both} cannot bring a token and take a claim"
            )));
        }
        Ok(Self {
            name: jwt.name.clone(),
            providers,
            optional: jwt.optional,
            token_headers,
            claim_headers,
            good: Mutex::default(),
        })
    }

    /// Fields that only this filter may set in a request.
    pub fn claim_headers(&self) -> &[String] {
        &self.claim_headers
    }

    /// Checks the tokens of a request, and edits its head: removes tokens and adds claims.
    ///
    /// # Errors
    /// A token is missing or invalid; the failure is the answer.
    pub fn check(&self, draft: &mut Draft<'_>, now: SystemTime) -> Result<(), Failure> {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let verified = self.verify(draft.head(), now.as_secs_f64(), Wanted::Headers);
        let verified = verified.map_err(|trouble| self.refuse(trouble))?;
        let mut drop: Vec<&str> = self.claim_headers.iter().map(String::as_str).collect();
        let mut add: Vec<(&str, &[u8])> = Vec::new();
        for token in &verified {
            add.extend(token.add.iter().map(|(n, v)| (n.as_str(), v.as_slice())));
            if let Some(provider) = self.providers.get(token.provider)
                && !provider.forward
            {
                drop.push(&provider.header);
            }
        }
        let keep = |name: &[u8]| {
            let is_named = |wanted: &str| tulle_http1::is_same_name(name, wanted);
            let forged = name.contains(&b'_') && self.token_headers.iter().any(|h| is_named(h));
            !forged && !drop.iter().any(|h| is_named(h))
        };
        let unchanged = tulle_http1::headers(draft.head()).all(|(name, _)| keep(name));
        if !unchanged || !add.is_empty() {
            draft.edit(None, keep, &add);
        }
        Ok(())
    }

    /// The claims of each token in a request's head, as maps.
    ///
    /// # Errors
    /// A token is missing or invalid; the failure is the answer.
    pub fn claims(
        &self,
        head: &[u8],
        now: SystemTime,
    ) -> Result<Vec<Arc<Value<'static>>>, Failure> {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let verified = self.verify(head, now.as_secs_f64(), Wanted::Claims);
        let verified = verified.map_err(|trouble| self.refuse(trouble))?;
        Ok(verified.into_iter().filter_map(|v| v.claims).collect())
    }

    fn verify(&self, head: &[u8], now: f64, wanted: Wanted) -> Result<Vec<Verified>, Trouble> {
        let mut verified = Vec::new();
        for header in &self.token_headers {
            if let Some(token) = token_of(head, header)? {
                let one = self.verify_one(header, token, now, wanted);
                verified.push(one.map_err(Trouble::Bad)?);
            }
        }
        if verified.is_empty() && !self.optional {
            return Err(Trouble::Missing);
        }
        Ok(verified)
    }

    fn verify_one(
        &self,
        header: &str,
        token: &[u8],
        now: f64,
        wanted: Wanted,
    ) -> Result<Verified, BadToken> {
        if token.len() > token::MAX_BYTES {
            return Err(BadToken::TooLong);
        }
        let key = digest_of(header, token);
        if let Some(known) = self.good().get(&key)
            && now < known.expires
            && (wanted == Wanted::Headers || known.claims.is_some())
        {
            return Ok(known.clone());
        }
        let token = Token::parse(token)?;
        let mut trouble = BadToken::Issuer;
        for (index, provider) in self.providers.iter().enumerate() {
            if provider.header != header || token.issuer() != Some(&provider.issuer) {
                continue;
            }
            match token.verify(
                &provider.keys,
                &provider.audiences,
                provider.expiry_optional,
                now,
            ) {
                Ok(claims) => {
                    let verified = Verified {
                        provider: index,
                        expires: claims.expires(),
                        add: provider.headers(claims),
                        claims: (wanted == Wanted::Claims).then(|| Arc::new(claims.value())),
                    };
                    let mut kept = verified.clone();
                    kept.claims = kept.claims.filter(|_| token.claims_bytes() <= KEPT_CLAIMS);
                    self.remember(key, kept, now);
                    return Ok(verified);
                }
                Err(bad) => trouble = bad,
            }
        }
        Err(trouble)
    }

    fn good(&self) -> std::sync::MutexGuard<'_, HashMap<[u8; 32], Verified>> {
        self.good.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remember(&self, key: [u8; 32], verified: Verified, now: f64) {
        let mut good = self.good();
        if good.len() >= REMEMBERED {
            good.retain(|_, v| now < v.expires);
        }
        // Only clients with valid tokens can fill it; then an arbitrary one makes room.
        if good.len() >= REMEMBERED
            && let Some(&any) = good.keys().next()
        {
            good.remove(&any);
        }
        good.insert(key, verified);
    }

    #[cold]
    fn refuse(&self, trouble: Trouble) -> Failure {
        let text = match trouble {
            Trouble::Missing => {
                let headers = self.token_headers.join(" or ");
                format!("{}: a token is required in {headers}", self.name)
            }
            Trouble::Repeated => format!("{}: a token's header comes more than once", self.name),
            Trouble::Scheme => format!(
                "{}: authorization is neither a bearer token (RFC 6750) nor of another known scheme",
                self.name
            ),
            Trouble::Bad(bad) => format!("{}: {bad}", self.name),
        };
        let safe = |c: &char| c.is_ascii_graphic() && !matches!(c, '"' | '\\');
        let realm: String = self.name.chars().filter(safe).collect();
        // RFC 6750, section 3: the answer to a client without a token names no error.
        let error = match trouble {
            Trouble::Missing => "",
            Trouble::Repeated | Trouble::Scheme => ", error=\"invalid_request\"",
            Trouble::Bad(_) => ", error=\"invalid_token\"",
        };
        let challenge = format!("Bearer realm=\"{realm}\"{error}");
        Failure::new(Reason::Unauthenticated, text).with_response(LocalResponse {
            status: Reason::Unauthenticated.status(),
            headers: vec![("www-authenticate".into(), challenge.into_bytes())],
            body: None,
        })
    }
}

impl Provider {
    fn compile(provider: &resource::JwtProvider) -> Result<Self, String> {
        if provider.issuer.is_empty() {
            return Err("a provider has no issuer".into());
        }
        let named = |e: String| format!("provider {}: {e}", provider.issuer);
        let header = match provider.header.as_str() {
            "" => "authorization",
            other => other,
        };
        let usable = |name: &str| match is_field_name(name.as_bytes()) && !is_protected_header(name)
        {
            true => Ok(name.to_ascii_lowercase()),
            false => Err(format!("{name:?} is no header, or one of the proxy's own")),
        };
        let claim = |claim: &resource::ClaimHeader| {
            let header = usable(&claim.header)?;
            let claim = claim.claim.clone();
            Ok(resource::ClaimHeader { claim, header })
        };
        let claims: Result<_, String> = provider.claim_headers.iter().map(claim).collect();
        Ok(Self {
            issuer: provider.issuer.clone(),
            audiences: provider.audiences.clone(),
            keys: Keys::parse(&provider.jwks).map_err(named)?,
            header: usable(header).map_err(named)?,
            claims: claims.map_err(named)?,
            forward: provider.forward,
            expiry_optional: provider.expiry_optional,
        })
    }

    /// Returns the headers for claims; a claim that a header cannot hold is left out.
    fn headers(&self, claims: &Claims) -> Arc<[(String, Vec<u8>)]> {
        let header = |c: &resource::ClaimHeader| {
            let value = claims.text(&c.claim)?.into_bytes();
            let fits = value.len() <= MAX_CLAIM && is_field_value(&value);
            fits.then(|| (c.header.clone(), value))
        };
        self.claims.iter().filter_map(header).collect()
    }
}

/// Returns the token in a header; `None`: there is none, or credentials that cannot be a token.
fn token_of<'a>(head: &'a [u8], header: &str) -> Result<Option<&'a [u8]>, Trouble> {
    let is_named = |name: &[u8]| name.eq_ignore_ascii_case(header.as_bytes());
    let mut fields = tulle_http1::headers(head).filter(|(name, _)| is_named(name));
    let Some((_, value)) = fields.next() else {
        return Ok(None);
    };
    if fields.next().is_some() {
        return Err(Trouble::Repeated);
    }
    let (scheme, credentials) = match value.iter().position(|b| *b == b' ') {
        Some(end) => value.split_at(end),
        None => (value, &b""[..]),
    };
    let is = |known: &str| scheme.eq_ignore_ascii_case(known.as_bytes());
    if is("bearer") {
        return Ok(Some(credentials.trim_ascii()));
    }
    if header != "authorization" {
        return Ok(Some(value));
    }
    // RFC 9110, section 11.2: one word (token68), or parameters.
    let credentials = credentials.trim_ascii();
    let one_word = |b: &u8| b.is_ascii_alphanumeric() || b"-._~+/=".contains(b);
    let parameters = |b: &u8| matches!(b, b' '..=b'~');
    let known = (ONE_WORD_SCHEMES.iter().any(|known| is(known))
        && credentials.iter().all(one_word))
        || (PARAMETER_SCHEMES.iter().any(|known| is(known)) && credentials.iter().all(parameters));
    match known && !credentials.is_empty() {
        true => Ok(None),
        false => Err(Trouble::Scheme),
    }
}

fn digest_of(header: &str, token: &[u8]) -> [u8; 32] {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(header.as_bytes());
    // No header name holds a line feed.
    context.update(b"\n");
    context.update(token);
    let mut out = [0; 32];
    out.copy_from_slice(context.finish().as_ref());
    out
}

#[cfg(test)]
mod tests;

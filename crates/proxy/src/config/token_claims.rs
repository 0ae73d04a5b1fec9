//! Claims of a request's tokens, for policies that read them. A policy judges before the filters that check tokens run:
//! so the tokens are checked here, by the same rules, when a condition first asks. The filters know them then.

use crate::codec::request_values::Claims;
use crate::config::conditions::Request;
use crate::config::inbound_rules::InboundRules;
use crate::telemetry::reason::Failure;
use std::cell::OnceCell;
use std::sync::Arc;
use std::time::SystemTime;
use tulle_expression::{List, NoValue, Value};

struct TokenClaims<'a> {
    rules: Option<&'a InboundRules>,
    request: Request<'a>,
    checked: OnceCell<Checked>,
}

enum Checked {
    /// Nothing checks tokens of this request, or none came.
    None,
    One(Arc<Value<'static>>),
    /// Several came, and which one counts is nowhere said.
    Several,
    /// Whether they are checked depends on how the request is read.
    Ambiguous,
    /// A token is missing or not valid.
    Refused(Box<Failure>),
}

/// Judges a request by a policy whose conditions may read the claims of its tokens, which `rules` say how to check. `reads`:
/// some of them do. Who is refused because a token is missing or not valid hears that.
///
/// # Errors
/// The policy does not allow it.
pub fn judge<T>(
    reads: bool,
    rules: Option<&InboundRules>,
    request: &Request<'_>,
    judge: impl FnOnce(&Request<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    if !reads {
        return judge(request);
    }
    let claims = TokenClaims {
        rules,
        request: request.clone(),
        checked: OnceCell::new(),
    };
    let judged = judge(&request.clone().with_claims(&claims));
    judged.map_err(|denied| match claims.checked.into_inner() {
        Some(Checked::Refused(failure)) => *failure,
        _ => denied,
    })
}

impl TokenClaims<'_> {
    fn check(&self) -> Checked {
        let Some(rules) = self.rules else {
            return Checked::None;
        };
        let filters = match rules.find(&self.request) {
            Ok(Some(filters)) => filters,
            Ok(None) => return Checked::None,
            Err(_) => return Checked::Ambiguous,
        };
        let now = SystemTime::now();
        let mut found = Vec::new();
        for jwt in filters.tokens() {
            match jwt.claims(self.request.head, now) {
                Ok(claims) => found.extend(claims),
                Err(failure) => return Checked::Refused(Box::new(failure)),
            }
        }
        match (found.pop(), found.is_empty()) {
            (None, _) => Checked::None,
            (Some(one), true) => Checked::One(one),
            (Some(_), false) => Checked::Several,
        }
    }
}

impl Claims for TokenClaims<'_> {
    fn claims(&self) -> Result<Value<'_>, NoValue> {
        match self.checked.get_or_init(|| self.check()) {
            Checked::None => Ok(Value::Map(List::Borrowed(&[]))),
            Checked::One(claims) => Ok(claims.borrowed()),
            Checked::Several => Err(NoValue::SeveralTokens),
            Checked::Ambiguous => Err(NoValue::Ambiguous),
            Checked::Refused(_) => Err(NoValue::Absent),
        }
    }
}

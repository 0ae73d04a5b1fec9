//! Conditions in CEL, judged for the request that is asked about: one without headers and body.

use super::Call;
use std::borrow::Cow;
use tulle_expression::{Input, NoValue, Value, Variable, request};
use tulle_model::condition;

/// Whether all conditions hold, or why one does not. `denies`: one without a value counts as met, as for a
/// sidecar.
pub(super) fn hold(conditions: &[String], call: &Call<'_>, denies: bool) -> Result<(), String> {
    for source in conditions {
        let Ok(condition) = condition::policy(source) else {
            return Err(format!("the condition `{source}` is not valid"));
        };
        match condition.condition(&Asked(call)) {
            Ok(true) => {}
            Err(_) if denies => {}
            _ if condition.reads(request::HEADERS) => {
                return Err(format!("headers decide (`when: {source}`)"));
            }
            _ if condition.reads(request::CLAIMS) => {
                return Err(format!("the claims of its token decide (`when: {source}`)"));
            }
            Ok(false) => return Err(format!("its condition does not hold (`when: {source}`)")),
            Err(none) => {
                return Err(format!(
                    "its condition has no value: {none} (`when: {source}`)"
                ));
            }
        }
    }
    Ok(())
}

struct Asked<'a>(&'a Call<'a>);

impl Input for Asked<'_> {
    fn read(&self, variable: Variable) -> Result<Value<'_>, NoValue> {
        let call = self.0;
        Ok(match variable {
            request::METHOD => Value::string(call.method),
            request::PATH => Value::string(call.path),
            request::QUERY => Value::string(""),
            request::PROTOCOL => Value::string("http"),
            request::SIZE => Value::Int(0),
            request::SOURCE_ADDRESS => {
                let address = call.address.ok_or(NoValue::Absent)?;
                Value::String(Cow::Owned(address.to_string()))
            }
            request::DESTINATION_PORT => Value::Int(call.own_port.into()),
            other => {
                let value = condition::of_source(other, call.source.as_ref());
                return value.ok_or(NoValue::Absent);
            }
        })
    }
}

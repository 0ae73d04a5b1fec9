//! Queries of URLs: each parameter once, and none that nobody reads.

use crate::response::refusal;
use hyper::StatusCode;
use std::str::FromStr;
use tulle_control::observe::Refusal;

/// The parameters of a request.
#[derive(Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

fn wrong(what: String) -> Refusal {
    let fix = "docs/console.md lists the parameters";
    refusal(StatusCode::BAD_REQUEST, "bad_query", what, fix)
}

impl Query {
    pub(crate) fn parse(text: &str) -> Self {
        let pairs = form_urlencoded::parse(text.as_bytes()).into_owned();
        Self(pairs.collect())
    }

    /// Refuses other parameters than these.
    pub(crate) fn only(&self, names: &[&str]) -> Result<&Self, Refusal> {
        for (at, (name, _)) in self.0.iter().enumerate() {
            if !names.contains(&name.as_str()) {
                let known = names.join(", ");
                return Err(wrong(format!(
                    "there is no parameter {name:?} here, only: {known}"
                )));
            }
            if self.0.iter().skip(at + 1).any(|(other, _)| other == name) {
                return Err(wrong(format!("the parameter {name} is there twice")));
            }
        }
        Ok(self)
    }

    fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(known, _)| known == name);
        found
            .map(|(_, value)| value.as_str())
            .filter(|v| !v.is_empty())
    }

    /// A text; empty if it is not there.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    /// A text that may be left out.
    pub(crate) fn optional(&self, name: &str) -> Option<&str> {
        self.get(name)
    }

    /// A text that must be there.
    pub(crate) fn required(&self, name: &str) -> Result<&str, Refusal> {
        self.get(name)
            .ok_or_else(|| wrong(format!("the parameter {name} is missing")))
    }

    /// A number that may be left out.
    pub(crate) fn number<T: FromStr>(&self, name: &str) -> Result<Option<T>, Refusal> {
        let Some(text) = self.get(name) else {
            return Ok(None);
        };
        let parsed = text.parse();
        let number = parsed.map_err(|_| wrong(format!("{name}={text} is no number here")))?;
        Ok(Some(number))
    }

    /// A time in Unix seconds.
    pub(crate) fn time(&self, name: &str) -> Result<Option<f64>, Refusal> {
        match self.number::<f64>(name)? {
            Some(time) if !time.is_finite() || time < 0.0 => {
                Err(wrong(format!("{name}={time} is no time in Unix seconds")))
            }
            time => Ok(time),
        }
    }

    /// A window of ten seconds to fifteen minutes.
    pub(crate) fn window(&self, usual: u32) -> Result<u32, Refusal> {
        match self.number("window")? {
            None => Ok(usual),
            Some(window @ 10..=900) => Ok(window),
            Some(window) => Err(wrong(format!(
                "window={window} is not between 10 and 900 seconds"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded_and_checked() {
        let query =
            Query::parse("id=service%2Fa%3Eservice%2Fb&at=1.5&window=60&path=%2Fa+b&empty=");
        let names = ["id", "at", "window", "path", "empty"];
        let query = query.only(&names).unwrap();
        assert_eq!(query.required("id").unwrap(), "service/a>service/b");
        assert_eq!(query.time("at").unwrap(), Some(1.5));
        assert_eq!(query.window(900).unwrap(), 60);
        assert_eq!(query.text("path"), "/a b");
        assert_eq!(query.optional("empty"), None);
        assert!(query.required("other").is_err());
        assert!(query.only(&["id"]).is_err(), "at is unknown");
        assert!(Query::parse("a=1&a=2").only(&["a"]).is_err());
    }

    #[test]
    fn numbers_and_times_within_bounds() {
        for text in ["window=9", "window=901", "window=-1", "window=x"] {
            assert!(Query::parse(text).window(60).is_err(), "{text}");
        }
        assert_eq!(Query::default().window(60).unwrap(), 60);
        for text in ["at=NaN", "at=inf", "at=-1", "at=x"] {
            assert!(Query::parse(text).time("at").is_err(), "{text}");
        }
    }
}

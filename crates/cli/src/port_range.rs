//! Ports that an operator names.

use std::fmt;
use std::str::FromStr;

/// Ports that the operator names, the last one included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PortRange {
    pub(crate) first: u16,
    pub(crate) last: u16,
}

impl FromStr for PortRange {
    type Err = &'static str;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let [first, last] = [first, last].map(str::parse::<u16>);
        let (Ok(first), Ok(last)) = (first, last) else {
            return Err("expected FIRST-LAST, such as 16000-16099");
        };
        match (first, last) {
            // A sidecar has no privilege.
            _ if first < 1024 => Err("sidecars can use ports of 1024 or more only"),
            _ if first > last => Err("the first port is higher than the last"),
            _ => Ok(Self { first, last }),
        }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

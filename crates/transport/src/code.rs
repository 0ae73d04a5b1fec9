//! The codes that RESET and GOAWAY carry.

/// Why a stream was cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ResetCode {
    /// The answer is complete; the rest of the peer's message is not wanted. Bytes that arrived
    /// before are good.
    Done,
    /// The sender, or the application behind it, gave up.
    Cancelled,
    /// Not processed at all: safe to retry, on this connection or another.
    Refused,
    /// A fault of the sender.
    Internal,
    /// A deadline passed.
    Timeout,
    /// Shed because of load, perhaps after some work; not safe to retry blindly.
    Overload,
    /// Policy forbids this stream.
    Denied,
}

impl ResetCode {
    pub(crate) fn to_wire(self) -> u32 {
        match self {
            Self::Done => 0,
            Self::Cancelled => 1,
            Self::Refused => 2,
            Self::Internal => 3,
            Self::Timeout => 4,
            Self::Overload => 5,
            Self::Denied => 6,
        }
    }

    /// Reads a code; one from a later revision is `Internal`: the stream is over either way, and no
    /// request may be retried on a guess.
    pub(crate) fn from_wire(code: u32) -> Self {
        match code {
            0 => Self::Done,
            1 => Self::Cancelled,
            2 => Self::Refused,
            4 => Self::Timeout,
            5 => Self::Overload,
            6 => Self::Denied,
            _ => Self::Internal,
        }
    }
}

/// Why a connection takes no more streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GoAwayCode {
    /// Planned: age, shutdown, new certificate.
    NoError,
    /// The peer broke a rule of the protocol.
    Protocol,
    /// The peer sent beyond its credit, or gave more credit than there can be.
    FlowControl,
    /// The peer sent too many frames that carry no work.
    Flood,
    /// A fault of the sender.
    Internal,
}

impl GoAwayCode {
    pub(crate) fn to_wire(self) -> u32 {
        match self {
            Self::NoError => 0,
            Self::Protocol => 1,
            Self::FlowControl => 2,
            Self::Flood => 3,
            Self::Internal => 4,
        }
    }

    pub(crate) fn from_wire(code: u32) -> Self {
        match code {
            0 => Self::NoError,
            1 => Self::Protocol,
            2 => Self::FlowControl,
            3 => Self::Flood,
            _ => Self::Internal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_survive_the_wire_and_unknown_ones_are_never_retryable() {
        for wire in 0..7 {
            assert_eq!(ResetCode::from_wire(wire).to_wire(), wire);
        }
        for wire in 0..5 {
            assert_eq!(GoAwayCode::from_wire(wire).to_wire(), wire);
        }
        assert_eq!(ResetCode::from_wire(77), ResetCode::Internal);
        assert_eq!(GoAwayCode::from_wire(u32::MAX), GoAwayCode::Internal);
    }
}

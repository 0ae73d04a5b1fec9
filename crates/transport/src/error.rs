//! Errors: a peer that breaks the protocol, and a stream that has ended.

use crate::GoAwayCode;
use std::fmt;

/// The peer broke a rule of `tulle/1`; the connection cannot be used any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionError {
    /// The first frame was not SETTINGS.
    SettingsMissing,
    /// A second SETTINGS frame.
    SettingsRepeated,
    /// SETTINGS with a value below what the protocol guarantees, or out of range.
    SettingsInvalid {
        /// The field of the frame.
        field: &'static str,
        /// Its value.
        value: u32,
    },
    /// A payload longer than [`crate::MAX_PAYLOAD`].
    FrameTooLong {
        /// The length in the header.
        length: u16,
    },
    /// A frame whose payload does not have the length its type asks for.
    FrameLength {
        /// The frame's type.
        frame: u8,
        /// The length in the header.
        length: u16,
    },
    /// A frame of an unknown type that is not marked as ignorable.
    FrameUnknown {
        /// The frame's type.
        frame: u8,
    },
    /// Flags that the frame's type does not allow here.
    FrameFlags {
        /// The frame's type.
        frame: u8,
        /// The flags in the header.
        flags: u8,
    },
    /// A frame of the connection with a stream id, or a frame of a stream without one.
    FrameStream {
        /// The frame's type.
        frame: u8,
        /// The stream id in the header.
        id: u32,
    },
    /// OPEN with an id not above all ids before, or sent by the server.
    OpenInvalid {
        /// The stream id.
        id: u32,
    },
    /// OPEN after the client said that it opens no more.
    OpenAfterGoAway {
        /// The stream id.
        id: u32,
    },
    /// A frame for a stream that was never opened.
    StreamUnknown {
        /// The stream id.
        id: u32,
    },
    /// DATA for a stream that the peer had ended.
    DataAfterEnd {
        /// The stream id.
        id: u32,
    },
    /// More DATA than the credit given.
    CreditOverrun {
        /// The stream id.
        id: u32,
    },
    /// CREDIT of 0, or to a total above 2^31 - 1.
    CreditInvalid {
        /// The stream id.
        id: u32,
        /// The increment.
        increment: u32,
    },
    /// GOAWAY with an id that was never opened, or above that of an earlier GOAWAY.
    GoAwayInvalid {
        /// The last stream id in the frame.
        last: u32,
    },
    /// Too many frames that carry no work.
    Flood {
        /// The frames that used up the budget.
        what: &'static str,
    },
}

impl ConnectionError {
    /// Returns the code for the peer in GOAWAY.
    #[must_use]
    pub fn code(&self) -> GoAwayCode {
        match self {
            Self::CreditOverrun { .. } | Self::CreditInvalid { .. } => GoAwayCode::FlowControl,
            Self::Flood { .. } => GoAwayCode::Flood,
            _ => GoAwayCode::Protocol,
        }
    }
}

impl fmt::Display for ConnectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the peer broke the tulle/1 protocol: ")?;
        match self {
            Self::SettingsMissing => f.write_str("its first frame was not SETTINGS"),
            Self::SettingsRepeated => f.write_str("it sent SETTINGS twice"),
            Self::SettingsInvalid { field, value } => {
                write!(f, "its SETTINGS give {value} as {field}, outside the range")
            }
            Self::FrameTooLong { length } => write!(f, "a frame of {length} bytes is too long"),
            Self::FrameLength { frame, length } => {
                write!(f, "a frame of type {frame} cannot have {length} bytes")
            }
            Self::FrameUnknown { frame } => {
                write!(f, "frame type {frame} is unknown and must not be ignored")
            }
            Self::FrameFlags { frame, flags } => {
                write!(f, "a frame of type {frame} cannot have flags {flags:#04x}")
            }
            Self::FrameStream { frame, id } => {
                write!(f, "a frame of type {frame} cannot have stream id {id}")
            }
            Self::OpenInvalid { id } => write!(f, "it opened stream {id} out of order"),
            Self::OpenAfterGoAway { id } => {
                write!(f, "it opened stream {id} after saying it opens no more")
            }
            Self::StreamUnknown { id } => write!(f, "stream {id} was never opened"),
            Self::DataAfterEnd { id } => write!(f, "data on stream {id} after its end"),
            Self::CreditOverrun { id } => write!(f, "more data than credit on stream {id}"),
            Self::CreditInvalid { id, increment } => {
                write!(
                    f,
                    "credit of {increment} bytes on stream {id} is out of range"
                )
            }
            Self::GoAwayInvalid { last } => {
                write!(f, "its GOAWAY names stream {last}, which it cannot")
            }
            Self::Flood { what } => write!(f, "too many {what} without useful data"),
        }?;
        f.write_str(
            "; the connection is closed. If it happens again, check which sidecar releases run at both ends",
        )
    }
}

impl std::error::Error for ConnectionError {}

/// The stream has ended, was reset, or its connection failed: nothing more can be sent on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamGone;

impl fmt::Display for StreamGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the stream has ended or was reset; nothing more can be sent on it")
    }
}

impl std::error::Error for StreamGone {}

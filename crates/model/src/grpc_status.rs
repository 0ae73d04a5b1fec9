//! Statuses of gRPC's calls.

/// Whether a call that ended with this status failed by no fault of its caller: UNKNOWN, DEADLINE_EXCEEDED,
/// UNIMPLEMENTED, INTERNAL, UNAVAILABLE or DATA_LOSS (gRPC, "Status codes and their use").
pub fn is_failure(code: u64) -> bool {
    matches!(code, 2 | 4 | 12 | 13 | 14 | 15)
}

//! http1

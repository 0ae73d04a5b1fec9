//! The proxy's own log: JSON lines on standard error; its level can change at run time.

use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

static LEVEL: OnceLock<reload::Handle<LevelFilter, Registry>> = OnceLock::new();
const NAMES: [&str; 5] = ["error", "warn", "info", "debug", "trace"];
/// Index of the present level's name.
static NAMED: AtomicUsize = AtomicUsize::new(2);

/// Starts logging at INFO.
pub fn start() {
    let (filter, handle) = reload::Layer::new(LevelFilter::INFO);
    let lines = tracing_subscriber::fmt::layer()
        .json()
        .flatten_event(true)
        .with_writer(std::io::stderr)
        .with_filter(filter);
    if tracing_subscriber::registry()
        .with(lines)
        .try_init()
        .is_ok()
    {
        let _ = LEVEL.set(handle);
    }
}

/// Changes the level; false if there is no level of that name.
pub fn set_level(name: &str) -> bool {
    // `from_str` also accepts numbers, an empty text, and `off`, which would hide every error.
    let known = NAMES.iter().position(|known| *known == name);
    let (Some(known), Ok(level)) = (known, LevelFilter::from_str(name)) else {
        return false;
    };
    NAMED.store(known, Ordering::Relaxed);
    if let Some(handle) = LEVEL.get() {
        // Fails only when the subscriber is gone, at the end of the process.
        let _ = handle.modify(|current| *current = level);
    }
    true
}

/// The present level's name.
pub fn level() -> &'static str {
    NAMES.get(NAMED.load(Ordering::Relaxed)).unwrap_or(&"info")
}

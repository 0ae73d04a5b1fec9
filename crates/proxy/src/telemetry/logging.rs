//! The proxy's own log: JSON lines on standard error; its level can change at run time.

use std::env;
use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};
use tulle_model::manifest::LOG_LEVELS;

static LEVEL: OnceLock<reload::Handle<LevelFilter, Registry>> = OnceLock::new();
/// Index of the present level's name.
static NAMED: AtomicUsize = AtomicUsize::new(2);
/// The variable with a level of this proxy's own, which goes before the mesh's.
const VARIABLE: &str = "TULLE_LOG";
/// Whether it has one.
static HAS_OWN: AtomicBool = AtomicBool::new(false);

/// Starts logging: at its own level if it has one, else at INFO until the mesh says another.
///
/// # Errors
/// There is no level of that name.
pub fn start() -> Result<(), String> {
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
    let Some(own) = env::var_os(VARIABLE) else {
        return Ok(());
    };
    if !own.to_str().is_some_and(set_level) {
        let names = LOG_LEVELS.join(", ");
        return Err(format!(
            "{VARIABLE}={}: the level is one of {names}",
            own.display()
        ));
    }
    HAS_OWN.store(true, Ordering::Relaxed);
    Ok(())
}

/// Changes the level to the mesh's, unless this proxy has its own.
pub fn follow_mesh(name: &str) {
    if !HAS_OWN.load(Ordering::Relaxed) {
        set_level(name);
    }
}

/// Changes the level; false if there is no level of that name.
pub fn set_level(name: &str) -> bool {
    // `from_str` also accepts numbers, an empty text, and `off`, which would hide every error.
    let known = LOG_LEVELS.iter().position(|known| *known == name);
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
    LOG_LEVELS
        .get(NAMED.load(Ordering::Relaxed))
        .unwrap_or(&"info")
}

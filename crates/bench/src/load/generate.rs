//! Generates what a [`Load`] asks for, by the part that knows its pattern.

use super::client::{Load, Pattern, Report};
use super::engine::Engine;
use super::{handshakes, storm};
use crate::failure::{Failure, OrFail, Result};
use crate::payload::text;
use std::io::Write;

/// `tulle-bench internal load LOAD`, the load as JSON. It says `begin` and `end` (or `holding`) on standard
/// output when it does, then its [`Report`] as JSON.
///
/// # Errors
/// The load is no JSON, or the system polls no more.
pub fn main(load: &str) -> Result<()> {
    let load: Load = serde_json::from_str(load)
        .or_fail(|| "the load is not what `tulle bench` writes".to_owned())?;
    let say = |word: &str| {
        let mut out = std::io::stdout().lock();
        // The parent process is gone: nobody reads the output.
        let _ = writeln!(out, "{word}").and_then(|()| out.flush());
    };
    let hold = || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    };
    let report = run(&load, &say, &hold)?;
    let text = serde_json::to_string(&report).or_fail(|| "cannot encode the report".to_owned())?;
    say(&text);
    Ok(())
}

/// Generates the load in this thread. `say` is told of `begin`, `end` and `holding`; `hold` returns
/// when connections need no longer be held.
///
/// # Errors
/// The system polls no more.
pub fn run(load: &Load, say: &dyn Fn(&str), hold: &dyn Fn()) -> Result<Report> {
    if load.connections == 0 {
        return Err(Failure::failed("a load without connections"));
    }
    let beside = load.beside.map_or(0, |beside| beside.bytes);
    let body = text(load.bytes.max(load.upload).max(beside));
    if matches!(load.pattern, Pattern::Handshakes | Pattern::Resumed) {
        return handshakes::run(load, &body[..load.bytes], say);
    }
    if load.pattern == Pattern::Storm {
        return storm::run(load, &body[..load.bytes], say);
    }
    Engine::new(load, &body)
        .and_then(|engine| engine.run(say, hold))
        .or_fail(|| format!("cannot generate load for {}", load.to))
}

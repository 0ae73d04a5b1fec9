//! What is wrong between objects that are each valid, as commands print it.

use crate::args::Format;
use crate::failure::Result;
use crate::output::{self, Columns, line};
use std::process::ExitCode;
use tulle_model::manifest::Problem;

/// Exit code when something is found; 1 would be that the command itself failed.
pub(crate) const FOUND: u8 = 79;

/// A table for people, a line each for programs, or what `format` says.
pub(crate) fn show(found: &[Problem], format: Format) -> Result<()> {
    if output::structured(&found, format)? {
        return Ok(());
    }
    if !output::is_terminal() {
        for problem in found {
            line(&problem.to_string());
        }
        return Ok(());
    }
    let mut columns = Columns::new(&["CODE", "OBJECT", "FIELD", "FINDING"]);
    for problem in found {
        columns.row(vec![
            problem.code.to_owned(),
            problem.object.clone(),
            problem.field.clone(),
            problem.message.clone(),
        ]);
    }
    if !columns.is_empty() {
        line(&columns.render());
    }
    Ok(())
}

/// 79 if anything was found.
pub(crate) fn exit(found: bool) -> ExitCode {
    ExitCode::from(if found { FOUND } else { 0 })
}

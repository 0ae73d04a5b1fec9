//! Prints findings about objects that are each valid but do not fit together.

use crate::args::output::Format;
use crate::failure::Result;
use crate::output::{self, Columns, line};
use std::process::ExitCode;
use tulle_api::v1::Finding;
use tulle_model::manifest::{Problem, Severity};

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
            problem.code.to_string(),
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

/// Converts a controller's findings.
pub(crate) fn known(found: Vec<Finding>) -> Vec<Problem> {
    let problem = |found: Finding| Problem {
        code: found.code.into(),
        severity: Severity::Warning,
        object: found.object,
        field: found.field,
        message: found.message,
    };
    found.into_iter().map(problem).collect()
}

/// Adds what is not among them yet.
pub(crate) fn add(found: &mut Vec<Problem>, more: Vec<Problem>) {
    for problem in more {
        let same = |p: &Problem| {
            (&p.code, &p.object, &p.field) == (&problem.code, &problem.object, &problem.field)
        };
        if !found.iter().any(same) {
            found.push(problem);
        }
    }
}

/// 79 if anything was found.
pub(crate) fn exit(found: bool) -> ExitCode {
    ExitCode::from(if found { FOUND } else { 0 })
}

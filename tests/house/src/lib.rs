//! Floors of a crate: which module may import which. `dots` checks another rule, about names.
//!
//! A crate with floors has a `floors.txt`: its top-level modules from the top down, one floor a line. A file imports its
//! own top-level module and floors below. `sources` reads what each file imports; this checks it.

pub mod dots;
pub mod sources;

use sources::{Import, Sources};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// Files that import each other in a circle may be so many.
pub const CIRCLE: usize = 3;

/// The floors of a crate.
#[derive(Default)]
pub struct Floors {
    /// Number of each module's floor, from the top.
    numbers: BTreeMap<String, usize>,
}

impl Floors {
    /// Reads a `floors.txt`: a floor a line, as names of modules. `#` begins a comment.
    ///
    /// # Errors
    /// A module has two floors.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut floors = Self::default();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            for name in line.split_whitespace() {
                if floors.numbers.insert(name.to_owned(), number).is_some() {
                    return Err(format!("line {}: {name} has two floors", number + 1));
                }
            }
        }
        Ok(floors)
    }

    /// Says what in the sources is against the floors, a line each; empty: nothing.
    pub fn check(&self, sources: &Sources) -> String {
        let mut found = String::new();
        for name in sources
            .modules()
            .difference(&self.numbers.keys().cloned().collect())
        {
            // Writing to memory does not fail.
            let _ = writeln!(found, "{name}: this module has no floor");
        }
        for name in self
            .numbers
            .keys()
            .filter(|n| !sources.modules().contains(*n))
        {
            let _ = writeln!(found, "{name}: this floor has no module");
        }
        for import in &sources.imports {
            if let Some(why) = self.wrong(import) {
                let (file, line) = (&import.file, import.line);
                let _ = writeln!(found, "{file}:{line}: `{}` {why}", import.text);
            }
        }
        found += &circles(sources);
        found
    }

    fn wrong(&self, import: &Import) -> Option<String> {
        let (from, to) = (import.own_module(), &import.module);
        if from == *to {
            return None;
        }
        let (own, other) = (self.numbers.get(&from)?, self.numbers.get(to)?);
        match other.cmp(own) {
            std::cmp::Ordering::Greater => None,
            std::cmp::Ordering::Less => Some(format!("runs up: {to} stands above {from}")),
            std::cmp::Ordering::Equal => Some(format!("runs across: {to} stands beside {from}")),
        }
    }
}

/// Names each circle of more than [`CIRCLE`] files with its imports; empty: there is none.
pub fn circles(sources: &Sources) -> String {
    let mut found = String::new();
    for circle in sources.circles().iter().filter(|c| c.len() > CIRCLE) {
        let _ = writeln!(found, "{} files import each other:", circle.len());
        for (from, to, text) in sources.within(circle) {
            let _ = writeln!(found, "  {from} -> {to}: {text}");
        }
    }
    found
}

/// Checks a crate by its folder.
///
/// # Errors
/// Something is against its floors, or its files cannot be read.
pub fn check(folder: &Path) -> Result<(), String> {
    let list = folder.join("floors.txt");
    let text = std::fs::read_to_string(&list).map_err(|e| format!("{}: {e}", list.display()))?;
    let floors = Floors::parse(&text).map_err(|why| format!("{}: {why}", list.display()))?;
    let found = floors.check(&Sources::read(&folder.join("src"))?);
    match found.as_str() {
        "" => Ok(()),
        _ => Err(format!("against {}:\n{found}", list.display())),
    }
}

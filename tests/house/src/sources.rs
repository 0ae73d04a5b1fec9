//! Finds what each file of a crate imports: `use` declarations and paths in code that begin with `crate` or `super`.
//!
//! Comments, strings and modules of tests count for nothing, and neither does `mod x;`: a module names its parts
//! without using them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The sources of a crate.
#[derive(Default)]
pub struct Sources {
    /// Their imports.
    pub imports: Vec<Import>,
    /// Path in the crate of each module, and its file under `src`.
    files: BTreeMap<Vec<String>, String>,
}

/// An import of another module of the crate.
pub struct Import {
    /// Where, under `src`.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// The top-level module.
    pub module: String,
    /// As it is written.
    pub text: String,
    /// The file that it leads to.
    to: String,
}

impl Import {
    /// Returns the top-level module of the file that imports.
    pub fn own_module(&self) -> String {
        let first = self.file.split('/').next().unwrap_or_default();
        first.trim_end_matches(".rs").to_owned()
    }
}

impl Sources {
    /// Reads all files under `src`.
    ///
    /// # Errors
    /// One cannot be read.
    pub fn read(src: &Path) -> Result<Self, String> {
        Ok(Self::of_texts(&texts(src)?))
    }

    /// Reads the texts of files by their names under `src`.
    pub fn of_texts(texts: &BTreeMap<PathBuf, String>) -> Self {
        let mut sources = Self::default();
        let mut cleaned = BTreeMap::new();
        for (name, text) in code(texts) {
            let path = module_path(name);
            cleaned.insert(path.clone(), text);
            sources.files.insert(path, name.display().to_string());
        }
        for (path, text) in &cleaned {
            let Some(file) = sources.files.get(path).cloned() else {
                continue;
            };
            for (at, target) in paths(text, path) {
                let Some((to, module)) = sources.find(&target) else {
                    continue;
                };
                if to == file {
                    continue;
                }
                sources.imports.push(Import {
                    line: text[..at].matches('\n').count() + 1,
                    text: target.join("::"),
                    file: file.clone(),
                    module,
                    to,
                });
            }
        }
        sources
    }

    /// Returns the top-level modules, `lib` and `main` among them if something is defined there that others import.
    pub fn modules(&self) -> BTreeSet<String> {
        let tops = self.files.keys().filter_map(|path| path.first().cloned());
        tops.filter(|m| !m.is_empty()).collect()
    }

    /// Returns the file that defines what a path names, and its top-level module.
    fn find(&self, target: &[String]) -> Option<(String, String)> {
        let n = (1..=target.len())
            .rev()
            .find(|n| self.files.contains_key(&target[..*n]))?;
        Some((self.files.get(&target[..n])?.clone(), target[0].clone()))
    }

    /// Returns the circles of more than one file.
    pub fn circles(&self) -> Vec<BTreeSet<String>> {
        let mut next: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for import in &self.imports {
            next.entry(&import.file).or_default().insert(&import.to);
        }
        let reached = |from: &str| {
            let mut seen = BTreeSet::new();
            let mut open = vec![from.to_owned()];
            while let Some(file) = open.pop() {
                for to in next.get(file.as_str()).into_iter().flatten() {
                    if seen.insert((*to).to_owned()) {
                        open.push((*to).to_owned());
                    }
                }
            }
            seen
        };
        let all: BTreeMap<String, BTreeSet<String>> = next
            .keys()
            .map(|file| ((*file).to_owned(), reached(file)))
            .collect();
        let mut circles: Vec<BTreeSet<String>> = Vec::new();
        for (file, to) in &all {
            let circle: BTreeSet<String> = to
                .iter()
                .filter(|other| all.get(*other).is_some_and(|back| back.contains(file)))
                .cloned()
                .collect();
            if circle.len() > 1 && !circles.contains(&circle) {
                circles.push(circle);
            }
        }
        circles
    }

    /// Returns what files of a circle import of each other: from, to, and as it is written.
    pub fn within<'a>(
        &'a self,
        circle: &'a BTreeSet<String>,
    ) -> impl Iterator<Item = (&'a str, &'a str, &'a str)> {
        let inside = |i: &&Import| circle.contains(&i.file) && circle.contains(&i.to);
        let imports = self.imports.iter().filter(inside);
        imports.map(|i| (i.file.as_str(), i.to.as_str(), i.text.as_str()))
    }
}

/// Reads the texts of all files under `src`, by their names there.
///
/// # Errors
/// One cannot be read.
pub fn texts(src: &Path) -> Result<BTreeMap<PathBuf, String>, String> {
    let mut texts = BTreeMap::new();
    let mut folders = vec![src.to_owned()];
    while let Some(folder) = folders.pop() {
        let failed = |e| format!("{}: {e}", folder.display());
        for entry in std::fs::read_dir(&folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = std::fs::read_to_string(&path);
                let text = text.map_err(|e| format!("{}: {e}", path.display()))?;
                let name = path.strip_prefix(src).map_err(|e| e.to_string())?;
                texts.insert(name.to_owned(), text);
            }
        }
    }
    Ok(texts)
}

/// Returns the code of each file that is not a test's: comments, strings and modules of tests are blank, and lines
/// stay where they are.
pub fn code(texts: &BTreeMap<PathBuf, String>) -> BTreeMap<&Path, String> {
    let mut tests = BTreeSet::new();
    let blanked = texts.iter().map(|(name, text)| {
        let text = without_tests(&without_comments(text), &module_path(name), &mut tests);
        (name.as_path(), text)
    });
    let mut all: BTreeMap<&Path, String> = blanked.collect();
    all.retain(|name, _| {
        let path = module_path(name);
        !(1..=path.len()).any(|n| tests.contains(&path[..n]))
    });
    all
}

/// `a/mod.rs` and `a.rs` are module `a`; `lib.rs` and `main.rs` hold all others and are modules of their own here.
fn module_path(name: &Path) -> Vec<String> {
    let mut path: Vec<String> = name
        .with_extension("")
        .iter()
        .map(|part| part.to_string_lossy().into_owned())
        .collect();
    if path.len() > 1 && path.last().is_some_and(|last| last == "mod") {
        path.pop();
    }
    path
}

/// Blanks comments, strings and characters; lines stay where they are.
fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let taken = token_length(
            rest,
            out.ends_with(|c: char| c.is_alphanumeric() || c == '_'),
        );
        match taken {
            0 => {
                out.push(c);
                rest = &rest[c.len_utf8()..];
            }
            n => {
                let blank = rest[..n].chars().map(|c| if c == '\n' { c } else { ' ' });
                out.extend(blank);
                rest = &rest[n..];
            }
        }
    }
    out
}

/// Returns the length of a comment, string or character at the start of `rest`; 0: there is none.
fn token_length(rest: &str, in_word: bool) -> usize {
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return rest.find("*/").map_or(rest.len(), |end| end + 2);
    }
    let raw = rest.strip_prefix('r').filter(|_| !in_word);
    if let Some(raw) = raw {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            let end = format!("\"{}", "#".repeat(hashes));
            let begin = 2 + hashes;
            return rest[begin..]
                .find(&end)
                .map_or(rest.len(), |at| begin + at + end.len());
        }
    }
    if rest.starts_with('"') {
        return quoted(rest, '"').unwrap_or(rest.len());
    }
    // A lifetime has no quote at its end.
    if let Some(inner) = rest.strip_prefix('\'') {
        let mut inner = inner.chars();
        let escaped = inner.next() == Some('\\');
        if escaped || inner.next() == Some('\'') {
            return quoted(rest, '\'').unwrap_or(0);
        }
    }
    0
}

fn quoted(text: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// Blanks items and fields for tests that stand in the text; modules that are files of their own are added to `tests`.
fn without_tests(text: &str, path: &[String], tests: &mut BTreeSet<Vec<String>>) -> String {
    const MARK: &str = "#[cfg(test)]";
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(MARK) {
        let (before, marked) = rest.split_at(at);
        out.push_str(before);
        let item = &marked[MARK.len()..];
        let end = match item.find([';', '{', '}']) {
            Some(at) if item[at..].starts_with('{') => at + block(&item[at..]),
            // A field; a comma within its type does not end a line.
            Some(at) if item[at..].starts_with('}') => item[..at].find(",\n").unwrap_or(at),
            Some(at) => {
                let words: Vec<&str> = item[..at].split_whitespace().collect();
                if let [.., "mod", name] = words.as_slice() {
                    let mut path = path.to_vec();
                    if ["lib", "main"].contains(&path[0].as_str()) {
                        path.clear();
                    }
                    path.push((*name).to_owned());
                    tests.insert(path);
                }
                at + 1
            }
            None => item.len(),
        };
        let taken = &marked[..MARK.len() + end];
        out.extend(taken.chars().map(|c| if c == '\n' { c } else { ' ' }));
        rest = &marked[taken.len()..];
    }
    out.push_str(rest);
    out
}

/// Returns the length of a block that begins with a brace.
fn block(text: &str) -> usize {
    let mut depth = 0_usize;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => return at + 1,
            '}' => depth -= 1,
            _ => {}
        }
    }
    text.len()
}

/// Returns all paths that begin with `crate` or `super`, from the crate's root, and where they stand.
fn paths(text: &str, own: &[String]) -> Vec<(usize, Vec<String>)> {
    let mut found = Vec::new();
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == ':' || c == '$';
    for word in ["crate::", "super::"] {
        for (at, _) in text.match_indices(word) {
            if text[..at].ends_with(is_word) {
                continue;
            }
            let mut base = match own {
                [only] if only == "lib" || only == "main" => Vec::new(),
                own => own.to_vec(),
            };
            let mut rest = &text[at..];
            if let Some(after) = rest.strip_prefix("crate::") {
                base.clear();
                rest = after;
            }
            while let Some(after) = rest.strip_prefix("super::") {
                base.pop();
                rest = after;
            }
            tree(rest, &base, &mut |path| found.push((at, path)));
        }
    }
    found.sort();
    found
}

/// Follows `a::{b, c::d}`.
fn tree(text: &str, base: &[String], found: &mut impl FnMut(Vec<String>)) {
    let mut path = base.to_vec();
    let mut rest = text;
    loop {
        rest = rest.trim_start();
        if rest.starts_with('{') {
            for part in parts(&rest[..block(rest)]) {
                tree(part, &path, found);
            }
            return;
        }
        let end = rest
            .find(|c: char| !c.is_alphanumeric() && c != '_')
            .unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        if !name.is_empty() && name != "self" {
            path.push(name.to_owned());
        }
        match after.strip_prefix("::") {
            Some(after) if !name.is_empty() => rest = after,
            _ => return found(path),
        }
    }
}

/// Returns what stands between the commas of `{a, b::{c, d}}`.
fn parts(group: &str) -> Vec<&str> {
    let inner = group.trim_start_matches('{');
    let inner = inner.strip_suffix('}').unwrap_or(inner);
    let (mut depth, mut begin, mut all) = (0_usize, 0, Vec::new());
    for (at, c) in inner.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                all.push(inner[begin..at].trim());
                begin = at + 1;
            }
            _ => {}
        }
    }
    all.push(inner[begin..].trim());
    all.retain(|part| !part.is_empty());
    all
}

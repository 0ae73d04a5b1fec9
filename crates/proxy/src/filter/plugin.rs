//! A plugin: a script among the filters. Here it is read and checked; each worker runs it in an engine of its own
//! (`context/plugins.rs`), and `http/plugin_call.rs` carries out what it waits for.

use crate::filter::header_edit::Draft;
use crate::telemetry::reason::{Failure, Reason};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tulle_http1::{is_same_name, request_line};
use tulle_model::namespaced::is_short_for;
use tulle_model::resource;
use tulle_script::{Head, HeadEdit, Program, ScriptEngine, ScriptLimits};

/// The most that a plugin may ask for, beyond which it would be a service of its own.
const MAX_CPU_MS: u32 = 1000;
const MAX_MEMORY_KIB: u32 = 256 << 10;
const MAX_CALLS: u32 = 65_536;
const MAX_BODY_KIB: u32 = 1024;

/// Plugins in force. A new configuration that has them, too, neither reads nor starts them again, and workers go on with
/// the engines that they have.
static IN_FORCE: Mutex<Vec<Weak<Configured>>> = Mutex::new(Vec::new());

/// A plugin as it was told, and what runs.
pub struct Configured {
    told: resource::Plugin,
    /// This plugin; where it is no program, the last one of its name that was. `None`: there was none.
    runs: Option<Arc<Plugin>>,
    /// Why it does not run itself.
    fault: Option<String>,
}

impl Configured {
    /// The plugin in force that is the same, or this one: read, checked and started once.
    pub fn new(told: &resource::Plugin) -> Arc<Self> {
        let mut in_force = IN_FORCE.lock().unwrap_or_else(PoisonError::into_inner);
        in_force.retain(|plugin| plugin.strong_count() > 0);
        let mut known = in_force.iter().filter_map(Weak::upgrade);
        if let Some(same) = known.find(|plugin| plugin.told == *told) {
            return same;
        }
        let (runs, fault) = match Plugin::compile(told) {
            Ok(plugin) => (Some(Arc::new(plugin)), None),
            Err(fault) => {
                let known = in_force.iter().rev().filter_map(Weak::upgrade);
                let mut last = known.filter(|plugin| plugin.told.name == told.name);
                let runs = last.find_map(|plugin| plugin.runs.clone());
                tracing::warn!(fault, last_good = runs.is_some(), "a plugin does not run");
                (runs, Some(fault))
            }
        };
        let told = told.clone();
        let new = Arc::new(Self { told, runs, fault });
        in_force.push(Arc::downgrade(&new));
        new
    }

    /// Why it does not run itself, if it does not.
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// Returns the plugin that runs in its place; `None`: nothing does, and requests pass nevertheless.
    ///
    /// # Errors
    /// Nothing does, and they may not pass.
    pub fn runs(&self) -> Result<Option<&Arc<Plugin>>, Failure> {
        match &self.runs {
            None if !self.told.fail_open => {
                let fault = self.fault.as_deref().unwrap_or_default();
                Err(Failure::new(Reason::PluginFailed, fault))
            }
            runs => Ok(runs.as_ref()),
        }
    }

    /// Services that it may ask.
    pub fn services(&self) -> impl Iterator<Item = &str> {
        self.told.services.iter().map(String::as_str)
    }
}

/// A plugin, checked.
pub struct Plugin {
    services: Vec<String>,
    name: Arc<str>,
    /// The module.
    pub program: Program,
    /// Its configuration, as JSON.
    pub config: String,
    /// Its limits on each worker.
    pub limits: ScriptLimits,
    /// Whether requests pass where it fails.
    pub fail_open: bool,
}

impl Plugin {
    /// Reads, checks and starts a plugin.
    ///
    /// # Errors
    /// It is no program, or cannot start; with line and column.
    pub fn compile(told: &resource::Plugin) -> Result<Self, String> {
        Self::read(told).map_err(|e| format!("plugin {}: {e}", told.name))
    }

    fn read(told: &resource::Plugin) -> Result<Self, String> {
        let usual = ScriptLimits::default();
        let limits = ScriptLimits {
            cpu: match bounded("cpuMs", told.cpu_ms, MAX_CPU_MS)? {
                0 => usual.cpu,
                ms => Duration::from_millis(ms.into()),
            },
            memory: match bounded("memoryKib", told.memory_kib, MAX_MEMORY_KIB)? {
                0 => usual.memory,
                kib => kib as usize * 1024,
            },
            calls: match bounded("calls", told.calls, MAX_CALLS)? {
                0 => usual.calls,
                calls => calls as usize,
            },
            body: match bounded("bodyKib", told.body_kib, MAX_BODY_KIB)? {
                0 => usual.body,
                kib => kib as usize * 1024,
            },
        };
        let file = format!("{}.js", told.name);
        let program = Program::read(&file, &told.source).map_err(|e| e.to_string())?;
        let config = match told.config.as_str() {
            "" => "null",
            config => config,
        };
        ScriptEngine::start(&program, config, &limits).map_err(|e| e.to_string())?;
        Ok(Self {
            name: told.name.as_str().into(),
            program,
            config: config.to_owned(),
            limits,
            fail_open: told.fail_open,
            services: told.services.clone(),
        })
    }

    /// Its name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The service that a script means: in a cluster it is of a namespace, which the script leaves out.
    pub fn service(&self, name: &str) -> Option<&str> {
        let mut services = self.services.iter().map(String::as_str);
        services.find(|known| is_short_for(name, known))
    }
}

fn bounded(field: &str, value: u32, most: u32) -> Result<u32, String> {
    match value <= most {
        true => Ok(value),
        false => Err(format!("{field} is at most {most}")),
    }
}

/// The head of a request as plugins see it.
pub fn request_head(draft: &Draft<'_>) -> Head {
    let (method, target, _) = request_line(draft.head());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let host = draft.field("host").map(text).unwrap_or_default();
    with_fields(Head::request(&text(method), &text(target), &host), draft)
}

/// The head of a response as plugins see it.
pub fn response_head(draft: &Draft<'_>) -> Head {
    with_fields(Head::response(draft.status()), draft)
}

fn with_fields(mut head: Head, draft: &Draft<'_>) -> Head {
    head.reserve(draft.head().len());
    for (name, value) in tulle_http1::headers(draft.head()) {
        head.push(name, value);
    }
    head
}

/// Does to a head what a plugin did to its own. All fields are written in one pass.
pub fn edit(draft: &mut Draft<'_>, edits: &[HeadEdit]) {
    // `_` for `-`, as servers take them that map names to variables.
    let mut dropped: Vec<String> = Vec::new();
    let mut added: Vec<(&str, Vec<u8>)> = Vec::new();
    let mut first = None;
    for edit in edits {
        match edit {
            HeadEdit::Set(name, value) => {
                dropped.push(name.replace('_', "-"));
                added.retain(|(other, _)| other != name);
                added.push((name, bytes(value)));
            }
            HeadEdit::Append(name, value) => added.push((name, bytes(value))),
            HeadEdit::Remove(name) => {
                dropped.push(name.replace('_', "-"));
                added.retain(|(other, _)| other != name);
            }
            HeadEdit::Path(path) => {
                let (method, _, version) = request_line(draft.head());
                first = Some([method, b" ", path.as_bytes(), b" ", version].concat());
            }
            HeadEdit::Status(status) => {
                let version = draft.head().get(..9).unwrap_or_default();
                first = Some([version, status.to_string().as_bytes()].concat());
            }
        }
    }
    if dropped.is_empty() && added.is_empty() && first.is_none() {
        return;
    }
    let keep = |name: &[u8]| !dropped.iter().any(|other| is_same_name(name, other));
    let added: Vec<(&str, &[u8])> = added.iter().map(|(n, v)| (*n, v.as_slice())).collect();
    draft.edit(first.as_deref(), keep, &added);
}

/// A value as bytes: a character for each.
pub fn bytes(value: &str) -> Vec<u8> {
    if value.is_ascii() {
        return value.as_bytes().to_vec();
    }
    value
        .chars()
        .map(|c| u8::try_from(u32::from(c)).unwrap_or(b'?'))
        .collect()
}

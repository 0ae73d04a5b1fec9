//! The Helm charts, written from the same templates as `tulle install` fills in:
//! `TULLE_WRITE_CHART=1 cargo test -p tulle-kube chart`.

pub(super) mod hook;

use super::template::{Condition, OpenValue, SPREAD};
use super::values::Values;
use crate::crd::made;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Files of a chart that are made here, by their names in it.
type Files = BTreeMap<String, String>;

#[test]
fn the_charts_are_what_tulle_install_prints() {
    let charts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/charts");
    // Settings of some editors and git may differ, so files are compared one by one.
    let mut differ = Vec::new();
    for (name, files) in [("tulle-crds", kinds()), ("tulle", mesh())] {
        let chart = charts.join(name);
        if std::env::var_os("TULLE_WRITE_CHART").is_some() {
            write(&chart, &files);
        }
        for (name, text) in &files {
            let file = chart.join(name);
            if std::fs::read_to_string(&file).ok().as_ref() != Some(text) {
                differ.push(file);
            }
        }
        for file in templates_in(&chart) {
            let name = file
                .strip_prefix(&chart)
                .unwrap()
                .to_string_lossy()
                .into_owned();
            if !files.contains_key(&name) {
                differ.push(file);
            }
        }
    }
    assert!(
        differ.is_empty(),
        "not as they should be: {differ:#?}\nwrite them anew: TULLE_WRITE_CHART=1 cargo test -p tulle-kube chart"
    );
}

#[test]
fn every_value_of_the_chart_is_used() {
    let text: String = mesh()
        .into_iter()
        .filter(|(name, _)| name.starts_with("templates/"))
        .map(|(_, text)| text)
        .collect();
    let part = |c: char| c.is_ascii_alphanumeric() || c == '.';
    let used = text.split(".Values.").skip(1);
    let used: BTreeSet<&str> = used
        .map(|rest| rest.split(|c| !part(c)).next().unwrap())
        .collect();
    let mut unused = Vec::new();
    unmentioned("", &json!(Values::default()), &used, &mut unused);
    assert_eq!(unused, Vec::<String>::new());
}

/// Values that no template names, neither them nor a mapping that they are in.
fn unmentioned(path: &str, value: &Value, used: &BTreeSet<&str>, unused: &mut Vec<String>) {
    match value {
        _ if used.contains(path) => {}
        Value::Object(fields) if !fields.is_empty() => {
            for (name, field) in fields {
                let path = format!("{path}.{name}");
                unmentioned(path.trim_start_matches('.'), field, used, unused);
            }
        }
        _ => unused.push(path.into()),
    }
}

fn write(chart: &Path, files: &Files) {
    for file in templates_in(chart) {
        std::fs::remove_file(file).unwrap();
    }
    for (name, text) in files {
        let file = chart.join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }
}

/// Lists the generated templates. NOTES.txt is written by hand: it is neither YAML nor a helper.
fn templates_in(chart: &Path) -> Vec<PathBuf> {
    let listed = std::fs::read_dir(chart.join("templates"))
        .into_iter()
        .flatten();
    let files = listed.map(|file| file.unwrap().path());
    files
        .filter(|file| file.extension().is_some_and(|e| e != "txt"))
        .collect()
}

fn kinds() -> Files {
    let about =
        "Definitions of the kinds of the Tulle service mesh, and of the Service Mesh Interface's";
    let mut files = Files::from([
        ("Chart.yaml".into(), description("tulle-crds", about)),
        (
            "values.yaml".into(),
            "{} # there is nothing to choose\n".into(),
        ),
    ]);
    for definition in made::objects() {
        let name = definition["metadata"]["name"].as_str().unwrap();
        files.insert(
            format!("templates/{name}.yaml"),
            Chart::default().file(&definition),
        );
    }
    files
}

fn mesh() -> Files {
    let about = "The controller of the Tulle service mesh; its kinds are the chart tulle-crds";
    let mut files = Files::from([
        ("Chart.yaml".into(), description("tulle", about)),
        ("values.yaml".into(), values()),
        ("values.schema.json".into(), format!("{:#}\n", schema())),
    ]);
    let mut chart = Chart::default();
    for template in [super::templates(), hook::templates()].concat() {
        let (kind, name) = what(&template);
        let place = format!("templates/{}-{name}.yaml", kind.to_lowercase());
        let clash = files.insert(place, chart.file(&template));
        assert_eq!(clash, None, "two objects are {kind} {name}");
    }
    files.insert("templates/_helpers.tpl".into(), chart.helpers());
    files
}

/// Kind and name of the object, whatever it depends on.
fn what(template: &Value) -> (String, String) {
    match OpenValue::from_template(template) {
        Some(OpenValue::If(_, then, _) | OpenValue::EachNamespace(_, then)) => what(&then),
        _ => {
            let text = |pointer| template.pointer(pointer).and_then(Value::as_str).unwrap();
            (text("/kind").into(), text("/metadata/name").into())
        }
    }
}

fn description(name: &str, about: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    // The oldest that `tulle check --pre` takes, with sidecars as ordinary containers.
    format!(
        "apiVersion: v2\nname: {name}\ndescription: {about}\ntype: application\nversion: {version}\n\
         appVersion: \"{version}\"\nkubeVersion: \">=1.24.0-0\"\n"
    )
}

/// The schema of values, as Helm takes it.
fn schema_of_values() -> Value {
    let mut settings = SchemaSettings::draft07();
    settings.inline_subschemas = true;
    let schema = settings.into_generator().into_root_schema_for::<Values>();
    let mut schema = schema.to_value();
    let mesh = schema.pointer_mut("/properties/mesh/properties");
    if let Some(Value::Object(fields)) = mesh {
        // The trust domain has one place only, above.
        fields.remove("trustDomain");
    }
    schema
}

/// Helm drops null values and judges the rest. So every value with a default must be present.
fn schema() -> Value {
    let mut schema = schema_of_values();
    let defaults = json!(Values::default());
    require(&mut schema, &defaults, &["mesh"]);
    // A chart that contains this one passes on its `global` values.
    schema["properties"]["global"] = json!({ "type": "object" });
    schema
}

fn require(schema: &mut Value, defaults: &Value, but: &[&str]) {
    let Value::Object(defaults) = defaults else {
        return;
    };
    let Some(Value::Object(properties)) = schema.get_mut("properties") else {
        return; // as Kubernetes has it
    };
    for (name, property) in properties.iter_mut() {
        if !but.contains(&name.as_str()) {
            require(property, &defaults[name], &[]);
        }
    }
    let names: Vec<&String> = properties.keys().collect();
    schema["required"] = json!(names);
}

/// Returns the defaults with the comments of their types.
fn values() -> String {
    let mut text = String::from("# Values of the chart, and of `tulle install --values`.\n");
    commented(&json!(Values::default()), &schema_of_values(), 0, &mut text);
    text
}

fn commented(defaults: &Value, schema: &Value, indent: usize, text: &mut String) {
    let margin = " ".repeat(indent);
    for (name, default) in defaults.as_object().unwrap() {
        let schema = &schema["properties"][name];
        if indent == 0 {
            text.push('\n');
        }
        let about = schema["description"].as_str().unwrap_or_default();
        for line in wrapped(about, 100 - indent) {
            text.push_str(&format!("{margin}# {line}\n"));
        }
        let has_names = schema.get("properties").is_some() && name != "mesh";
        match default {
            Value::Object(fields) if has_names && !fields.is_empty() => {
                text.push_str(&format!("{margin}{name}:\n"));
                commented(default, schema, indent + 2, text);
            }
            _ => {
                let mut chart = Chart::default();
                chart.entry(&format!("{margin}{name}:"), default, indent);
                text.push_str(&chart.text);
            }
        }
    }
}

fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && line.len() + 1 + word.len() > width {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    if !line.is_empty() {
        lines.push(line);
    }
    lines
}

/// YAML with Helm's expressions.
#[derive(Default)]
struct Chart {
    text: String,
    /// Templates that are text somewhere, by their names.
    named: BTreeMap<String, Value>,
}

impl Chart {
    /// The file of one object.
    fn file(&mut self, template: &Value) -> String {
        match OpenValue::from_template(template) {
            Some(OpenValue::If(condition, then, None)) => {
                self.line("", &format!("{{{{- if {} }}}}", expression(&condition)));
                self.mapping(then.as_object().unwrap(), 0);
                self.line("", "{{- end }}");
            }
            Some(OpenValue::EachNamespace(path, each)) => {
                let all = format!("prepend .Values.{path} .Release.Namespace | uniq");
                self.line("", &format!("{{{{- range $namespace := {all} }}}}"));
                let begun = self.text.len();
                self.line("", "---");
                self.mapping(each.as_object().unwrap(), 0);
                // In there the dot is the namespace.
                let within = self.text.split_off(begun);
                let within = within.replace("{{ .Release.", "{{ $.Release.");
                self.text.push_str(&within);
                self.line("", "{{- end }}");
            }
            _ => self.mapping(template.as_object().unwrap(), 0),
        }
        std::mem::take(&mut self.text)
    }

    fn helpers(&mut self) -> String {
        for (name, template) in self.named.clone() {
            self.line(
                "",
                &format!("{{{{- define {} -}}}}", quoted(&helper(&name))),
            );
            self.mapping(template.as_object().unwrap(), 0);
            self.line("", "{{- end }}");
        }
        std::mem::take(&mut self.text)
    }

    fn line(&mut self, before: &str, text: &str) {
        self.text.push_str(before);
        self.text.push_str(text);
        self.text.push('\n');
    }

    fn mapping(&mut self, fields: &Map<String, Value>, indent: usize) {
        let margin = " ".repeat(indent);
        for (key, value) in fields {
            match OpenValue::from_template(value) {
                Some(OpenValue::Value(path)) if key == SPREAD => {
                    let own = fields.keys().filter(|key| *key != SPREAD);
                    let own: Vec<String> = own.map(|key| quoted(key)).collect();
                    let own = own.join(" ");
                    self.line(
                        "",
                        &format!("{{{{- range $key, $value := omit .Values.{path} {own} }}}}"),
                    );
                    self.line(&margin, "{{ toJson $key }}: {{ toJson $value }}");
                    self.line("", "{{- end }}");
                }
                _ => self.entry(&format!("{margin}{}:", scalar(key)), value, indent),
            }
        }
    }

    /// A value behind its key or dash.
    fn entry(&mut self, before: &str, value: &Value, indent: usize) {
        if let Some(place) = OpenValue::from_template(value) {
            return self.place(before, place, indent);
        }
        match value {
            Value::Object(fields) if !fields.is_empty() => {
                self.line(before, "");
                self.mapping(fields, indent + 2);
            }
            Value::Array(items) if !items.is_empty() => {
                self.line(before, "");
                let margin = " ".repeat(indent + 2);
                for item in items {
                    self.item(&format!("{margin}-"), item, indent + 2);
                }
            }
            Value::String(text) => self.line(before, &format!(" {}", scalar(text))),
            other => self.line(before, &format!(" {other}")),
        }
    }

    /// A mapping begins behind its dash.
    fn item(&mut self, before: &str, item: &Value, indent: usize) {
        if let Some(OpenValue::If(condition, then, otherwise)) = OpenValue::from_template(item) {
            self.line("", &format!("{{{{- if {} }}}}", expression(&condition)));
            self.item(before, &then, indent);
            if let Some(otherwise) = otherwise {
                self.line("", "{{- else }}");
                self.item(before, &otherwise, indent);
            }
            return self.line("", "{{- end }}");
        }
        let at = self.text.len();
        self.entry(before, item, indent);
        let is_mapping = item.as_object().is_some_and(|fields| !fields.is_empty());
        if is_mapping && OpenValue::from_template(item).is_none() {
            let first = self.text.split_off(at);
            let rest = first.split_once('\n').unwrap().1;
            let rest = rest.strip_prefix(&" ".repeat(indent + 2));
            let rest = rest.expect("the first key of an item is always there");
            self.text.push_str(&format!("{before} {rest}"));
        }
    }

    fn place(&mut self, before: &str, place: OpenValue, indent: usize) {
        match place {
            OpenValue::If(condition, then, otherwise) => {
                self.line("", &format!("{{{{- if {} }}}}", expression(&condition)));
                self.entry(before, &then, indent);
                if let Some(otherwise) = otherwise {
                    self.line("", "{{- else }}");
                    self.entry(before, &otherwise, indent);
                }
                self.line("", "{{- end }}");
            }
            OpenValue::Value(path) => {
                self.line(before, &format!(" {{{{ toJson .Values.{path} }}}}"))
            }
            OpenValue::Json(name, template) => {
                let text = format!(
                    "include {} . | fromYaml | toRawJson",
                    quoted(&helper(&name))
                );
                self.line(before, &format!(" {{{{ {text} | toJson }}}}"));
                self.named.insert(name, template);
            }
            OpenValue::Digest(name, template) => {
                let text = format!(
                    "include {} . | fromYaml | toRawJson",
                    quoted(&helper(&name))
                );
                self.line(before, &format!(" {{{{ {text} | sha256sum }}}}"));
                self.named.insert(name, template);
            }
            text => {
                let inline = inline(&text.open());
                self.line(before, &format!(" \"{inline}\""));
            }
        }
    }
}

/// Part of a text. The schema lets in neither quotes nor backslashes here.
fn inline(part: &Value) -> String {
    match (OpenValue::from_template(part), part) {
        (Some(OpenValue::Namespace), _) => "{{ .Release.Namespace }}".into(),
        (Some(OpenValue::Item), _) => "{{ $namespace }}".into(),
        (Some(OpenValue::Version), _) => "{{ .Chart.AppVersion }}".into(),
        (Some(OpenValue::Value(path)), _) => format!("{{{{ .Values.{path} }}}}"),
        (Some(OpenValue::Text(parts)), _) => parts.iter().map(inline).collect(),
        (Some(OpenValue::If(condition, then, Some(otherwise))), _) => format!(
            "{{{{ if {} }}}}{}{{{{ else }}}}{}{{{{ end }}}}",
            expression(&condition),
            inline(&then),
            inline(&otherwise)
        ),
        (None, Value::String(text)) => text.clone(),
        other => panic!("no part of a text: {other:?}"),
    }
}

fn expression(condition: &Condition) -> String {
    let all = |conditions: &[Condition]| {
        let each: Vec<String> = conditions.iter().map(expression).collect();
        each.join(" ")
    };
    match condition {
        Condition::Set(path) => format!(".Values.{path}"),
        Condition::Several(path) => format!("(gt (int .Values.{path}) 1)"),
        Condition::Any(conditions) => format!("(or {})", all(conditions)),
        Condition::All(conditions) => format!("(and {})", all(conditions)),
        Condition::Not(condition) => format!("(not {})", expression(condition)),
        Condition::Present(place) => {
            let words = [
                &place.api_version,
                &place.kind,
                &place.namespace,
                &place.name,
            ];
            let words = words.map(|word| quoted(word)).join(" ");
            format!("(lookup {words})")
        }
    }
}

fn helper(name: &str) -> String {
    format!("tulle.{name}")
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A text as YAML that is not taken for anything else, and never for Helm's.
fn scalar(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    let taken = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let is_plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(plain)
        && !taken.contains(&text.to_lowercase().as_str());
    match is_plain {
        true => text.into(),
        false => quoted(text).replace("{{", "{{ \"{{\" }}"),
    }
}

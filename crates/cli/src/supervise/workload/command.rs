//! The commands of a workload's application, the program itself and its probes: the user, the variables and the directory that it gets.

use crate::supervise::context::{Context, Variables};
use crate::supervise::user::{self, Account, Data, Names};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use tulle_model::manifest::WorkloadSpec;
use tulle_redirect::LaunchSpec;

/// Makes the commands of an application: the program itself, and its probes.
pub(super) struct Starter {
    pub(super) context: Rc<Context>,
    pub(super) name: String,
    pub(super) namespace: Option<String>,
    pub(super) spec: WorkloadSpec,
    pub(super) upstreams: BTreeMap<String, String>,
}

impl Starter {
    pub(super) fn command(&self) -> std::result::Result<tokio::process::Command, String> {
        let Self { context, spec, .. } = self;
        let (program, arguments) = spec
            .command
            .split_first()
            .ok_or_else(|| "there is no command".to_owned())?;
        let account = user::account(context, &self.name, spec.user.as_deref());
        let account = account.map_err(|f| f.to_string())?;
        let data = user::data(context, &self.name, account.as_ref()).map_err(|f| f.to_string())?;
        let names = user::names(context, &self.name, account.as_ref(), &data);
        let names = names.map_err(|f| f.to_string())?;
        let log = context.paths.log(&self.name);
        let launch = self.launch(account.as_ref(), &data, names);
        let variables = self.variables(account.as_ref(), &data.seen);
        let mut command = context.application_command(
            &launch,
            Path::new(program),
            &log,
            &spec.pass_env,
            variables,
        )?;
        if let Some(account) = &account {
            let given = user::give_log(&log, account);
            given.map_err(|e| format!("cannot give {} away: {e}", log.display()))?;
        }
        command.args(arguments);
        if let Some(directory) = &spec.working_directory {
            let directory = PathBuf::from(directory);
            if !directory.is_dir() {
                return Err(format!(
                    "its working directory {} does not exist",
                    directory.display()
                ));
            }
            command.current_dir(directory);
        }
        Ok(command)
    }

    /// Its variables beyond those that are passed on from the supervisor's environment.
    fn variables(&self, account: Option<&Account>, data: &Path) -> Variables {
        let mut variables = Variables::new();
        if let Some(account) = account {
            settle_in(&mut variables, &self.name, account, data);
        }
        variables.insert("STATE_DIRECTORY".into(), data.into());
        for (name, value) in &self.upstreams {
            variables.insert(name.into(), value.into());
        }
        for variable in &self.spec.env {
            let value = expand(&variable.value, &self.upstreams);
            variables.insert(variable.name.as_str().into(), value.into());
        }
        variables
    }

    fn launch(&self, account: Option<&Account>, data: &Data, names: Names) -> LaunchSpec {
        let paths = &self.context.paths;
        let namespaced = self.namespace.is_some();
        LaunchSpec {
            namespace: self.namespace.clone(),
            hosts: namespaced.then(|| paths.hosts()),
            resolv_conf: namespaced.then(|| paths.resolv_conf()),
            passwd: names.passwd,
            group: names.group,
            directory: (data.seen != data.directory)
                .then(|| (data.directory.clone(), data.seen.clone())),
            user: account.filter(|a| !a.is_root()).map(|a| a.ids),
            bind_low_ports: namespaced,
            ..LaunchSpec::default()
        }
    }
}

/// Sets the variables that describe the user to this account's.
fn settle_in(variables: &mut Variables, workload: &str, account: &Account, data: &Path) {
    if account.is_root() {
        return;
    }
    let own = (workload, data.to_owned());
    let (name, home) = account
        .known
        .as_ref()
        .map_or(own, |(n, h)| (n.as_str(), h.clone()));
    variables.insert("HOME".into(), home.into());
    for variable in ["USER", "LOGNAME"] {
        variables.insert(variable.into(), name.into());
    }
}

/// Replaces `$(NAME)` by the upstream's address; `$$` stands for one `$`. What is not known stays.
fn expand(text: &str, variables: &BTreeMap<String, String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        if let Some(after) = from.strip_prefix("$$") {
            out.push('$');
            rest = after;
            continue;
        }
        let known = from
            .strip_prefix("$(")
            .and_then(|t| t.split_once(')'))
            .and_then(|(name, after)| Some((variables.get(name)?, after)));
        match known {
            Some((value, after)) => {
                out.push_str(value);
                rest = after;
            }
            None => {
                out.push('$');
                rest = from.get(1..).unwrap_or_default();
            }
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_replaced_and_unknown_ones_stay() {
        let variables = BTreeMap::from([("RATINGS".to_owned(), "127.0.0.1:7".to_owned())]);
        let expand = |text| super::expand(text, &variables);
        assert_eq!(expand("http://$(RATINGS)/x"), "http://127.0.0.1:7/x");
        assert_eq!(
            expand("$(NONE) $ $$(RATINGS) $("),
            "$(NONE) $ $(RATINGS) $("
        );
        assert_eq!(expand(""), "");
    }
}

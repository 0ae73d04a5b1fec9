//! Holds the examples that end each command's help. A test parses every line.

/// `tulle`
pub(crate) const ALL: &str = "\
Examples:
  tulle up mesh.yaml --detach      start a mesh
  tulle status                     show who talks to whom, with which identity
  tulle why productpage reviews    explain whether it may call, and show the last failure
  tulle down                       stop it and leave nothing behind

Exit codes: 0 done, or allowed; 1 failed, or denied; 64 wrong command line; 65 wrong manifest;
79 something was found: by `check` and `apply --dry-run` a problem, by `prove` a statement that does
not hold, by `harden` what would be refused, by `import` a loss, by `plugin test` a failure, and by
`bench` a budget exceeded.";

/// `tulle up`
pub(crate) const UP: &str = "\
Examples:
  tulle up mesh.yaml               run until Ctrl-C
  tulle up mesh.yaml --detach      return when every service answers
  tulle up mesh.yaml --verify      first prove on screen that every hop is mutual TLS
  tulle up mesh.yaml --for 30s     stop after 30 seconds
  tulle up                         start the objects stored before";

/// `tulle down`
pub(crate) const DOWN: &str = "\
Examples:
  tulle down                       let requests in flight complete
  tulle down --timeout 0s          stop at once
  tulle down --purge               also remove CA, objects and logs";

/// `tulle status`
pub(crate) const STATUS: &str = "\
Examples:
  tulle status ratings reviews     show only these and their traffic
  tulle status --problems          show only problems
  tulle status -o wide             also show identities, processes and addresses
  tulle status --watch             repeat every second
  tulle status -o json             for programs; docs/cli.md lists the fields";

/// `tulle restart`
pub(crate) const RESTART: &str = "\
Examples:
  tulle restart ratings            wait until it answers again
  tulle restart reviews            restart a service's workloads one after another";

/// `tulle service install`
pub(crate) const SERVICE_INSTALL: &str = "\
Examples:
  tulle service install /etc/tulle/mesh.yaml --now
  tulle service install /etc/tulle/mesh.yaml --dry-run     print the unit
  tulle service install mesh.yaml --loopback --log-file /var/log/tulle.log";

/// `tulle service join`
pub(crate) const SERVICE_JOIN: &str = "\
Examples, with what `tulle token create` printed on the controller's host:
  TULLE_TOKEN=… tulle service join --controller 192.0.2.10:15010 --ca-fingerprint … /etc/tulle/workloads.yaml --now
  tulle service join --controller 192.0.2.10:15010 --ca-fingerprint … /etc/tulle/workloads.yaml --dry-run";

/// `tulle service`
pub(crate) const SERVICE: &str = "\
Examples:
  tulle service status -o json
  tulle service reload             as `systemctl reload tulle` does
  tulle service upgrade            after new programs were installed
  tulle service uninstall          the CA and stored objects stay";

/// `tulle secret tls`
pub(crate) const SECRET: &str = "\
Examples:
  tulle secret tls shop --cert shop.pem --key shop.key
  tulle secret tls shop --cert shop.pem --key shop.key -o yaml > shop.yaml";

/// `tulle apply`
pub(crate) const APPLY: &str = "\
Examples:
  tulle apply policies.yaml
  tulle apply -f a.yaml -f b.yaml  store all objects, or none
  tulle apply -                    read standard input";

/// `tulle get`
pub(crate) const GET: &str = "\
Examples:
  tulle get                        show everything
  tulle get workloads
  tulle get traffictarget ratings -o yaml";

/// `tulle install`
pub(crate) const INSTALL: &str = "\
Examples:
  tulle install --apply                                     wait, and say at once which image cannot be had
  tulle install | kubectl apply -f -
  tulle install --registry registry.example/tulle --apply
  tulle install --profile strict | kubectl apply -f -
  tulle install --crds-only > crds.yaml
  kubectl label namespace shop tulle.dev/inject=enabled     then restart its pods";

/// `tulle uninstall`
pub(crate) const UNINSTALL: &str = "\
Examples:
  tulle uninstall --dry-run        show what would be removed
  tulle uninstall                  ask first
  tulle uninstall --yes --crds";

/// `tulle namespace`
pub(crate) const NAMESPACE: &str = "\
Examples:
  tulle namespace add shop --restart
  tulle namespace list
  tulle namespace remove shop --restart";

/// `tulle harden`
pub(crate) const HARDEN: &str = "\
Examples:
  tulle harden --dry-run           show plaintext callers and traffic that leaves the mesh
  tulle harden                     make namespaces strict where no traffic would be refused
  tulle harden shop                make this one strict, even if that refuses traffic

Exit codes: 0 done; 79 something would be refused, so a namespace stays as it is.";

/// `tulle proxy`
pub(crate) const PROXY: &str = "\
Examples:
  tulle proxy list
  tulle proxy get errors ratings             on a host: a workload, gateway or service
  tulle proxy get config deploy/web -n shop
  tulle proxy get errors web-0 -n shop";

/// `tulle upgrade`
pub(crate) const UPGRADE: &str = "\
Examples:
  tulle upgrade --dry-run          show the changes
  tulle upgrade --apply            wait until the new controller runs
  tulle upgrade | kubectl apply -f -";

/// `tulle inject`
pub(crate) const INJECT: &str = "\
Examples:
  tulle inject app.yaml | kubectl apply -f -
  tulle inject --manual app.yaml   add the sidecar itself";

/// `tulle stat`
pub(crate) const STAT: &str = "\
Examples:
  tulle stat                       measure all workloads for ten seconds
  tulle stat gateway/ingress --window 30s
  tulle stat deploy/web -n shop --window 1m
  tulle stat --by service -o json";

/// `tulle edges`
pub(crate) const EDGES: &str = "\
Examples:
  tulle edges
  tulle edges -n shop -o json";

/// `tulle tap`
pub(crate) const TAP: &str = "\
Examples:
  tulle tap ratings                on a host: a workload, gateway or service
  tulle tap deploy/web -n shop
  tulle tap web-0 -n shop --path /api --count 10
  tulle tap svc/web -n shop -o json --for 30s";

/// `tulle top`
pub(crate) const TOP: &str = "\
Examples:
  tulle top deploy/web -n shop
  tulle top deploy/web -n shop --for 10s -o json";

/// `tulle dashboard`
pub(crate) const DASHBOARD: &str = "\
Examples:
  tulle dashboard                  open the mesh's own in a browser
  tulle dashboard --print-url      print a URL that opens one session, within a minute
  tulle dashboard grafana          forward a port to Grafana in the cluster
  tulle dashboard prometheus --port 9090
  tulle dashboard monitoring/grafana:http";

/// `tulle docs`
pub(crate) const DOCS: &str = "\
Examples:
  tulle docs                       open the first page in a browser
  tulle docs reasons               open the page of reason codes
  tulle docs --language zh         open them in Chinese
  tulle docs kubernetes/install --print-url";

/// `tulle metrics`
pub(crate) const METRICS: &str = "\
Examples:
  tulle metrics                    print the metrics of all proxies, for Prometheus
  tulle metrics --serve 127.0.0.1:9464
  tulle metrics disable batch --restart
  tulle metrics enable batch --restart";

/// `tulle support`
pub(crate) const SUPPORT: &str = "\
Examples:
  tulle support bug-report
  tulle support bug-report --file report.tar.gz --pods 10
  tulle support bug-report --context prod";

/// `tulle delete`
pub(crate) const DELETE: &str = "\
Examples:
  tulle delete traffictarget ratings
  tulle delete -f policies.yaml    delete every object in the file";

/// `tulle check`
pub(crate) const CHECK: &str = "\
Examples:
  tulle check                      before `up`: can a mesh run here? After: does every part work?
  tulle check -o json
  tulle check --fix --dry-run      show what would be fixed
  tulle check --fix                fix it

The exit code is 79 if a check failed, or if objects do not fit together; with --fix, if that is still so.";

/// `tulle why`
pub(crate) const WHY: &str = "\
Examples:
  tulle why gateway ratings
  tulle why ingress ratings /ratings/1 --method POST

The exit code is 0 if the call is allowed and 1 if it is denied.";

/// `tulle prove`
pub(crate) const PROVE: &str = "\
Examples:
  tulle prove \"only gateway reaches ratings\" \"no plaintext to anything\"
  tulle prove -f mesh.yaml -f policies.yaml --from statements.txt      without a mesh, as in CI

Statements:
  only A, B reach C          nobody reaches C              nobody outside namespace N reaches C
  A does not reach C:PORT    A reaches C with GET at /x    no plaintext to C
  only A leaves the mesh     A does not leave the mesh     C: a service, `namespace N` or `anything`

The exit code is 0 if all hold, and 79 if one does not or is not decided.";

/// `tulle learn`
pub(crate) const LEARN: &str = "\
Examples:
  tulle learn --for 10m > learned.yaml      policies for what is called meanwhile
  tulle learn --for 1h --audit              the same, only to watch at first
  tulle learn --for 24h --diff              what is allowed and was not used

Nothing is applied. Look at what is printed: a call that happens once a month was perhaps not seen.";

/// `tulle import`
pub(crate) const IMPORT: &str = "\
Examples:
  tulle import osm mesh-config.yaml policies/egress.yaml > tulle.yaml
  tulle import fsm - -o json                  what is on standard input, for programs
  tulle import istio --cluster --context prod > tulle.yaml

Nothing is applied. Exit code 79 says that something was lost; standard error names it, and what to do instead.";

/// `tulle exec`
pub(crate) const EXEC: &str = "\
Examples:
  tulle exec reviews -- curl -s http://ratings:8101/health
  tulle exec reviews -- sh          open a shell in its place

The exit code is the command's.";

/// `tulle logs`
pub(crate) const LOGS: &str = "\
Examples:
  tulle logs ratings --tail 20
  tulle logs ratings --sidecar --follow
  tulle logs controller";

/// `tulle join`
pub(crate) const JOIN: &str = "\
Examples, with what `tulle token create` printed on the controller's host:
  TULLE_TOKEN=… tulle join --controller 192.0.2.10:15010 --ca-fingerprint … workloads.yaml
  tulle join --controller 192.0.2.10:15010 --ca-fingerprint … workloads.yaml       later, without a token";

/// `tulle token create`
pub(crate) const TOKEN: &str = "\
Example:
  tulle token create node/edge-2 --ttl 10m";

/// `tulle ca`
pub(crate) const CA: &str = "\
Examples:
  tulle ca show
  tulle ca rotate
  tulle ca rotate --hold 24h       wait for sidecars that are cut off from the controller";

/// `tulle identity`
pub(crate) const IDENTITY: &str = "\
Examples:
  tulle identity revoke svc/reviews --reason stolen
  tulle identity revoke --serial 3f:9a:01
  tulle identity revoke --crl issuer.crl
  tulle identity list
  tulle identity allow svc/reviews";

/// `tulle plugin test`
pub(crate) const PLUGIN_TEST: &str = "\
Examples:
  tulle plugin test tenants.js -H x-tenant:red --path /old/a
  tulle plugin test mesh.yaml --name tenants --fetch 'prices:8107/of/red={}'
  tulle plugin test redact.js -X POST -d card=1234567812345678

The exit code is 65 if it does not compile, and 79 if it fails on this request.";

/// `tulle plugin bench`
pub(crate) const PLUGIN_BENCH: &str = "\
Examples:
  tulle plugin bench tenants.js -H x-tenant:red
  tulle plugin bench mesh.yaml --name tenants --times 100000 -o json

What a request costs in a sidecar is more than this: see `tulle bench pair --vs features`.";

/// `tulle completions`
pub(crate) const COMPLETIONS: &str = "\
Examples:
  tulle completions bash > /etc/bash_completion.d/tulle
  tulle completions zsh > ~/.zfunc/_tulle
  tulle completions fish > ~/.config/fish/completions/tulle.fish";

#[cfg(test)]
mod tests {
    use crate::args::Cli;
    use crate::args::internal::Internal;
    use clap::error::ErrorKind;
    use clap::{Args, Command, CommandFactory, Parser};
    use std::path::{Path, PathBuf};

    fn every(command: &Command, then: &mut impl FnMut(&Command)) {
        then(command);
        let shown = command.get_subcommands().filter(|c| !c.is_hide_set());
        shown.for_each(|c| every(c, then));
    }

    #[test]
    fn every_example_is_a_command_line_that_is_understood() {
        let mut seen = 0;
        every(&Cli::command(), &mut |command| {
            let help = command.get_after_help().map(ToString::to_string);
            for line in help.unwrap_or_default().lines() {
                let Some((_, line)) = line.strip_prefix("  ").and_then(|l| l.split_once("tulle "))
                else {
                    continue;
                };
                // The command ends where the remark, a redirection or another command begins.
                let ends = ["  ", " > ", " | "].iter().filter_map(|e| line.find(e));
                let end = ends.min().unwrap_or(line.len());
                let (words, _) = line.split_at(end);
                let mut words: Vec<&str> = words.split_whitespace().collect();
                if words.first() == Some(&"join") {
                    words.extend(["--token", "x"]);
                }
                let parsed = Cli::try_parse_from(["tulle"].iter().chain(&words));
                assert!(parsed.is_ok(), "{words:?}: {}", parsed.unwrap_err());
                seen += 1;
            }
        });
        assert!(seen > 25, "{seen}");
    }

    /// Splits a line of a page into its commands' words. A remark follows two spaces or a `#`.
    fn commands(line: &str) -> Vec<Vec<String>> {
        let mut all = vec![Vec::new()];
        let (mut word, mut quote, mut space) = (String::new(), None, true);
        for c in line.trim().chars().chain([' ']) {
            match (quote, c) {
                (Some(open), _) if c == open => quote = None,
                (Some(_), _) => word.push(c),
                (None, '\'' | '"') => quote = Some(c),
                // Marks what may be left out.
                (None, '[' | ']') => {}
                (None, ' ' | ';') => {
                    let next = std::mem::take(&mut word);
                    if next.starts_with('#') || (next.is_empty() && space) {
                        break;
                    }
                    let ends = ["|", "\\|", "&&"].contains(&&*next) || next.starts_with(['<', '>']);
                    if !ends && !next.is_empty() {
                        all.last_mut().unwrap().push(next);
                    }
                    if ends || c == ';' {
                        all.push(Vec::new());
                    }
                }
                (None, _) => word.push(c),
            }
            space = c == ' ' && quote.is_none();
        }
        all
    }

    /// Returns why the command is none, if `tulle` runs it. Code within a sentence may lack values.
    fn misread(words: &[String], sentence: bool) -> Option<String> {
        let at = words
            .iter()
            .position(|w| w == "tulle" || w.ends_with("release/tulle"))?;
        let (before, rest) = words.split_at(at);
        let starts = |w: &String| w == "$" || w == "sudo" || w.contains('=');
        let mut rest: Vec<&str> = rest.iter().skip(1).map(String::as_str).collect();
        let internal = |first: &&str| Internal::begins_with(first.as_ref());
        if rest.first().is_none_or(internal) || !before.iter().all(starts) {
            return None;
        }
        if rest[0] == "join" && !rest.iter().any(|w| w.starts_with("--token")) {
            rest.extend(["--token", "x"]);
        }
        let read = if rest[0] == "bench" {
            let lab = tulle_bench::Bench::augment_args(Command::new("bench"));
            lab.try_get_matches_from(&rest).map(drop)
        } else {
            Cli::try_parse_from(["tulle"].iter().chain(&rest)).map(drop)
        };
        let error = read.err()?;
        let unknown = [ErrorKind::UnknownArgument, ErrorKind::InvalidSubcommand];
        let wrong = match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => false,
            kind => !sentence || unknown.contains(&kind),
        };
        wrong.then(|| format!("{rest:?}: {error}"))
    }

    fn pages(below: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(below).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pages(&path, found);
            } else if path.extension().is_some_and(|e| e == "md") {
                found.push(path);
            }
        }
    }

    #[test]
    fn every_command_of_a_page_is_understood() {
        let top = Path::new("../..");
        let mut files = ["README.md", "CONTRIBUTING.md", "SECURITY.md"]
            .map(|f| top.join(f))
            .to_vec();
        for directory in ["docs", "demo", "deploy"] {
            pages(&top.join(directory), &mut files);
        }
        let (mut seen, mut wrong) = (0, Vec::new());
        for file in files {
            let text = std::fs::read_to_string(&file).unwrap();
            let text = text.replace("\\\n", " ");
            let mut look = |line: &str, sentence| {
                for words in commands(line) {
                    seen += usize::from(words.iter().any(|w| w == "tulle"));
                    let why = misread(&words, sentence);
                    wrong.extend(why.map(|why| format!("{}: {why}", file.display())));
                }
            };
            for (number, part) in text.split("```").enumerate() {
                if number % 2 == 1 {
                    part.lines().for_each(|line| look(line, false));
                } else {
                    let code = part.split('`').skip(1).step_by(2);
                    let code = code.filter(|c| c.starts_with("tulle "));
                    code.for_each(|c| look(&c.replace('\n', " "), true));
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(seen > 200, "{seen}");
    }

    /// The command line and the manual name the same commands and options.
    #[test]
    fn the_manual_has_every_command_and_option_and_no_other() {
        let manual = std::fs::read_to_string("../../docs/cli.md").unwrap();
        let mut options = Vec::new();
        let lab = tulle_bench::Bench::augment_args(Command::new("bench"));
        let mut look = |command: &Command| {
            let name = command.get_name();
            assert!(
                name == "tulle"
                    || manual.contains(&format!("tulle {name}"))
                    || manual.contains(&format!(" {name} ")),
                "docs/cli.md lacks the command {name}"
            );
            for option in command.get_arguments().filter_map(|a| a.get_long()) {
                let option = format!("--{option}");
                let hidden = command.get_arguments().any(|a| {
                    a.is_hide_set() && a.get_long().is_some_and(|l| option == format!("--{l}"))
                });
                if !hidden {
                    assert!(
                        manual.contains(&option),
                        "docs/cli.md lacks {option} of {name}"
                    );
                    options.push(option);
                }
            }
        };
        every(&Cli::command(), &mut look);
        every(&lab, &mut look);
        options.extend(["--help".into(), "--version".into()]);
        for word in manual.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')) {
            if word.starts_with("--") && word.len() > 2 && !word.starts_with("---") {
                assert!(options.iter().any(|o| o == word), "no command has {word}");
            }
        }
    }
}

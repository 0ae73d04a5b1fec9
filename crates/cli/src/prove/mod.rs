//! `tulle prove`: whether statements about who may call whom hold, whatever anybody sends.
//!
//! A statement is checked against what every sidecar is told, so it can be checked in the mesh that is up, and on manifests
//! alone before anything is applied.

mod covers;
mod reach;
mod samples;
mod server;
mod statement;
#[cfg(test)]
mod tests;
mod view;

pub(crate) use covers::is_below;

use crate::args::policies::Prove;
use crate::client::Objects;
use crate::failure::{Failure, OrFail, Result};
use crate::findings;
use crate::manifests;
use crate::output::{self, Mark, line, paint};
use reach::{Reach, Witness};
use serde::Serialize;
use server::Server;
use statement::{Callers, Claim, Destination, Party, Requests};
use std::process::ExitCode;
use tulle_model::identity::SpiffeId;
use view::Named;
pub(crate) use view::{Permission, View};

/// Proves statements about the mesh that is up; the exit code is 79 if one does not hold or is not decided.
pub(crate) async fn running(objects: &mut Objects, args: &Prove) -> Result<ExitCode> {
    let statements = statements(args)?;
    prove(&View::running(objects).await?, &statements, args)
}

/// The same of the mesh that manifests would make.
pub(crate) fn of_files(args: &Prove) -> Result<ExitCode> {
    let statements = statements(args)?;
    let manifests = manifests::read(&args.files)?;
    prove(&View::of_manifests(manifests.objects)?, &statements, args)
}

/// Whether a statement holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Holds,
    Fails,
    Undecided,
}

/// A statement with its verdict.
#[derive(Debug, Serialize)]
struct Proof {
    statement: String,
    verdict: Verdict,
    /// The reason; of a statement that fails a call that contradicts it.
    why: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    counterexample: Option<Counterexample>,
}

/// A call that a statement says is refused, and that gets in.
#[derive(Debug, Serialize)]
struct Counterexample {
    /// SPIFFE id, or `plaintext`.
    from: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    /// The workload or pod; empty: outside the mesh.
    to: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    /// Absent: opaque bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<String>,
    /// The rule that allows it.
    rule: String,
}

/// A statement as it was written, and what it claims.
struct Statement {
    text: String,
    claim: Claim,
}

fn statements(args: &Prove) -> Result<Vec<Statement>> {
    let mut all = Vec::new();
    for text in &args.statements {
        let claim = statement::parse(text);
        let claim = claim.map_err(|why| Failure::usage(format!("{text:?}: {why}")))?;
        all.push(Statement {
            text: text.clone(),
            claim,
        });
    }
    for file in &args.from {
        let text = std::fs::read_to_string(file);
        let text = text.or_fail(|| format!("cannot read {}", file.display()))?;
        for (number, text) in (1..).zip(text.lines()) {
            let text = text.split('#').next().unwrap_or_default().trim();
            if text.is_empty() {
                continue;
            }
            let place = || format!("{}:{number}: {text:?}", file.display());
            let claim = statement::parse(text);
            let claim = claim.map_err(|why| Failure::input(format!("{}: {why}", place())))?;
            all.push(Statement {
                text: text.to_owned(),
                claim,
            });
        }
    }
    if all.is_empty() {
        return Err(Failure::usage("there is no statement to prove")
            .fix("name one, such as `tulle prove \"only gateway reaches ratings\"`"));
    }
    Ok(all)
}

fn prove(view: &View, statements: &[Statement], args: &Prove) -> Result<ExitCode> {
    let proofs = statements.iter().map(|statement| {
        let proof = judge(view, statement);
        proof.map_err(|failure| failure.about(&statement.text))
    });
    let proofs: Vec<Proof> = proofs.collect::<Result<_>>()?;
    if !output::structured(&proofs, args.format.output)? {
        for proof in &proofs {
            show(proof);
        }
    }
    let all_hold = proofs.iter().all(|proof| proof.verdict == Verdict::Holds);
    Ok(findings::exit(!all_hold))
}

fn show(proof: &Proof) {
    let (sign, mark) = match proof.verdict {
        Verdict::Holds => ("√", Mark::Good),
        Verdict::Fails => ("×", Mark::Bad),
        Verdict::Undecided => ("‼", Mark::Doubtful),
    };
    line(&format!("{} {}", paint(sign, mark), proof.statement));
    line(&format!("  {}", proof.why));
}

fn judge(view: &View, statement: &Statement) -> Result<Proof> {
    let (verdict, why, counterexample) = match &statement.claim {
        Claim::Refused {
            callers,
            to,
            requests,
        } => refused(view, callers, to, requests)?,
        Claim::Allowed {
            callers,
            to,
            requests,
        } => allowed(view, callers, to, requests)?,
        Claim::Stays { callers } => stays(view, callers)?,
        Claim::Leaves { callers } => leaves(view, callers)?,
    };
    Ok(Proof {
        statement: statement.text.clone(),
        verdict,
        why,
        counterexample,
    })
}

type Judged = (Verdict, String, Option<Counterexample>);

/// A caller that is tried: an identity, or a client without one.
type Tried<'a> = Option<&'a SpiffeId>;

/// Whether somebody gets in who must not.
fn refused(
    view: &View,
    callers: &Callers,
    to: &Destination,
    requests: &Requests,
) -> Result<Judged> {
    let (named, are_meant) = meant(view, callers)?;
    let strangers = strangers(view);
    let mut undecided = None;
    let destinations = view.destinations(to)?;
    for (server, ports) in &destinations {
        let gate = view.gate(server)?;
        let mentioned = gate.named();
        let is_meant = |identity: &&SpiffeId| named.includes(identity) == are_meant;
        let mut tried: Vec<Tried<'_>> = Vec::new();
        if are_meant {
            tried.extend(
                view.identities
                    .iter()
                    .chain(&named.identities)
                    .filter(is_meant)
                    .map(Some),
            );
        } else {
            tried.extend(mentioned.iter().copied().filter(is_meant).map(Some));
            // To the rules of this sidecar everybody whom they do not name is alike.
            let others = view.identities.iter().chain(&strangers);
            let other = { others }.find(|id| !mentioned.contains(id) && is_meant(id));
            tried.extend(other.map(Some));
        }
        if named.plaintext == are_meant {
            tried.push(None);
        }
        tried.retain(|caller| !caller.is_some_and(|id| is_revoked(view, id)));
        for caller in tried {
            match gate.reach(caller, ports, requests) {
                Reach::Kept => {}
                Reach::In(witness) => {
                    let found = counterexample(caller, server, &witness, &strangers);
                    let why = tell(&found);
                    return Ok((Verdict::Fails, why, Some(found)));
                }
                Reach::Undecided(rule) => {
                    undecided = Some(format!(
                        "not decided: {rule} may let {} reach {} with a request that no rule denies; \
                         a simpler condition than a regular expression, or a rule that denies without one, decides it",
                        name(caller, &strangers),
                        server.name
                    ));
                }
            }
        }
    }
    if let Some(why) = undecided {
        return Ok((Verdict::Undecided, why, None));
    }
    Ok((
        Verdict::Holds,
        format!(
            "no request of theirs is let in; sidecars that were asked: {}, by the code that decides in them",
            destinations.len(),
        ),
        None,
    ))
}

/// Whether each caller gets in at one of the sidecars at least.
fn allowed(
    view: &View,
    callers: &[Party],
    to: &Destination,
    requests: &Requests,
) -> Result<Judged> {
    let destinations = view.destinations(to)?.into_iter();
    let gates = destinations.map(|(server, ports)| Ok((view.gate(server)?, ports)));
    let gates: Vec<_> = gates.collect::<Result<_>>()?;
    let named = view.callers(callers)?;
    let all = view.identities.iter().chain(&named.identities);
    let mut tried: Vec<Tried<'_>> = all.filter(|id| named.includes(id)).map(Some).collect();
    tried.sort_unstable();
    tried.dedup();
    if named.plaintext {
        tried.push(None);
    }
    for caller in tried {
        let is_refused = caller.is_some_and(|id| is_revoked(view, id));
        let mut reaches = gates
            .iter()
            .map(|(gate, ports)| gate.reach(caller, ports, requests));
        if is_refused || !reaches.any(|reach| matches!(reach, Reach::In(_))) {
            let why = format!("no request of {} is let in", name(caller, &[]));
            return Ok((Verdict::Fails, why, None));
        }
    }
    let why = "each of them has a request that is let in".to_owned();
    Ok((Verdict::Holds, why, None))
}

fn stays(view: &View, callers: &Callers) -> Result<Judged> {
    let (named, are_meant) = meant(view, callers)?;
    let strangers = strangers(view);
    let all = view
        .identities
        .iter()
        .chain(&named.identities)
        .chain(&strangers);
    for caller in all.filter(|id| named.includes(id) == are_meant) {
        if let Some(rule) = way_out(view, caller) {
            let found = Counterexample {
                from: name(Some(caller), &strangers),
                address: None,
                to: String::new(),
                port: None,
                request: None,
                rule,
            };
            let why = format!("{} may leave the mesh: {}", found.from, found.rule);
            return Ok((Verdict::Fails, why, Some(found)));
        }
    }
    let why = "no Egress lets any of them out, nor do the settings of the mesh".to_owned();
    Ok((Verdict::Holds, why, None))
}

fn leaves(view: &View, callers: &[Party]) -> Result<Judged> {
    let named = view.callers(callers)?;
    let all = view.identities.iter().chain(&named.identities);
    for caller in all.filter(|id| named.includes(id)) {
        if way_out(view, caller).is_none() {
            let why = format!("no Egress lets {caller} out, nor do the settings of the mesh");
            return Ok((Verdict::Fails, why, None));
        }
    }
    let why = "an Egress, or a setting of the mesh, lets each of them out".to_owned();
    Ok((Verdict::Holds, why, None))
}

/// The rule or setting that lets a caller out of the mesh.
fn way_out(view: &View, caller: &SpiffeId) -> Option<String> {
    if is_revoked(view, caller) {
        return None;
    }
    if view.settings.allow_egress && !view.settings.is_strict_for(caller) {
        return Some("allowEgress of the Mesh".to_owned());
    }
    let mut rules = view.egress.rules.iter();
    let rule = rules.find(|rule| rule.is_for(caller))?;
    Some(rule.name.clone())
}

/// The callers that are named, and whether these are meant, or all others.
fn meant(view: &View, callers: &Callers) -> Result<(Named, bool)> {
    Ok(match callers {
        Callers::These(parties) => (view.callers(parties)?, true),
        Callers::AllBut(parties) => (view.callers(parties)?, false),
    })
}

/// Identities that no object names: of a workload that somebody may add.
fn strangers(view: &View) -> Vec<SpiffeId> {
    let domain = &view.settings.trust_domain;
    let all = [
        domain.service_account("tulle-prove", "anybody-else"),
        domain.service("anybody-else"),
    ];
    all.into_iter().flatten().collect()
}

fn is_revoked(view: &View, identity: &SpiffeId) -> bool {
    view.settings.revoked.identities.contains(identity)
}

fn name(caller: Tried<'_>, strangers: &[SpiffeId]) -> String {
    match caller {
        None => Party::Plaintext.to_string(),
        Some(id) if strangers.contains(id) => "any other identity of the mesh".to_owned(),
        Some(id) => id.to_string(),
    }
}

fn counterexample(
    caller: Tried<'_>,
    server: &Server,
    witness: &Witness,
    strangers: &[SpiffeId],
) -> Counterexample {
    Counterexample {
        from: name(caller, strangers),
        address: witness.address.map(|address| address.to_string()),
        to: server.name.clone(),
        port: Some(witness.port),
        request: witness.request.clone(),
        rule: witness.allowed_by(),
    }
}

fn tell(found: &Counterexample) -> String {
    let from = match &found.address {
        Some(address) => format!("{} from {address}", found.from),
        None => found.from.clone(),
    };
    let port = match found.port {
        Some(0) => "a port that it does not declare".to_owned(),
        port => format!("port {}", port.unwrap_or_default()),
    };
    let request = found.request.as_deref().unwrap_or("opaque bytes");
    format!(
        "{from} may call {} on {port} with {request}: {} allows it",
        found.to, found.rule
    )
}

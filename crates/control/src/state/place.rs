//! Where workloads run, as those who started them report it.

use super::presence::placements;
use super::{Actor, MeshState, Refused};
use crate::index::{self, Edit, Placement};
use crate::store::{Space, Write};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use tulle_api::v1;

/// Ports and addresses one placement may have.
const MAX_PLACED: usize = 256;
/// Most bytes of a reporter's name.
const MAX_REPORTER: usize = 128;

/// The newest report of each workload: its reporter and its number. An older report arrives later
/// when its reporter gave up waiting for an answer. It must not undo a newer one.
#[derive(Default)]
pub(super) struct Newest(Mutex<BTreeMap<String, (String, u64)>>);

impl Newest {
    /// Notes a report; false if a newer one of the same reporter is known. Reports without a name
    /// are not numbered.
    fn hear(&self, report: &v1::Placement) -> bool {
        if report.reporter.is_empty() {
            return true;
        }
        let mut newest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((reporter, sequence)) = newest.get(&report.workload)
            && *reporter == report.reporter
            && report.sequence < *sequence
        {
            return false;
        }
        let this = (report.reporter.clone(), report.sequence);
        newest.insert(report.workload.clone(), this);
        true
    }

    pub(super) fn forget(&self, workload: &str) {
        let mut newest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        newest.remove(workload);
    }
}

impl MeshState {
    /// The host a workload was last reported on.
    pub(super) fn placed_on(&self, workload: &str) -> Result<Option<String>, Refused> {
        let placement = self.store.value(Space::Placements, workload)?;
        let placement = placement.and_then(|p| serde_json::from_slice::<Placement>(&p).ok());
        Ok(placement.map(|p| p.node))
    }

    /// Lists the workloads on hosts that joined, also those of a host that is away.
    pub(crate) fn hosted(&self) -> Result<Vec<v1::HostedWorkload>, Refused> {
        let stored = placements(&*self.store)?;
        let index = self.index();
        let workloads = &index.inputs().workloads;
        let hosted = stored.into_iter().filter(|p| !p.node.is_empty());
        let hosted = hosted.filter_map(|placed| {
            let spec = workloads.get(&placed.workload)?;
            let service = spec.service.as_ref().unwrap_or(&placed.workload).clone();
            let away = self.presence.is_away(&placed.node);
            Some(v1::HostedWorkload {
                service,
                endpoints: placed
                    .ports
                    .iter()
                    .map(|p| p.endpoint.to_string())
                    .collect(),
                ready: !placed.not_ready && !away,
                host_away: away,
                name: placed.workload,
                host: placed.node,
            })
        });
        Ok(hosted.collect())
    }

    /// Records where a workload runs, or that it no longer does.
    pub(crate) fn place(&self, actor: &Actor, given: v1::Placement) -> Result<(), Refused> {
        let workload = given.workload.clone();
        let placement = placement(actor, &given)?;
        let mut index = self.index();
        if !index.inputs().workloads.contains_key(&workload) {
            self.newest.forget(&workload);
            if placement.is_none() {
                return Ok(()); // deleted before it stopped
            }
            return Err(Refused::NotFound(format!(
                "Workload/{workload} does not exist: apply it before reporting where it runs"
            )));
        }
        if let Actor::Node(node) = actor {
            self.check_owner(node, &workload)?;
        }
        if !self.newest.hear(&given) {
            tracing::debug!(workload, "a report older than the latest one is ignored");
            return Ok(());
        }
        let (write, edit) = match placement {
            Some(placement) => (
                Write::PutValue {
                    space: Space::Placements,
                    key: workload,
                    value: serde_json::to_vec(&placement)
                        .map_err(|e| Refused::Failed(e.to_string()))?,
                },
                Edit::Place(placement),
            ),
            None => (
                Write::DeleteValue {
                    space: Space::Placements,
                    key: workload.clone(),
                },
                Edit::Unplace { workload },
            ),
        };
        self.store.commit(&[write])?;
        let away = match actor {
            Actor::Node(node) => self.presence.is_away(node),
            Actor::Operator => false,
        };
        // A report of a host without a session takes effect when the host is back.
        if !away {
            self.remember(&index, std::slice::from_ref(&edit), "");
            self.change(&mut index, [edit], false);
        }
        Ok(())
    }
}

/// Checks a reported placement; `None`: the workload is gone.
fn placement(actor: &Actor, given: &v1::Placement) -> Result<Option<Placement>, Refused> {
    let invalid = |what: String| {
        Refused::Invalid(format!(
            "the placement of Workload/{}: {what}",
            given.workload
        ))
    };
    if let Actor::Node(node) = actor
        && given.node != *node
    {
        return Err(Refused::NotAllowed(format!(
            "node {node} may report its own placements only, not those of {:?}",
            given.node
        )));
    }
    if given.ports.len() > MAX_PLACED || given.addresses.len() > MAX_PLACED {
        return Err(invalid(format!(
            "more than {MAX_PLACED} ports or addresses"
        )));
    }
    if given.reporter.len() > MAX_REPORTER {
        return Err(invalid(format!(
            "the reporter has more than {MAX_REPORTER} bytes"
        )));
    }
    if given.gone {
        return Ok(None);
    }
    let mut ports = Vec::with_capacity(given.ports.len());
    for port in &given.ports {
        let number = u16::try_from(port.port).ok().filter(|p| *p != 0);
        let number = number.ok_or_else(|| invalid(format!("{} is no port", port.port)))?;
        let address = |text: &str| {
            text.parse()
                .map_err(|_| invalid(format!("{text:?} is not an address as ip:port")))
        };
        ports.push(index::PlacedPort {
            port: number,
            endpoint: address(&port.endpoint)?,
            target: address(&port.target)?,
            mutual_tls: port.mutual_tls,
        });
    }
    let addresses = given.addresses.iter().map(|text| {
        text.parse()
            .map_err(|_| invalid(format!("{text:?} is not an IP address")))
    });
    let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
    Ok(Some(Placement {
        workload: given.workload.clone(),
        node: given.node.clone(),
        ports,
        addresses,
        not_ready: given.not_ready,
    }))
}

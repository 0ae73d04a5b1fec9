//! Where workloads run, as those who started them report it.

use super::{Actor, Refused, World};
use crate::index::{self, Edit, Placement};
use crate::store::{Space, Write};
use tulle_api::v1;

/// Ports and addresses one placement may have.
const MAX_PLACED: usize = 256;

impl World {
    /// The host a workload was last reported on.
    pub(super) fn placed_on(&self, workload: &str) -> Result<Option<String>, Refused> {
        let placement = self.store.value(Space::Placements, workload)?;
        let placement = placement.and_then(|p| serde_json::from_slice::<Placement>(&p).ok());
        Ok(placement.map(|p| p.node))
    }

    /// Records where a workload runs, or that it no longer does.
    pub(crate) fn place(&self, actor: &Actor, given: v1::Placement) -> Result<(), Refused> {
        let workload = given.workload.clone();
        let placement = placement(actor, given)?;
        let mut index = self.index();
        if !index.inputs().workloads.contains_key(&workload) {
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
        // What a host says without a session counts when it is back.
        if !away {
            self.change(&mut index, [edit], false);
        }
        Ok(())
    }
}

/// Checks a reported placement; `None`: the workload is gone.
fn placement(actor: &Actor, given: v1::Placement) -> Result<Option<Placement>, Refused> {
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
    if given.gone {
        return Ok(None);
    }
    if given.ports.len() > MAX_PLACED || given.addresses.len() > MAX_PLACED {
        return Err(invalid(format!(
            "more than {MAX_PLACED} ports or addresses"
        )));
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

//! Which endpoint of a destination gets the next request.

use crate::metrics::{Labels, Reporter, Series};
use crate::reason::{Failure, Reason};
use crate::snapshot::{Service, Snapshot};
use crate::upstream::{Upstream, UpstreamKey};
use crate::worker::Worker;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use tulle_model::resource::{Balancer, Protocol};

/// A destination with this worker's pools and counters.
pub struct Destination {
    /// The service.
    pub service: Arc<Service>,
    ports: Vec<Rc<Port>>,
}

/// A port of a destination.
pub struct Port {
    /// Service name.
    pub service: Arc<str>,
    /// Port number.
    pub number: u16,
    /// What it speaks.
    pub protocol: Protocol,
    /// Requests to it, as this proxy sees them.
    pub http: Rc<Series>,
    /// Opaque connections to it.
    pub tcp: Rc<Series>,
    endpoints: Vec<Rc<Upstream>>,
    least_request: bool,
    next: Cell<usize>,
}

impl Destination {
    /// Sets up the ports of a service.
    pub fn new(worker: &Worker, snapshot: &Snapshot, service: &Arc<Service>) -> Self {
        let ports = service.ports.iter().map(|port| {
            let endpoints: Vec<_> = port
                .endpoints
                .iter()
                .map(|endpoint| {
                    let identities = endpoint.mutual_tls.then(|| service.identities.clone());
                    worker.upstream(UpstreamKey {
                        address: endpoint.address,
                        identities,
                        speaks: port.protocol.into(),
                        beyond: None,
                    })
                })
                .collect();
            let labels = |tcp| Labels {
                reporter: Reporter::Source,
                source: Some(snapshot.identity.clone()),
                destination_service: service.name.clone(),
                destination: service.identities.first().cloned(),
                mutual_tls: port.endpoints.iter().all(|e| e.mutual_tls),
                tcp,
            };
            // Workers and proxies must not all begin with the same endpoint.
            let first = usize::try_from(worker.random()).unwrap_or_default();
            Rc::new(Port {
                service: service.name.clone(),
                number: port.port,
                protocol: port.protocol,
                http: worker.metrics.series(labels(false)),
                tcp: worker.metrics.series(labels(true)),
                next: Cell::new(first.checked_rem(endpoints.len()).unwrap_or_default()),
                endpoints,
                least_request: port
                    .traffic
                    .as_ref()
                    .is_some_and(|t| t.balancer == Balancer::LeastRequest),
            })
        });
        Self {
            service: service.clone(),
            ports: ports.collect(),
        }
    }

    /// A port by number.
    pub fn port(&self, number: u16) -> Option<&Rc<Port>> {
        self.ports.iter().find(|p| p.number == number)
    }
}

impl Port {
    /// How many endpoints there are.
    pub fn endpoint_count(&self) -> usize {
        self.endpoints.len()
    }

    /// The endpoint for the next request. Endpoints that could not be reached a moment ago are
    /// passed over while there are others.
    ///
    /// # Errors
    /// There is none.
    pub fn pick(&self, worker: &Worker) -> Result<&Rc<Upstream>, Failure> {
        match self.endpoints.as_slice() {
            [] => Err(Failure::new(
                Reason::NoEndpoint,
                format!(
                    "service {} has no endpoint for port {}",
                    self.service, self.number
                ),
            )),
            [only] => Ok(only),
            endpoints if self.least_request => Ok(least_of_two(endpoints, worker.random())),
            endpoints => Ok(self.round_robin(endpoints)),
        }
    }

    fn round_robin<'a>(&self, endpoints: &'a [Rc<Upstream>]) -> &'a Rc<Upstream> {
        let start = self.next.get();
        let count = endpoints.len();
        let index = (0..count)
            .map(|i| (start + i) % count)
            .find(|&i| !endpoints[i].is_down());
        let index = index.unwrap_or(start % count);
        self.next.set((index + 1) % count);
        &endpoints[index]
    }
}

/// The less busy of two random endpoints: close to the best choice at the price of two looks.
fn least_of_two(endpoints: &[Rc<Upstream>], random: u64) -> &Rc<Upstream> {
    let count = endpoints.len() as u64;
    // Two different indices, each below a usize length.
    let first = random % count;
    let second = (first + 1 + (random >> 32) % (count - 1)) % count;
    let (a, b) = (&endpoints[first as usize], &endpoints[second as usize]);
    match (a.is_down(), b.is_down()) {
        (true, false) => b,
        (false, true) => a,
        _ if b.active() < a.active() => b,
        _ => a,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::Speaks;

    fn endpoints(count: u16) -> Vec<Rc<Upstream>> {
        let key = |port| UpstreamKey {
            address: ([127, 0, 0, 1], port).into(),
            identities: None,
            speaks: Speaks::AsCame,
            beyond: None,
        };
        (1..=count)
            .map(|port| Rc::new(Upstream::new(key(port))))
            .collect()
    }

    #[test]
    fn two_choices_are_different_and_all_are_reached() {
        let endpoints = endpoints(3);
        let mut seen = [0; 3];
        let mut random = 1u64;
        for _ in 0..300 {
            random = random
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let chosen = least_of_two(&endpoints, random);
            seen[usize::from(chosen.key.address.port()) - 1] += 1;
        }
        assert!(seen.iter().all(|&n| n > 50), "{seen:?}");
    }
}

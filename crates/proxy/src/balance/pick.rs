//! Picks the endpoint of a port for the next request: in turn, by the rules of `choose`, or the one that served the client
//! before.

use super::affinity::{self, Namer};
use super::choose::{self, Chosen};
use super::{EndpointHint, Port};
use crate::context::WorkerContext;
use crate::telemetry::reason::{Failure, Reason};
use crate::upstream::{Lease, Upstream};
use std::net::SocketAddr;
use std::rc::Rc;
use tulle_model::resource::{Affinity, Traffic};

impl Port {
    /// Returns the endpoint a request prefers. `source` is the hash of the client's address.
    pub fn hint(&self, affinity: Option<&Affinity>, head: &[u8], source: u64) -> EndpointHint {
        let key = |t: &Traffic| choose::key(&t.balancer, head, source);
        EndpointHint {
            key: self.traffic().map_or(0, key),
            name: affinity.map_or(0, |a| affinity::of_request(a, head)),
        }
    }

    /// Picks the endpoint for the next request. Endpoints that are not healthy are passed over
    /// while there are others.
    ///
    /// # Errors
    /// There is no endpoint.
    pub fn pick(
        &self,
        context: &WorkerContext,
        hint: &EndpointHint,
        avoid: Option<SocketAddr>,
    ) -> Result<&Rc<Upstream>, Failure> {
        if let Some(chooser) = &self.chooser {
            chooser.note_asked();
        }
        match (self.endpoints.as_slice(), &self.chooser) {
            ([], _) => Err(self.no_endpoint()),
            ([only], _) => Ok(only),
            (endpoints, None) if hint.name == 0 => Ok(self.in_turn(context, endpoints, avoid)),
            (endpoints, _) => Ok(self.choose(context, endpoints, hint, avoid)),
        }
    }

    #[cold]
    fn no_endpoint(&self) -> Failure {
        let (service, number) = (&self.service, self.number);
        let mut text = format!("service {service} has no endpoint for port {number}");
        if self.traffic().is_some_and(|t| t.locality.is_some()) {
            text.push_str(
                " where this workload may look for one: on its node, or in regions of `failover`",
            );
        }
        Failure::new(Reason::NoEndpoint, text)
    }

    fn in_turn<'a>(
        &self,
        context: &WorkerContext,
        endpoints: &'a [Rc<Upstream>],
        avoid: Option<SocketAddr>,
    ) -> &'a Rc<Upstream> {
        let start = self.next.get();
        let count = endpoints.len();
        let wanted = |i: &usize| {
            let upstream = &endpoints[*i];
            !upstream.is_down() && avoid != Some(upstream.key.address)
        };
        let mut places = (0..count).map(|i| (start + i) % count);
        let index = places.find(wanted).unwrap_or_else(|| {
            let mut places = (0..count).map(|i| (start + i) % count);
            places
                .find(|i| !endpoints[*i].is_down())
                .unwrap_or_else(|| {
                    context.metrics.internal(|i| i.panics += 1);
                    start % count
                })
        });
        self.next.set((index + 1) % count);
        &endpoints[index]
    }

    fn choose<'a>(
        &self,
        context: &WorkerContext,
        endpoints: &'a [Rc<Upstream>],
        hint: &EndpointHint,
        avoid: Option<SocketAddr>,
    ) -> &'a Rc<Upstream> {
        let named = |name: &&u64| **name == hint.name;
        let stuck = (hint.name != 0)
            .then(|| self.names(context).iter().position(|n| named(&n)))
            .flatten();
        let chosen = match &self.chooser {
            Some(chooser) => {
                let random = || context.random();
                chooser.choose(endpoints, hint.key, stuck, avoid, random)
            }
            None => match stuck.filter(|place| !endpoints[*place].is_down()) {
                Some(place) => Chosen::Well(place),
                None => Chosen::InTurn,
            },
        };
        match chosen {
            Chosen::Well(place) => &endpoints[place],
            Chosen::InTurn => self.in_turn(context, endpoints, avoid),
            Chosen::Panic(place) => {
                context.metrics.internal(|i| i.panics += 1);
                &endpoints[place]
            }
        }
    }

    fn names(&self, context: &WorkerContext) -> &[u64] {
        self.names.get_or_init(|| {
            let namer = Namer::new(context, &self.service);
            let names = self.endpoints.iter().map(|u| namer.name(u.key.address));
            names.collect()
        })
    }

    /// Returns the field that tells a client who has served it, unless it knows already.
    pub fn name_for_client(
        &self,
        context: &WorkerContext,
        affinity: &Affinity,
        hint: &EndpointHint,
        lease: &Lease,
        secure: bool,
    ) -> Option<(String, String)> {
        let served = lease.upstream();
        let place = self.endpoints.iter().position(|u| Rc::ptr_eq(u, served))?;
        let name = *self.names(context).get(place)?;
        (name != hint.name).then(|| affinity::field(affinity, name, secure))
    }
}

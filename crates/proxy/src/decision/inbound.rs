//! Requests and connections to the application: who is it, and may it.

use super::between::Between;
use super::request::{Decision, RequestView, Target, judged};
use crate::balance::EndpointHint;
use crate::config::authz;
use crate::config::authz::{Caller, CallerPolicy, Denial};
use crate::config::inbound_rules::InboundRules;
use crate::config::snapshot::Inbound;
use crate::config::token_claims;
use crate::filter::ext_authz::Asker;
use crate::telemetry::metrics::{Labels, Reporter, RequestSeries};
use crate::telemetry::reason::{Failure, Reason};
use crate::upstream::{HttpVersion, Upstream, UpstreamKey};
use crate::worker::{Worker, WorkerConfig};
use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Instant, SystemTime};
use tulle_http1::Method;
use tulle_model::identity::SpiffeId;
use tulle_model::resource::Workload;
use tulle_net::clock;
use tulle_tls::{PeerCertificate, Session};

/// A connection to one port of the application.
pub struct InboundContext {
    port: u16,
    /// The peer's verified identity; `None`: plaintext from outside the mesh.
    peer: Option<SpiffeId>,
    /// Its certificate.
    certificate: Option<PeerCertificate>,
    /// Source address of its connection.
    client: Client,
    /// The client's address as text, if a load balancer has named it.
    forwarded_for: Option<Box<[u8]>>,
    /// Epoch of the certificates the connection was made with, and when the peer's expires.
    made_with: Option<(u64, SystemTime)>,
    forwarded_client_cert: Option<Box<[u8]>>,
    /// Whether the port is an egress gateway's.
    egress: bool,
    cached: RefCell<Option<Cached>>,
    /// The peer's workload, in its own words; `None`: it has not described it.
    peer_workload: RefCell<Option<Arc<Workload>>>,
}

/// Source of a connection.
#[derive(Clone, Copy)]
pub struct Client {
    /// The address: a load balancer's word counts for more than the connection's peer.
    pub address: Option<IpAddr>,
    /// Whether a load balancer has named it.
    pub named: bool,
}

/// State that is valid as long as the configuration is.
struct Cached {
    generation: u64,
    http: Rc<RequestSeries>,
    tcp: Rc<RequestSeries>,
    app: Option<Rc<Upstream>>,
    rules: Option<Arc<InboundRules>>,
    /// The rules of the policy for this peer; `None`: before the first configuration.
    caller_policy: Option<Rc<CallerPolicy>>,
    /// The peer's certificate was revoked: its connection is cut, and earlier requests are not
    /// answered either.
    revoked: bool,
}

impl Cached {
    /// Whether a rule of the policy reads the claims of tokens.
    fn reads_claims(&self) -> bool {
        let policy = self.caller_policy.as_ref();
        policy.is_some_and(|policy| policy.reads_claims())
    }
}

/// The failure before the first configuration.
#[cold]
fn unready() -> Failure {
    let text = "the controller has not sent what this sidecar serves";
    Failure::new(Reason::NotReady, text)
}

impl InboundContext {
    /// A connection to that port.
    pub fn new(
        config: &WorkerConfig,
        port: u16,
        client: Client,
        session: Option<&Session>,
    ) -> Self {
        let peer = session.map(|s| s.peer().clone());
        let made_with = session.map(|s| (s.epoch(), s.peer_not_after()));
        let forwarded = peer.as_ref().map(|peer| {
            let by = &config.snapshot.identity;
            format!("By={by};URI={peer}")
                .into_bytes()
                .into_boxed_slice()
        });
        let named = client.address.filter(|_| client.named);
        let cached = RefCell::default();
        let inbound = config.snapshot.inbound.as_ref();
        let egress = inbound.and_then(|i| i.port(port)).is_some_and(|p| p.egress);
        Self {
            port,
            egress,
            peer,
            certificate: session.map(Session::peer_certificate),
            client,
            forwarded_for: named.map(|a| a.to_string().into_bytes().into_boxed_slice()),
            made_with,
            forwarded_client_cert: forwarded,
            cached,
            peer_workload: RefCell::default(),
        }
    }

    /// Takes over how the peer describes its workload. Only counters are labelled by it.
    pub fn describe_peer(&self, description: &[u8]) {
        if let Some(workload) = Workload::from_wire(description) {
            self.peer_workload.replace(Some(Arc::new(workload)));
            self.cached.replace(None);
        }
    }

    /// Whether the port is an egress gateway's.
    pub fn is_egress(&self) -> bool {
        self.egress
    }

    /// Whether the peer has shown a certificate.
    pub fn is_mutual(&self) -> bool {
        self.peer.is_some()
    }

    /// See [`ConnectionContext::http_version`].
    pub fn http_version(&self, config: &WorkerConfig) -> HttpVersion {
        let inbound = config.snapshot.inbound.as_ref();
        let port = inbound.and_then(|i| i.port(self.port));
        port.map_or(HttpVersion::AsCame, |port| port.protocol.into())
    }

    /// See [`ConnectionContext::is_outdated`].
    pub fn is_outdated(&self, config: &WorkerConfig) -> bool {
        let epoch = config.snapshot.tls.as_ref().map(tulle_tls::Context::epoch);
        self.made_with
            .is_some_and(|(made, until)| Some(made) != epoch || until < clock::time_of_day())
    }

    /// Returns when the peer's certificate expires.
    pub fn peer_not_after(&self) -> Option<SystemTime> {
        self.made_with.map(|(_, until)| until)
    }

    /// See [`ConnectionContext::claim_headers`].
    pub fn claim_headers<'c>(&self, config: &'c WorkerConfig) -> &'c [String] {
        let inbound = config.snapshot.inbound.as_ref();
        let rules = inbound.and_then(|i| i.port(self.port)?.rules.as_ref());
        rules.map_or(&[], |rules| rules.claim_headers())
    }

    /// See [`ConnectionContext::forwarded_for`].
    pub fn forwarded_for(&self) -> Option<&[u8]> {
        self.forwarded_for.as_deref()
    }

    /// Returns the source address, or the client that a load balancer has named.
    pub fn client_address(&self) -> Option<IpAddr> {
        self.client.address
    }

    /// Returns the client, if a load balancer has named it.
    pub fn named(&self) -> Option<IpAddr> {
        self.client.address.filter(|_| self.client.named)
    }

    /// See [`ConnectionContext::forwarded_client_cert`].
    pub fn forwarded_client_cert(&self) -> Option<&[u8]> {
        self.forwarded_client_cert.as_deref()
    }

    /// Returns the port of the application that the client asked for.
    pub fn number(&self) -> u16 {
        self.port
    }

    /// Returns the peer's verified identity.
    pub fn peer(&self) -> Option<&SpiffeId> {
        self.peer.as_ref()
    }

    /// Returns the port as policies know it.
    pub fn policy_port(&self, config: &WorkerConfig) -> u16 {
        let inbound = config.snapshot.inbound.as_ref();
        inbound.map_or(self.port, |i| i.number(self.port))
    }

    fn peer_name(&self) -> Option<&str> {
        self.peer.as_ref().map(SpiffeId::as_str)
    }

    /// See [`ConnectionContext::decide`].
    ///
    /// # Errors
    /// The policy does not allow it, or the port is not served.
    pub fn decide(
        &self,
        worker: &Worker,
        config: &WorkerConfig,
        view: &RequestView<'_>,
    ) -> Result<Decision, Failure> {
        let request = judged(view);
        let (series, rules, reads_claims) = self.cached(worker, config, |c| {
            (c.http.clone(), c.rules.clone(), c.reads_claims())
        });
        let app = token_claims::judge(reads_claims, rules.as_deref(), &request, |request| {
            let app = self.allow(worker, config, Some(request))?;
            if view.head.method == Method::Connect {
                self.allow_tunnel(config, request, rules.as_deref())?;
            }
            Ok(app)
        })?;
        let filters = match rules {
            None => None,
            Some(rules) => rules
                .find(&request)
                .map_err(|why| Failure::new(Reason::Denied, why))?,
        };
        Ok(Decision {
            target: Target::App(app),
            series,
            timeout_ms: config.snapshot.mesh.request_timeout_ms,
            filters,
            retry: None,
            try_timeout_ms: 0,
            matched: 0,
            hint: EndpointHint::default(),
            affinity: None,
            rule: None,
        })
    }

    /// Whether the policy lets this peer in, with a request or with opaque bytes, and where the application is.
    ///
    /// # Errors
    /// It does not, or the port is not served.
    pub fn allow(
        &self,
        worker: &Worker,
        config: &WorkerConfig,
        request: Option<&authz::Request<'_>>,
    ) -> Result<Rc<Upstream>, Failure> {
        let Some(inbound) = &config.snapshot.inbound else {
            return Err(unready());
        };
        self.judge(worker, config, inbound, request)?;
        if request.is_none() {
            self.check_opaque(inbound)?;
        }
        self.cached(worker, config, |cached| cached.app.clone())
            .ok_or_else(|| {
                let text = format!("service {} has no port {}", inbound.service, self.port);
                Failure::new(Reason::NoPort, text)
            })
    }

    /// Whether the policy lets this peer send opaque bytes.
    pub fn takes_opaque(&self, worker: &Worker, config: &WorkerConfig) -> bool {
        let caller_policy = self.cached(worker, config, |c| c.caller_policy.clone());
        let judged = caller_policy.is_some_and(|v| v.judge(None).is_ok());
        let inbound = config.snapshot.inbound.as_ref();
        judged && inbound.is_some_and(|i| self.check_opaque(i).is_ok())
    }

    /// Checks a CONNECT more strictly, because nobody judges the bytes in the tunnel.
    #[cold]
    fn allow_tunnel(
        &self,
        config: &WorkerConfig,
        request: &authz::Request<'_>,
        rules: Option<&InboundRules>,
    ) -> Result<(), Failure> {
        let Some(inbound) = &config.snapshot.inbound else {
            return Ok(());
        };
        let judged = match rules.and_then(InboundRules::hidden_by_tunnel) {
            Some(name) => Err(Denial::Tunnel(name.into())),
            None => {
                let caller_policy = inbound.policy.caller_policy(&self.caller(config));
                caller_policy.judge_tunnel(request)
            }
        };
        judged.map_err(|refusal| self.denied(inbound, &refusal))
    }

    /// Refuses opaque bytes where they could evade the demands on requests.
    fn check_opaque(&self, inbound: &Inbound) -> Result<(), Failure> {
        let port = inbound.port(self.port);
        if port.is_some_and(|p| p.protocol.is_http()) {
            let text = format!(
                "port {} of service {} speaks HTTP, which is not carried unread",
                self.port, inbound.service
            );
            return Err(Failure::new(Reason::Denied, text));
        }
        match port.and_then(|p| p.rules.as_ref()) {
            Some(rules) if rules.authenticate() => {
                let text = format!(
                    "port {} of service {} has rules for requests ({}), which a connection of \
                     opaque bytes cannot meet",
                    self.port,
                    inbound.service,
                    rules.names()
                );
                Err(Failure::new(Reason::Denied, text))
            }
            _ => Ok(()),
        }
    }

    fn judge(
        &self,
        worker: &Worker,
        config: &WorkerConfig,
        inbound: &Inbound,
        request: Option<&authz::Request<'_>>,
    ) -> Result<(), Failure> {
        let (caller_policy, revoked) =
            self.cached(worker, config, |c| (c.caller_policy.clone(), c.revoked));
        let Some(caller_policy) = caller_policy else {
            return Err(unready());
        };
        if revoked {
            return Err(self.revoked());
        }
        for rule in caller_policy.audited(request) {
            worker.metrics.audited(rule);
        }
        let judged = caller_policy.judge(request);
        judged.map_err(|refusal| self.denied(inbound, &refusal))
    }

    /// Checks whether the policy lets this peer use the egress gateway, and returns its identity.
    /// Egress rules depend on identities, so a peer without one may go nowhere.
    ///
    /// # Errors
    /// It may not, or this port is no egress gateway any more.
    pub fn admits_connect(
        &self,
        worker: &Worker,
        config: &WorkerConfig,
        authority: &[u8],
        head: &[u8],
    ) -> Result<&SpiffeId, Failure> {
        let inbound = config.snapshot.inbound.as_ref();
        let gateway = inbound.filter(|i| i.port(self.port).is_some_and(|p| p.egress));
        let Some(inbound) = gateway else {
            let text = format!("port {} is no egress gateway", self.port);
            return Err(Failure::new(Reason::NoPort, text));
        };
        let parties = Between::inbound(self, config);
        let request = authz::Request::new(b"CONNECT", b"", authority, head).between(&parties);
        self.judge(worker, config, inbound, Some(&request))?;
        self.peer.as_ref().ok_or_else(|| {
            let text = "an egress gateway takes callers with a certificate of the mesh only";
            Failure::new(Reason::PlaintextRefused, text)
        })
    }

    /// Checks the limit of connections. Those that sidecars share are not counted, only the
    /// connections they carry: a request is not a connection.
    ///
    /// # Errors
    /// There are too many.
    pub fn admit(&self, config: &WorkerConfig) -> Result<(), Failure> {
        let inbound = config.snapshot.inbound.as_ref();
        let port = inbound.and_then(|i| i.port(self.port));
        let Some(limit) = port.and_then(|p| p.connections.as_ref()) else {
            return Ok(());
        };
        limit.take(Instant::now()).map_err(|wait| {
            let text = format!("too many new connections; the next one may come in {wait:?}");
            Failure::new(Reason::RateLimited, text)
        })
    }

    #[cold]
    fn revoked(&self) -> Failure {
        let who = self.peer_name().unwrap_or_default();
        let text = format!("the identity or certificate of {who} was revoked");
        Failure::new(Reason::Denied, text)
    }

    #[cold]
    fn denied(&self, inbound: &Inbound, refusal: &Denial) -> Failure {
        if *refusal == Denial::Plaintext {
            let text = "this port requires mutual TLS since the connection was made";
            return Failure::new(Reason::PlaintextRefused, text);
        }
        let who = match (self.peer_name(), self.client.address) {
            (Some(name), _) => name.to_owned(),
            (None, Some(address)) => format!("a client without a certificate at {address}"),
            (None, None) => "a client without a certificate".to_owned(),
        };
        let text = format!(
            "{who} may not call service {} on port {}: {}",
            inbound.service,
            self.port,
            refusal.explain(&inbound.policy),
        );
        Failure::new(Reason::Denied, text)
    }

    /// See [`ConnectionContext::asker`].
    pub fn asker(&self, own: String) -> Asker {
        Asker {
            identity: self.peer_name().map(str::to_owned),
            address: self.client.address,
            destination: own,
        }
    }

    fn caller(&self, config: &WorkerConfig) -> Caller<'_> {
        Caller {
            identity: self.peer.as_ref(),
            address: self.client.address,
            port: self.policy_port(config),
            strict: config.snapshot.mesh.strict_mtls,
            by_identity: true,
        }
    }

    /// See [`ConnectionContext::audited`].
    pub fn audited(
        &self,
        worker: &Worker,
        config: &WorkerConfig,
        view: &RequestView<'_>,
    ) -> String {
        let (caller_policy, rules) = self.cached(worker, config, |c| {
            (c.caller_policy.clone(), c.rules.clone())
        });
        let Some(caller_policy) = caller_policy else {
            return String::new();
        };
        let reads_claims = caller_policy.reads_claims();
        let named = token_claims::judge(reads_claims, rules.as_deref(), &judged(view), |request| {
            let names = caller_policy.audited(Some(request));
            Ok(names.map(|n| &**n).collect::<Vec<_>>().join(", "))
        });
        // A bad token is refused where the request is judged.
        named.unwrap_or_default()
    }

    /// See [`ConnectionContext::series`].
    pub fn series(&self, worker: &Worker, config: &WorkerConfig, tcp: bool) -> Rc<RequestSeries> {
        self.cached(worker, config, |c| {
            if tcp { c.tcp.clone() } else { c.http.clone() }
        })
    }

    fn cached<T>(
        &self,
        worker: &Worker,
        config: &WorkerConfig,
        take: impl FnOnce(&Cached) -> T,
    ) -> T {
        let mut cached = self.cached.borrow_mut();
        let fresh = cached
            .as_ref()
            .is_some_and(|c| c.generation == config.snapshot.generation);
        if !fresh {
            *cached = None;
        }
        take(cached.get_or_insert_with(|| self.look_up(worker, config)))
    }

    fn look_up(&self, worker: &Worker, config: &WorkerConfig) -> Cached {
        let snapshot = &config.snapshot;
        let inbound = snapshot.inbound.as_ref();
        // Before the first configuration the identity names the service, so that every request has
        // a label.
        let service: Arc<str> =
            inbound.map_or_else(|| snapshot.identity.name().into(), |i| i.service.clone());
        let labels = |tcp| Labels {
            reporter: Reporter::Destination,
            source: self.peer.clone(),
            source_workload: self.peer_workload.borrow().clone(),
            destination_service: service.clone(),
            destination: Some(snapshot.identity.clone()),
            destination_workload: snapshot.workload().cloned(),
            mutual_tls: self.peer.is_some(),
            tcp,
        };
        let http = worker.metrics.series(labels(false));
        let tcp = worker.metrics.series(labels(true));
        // Connections of a peer share one description.
        let shared = http.labels.source_workload.clone();
        if shared.is_some() {
            self.peer_workload.replace(shared);
        }
        let port = inbound.and_then(|i| i.port(self.port));
        Cached {
            generation: snapshot.generation,
            rules: port.and_then(|p| p.rules.clone()),
            revoked: self
                .certificate
                .as_ref()
                .is_some_and(|c| c.is_revoked(&snapshot.revoked)),
            caller_policy: inbound.map(|i| Rc::new(i.policy.caller_policy(&self.caller(config)))),
            http,
            tcp,
            app: port.filter(|p| !p.egress).map(|p| {
                let mut address = p.target;
                if address.port() == 0 {
                    address.set_port(self.port);
                }
                worker.upstream(UpstreamKey {
                    address,
                    identities: None,
                    http_version: p.protocol.into(),
                    external: None,
                    own: true,
                })
            }),
        }
    }
}

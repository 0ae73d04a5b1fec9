//! One gateway: a proxy on the host that listens for clients outside the mesh.

use super::context::Context;
use super::fixed_ports::{ADMIN, METRICS};
use super::listening::{Listening, NotListening};
use super::pace::{STEADY_PERIOD, STEADY_TRIES};
use super::ports::{Reserved, addresses};
use super::proxy::{Description, RunningProxy};
use super::{state, user};
use crate::failure::Result;
use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tulle_model::manifest::GatewaySpec;

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const RETRY: Duration = Duration::from_secs(2);

/// A gateway that is kept running.
pub(crate) struct RunningGateway {
    wanted: watch::Sender<Vec<SocketAddr>>,
    state: Rc<RefCell<state::Gateway>>,
    succeed: Rc<Notify>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl RunningGateway {
    /// Starts it, after an earlier one of the same name has ended.
    pub(crate) fn start(
        context: &Rc<Context>,
        name: &str,
        spec: &GatewaySpec,
        earlier: Option<JoinHandle<()>>,
    ) -> Self {
        let (wanted, follow) = watch::channel(addresses(spec));
        let state = Rc::new(RefCell::new(state::Gateway {
            name: name.to_owned(),
            listeners: addresses(spec),
            message: "waiting to start".into(),
            ..state::Gateway::default()
        }));
        let (stop, mut stopped) = watch::channel(false);
        let succeed = Rc::new(Notify::new());
        let unit = Unit {
            context: Rc::clone(context),
            name: name.to_owned(),
            listening: Rc::default(),
            succeed: Rc::clone(&succeed),
            state: Rc::clone(&state),
        };
        let task = tokio::task::spawn_local(async move {
            if let Some(earlier) = earlier {
                let _ = earlier.await;
            }
            let mut proxy = None;
            tokio::select! {
                () = unit.live(&mut proxy, follow) => {}
                _ = stopped.wait_for(|s| *s) => {}
            }
            if let Some(proxy) = proxy {
                unit.listening.close();
                proxy.stop().await;
            }
            user::give_back_sidecar(&unit.context, &proxy_name(&unit.name));
        });
        Self {
            wanted,
            state,
            succeed,
            stop,
            task,
        }
    }

    /// Has a new process of its proxy take over, which gets the clients of the old one that wait to be accepted. The old one ends when
    /// the new one is ready, and no sooner.
    pub(crate) fn succeed(&self) {
        self.succeed.notify_one();
    }

    /// Has it listen where the spec says from now on. Everything else of a spec reaches its proxy as
    /// configuration. Connections of listeners that stay notice nothing.
    pub(crate) fn listen_as(&self, spec: &GatewaySpec) {
        let addresses = addresses(spec);
        self.wanted.send_if_modified(|wanted| {
            let differs = *wanted != addresses;
            *wanted = addresses;
            differs
        });
    }

    /// Its present state.
    pub(crate) fn state(&self) -> state::Gateway {
        self.state.borrow().clone()
    }

    /// Asks it to end; the task ends when it has.
    pub(crate) fn stop(self) -> JoinHandle<()> {
        let _ = self.stop.send(true);
        self.task
    }
}

/// A workload may have the gateway's name; that has no dot in it.
pub(super) fn proxy_name(gateway: &str) -> String {
    format!("gateway.{gateway}")
}

struct Unit {
    context: Rc<Context>,
    name: String,
    listening: Rc<Listening>,
    state: Rc<RefCell<state::Gateway>>,
    /// Another process is to take over.
    succeed: Rc<Notify>,
}

impl Unit {
    async fn live(
        &self,
        proxy: &mut Option<RunningProxy>,
        mut wanted: watch::Receiver<Vec<SocketAddr>>,
    ) {
        let proxy = loop {
            match self.start_proxy() {
                Ok(started) => break proxy.insert(started),
                Err(failure) => {
                    self.update(|s| s.message = failure.to_string());
                    sleep(RETRY).await;
                }
            }
        };
        let mut good = 0_u32;
        loop {
            let addresses = wanted.borrow_and_update().clone();
            let answer = self.serve(proxy, &addresses).await;
            good = if answer.is_ok() {
                good.saturating_add(1)
            } else {
                0
            };
            let pause = match good {
                0 => Duration::from_millis(100),
                1..STEADY_TRIES => Duration::from_secs(1),
                STEADY_TRIES.. => STEADY_PERIOD,
            };
            self.update(|s| {
                s.proxy = proxy.state(answer.is_ok());
                s.listeners = addresses;
                s.message = answer.err().unwrap_or_default();
            });
            tokio::select! {
                () = sleep(pause) => {}
                // An error means that the gateway is about to be stopped.
                _ = wanted.changed() => {}
                () = self.listening.renewed() => {}
                () = self.succeed.notified() => {
                    tracing::info!(gateway = self.name, "a new process takes over");
                    proxy.succeed();
                }
            }
        }
    }

    /// Has the proxy listen, as soon as it is ready if another one serves until then. Returns why it does not serve.
    async fn serve(
        &self,
        proxy: &RunningProxy,
        addresses: &[SocketAddr],
    ) -> std::result::Result<(), String> {
        let id = proxy.id();
        if proxy.has_predecessor() {
            proxy.ready().await?;
            let listens = self.listening.listen_on(addresses).await;
            // An address that cannot be opened may be the other one's, and be free when it has ended.
            if !matches!(listens, Err(NotListening::Process(_))) {
                proxy.retire();
            }
            return listens.map_err(|e| e.to_string());
        }
        if id.is_none() {
            self.listening.close();
        }
        let listens = self.listening.listen_on(addresses).await;
        proxy.ready().await?;
        if proxy.id() != id {
            return Err("another process of the proxy is starting".to_owned());
        }
        listens.map_err(|e| e.to_string())
    }

    fn start_proxy(&self) -> Result<RunningProxy> {
        let name = proxy_name(&self.name);
        let metrics = self.context.fixed_port(&name, LOCALHOST, METRICS)?;
        let admin = self.context.fixed_port(&name, LOCALHOST, ADMIN)?;
        let description = Description {
            name,
            identity: self.name.clone(),
            workload: None,
            namespace: None,
            listeners: Vec::new(),
            passes_listeners: Some(Rc::clone(&self.listening)),
            dns: None,
            metrics: metrics.address(),
            scraped: metrics.address(),
            admin: admin.address(),
            _reserved: vec![metrics, admin],
        };
        RunningProxy::start(&self.context, description)
    }

    fn update(&self, change: impl FnOnce(&mut state::Gateway)) {
        let mut state = self.state.borrow_mut();
        let before = state.clone();
        change(&mut state);
        if *state != before {
            self.context.changed.notify_one();
        }
    }
}

impl Context {
    /// The port of a range that `name` keeps, or any free one where the range is used up.
    fn fixed_port(&self, name: &str, ip: IpAddr, range: RangeInclusive<u16>) -> Result<Reserved> {
        let (first, last) = (*range.start(), *range.end());
        if let Some(port) = self.fixed_ports.take(name, ip, range) {
            return Ok(port);
        }
        self.warn(format!(
            "{name} has no fixed port: {first} to {last} of {ip} are all in use"
        ));
        self.free_port(ip)
    }
}

//! One gateway: a proxy on the host that listens for clients outside the mesh.

use super::context::Context;
use super::ports::{self, addresses};
use super::proxy::{Description, RunningProxy};
use super::state;
use crate::failure::Result;
use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tulle_model::bootstrap::{Listener, ListenerKind};
use tulle_model::manifest::GatewaySpec;

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const RETRY: Duration = Duration::from_secs(2);

/// A gateway that is kept running.
pub(crate) struct RunningGateway {
    /// The spec that it was started with.
    pub(crate) spec: GatewaySpec,
    state: Rc<RefCell<state::Gateway>>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl RunningGateway {
    /// Starts it, after an earlier one of the same name has ended.
    pub(crate) fn start(
        context: &Rc<Context>,
        name: &str,
        spec: GatewaySpec,
        earlier: Option<JoinHandle<()>>,
    ) -> Self {
        let state = Rc::new(RefCell::new(state::Gateway {
            name: name.to_owned(),
            listeners: addresses(&spec),
            message: "waiting to start".into(),
            ..state::Gateway::default()
        }));
        let (stop, mut stopped) = watch::channel(false);
        let unit = Unit {
            context: Rc::clone(context),
            name: name.to_owned(),
            spec: spec.clone(),
            state: Rc::clone(&state),
        };
        let task = tokio::task::spawn_local(async move {
            if let Some(earlier) = earlier {
                let _ = earlier.await;
            }
            let mut proxy = None;
            tokio::select! {
                () = unit.live(&mut proxy) => {}
                _ = stopped.wait_for(|s| *s) => {}
            }
            if let Some(proxy) = proxy {
                proxy.stop().await;
            }
        });
        Self {
            spec,
            state,
            stop,
            task,
        }
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

struct Unit {
    context: Rc<Context>,
    name: String,
    spec: GatewaySpec,
    state: Rc<RefCell<state::Gateway>>,
}

impl Unit {
    async fn live(&self, proxy: &mut Option<RunningProxy>) {
        let proxy = loop {
            match self.start_proxy() {
                Ok(started) => break proxy.insert(started),
                Err(failure) => {
                    self.update(|s| s.message = failure.to_string());
                    sleep(RETRY).await;
                }
            }
        };
        loop {
            let answer = proxy.ready().await;
            let pause = if answer.is_ok() { 1000 } else { 100 };
            self.update(|s| {
                s.proxy = proxy.state(answer.is_ok());
                s.message = answer.err().unwrap_or_default();
            });
            sleep(Duration::from_millis(pause)).await;
        }
    }

    fn start_proxy(&self) -> Result<RunningProxy> {
        for address in addresses(&self.spec) {
            ports::free(address)?;
        }
        let listeners: Vec<Listener> = addresses(&self.spec)
            .into_iter()
            .map(|address| Listener {
                address,
                kind: ListenerKind::Gateway {
                    gateway: self.name.clone(),
                    port: address.port(),
                },
            })
            .collect();
        let metrics = self.context.free_port(LOCALHOST)?;
        let admin = self.context.free_port(LOCALHOST)?;
        let description = Description {
            // A workload may have the same name; it has no dot in it.
            name: format!("gateway.{}", self.name),
            identity: self.name.clone(),
            service: None,
            namespace: None,
            low_ports: listeners.iter().any(|l| l.address.port() < 1024),
            listeners,
            dns: None,
            metrics: metrics.address(),
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

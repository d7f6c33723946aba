//! The actix shell: one actor a channel, each on an arbiter of its own, revived when it dies.

use super::run::{self, Destined, Loop, Shared};
use crate::delivery::channel::Channel;
use crate::runtime::clock::SharedClock;
use crate::runtime::session::Connect;
use actix::prelude::*;
use futures::FutureExt;
use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Makes a channel on the thread where it will live.
pub type MakeChannel = Arc<dyn Fn() -> Result<Rc<dyn Channel>, String> + Send + Sync>;

/// What delivery needs.
#[derive(Clone)]
pub struct DeliveryConfig {
    /// Makes connections.
    pub connect: Connect,
    /// The wall clock.
    pub clock: SharedClock,
    /// How often an idle dispatcher looks for what is due.
    pub poll: Duration,
    /// How long what is under way may take at shutdown.
    pub drain: Duration,
}

/// The actor of one channel.
pub struct ChannelActor {
    make: MakeChannel,
    config: DeliveryConfig,
    shared: Option<Rc<Shared>>,
    /// Taken when it starts: one that starts afresh has had work before.
    destined: Option<Destined>,
}

impl Actor for ChannelActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let channel = match (self.make)() {
            Ok(channel) => channel,
            Err(error) => {
                tracing::error!(%error, "a channel cannot be made");
                ctx.stop();
                return;
            }
        };
        let shared = run::shared(channel, self.config.clock.clone());
        self.shared = Some(Rc::clone(&shared));
        let how = Loop {
            connect: self.config.connect.clone(),
            poll: self.config.poll,
            drain: self.config.drain,
        };
        let waits = shared.channel.waits_for_a_destination();
        let destined = self.destined.take().filter(|_| waits);
        let running = {
            let shared = Rc::clone(&shared);
            async move {
                if run::has_work(&shared, destined).await {
                    run::run(shared, how).await;
                }
            }
        };
        let running = AssertUnwindSafe(running).catch_unwind();
        ctx.spawn(running.into_actor(self).map(move |ended, actor, ctx| {
            if ended.is_err() && !shared.stop.get() {
                tracing::error!("a dispatcher panicked; it starts afresh, its leases run out");
                shared.stop();
                actor.started(ctx);
            } else {
                ctx.stop();
            }
        }));
    }
}

/// Ends the actor: what it holds goes back, what is under way is waited for.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Drain;

impl Handler<Drain> for ChannelActor {
    type Result = ();

    fn handle(&mut self, _: Drain, ctx: &mut Context<Self>) {
        match &self.shared {
            Some(shared) => shared.stop(),
            None => ctx.stop(),
        }
    }
}

/// All channels of this process.
pub struct Delivery {
    actors: Vec<(ArbiterHandle, Addr<ChannelActor>)>,
    drain: Duration,
}

impl Delivery {
    /// Starts an actor for each channel. Needs a running actix system.
    #[must_use]
    pub fn start(config: &DeliveryConfig, channels: Vec<MakeChannel>) -> Delivery {
        let (tell, destined) = watch::channel(BTreeSet::new());
        actix_rt::spawn(run::watch_destinations(config.connect.clone(), tell));
        let actors = channels.into_iter().map(|make| {
            let arbiter = Arbiter::new().handle();
            let config = config.clone();
            let destined = Some(destined.clone());
            let addr = ChannelActor::start_in_arbiter(&arbiter, move |_| ChannelActor {
                make,
                config,
                shared: None,
                destined,
            });
            (arbiter, addr)
        });
        Delivery {
            actors: actors.collect(),
            drain: config.drain,
        }
    }

    /// Whether every channel's actor lives.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.actors.iter().all(|(_, addr)| addr.connected())
    }

    /// Drains all channels and ends their threads.
    pub async fn stop(self) {
        for (_, addr) in &self.actors {
            let _ = addr.try_send(Drain);
        }
        let deadline = tokio::time::Instant::now() + self.drain + Duration::from_secs(2);
        for (arbiter, addr) in &self.actors {
            while addr.connected() && tokio::time::Instant::now() < deadline {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            arbiter.stop();
        }
    }
}

//! The channels of a process: each made on the thread where it will live.

use crate::delivery::address_guard::AddressGuard;
use crate::delivery::channel::Channel;
use crate::delivery::dispatcher::MakeChannel;
use crate::delivery::email::EmailChannel;
use crate::delivery::inapp::InappChannel;
use crate::delivery::meta::channel::MetaChannel;
use crate::delivery::push::PushChannel;
use crate::delivery::stub::channel::StubChannel;
use crate::delivery::webhook::channel::WebhookChannel;
use crate::runtime::clock::SharedClock;
use crate::runtime::session::Connect;
use crate::sealing::Seals;
use crate::settings;
use std::rc::Rc;
use std::sync::Arc;

/// All channels that the settings turn on.
///
/// # Errors
/// A setting cannot be read, or a client cannot be made.
pub(super) fn all(
    settings: &settings::Delivery,
    clock: &SharedClock,
    seals: &Arc<Seals>,
    connect: &Connect,
    public_url: Option<&String>,
) -> anyhow::Result<Vec<MakeChannel>> {
    let guard = AddressGuard::new(&settings.allowed_networks)?;
    let mut channels: Vec<MakeChannel> = Vec::new();
    let (own, keys, time) = (settings.meta.clone(), seals.clone(), clock.clone());
    channels.push(mounted(move || {
        MetaChannel::new(&own, keys.clone(), time.clone())
    })?);
    let (own, keys, time) = (settings.webhook.clone(), seals.clone(), clock.clone());
    let guarded = guard.clone();
    channels.push(mounted(move || {
        WebhookChannel::new(&own, guarded.clone(), keys.clone(), time.clone())
    })?);
    let (own, keys, time) = (settings.email.clone(), seals.clone(), clock.clone());
    let (guarded, store, url) = (guard.clone(), connect.clone(), public_url.cloned());
    channels.push(mounted(move || {
        EmailChannel::new(
            &own,
            guarded.clone(),
            keys.clone(),
            time.clone(),
            store.clone(),
            url.clone(),
        )
    })?);
    let (own, time, store) = (settings.inapp.clone(), clock.clone(), connect.clone());
    channels.push(mounted(move || {
        Ok::<_, std::convert::Infallible>(InappChannel::new(&own, time.clone(), store.clone()))
    })?);
    let (own, time, store) = (settings.push.clone(), clock.clone(), connect.clone());
    let guarded = guard.clone();
    channels.push(mounted(move || {
        PushChannel::new(&own, guarded.clone(), time.clone(), store.clone())
    })?);
    if settings.stub.enabled {
        let (own, guard, clock) = (settings.stub.clone(), guard.clone(), clock.clone());
        channels.push(mounted(move || {
            StubChannel::new(&own, guard.clone(), clock.clone())
        })?);
    }
    Ok(channels)
}

/// Made once here, so that what is wrong is said at the start, and again by the actor that keeps it.
fn mounted<C, E>(make: impl Fn() -> Result<C, E> + Send + Sync + 'static) -> Result<MakeChannel, E>
where
    C: Channel,
    E: std::error::Error,
{
    make()?;
    Ok(Arc::new(move || {
        let made = make().map_err(|e| e.to_string())?;
        Ok(Rc::new(made) as Rc<dyn Channel>)
    }))
}

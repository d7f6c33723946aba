//! The one table of what sets off what, and who is there to be set off. A stream says what happened ([`Event`]); this says
//! which channels hear of it. Leads, attachments to nodes and platforms of traffic sources come into [`TABLE`], nowhere else.

use crate::runtime::session::Session;
use hashbrown::HashMap;
use tokio_postgres::Error;

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A visit was applied.
    Visit,
    /// A click was applied.
    Click,
    /// A conversion was booked, in whatever status.
    ConversionBooked,
    /// A booked conversion's status moved.
    ConversionMoved,
    /// A conversion became approved, for the first time and the only one: booked so, or out of `pending`.
    FirstApproved,
}

/// What it sets off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetsOff {
    /// Webhooks that listen to this name.
    Webhooks(&'static str),
    /// Pixels of the served journey without an attachment: once a conversion, node id `campaign:<pixel id>`, the amount the
    /// payout unless the journey names another.
    CampaignPixels,
}

/// What sets off what (spec: attribution § What a conversion sets off).
pub const TABLE: &[(Event, SetsOff)] = &[
    (Event::Visit, SetsOff::Webhooks("visit")),
    (Event::Click, SetsOff::Webhooks("click")),
    (Event::ConversionBooked, SetsOff::Webhooks("conversion")),
    (Event::ConversionMoved, SetsOff::Webhooks("conversion")),
    (Event::FirstApproved, SetsOff::CampaignPixels),
];

/// A webhook that listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Its destination.
    pub destination: i32,
    /// Names of what it listens to.
    pub events: Vec<String>,
}

/// A pixel that may fire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pixel {
    /// Its destination.
    pub destination: i32,
    /// The provider's dataset.
    pub dataset: String,
    /// The event it sends unless its node says another.
    pub event_name: String,
    /// The currency of its values.
    pub currency: Option<String>,
    /// Meta's `action_source`.
    pub action_source: String,
    /// `{"options", "country", "state"}`.
    pub data_processing: Option<serde_json::Value>,
}

/// Whom a workspace has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Whom {
    /// The workspace's slug.
    pub slug: String,
    /// Active webhooks.
    pub webhooks: Vec<Listener>,
    /// Active pixels by id.
    pub pixels: HashMap<String, Pixel>,
}

impl Whom {
    /// Webhooks that hear of an event, by [`TABLE`].
    pub fn listeners(&self, event: Event) -> impl Iterator<Item = (&Listener, &'static str)> {
        let names = TABLE.iter().filter_map(move |(e, what)| match what {
            SetsOff::Webhooks(name) if *e == event => Some(*name),
            _ => None,
        });
        names.flat_map(|name| {
            self.webhooks
                .iter()
                .filter(move |w| w.events.iter().any(|e| e == name))
                .map(move |w| (w, name))
        })
    }

    /// Whether an event fires pixels without an attachment, by [`TABLE`], and there are any.
    #[must_use]
    pub fn fires_campaign_pixels(&self, event: Event) -> bool {
        !self.pixels.is_empty() && TABLE.contains(&(event, SetsOff::CampaignPixels))
    }

    /// Whether anybody hears of an event.
    #[must_use]
    pub fn hears(&self, event: Event) -> bool {
        self.fires_campaign_pixels(event) || self.listeners(event).next().is_some()
    }
}

/// Who is there to be set off, in all workspaces; asked for anew when the configuration's epoch has moved.
#[derive(Clone, Debug, Default)]
pub struct Audience {
    epoch: Option<i64>,
    by_workspace: HashMap<i32, Whom>,
}

impl Audience {
    /// Whom a workspace has; none if nobody listens there.
    #[must_use]
    pub fn of(&self, workspace: i32) -> Option<&Whom> {
        self.by_workspace.get(&workspace)
    }

    /// Whether nobody listens anywhere.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_workspace.is_empty()
    }

    /// Reads it anew if it has changed: one look at one row if it has not.
    ///
    /// # Errors
    /// The store's.
    pub async fn refresh(&mut self, session: &Session) -> Result<(), Error> {
        let rows = session
            .query("SELECT epoch FROM configuration_epoch", &[])
            .await?;
        let epoch: Option<i64> = rows.first().map(|r| r.get(0));
        if epoch == self.epoch && epoch.is_some() {
            return Ok(());
        }
        self.by_workspace = read(session).await?;
        self.epoch = epoch;
        Ok(())
    }
}

async fn read(session: &Session) -> Result<HashMap<i32, Whom>, Error> {
    let mut all: HashMap<i32, Whom> = HashMap::new();
    let webhooks = session
        .query(
            "SELECT w.workspace_id, d.destination_no, w.events FROM webhooks w
             JOIN destinations d ON d.channel = 'webhook' AND d.ref = w.webhook_id
             WHERE w.status = 'active' ORDER BY d.destination_no",
            &[],
        )
        .await?;
    for row in &webhooks {
        all.entry(row.get(0)).or_default().webhooks.push(Listener {
            destination: row.get(1),
            events: row.get(2),
        });
    }
    let pixels = session
        .query(
            "SELECT p.workspace_id, p.pixel_id, d.destination_no, p.dataset_id, p.event_name, p.currency, p.action_source,
                    p.data_processing
             FROM pixels p JOIN destinations d ON d.channel = p.platform AND d.ref = p.pixel_id
             WHERE p.status = 'active'",
            &[],
        )
        .await?;
    for row in &pixels {
        let pixel = Pixel {
            destination: row.get(2),
            dataset: row.get(3),
            event_name: row.get(4),
            currency: row.get(5),
            action_source: row.get(6),
            data_processing: row.get(7),
        };
        let whom: &mut Whom = all.entry(row.get(0)).or_default();
        whom.pixels.insert(row.get(1), pixel);
    }
    if !all.is_empty() {
        let slugs = session
            .query("SELECT workspace_id, slug FROM workspaces", &[])
            .await?;
        for row in &slugs {
            if let Some(whom) = all.get_mut(&row.get::<_, i32>(0)) {
                whom.slug = row.get(1);
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whom() -> Whom {
        let listener = |destination, events: &[&str]| Listener {
            destination,
            events: events.iter().map(|e| (*e).to_owned()).collect(),
        };
        Whom {
            slug: "w".to_owned(),
            webhooks: vec![
                listener(1, &["visit"]),
                listener(2, &["visit", "conversion"]),
            ],
            pixels: HashMap::new(),
        }
    }

    #[test]
    fn webhooks_hear_what_they_listen_to() {
        let whom = whom();
        let heard = |event| -> Vec<(i32, &str)> {
            whom.listeners(event)
                .map(|(l, name)| (l.destination, name))
                .collect()
        };
        assert_eq!(heard(Event::Visit), [(1, "visit"), (2, "visit")]);
        assert_eq!(heard(Event::Click), []);
        assert_eq!(heard(Event::ConversionBooked), [(2, "conversion")]);
        assert_eq!(heard(Event::ConversionMoved), [(2, "conversion")]);
        // A first approval is told by the booking or the move that brought it; it fires pixels alone.
        assert_eq!(heard(Event::FirstApproved), []);
        assert!(!whom.hears(Event::FirstApproved));
    }
}

//! Delivery: what the outbox costs without HTTP, how fast the channels send, how late what is due is handed over, how large the
//! narrow table stays, and what a hung destination takes from the others.

mod bare;
mod due;
mod email;
mod hung;
mod meta;
mod million;
mod null;
mod outbox;
mod payload;
mod post;
pub mod sending;
mod smtp;
mod store;
mod webhook;

pub use bare::Options as BareOptions;
pub use null::Options as NullOptions;
pub use post::Options as PostOptions;
pub use smtp::Options as SmtpOptions;
pub use store::connect;

/// What to measure.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum What {
    /// Claim, finish and send log without HTTP: the dispatcher with a channel that answers at once, against the same statements.
    Outbox(outbox::Options),
    /// Events to a stand-in for Meta, against bare reqwest.
    Meta(meta::Options),
    /// Webhooks to one endpoint, against bare reqwest.
    Webhook(webhook::Options),
    /// Mail to one server, against lettre's pooled transport alone.
    Email(email::Options),
    /// Messages that become due a thousand a second: how late are they handed over?
    Due(due::Options),
    /// A million messages through a bounded backlog: the narrow table's size and the dispatcher's memory.
    Million(million::Options),
    /// Webhooks to endpoints that answer, with and without one that never does.
    Hung(hung::Options),
}

impl What {
    /// Whether `millrace run` takes part, and not this program's dispatcher alone.
    #[must_use]
    pub fn runs_the_product(&self) -> bool {
        !matches!(self, What::Outbox(_) | What::Million(_))
    }
}

/// Runs it.
///
/// # Errors
/// The store or a contender fails.
pub fn run(what: &What) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match what {
            What::Outbox(options) => outbox::measure(options).await,
            What::Meta(options) => meta::measure(options).await,
            What::Webhook(options) => webhook::measure(options).await,
            What::Email(options) => email::measure(options).await,
            What::Due(options) => due::measure(options).await,
            What::Million(options) => million::measure(options).await,
            What::Hung(options) => hung::measure(options).await,
        }
    })
}

/// The dispatcher over the channel `null`, until it is told to end.
///
/// # Errors
/// The store cannot be reached.
pub fn product(options: &NullOptions) -> anyhow::Result<()> {
    null::serve(options)
}

/// The bare loop over the same outbox, until it is ended.
///
/// # Errors
/// The store's.
pub fn bare(options: &BareOptions) -> anyhow::Result<()> {
    bare::serve(options)
}

/// reqwest alone, until it is ended.
///
/// # Errors
/// A request fails.
pub fn post(options: &PostOptions) -> anyhow::Result<()> {
    post::serve(options)
}

/// lettre alone, until it is ended.
///
/// # Errors
/// A mail is refused.
pub fn smtp(options: &SmtpOptions) -> anyhow::Result<()> {
    smtp::serve(options)
}

//! The comparator of mail: lettre's pooled transport alone. So many tasks send one message that was made beforehand; no store, no
//! rendering, nothing written down.

use lettre::message::{MultiPart, SinglePart};
use lettre::transport::smtp::PoolConfig;
use lettre::{AsyncSmtpTransport, AsyncTransport, Message, Tokio1Executor};
use std::cell::Cell;
use std::rc::Rc;

/// What to send, and how.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The server's port on loopback.
    #[arg(long)]
    pub port: u16,
    /// Mails.
    #[arg(long)]
    pub messages: u32,
    /// Connections at once.
    #[arg(long)]
    pub concurrency: usize,
}

/// Sends everything once, then waits to be ended.
///
/// # Errors
/// A mail is refused.
pub fn serve(options: &Options) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let intro = "It was last refreshed four days ago, and collapses within the hour unless somebody opens its door.";
    let message = Message::builder()
        .from("news@sender.example".parse()?)
        .to("u1@example.com".parse()?)
        .subject("A house falls: number 1")
        .multipart(
            MultiPart::alternative()
                .singlepart(SinglePart::plain(intro.to_owned()))
                .singlepart(SinglePart::html(format!("<p>{intro}</p>"))),
        )?;
    let size = u32::try_from(options.concurrency.max(1))?;
    let left = Rc::new(Cell::new(options.messages));
    let local = tokio::task::LocalSet::new();
    runtime.block_on(local.run_until(async {
        let transport = AsyncSmtpTransport::<Tokio1Executor>::builder_dangerous("127.0.0.1")
            .port(options.port)
            .pool_config(PoolConfig::new().max_size(size))
            .build();
        let workers: Vec<_> = (0..size)
            .map(|_| {
                let (transport, message) = (transport.clone(), message.clone());
                tokio::task::spawn_local(work(transport, message, Rc::clone(&left)))
            })
            .collect();
        for worker in workers {
            worker.await??;
        }
        // Stays, so that whoever measures can read its CPU time.
        std::future::pending::<anyhow::Result<()>>().await
    }))
}

async fn work(
    transport: AsyncSmtpTransport<Tokio1Executor>,
    message: Message,
    left: Rc<Cell<u32>>,
) -> anyhow::Result<()> {
    while let Some(rest) = left.get().checked_sub(1) {
        left.set(rest);
        transport.send(message.clone()).await?;
    }
    Ok(())
}

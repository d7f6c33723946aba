//! The comparator of mail: lettre's connections alone, kept open, each with one message that was made beforehand; no store, no
//! rendering, nothing written down.
//!
//! Not lettre's own pool: that leaves Nagle's algorithm on, so that the dot behind each body waits 40 ms for an acknowledgement, and
//! asks each connection by a NOOP whether it is still there. A peer that waits for its own habits would be no limit.

use lettre::Message;
use lettre::address::Envelope;
use lettre::message::{MultiPart, SinglePart};
use lettre::transport::smtp::client::AsyncSmtpConnection;
use lettre::transport::smtp::extension::ClientId;
use std::cell::Cell;
use std::rc::Rc;
use tokio::net::TcpStream;

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
    let envelope = message.envelope().clone();
    let mail: Rc<(Envelope, Vec<u8>)> = Rc::new((envelope, message.formatted()));
    let left = Rc::new(Cell::new(options.messages));
    let port = options.port;
    let local = tokio::task::LocalSet::new();
    runtime.block_on(local.run_until(async {
        let workers: Vec<_> = (0..options.concurrency.max(1))
            .map(|_| tokio::task::spawn_local(work(port, Rc::clone(&mail), Rc::clone(&left))))
            .collect();
        for worker in workers {
            worker.await??;
        }
        // Stays, so that whoever measures can read its CPU time.
        std::future::pending::<anyhow::Result<()>>().await
    }))
}

async fn work(port: u16, mail: Rc<(Envelope, Vec<u8>)>, left: Rc<Cell<u32>>) -> anyhow::Result<()> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.set_nodelay(true)?;
    let hello = ClientId::Domain("sender.example".to_owned());
    let mut connection =
        AsyncSmtpConnection::connect_with_transport(Box::new(stream), &hello).await?;
    while let Some(rest) = left.get().checked_sub(1) {
        left.set(rest);
        connection.send(&mail.0, &mail.1).await?;
    }
    Ok(())
}

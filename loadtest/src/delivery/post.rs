//! The comparator of the channels: reqwest alone, with the client that the product makes, over bodies that are made beforehand.
//! So many tasks take the next body, post it, and read the answer; no store, no signature, nothing written down.

use super::payload;
use anyhow::{Context, ensure};
use bytes::Bytes;
use clap::ValueEnum;
use millrace::delivery::address_guard::AddressGuard;
use millrace::delivery::outbound::{ClientOptions, client};
use reqwest::header::CONTENT_TYPE;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

/// What is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// A payload a request.
    Webhook,
    /// Events of one dataset, up to a batch of them a request.
    Meta,
}

/// What to post, and how.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Where to; of Meta the base with its version.
    #[arg(long)]
    pub url: String,
    /// In which form.
    #[arg(long, value_enum)]
    pub form: Form,
    /// Messages.
    #[arg(long)]
    pub messages: u32,
    /// Requests at once.
    #[arg(long)]
    pub concurrency: usize,
    /// The time of the events.
    #[arg(long)]
    pub now: i64,
    /// Datasets.
    #[arg(long, default_value_t = 1)]
    pub pixels: usize,
    /// Events a request.
    #[arg(long, default_value_t = 1_000)]
    pub batch: usize,
}

struct Post {
    url: String,
    id: String,
    body: Bytes,
}

/// Posts everything once, then waits to be ended.
///
/// # Errors
/// An answer is no 2xx, or none comes.
pub fn serve(options: &Options) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let posts = match options.form {
        Form::Webhook => webhooks(options),
        Form::Meta => batches(options)?,
    };
    let posts = Rc::new(RefCell::new(posts));
    let http = client(
        ClientOptions {
            timeout: Duration::from_secs(15),
            connect_timeout: Duration::from_secs(5),
            idle_connections: options.concurrency,
        },
        &AddressGuard::new(&["127.0.0.0/8"])?,
    )?;
    let local = tokio::task::LocalSet::new();
    let workers: Vec<_> = (0..options.concurrency.max(1))
        .map(|_| local.spawn_local(work(http.clone(), Rc::clone(&posts))))
        .collect();
    runtime.block_on(local.run_until(async {
        for worker in workers {
            worker.await??;
        }
        // Stays, so that whoever measures can read its CPU time.
        std::future::pending::<anyhow::Result<()>>().await
    }))
}

async fn work(http: reqwest::Client, posts: Rc<RefCell<VecDeque<Post>>>) -> anyhow::Result<()> {
    loop {
        let Some(post) = posts.borrow_mut().pop_front() else {
            return Ok(());
        };
        let answer = http
            .post(post.url)
            .header(CONTENT_TYPE, "application/json")
            .header("webhook-id", post.id)
            .body(post.body)
            .send()
            .await?;
        let status = answer.status();
        std::hint::black_box(answer.bytes().await?);
        ensure!(status.is_success(), "answered {status}");
    }
}

fn webhooks(options: &Options) -> VecDeque<Post> {
    (0..options.messages)
        .map(|n| Post {
            url: options.url.clone(),
            id: format!("msg_{n}"),
            body: payload::purchase(n, options.now, options.pixels).into(),
        })
        .collect()
}

#[derive(Deserialize)]
struct Frozen<'a> {
    #[serde(borrow)]
    event: &'a RawValue,
}

fn batches(options: &Options) -> anyhow::Result<VecDeque<Post>> {
    let pixels = options.pixels.max(1);
    let mut posts = VecDeque::new();
    let mut open = vec![Vec::new(); pixels];
    for n in 0..options.messages {
        let i = n as usize % pixels;
        let frozen = payload::purchase(n, options.now, pixels);
        let frozen: Frozen<'_> = serde_json::from_str(&frozen)?;
        let events: &mut Vec<String> = open.get_mut(i).context("a pixel")?;
        events.push(frozen.event.get().to_owned());
        if events.len() == options.batch {
            posts.push_back(batch(options, i, &std::mem::take(events)));
        }
    }
    for (i, events) in open.iter().enumerate().filter(|(_, e)| !e.is_empty()) {
        posts.push_back(batch(options, i, events));
    }
    Ok(posts)
}

fn batch(options: &Options, pixel: usize, events: &[String]) -> Post {
    let dataset = payload::dataset(pixel);
    let body = format!(
        "{{\"data\":[{}],\"access_token\":\"{}\"}}",
        events.join(","),
        payload::TOKEN
    );
    Post {
        url: format!("{}/{dataset}/events", options.url),
        id: String::new(),
        body: body.into(),
    }
}

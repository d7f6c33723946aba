//! The safeguard of what may not be sent twice: a lease is its holder's until it has run out. With it switched off, a receiver that
//! takes its time is asked again while it still answers.

use crate::faults::{turn, with_words};
use millrace_tests::deployment::{Deployment, Log, PATIENCE};
use millrace_tests::outbox;
use millrace_tests::parties::{Parties, by_body};
use millrace_tests::process::eventually;
use std::time::Duration;

const MESSAGES: u32 = 12;
/// Longer than the janitor's round.
const SLOW: Duration = Duration::from_millis(2_600);

/// How many messages a receiver that may not be asked twice has seen more than once, when all is over; with the safeguard off, as
/// soon as there is one.
async fn repeated(sabotage: &str) -> anyhow::Result<usize> {
    let deployment = Deployment::start("lease", Log::Postgres, 1).await?;
    let done = async {
        let store = deployment.store().await;
        let workspace = outbox::workspace(&store, "acme").await?;
        let mut parties = Parties::set(&store, workspace, &["visit"]).await?;
        parties.fill_one(&store, 1, MESSAGES).await?;
        parties.linger(SLOW);
        let launch = parties.sender(&deployment, "sender")?.sabotage(sabotage);
        let _sender = launch.spawn()?;
        let twice = || {
            let came = by_body(parties.stub(), "x-millrace-message");
            came.values().filter(|ids| ids.len() > 1).count()
        };
        eventually(
            "everything sent, or something twice",
            PATIENCE,
            async || {
                let over = outbox::due(&store).await? == 0;
                Ok((over || twice() > 0).then_some(()))
            },
        )
        .await?;
        if sabotage.is_empty() {
            let statuses = outbox::statuses(&store, parties.all[1].no).await?;
            let sent = statuses.get("sent").copied();
            anyhow::ensure!(sent == Some(i64::from(MESSAGES)), "{statuses:?}");
        }
        Ok(twice())
    };
    let done = done.await;
    Ok(with_words(&deployment, done))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_handed_out_too_early_are_noticed() {
    let _turn = turn().await;
    assert_eq!(repeated("").await.unwrap(), 0, "leases on");
    assert!(repeated("lease").await.unwrap() > 0, "leases off");
}

//! A sidecar that announces more than it may, by far: a door's memory does not grow with it.

use super::{Sidecar, atlantic, frame};
use millrace_tests::deployment::{Deployment, Log, PATIENCE};
use millrace_tests::process::free_address;
use tokio::io::AsyncWriteExt;

/// What is announced.
const ANNOUNCED: u64 = 64 << 20;
/// By how much the door's memory may have been greater meanwhile: it serves other things too.
const ALLOWED: u64 = 16 << 20;

/// The most memory that a process ever had, in bytes.
fn most(pid: i32) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib: u64 = line
        .and_then(|l| l.split_whitespace().next())
        .ok_or_else(|| anyhow::anyhow!("no VmHWM"))?
        .parse()?;
    Ok(kib << 10)
}

async fn run(deployment: &Deployment) -> anyhow::Result<()> {
    let token = atlantic(&deployment.store().await).await?;
    let at = free_address()?;
    let launch = deployment.launch("door")?.args(["run", "--roles", "doors"]);
    let launch = launch
        .setting("http.doors", at)
        .setting("http.admin", at)
        .setting("modules.enabled", "uo");
    let mut door = launch.spawn()?;
    door.wait_for_log("millrace is up", PATIENCE).await?;
    let mut sidecar = Sidecar::connect(&format!("ws://{at}/feed/atlantic"), &token.reveal())
        .await
        .map_err(|status| anyhow::anyhow!("{status}"))?;
    sidecar.hello("b1", 0).await;
    sidecar.say(&frame(1, "nobody.maps.this")).await;
    sidecar.acknowledged(1).await;
    let before = most(door.pid())?;

    // One frame of text under a mask of zeros, in pieces.
    let wire = sidecar.0.get_mut();
    let mut header = vec![0x81, 0x80 | 127];
    header.extend(ANNOUNCED.to_be_bytes());
    header.extend([0; 4]);
    wire.write_all(&header).await?;
    let piece = vec![b'x'; 1 << 16];
    for _ in 0..ANNOUNCED / piece.len() as u64 {
        wire.write_all(&piece).await?;
    }
    wire.flush().await?;
    let (seq, code, said) = sidecar.refused().await;
    anyhow::ensure!((seq, &*code) == (2, "frame_too_large"), "{said}");
    let grown = most(door.pid())?.saturating_sub(before);
    anyhow::ensure!(grown < ALLOWED, "the door has grown by {grown} bytes");
    sidecar.say(&frame(3, "nobody.maps.this")).await;
    sidecar.acknowledged(3).await;
    let exported = reqwest::Client::builder()
        .no_proxy()
        .build()?
        .get(format!("http://{at}/metrics"))
        .send()
        .await?
        .text()
        .await?;
    anyhow::ensure!(
        exported
            .lines()
            .any(|l| l.contains("\"frame_too_large\"") && l.ends_with(" 1")),
        "it is not counted"
    );
    Ok(())
}

#[tokio::test]
async fn what_a_sidecar_announces_takes_no_memory() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let deployment = Deployment::start("feed-memory", Log::Postgres, 2)
        .await
        .unwrap();
    let result = run(&deployment).await;
    result.unwrap_or_else(|e| panic!("{e:#}\n{}", deployment.last_words()));
}

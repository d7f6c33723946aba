//! The admin API's process is killed while somebody makes offers by it and the others are at work: what it has answered is there,
//! and what is asked again under the same idempotency key is there once.

use super::{Kind, USUAL};
use crate::faults::scene::{DOORS, Role, Scene};
use anyhow::Context as _;
use millrace::api::key_store::{self, NewKey};
use millrace_tests::deployment::PATIENCE;
use millrace_tests::door_client::request_with;
use millrace_tests::process::{eventually, lasting_address};
use millrace_tests::recount::{Finding, Kind as Found};
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

/// Between two requests of the caller, whether they were answered or not.
const PACE: Duration = Duration::from_millis(30);

/// Kinds of this family.
pub const KINDS: &[&Kind] = &[&Kind {
    name: "admin-killed-at-random",
    act: |scene, _| Box::pin(killed(scene)),
    ..USUAL
}];

async fn killed(scene: &mut Scene) -> anyhow::Result<()> {
    scene.step("a key for the admin API");
    let key = key(scene).await?;
    let at = lasting_address()?;
    scene.start_all(None)?;
    start(scene, at)?;
    let (made, enough) = (RefCell::new(Vec::new()), Cell::new(false));
    let kills = async {
        for life in 0..3 {
            let more = 2 + scene.rng.below(10) as usize;
            until_made(&made, more).await?;
            scene.step(format!("kill {life} of admin"));
            scene.take(Role::Admin)?.kill()?;
            scene.strike(Role::Admin).await;
            start(scene, at)?;
        }
        until_made(&made, 3).await?;
        enough.set(true);
        Ok::<(), anyhow::Error>(())
    };
    let calls = async {
        for n in 0.. {
            if enough.get() {
                break;
            }
            let id = make(at, &key, n).await?;
            made.borrow_mut().push(id);
            tokio::time::sleep(PACE).await;
        }
        Ok::<(), anyhow::Error>(())
    };
    tokio::try_join!(kills, calls)?;
    recount(scene, &made.into_inner()).await
}

async fn key(scene: &Scene) -> anyhow::Result<String> {
    let new = NewKey {
        workspace: Some(DOORS),
        name: "offers".into(),
        scopes: vec!["offers:write".into()],
        created_by: "test".into(),
        ..NewKey::default()
    };
    let mut store = scene.store().await;
    let tx = store.transaction().await?;
    let (_, key) = key_store::create(&tx, &new, None)
        .await
        .map_err(|e| anyhow::anyhow!("no key: {e:?}"))?;
    tx.commit().await?;
    Ok(key.reveal())
}

/// Each life of it answers at the same address.
fn start(scene: &mut Scene, at: SocketAddr) -> anyhow::Result<()> {
    let launch = scene.launch(Role::Admin)?.setting("http.admin", at);
    scene.start_as(Role::Admin, &launch)?;
    Ok(())
}

async fn until_made(made: &RefCell<Vec<String>>, more: usize) -> anyhow::Result<()> {
    let wanted = made.borrow().len() + more;
    eventually("offers made", PATIENCE, async || {
        Ok((made.borrow().len() >= wanted).then_some(()))
    })
    .await
}

/// Makes the `n`th offer, asked for again until it is answered; its id.
async fn make(at: SocketAddr, key: &str, n: u32) -> anyhow::Result<String> {
    let name = format!("made-{n}");
    let body =
        json!({"name": name, "url_template": "https://shop.example/?c={click_id}"}).to_string();
    let headers = [
        ("Idempotency-Key", name.as_str()),
        ("Content-Type", "application/json"),
    ];
    loop {
        match request_with(at, Some(key), &headers, "POST", "/v1/offers", &body).await {
            Ok(reply) if reply.status == 201 => {
                let said: Value = serde_json::from_str(&reply.body)?;
                let id = said["id"].as_str().context("an offer without an id")?;
                return Ok(id.to_owned());
            }
            // The store may not have noticed yet that who asked before is dead.
            Ok(reply) if reply.status < 500 && !reply.body.contains("idempotency_in_progress") => {
                anyhow::bail!("POST /v1/offers: {} {}", reply.status, reply.body);
            }
            Ok(_) | Err(_) => tokio::time::sleep(PACE).await,
        }
    }
}

/// Every offer that was answered is there, and none is there twice.
async fn recount(scene: &mut Scene, made: &[String]) -> anyhow::Result<()> {
    scene.step("offers are recounted");
    let sql = "SELECT offer_id, name FROM offers WHERE workspace_id = $1 AND name LIKE 'made-%'";
    let rows = scene.store().await.query(sql, &[&DOORS]).await?;
    let there: BTreeSet<&str> = rows.iter().map(|r| r.get(0)).collect();
    let names: BTreeSet<&str> = rows.iter().map(|r| r.get(1)).collect();
    let lost = made.iter().filter(|id| !there.contains(id.as_str()));
    scene.findings.extend(lost.map(|id| Finding {
        kind: Found::Loss,
        what: format!("admin: offer {id} was answered and is not there"),
    }));
    if names.len() < rows.len() {
        scene.findings.push(Finding {
            kind: Found::Double,
            what: format!("admin: {} offers of {} names", rows.len(), names.len()),
        });
    }
    Ok(())
}

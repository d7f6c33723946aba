//! SIGHUP: a running deployment takes other manifests, whole or not at all, and decides every frame once meanwhile.

use millrace_schemas::WIRE_VERSION;
use millrace_schemas::frame::Frame;
use millrace_schemas::time::Micros;
use millrace_tests::deployment::{Deployment, Line, Log, PATIENCE};
use millrace_tests::process::{Process, eventually};
use millrace_topics::catalogue;
use serde_json::json;
use std::net::SocketAddr;
use std::path::PathBuf;
use tokio_postgres::Client;

const LAMPS: &str = r#"
id = "house"
label = "A house"
description = "Lamps and bells."
protocol = 1

[[frame]]
kind = "lamp"
key = "lamp"

[[trigger]]
id = "house.lamp.lit"
label = "A lamp was lit"
description = "Somebody lit a lamp."
subject_key = "lamp"
audience = "owner"
ceiling = "owner"
version = 1
variables = [ { name = "lamp", type = "string", required = true, example = "hall" } ]

[[mapping]]
id = "lamp.lit"
frames = ["lamp"]
trigger = "house.lamp.lit"
tracker = "always"
owner = "by"

[mapping.vars]
lamp = "lamp"
"#;

const BELLS: &str = r#"
[[frame]]
kind = "bell"
key = "bell"

[[trigger]]
id = "house.bell.rung"
label = "A bell was rung"
description = "Somebody rang."
subject_key = "bell"
audience = "owner"
ceiling = "owner"
version = 1
variables = [ { name = "bell", type = "string", required = true, example = "door" } ]

[[mapping]]
id = "bell.rung"
frames = ["bell"]
trigger = "house.bell.rung"
tracker = "always"
owner = "by"

[mapping.vars]
bell = "bell"

[[rule_group]]
id = "house.rules"

[[rule_group.rule]]
id = "house.bell.rung"
label = "A bell was rung"
trigger = "house.bell.rung"
channels = ["inapp"]
hourly_cap = 100
"#;

/// A deployment with one process, and what was sent to it.
struct World {
    deployment: Deployment,
    process: Process,
    store: Client,
    admin: SocketAddr,
    file: PathBuf,
    sent: u64,
    reloads: usize,
}

impl World {
    async fn start() -> anyhow::Result<World> {
        let mut deployment = Deployment::start("reload", Log::Postgres, 2).await?;
        let folder = deployment.scratch.path().join("games");
        std::fs::create_dir_all(&folder)?;
        let file = folder.join("house.toml");
        std::fs::write(&file, LAMPS)?;
        deployment.set("modules.enabled", "house");
        deployment.set("modules.dir", folder.display());
        deployment.set("runtime.batch_records", 20);
        let store = deployment.store().await;
        store
            .batch_execute("INSERT INTO workspaces (slug, name) VALUES ('acme', 'Acme')")
            .await?;
        let admin = millrace_tests::process::free_address()?;
        let launch = deployment.role("admin,thresholds,engagement", "all")?;
        let mut process = launch.setting("http.admin", admin).spawn()?;
        process.wait_for_log("millrace is up", PATIENCE).await?;
        Ok(World {
            deployment,
            process,
            store,
            admin,
            file,
            sent: 0,
            reloads: 0,
        })
    }

    /// Puts frames of a kind into the log.
    async fn send(&mut self, kind: &str, n: u64) -> anyhow::Result<()> {
        let mut lines = Vec::new();
        for _ in 0..n {
            self.sent += 1;
            let key = format!("{kind}-{}", self.sent % 5);
            let frame = Frame {
                v: WIRE_VERSION,
                ws: 1,
                shard: "atlantic".to_owned(),
                boot: "b".to_owned(),
                seq: self.sent,
                kind: kind.to_owned(),
                key: key.clone(),
                accepted_at: Micros(1_796_040_000_000_000),
                body: serde_json::value::to_raw_value(&json!({kind: key, "by": "ana"}))?,
                replay: None,
            };
            lines.push(Line {
                topic: catalogue::FRAMES.to_owned(),
                key: frame.log_key().into_bytes(),
                payload: serde_json::to_vec(&frame)?,
            });
        }
        self.deployment.append(lines).await?;
        Ok(())
    }

    /// Waits until so many firings of each trigger are decided, and all that was sent has its outcome.
    async fn fired(&self, lamps: i64, bells: i64) -> anyhow::Result<()> {
        let what = format!("{lamps} lamps and {bells} bells fired");
        let wanted = (lamps, bells, i64::try_from(self.sent)?);
        let mut seen = (0, 0, 0);
        let look = eventually(&what, PATIENCE, async || {
            let row = self
                .store
                .query_one(
                    "SELECT (SELECT count(*) FROM firings WHERE trigger_id = 'house.lamp.lit'),
                            (SELECT count(*) FROM firings WHERE trigger_id = 'house.bell.rung'),
                            (SELECT coalesce(sum(n), 0)::int8 FROM outcomes WHERE group_name = 'thresholds')",
                    &[],
                )
                .await?;
            seen = (row.get(0), row.get(1), row.get(2));
            Ok((seen == wanted).then_some(()))
        });
        look.await.map_err(|e| e.context(format!("seen: {seen:?}")))
    }

    /// Replaces the manifest and asks the process to read it.
    async fn reload(&mut self, text: &str) -> anyhow::Result<()> {
        std::fs::write(&self.file, text)?;
        self.reloads += 1;
        let wanted = self.reloads;
        self.process.signal(libc::SIGHUP);
        eventually("the manifests are read", PATIENCE, async || {
            let exported = self.metrics().await?;
            let counted = |result: &str| -> usize {
                let line = format!("module_reloads_total{{result=\"{result}\"}} ");
                let mut found = exported.lines().filter_map(|l| l.strip_prefix(&*line));
                found.next().map_or(0, |n| n.parse().expect("a number"))
            };
            Ok((counted("applied") + counted("refused") >= wanted).then_some(()))
        })
        .await
    }

    async fn metrics(&self) -> anyhow::Result<String> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().no_proxy().build()?;
        let url = format!("http://{}/metrics", self.admin);
        Ok(client.get(url).send().await?.text().await?)
    }
}

async fn run(w: &mut World) -> anyhow::Result<()> {
    let both = format!("{LAMPS}{BELLS}");
    w.send("lamp", 3).await?;
    w.send("bell", 3).await?;
    w.fired(3, 0).await?;
    anyhow::ensure!(w.metrics().await?.contains("modules_stale 0"));

    // One good half does not come in by itself.
    let broken = both.replace(
        "audience = \"owner\"\nceiling = \"owner\"",
        "audience = \"owner\"\nceiling = \"all\"",
    );
    w.reload(&broken).await?;
    let said = w.process.log_text();
    for named in [
        "house.toml",
        "trigger.0.ceiling",
        "trigger.1.ceiling",
        "those before stay in force",
    ] {
        anyhow::ensure!(said.contains(named), "{named} is not named");
    }
    anyhow::ensure!(w.metrics().await?.contains("modules_stale 1"));
    w.send("lamp", 2).await?;
    w.send("bell", 2).await?;
    w.fired(5, 0).await?;

    w.reload(&both).await?;
    anyhow::ensure!(w.metrics().await?.contains("modules_stale 0"));
    w.send("lamp", 2).await?;
    w.send("bell", 2).await?;
    w.fired(7, 2).await?;
    eventually(
        "the rules of the new group are seeded",
        PATIENCE,
        async || {
            let sql = "SELECT enabled FROM rules WHERE trigger_id = 'house.bell.rung'";
            let rows = w.store.query(sql, &[]).await?;
            Ok(rows.first().map(|row| row.get::<_, bool>(0)))
        },
    )
    .await
    .and_then(|enabled| {
        anyhow::ensure!(!enabled, "a seeded rule is enabled");
        Ok(())
    })?;

    // Under load: whichever set a frame meets, it has one outcome, and a lamp, which both know, fires once.
    for turn in 0..10 {
        w.send("lamp", 100).await?;
        w.reload(if turn % 2 == 0 { LAMPS } else { both.as_str() })
            .await?;
    }
    w.fired(1_007, 2).await?;
    w.deployment
        .launch("verify")?
        .args(["verify"])
        .run(PATIENCE)
        .await?;
    let ended = w.process.terminate(PATIENCE).await?;
    anyhow::ensure!(ended.success(), "{ended}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_deployment_reads_other_manifests_whole_or_not_at_all() {
    let mut world = World::start().await.unwrap();
    let done = run(&mut world).await;
    done.unwrap_or_else(|e| panic!("{e:#}\n{}", world.deployment.last_words()));
}

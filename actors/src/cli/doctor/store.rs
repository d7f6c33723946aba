//! The database, its schema, the sealing key, the disk.

use super::Findings;
use crate::cli::Context;
use crate::postgres::migrate;
use crate::postgres::pool::{Database, chain};
use crate::postgres::tls::Mode;
use crate::postgres::types::Tz;
use crate::runtime::clock;
use crate::sealing::Seals;
use millrace_schemas::time::Micros;
use std::net::IpAddr;
use tokio_postgres::Client;
use tokio_postgres::config::Host;

/// Oldest server that has everything the SQL uses.
const OLDEST: i32 = 140_000;
/// Skew of the clocks that is worth a look, and one that is wrong: leases and click ids are compared over both.
const SKEW_WARN_US: i64 = 2_000_000;
const SKEW_FAIL_US: i64 = 60_000_000;

/// The key of secrets; `None`: it cannot be read.
pub(super) fn secret_key(context: &Context, findings: &mut Findings) -> Option<Seals> {
    const WHAT: &str = "secret key";
    let (read, kept) = context.seals();
    match read {
        Ok(seals) if seals.is_configured() => {
            let place = match kept {
                Some(file) => format!("kept in {}", file.display()),
                None => "MILLRACE_SECRET_KEY is well-formed".to_owned(),
            };
            findings.ok(WHAT, place);
            Some(seals)
        }
        Ok(seals) => {
            findings.warn(
                WHAT,
                "MILLRACE_SECRET_KEY is not set: secrets of networks cannot be shown again",
                "set it to 64 hexadecimal characters (`openssl rand -hex 32`), the same in every process",
            );
            Some(seals)
        }
        Err(e) => {
            findings.fail(
                WHAT,
                e.to_string(),
                "set MILLRACE_SECRET_KEY to 64 hexadecimal characters (`openssl rand -hex 32`)",
            );
            None
        }
    }
}

/// Connects, and looks at the server itself.
pub(super) async fn database(
    context: &Context,
    findings: &mut Findings,
) -> Option<(Database, Client)> {
    const WHAT: &str = "database";
    let database = match context.database() {
        Ok(database) => database,
        Err(e) => {
            findings.fail(
                WHAT,
                format!("{e:#}"),
                "set DATABASE_URL=postgres://user@host/name, or start `millrace up`",
            );
            return None;
        }
    };
    let client = match database.single().await {
        Ok((client, _driver)) => client,
        Err(e) => {
            let says = match &e {
                crate::postgres::pool::DatabaseError::Connect { at, source } => {
                    format!("{at} does not answer: {}", chain(source))
                }
                other => other.to_string(),
            };
            let advice = match says.contains("certificate") || says.contains("TLS") {
                true => {
                    "look at sslmode and `database.ca_file`: the server's certificate was not accepted"
                }
                false => {
                    "is it running, is the address right, may this user connect? `psql \"$DATABASE_URL\"` tells more"
                }
            };
            findings.fail(WHAT, says, advice);
            return None;
        }
    };
    if let Err(e) = server(&database, &client, findings).await {
        findings.broken(WHAT, &e.into());
        return None;
    }
    Some((database, client))
}

async fn server(
    database: &Database,
    client: &Client,
    findings: &mut Findings,
) -> Result<(), tokio_postgres::Error> {
    let before = clock::from_environment().wall();
    let row = client
        .query_one(
            "SELECT current_setting('server_version'), current_setting('server_version_num')::int, clock_timestamp(),
                    current_setting('fsync'), current_setting('synchronous_commit'), current_setting('full_page_writes'),
                    current_setting('max_connections')::int, (SELECT count(*)::int FROM pg_stat_activity),
                    coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), false)",
            &[],
        )
        .await?;
    let after = clock::from_environment().wall();
    let version: String = row.get(0);
    if row.get::<_, i32>(1) < OLDEST {
        findings.fail(
            "database",
            format!("{} is PostgreSQL {version}", database.address()),
            "use PostgreSQL 14 or later",
        );
    } else {
        findings.ok(
            "database",
            format!("{} is PostgreSQL {version}", database.address()),
        );
    }
    encryption(database, row.get(8), findings);
    skew(row.get::<_, Tz>(2).0, before, after, findings);
    let (fsync, commit, pages): (String, String, String) = (row.get(3), row.get(4), row.get(5));
    match (fsync.as_str(), commit.as_str(), pages.as_str()) {
        ("on", "on" | "remote_apply" | "remote_write" | "local", "on") => {
            findings.ok("durability", "fsync, synchronous_commit and full_page_writes are on");
        }
        _ => findings.fail(
            "durability",
            format!("fsync is {fsync}, synchronous_commit {commit}, full_page_writes {pages}: what was acknowledged can be lost"),
            "switch all three on in postgresql.conf",
        ),
    }
    let (most, now): (i32, i32) = (row.get(6), row.get(7));
    if now.saturating_mul(10) > most.saturating_mul(9) {
        findings.warn(
            "connections",
            format!("{now} of {most} are in use"),
            "raise max_connections, or lower database.pool and log.partitions per process",
        );
    } else {
        findings.ok("connections", format!("{now} of {most} are in use"));
    }
    Ok(())
}

fn encryption(database: &Database, encrypted: bool, findings: &mut Findings) {
    const WHAT: &str = "TLS";
    let near = database.config().get_hosts().iter().all(|host| match host {
        Host::Tcp(name) => {
            name == "localhost" || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
        }
        #[cfg(unix)]
        Host::Unix(_) => true,
    });
    let mode = database.mode();
    let says = format!(
        "the connection is {}encrypted, sslmode={}",
        if encrypted { "" } else { "not " },
        mode.word()
    );
    match (near, mode) {
        (true, _) => findings.ok(WHAT, format!("{says}; the database is on this machine")),
        (false, Mode::VerifyFull) => findings.ok(WHAT, says),
        (false, _) => findings.warn(
            WHAT,
            says,
            "the database is on another machine: use sslmode=verify-full, with `database.ca_file` where its authority is private",
        ),
    }
}

fn skew(theirs: Micros, before: Micros, after: Micros, findings: &mut Findings) {
    const WHAT: &str = "clock";
    // The answer was made somewhere between: only what lies outside is skew.
    let away = (before.0 - theirs.0).max(theirs.0 - after.0).max(0);
    let says = format!(
        "the database's clock is {:.1} s away from this machine's",
        away as f64 / 1e6
    );
    let advice = "run an NTP client on both machines";
    match away {
        s if s > SKEW_FAIL_US => findings.fail(WHAT, says, advice),
        s if s > SKEW_WARN_US => findings.warn(WHAT, says, advice),
        _ => findings.ok(WHAT, says),
    }
}

/// Whether the schema is this program's.
pub(super) async fn schema(client: &Client, findings: &mut Findings) -> bool {
    const WHAT: &str = "schema";
    let applied = match migrate::applied(client).await {
        Ok(applied) => applied,
        Err(e) => {
            findings.broken(WHAT, &e.into());
            return false;
        }
    };
    let known = migrate::known();
    let missing: Vec<String> = known
        .iter()
        .filter(|(v, _)| !applied.contains(v))
        .map(|(v, name)| format!("V{v:03} {name}"))
        .collect();
    let newer: Vec<String> = applied
        .iter()
        .filter(|v| known.iter().all(|(k, _)| k != *v))
        .map(|v| format!("V{v:03}"))
        .collect();
    if !missing.is_empty() {
        findings.fail(
            WHAT,
            format!("not applied: {}", missing.join(", ")),
            "run `millrace migrate`",
        );
        return false;
    }
    if !newer.is_empty() {
        let own = known.last().map_or(0, |(v, _)| *v);
        let floor = match migrate::standing(client).await {
            Ok((_, floor)) => floor,
            Err(e) => {
                findings.broken(WHAT, &e.into());
                return false;
            }
        };
        let says = format!(
            "made by a newer Millrace: {} is unknown here",
            newer.join(", ")
        );
        if floor <= own {
            findings.warn(
                WHAT,
                says,
                "finish the upgrade: this older program still runs beside the newer",
            );
        } else {
            findings.fail(WHAT, says, "use the newer version of this program");
        }
        return true;
    }
    findings.ok(
        WHAT,
        format!(
            "up to date at version {}",
            known.last().map_or(0, |(v, _)| *v)
        ),
    );
    true
}

/// Today's partitions, and those of the next days.
pub(super) async fn partitions(client: &Client, findings: &mut Findings) -> anyhow::Result<()> {
    const WHAT: &str = "partitions";
    let now = client
        .query_one("SELECT now()", &[])
        .await?
        .get::<_, Tz>(0)
        .0;
    let today = migrate::missing_partitions(client, now, now).await?;
    let (_, ahead) = migrate::window(now);
    let later = migrate::missing_partitions(client, now, ahead).await?;
    let advice = "`millrace migrate` makes them; a running process makes them by itself every hour, unless its log says why not";
    if !today.is_empty() {
        findings.fail(
            WHAT,
            format!("missing for today: {}", today.join(", ")),
            advice,
        );
    } else if !later.is_empty() {
        findings.warn(
            WHAT,
            format!("missing for the next days: {}", later.join(", ")),
            advice,
        );
    } else {
        findings.ok(
            WHAT,
            format!(
                "of every fact table, up to {} days ahead",
                migrate::DAYS_AHEAD
            ),
        );
    }
    Ok(())
}

/// The disk below the data of `millrace up`, where they are on this machine.
pub(super) fn disk(context: &Context, findings: &mut Findings) {
    const WHAT: &str = "disk";
    let settings = context.settings();
    let folder = &settings.database.data_dir;
    if settings.database.url.is_some() || !folder.is_dir() {
        return;
    }
    match rustix::fs::statvfs(folder) {
        Err(e) => findings.warn(
            WHAT,
            format!("{}: {e}", folder.display()),
            "is the folder readable?",
        ),
        Ok(stat) => {
            let free = stat.f_bavail.saturating_mul(stat.f_frsize);
            let says = format!("{} MiB are free under {}", free >> 20, folder.display());
            if free < settings.http.disk_low_watermark {
                findings.fail(
                    WHAT,
                    format!("{says}, below http.disk_low_watermark: the doors answer 503"),
                    "make room, or lower the watermark",
                );
            } else {
                findings.ok(WHAT, says);
            }
        }
    }
}

//! TLS to PostgreSQL: each sslmode against a server with a certificate of a private authority.

use millrace::postgres::pool::Database;
use millrace::settings;
use millrace_tests::certificates::Authority;
use millrace_tests::postgres::{DedicatedServer, StopMode};
use millrace_tests::process::Scratch;
use std::path::Path;

/// Two authorities, and a certificate of the first for `localhost` alone (not for 127.0.0.1).
fn certificates(folder: &Path) {
    Authority::new(folder, "ca").sign("server", "DNS:localhost");
    let _ = Authority::new(folder, "other");
}

/// Switches TLS on, and plain TCP off.
fn with_tls(folder: &Path) -> DedicatedServer {
    let mut server = DedicatedServer::start();
    server.stop(StopMode::Fast);
    let data = server.data_dir();
    for name in ["server.crt", "server.key"] {
        let text = std::fs::read(folder.join(name)).unwrap();
        let path = data.join(name);
        std::fs::write(&path, text).unwrap();
        // As PostgreSQL wants its key: its own user's, nobody else's.
        use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
        let owner = std::fs::metadata(&data).unwrap();
        chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    let conf = data.join("postgresql.auto.conf");
    std::fs::write(conf, "ssl = on\n").unwrap();
    std::fs::write(
        data.join("pg_hba.conf"),
        "hostssl all all 127.0.0.1/32 trust\n",
    )
    .unwrap();
    server.start_again();
    server
}

async fn connect(url: &str) -> Result<bool, String> {
    let settings = settings::Database {
        url: Some(url.to_owned()),
        ..settings::Database::default()
    };
    let database = Database::new(&settings, "tls").map_err(|e| e.to_string())?;
    let (client, _driver) = database
        .single()
        .await
        .map_err(|e| millrace::postgres::pool::chain(&e))?;
    let row = client
        .query_one(
            "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()",
            &[],
        )
        .await
        .map_err(|e| e.to_string())?;
    Ok(row.get(0))
}

#[tokio::test]
async fn each_mode_accepts_and_refuses_what_libpq_does() {
    let scratch = Scratch::new("tls").unwrap();
    let folder = scratch.path().to_owned();
    let server = tokio::task::spawn_blocking(move || {
        certificates(&folder);
        with_tls(&folder)
    })
    .await
    .unwrap();
    let ca = scratch.path().join("ca.pem").display().to_string();
    let other = scratch.path().join("other.pem").display().to_string();
    let at = |host: &str, rest: &str| {
        format!(
            "postgres://postgres@{host}:{}/postgres?hostaddr=127.0.0.1&{rest}",
            server.port()
        )
    };
    let (name, number) = ("localhost", "127.0.0.1");

    for good in [
        at(name, "sslmode=prefer"),
        at(name, ""),
        at(number, "sslmode=require"),
        at(number, &format!("sslmode=require&sslrootcert={ca}")),
        at(number, &format!("sslmode=verify-ca&sslrootcert={ca}")),
        at(name, &format!("sslmode=verify-full&sslrootcert={ca}")),
    ] {
        assert_eq!(connect(&good).await, Ok(true), "{good}");
    }
    for (bad, named) in [
        (at(name, "sslmode=disable"), "no encryption"),
        (
            at(name, &format!("sslmode=require&sslrootcert={other}")),
            "certificate",
        ),
        (
            at(name, &format!("sslmode=verify-ca&sslrootcert={other}")),
            "certificate",
        ),
        (at(name, "sslmode=verify-ca"), "certificate"),
        (at(name, "sslmode=verify-full"), "certificate"),
        (
            at(number, &format!("sslmode=verify-full&sslrootcert={ca}")),
            "certificate",
        ),
    ] {
        let why = connect(&bad).await.unwrap_err();
        assert!(why.contains(named), "{bad}: {why}");
    }
}

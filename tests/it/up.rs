//! `millrace up` with a PostgreSQL of its own: from nothing, after a crash, when the server dies, when asked to stop.

use millrace_tests::process::{Launch, Process, Scratch, eventually, free_address};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(30);

fn launch(name: &str, scratch: &Scratch, doors: SocketAddr) -> Launch {
    Launch::product(name, scratch.path())
        .unwrap()
        .setting("http.doors", doors)
        .setting("http.admin", doors)
}

async fn up(name: &str, scratch: &Scratch) -> (Process, SocketAddr) {
    let doors = free_address().unwrap();
    let mut process = launch(name, scratch, doors).arg("up").spawn().unwrap();
    process.wait_for_log("millrace is up", SOON).await.unwrap();
    (process, doors)
}

async fn command(scratch: &Scratch, name: &str, words: &[&str]) -> String {
    let launch = launch(name, scratch, free_address().unwrap())
        .env("RUST_LOG", "off")
        .args(words.iter().copied());
    launch.run(SOON).await.unwrap()
}

/// The server's process, from its own file.
fn postmaster(data: &Path) -> Option<i32> {
    let text = std::fs::read_to_string(data.join("postgres/postmaster.pid")).ok()?;
    text.lines().next()?.trim().parse().ok()
}

async fn gone(pid: i32) {
    eventually("the server is gone", SOON, async || {
        Ok((!Path::new(&format!("/proc/{pid}")).exists()).then_some(()))
    })
    .await
    .unwrap();
}

fn signal(pid: i32, signal: i32) {
    let pid = pid.to_string();
    let name = format!("-{signal}");
    let done = std::process::Command::new("kill")
        .args([&name, &pid])
        .status();
    assert!(done.unwrap().success());
}

#[tokio::test]
async fn from_nothing_through_crashes_to_an_orderly_end() {
    let scratch = Scratch::new("up").unwrap();
    let data = scratch.path().join("data");
    let (mut first, doors) = up("up-1", &scratch).await;
    let ready = get(doors, "/readyz").await;
    assert!(ready.contains("\"ready\":true"), "{ready}");

    // Other commands find the database that runs here, and a second `up` leaves it alone.
    command(&scratch, "ws", &["workspace", "create", "acme"]).await;
    let key = command(
        &scratch,
        "key",
        &[
            "key",
            "create",
            "--workspace",
            "acme",
            "--name",
            "me",
            "--scopes",
            "full",
        ],
    )
    .await;
    assert!(key.contains("rk_"), "{key}");
    let mut second = launch("second", &scratch, free_address().unwrap())
        .arg("up")
        .spawn()
        .unwrap();
    let status = second.wait(SOON).await.unwrap();
    assert_eq!(status.code(), Some(1));
    assert!(
        second
            .log_text()
            .contains("another `millrace up` is running"),
        "{}",
        second.log_text()
    );

    // Killed: the server goes with it, and the next start is none the worse.
    let server = postmaster(&data).unwrap();
    first.kill().unwrap();
    gone(server).await;
    let (mut third, _) = up("up-3", &scratch).await;
    let list = command(&scratch, "ls", &["workspace", "list"]).await;
    assert!(list.contains("acme"), "{list}");

    // The server dies: the process says so and ends.
    let server = postmaster(&data).unwrap();
    signal(server, 9);
    let status = third.wait(SOON).await.unwrap();
    assert_eq!(status.code(), Some(1));
    assert!(
        third.log_text().contains("PostgreSQL has ended"),
        "{}",
        third.last_words(20)
    );

    // A pid file of a former life whose number is now somebody else's, as in a container.
    let pid_file = data.join("postgres/postmaster.pid");
    std::fs::write(&pid_file, format!("{}\n", std::process::id())).unwrap();
    let (mut fourth, _) = up("up-4", &scratch).await;
    let server = postmaster(&data).unwrap();
    let status = fourth.terminate(SOON).await.unwrap();
    assert_eq!(status.code(), Some(0), "{}", fourth.last_words(20));
    gone(server).await;
    assert!(!pid_file.exists(), "an orderly end leaves no pid file");
    assert!(!data.join("database.url").exists());
}

#[tokio::test]
async fn after_a_restore_nothing_leaves_until_it_is_released() {
    let scratch = Scratch::new("up-restore").unwrap();
    let doors = free_address().unwrap();
    let mut process = launch("up", &scratch, doors)
        .arg("up")
        .arg("--after-restore")
        .spawn()
        .unwrap();
    process.wait_for_log("millrace is up", SOON).await.unwrap();
    assert!(
        process.log_text().contains("release --all-held"),
        "{}",
        process.log_text()
    );
    // It is not forgotten by the next start either.
    assert!(process.terminate(SOON).await.unwrap().success());
    let (mut process, _) = up("up-2", &scratch).await;
    let release = ["outbox", "release", "--all-held"];
    let said = command(&scratch, "release", &release).await;
    assert!(said.contains("the outbox goes on"), "{said}");
    let said = command(&scratch, "again", &release).await;
    assert!(said.contains("was not held"), "{said}");
    assert!(process.terminate(SOON).await.unwrap().success());
}

/// Idle, `up` is small: the bound leaves room for whoever measures with another allocator or more threads.
#[tokio::test]
async fn idle_it_needs_little_memory() {
    let scratch = Scratch::new("up-idle").unwrap();
    let (mut process, _) = up("up", &scratch).await;
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap();
    let kib: u64 = status
        .lines()
        .find_map(|l| {
            l.strip_prefix("VmRSS:")?
                .split_whitespace()
                .next()?
                .parse()
                .ok()
        })
        .unwrap();
    assert!(kib < 120 * 1024, "{kib} KiB");
    assert!(process.terminate(SOON).await.unwrap().success());
}

async fn get(address: SocketAddr, path: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

//! Makes the peers' programs, each from its own sources and locked dependencies, under target/peers.

use super::peer::Peer;
use anyhow::{Context, ensure};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The folder of this crate.
#[must_use]
pub fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn made() -> PathBuf {
    folder().join("../target/peers")
}

/// The arroyo peer's program.
#[must_use]
pub fn arroyo() -> PathBuf {
    made().join("arroyo/release/arroyo-peer")
}

/// The Python that has the peer's requirements.
#[must_use]
pub fn python() -> PathBuf {
    made().join("python/bin/python")
}

/// Where the Java peer's classes are.
#[must_use]
pub fn class_path() -> OsString {
    let streams = made().join("streams");
    let mut path = streams.join("streams.jar").into_os_string();
    path.push(":");
    path.push(streams.join("lib/*"));
    path
}

/// A line of a properties file; empty if it has none.
#[must_use]
pub fn property<'a>(text: &'a str, name: &str) -> &'a str {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
        .unwrap_or_default()
        .trim()
}

/// Makes a peer's program, or finds it made.
///
/// # Errors
/// A tool is missing, or it fails: its last words.
pub fn make(peer: Peer) -> anyhow::Result<()> {
    match peer {
        Peer::Product => crate::contender::product().map(|_| ()),
        Peer::Bare => Ok(()),
        Peer::Streams | Peer::StreamsRocksdb => {
            need("java", "Java 17")?;
            need("mvn", "Maven")?;
            let mut mvn = Command::new("mvn");
            mvn.args(["-q", "-B", "-f"])
                .arg(folder().join("peers/streams/pom.xml"))
                .arg("package");
            run(mvn, "building the Kafka Streams peer")
        }
        Peer::Arroyo => {
            need("cmake", "cmake, which arroyo builds librdkafka with,")?;
            let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
            let mut cargo = Command::new(cargo);
            cargo
                .args(["build", "--release", "--locked", "-q", "--manifest-path"])
                .arg(folder().join("peers/arroyo/Cargo.toml"))
                .arg("--target-dir")
                .arg(made().join("arroyo"))
                // See the header there.
                .env("C_INCLUDE_PATH", folder().join("peers/arroyo/include"));
            run(cargo, "building the arroyo peer")
        }
        Peer::Quix => quix(),
    }
}

fn quix() -> anyhow::Result<()> {
    let requirements = folder().join("peers/python/requirements.txt");
    let wanted = std::fs::read_to_string(&requirements)?;
    let stamp = made().join("python/.installed");
    if std::fs::read_to_string(&stamp).is_ok_and(|has| has == wanted) && python().is_file() {
        return Ok(());
    }
    need("python3", "Python 3.11 or later")?;
    let mut venv = Command::new("python3");
    venv.args(["-m", "venv", "--clear"])
        .arg(made().join("python"));
    run(venv, "making the Python peer's environment")?;
    let mut pip = Command::new(python());
    pip.args(["-m", "pip", "install", "-q", "--no-deps", "-r"])
        .arg(&requirements);
    run(pip, "installing the Python peer's requirements")?;
    std::fs::write(&stamp, wanted)?;
    Ok(())
}

/// Fails where a program is not to be had.
fn need(program: &str, what: &str) -> anyhow::Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    ensure!(
        std::env::split_paths(&path).any(|folder| is_program(&folder.join(program))),
        "{what} is not installed (no `{program}` found); leave the peer out with --only"
    );
    Ok(())
}

fn is_program(path: &Path) -> bool {
    path.is_file()
}

fn run(mut command: Command, what: &str) -> anyhow::Result<()> {
    println!("{what}");
    let out = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| what.to_owned())?;
    let said = [out.stdout, out.stderr].concat();
    ensure!(
        out.status.success(),
        "{what}: {}\n{}",
        out.status,
        String::from_utf8_lossy(&said)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_property_is_its_line() {
        let text = "# jvm.sink=-Xmx1g\njvm.streams=-Xms1g -Xmx2g \njvm.sink=-Xmx512m\n";
        assert_eq!(property(text, "jvm.streams"), "-Xms1g -Xmx2g");
        assert_eq!(property(text, "jvm.sink"), "-Xmx512m");
        assert_eq!(property(text, "jvm"), "");
    }
}

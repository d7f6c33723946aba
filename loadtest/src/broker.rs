//! One Apache Kafka node for a measurement, from the jars that `.ci/kafka.sh fetch` has fetched.

use anyhow::{Context, ensure};
use millrace_tests::process::spawn_with_parent;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Folders of nodes; the rest of the name is the process id of whoever started one.
const PREFIX: &str = "millrace-loadtest-kafka-";

/// A node; ended, and its data removed, with this value.
pub struct Broker {
    child: Child,
    address: String,
    version: String,
    folder: PathBuf,
}

fn lib() -> anyhow::Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let lib = std::env::var_os("MILLRACE_KAFKA_LIB")
        .map_or_else(|| root.join("target/kafka/lib"), PathBuf::from);
    ensure!(
        lib.join(".fetched").is_file(),
        "no Apache Kafka in {}: run .ci/kafka.sh fetch",
        lib.display()
    );
    Ok(lib.canonicalize()?)
}

/// Removes what runs that were killed have left behind.
fn sweep() {
    let entries = std::fs::read_dir(std::env::temp_dir())
        .into_iter()
        .flatten();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|n| n.strip_prefix(PREFIX));
        // Without /proc nobody can tell whose it is.
        let gone =
            |pid: &str| Path::new("/proc/self").exists() && !Path::new("/proc").join(pid).exists();
        if owner.is_some_and(gone) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

impl Broker {
    /// Formats a fresh node and starts it. Blocks until it takes connections.
    ///
    /// # Errors
    /// No Java, no jars, or it does not come up within a minute.
    pub fn start() -> anyhow::Result<Broker> {
        let lib = lib()?;
        let version = std::fs::read_dir(&lib)?
            .flatten()
            .find_map(|e| {
                let name = e.file_name().into_string().ok()?;
                Some(
                    name.strip_prefix("kafka_")?
                        .strip_suffix(".jar")?
                        .to_owned(),
                )
            })
            .unwrap_or_default();
        let version = version
            .split_once('-')
            .map_or(version.clone(), |(_, v)| v.to_owned());
        sweep();
        let folder = std::env::temp_dir().join(format!("{PREFIX}{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let (port, controller) = (free_port()?, free_port()?);
        let template =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/kafka/single.properties.tmpl");
        let properties = std::fs::read_to_string(template)?
            .replace("@PORT@", &port.to_string())
            .replace("@CONTROLLER_PORT@", &controller.to_string())
            .replace("@LOG_DIR@", &folder.join("data").display().to_string());
        let config = folder.join("server.properties");
        std::fs::write(&config, properties)?;
        let class_path = format!("{}/*:{}", lib.display(), lib.display());
        let tool = |args: &[&str]| -> anyhow::Result<String> {
            let out = Command::new("java")
                .args(["-cp", &class_path, "kafka.tools.StorageTool"])
                .args(args)
                .output()
                .context("java")?;
            ensure!(
                out.status.success(),
                "StorageTool: {}",
                String::from_utf8_lossy(&out.stderr)
            );
            Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
        };
        let id = tool(&["random-uuid"])?;
        let path = config.display().to_string();
        tool(&["format", "--standalone", "-t", &id, "-c", &path])?;
        let log = std::fs::File::create(folder.join("log"))?;
        let mut java = Command::new("java");
        java.args([
            "-Xms512m",
            "-Xmx512m",
            "-cp",
            &class_path,
            "kafka.Kafka",
            &path,
        ])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
        // However this program ends, no broker outlives it.
        let child = spawn_with_parent(java)?;
        let mut broker = Broker {
            child,
            address: format!("127.0.0.1:{port}"),
            version,
            folder,
        };
        let until = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(&broker.address).is_err() {
            ensure!(
                broker.child.try_wait()?.is_none() && Instant::now() < until,
                "Kafka does not come up: {}",
                std::fs::read_to_string(broker.folder.join("log")).unwrap_or_default()
            );
            std::thread::park_timeout(Duration::from_millis(100));
        }
        Ok(broker)
    }

    /// `bootstrap.servers`.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where its data lies.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The version of its jars.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

//! A real Apache Kafka for tests: one broker a test binary, brokers of one's own to stop and kill, a cluster of three.
//!
//! `.ci/kafka.sh fetch` puts the jars into `target/kafka/lib`. With `MILLRACE_TEST_KAFKA=absent` [`shared`] says so and gives
//! `None`, and a test returns.

use crate::process::{free_address, spawn_with_parent};
use crate::proxy::{Protocol, Proxy};
use millrace_topics::contract::TopicRef;
use millrace_topics::kafka::{KafkaAdmin, KafkaSettings};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How long a node may take to answer.
const READY: Duration = Duration::from_secs(90);
/// Small internal topics: the first join of a group need not wait for 50 partitions.
const SMALL: &str = "\noffsets.topic.num.partitions=4\ntransaction.state.log.num.partitions=4\n\
                     share.coordinator.state.topic.num.partitions=2\n";
/// What a node says that finds its port taken.
const TAKEN: &str = "Address already in use";
const PREFIX: &str = "millrace-test-kafka-";

/// Whether tests are to do without Kafka.
#[must_use]
pub fn is_absent() -> bool {
    std::env::var("MILLRACE_TEST_KAFKA").is_ok_and(|v| v == "absent")
}

/// The broker that all tests of a binary share, started by the first that asks. `None` (and a note on stderr) where Kafka is
/// absent.
///
/// # Panics
/// It does not start.
pub async fn shared() -> Option<&'static Kafka> {
    static SHARED: OnceLock<Kafka> = OnceLock::new();
    if is_absent() {
        eprintln!("not run: Apache Kafka is absent (MILLRACE_TEST_KAFKA=absent)");
        return None;
    }
    let started = tokio::task::spawn_blocking(|| SHARED.get_or_init(Kafka::start));
    Some(started.await.expect("Kafka starts"))
}

/// One node: a process of its own on a folder of its own.
struct Node {
    folder: PathBuf,
    port: u16,
    child: Option<Child>,
    /// Stands before a second listener of it.
    proxy: Option<Proxy>,
}

impl Node {
    fn launch(&mut self) {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.folder.join("log"))
            .expect("a log file");
        let mut java = java();
        java.args(["-Xms128m", "-Xmx512m", "-XX:+UseSerialGC"])
            .arg("-XX:TieredStopAtLevel=1")
            .arg("kafka.Kafka")
            .arg(self.folder.join("server.properties"))
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let child = spawn_with_parent(java).expect("java runs");
        self.child = Some(child);
    }

    fn signal(&self, signal: i32) {
        if let Some(pid) = self.child.as_ref().and_then(|c| i32::try_from(c.id()).ok()) {
            #[expect(unsafe_code, reason = "kill(2) on a child of ours")]
            // SAFETY: kill has no memory effects.
            unsafe {
                libc::kill(pid, signal);
            }
        }
    }

    fn end(&mut self, signal: i32) {
        self.signal(signal);
        if let Some(mut child) = self.child.take() {
            let _ = child.wait();
        }
    }

    fn has_ended(&mut self) -> Option<std::process::ExitStatus> {
        self.child.as_mut()?.try_wait().ok().flatten()
    }

    fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.end(libc::SIGKILL);
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// One broker, or a cluster of three. Dropped, it is killed and its data removed.
pub struct Kafka {
    nodes: Vec<Mutex<Node>>,
    brokers: String,
}

impl Kafka {
    /// A single broker. Blocks until it answers (about four seconds); call it outside of async code.
    ///
    /// # Panics
    /// The jars are not there, or it does not start.
    #[must_use]
    pub fn start() -> Kafka {
        Kafka::start_with("", &[])
    }

    /// A single broker with further lines in its properties, and further arguments for the formatting of its storage
    /// (`--feature`, `group.version=0` for one without KIP-848).
    ///
    /// # Panics
    /// As [`Kafka::start`].
    #[must_use]
    pub fn start_with(properties: &str, format: &[&str]) -> Kafka {
        Kafka::single(properties, format, false)
    }

    /// A single broker or a cluster of three with a proxy before each ([`Kafka::proxies`]): whoever begins at
    /// [`Kafka::proxied_brokers`] is led through them alone, all others past them.
    ///
    /// # Panics
    /// As [`Kafka::start`].
    #[must_use]
    pub fn start_proxied(properties: &str, cluster: bool) -> Kafka {
        if cluster {
            Kafka::cluster(properties, true)
        } else {
            Kafka::single(properties, &[], true)
        }
    }

    fn single(properties: &str, format: &[&str], proxied: bool) -> Kafka {
        Kafka::up(|| {
            let [port, controller] = [free_port(), free_port()];
            let template = include_str!("../kafka/single.properties.tmpl");
            let node = prepare(template, port, proxied, |text| {
                text.replace("@CONTROLLER_PORT@", &controller.to_string()) + SMALL + properties
            });
            let id = random_uuid();
            storage(&node, &id, &[&["--standalone"], format].concat());
            vec![node]
        })
    }

    /// Three brokers, each also a controller; topics have three replicas, of which two must be in sync. Blocks for about
    /// fourteen seconds.
    ///
    /// # Panics
    /// As [`Kafka::start`].
    #[must_use]
    pub fn start_cluster() -> Kafka {
        Kafka::start_cluster_with("")
    }

    /// As [`Kafka::start_cluster`], with further lines in the properties of each; the last of a name counts.
    ///
    /// # Panics
    /// As [`Kafka::start`].
    #[must_use]
    pub fn start_cluster_with(properties: &str) -> Kafka {
        Kafka::cluster(properties, false)
    }

    fn cluster(properties: &str, proxied: bool) -> Kafka {
        Kafka::up(|| {
            let ports: Vec<(u16, u16)> = (0..3).map(|_| (free_port(), free_port())).collect();
            let voters = ports
                .iter()
                .enumerate()
                .map(|(i, (_, controller))| format!("{}@127.0.0.1:{controller}", i + 1))
                .collect::<Vec<_>>()
                .join(",");
            let template = include_str!("../kafka/cluster.properties.tmpl");
            let id = random_uuid();
            ports
                .iter()
                .enumerate()
                .map(|(i, (port, controller))| {
                    let node = prepare(template, *port, proxied, |text| {
                        text.replace("@NODE_ID@", &(i + 1).to_string())
                            .replace("@VOTERS@", &voters)
                            .replace("@CONTROLLER_PORT@", &controller.to_string())
                            + SMALL
                            + properties
                    });
                    storage(&node, &id, &[]);
                    node
                })
                .collect()
        })
    }

    /// Nodes are prepared anew where one finds a port taken: it was free when it was chosen.
    fn up(prepare: impl Fn() -> Vec<Node>) -> Kafka {
        for _ in 0..5 {
            match Kafka::try_up(prepare()) {
                Ok(kafka) => return kafka,
                Err(why) => assert!(why.contains(TAKEN), "{why}"),
            }
        }
        panic!("no free ports for Kafka");
    }

    fn try_up(mut nodes: Vec<Node>) -> Result<Kafka, String> {
        nodes.iter_mut().for_each(Node::launch);
        let brokers = nodes
            .iter()
            .map(|n| format!("127.0.0.1:{}", n.port))
            .collect::<Vec<_>>()
            .join(",");
        let kafka = Kafka {
            nodes: nodes.into_iter().map(Mutex::new).collect(),
            brokers,
        };
        kafka.ready(kafka.nodes.len())?;
        Ok(kafka)
    }

    /// `bootstrap.servers`.
    #[must_use]
    pub fn brokers(&self) -> &str {
        &self.brokers
    }

    /// `bootstrap.servers` for clients that go through the proxies; empty where there are none.
    #[must_use]
    pub fn proxied_brokers(&self) -> String {
        let addresses = (0..self.nodes.len())
            .filter_map(|n| Some(self.node(n).proxy.as_ref()?.address().to_string()));
        addresses.collect::<Vec<_>>().join(",")
    }

    /// Does something to every proxy.
    pub fn proxies(&self, mut act: impl FnMut(&Proxy)) {
        for n in 0..self.nodes.len() {
            if let Some(proxy) = &self.node(n).proxy {
                act(proxy);
            }
        }
    }

    /// The port of a node (0, 1 …).
    #[must_use]
    pub fn port(&self, node: usize) -> u16 {
        self.node(node).port
    }

    /// Settings for clients, with a session of six seconds.
    #[must_use]
    pub fn settings(&self) -> KafkaSettings {
        KafkaSettings {
            brokers: self.brokers.clone(),
            ..KafkaSettings::default()
        }
    }

    fn node(&self, node: usize) -> std::sync::MutexGuard<'_, Node> {
        self.nodes[node]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// SIGKILL.
    pub fn kill(&self, node: usize) {
        self.node(node).end(libc::SIGKILL);
    }

    /// SIGTERM, and waits for its end.
    pub fn stop(&self, node: usize) {
        self.node(node).end(libc::SIGTERM);
    }

    /// SIGSTOP: it is there, and says nothing.
    pub fn freeze(&self, node: usize) {
        self.node(node).signal(libc::SIGSTOP);
    }

    /// SIGCONT.
    pub fn thaw(&self, node: usize) {
        self.node(node).signal(libc::SIGCONT);
    }

    /// Starts a node that was stopped or killed; blocks until the cluster counts as many brokers as run.
    ///
    /// # Panics
    /// It does not come up.
    pub fn start_again(&self, node: usize) {
        self.node(node).launch();
        let running = (0..self.nodes.len())
            .filter(|&n| self.node(n).child.is_some())
            .count();
        self.wait_ready(running);
    }

    /// Starts every node that was stopped or killed, all at once: one of three alone would wait for the others for ever. Blocks
    /// as [`Kafka::start_again`].
    ///
    /// # Panics
    /// They do not come up.
    pub fn start_all_again(&self) {
        for n in 0..self.nodes.len() {
            let mut node = self.node(n);
            if node.child.is_none() {
                node.launch();
            }
        }
        self.wait_ready(self.nodes.len());
    }

    /// Waits for a restart: its ports must be the same, and who has taken one meanwhile lets go of it some time.
    fn wait_ready(&self, brokers: usize) {
        let deadline = Instant::now() + READY;
        while let Err(why) = self.ready(brokers) {
            let again = why.contains(TAKEN) && Instant::now() < deadline;
            assert!(again, "{why}");
            std::thread::park_timeout(Duration::from_millis(200));
            for n in 0..self.nodes.len() {
                let mut node = self.node(n);
                if node.has_ended().is_some() {
                    node.launch();
                }
            }
        }
    }

    fn ready(&self, brokers: usize) -> Result<(), String> {
        let deadline = Instant::now() + READY;
        loop {
            for n in 0..self.nodes.len() {
                let mut node = self.node(n);
                if let Some(ended) = node.has_ended() {
                    return Err(format!("Kafka ended ({ended:?}): {}", node.log_tail()));
                }
            }
            let client: BaseConsumer = ClientConfig::new()
                .set("bootstrap.servers", &self.brokers)
                .set("log_level", "0")
                .set("reconnect.backoff.max.ms", "250")
                .create()
                .expect("a client");
            let found = client
                .fetch_metadata(None, Duration::from_secs(2))
                .map_or(0, |m| m.brokers().len());
            if found >= brokers {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let said = self.node(0).log_tail();
                return Err(format!("Kafka does not answer: {said}"));
            }
            std::thread::park_timeout(Duration::from_millis(50));
        }
    }

    /// New topics that no other test uses: names are `name` with a suffix, numbers are the process's own.
    ///
    /// # Panics
    /// Kafka does not make them.
    pub async fn topics(&self, names: &[&str], partitions: i32) -> Vec<TopicRef> {
        static NUMBERS: AtomicI32 = AtomicI32::new(1);
        let admin = KafkaAdmin::new(&self.settings());
        let replication = i32::try_from(self.nodes.len()).expect("few nodes");
        let mut topics = Vec::new();
        for name in names {
            let no = NUMBERS.fetch_add(1, Ordering::Relaxed);
            let log_name = format!("{name}.{}.{no}", std::process::id());
            let made = admin.create_topic(&log_name, partitions, replication).await;
            assert!(made.expect("Kafka makes a topic"), "{log_name} was there");
            topics.push(TopicRef {
                no,
                name: (*name).to_owned(),
                log_name,
                partitions,
            });
        }
        topics
    }
}

/// A name for a consumer group that no other test uses.
#[must_use]
pub fn group_name(name: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{name}.{}.{n}", std::process::id())
}

fn free_port() -> u16 {
    free_address().expect("a free port").port()
}

/// `target/kafka/lib`, or the folder that `MILLRACE_KAFKA_LIB` names.
fn lib() -> PathBuf {
    let lib = std::env::var_os("MILLRACE_KAFKA_LIB").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/kafka/lib"),
        PathBuf::from,
    );
    assert!(
        lib.is_dir(),
        "no Apache Kafka in {}: run `.ci/kafka.sh fetch`, or set MILLRACE_TEST_KAFKA=absent",
        lib.display()
    );
    lib
}

fn java() -> Command {
    let lib = lib();
    let mut java = Command::new("java");
    java.arg("-cp")
        .arg(format!("{0}/*:{0}", lib.display()))
        .env_remove("CLASSPATH");
    java
}

fn random_uuid() -> String {
    let out = java()
        .args([
            "-XX:TieredStopAtLevel=1",
            "kafka.tools.StorageTool",
            "random-uuid",
        ])
        .output()
        .expect("java runs");
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8_lossy(&out.stdout).trim().to_owned()
}

/// A proxy before a second listener, and the properties of a broker that has it.
fn behind_a_proxy(text: &str) -> (String, Proxy) {
    let inner = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let proxy = Proxy::start(inner, Protocol::Opaque).expect("a proxy");
    let mut out = String::with_capacity(text.len() + 100);
    for line in text.lines() {
        out.push_str(line);
        match line.split_once('=').map(|(name, _)| name) {
            Some("listeners") => out.push_str(&format!(",PROXIED://{inner}")),
            Some("advertised.listeners") => {
                out.push_str(&format!(",PROXIED://{}", proxy.address()));
            }
            Some("listener.security.protocol.map") => out.push_str(",PROXIED:PLAINTEXT"),
            _ => {}
        }
        out.push('\n');
    }
    (out, proxy)
}

fn prepare(template: &str, port: u16, proxied: bool, fill: impl FnOnce(String) -> String) -> Node {
    let folder = new_folder();
    let text = template
        .replace("@PORT@", &port.to_string())
        .replace("@LOG_DIR@", &folder.join("data").display().to_string());
    let mut text = fill(text);
    let mut proxy = None;
    if proxied {
        let behind = behind_a_proxy(&text);
        (text, proxy) = (behind.0, Some(behind.1));
    }
    std::fs::write(folder.join("server.properties"), text).expect("properties");
    Node {
        folder,
        port,
        child: None,
        proxy,
    }
}

fn storage(node: &Node, id: &str, more: &[&str]) {
    let out = java()
        .args([
            "-XX:TieredStopAtLevel=1",
            "kafka.tools.StorageTool",
            "format",
        ])
        .args(more)
        .args(["-t", id, "-c"])
        .arg(node.folder.join("server.properties"))
        .output()
        .expect("java runs");
    assert!(
        out.status.success(),
        "{}{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
}

/// A new folder, to be removed at the end of the process (statics are never dropped). The first call removes what killed runs
/// have left.
fn new_folder() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    static SWEPT: OnceLock<()> = OnceLock::new();
    static FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
    extern "C" fn clear() {
        let folders = FOLDERS.lock().map(|mut f| std::mem::take(&mut *f));
        for folder in folders.unwrap_or_default() {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
    let parent = std::env::temp_dir();
    SWEPT.get_or_init(|| {
        if Path::new("/proc/self").exists() {
            for entry in std::fs::read_dir(&parent).into_iter().flatten().flatten() {
                let name = entry.file_name();
                let owner = name
                    .to_str()
                    .and_then(|n| n.strip_prefix(PREFIX)?.split('-').next());
                if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
                    let _ = std::fs::remove_dir_all(entry.path());
                }
            }
        }
        #[expect(unsafe_code, reason = "atexit(3) with a function that lives for ever")]
        // SAFETY: `clear` is a plain function without captured state and does not unwind.
        unsafe {
            libc::atexit(clear);
        }
    });
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = parent.join(format!("{PREFIX}{}-{n}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    FOLDERS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(folder.clone());
    folder
}

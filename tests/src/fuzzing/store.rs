//! What lies in the store, and what this process is told by its operator.

use millrace::delivery::webhook::signature::Secret;
use millrace::sealing::Seals;
use millrace::settings::load_from;
use millrace_topics::pglog::chunk;

const KEY: &str = "0101010101010101010101010101010101010101010101010101010101010101";

/// A chunk of the Postgres log: damage is said once, and what is whole is written as it was read.
pub(super) fn chunk(data: &[u8]) {
    let Ok(records) = chunk::records(data) else {
        return;
    };
    let mut again = vec![];
    let mut damaged = 0;
    let mut whole = 0;
    for record in records {
        match record {
            Ok((key, payload)) => {
                assert!(chunk::push(&mut again, key, payload));
                whole += 1;
            }
            Err(_) => damaged += 1,
        }
    }
    assert!(damaged <= 1);
    if whole > 0 {
        assert_eq!(data.get(..again.len()), Some(&*again));
        assert_eq!(damaged == 0, again.len() == data.len());
    }
}

/// A blob that was not sealed here does not open; what was sealed opens for its purpose alone.
pub(super) fn sealed(data: &[u8]) {
    let seals = Seals::from_texts(Some(KEY), None).expect("a key");
    assert!(seals.open("p", data).is_err(), "forged");
    let blob = seals.seal("p", data).expect("it is sealed");
    assert_eq!(seals.open("p", &blob).ok().as_deref(), Some(data));
    assert!(seals.open("q", &blob).is_err());
    let mut bad = blob;
    let at = data.first().map_or(0, |b| usize::from(*b)) % bad.len();
    bad[at] ^= 0x10;
    assert!(seals.open("p", &bad).is_err(), "byte {at}");
    let text = String::from_utf8_lossy(data);
    if let Err(error) = Seals::from_texts(Some(&text), Some(&text)) {
        assert!(text.len() < 8 || !error.to_string().contains(&*text));
    }
    if let Some(secret) = Secret::parse(&text) {
        let told = format!("{secret:?} {}", secret.sign("id", "1", data));
        assert!(!told.contains(&*text));
    }
}

/// A file (before the first NUL), then `NAME=value` lines of the environment. What is wrong is named; values are not repeated.
pub(super) fn settings(data: &[u8]) {
    let mut parts = data.splitn(2, |b| *b == 0);
    let file = parts.next().unwrap_or_default();
    let environment = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
    let variables = environment
        .lines()
        .filter_map(|l| l.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let path = std::env::temp_dir().join(format!(
        "millrace-fuzz-{}-{:?}.toml",
        std::process::id(),
        std::thread::current().id()
    ));
    std::fs::write(&path, file).expect("a file");
    let loaded = load_from(Some(&path), variables);
    std::fs::remove_file(&path).expect("it is there");
    if let Err(error) = loaded {
        let told = error.to_string();
        assert!(!told.is_empty());
    }
}

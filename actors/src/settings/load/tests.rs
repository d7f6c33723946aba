use super::*;

fn file(text: &str) -> scratch::File {
    scratch::File::new(text)
}

/// A file that goes with its value.
mod scratch {
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};

    pub struct File(pub PathBuf);

    impl File {
        pub fn new(text: &str) -> File {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let n = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir()
                .join(format!("millrace-settings-{}-{n}.toml", std::process::id()));
            std::fs::write(&path, text).unwrap();
            File(path)
        }
    }

    impl Drop for File {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }
}

fn fault(text: &str, variables: &[(&str, &str)]) -> String {
    let file = file(text);
    let variables = variables
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect();
    load_from(Some(&file.0), variables).unwrap_err().to_string()
}

fn shipped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/millrace.toml")
}

fn json(settings: &Settings) -> serde_json::Value {
    serde_json::to_value(settings).unwrap()
}

#[test]
fn the_shipped_file_is_the_defaults() {
    let loaded = load_from(Some(&shipped()), Vec::new()).unwrap();
    assert_eq!(json(&loaded), json(&Settings::default()));
}

/// Every key stands in the file, set or (where there is no default) as a commented line, below its section's head.
#[test]
fn the_shipped_file_lists_every_key() {
    let text = std::fs::read_to_string(shipped()).unwrap();
    let defaults = json(&Settings::default());
    let mut section = String::new();
    let mut listed = std::collections::BTreeSet::new();
    let mut commented = false;
    for line in text.lines() {
        if let Some(head) = line.strip_prefix('[') {
            section = head.trim_end_matches(']').to_owned();
            listed.insert(section.clone());
            assert!(commented, "[{section}] has no comment");
        }
        let bare = line.trim_start_matches("# ");
        if let Some((key, _)) = bare.split_once(" = ")
            && key.chars().all(|c| c.is_ascii_lowercase() || c == '_')
        {
            listed.insert(format!("{section}.{key}"));
            assert!(commented, "{section}.{key} has no comment");
        }
        commented = line.starts_with('#');
    }
    fn every(value: &serde_json::Value, at: &str, listed: &std::collections::BTreeSet<String>) {
        for (key, value) in value.as_object().into_iter().flatten() {
            let key = if at.is_empty() {
                key.clone()
            } else {
                format!("{at}.{key}")
            };
            assert!(
                listed.contains(&key),
                "{key} is not in config/millrace.toml"
            );
            every(value, &key, listed);
        }
    }
    every(&defaults, "", &listed);
}

#[test]
fn the_environment_wins() {
    let file = file("[http]\ndoors = \"0.0.0.0:1\"\nmax_body = 7\n[log]\nprefix = \"x.\"\n");
    let variables = [
        ("DATABASE_URL", "postgres://h/d"),
        ("MILLRACE_HTTP__DOORS", "0.0.0.0:2"),
        ("MILLRACE_HTTP__TRUSTED_PROXIES", "10.0.0.0/8, ::1/128"),
        ("MILLRACE_LOG__BACKEND", "kafka"),
        ("MILLRACE_LOG__PREFIX", "123"),
        ("MILLRACE_LOG__PARTITIONS", "3"),
        ("MILLRACE_LOG__PROPERTIES__SECURITY_PROTOCOL", "SASL_SSL"),
        ("MILLRACE_DELIVERY__ALLOWED_NETWORKS", "127.0.0.0/8"),
        ("MILLRACE_DELIVERY__WEBHOOK__TIMEOUT_MS", "700"),
        ("MILLRACE_DELIVERY__STUB__ENABLED", "true"),
        ("MILLRACE_SECRET_KEY", "not a setting"),
        ("PATH", "/bin"),
    ];
    let variables = variables
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .to_vec();
    let loaded = load_from(Some(&file.0), variables).unwrap();
    assert_eq!(loaded.database.url.as_deref(), Some("postgres://h/d"));
    assert_eq!(loaded.http.doors.port(), 2);
    assert_eq!(loaded.http.max_body, 7);
    assert_eq!(loaded.http.trusted_proxies, ["10.0.0.0/8", "::1/128"]);
    assert_eq!(loaded.log.backend, crate::settings::Backend::Kafka);
    assert_eq!(loaded.log.prefix, "123");
    assert_eq!(loaded.log.partitions, 3);
    assert_eq!(loaded.delivery.allowed_networks, ["127.0.0.0/8"]);
    assert_eq!(loaded.delivery.webhook.timeout_ms, 700);
    assert!(loaded.delivery.stub.enabled);
    assert_eq!(
        loaded.log.properties.get("security.protocol").unwrap(),
        "SASL_SSL"
    );
}

#[test]
fn what_is_wrong_is_named() {
    let text = fault("[database]\npools = 3\n", &[]);
    assert!(text.contains("unknown key `pools` in [database]"), "{text}");
    assert!(text.contains("data_dir"), "{text}");
    let text = fault("[databse]\npool = 3\n", &[]);
    assert!(text.contains("unknown key `databse` at the top"), "{text}");
    let text = fault("[http]\nmax_body = \"big\"\n", &[]);
    assert!(text.contains("`http.max_body` must be"), "{text}");
    let text = fault("[log]\nbackend = \"redis\"\n", &[]);
    assert!(text.contains("redis") && text.contains("kafka"), "{text}");
    let text = fault("", &[("MILLRACE_HTTP__DOOR", "x")]);
    assert!(
        text.contains("MILLRACE_HTTP__DOOR") && text.contains("DOORS"),
        "{text}"
    );
    let text = fault("", &[("MILLRACE_WEB__DOORS", "x")]);
    assert!(text.contains("HTTP"), "{text}");
    for (variable, said) in [
        ("MILLRACE_DELIVERY__WEBHOOK", "it is a table"),
        ("MILLRACE_DELIVERY__WEBHOOK__TIMEOUT", "TIMEOUT_MS"),
        (
            "MILLRACE_DELIVERY__STUB__ENABLED__X",
            "`delivery.stub.enabled` is no table",
        ),
    ] {
        let text = fault("", &[(variable, "1")]);
        assert!(text.contains(variable) && text.contains(said), "{text}");
    }
    let text = fault("[delivery.stub]\nenable = true\n", &[]);
    assert!(
        text.contains("unknown key `enable` in [delivery.stub]"),
        "{text}"
    );
    let text = fault("", &[("MILLRACE_HTTP__DOORS", "localhost")]);
    assert!(
        text.contains("MILLRACE_HTTP__DOORS") && text.contains("http.doors"),
        "{text}"
    );
    let text = fault("", &[("MILLRACE_LOG__PARTITIONS", "many")]);
    assert!(text.contains("whole number"), "{text}");
    let missing = load_from(Some(Path::new("/nowhere.toml")), Vec::new());
    assert!(matches!(missing, Err(SettingsError::NoFile(_))));
}

//! `millrace directory send`: users of a file are users of the directory, and a file with a fault sends nothing.

use super::{SOON, Stage};
use serde_json::json;

const PEOPLE: &str = r#"
{"change": "user", "user": "ada", "name": "Ada", "email": "ada@example.org", "email_verified": true, "role": "editor"}
{"change": "link", "user": "ada", "module": "uo", "shard": "atlantic", "account": "ada-1"}
{"change": "preference", "user": "ada", "id": "uo.server.down", "channel": "inapp", "mode": "instant"}
{"change": "user", "user": "bob", "name": "Bob"}
"#;

#[tokio::test]
async fn users_of_a_file_are_users_of_the_directory() {
    let mut stage = Stage::new("cli-directory").await;
    stage.deployment.set("modules.enabled", "uo");
    stage.ok("workspace create acme").await;
    let write = |name: &str, text: &str| {
        let path = stage.deployment.scratch.path().join(name);
        std::fs::write(path, text).unwrap();
    };
    write("people.ndjson", PEOPLE);
    let faulty = "{\"change\": \"user\", \"user\": \"cyd\"}\n{\"change\": \"user\"}\n\n{\"change\": \"login\", \"user\": \"\"}\n{\"ws\": 99, \"change\": \"login\", \"user\": \"x\"}\n";
    write("faulty.ndjson", faulty);
    write("empty.ndjson", "\n");

    // Each fault by its line, and nothing is sent.
    let said = stage
        .say("directory send faulty.ndjson --workspace acme")
        .await;
    assert_eq!(said.code, Some(2), "{}", said.text);
    for fault in [
        "faulty.ndjson:2: missing field `user`",
        "faulty.ndjson:4: it would be rejected: user_id_malformed",
        "faulty.ndjson:5: there is no workspace of number 99",
        "nothing was sent",
    ] {
        assert!(said.text.contains(fault), "{fault}: {}", said.text);
    }
    for (words, code, why) in [
        ("empty.ndjson --workspace acme", 2, "there is no record"),
        ("nowhere.ndjson --workspace acme", 2, "nowhere.ndjson"),
        ("people.ndjson --workspace beta", 1, "no workspace `beta`"),
        ("people.ndjson", 2, "people.ndjson:2: it names no workspace"),
    ] {
        let said = stage.say(&format!("directory send {words}")).await;
        assert_eq!(said.code, Some(code), "{words}: {}", said.text);
        assert!(said.text.contains(why), "{words}: {}", said.text);
    }

    let (mut process, _) = stage.run("run").await;
    let sent = stage
        .ok("directory send people.ndjson --workspace acme")
        .await;
    assert_eq!(sent, json!({"records": 4, "sent": 4}));
    let consumed =
        "SELECT coalesce(sum(consumed), 0)::int8 FROM positions WHERE group_name = 'directory'";
    stage.until(consumed, 4).await;
    let known = "SELECT count(*) FROM users u JOIN links l USING (workspace_id, user_id) JOIN preferences p USING (workspace_id, user_id)
                 WHERE u.user_id = 'ada' AND u.email = 'ada@example.org' AND u.email_verified AND u.role = 'editor' AND u.status = 'active'
                   AND l.live AND l.account = 'ada-1' AND p.stream_id = 'uo.server.down' AND p.mode = 'instant'";
    assert_eq!(stage.count(known).await, 1);
    assert_eq!(stage.count("SELECT count(*) FROM users").await, 2);
    // What was not sent is not there, and a file that comes twice changes nothing.
    let again = stage
        .ok("directory send people.ndjson --workspace acme")
        .await;
    assert_eq!(again["sent"], 4);
    stage.until(consumed, 8).await;
    assert_eq!(stage.count(known).await, 1);
    assert_eq!(stage.count("SELECT count(*) FROM users").await, 2);
    assert_eq!(
        stage
            .count("SELECT count(*) FROM outcomes WHERE group_name = 'directory' AND reason <> ''")
            .await,
        0
    );
    assert!(process.terminate(SOON).await.unwrap().success());
}

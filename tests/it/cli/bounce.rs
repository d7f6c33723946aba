//! `millrace bounce classify`, for people and for programs.

use super::SOON;
use millrace_tests::process::{Launch, Scratch};
use serde_json::Value;

#[tokio::test]
async fn a_reply_is_classified_for_people_and_for_programs() {
    let scratch = Scratch::new("cli-bounce").unwrap();
    for (n, (reply, verdict, reason)) in [
        (
            "550 5.1.1 No such user",
            "suppress",
            Some("status_of_no_mailbox"),
        ),
        ("550 user unknown", "suppress", Some("words_of_no_mailbox")),
        // All lines of a reply are one argument.
        (
            "550-5.1.1 The email account that you tried to reach\n550 5.1.1 does not exist",
            "suppress",
            Some("status_of_no_mailbox"),
        ),
        ("450 4.2.1 try again later", "keep", Some("not_permanent")),
        ("554 5.7.1 Relay access denied", "keep", None),
        ("hello", "keep", Some("no_reply")),
    ]
    .into_iter()
    .enumerate()
    {
        let classify = |form: &str| {
            Launch::product(&format!("{form}-{n}"), scratch.path())
                .unwrap()
                .env("RUST_LOG", "off")
        };
        let words = ["bounce", "classify", reply];
        let text = classify("text").args(words).run(SOON).await.unwrap();
        let json = classify("json").arg("--json").args(words);
        let json: Value = serde_json::from_str(&json.run(SOON).await.unwrap()).unwrap();
        assert_eq!(json["verdict"], verdict, "{reply}");
        if let Some(reason) = reason {
            assert_eq!(json["reason"], reason, "{reply}");
        }
        let said = |member: &str| json[member].as_str().unwrap().to_owned();
        let same = format!("{verdict}  {}: {}\n", said("reason"), said("why"));
        assert_eq!(text, same, "{reply}");
    }
    // Without a reply the words are wrong.
    let mut lacks = Launch::product("lacks", scratch.path())
        .unwrap()
        .args(["bounce", "classify"])
        .spawn()
        .unwrap();
    assert_eq!(lacks.wait(SOON).await.unwrap().code(), Some(2));
}

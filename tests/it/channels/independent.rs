//! A mail server and a parser that are none of ours: aiosmtpd of Debian (`.ci/install.sh test` brings it), which reads each message
//! with Python's own email package and tells what it understood.

use super::*;
use millrace::delivery::channel::Verdict;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

const SERVER: &str = r#"
import asyncio, json, sys
from email import message_from_bytes, policy
from aiosmtpd.smtp import SMTP

class Handler:
    async def handle_DATA(self, server, session, envelope):
        m = message_from_bytes(envelope.content, policy=policy.default)
        longest = max(len(line) for line in envelope.content.split(b"\r\n"))
        print(json.dumps({
            "from": envelope.mail_from, "to": envelope.rcpt_tos, "subject": m["subject"], "sender": str(m["from"]),
            "id": m["message-id"], "unsubscribe": m["list-unsubscribe"], "post": m["list-unsubscribe-post"],
            "types": [p.get_content_type() for p in m.walk()], "longest": longest,
            "text": m.get_body(("plain",)).get_content(), "html": m.get_body(("html",)).get_content(),
            "defects": [str(d) for p in m.walk() for d in p.defects],
        }), flush=True)
        return "250 taken"

async def main():
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: SMTP(Handler(), enable_SMTPUTF8=True), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    # Ends with whoever started it.
    await loop.run_in_executor(None, sys.stdin.read)

asyncio.run(main())
"#;

struct Server {
    child: Child,
    lines: BufReader<ChildStdout>,
    port: u16,
}

impl Server {
    fn start() -> Server {
        let knows = |python: &&str| {
            let mut asked = Command::new(python);
            asked.args(["-c", "import aiosmtpd"]);
            let status = quietly(&mut asked).status();
            status.is_ok_and(|status| status.success())
        };
        let python = ["/usr/bin/python3", "python3"].into_iter().find(knows);
        let python = python.expect("a Python with aiosmtpd: .ci/install.sh test installs it");
        let mut child = Command::new(python)
            .args(["-c", SERVER])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let mut lines = BufReader::new(child.stdout.take().expect("its output"));
        let mut port = String::new();
        lines.read_line(&mut port).expect("its port");
        Server {
            port: port.trim().parse().expect("a port"),
            child,
            lines,
        }
    }

    /// What it understood of the next message.
    fn understood(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a message");
        serde_json::from_str(&line).expect("JSON")
    }
}

fn quietly(command: &mut Command) -> &mut Command {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[actix::test]
async fn another_server_and_another_parser_understand_what_was_meant() {
    let ground = Ground::new().await;
    let mut server = Server::start();
    let to = ground.mails_to(server.port).await;
    let channel = ground.email(&quick());
    let long = "Überraschung für Zoë: das Häuschen am Fluß verfällt! ".repeat(30);
    let wide = "🏠房".repeat(200);
    for title in [
        "Plain",
        "ao ut über ao ut, Ein Wort",
        "=?utf-8?B?SGk=?= is no word of ours",
        long.trim(),
        wide.as_str(),
    ] {
        let mut notice = news("dora");
        notice.body.title = title.to_owned();
        let message = ground.message(&notice);
        let answer = ground.deliver(&channel, &to, &message).await;
        assert_eq!(answer.verdict, Verdict::Delivered, "{answer:?}");
        let read = server.understood();
        assert_eq!(read["subject"].as_str(), Some(title));
        assert_eq!(read["defects"], serde_json::json!([]), "{read:#}");
        assert!(read["longest"].as_u64().unwrap() <= 998, "{read:#}");
        assert_eq!(read["sender"], "Sosaria <news@sender.example>");
        assert_eq!(read["to"], serde_json::json!(["Dora@example.com"]));
        assert_eq!(
            read["types"],
            serde_json::json!(["multipart/alternative", "text/plain", "text/html"])
        );
        let id = format!("<{}@sender.example>", message.id.simple());
        assert_eq!(read["id"].as_str(), Some(id.as_str()));
        assert_eq!(read["post"], "List-Unsubscribe=One-Click");
        let text = read["text"].as_str().unwrap().replace("\r\n", "\n");
        assert!(
            text.contains("First line\n.second line with a dot"),
            "{text}"
        );
        assert!(text.contains("https://site.example/houses/1"), "{text}");
        assert!(
            read["html"]
                .as_str()
                .unwrap()
                .contains("https://site.example/items/1")
        );
    }
    // Letters outside of ASCII before the @, and in the domain.
    ground
        .sql("UPDATE users SET email = 'ünal@bücher.example' WHERE user_id = 'dora'")
        .await;
    let message = ground.message(&news("dora"));
    let answer = ground.deliver(&channel, &to, &message).await;
    assert_eq!(answer.verdict, Verdict::Delivered, "{answer:?}");
    let read = server.understood();
    assert_eq!(
        read["to"],
        serde_json::json!(["ünal@xn--bcher-kva.example"])
    );
}

//! Mail over TLS, from the first byte and by STARTTLS, to a server whose certificate a private authority has signed.

use super::*;
use millrace::cli::demo::stand_ins::mail::{Act, Secured, Step};
use millrace::delivery::channel::Verdict;
use millrace::delivery::email::settings::seal_purpose;
use millrace_tests::certificates::Authority;
use millrace_tests::process::Scratch;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::PathBuf;

const USER: &str = "sosaria";
const PASSWORD: &str = "the-mail-password";

/// An authority, with certificates of its for the right name and for another.
struct Papers {
    folder: Scratch,
    authority: Authority,
}

impl Papers {
    fn new() -> Papers {
        let folder = Scratch::new("mail-tls").unwrap();
        let authority = Authority::new(folder.path(), "ca");
        authority.sign("right", "IP:127.0.0.1");
        authority.sign("wrong", "DNS:mail.example");
        Papers { folder, authority }
    }

    fn of(&self, server: &str) -> Arc<ServerConfig> {
        let file = |kind: &str| self.folder.path().join(format!("{server}.{kind}"));
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(file("crt"))
            .unwrap()
            .collect::<Result<_, _>>()
            .unwrap();
        let key = PrivateKeyDer::from_pem_file(file("key")).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        Arc::new(config)
    }
}

/// A workspace that logs in to a server, by `security`.
struct Login {
    ground: Ground,
    mail: Mail,
    destination: Destination,
}

impl Login {
    async fn new(secured: Secured, security: &str) -> Login {
        let ground = Ground::new().await;
        let mail = Mail::start_secured(secured).unwrap();
        mail.ask_for(USER, PASSWORD);
        let destination = ground.mails_to(mail.address().port()).await;
        let sealed = seals()
            .seal(&seal_purpose(TRANSPORT), PASSWORD.as_bytes())
            .unwrap();
        let sql = "UPDATE mail_transports SET security = $1, username = $2, password_sealed = $3";
        ground
            .session
            .client()
            .execute(sql, &[&security, &USER, &sealed])
            .await
            .unwrap();
        Login {
            ground,
            mail,
            destination,
        }
    }

    async fn send(&self, ca_file: Option<PathBuf>) -> Answer {
        // Nothing here is about time: reading the system's authorities takes some on a busy machine.
        let channel = self.ground.email(&Email {
            ca_file,
            timeout_ms: 60_000,
            connect_timeout_ms: 30_000,
            ..quick()
        });
        let message = self.ground.message(&news("dora"));
        self.ground
            .deliver(&channel, &self.destination, &message)
            .await
    }

    /// Nothing was taken, and nothing of the login was said in the clear.
    fn kept_to_itself(&self) {
        assert_eq!(self.mail.counts().taken, 0);
        for said in self.mail.overheard() {
            let harmless = said.starts_with("EHLO ") || said == "STARTTLS" || said == "QUIT";
            assert!(harmless, "{said}");
        }
    }
}

const AGAIN: Verdict = Verdict::RetryAt {
    after: None,
    unsure: false,
};

#[actix::test]
async fn mail_goes_encrypted_to_a_server_of_an_authority_that_is_named() {
    let papers = Papers::new();
    for (secured, security, overheard) in [
        (Secured::Tls(papers.of("right")), "tls", 0),
        (Secured::StartTls(papers.of("right")), "starttls", 2),
    ] {
        let login = Login::new(secured, security).await;
        let answer = login.send(Some(papers.authority.file())).await;
        assert_eq!(answer.verdict, Verdict::Delivered, "{security}: {answer:?}");
        assert_eq!(login.mail.counts().taken, 1);
        // The greeting and the word itself, if anything.
        let said = login.mail.overheard();
        assert_eq!(said.len(), overheard, "{security}: {said:?}");
        assert!(said.last().is_none_or(|s| s == "STARTTLS"), "{said:?}");
    }
}

#[actix::test]
async fn whoever_cannot_prove_its_name_is_told_nothing() {
    let papers = Papers::new();
    let known = || Some(papers.authority.file());
    for (server, ca_file, named) in [("wrong", known(), "name"), ("right", None, "certificate")] {
        for security in ["tls", "starttls"] {
            let config = papers.of(server);
            let secured = match security {
                "tls" => Secured::Tls(config),
                _ => Secured::StartTls(config),
            };
            let login = Login::new(secured, security).await;
            let answer = login.send(ca_file.clone()).await;
            assert_eq!(
                (answer.verdict, &*answer.code),
                (AGAIN, "no_tls"),
                "{server}"
            );
            let said = answer.excerpt.unwrap_or_default();
            assert!(said.starts_with("tls: ") && said.contains(named), "{said}");
            login.kept_to_itself();
        }
    }
}

/// Whoever sits between takes the offer out of the answer, or refuses the word: no login, no mail.
#[actix::test]
async fn without_starttls_nothing_is_said_in_the_clear() {
    let papers = Papers::new();
    let silent = Login::new(Secured::No, "starttls").await;
    let answer = silent.send(None).await;
    assert_eq!((answer.verdict, &*answer.code), (AGAIN, "no_tls"));
    silent.kept_to_itself();

    let refusing = Login::new(Secured::StartTls(papers.of("right")), "starttls").await;
    let refused = Act::Say(Step::StartTls, "454 4.7.0 not now".to_owned());
    refusing.mail.script([refused]);
    let answer = refusing.send(Some(papers.authority.file())).await;
    assert_eq!((answer.verdict, &*answer.code), (AGAIN, "454"));
    assert_eq!(answer.excerpt.as_deref(), Some("tls: 454 4.7.0 not now"));
    refusing.kept_to_itself();
}

/// Which step failed is named for whoever tries a transport.
#[actix::test]
async fn a_refusal_names_its_step() {
    let papers = Papers::new();
    let login = Login::new(Secured::Tls(papers.of("right")), "tls").await;
    login.mail.ask_for(USER, "another password");
    let answer = login.send(Some(papers.authority.file())).await;
    assert_eq!(
        (answer.verdict, &*answer.code),
        (Verdict::PauseDestination, "smtp_credentials")
    );
    let said = answer.excerpt.unwrap_or_default();
    assert!(said.starts_with("login: 535 "), "{said}");
    login
        .mail
        .script([Act::Say(Step::Greeting, "554 5.3.2 closed".to_owned())]);
    let answer = login.send(Some(papers.authority.file())).await;
    assert_eq!(
        answer.excerpt.as_deref(),
        Some("greeting: 554 5.3.2 closed")
    );
    // Nobody listens there.
    let sql = "UPDATE mail_transports SET port = 1, version = version + 1";
    login.ground.sql(sql).await;
    let answer = login.send(None).await;
    assert_eq!(&*answer.code, "no_connection");
    let said = answer.excerpt.unwrap_or_default();
    assert!(said.starts_with("connect: "), "{said}");
    // A file of authorities that is none is said when the channel is made.
    let settings = Email {
        ca_file: Some(papers.folder.path().join("right.key")),
        ..quick()
    };
    let made = EmailChannel::new(
        &settings,
        loopback(),
        seals(),
        login.ground.clock.clone(),
        login.ground.connect(),
        None,
    );
    let why = made.err().unwrap().to_string();
    assert!(why.contains("right.key"), "{why}");
}

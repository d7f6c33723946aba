//! One connection of the stand-in.

use super::{Act, Caught, Secured, State, Step, open};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::ServerConfig;
use std::io;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Bytes of a message at most.
const MESSAGE_AT_MOST: usize = 16 << 20;

/// What becomes of a step.
enum Next {
    /// It goes on as it should.
    Well,
    /// A reply of the script was given.
    Said,
}

/// A connection, encrypted or not.
trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

struct Session {
    stream: BufReader<Box<dyn Wire>>,
    /// Nobody else hears what is said.
    encrypted: bool,
    state: Arc<Mutex<State>>,
    act: Option<Act>,
}

/// Talks to one client until it leaves, or until the script says so.
pub(super) async fn serve(
    socket: TcpStream,
    state: Arc<Mutex<State>>,
    connection: usize,
) -> io::Result<()> {
    let _ = socket.set_nodelay(true);
    let secured = open(&state).secured.clone();
    let (stream, encrypted): (Box<dyn Wire>, bool) = match &secured {
        Secured::Tls(config) => (Box::new(accepted(config, socket).await?), true),
        Secured::No | Secured::StartTls(_) => (Box::new(socket), false),
    };
    let mut session = Session {
        stream: BufReader::new(stream),
        encrypted,
        state,
        act: None,
    };
    session.take_act(|step| matches!(step, Step::Greeting));
    if let Next::Said = session.play(Step::Greeting).await? {
        return Ok(());
    }
    session.say("220 catcher.example ESMTP").await?;
    let (mut known, mut from, mut to) = (false, None::<String>, Vec::<String>::new());
    let mut line = String::new();
    loop {
        line.clear();
        if session.stream.read_line(&mut line).await? == 0 {
            return Ok(());
        }
        let text = line.trim_end();
        if !session.encrypted {
            open(&session.state).overheard.push(text.to_owned());
        }
        let verb = text
            .split_whitespace()
            .next()
            .unwrap_or_default()
            .to_ascii_uppercase();
        match verb.as_str() {
            "EHLO" | "HELO" => session.greet().await?,
            "STARTTLS" => {
                session.take_act(|step| step == Step::StartTls);
                if let Next::Said = session.play(Step::StartTls).await? {
                    continue;
                }
                let Secured::StartTls(config) = &secured else {
                    session.say("502 5.5.1 not here").await?;
                    continue;
                };
                session.say("220 2.0.0 go on").await?;
                session = session.encrypt(config).await?;
            }
            "AUTH" => {
                session.take_act(|step| step == Step::Auth);
                if let Next::Said = session.play(Step::Auth).await? {
                    continue;
                }
                known = session.check(text);
                let reply = match known {
                    true => "235 2.7.0 welcome",
                    false => "535 5.7.8 wrong user or password",
                };
                session.say(reply).await?;
            }
            "MAIL" => {
                session
                    .take_act(|step| !matches!(step, Step::Greeting | Step::StartTls | Step::Auth));
                (from, to) = (None, Vec::new());
                if let Next::Said = session.play(Step::Mail).await? {
                    continue;
                }
                if open(&session.state).login.is_some() && !known {
                    session.say("530 5.7.0 log in first").await?;
                    continue;
                }
                from = Some(address(text));
                session.say("250 2.1.0 go on").await?;
            }
            "RCPT" => {
                if let Next::Said = session.play(Step::Rcpt).await? {
                    continue;
                }
                let recipient = address(text);
                let refused = open(&session.state).refused.get(&recipient).cloned();
                match refused {
                    Some(reply) => session.say(&reply).await?,
                    None => {
                        to.push(recipient);
                        session.say("250 2.1.5 go on").await?;
                    }
                }
            }
            "DATA" => {
                if let Next::Said = session.play(Step::Data).await? {
                    continue;
                }
                if to.is_empty() || from.is_none() {
                    session.say("503 5.5.1 no recipient").await?;
                    continue;
                }
                session.say("354 end with a dot").await?;
                let data = session.message().await?;
                if let Some(Act::Say(Step::Body, reply)) = &session.act {
                    let reply = reply.clone();
                    session.act = None;
                    session.say(&reply).await?;
                    continue;
                }
                {
                    let mut state = open(&session.state);
                    state.taken += 1;
                    if !state.counts_only {
                        let caught = Caught {
                            from: from.take().unwrap_or_default(),
                            to: std::mem::take(&mut to),
                            data,
                            connection,
                        };
                        state.caught.push(caught);
                    }
                }
                if let Some(Act::Farewell(said)) =
                    session.act.take_if(|a| matches!(a, Act::Farewell(_)))
                {
                    session.say(&format!("250 2.0.0 taken\r\n{said}")).await?;
                    return Ok(());
                }
                if let Next::Said = session.play(Step::Body).await? {
                    continue;
                }
                session.say("250 2.0.0 taken").await?;
            }
            "RSET" => {
                (from, to) = (None, Vec::new());
                session.act = None;
                session.say("250 2.0.0 forgotten").await?;
            }
            "NOOP" => session.say("250 2.0.0 yes").await?,
            "QUIT" => {
                session.say("221 2.0.0 bye").await?;
                return Ok(());
            }
            _ => session.say("502 5.5.2 unknown").await?,
        }
    }
}

async fn accepted<T: Wire>(config: &Arc<ServerConfig>, stream: T) -> io::Result<TlsStream<T>> {
    TlsAcceptor::from(Arc::clone(config)).accept(stream).await
}

impl Session {
    /// Goes on encrypted; what was said in the clear behind the word is not listened to.
    async fn encrypt(self, config: &Arc<ServerConfig>) -> io::Result<Session> {
        let stream = accepted(config, self.stream.into_inner()).await?;
        Ok(Session {
            stream: BufReader::new(Box::new(stream)),
            encrypted: true,
            ..self
        })
    }

    /// The next act of the script, if it is one of these steps.
    fn take_act(&mut self, wanted: impl Fn(Step) -> bool) {
        let mut state = open(&self.state);
        let ours = state.script.front().is_some_and(|act| wanted(act.step()));
        self.act = if ours { state.script.pop_front() } else { None };
    }

    /// Plays the act, if it is this step's. A connection that is to die ends here.
    async fn play(&mut self, step: Step) -> io::Result<Next> {
        let Some(act) = self.act.take_if(|act| act.step() == step) else {
            return Ok(Next::Well);
        };
        match act {
            Act::Say(_, reply) => {
                self.say(&reply).await?;
                Ok(Next::Said)
            }
            Act::Die(_) => Err(io::ErrorKind::ConnectionAborted.into()),
            Act::Stall(_) => {
                std::future::pending::<()>().await;
                Ok(Next::Said)
            }
            Act::Farewell(_) => Ok(Next::Well),
        }
    }

    async fn say(&mut self, reply: &str) -> io::Result<()> {
        let latency = open(&self.state).latency;
        if !latency.is_zero() {
            tokio::time::sleep(latency).await;
        }
        let stream = self.stream.get_mut();
        stream.write_all(format!("{reply}\r\n").as_bytes()).await?;
        stream.flush().await
    }

    async fn greet(&mut self) -> io::Result<()> {
        let (login, secured) = {
            let state = open(&self.state);
            (state.login.is_some(), state.secured.clone())
        };
        let auth = if login { "250-AUTH PLAIN\r\n" } else { "" };
        let offers = matches!(secured, Secured::StartTls(_)) && !self.encrypted;
        let starttls = if offers { "250-STARTTLS\r\n" } else { "" };
        self.say(&format!(
            "250-catcher.example\r\n250-8BITMIME\r\n250-SMTPUTF8\r\n{starttls}{auth}250 ENHANCEDSTATUSCODES"
        ))
        .await
    }

    /// `AUTH PLAIN <base64 of NUL user NUL password>`.
    fn check(&self, line: &str) -> bool {
        let Some((user, password)) = open(&self.state).login.clone() else {
            return true;
        };
        let given = line.split_whitespace().nth(2).unwrap_or_default();
        let wanted = STANDARD.encode(format!("\0{user}\0{password}"));
        given == wanted
    }

    /// The message up to its dot, dots undone.
    async fn message(&mut self) -> io::Result<Vec<u8>> {
        let mut data = Vec::new();
        let mut line = Vec::new();
        loop {
            line.clear();
            if self.stream.read_until(b'\n', &mut line).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if line == b".\r\n" {
                return Ok(data);
            }
            let kept = line.strip_prefix(b".").unwrap_or(&line);
            data.extend_from_slice(kept);
            if data.len() > MESSAGE_AT_MOST {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
        }
    }
}

/// What stands between `<` and `>`.
fn address(line: &str) -> String {
    let inner = line
        .split_once('<')
        .and_then(|(_, rest)| rest.split_once('>'));
    inner
        .map(|(address, _)| address.to_owned())
        .unwrap_or_default()
}

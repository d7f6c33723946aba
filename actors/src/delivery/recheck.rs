//! What is asked of the directory right before a person is told: whether they are still there and willing, where to, and whether
//! the message was called off meanwhile. One look for whatever waits at that moment, over a connection of its own.
//!
//! An address stands in no outbox row: it is read here, at the last moment, so that one that was changed or suppressed while a
//! message waited is not used any more.

use super::channel::{Answer, Leased, Verdict};
use crate::postgres::types::Tz;
use crate::recipients::preference::{self, Said};
use crate::runtime::session::{Connect, Session, describe};
use millrace_schemas::ceiling::Ceiling;
use millrace_schemas::channel::{Channel, Mode};
use millrace_schemas::notification::{Linked, Notification};
use millrace_schemas::time::Micros;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use tokio::sync::oneshot;
use uuid::Uuid;

/// How a person stands, as of now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// There is such a user, and they are active.
    pub active: bool,
    /// There is such a user at all.
    pub known: bool,
    /// Their address.
    pub email: Option<String>,
    /// The hash of it, folded.
    pub email_hash: Option<Vec<u8>>,
    /// The address may be mailed: verified, or the workspace does not ask for that.
    pub verified: bool,
    /// Why the address is suppressed, if it is.
    pub suppressed: Option<String>,
    /// What they are in the deployment: `admin`, `editor`, `moderator`, `user`.
    pub role: Option<String>,
    /// What they said of this trigger, scope and channel.
    pub said: Vec<Said>,
    /// Something that they said of this trigger, on any channel and of any scope, is not off. Asked under the ceiling `subscribers`
    /// alone.
    pub subscribed: bool,
    /// The link that the message was decided by is still theirs, or it was decided by none.
    pub linked: bool,
    /// A later firing called the message off.
    pub called_off: bool,
    /// Their notification of the same event, if it stands in their inbox.
    pub notification: Option<i64>,
    /// The rule that it was decided by is gone, switched off, or tells nobody on this channel any more.
    pub rule_off: bool,
}

/// The question of one message.
struct Question {
    id: Uuid,
    created_at: Micros,
    workspace: i32,
    user: String,
    trigger: String,
    scope: String,
    dedupe_key: String,
    after: Option<Uuid>,
    /// Its ceiling is `subscribers`.
    of_subscribers: bool,
    linked: Option<Linked>,
}

const LOOK: &str = "
SELECT q.n, u.status, u.email, sha256(convert_to(u.email_folded, 'UTF8')), u.email_verified OR NOT w.verified_email_only,
       s.reason, c.key IS NOT NULL, i.notification_id, u.role, p.streams, p.scopes, p.modes, p.times,
       o.rule_id IS NOT NULL AND NOT EXISTS (SELECT FROM rules r WHERE r.workspace_id = q.workspace_id AND r.rule_id = o.rule_id
           AND r.enabled AND $10 = ANY(r.channels)),
       q.of_subscribers AND EXISTS (SELECT FROM preferences x WHERE x.workspace_id = q.workspace_id AND x.user_id = q.user_id
           AND x.stream_id = q.trigger_id AND x.mode <> 'off'),
       CASE WHEN q.module IS NULL THEN true
            WHEN q.account <> '' THEN EXISTS (SELECT FROM links x WHERE x.workspace_id = q.workspace_id AND x.module = q.module
                AND x.shard = q.shard AND x.account = q.account AND x.user_id = q.user_id AND x.live)
            -- By the user first: a shard has many links, a user few.
            ELSE EXISTS (SELECT FROM (SELECT x.module, x.shard FROM links x WHERE x.workspace_id = q.workspace_id
                AND x.user_id = q.user_id AND x.live OFFSET 0) x WHERE x.module = q.module AND x.shard = q.shard) END
FROM unnest($1::int4[], $2::uuid[], $3::timestamptz[], $4::int4[], $5::text[], $6::text[], $7::text[], $8::text[], $9::uuid[],
            $11::bool[], $12::text[], $13::text[], $14::text[])
     AS q(n, id, created_at, workspace_id, user_id, trigger_id, scope, dedupe_key, after, of_subscribers, module, shard, account)
LEFT JOIN workspaces w ON w.workspace_id = q.workspace_id
LEFT JOIN users u ON u.workspace_id = q.workspace_id AND u.user_id = q.user_id
LEFT JOIN suppressions s ON s.workspace_id = q.workspace_id AND s.address_hash = sha256(convert_to(u.email_folded, 'UTF8'))
LEFT JOIN LATERAL (
    SELECT array_agg(stream_id) AS streams, array_agg(scope) AS scopes, array_agg(mode) AS modes, array_agg(changed_at) AS times
    FROM preferences p
    WHERE p.workspace_id = q.workspace_id AND p.user_id = q.user_id AND p.channel = $10
      AND p.stream_id IN (q.trigger_id, '') AND p.scope IN (q.scope, '')
) p ON true
LEFT JOIN outbox o ON o.outbox_id = q.id AND o.created_at = q.created_at
LEFT JOIN cancel_marks c ON c.key = o.cancel_key AND c.firing_pos > o.firing_pos
LEFT JOIN user_notifications i ON i.workspace_id = q.workspace_id AND i.user_id = q.user_id AND i.dedupe_key = q.dedupe_key
     AND q.after IS NOT NULL";

type Waiting = (Question, oneshot::Sender<Result<Standing, String>>);

/// Asks for one channel.
pub struct Recheck {
    channel: Channel,
    connect: Connect,
    session: RefCell<Option<Session>>,
    waiting: RefCell<Vec<Waiting>>,
    asking: Cell<bool>,
}

impl Recheck {
    /// For a channel.
    #[must_use]
    pub fn new(channel: Channel, connect: Connect) -> Rc<Recheck> {
        Rc::new(Recheck {
            channel,
            connect,
            session: RefCell::new(None),
            waiting: RefCell::default(),
            asking: Cell::new(false),
        })
    }

    /// How the persons of these messages stand, in order. Whatever is asked at the same moment goes in one statement.
    ///
    /// # Errors
    /// The store's: nothing is known, nothing may be sent.
    pub async fn ask(
        self: &Rc<Recheck>,
        messages: &[(&Leased, &Notification)],
    ) -> Result<Vec<Standing>, String> {
        let mut answers = Vec::with_capacity(messages.len());
        for (leased, notice) in messages {
            let (tell, hear) = oneshot::channel();
            let question = Question {
                id: leased.id,
                created_at: leased.created_at,
                workspace: leased.workspace,
                user: notice.user.clone(),
                trigger: notice.trigger.clone(),
                scope: notice.scope.clone(),
                dedupe_key: notice.dedupe_key.clone(),
                after: notice.after,
                of_subscribers: ceiling(notice) == Some(Ceiling::Subscribers),
                linked: notice.linked.clone(),
            };
            self.waiting.borrow_mut().push((question, tell));
            answers.push(hear);
        }
        if !self.asking.replace(true) {
            // A task of its own: whoever asked first may give up, the others still wait.
            actix_rt::spawn(Rc::clone(self).drive());
        }
        let mut standings = Vec::with_capacity(answers.len());
        for answer in answers {
            standings.push(
                answer
                    .await
                    .map_err(|_| "the look was given up".to_owned())??,
            );
        }
        Ok(standings)
    }

    async fn drive(self: Rc<Recheck>) {
        // Whatever happens within, the next one who asks finds nobody asking.
        struct Done<'a>(&'a Cell<bool>);
        impl Drop for Done<'_> {
            fn drop(&mut self) {
                self.0.set(false);
            }
        }
        let _done = Done(&self.asking);
        loop {
            // Requests that begin in the same round come along.
            tokio::task::yield_now().await;
            let waiting = self.waiting.take();
            if waiting.is_empty() {
                return;
            }
            let (questions, tell): (Vec<Question>, Vec<_>) = waiting.into_iter().unzip();
            let found = self.look(&questions).await;
            if found.is_err() {
                self.session.take();
            }
            for (n, tell) in tell.into_iter().enumerate() {
                let answer = match &found {
                    Ok(all) => all.get(n).cloned().ok_or_else(|| "unanswered".to_owned()),
                    Err(why) => Err(why.clone()),
                };
                let _ = tell.send(answer);
            }
        }
    }

    async fn look(&self, questions: &[Question]) -> Result<Vec<Standing>, String> {
        let live = match self.session.take() {
            Some(session) if !session.client().is_closed() => session,
            _ => Session::new((self.connect)().await?),
        };
        fn column<'a, T>(questions: &'a [Question], of: impl Fn(&'a Question) -> T) -> Vec<T> {
            questions.iter().map(of).collect()
        }
        fn links(questions: &[Question], of: impl Fn(&Linked) -> &str) -> Vec<Option<&str>> {
            column(questions, |q| q.linked.as_ref().map(&of))
        }
        let numbers: Vec<i32> = (0..).take(questions.len()).collect();
        let rows = live
            .query(
                LOOK,
                &[
                    &numbers,
                    &column(questions, |q| q.id),
                    &column(questions, |q| Tz(q.created_at)),
                    &column(questions, |q| q.workspace),
                    &column(questions, |q| q.user.as_str()),
                    &column(questions, |q| q.trigger.as_str()),
                    &column(questions, |q| q.scope.as_str()),
                    &column(questions, |q| q.dedupe_key.as_str()),
                    &column(questions, |q| q.after),
                    &self.channel.word(),
                    &column(questions, |q| q.of_subscribers),
                    &links(questions, |l| l.module.as_str()),
                    &links(questions, |l| l.shard.as_str()),
                    &links(questions, |l| l.account.as_str()),
                ],
            )
            .await
            .map_err(|e| describe(&e))?;
        self.session.replace(Some(live));
        let mut all = vec![Standing::default(); questions.len()];
        for row in &rows {
            let n: i32 = row.get(0);
            let status: Option<&str> = row.get(1);
            if let Some(standing) = usize::try_from(n).ok().and_then(|n| all.get_mut(n)) {
                *standing = Standing {
                    known: status.is_some(),
                    active: status == Some("active"),
                    email: row.get(2),
                    email_hash: row.get(3),
                    verified: row.get::<_, Option<bool>>(4).unwrap_or(false),
                    suppressed: row.get(5),
                    called_off: row.get(6),
                    notification: row.get(7),
                    role: row.get(8),
                    said: said(row, self.channel),
                    rule_off: row.get(13),
                    subscribed: row.get(14),
                    linked: row.get(15),
                };
            }
        }
        Ok(all)
    }
}

/// What was said of a channel; what a build of another time wrote in words that this one does not know is left out.
fn said(row: &tokio_postgres::Row, channel: Channel) -> Vec<Said> {
    let texts = |at: usize| {
        let all: Option<Vec<String>> = row.get(at);
        all.unwrap_or_default()
    };
    let times: Option<Vec<Tz>> = row.get(12);
    let rows = texts(9).into_iter().zip(texts(10)).zip(texts(11));
    let rows = rows.zip(times.unwrap_or_default());
    rows.filter_map(|(((stream, scope), mode), at)| {
        Some(Said {
            stream: stream.into(),
            channel,
            scope: scope.into(),
            mode: Mode::of_word(&mode)?,
            at: at.0,
        })
    })
    .collect()
}

/// Whether a person may still be told on a channel, by what holds for every one. `transactional` messages were asked for: a
/// preference does not hold them back.
#[must_use]
pub fn refuse(
    channel: Channel,
    notice: &Notification,
    standing: &Standing,
    wall: Micros,
) -> Option<Answer> {
    let no = |verdict, code: &'static str| Some(Answer::new(verdict, code));
    if standing.called_off {
        return no(Verdict::Cancelled, "called_off");
    }
    if standing.rule_off {
        return no(Verdict::Suppressed, "rule_off");
    }
    if is_stale(notice, wall) {
        return no(Verdict::Suppressed, "stale");
    }
    if !standing.known {
        return no(Verdict::Suppressed, "user_gone");
    }
    if !standing.active {
        return no(Verdict::Suppressed, "user_inactive");
    }
    if ceiling(notice).is_some_and(|ceiling| !within(ceiling, standing)) {
        return no(Verdict::Suppressed, "ceiling");
    }
    if !notice.transactional && !willing(channel, notice, &standing.said) {
        return no(Verdict::Suppressed, "preference");
    }
    None
}

/// The ceiling that a message was decided under, if it names one.
fn ceiling(notice: &Notification) -> Option<Ceiling> {
    notice.ceiling.as_deref().and_then(Ceiling::of_word)
}

/// What of a ceiling can be asked of one user: whether they are still of the staff, an admin, or a subscriber, and whether the link by
/// which they are the owner or a member still stands. What an event itself named does not change after it: its list, a guild as it was
/// before it was disbanded, whoever has lost an account and is told of that.
fn within(ceiling: Ceiling, standing: &Standing) -> bool {
    let role = standing.role.as_deref();
    match ceiling {
        Ceiling::Staff => matches!(role, Some("admin" | "editor" | "moderator")),
        Ceiling::Admin => role == Some("admin"),
        Ceiling::Subscribers => standing.subscribed,
        Ceiling::Members | Ceiling::Owner => standing.linked,
        Ceiling::Everyone | Ceiling::Authenticated => true,
    }
}

/// Whether what a user says of this event, as the gates read it, still lets it be told at once. Nothing said: the trigger's default,
/// else the channel's; of a message that no rule sends, nobody has a default.
fn willing(channel: Channel, notice: &Notification, said: &[Said]) -> bool {
    let default = match notice.default_mode.as_deref() {
        // A word of another time is no permission.
        Some(word) => Some(Mode::of_word(word).unwrap_or(Mode::Off)),
        None => notice.rule.is_none().then_some(Mode::Instant),
    };
    let mode = preference::mode(said, &notice.trigger, &notice.scope, channel, default);
    mode == Mode::Instant
}

/// Whether the event is older than its trigger's bound.
fn is_stale(notice: &Notification, wall: Micros) -> bool {
    notice
        .max_age_s
        .is_some_and(|age| notice.at.plus_secs(i64::from(age)) < wall)
}

/// Asks for messages of a channel that needs nothing but their persons' will: one answer each, in order.
///
/// # Errors
/// The store's.
pub async fn ask_all(
    recheck: &Rc<Recheck>,
    messages: &[Leased],
    wall: Micros,
) -> Result<Vec<Option<Answer>>, String> {
    let asked = ask_standings(recheck, messages).await?;
    let answers = asked.into_iter().map(|asked| match asked {
        Err(answer) => Some(answer),
        Ok((notice, standing)) => refuse(recheck.channel, &notice, &standing, wall),
    });
    Ok(answers.collect())
}

/// The notices of messages and how their persons stand, in order; of one that cannot be read, the answer that ends it.
///
/// # Errors
/// The store's.
pub async fn ask_standings(
    recheck: &Rc<Recheck>,
    messages: &[Leased],
) -> Result<Vec<Result<(Notification, Standing), Answer>>, String> {
    let notices: Vec<Result<Notification, Answer>> = messages.iter().map(payload).collect();
    let readable: Vec<(&Leased, &Notification)> = messages
        .iter()
        .zip(&notices)
        .filter_map(|(message, notice)| Some((message, notice.as_ref().ok()?)))
        .collect();
    let mut standings = recheck.ask(&readable).await?.into_iter();
    let together = notices.into_iter().map(|notice| {
        let notice = notice?;
        Ok((notice, standings.next().unwrap_or_default()))
    });
    Ok(together.collect())
}

/// The payload of a message.
///
/// # Errors
/// The answer that ends it: it is none of ours.
pub fn payload(message: &Leased) -> Result<Notification, Answer> {
    serde_json::from_str(&message.payload).map_err(|error| {
        tracing::error!(message = %message.id, %error, "a notice's payload cannot be read");
        Answer::new(Verdict::Rejected, "payload_unreadable")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(stream: &str, scope: &str, mode: &str, at: i64) -> Said {
        Said {
            stream: stream.into(),
            channel: Channel::Email,
            scope: scope.into(),
            mode: Mode::of_word(mode).unwrap(),
            at: Micros(at),
        }
    }

    fn notice() -> Notification {
        Notification {
            trigger: "t".to_owned(),
            rule: Some("r".to_owned()),
            ..Notification::default()
        }
    }

    fn good() -> Standing {
        Standing {
            active: true,
            known: true,
            role: Some("user".to_owned()),
            linked: true,
            said: vec![said("t", "", "instant", 1)],
            ..Standing::default()
        }
    }

    #[test]
    fn what_changed_while_a_message_waited_holds_it_back() {
        let at = Micros(1_767_225_600_000_000);
        let notice = Notification {
            at,
            max_age_s: Some(60),
            ..notice()
        };
        let asked = Notification {
            transactional: true,
            ..notice.clone()
        };
        let code = |notice: &Notification, standing: Standing, wall| {
            refuse(Channel::Email, notice, &standing, wall).map(|answer| answer.code.into_owned())
        };
        assert_eq!(code(&notice, good(), at), None);
        let with = |change: fn(&mut Standing)| {
            let mut standing = good();
            change(&mut standing);
            standing
        };
        for (standing, why) in [
            (with(|s| s.called_off = true), "called_off"),
            (with(|s| s.rule_off = true), "rule_off"),
            (with(|s| s.known = false), "user_gone"),
            (with(|s| s.active = false), "user_inactive"),
            (
                with(|s| s.said = vec![said("t", "", "off", 1)]),
                "preference",
            ),
            (
                with(|s| s.said = vec![said("t", "", "digest", 1)]),
                "preference",
            ),
        ] {
            assert_eq!(code(&notice, standing, at).as_deref(), Some(why));
        }
        let late = at.plus_secs(61);
        assert_eq!(code(&notice, good(), late).as_deref(), Some("stale"));
        let off = with(|s| s.said = vec![said("", "", "off", 1)]);
        assert_eq!(code(&asked, off, at), None);
    }

    #[test]
    fn a_preference_holds_as_it_does_at_the_gates() {
        let notice = Notification {
            scope: "team:1".to_owned(),
            ..notice()
        };
        let is = |all: &[Said]| willing(Channel::Email, &notice, all);
        assert!(is(&[said("", "", "off", 1), said("t", "", "instant", 2)]));
        assert!(!is(&[said("", "", "off", 3), said("t", "", "instant", 2)]));
        assert!(is(&[
            said("t", "", "off", 1),
            said("t", "team:1", "instant", 2)
        ]));
        assert!(!is(&[
            said("", "team:1", "off", 3),
            said("t", "team:1", "instant", 2)
        ]));
        // The word of the scope is the nearest, whichever came first.
        assert!(!is(&[
            said("t", "", "instant", 2),
            said("", "team:1", "off", 1)
        ]));
        for all in [
            vec![said("t", "", "digest", 1)],
            vec![said("t", "", "instant", 1), said("", "", "off", 2)],
        ] {
            let gate = preference::mode(&all, "t", "team:1", Channel::Email, None);
            assert_eq!(is(&all), gate == Mode::Instant);
        }
    }

    #[test]
    fn where_nothing_is_said_any_more_the_default_holds() {
        let is = |channel, notice: &Notification| willing(channel, notice, &[]);
        // Mail of a rule was asked for: a word that was taken back leaves the default.
        assert!(!is(Channel::Email, &notice()));
        assert!(is(Channel::Inapp, &notice()));
        let with = |mode: &str| Notification {
            default_mode: Some(mode.to_owned()),
            ..notice()
        };
        assert!(is(Channel::Email, &with("instant")));
        assert!(!is(Channel::Inapp, &with("off")));
        assert!(!is(Channel::Inapp, &with("a word of another time")));
        // No rule sends it.
        assert!(is(Channel::Email, &Notification::default()));
    }

    #[test]
    fn whoever_left_the_staff_the_subscribers_or_an_account_is_told_nothing_of_theirs() {
        let at = Micros(1);
        for (ceiling, role, subscribed, linked, ok) in [
            ("staff", "moderator", false, false, true),
            ("staff", "user", true, true, false),
            ("admin", "admin", false, false, true),
            ("admin", "editor", false, true, false),
            ("owner", "user", false, true, true),
            ("owner", "admin", true, false, false),
            ("members", "user", false, true, true),
            ("members", "admin", true, false, false),
            ("subscribers", "user", true, false, true),
            ("subscribers", "admin", false, true, false),
            ("authenticated", "user", false, false, true),
        ] {
            let notice = Notification {
                ceiling: Some(ceiling.to_owned()),
                at,
                ..notice()
            };
            let standing = Standing {
                role: Some(role.to_owned()),
                subscribed,
                linked,
                ..good()
            };
            let answer = refuse(Channel::Email, &notice, &standing, at);
            let code = answer.map(|a| a.code.into_owned());
            let want = (!ok).then_some("ceiling");
            assert_eq!(code.as_deref(), want, "{ceiling} {role}");
        }
        assert_eq!(ceiling(&notice()), None);
    }
}

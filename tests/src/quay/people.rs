//! Who there is, what they asked for, and whose which account is.

use super::{MODULE, SHARDS};
use millrace_schemas::WIRE_VERSION;
use millrace_schemas::channel::Mode;
use millrace_schemas::directory::{Change, DirectoryRecord, Role};
use millrace_schemas::time::Micros;

/// Accounts of each shard that somebody has linked; the one behind them is nobody's.
pub(super) const LINKED: usize = 10;

/// Somebody who may be told.
#[derive(Clone, Debug)]
pub(super) struct Person {
    pub id: String,
    pub role: Role,
    /// Asked for mail.
    pub mail: bool,
    /// Asked to be woken.
    pub push: bool,
    /// Has something that can be woken.
    pub device: bool,
}

impl Person {
    pub fn staff(&self) -> bool {
        self.role.is_staff()
    }

    pub fn address(&self) -> String {
        format!("{}@quay.example", self.id)
    }

    /// The path of the device.
    pub fn path(&self) -> String {
        format!("/push/{}", self.id)
    }
}

/// Ten players and two of the staff. The last player never asked for mail; every second one wants to be woken, one of them without a
/// device; one has a device and does not want to be.
pub(super) fn all() -> Vec<Person> {
    let players = (0..LINKED).map(|n| Person {
        id: format!("u{n}"),
        role: Role::User,
        mail: n + 1 < LINKED,
        push: n % 2 == 0,
        device: n % 2 == 0 && n != 4 || n == 1,
    });
    let staff = [("s0", Role::Moderator), ("s1", Role::Admin)];
    let staff = staff.into_iter().map(|(id, role)| Person {
        id: id.to_owned(),
        role,
        mail: true,
        push: false,
        device: false,
    });
    players.chain(staff).collect()
}

/// Whose an account of a shard is: its place in [`all`].
pub(super) fn owner(shard: usize, account: usize) -> Option<usize> {
    (account < LINKED).then(|| (account + 3 * shard) % LINKED)
}

/// What the directory is told of them.
pub(super) fn records(ws: i32, now: Micros) -> Vec<DirectoryRecord> {
    let people = all();
    let said = |user: &str, change| DirectoryRecord {
        v: WIRE_VERSION,
        ws,
        accepted_at: now,
        change,
        user: user.to_owned(),
        ..DirectoryRecord::default()
    };
    let mut records = Vec::new();
    for person in &people {
        records.push(DirectoryRecord {
            email: Some(person.address()),
            email_verified: true,
            role: person.role,
            ..said(&person.id, Change::User)
        });
        for (wants, channel) in [(person.mail, "email"), (person.push, "push")] {
            if wants {
                records.push(DirectoryRecord {
                    channel: Some(channel.to_owned()),
                    mode: Some(Mode::Instant),
                    ..said(&person.id, Change::Preference)
                });
            }
        }
    }
    for (shard, name) in SHARDS.into_iter().enumerate() {
        for account in 0..LINKED {
            let user = owner(shard, account).and_then(|n| people.get(n));
            records.extend(user.map(|person| DirectoryRecord {
                module: Some(MODULE.to_owned()),
                shard: Some(name.to_owned()),
                account: Some(format!("a{account}")),
                ..said(&person.id, Change::Link)
            }));
        }
    }
    records
}

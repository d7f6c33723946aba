//! Users of the directory. An operator's word is stamped later than what it overwrites, so that it stands until a newer record of
//! the directory's topic comes.

mod preferences;

use crate::api::call::{Answer, Call};
use crate::api::entity::{self, Entity, Stored};
use crate::api::faults::Faults;
use crate::api::page::{Conditions, Source};
use crate::api::problem::Problem;
use crate::api::registry::{Effect, Method, Operation, Param, Precondition};
use crate::api::schema::{input, output};
use crate::postgres::types::Tz;
use futures::future::LocalBoxFuture;
use millrace_schemas::directory::{LONGEST, Role, UserStatus, is_email, is_text, is_zone};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio_postgres::Row;

/// What can be written of a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fields {
    /// A name for people.
    #[serde(default)]
    #[schemars(length(min = 1, max = 200), extend("x-class" = "identity"))]
    pub name: Option<String>,
    /// The address; no two users of a workspace share one, case folded, accents not.
    #[serde(default)]
    #[schemars(length(min = 3, max = 254), extend("x-class" = "identity"))]
    pub email: Option<String>,
    /// Whether the address is known to be the user's. Another address begins unverified.
    #[serde(default)]
    #[schemars(extend("x-class" = "open"))]
    pub email_verified: bool,
    /// Only the active are told anything.
    #[serde(default)]
    #[schemars(extend("x-class" = "open"))]
    pub status: UserStatus,
    /// Admins, editors and moderators are the staff.
    #[serde(default)]
    #[schemars(extend("x-class" = "open"))]
    pub role: Role,
    /// An IANA zone, as `Europe/Berlin`; none: UTC.
    #[serde(default)]
    #[schemars(length(min = 1, max = 64), extend("x-class" = "open"))]
    pub zone: Option<String>,
}

/// What is shown of a user beside that.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Seen {
    /// The newest login.
    #[schemars(extend("x-class" = "open"))]
    last_login: Option<String>,
}

pub(crate) struct Users;

impl Entity for Users {
    type Fields = Fields;
    type Shown = Seen;
    const PATH: &'static str = "/v1/users";
    const PARAM: &'static str = "user_id";
    const ID_COLUMN: &'static str = "user_id";
    const CHOSEN_ID: Option<&'static str> = Some("^[A-Za-z0-9][A-Za-z0-9._:@-]{0,199}$");
    const PREFIX: &'static str = "us_";
    const SOURCE: Source = Source {
        from: "users",
        columns: "user_id AS id, name, email, email_verified, status, role, zone, last_login, version, created_at, updated_at, \
                  updated_by",
        time: "created_at",
        id: "user_id",
        id_type: "text",
        ascending: false,
        windows: false,
    };

    fn read(row: &Row) -> Result<Stored<Fields, Seen>, Problem> {
        let (status, role): (&str, &str) = (row.try_get("status")?, row.try_get("role")?);
        let fields = Fields {
            name: row.try_get("name")?,
            email: row.try_get("email")?,
            email_verified: row.try_get("email_verified")?,
            status: UserStatus::from_name(status).unwrap_or(UserStatus::Disabled),
            role: Role::from_name(role).unwrap_or_default(),
            zone: row.try_get("zone")?,
        };
        let seen = Seen {
            last_login: super::time_text(row.try_get("last_login")?),
        };
        Ok(Stored::with(row, fields, seen)?)
    }

    fn archive(fields: &mut Fields) {
        fields.status = UserStatus::Deleted;
        fields.name = None;
        fields.email = None;
        fields.email_verified = false;
    }

    async fn check(
        call: &Call<'_>,
        id: &str,
        before: Option<&Fields>,
        fields: &Fields,
        faults: &mut Faults,
    ) -> Result<(), Problem> {
        if fields.name.as_deref().is_some_and(|n| !is_text(n, LONGEST)) {
            faults.add(
                "/name",
                "malformed",
                "at most 200 bytes, no control characters",
            );
        }
        if fields.zone.as_deref().is_some_and(|z| !is_known_zone(z)) {
            faults.add(
                "/zone",
                "unknown_zone",
                "a zone of the IANA database, as Europe/Berlin",
            );
        }
        let Some(email) = &fields.email else {
            if fields.email_verified {
                faults.add(
                    "/email_verified",
                    "no_email",
                    "there is no address to be verified",
                );
            }
            return Ok(());
        };
        if fields.status == UserStatus::Deleted {
            faults.add("/email", "deleted", "whoever is deleted has no address");
        }
        if !is_email(email) {
            faults.add("/email", "malformed", "an address, as name@example.org");
        } else if before.and_then(|b| b.email.as_ref()) != Some(email) {
            let taken = call
                .tx
                .query_opt(
                    "SELECT 1 FROM users WHERE workspace_id = $1 AND user_id <> $3
                       AND email_folded = lower($2::text COLLATE \"und-x-icu\") COLLATE \"C\"",
                    &[&call.workspace()?, email, &id],
                )
                .await?;
            if taken.is_some() {
                return Err(Problem::new(
                    "email_taken",
                    "another user of the workspace has the address",
                ));
            }
        }
        Ok(())
    }

    async fn insert(call: &Call<'_>, id: &str, f: &Fields) -> Result<(), Problem> {
        let written = call
            .tx
            .execute(
                "INSERT INTO users (workspace_id, user_id, name, email, email_verified, status, role, zone, changed_at, updated_by)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT (workspace_id, user_id) DO NOTHING",
                &[
                    &call.workspace()?,
                    &id,
                    &f.name,
                    &f.email,
                    &f.email_verified,
                    &f.status.name(),
                    &f.role.name(),
                    &f.zone,
                    &Tz(call.state.clock.wall()),
                    &call.actor.key_id,
                ],
            )
            .await?;
        if written == 0 {
            return Err(Problem::new("id_taken", "the user id is taken"));
        }
        Ok(())
    }

    async fn update(call: &Call<'_>, id: &str, f: &Fields) -> Result<(), Problem> {
        call.tx
            .execute(
                "UPDATE users SET name = $3, email = $4,
                        email_verified = $5 AND NOT (email_verified AND email_folded IS DISTINCT FROM
                            lower($4::text COLLATE \"und-x-icu\") COLLATE \"C\"),
                        status = $6, role = $7, zone = $8,
                        changed_at = greatest($9, changed_at + interval '1 microsecond'), changed_topic = 0, changed_offset = 0,
                        version = version + 1, updated_at = now(), updated_by = $10
                 WHERE workspace_id = $1 AND user_id = $2",
                &[
                    &call.workspace()?,
                    &id,
                    &f.name,
                    &f.email,
                    &f.email_verified,
                    &f.status.name(),
                    &f.role.name(),
                    &f.zone,
                    &Tz(call.state.clock.wall()),
                    &call.actor.key_id,
                ],
            )
            .await?;
        Ok(())
    }
}

/// Where the machine has no zones at all, the form must do.
fn is_known_zone(name: &str) -> bool {
    is_zone(name)
        && (jiff::tz::db().is_definitively_empty() || jiff::tz::TimeZone::get(name).is_ok())
}

/// Narrows the list of users.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Filter {
    /// Those of one status.
    status: Option<UserStatus>,
    /// Those of one role.
    role: Option<Role>,
    /// The one with this address, case folded.
    #[schemars(length(max = 254))]
    email: Option<String>,
}

fn list_users<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let filter: Filter = call.query()?;
        let mut conditions = Conditions::of_workspace(call.workspace()?);
        conditions.and_some("status = $", filter.status.map(UserStatus::name));
        conditions.and_some("role = $", filter.role.map(Role::name));
        conditions.and_some(
            "email_folded = lower($::text COLLATE \"und-x-icu\") COLLATE \"C\"",
            filter.email,
        );
        entity::list_by::<Users>(call, conditions).await
    })
}

const PARAMS: &[Param] = &[Param {
    name: "user_id",
    summary: "The user's id.",
}];

/// Entries of the registry.
#[must_use]
pub fn operations() -> Vec<Operation> {
    let one = "/v1/users/{user_id}";
    let read = |id, path, output, handler| Operation {
        scope: Some("people:read"),
        ..Operation::new(id, Method::Get, path, output, handler)
    };
    let write = |id, method, path, handler| Operation {
        scope: Some("people:write"),
        effect: Effect::Write,
        ..Operation::new(id, method, path, entity::view_schema::<Users>, handler)
    };
    vec![
        Operation {
            list: true,
            query: input::<Filter>,
            summary: "The workspace's users, newest first.",
            ..read(
                "list_users",
                Users::PATH,
                entity::list_schema::<Users>,
                list_users,
            )
        },
        Operation {
            params: PARAMS,
            summary: "One user.",
            ..read(
                "get_user",
                one,
                entity::view_schema::<Users>,
                entity::get::<Users>,
            )
        },
        Operation {
            status: 201,
            body: Some(entity::create_schema::<Users>),
            summary: "Make a user; its id may be whatever the accounts are kept by.",
            ..write(
                "create_user",
                Method::Post,
                Users::PATH,
                entity::create::<Users>,
            )
        },
        Operation {
            params: PARAMS,
            precondition: Precondition::Honoured,
            body: Some(entity::fields_schema::<Users>),
            summary: "Change a user: verify or disable one, give another role.",
            ..write("update_user", Method::Patch, one, entity::patch::<Users>)
        },
        Operation {
            params: PARAMS,
            precondition: Precondition::Required,
            body: Some(entity::fields_schema::<Users>),
            summary: "Replace what is said of a user.",
            ..write("replace_user", Method::Put, one, entity::replace::<Users>)
        },
        Operation {
            effect: Effect::Destructive,
            params: PARAMS,
            precondition: Precondition::Required,
            summary: "Delete a user: name and address are gone and free, nothing is told any more; links and preferences stay.",
            ..write("delete_user", Method::Delete, one, entity::archive::<Users>)
        },
        Operation {
            params: PARAMS,
            summary: "How a user wants to hear of things, where they have said so.",
            ..read(
                "get_user_preferences",
                "/v1/users/{user_id}/preferences",
                output::<preferences::Preferences>,
                preferences::get,
            )
        },
        Operation {
            params: PARAMS,
            body: Some(input::<preferences::Changes>),
            output: output::<preferences::Preferences>,
            summary: "Set some preferences of a user; what is not named stays.",
            ..write(
                "set_user_preferences",
                Method::Post,
                "/v1/users/{user_id}/preferences",
                preferences::set,
            )
        },
    ]
}

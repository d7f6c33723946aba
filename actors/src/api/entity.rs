//! What all objects of configuration have in common: made, listed, read, merged, replaced, archived, each with a version.

use super::call::{Answer, Call, decode, to_json};
use super::faults::Faults;
use super::page::{Conditions, Source, list};
use super::problem::Problem;
use super::schema;
use crate::postgres::types::Tz;
use futures::future::LocalBoxFuture;
use millrace_schemas::time::Micros;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_postgres::Row;

/// Nothing is shown beside the fields.
#[derive(Clone, Copy, Debug, Default, Serialize, JsonSchema)]
pub struct Bare {}

/// An object as stored.
#[derive(Clone, Debug)]
pub struct Stored<F, S = Bare> {
    /// Its id.
    pub id: String,
    /// What can be written of it.
    pub fields: F,
    /// What is shown of it and written otherwise, or by nobody.
    pub shown: S,
    /// Its version.
    pub version: i64,
    /// When it was made.
    pub created_at: Micros,
    /// When it was changed last.
    pub updated_at: Micros,
    /// Who changed it last.
    pub updated_by: String,
}

impl<F> Stored<F> {
    /// From a row that has, beside the object's own columns, `id`, `version` and the three of its history.
    ///
    /// # Errors
    /// The row is another.
    pub fn read(row: &Row, fields: F) -> Result<Stored<F>, tokio_postgres::Error> {
        Stored::with(row, fields, Bare {})
    }
}

impl<F, S> Stored<F, S> {
    /// As [`Stored::read`], with what is shown beside the fields.
    ///
    /// # Errors
    /// The row is another.
    pub fn with(row: &Row, fields: F, shown: S) -> Result<Stored<F, S>, tokio_postgres::Error> {
        Ok(Stored {
            id: row.try_get("id")?,
            fields,
            shown,
            version: row.try_get("version")?,
            created_at: row.try_get::<_, Tz>("created_at")?.0,
            updated_at: row.try_get::<_, Tz>("updated_at")?.0,
            updated_by: row.try_get("updated_by")?,
        })
    }
}

/// An object as answered.
#[derive(Serialize, JsonSchema)]
pub struct View<F, S = Bare> {
    /// Its id, opaque.
    #[schemars(extend("x-class" = "open"))]
    id: String,
    #[serde(flatten)]
    fields: F,
    #[serde(flatten)]
    shown: S,
    /// Its version: the ETag, and what `If-Match` takes.
    #[schemars(extend("x-class" = "open"))]
    version: i64,
    /// When it was made.
    #[schemars(extend("x-class" = "open"))]
    created_at: String,
    /// When it was changed last.
    #[schemars(extend("x-class" = "open"))]
    updated_at: String,
    /// Who changed it last.
    #[schemars(extend("x-class" = "open"))]
    updated_by: String,
}

/// A kind of object.
pub(crate) trait Entity: Sized + 'static {
    /// What can be written of it.
    type Fields: JsonSchema + Serialize + DeserializeOwned + Clone + PartialEq;
    /// What is shown of it beside that; [`Bare`]: nothing.
    type Shown: JsonSchema + Serialize;
    /// `/v1/<things>`.
    const PATH: &'static str;
    /// The path's parameter.
    const PARAM: &'static str;
    /// Table and the columns `id`, its own, and those of its history, as a list's source.
    const SOURCE: Source;
    /// The table's column of the id.
    const ID_COLUMN: &'static str;
    /// The pattern of ids that the caller chooses; none: they are minted.
    const CHOSEN_ID: Option<&'static str> = None;
    /// What stands before a minted id.
    const PREFIX: &'static str = "";

    /// A fresh id.
    fn mint(now: millrace_schemas::time::Micros) -> Result<String, getrandom::Error> {
        let minted = millrace_schemas::ids::mint(now)?;
        Ok(format!(
            "{}{}",
            Self::PREFIX,
            millrace_schemas::ids::encode(minted)
        ))
    }

    /// From a row of the source.
    fn read(row: &Row) -> Result<Stored<Self::Fields, Self::Shown>, Problem>;
    /// Adds what is shown and not stored.
    fn finish(_: &Call<'_>, _: &mut Stored<Self::Fields, Self::Shown>) {}
    /// Marks the fields archived.
    fn archive(fields: &mut Self::Fields);
    /// What the schema cannot say: references, and what is still in use. `before` is none for a new object.
    async fn check(
        call: &Call<'_>,
        id: &str,
        before: Option<&Self::Fields>,
        fields: &Self::Fields,
        faults: &mut Faults,
    ) -> Result<(), Problem>;
    /// Inserts, with version 1.
    async fn insert(call: &Call<'_>, id: &str, fields: &Self::Fields) -> Result<(), Problem>;
    /// Writes all fields, with `version + 1`.
    async fn update(call: &Call<'_>, id: &str, fields: &Self::Fields) -> Result<(), Problem>;
}

/// The schema of its fields, as read.
#[must_use]
pub(crate) fn fields_schema<E: Entity>() -> Value {
    schema::input::<E::Fields>()
}

/// The schema of a new object: its fields, and an id where callers choose it.
#[must_use]
pub(crate) fn create_schema<E: Entity>() -> Value {
    let mut schema = fields_schema::<E>();
    if let Some(pattern) = E::CHOSEN_ID
        && let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut)
    {
        properties.insert(
            "id".to_owned(),
            json!({"type": "string", "pattern": pattern, "description": "Its id for ever, unique in the deployment; minted if absent."}),
        );
    }
    schema
}

/// The schema of the object as answered.
#[must_use]
pub(crate) fn view_schema<E: Entity>() -> Value {
    schema::output::<View<E::Fields, E::Shown>>()
}

/// The schema of its list.
#[must_use]
pub(crate) fn list_schema<E: Entity>() -> Value {
    super::page::list_of(view_schema::<E>())
}

/// As answered.
pub(crate) fn view<F: Serialize, S: Serialize>(stored: Stored<F, S>) -> Result<Value, Problem> {
    to_json(&View {
        id: stored.id,
        fields: stored.fields,
        shown: stored.shown,
        version: stored.version,
        created_at: stored.created_at.rfc3339(),
        updated_at: stored.updated_at.rfc3339(),
        updated_by: stored.updated_by,
    })
}

/// An object of the workspace. `lock`: none, or `FOR NO KEY UPDATE`.
pub(crate) async fn load<E: Entity>(
    call: &Call<'_>,
    id: &str,
    lock: &str,
) -> Result<Stored<E::Fields, E::Shown>, Problem> {
    let row = call
        .tx
        .query_opt(
            &format!(
                "SELECT {} FROM {} WHERE workspace_id = $1 AND {} = $2 {lock}",
                E::SOURCE.columns,
                E::SOURCE.from,
                E::ID_COLUMN
            ),
            &[&call.workspace()?, &id],
        )
        .await?
        .ok_or_else(Problem::not_found)?;
    finished::<E>(call, &row)
}

fn finished<E: Entity>(call: &Call<'_>, row: &Row) -> Result<Stored<E::Fields, E::Shown>, Problem> {
    let mut stored = E::read(row)?;
    E::finish(call, &mut stored);
    Ok(stored)
}

/// Answers one page of the workspace's objects, narrowed by `conditions`.
pub(crate) async fn list_by<E: Entity>(
    call: &Call<'_>,
    conditions: Conditions,
) -> Result<Answer, Problem> {
    list(call, E::SOURCE, conditions, |row| {
        view(finished::<E>(call, row)?)
    })
    .await
}

/// Reads one.
pub(crate) fn get<'a, E: Entity>(
    call: &'a Call<'a>,
) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let stored = load::<E>(call, call.param(E::PARAM)?, "").await?;
        answer(stored)
    })
}

/// Makes one; the answer's body is the view.
pub(crate) async fn make<E: Entity>(call: &Call<'_>) -> Result<(String, Answer), Problem> {
    make_of::<E>(call, call.body.clone()).await
}

/// Makes one of this body: what of the request's is left for its fields.
pub(crate) async fn make_of<E: Entity>(
    call: &Call<'_>,
    mut body: Value,
) -> Result<(String, Answer), Problem> {
    let chosen = body.as_object_mut().and_then(|o| o.remove("id"));
    let id = match chosen.as_ref().and_then(Value::as_str) {
        Some(id) => id.to_owned(),
        None => E::mint(call.state.clock.wall()).map_err(super::faults::ChangeError::from)?,
    };
    let fields: E::Fields = decode(&body)?;
    let mut faults = Faults::new();
    E::check(call, &id, None, &fields, &mut faults).await?;
    if !faults.is_empty() {
        return Err(faults.into());
    }
    E::insert(call, &id, &fields).await?;
    let mut answer = answer(load::<E>(call, &id, "").await?)?;
    answer.location = Some(format!("{}/{id}", E::PATH));
    Ok((id, answer))
}

/// Makes one.
pub(crate) fn create<'a, E: Entity>(
    call: &'a Call<'a>,
) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move { make::<E>(call).await.map(|(_, answer)| answer) })
}

/// Merges a patch.
pub(crate) fn patch<'a, E: Entity>(
    call: &'a Call<'a>,
) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        change::<E>(call, |before| {
            let mut merged = to_json(before)?;
            merge(&mut merged, call.body);
            // Absent and null are one in what is read, so that a cleared field takes its default.
            drop_nulls(&mut merged);
            let mut faults = Faults::new();
            if let Some(schema) = call.body_schema {
                schema.faults(&merged, "", &mut faults);
            }
            if faults.is_empty() {
                decode(&merged)
            } else {
                Err(faults.into())
            }
        })
        .await
    })
}

/// Replaces all fields.
pub(crate) fn replace<'a, E: Entity>(
    call: &'a Call<'a>,
) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move { change::<E>(call, |_| decode(call.body)).await })
}

/// Archives it: its facts stay.
pub(crate) fn archive<'a, E: Entity>(
    call: &'a Call<'a>,
) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        change::<E>(call, |before| {
            let mut after = before.clone();
            E::archive(&mut after);
            Ok(after)
        })
        .await
    })
}

async fn change<E: Entity>(
    call: &Call<'_>,
    next: impl FnOnce(&E::Fields) -> Result<E::Fields, Problem>,
) -> Result<Answer, Problem> {
    let id = call.param(E::PARAM)?;
    let before = load::<E>(call, id, "FOR UPDATE").await?;
    call.check_version(before.version, &before.updated_by, before.updated_at)?;
    let fields = next(&before.fields)?;
    let mut faults = Faults::new();
    E::check(call, id, Some(&before.fields), &fields, &mut faults).await?;
    if !faults.is_empty() {
        return Err(faults.into());
    }
    E::update(call, id, &fields).await?;
    let mut answer = answer(load::<E>(call, id, "").await?)?;
    answer.before = Some(view(before)?);
    Ok(answer)
}

/// The object as an answer.
pub(crate) fn answer<F: Serialize, S: Serialize>(stored: Stored<F, S>) -> Result<Answer, Problem> {
    let version = stored.version;
    Ok(Answer {
        body: view(stored)?,
        ..Answer::default()
    }
    .version(version))
}

/// RFC 7396.
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    if let Some(target) = target.as_object_mut() {
        for (name, value) in patch {
            if value.is_null() {
                target.remove(name);
            } else {
                merge(target.entry(name.clone()).or_insert(Value::Null), value);
            }
        }
    }
}

fn drop_nulls(value: &mut Value) {
    if let Some(object) = value.as_object_mut() {
        object.retain(|_, v| !v.is_null());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_follows_rfc_7396() {
        for (target, patch, want) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (
                json!({"a": "b"}),
                json!({"b": "c"}),
                json!({"a": "b", "b": "c"}),
            ),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (
                json!({"a": {"b": "c"}}),
                json!({"a": {"b": "d", "c": null}}),
                json!({"a": {"b": "d"}}),
            ),
            (
                json!({"a": [1]}),
                json!({"a": {"b": null, "c": 1}}),
                json!({"a": {"c": 1}}),
            ),
            (
                json!({"e": null}),
                json!({"a": 1}),
                json!({"e": null, "a": 1}),
            ),
            (
                json!({}),
                json!({"a": {"bb": {"ccc": null}}}),
                json!({"a": {"bb": {}}}),
            ),
        ] {
            let mut got = target;
            merge(&mut got, &patch);
            assert_eq!(got, want);
        }
    }
}

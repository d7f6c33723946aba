//! Lists: keyset pages behind sealed cursors, and counts.
//!
//! A cursor names the last row's sort key. It is sealed over operation, workspace and filters under a key of the
//! deployment, so that one of another list is refused, and a client can neither read nor make one.

use super::call::{Answer, Call};
use super::problem::Problem;
use crate::postgres::types::Tz;
use aes_gcm::aead::{Aead, KeyInit, Payload};
use aes_gcm::{Aes256Gcm, Key, Nonce};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use millrace_schemas::time::Micros;
use serde_json::{Value, json};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

/// Rows counted at most.
pub const COUNTED: i64 = 10_000;
/// Rows of a page at most.
pub const MAX_LIMIT: i64 = 200;
/// Rows of a page if nothing is said.
pub const DEFAULT_LIMIT: i64 = 50;
const NONCE: usize = 12;

/// Which page.
#[derive(Clone, Debug, Default)]
pub struct PageRequest {
    /// Rows at most.
    pub limit: i64,
    /// Begin after the row with this sort key.
    pub after: Option<(Micros, String)>,
    /// Whether to count.
    pub count: bool,
    /// What the next cursor is sealed over.
    pub sealed_over: String,
}

/// The deployment's key of cursors.
pub struct CursorKey(Aes256Gcm);

impl CursorKey {
    /// From 32 bytes; `None` for another number.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<CursorKey> {
        let bytes: [u8; 32] = bytes.try_into().ok()?;
        Some(CursorKey(Aes256Gcm::new(&Key::<Aes256Gcm>::from(bytes))))
    }

    /// The deployment's key from the store, made at its first use.
    ///
    /// # Errors
    /// The store failed.
    pub async fn load(client: &impl tokio_postgres::GenericClient) -> Result<CursorKey, Problem> {
        let mut fresh = [0u8; 32];
        getrandom::fill(&mut fresh).map_err(super::faults::ChangeError::from)?;
        client
            .execute(
                "INSERT INTO deployment_keys (purpose, bytes) VALUES ('cursors', $1) ON CONFLICT DO NOTHING",
                &[&fresh.as_slice()],
            )
            .await?;
        let row = client
            .query_one(
                "SELECT bytes FROM deployment_keys WHERE purpose = 'cursors'",
                &[],
            )
            .await?;
        CursorKey::new(row.try_get(0)?)
            .ok_or_else(|| Problem::new("internal", "the deployment's cursor key is damaged"))
    }

    /// A cursor for the row after this sort key, sealed over operation, workspace and filters.
    ///
    /// # Errors
    /// No random bytes.
    pub fn seal(&self, over: &str, time: Micros, id: &str) -> Result<String, Problem> {
        let broken = |_| Problem::new("internal", "a cursor could not be sealed");
        let mut nonce = [0u8; NONCE];
        getrandom::fill(&mut nonce).map_err(super::faults::ChangeError::from)?;
        let text = json!([time.0, id]).to_string();
        let payload = Payload {
            msg: text.as_bytes(),
            aad: over.as_bytes(),
        };
        let sealed = self
            .0
            .encrypt(&Nonce::from(nonce), payload)
            .map_err(broken)?;
        let mut bytes = nonce.to_vec();
        bytes.extend_from_slice(&sealed);
        Ok(URL_SAFE_NO_PAD.encode(bytes))
    }

    /// The sort key inside a cursor that was sealed over the same; `None` for every other text.
    #[must_use]
    pub fn open(&self, over: &str, cursor: &str) -> Option<(Micros, String)> {
        let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE>()?;
        let payload = Payload {
            msg: sealed,
            aad: over.as_bytes(),
        };
        let text = self.0.decrypt(&Nonce::from(*nonce), payload).ok()?;
        let (time, id): (i64, String) = serde_json::from_slice(&text).ok()?;
        Some((Micros(time), id))
    }
}

/// The conditions of a list and their parameters.
#[derive(Default)]
pub struct Conditions {
    clauses: Vec<String>,
    parameters: Vec<Box<dyn ToSql + Sync>>,
}

impl Conditions {
    /// Rows of the workspace.
    #[must_use]
    pub fn of_workspace(workspace: i32) -> Conditions {
        let mut c = Conditions::default();
        c.and("workspace_id = $", workspace);
        c
    }

    /// One more; `$` in the clause stands for the value.
    pub fn and(&mut self, clause: &str, value: impl ToSql + Sync + 'static) {
        let n = self.bind(value);
        self.clauses.push(clause.replace('$', &format!("${n}")));
    }

    /// One more if there is a value.
    pub fn and_some(&mut self, clause: &str, value: Option<impl ToSql + Sync + 'static>) {
        if let Some(value) = value {
            self.and(clause, value);
        }
    }

    /// One more without a value.
    pub fn and_plain(&mut self, clause: &str) {
        self.clauses.push(clause.to_owned());
    }

    fn bind(&mut self, value: impl ToSql + Sync + 'static) -> usize {
        self.parameters.push(Box::new(value));
        self.parameters.len()
    }

    fn text(&self) -> String {
        if self.clauses.is_empty() {
            "true".to_owned()
        } else {
            self.clauses.join(" AND ")
        }
    }

    fn values(&self) -> Vec<&(dyn ToSql + Sync)> {
        self.parameters
            .iter()
            .map(|p| &**p as &(dyn ToSql + Sync))
            .collect()
    }
}

/// Where a list's rows come from. All text is this program's own.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// A table, or a subquery with a name.
    pub from: &'static str,
    /// The columns.
    pub columns: &'static str,
    /// The column of time in the sort key.
    pub time: &'static str,
    /// The unique column that ends the sort key.
    pub id: &'static str,
    /// Its type.
    pub id_type: &'static str,
    /// Oldest first instead of newest first.
    pub ascending: bool,
    /// For facts without an index by time: look back window by window, each wider than the last, so that a page costs what
    /// lies near it and not the whole table.
    pub windows: bool,
}

/// How far back each window reaches, in seconds. After the last one everything older is looked through.
const WINDOWS: &[i64] = &[300, 3_600, 21_600, 86_400, 604_800, 3_024_000, 34_560_000];

/// Answers a page of a list.
///
/// # Errors
/// The store failed, or a row could not be read.
pub async fn list(
    call: &Call<'_>,
    source: Source,
    mut conditions: Conditions,
    read: impl Fn(&Row) -> Result<Value, Problem>,
) -> Result<Answer, Problem> {
    let page = call.page;
    let count = if page.count {
        count(call, source, &conditions).await?
    } else {
        Value::Null
    };
    let (order, before) = if source.ascending {
        ("ASC", ">")
    } else {
        ("DESC", "<")
    };
    if let Some((time, id)) = &page.after {
        let (t, i) = (conditions.bind(Tz(*time)), conditions.bind(id.clone()));
        conditions.clauses.push(format!(
            "({}, {}) {before} (${t}, ${i}::text::{})",
            source.time, source.id, source.id_type
        ));
    }
    let wanted = page.limit + 1;
    let select = |conditions: &Conditions, limit: i64| {
        format!(
            "SELECT {}, {} AS page_time, {}::text AS page_id FROM {} WHERE {} ORDER BY {} {order}, {} {order} LIMIT {limit}",
            source.columns,
            source.time,
            source.id,
            source.from,
            conditions.text(),
            source.time,
            source.id
        )
    };
    let rows = if source.windows {
        in_windows(call, source, &mut conditions, wanted, select).await?
    } else {
        call.tx
            .query(&select(&conditions, wanted), &conditions.values())
            .await?
    };
    let mut items = Vec::with_capacity(rows.len());
    for row in &rows {
        let time: Tz = row.try_get("page_time")?;
        let id: String = row.try_get("page_id")?;
        items.push((read(row)?, time.0, id));
    }
    answer(call, items, count).await
}

/// Answers a page of these items, each with its sort key; one more than the page takes says that there are more.
///
/// # Errors
/// The store failed.
pub async fn answer(
    call: &Call<'_>,
    mut items: Vec<(Value, Micros, String)>,
    count: Value,
) -> Result<Answer, Problem> {
    let limit = usize::try_from(call.page.limit).unwrap_or(0);
    let more = items.len() > limit;
    items.truncate(limit);
    let next_cursor = match items.last() {
        Some((_, time, id)) if more => {
            let key = call.state.cursor_key().await?;
            Value::from(key.seal(&call.page.sealed_over, *time, id)?)
        }
        _ => Value::Null,
    };
    let items: Vec<Value> = items.into_iter().map(|(item, _, _)| item).collect();
    Ok(Answer {
        body: json!({"items": items, "next_cursor": next_cursor, "count": count}),
        ..Answer::default()
    })
}

/// A count as it is answered: exact up to [`COUNTED`].
#[must_use]
pub fn counted(n: i64) -> Value {
    if n > COUNTED {
        json!({"at_least": COUNTED})
    } else {
        json!(n)
    }
}

async fn in_windows(
    call: &Call<'_>,
    source: Source,
    conditions: &mut Conditions,
    wanted: i64,
    select: impl Fn(&Conditions, i64) -> String,
) -> Result<Vec<Row>, Problem> {
    let newest = match &call.page.after {
        Some((time, _)) => *time,
        // Doors stamp with their own clocks, so a row may lie a little ahead of ours.
        None => call.state.clock.wall().plus_secs(600),
    };
    let mut rows: Vec<Row> = Vec::new();
    let mut upper: Option<Micros> = None;
    let reaches = WINDOWS
        .iter()
        .map(|s| Some(newest.plus_secs(-s)))
        .chain([None]);
    let (clauses, bound) = (conditions.clauses.len(), conditions.parameters.len());
    for lower in reaches {
        conditions.clauses.truncate(clauses);
        conditions.parameters.truncate(bound);
        // The newest window has no upper end: what lies further ahead is listed too.
        conditions.and_some(&format!("{} < $", source.time), upper.map(Tz));
        conditions.and_some(&format!("{} >= $", source.time), lower.map(Tz));
        let missing = wanted - i64::try_from(rows.len()).unwrap_or(wanted);
        rows.extend(
            call.tx
                .query(&select(conditions, missing), &conditions.values())
                .await?,
        );
        if i64::try_from(rows.len()).unwrap_or(wanted) >= wanted {
            break;
        }
        upper = lower;
    }
    Ok(rows)
}

async fn count(call: &Call<'_>, source: Source, conditions: &Conditions) -> Result<Value, Problem> {
    let sql = format!(
        "SELECT count(*) FROM (SELECT 1 FROM {} WHERE {} LIMIT {}) AS counted",
        source.from,
        conditions.text(),
        COUNTED + 1
    );
    let n: i64 = call
        .tx
        .query_one(&sql, &conditions.values())
        .await?
        .try_get(0)?;
    Ok(counted(n))
}

/// The schema of a list of `item`.
#[must_use]
pub fn list_of(item: Value) -> Value {
    json!({
        "type": "object",
        "required": ["items", "next_cursor", "count"],
        "properties": {
            "items": {"type": "array", "items": item, "x-class": "open"},
            "next_cursor": {
                "type": ["string", "null"], "x-class": "open",
                "description": "Of the next page; null on the last one."
            },
            "count": {
                "x-class": "open",
                "description": "Null unless `count=true`.",
                "anyOf": [
                    {"type": "null"},
                    {"type": "integer", "minimum": 0, "maximum": COUNTED},
                    {"type": "object", "required": ["at_least"], "properties": {"at_least": {"type": "integer", "x-class": "open"}}}
                ]
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_opens_over_the_same_list_alone() {
        let key = CursorKey::new(&[7; 32]).expect("32 bytes");
        let text = key.seal("list|1|{}", Micros(5), "x").expect("sealed");
        assert_eq!(
            key.open("list|1|{}", &text),
            Some((Micros(5), "x".to_owned()))
        );
        assert_eq!(key.open("list|2|{}", &text), None);
        assert_eq!(
            CursorKey::new(&[8; 32])
                .expect("32 bytes")
                .open("list|1|{}", &text),
            None
        );
        for bad in ["", "x", "AAAA", &text[1..], &format!("{text}A")] {
            assert_eq!(key.open("list|1|{}", bad), None, "{bad}");
        }
    }
}

//! Rows in PostgreSQL's binary COPY form, written into one buffer: no boxed parameters, no allocation a row.

use super::types::PG_EPOCH;
use bytes::{BufMut, Bytes, BytesMut};
use futures::SinkExt;
use millrace_schemas::time::Micros;
use rust_decimal::Decimal;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Statement};
use uuid::Uuid;

/// Rows on their way into one table.
#[derive(Debug, Default)]
pub struct Rows {
    buffer: BytesMut,
    rows: usize,
}

impl Rows {
    /// No rows.
    #[must_use]
    pub fn new() -> Rows {
        Rows::default()
    }

    /// How many rows were begun.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Begins a row of `fields` columns; exactly that many calls must follow.
    pub fn row(&mut self, fields: i16) -> &mut Rows {
        if self.rows == 0 {
            self.buffer.reserve(64 << 10);
            self.buffer.put_slice(b"PGCOPY\n\xff\r\n\0");
            self.buffer.put_i32(0);
            self.buffer.put_i32(0);
        }
        self.buffer.put_i16(fields);
        self.rows += 1;
        self
    }

    /// NULL.
    pub fn null(&mut self) -> &mut Rows {
        self.buffer.put_i32(-1);
        self
    }

    /// `bytea`, and any type whose binary form is its bytes (`text`, `json`).
    pub fn bytes(&mut self, value: &[u8]) -> &mut Rows {
        self.buffer
            .put_i32(i32::try_from(value.len()).unwrap_or(i32::MAX));
        self.buffer.put_slice(value);
        self
    }

    /// `text` or `json`.
    pub fn text(&mut self, value: &str) -> &mut Rows {
        self.bytes(value.as_bytes())
    }

    /// `text` or `json`, nullable.
    pub fn opt_text(&mut self, value: Option<&str>) -> &mut Rows {
        match value {
            Some(v) => self.text(v),
            None => self.null(),
        }
    }

    /// `text[]`.
    pub fn texts(&mut self, values: &[String]) -> &mut Rows {
        let start = self.buffer.len();
        self.buffer.put_i32(0);
        self.buffer.put_i32(i32::from(!values.is_empty()));
        self.buffer.put_i32(0);
        self.buffer.put_u32(Type::TEXT.oid());
        if !values.is_empty() {
            self.buffer
                .put_i32(i32::try_from(values.len()).unwrap_or(i32::MAX));
            self.buffer.put_i32(1);
            for value in values {
                self.bytes(value.as_bytes());
            }
        }
        self.end_field(start)
    }

    /// The length of the field that began at `start`, now that it is written.
    fn end_field(&mut self, start: usize) -> &mut Rows {
        let written = self.buffer.len() - start - 4;
        if let Some(slot) = self.buffer.get_mut(start..start + 4) {
            slot.copy_from_slice(&i32::try_from(written).unwrap_or(0).to_be_bytes());
        }
        self
    }

    /// `smallint`.
    pub fn i16(&mut self, value: i16) -> &mut Rows {
        self.buffer.put_i32(2);
        self.buffer.put_i16(value);
        self
    }

    /// `integer`.
    pub fn i32(&mut self, value: i32) -> &mut Rows {
        self.buffer.put_i32(4);
        self.buffer.put_i32(value);
        self
    }

    /// `bigint`.
    pub fn i64(&mut self, value: i64) -> &mut Rows {
        self.buffer.put_i32(8);
        self.buffer.put_i64(value);
        self
    }

    /// `boolean`.
    pub fn bool(&mut self, value: bool) -> &mut Rows {
        self.buffer.put_i32(1);
        self.buffer.put_u8(u8::from(value));
        self
    }

    /// `uuid`.
    pub fn uuid(&mut self, value: Uuid) -> &mut Rows {
        self.bytes(value.as_bytes())
    }

    /// `uuid`, nullable.
    pub fn opt_uuid(&mut self, value: Option<Uuid>) -> &mut Rows {
        match value {
            Some(v) => self.uuid(v),
            None => self.null(),
        }
    }

    /// `timestamptz`.
    pub fn time(&mut self, value: Micros) -> &mut Rows {
        self.i64(value.0.saturating_sub(PG_EPOCH))
    }

    /// `timestamptz`, nullable.
    pub fn opt_time(&mut self, value: Option<Micros>) -> &mut Rows {
        match value {
            Some(v) => self.time(v),
            None => self.null(),
        }
    }

    /// `numeric`.
    pub fn decimal(&mut self, value: Decimal) -> &mut Rows {
        let start = self.buffer.len();
        self.buffer.put_i32(0);
        if value.to_sql(&Type::NUMERIC, &mut self.buffer).is_err() {
            self.buffer.truncate(start);
            return self.null();
        }
        self.end_field(start)
    }

    /// The finished stream: header, rows, trailer. Nothing if there is no row.
    #[must_use]
    pub fn into_stream(mut self) -> Bytes {
        if self.rows > 0 {
            self.buffer.put_i16(-1);
        }
        self.buffer.freeze()
    }

    /// Sends the rows by a prepared `COPY … FROM STDIN BINARY`; nothing at all if there is none.
    ///
    /// # Errors
    /// The store refused them.
    pub async fn copy_into(
        self,
        client: &Client,
        copy: &Statement,
    ) -> Result<u64, tokio_postgres::Error> {
        self.copy_into_while(client, copy, || ()).await.map(|r| r.0)
    }

    /// The same, and does something else while the server works on them.
    ///
    /// # Errors
    /// The store refused them.
    pub async fn copy_into_while<T>(
        self,
        client: &Client,
        copy: &Statement,
        meanwhile: impl FnOnce() -> T,
    ) -> Result<(u64, T), tokio_postgres::Error> {
        if self.is_empty() {
            return Ok((0, meanwhile()));
        }
        let sink = client.copy_in::<_, Bytes>(copy).await?;
        let mut sink = std::pin::pin!(sink);
        sink.send(self.into_stream()).await?;
        let (copied, done) = futures::join!(sink.finish(), async {
            // The connection's task may share this thread: first it is to bring the rows on their way.
            tokio::task::yield_now().await;
            meanwhile()
        });
        Ok((copied?, done))
    }
}

//! `timestamptz` as [`Micros`], so that no calendar is computed on the way to the store.

use bytes::{BufMut, BytesMut};
use millrace_schemas::time::Micros;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

/// 2000-01-01T00:00:00Z, PostgreSQL's epoch, in microseconds since 1970.
pub const PG_EPOCH: i64 = 946_684_800_000_000;

/// A [`Micros`] as a `timestamptz` parameter or column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tz(pub Micros);

impl ToSql for Tz {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.put_i64(self.0.0.saturating_sub(PG_EPOCH));
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TIMESTAMPTZ
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Tz {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Tz, Box<dyn std::error::Error + Sync + Send>> {
        let bytes: [u8; 8] = raw.try_into()?;
        Ok(Tz(Micros(
            i64::from_be_bytes(bytes).saturating_add(PG_EPOCH),
        )))
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TIMESTAMPTZ
    }
}

//! Rows as the product wrote them: its own COPY streams taken apart again, so that every other way of writing has the same
//! cells, byte by byte, and pays for putting them together.

use anyhow::{Context, ensure};
use bytes::{BufMut, Bytes, BytesMut};
use std::ops::Range;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

type Refused = Box<dyn std::error::Error + Sync + Send>;

/// Signature, flags and length of the extension.
const HEAD: usize = 19;

/// Rows of one table in one transaction.
#[derive(Clone, Debug, Default)]
pub struct Cells {
    stream: Bytes,
    width: usize,
    cells: Vec<Option<Range<usize>>>,
}

impl Cells {
    /// Takes a COPY stream apart.
    ///
    /// # Errors
    /// It is none.
    pub fn read(stream: Bytes) -> anyhow::Result<Cells> {
        let mut out = Cells {
            stream,
            ..Cells::default()
        };
        if out.stream.is_empty() {
            return Ok(out);
        }
        let mut at = HEAD;
        loop {
            let width = i16::from_be_bytes(out.take(&mut at)?);
            if width == -1 {
                ensure!(at == out.stream.len(), "bytes behind the trailer");
                return Ok(out);
            }
            out.width = usize::try_from(width)?;
            for _ in 0..width {
                let length = i32::from_be_bytes(out.take(&mut at)?);
                let cell = usize::try_from(length).ok().map(|n| at..at + n);
                at = cell.as_ref().map_or(at, |c| c.end);
                out.cells.push(cell);
            }
        }
    }

    fn take<const N: usize>(&self, at: &mut usize) -> anyhow::Result<[u8; N]> {
        let bytes = self
            .stream
            .get(*at..*at + N)
            .context("a COPY stream cut off")?;
        *at += N;
        Ok(bytes.try_into()?)
    }

    /// How many rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.cells.len().checked_div(self.width).unwrap_or(0)
    }

    fn cell(&self, row: usize, column: usize) -> Option<&[u8]> {
        let range = self.cells.get(row * self.width + column)?.clone()?;
        self.stream.get(range)
    }

    /// A COPY stream of it.
    #[must_use]
    pub fn copy(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(self.stream.len());
        out.put_slice(b"PGCOPY\n\xff\r\n\0");
        out.put_i64(0);
        for row in 0..self.len() {
            out.put_i16(i16::try_from(self.width).unwrap_or(0));
            for column in 0..self.width {
                match self.cell(row, column) {
                    None => out.put_i32(-1),
                    Some(cell) => {
                        out.put_i32(i32::try_from(cell.len()).unwrap_or(0));
                        out.put_slice(cell);
                    }
                }
            }
        }
        out.put_i16(-1);
        out.freeze()
    }

    /// One column as an array.
    #[must_use]
    pub fn column<'a>(&'a self, column: usize, of: &'a Type) -> Column<'a> {
        Column {
            cells: self,
            column,
            of,
        }
    }

    /// One cell as a parameter.
    #[must_use]
    pub fn parameter(&self, row: usize, column: usize) -> Parameter<'_> {
        Parameter(self.cell(row, column))
    }

    /// One cell that holds a uuid.
    #[must_use]
    pub fn uuid(&self, row: usize, column: usize) -> uuid::Uuid {
        self.cell(row, column)
            .and_then(|c| uuid::Uuid::from_slice(c).ok())
            .unwrap_or_default()
    }
}

/// A cell as a parameter of its own type.
#[derive(Debug)]
pub struct Parameter<'a>(Option<&'a [u8]>);

impl ToSql for Parameter<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Refused> {
        Ok(match self.0 {
            None => IsNull::Yes,
            Some(bytes) => {
                out.put_slice(bytes);
                IsNull::No
            }
        })
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// A column as an array parameter.
#[derive(Debug)]
pub struct Column<'a> {
    cells: &'a Cells,
    column: usize,
    of: &'a Type,
}

impl ToSql for Column<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Refused> {
        let rows = self.cells.len();
        // One dimension, there may be NULLs, the type of the elements, how many, counted from one.
        out.put_i32(1);
        out.put_i32(1);
        out.put_u32(self.of.oid());
        out.put_i32(i32::try_from(rows)?);
        out.put_i32(1);
        for row in 0..rows {
            match self.cells.cell(row, self.column) {
                None => out.put_i32(-1),
                Some(cell) => {
                    out.put_i32(i32::try_from(cell.len())?);
                    out.put_slice(cell);
                }
            }
        }
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace::postgres::copy::Rows;

    #[test]
    fn a_stream_taken_apart_is_put_together_the_same() {
        let mut rows = Rows::new();
        rows.row(3).i32(7).null().text("x");
        rows.row(3).i32(8).text("").text("y");
        let stream = rows.into_stream();
        let cells = Cells::read(stream.clone()).expect("reads");
        assert_eq!(cells.len(), 2);
        assert_eq!(cells.copy(), stream);
        assert_eq!(cells.cell(0, 1), None);
        assert_eq!(cells.cell(1, 1), Some(&b""[..]));
        assert!(Cells::read(stream.slice(..stream.len() - 3)).is_err());
    }
}

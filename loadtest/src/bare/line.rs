//! One record's rows as one record of a ledger topic: a table's number, a length, the rows in COPY form.

use super::rows::Batch;

/// Empties a batch into a ledger record.
pub fn of(batch: Batch) -> Vec<u8> {
    let mut out = Vec::with_capacity(1_024);
    let tables = [
        batch.visits,
        batch.clicks,
        batch.conversions,
        batch.postback_log,
        batch.parked,
    ];
    for (table, rows) in (0_u8..).zip(tables) {
        if !rows.is_empty() {
            part(&mut out, table, &rows.into_stream());
        }
    }
    for (key, (conversion, accepted_at)) in batch.keys {
        let mut row = [0; 40];
        row[..16].copy_from_slice(key.as_bytes());
        row[16..32].copy_from_slice(conversion.as_bytes());
        row[32..].copy_from_slice(&accepted_at.0.to_be_bytes());
        part(&mut out, 5, &row);
    }
    for click in batch.woken {
        part(&mut out, 6, click.as_bytes());
    }
    out
}

fn part(out: &mut Vec<u8>, table: u8, bytes: &[u8]) {
    out.push(table);
    out.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend_from_slice(bytes);
}

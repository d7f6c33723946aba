//! The claims of a batch against a table in memory: deciding and settling without a store.

use millrace::attribution::draft::{Draft, Owner, Pending};
use std::collections::HashMap;
use uuid::Uuid;

/// Who holds each identity.
pub type Identities = HashMap<Uuid, Owner>;

/// Takes what is free of the keys that the draft names, and reads the owners of the rest.
pub fn claim(draft: &mut Draft, identities: &mut Identities) {
    let mut places: HashMap<Uuid, usize> = HashMap::new();
    for pending in &draft.pending {
        let Pending::Book(booking) = pending else {
            continue;
        };
        for key in booking.keys.iter() {
            if let Some(owner) = identities.get(&key) {
                if draft.claims.taken.contains_key(&key) {
                    continue;
                }
                let owners = &mut draft.claims.owners;
                let place = *places.entry(owner.conversion).or_insert_with(|| {
                    owners.push(owner.clone());
                    owners.len() - 1
                });
                draft.claims.held.insert(key, place);
                continue;
            }
            let conversion = booking.id.to_uuid();
            draft.claims.taken.insert(key, conversion);
            identities.insert(
                key,
                Owner {
                    conversion,
                    accepted_at: booking.accepted_at,
                    status: Some(booking.status),
                    payout: booking.payout,
                    external_id: booking.external_id.clone(),
                },
            );
        }
    }
}

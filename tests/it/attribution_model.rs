//! Attribution against its model, over arbitrary interleavings, repeats and crashes: the pure core in thousands of cases, and
//! the real `store.rs` on real PostgreSQL with two actors. Among the cases: one identity under two click ids in two
//! partitions, one click id in two workspaces.

use hashbrown::HashMap;
use millrace::attribution::decide::{Deciding, Origin, Record};
use millrace::attribution::draft::{Claims, Draft, KeyFix, Owner, Pending};
use millrace::attribution::settle::settle;
use millrace::attribution::slice::{Click, Slice};
use millrace::runtime::clock::ManualClock;
use millrace::runtime::vertical::Effects;
use millrace::settings;
use millrace_schemas::ids::{self, ClickKey, RecordId};
use millrace_schemas::outcome::Outcome;
use millrace_schemas::time::Micros;
use millrace_tests::model::{Conversion, Model, Op, Postback, T0};
use millrace_tests::partition::{Partition, topics};
use millrace_tests::postgres::TestDatabase;
use proptest::prelude::*;
use proptest::sample::select;
use std::collections::BTreeMap;
use uuid::Uuid;

/// Click ids by actor: minted and foreign ones, whose partitions under the real partitioner are 0 and 1 in both workspaces.
fn click_ids() -> [Vec<String>; 2] {
    let mut found: [Vec<String>; 2] = Default::default();
    let mut n = 0u128;
    while found.iter().any(|f| f.len() < 4) {
        n += 1;
        let name = if n.is_multiple_of(2) {
            let millis = u128::try_from(T0 / 1_000).expect("positive") + n / 8;
            ids::encode(Uuid::from_u128((millis << 80) | (7 << 76) | (2 << 62) | n))
        } else {
            format!("foreign-{n}")
        };
        let place = |ws: i32| {
            millrace_topics::partitioner::partition(ids::partition_key(ws, &name).as_bytes(), 2)
        };
        let at = usize::try_from(place(1)).expect("a partition");
        let even = found[at]
            .iter()
            .filter(|f| f.starts_with("foreign"))
            .count();
        let wanted = if name.starts_with("foreign") {
            even < 2
        } else {
            found[at].len() - even < 2
        };
        if place(1) == place(2) && wanted {
            found[at].push(name);
        }
    }
    found
}

#[derive(Debug, Clone)]
enum Step {
    /// Records of one batch of one actor.
    Batch {
        actor: usize,
        ops: Vec<Op>,
        crash: Crash,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Crash {
    None,
    BeforeCommit,
    AfterCommit,
}

fn op(names: Vec<String>) -> impl Strategy<Value = Op> {
    let name = select(names);
    let ws = 1..=2i32;
    let visit = (
        ws.clone(),
        name.clone(),
        0..3u128,
        select(vec!["camp", "other"]),
        any::<bool>(),
        select(vec![1u8, 1, 1, 1, 0, 2]),
    )
        .prop_map(|(ws, click, visit, campaign, direct, journey)| {
            // A visit's id is its own: of one content, under one click.
            let place = click.bytes().fold(u128::from(ws.unsigned_abs()), |h, b| {
                h.wrapping_mul(31) + u128::from(b)
            });
            let content = u128::from(direct) * 8
                + u128::from(journey)
                + 16 * u128::from(campaign.len() % 2 == 0);
            Op::Visit {
                ws,
                click,
                visit: (place << 16) | (content << 4) | (visit % 2),
                campaign,
                direct,
                journey,
            }
        });
    let click = (
        ws.clone(),
        name.clone(),
        select(vec!["camp", "other"]),
        0..2u16,
    )
        .prop_map(|(ws, click, campaign, stage)| Op::Click {
            ws,
            click,
            campaign,
            stage,
        });
    let postback = (
        (
            ws,
            name,
            select(vec!["w1", "w2"]),
            select(vec![None, None, Some("e1"), Some("e2")]),
        ),
        (
            select(vec![None, Some("t1"), Some("t1"), Some("t2")]),
            select(vec![None, None, Some("sale"), Some("7")]),
            select(vec![None, None, Some("77"), Some("0")]),
            select(vec![None, Some(0), Some(1), Some(2)]),
            select(vec!["approved", "approved", "pending", "rejected"]),
            any::<bool>(),
        ),
    )
        .prop_map(
            |((ws, click, network, external), (txid, event, offer, payout, status, reversals))| {
                Op::Postback(Postback {
                    ws,
                    click,
                    network,
                    external,
                    txid,
                    event,
                    offer,
                    payout,
                    status,
                    reversals,
                })
            },
        );
    prop_oneof![3 => visit, 2 => click, 5 => postback]
}

fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    let [a, b] = click_ids();
    let crash = select(vec![
        Crash::None,
        Crash::None,
        Crash::None,
        Crash::BeforeCommit,
        Crash::AfterCommit,
    ]);
    let batch =
        |actor: usize, names: Vec<String>, crash| {
            (prop::collection::vec(op(names), 1..6), crash)
                .prop_map(move |(ops, crash)| Step::Batch { actor, ops, crash })
        };
    prop::collection::vec(
        prop_oneof![batch(0, a, crash.clone()), batch(1, b, crash)],
        1..most,
    )
}

/// The order in which a batch is decided: clicks before postbacks.
fn decided(ops: &[Op]) -> Vec<Op> {
    let (mut first, second): (Vec<Op>, Vec<Op>) = ops
        .iter()
        .cloned()
        .partition(|op| !matches!(op, Op::Postback(_)));
    first.extend(second);
    first
}

/// The truth behind two pure actors: what the store would hold.
#[derive(Default)]
struct Memory {
    clicks: HashMap<ClickKey, Click>,
    keys: HashMap<Uuid, Uuid>,
    owners: HashMap<Uuid, Owner>,
    offers: HashMap<Uuid, (i32, String)>,
    outcomes: BTreeMap<(String, String), i64>,
    charged: usize,
    visits: usize,
    mark: i64,
}

struct Pure {
    slice: Slice,
}

fn record(op: &Op, at: i64) -> (Record, Vec<u8>) {
    let (topic, wire) = op.wire(at);
    let bytes = serde_json::to_vec(&wire).expect("JSON");
    let (ws, id) = op.key();
    let key = ClickKey::new(ws, id);
    let record = if topic == 0 {
        Record::Click(
            Box::new(serde_json::from_slice(&bytes).expect("decodes")),
            key,
        )
    } else {
        Record::Postback(
            Box::new(serde_json::from_slice(&bytes).expect("decodes")),
            Some(key),
        )
    };
    (record, bytes)
}

impl Pure {
    /// One attempt at a batch; committed to memory unless it crashes before.
    fn batch(&mut self, memory: &mut Memory, first: usize, ops: &[Op], commit: bool) {
        let mut draft = Draft::default();
        let mut effects = Effects::default();
        let records: Vec<(Record, Vec<u8>)> = ops
            .iter()
            .zip(first..)
            .map(|(op, n)| record(op, T0 + i64::try_from(n).expect("small")))
            .collect();
        for (record, _) in &records {
            if let Record::Click(r, _) = record
                && let Some(journey) = &r.journey
            {
                assert!(self.slice.learn_journey(journey.get()));
            }
            let key = record.key().expect("a key");
            if self.slice.is_cold(&key) {
                self.slice
                    .put(key, memory.clicks.get(&key).cloned().unwrap_or_default());
            }
        }
        for (n, (record, payload)) in (first..).zip(&records) {
            let at = Micros(T0 + i64::try_from(n).expect("small"));
            let id = RecordId {
                topic_no: 1,
                partition: 0,
                offset: i64::try_from(n).expect("small"),
            };
            let from = Origin {
                id,
                index: n,
                accepted_at: at,
                deadline: at.plus_secs(60),
                payload,
                woken: false,
            };
            Deciding {
                slice: &self.slice,
                draft: &mut draft,
                effects: &mut effects,
            }
            .record(record, &from);
        }
        draft.claims = memory.claim(&draft);
        let taken = draft.claims.taken.clone();
        settle(&mut draft, &mut effects);
        if commit {
            memory.commit(&draft, &effects, taken);
            for (key, click) in draft.overlay {
                self.slice.put(key, click);
            }
            self.slice.bound();
        }
    }
}

impl Memory {
    fn claim(&self, draft: &Draft) -> Claims {
        let mut claims = Claims::default();
        for pending in &draft.pending {
            let Pending::Book(b) = pending else { continue };
            for key in b.keys.iter() {
                match self.keys.get(&key) {
                    None => {
                        claims.taken.entry(key).or_insert(b.id.to_uuid());
                    }
                    Some(conversion) => {
                        let owner = self
                            .owners
                            .get(conversion)
                            .expect("a key's conversion")
                            .clone();
                        let at = claims
                            .owners
                            .iter()
                            .position(|o| o.conversion == *conversion)
                            .unwrap_or_else(|| {
                                claims.owners.push(owner);
                                claims.owners.len() - 1
                            });
                        claims.held.insert(key, at);
                    }
                }
            }
        }
        claims
    }

    fn commit(&mut self, draft: &Draft, effects: &Effects, taken: HashMap<Uuid, Uuid>) {
        self.clicks
            .extend(draft.overlay.iter().map(|(k, c)| (*k, c.clone())));
        self.charged += draft.clicks.len();
        self.visits += draft.visits.len();
        self.mark = self.mark.max(effects.mark);
        self.keys.extend(taken);
        for fix in &draft.fixes {
            match fix {
                KeyFix::Delete(key) => {
                    self.keys.remove(key);
                }
                KeyFix::Repoint(key, conversion, _) => {
                    self.keys.insert(*key, *conversion);
                }
            }
        }
        for b in &draft.booked {
            let id = b.id.to_uuid();
            self.offers.insert(id, (b.key.workspace, b.offer.clone()));
            let owner = Owner {
                conversion: id,
                accepted_at: b.accepted_at,
                status: Some(b.status),
                payout: b.payout,
                external_id: b.external_id.clone(),
            };
            assert!(
                self.owners.insert(id, owner).is_none(),
                "a conversion is booked once"
            );
        }
        for (id, change) in &draft.changes {
            let owner = self.owners.get_mut(id).expect("the changed conversion");
            owner.status = Some(change.status);
            owner.payout = change.payout;
            if owner.external_id.is_none() {
                owner.external_id.clone_from(&change.external_id);
            }
        }
        for (_, _, outcome, reason, n) in effects.tally.changes() {
            *self
                .outcomes
                .entry((outcome.name().to_owned(), reason.to_owned()))
                .or_insert(0) += n;
        }
        self.outcomes.retain(|_, n| *n != 0);
    }

    fn ledger(&self) -> Vec<Conversion> {
        let mut all: Vec<Conversion> = self
            .owners
            .values()
            .map(|o| {
                let (ws, offer) = self.offers.get(&o.conversion).expect("its offer").clone();
                Conversion {
                    by: usize::try_from(RecordId::from_uuid(o.conversion).offset)
                        .expect("an offset"),
                    ws,
                    offer,
                    payout: o.payout.try_into().expect("whole"),
                    status: o.status.expect("a status").name().to_owned(),
                    external: o.external_id.clone(),
                }
            })
            .collect();
        all.sort();
        all
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_pure_core_agrees_with_the_model(steps in steps(16), bound in 0..6usize) {
        let mut memory = Memory::default();
        let mut model = Model::default();
        let mut actors = [Pure { slice: Slice::new(bound, 0) }, Pure { slice: Slice::new(bound, 0) }];
        let mut n = 0;
        for Step::Batch { actor, ops, crash } in steps {
            let ops = decided(&ops);
            let pure = &mut actors[actor];
            if crash == Crash::BeforeCommit {
                pure.batch(&mut memory, n, &ops, false);
                pure.slice = Slice::new(bound, memory.mark);
            }
            pure.batch(&mut memory, n, &ops, true);
            if crash == Crash::AfterCommit {
                pure.slice = Slice::new(bound, memory.mark);
            }
            n += ops.len();
            ops.into_iter().for_each(|op| model.take(op));
        }
        prop_assert_eq!(&memory.outcomes, &model.tally());
        prop_assert_eq!(memory.ledger(), model.ledger());
        prop_assert_eq!((memory.visits, memory.charged), (model.visits, model.charged));
    }
}

/// Two actors on one real store.
struct Real {
    database: TestDatabase,
    topics: Vec<millrace_topics::contract::TopicRef>,
    actors: Vec<Partition>,
    /// Record number of (topic, partition, offset).
    numbers: HashMap<(i32, i32, i64), usize>,
    offsets: HashMap<(i32, i32), i64>,
}

impl Real {
    async fn new() -> Real {
        let database = TestDatabase::create().await;
        let topics = topics(&database.client().await, 2).await;
        let mut actors = Vec::new();
        for partition in 0..2 {
            actors.push(Real::launch(&database, &topics, partition).await);
        }
        Real {
            database,
            topics,
            actors,
            numbers: HashMap::new(),
            offsets: HashMap::new(),
        }
    }

    async fn launch(
        database: &TestDatabase,
        topics: &[millrace_topics::contract::TopicRef],
        partition: i32,
    ) -> Partition {
        let clock = ManualClock::at(Micros(T0));
        let bounded = settings::Attribution {
            park_for_s: 86_400,
            slice_clicks: 2,
        };
        Partition::launch(database.url(), topics, partition, clock, bounded)
            .await
            .expect("claimed")
    }

    fn records(&mut self, actor: usize, first: usize, ops: &[Op]) -> Vec<(usize, String, Vec<u8>)> {
        let mut out = Vec::new();
        for (n, op) in (first..).zip(ops) {
            let (topic, wire) = op.wire(T0 + i64::try_from(n).expect("small"));
            let (ws, id) = op.key();
            out.push((
                topic,
                ids::partition_key(ws, id),
                serde_json::to_vec(&wire).expect("JSON"),
            ));
            let place = (self.topics[topic].no, i32::try_from(actor).expect("small"));
            let offset = self.offsets.entry(place).or_insert(0);
            self.numbers.insert((place.0, place.1, *offset), n);
            *offset += 1;
        }
        out
    }

    async fn ledger(&self) -> Vec<Conversion> {
        let client = self.database.client().await;
        let rows = client
            .query("SELECT conversion_id, workspace_id, offer_id, payout::float8, status, external_id FROM conversions", &[])
            .await
            .expect("conversions");
        let mut all: Vec<Conversion> = rows
            .iter()
            .map(|r| {
                let id = RecordId::from_uuid(r.get(0));
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "payouts of the model are small and whole"
                )]
                let payout = r.get::<_, f64>(3) as i64;
                Conversion {
                    by: self.numbers[&(id.topic_no, id.partition, id.offset)],
                    ws: r.get(1),
                    offer: r.get(2),
                    payout,
                    status: r.get(4),
                    external: r.get(5),
                }
            })
            .collect();
        all.sort();
        all
    }

    async fn tally(&self) -> BTreeMap<(String, String), i64> {
        let client = self.database.client().await;
        let rows = client
            .query("SELECT outcome, reason, sum(n)::int8 FROM outcomes GROUP BY 1, 2 HAVING sum(n) <> 0", &[])
            .await
            .expect("outcomes");
        rows.iter()
            .map(|r| {
                let outcome = Outcome::from_code(r.get(0))
                    .expect("an outcome")
                    .name()
                    .to_owned();
                ((outcome, r.get(1)), r.get(2))
            })
            .collect()
    }

    async fn count(&self, sql: &str) -> i64 {
        self.database
            .client()
            .await
            .query_one(sql, &[])
            .await
            .expect(sql)
            .get(0)
    }
}

#[tokio::test]
async fn the_real_store_agrees_with_the_model() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::default();
    for case in 0..40 {
        let steps = steps(12).new_tree(&mut runner).expect("a case").current();
        let mut real = Real::new().await;
        let mut model = Model::default();
        let mut n = 0;
        for Step::Batch { actor, ops, crash } in &steps {
            let ops = decided(ops);
            let records = real.records(*actor, n, &ops);
            if *crash == Crash::BeforeCommit {
                // Died before anything was written: the next owner begins with the same records.
                let partition = i32::try_from(*actor).expect("small");
                real.actors[*actor] = Real::launch(&real.database, &real.topics, partition).await;
            }
            real.actors[*actor].send(&records).await.expect("committed");
            if *crash == Crash::AfterCommit {
                let partition = i32::try_from(*actor).expect("small");
                real.actors[*actor] = Real::launch(&real.database, &real.topics, partition).await;
            }
            n += ops.len();
            ops.into_iter().for_each(|op| model.take(op));
        }
        let told = format!("case {case}: {steps:#?}");
        assert_eq!(real.tally().await, model.tally(), "{told}");
        assert_eq!(real.ledger().await, model.ledger(), "{told}");
        let visits =
            usize::try_from(real.count("SELECT count(*) FROM visits").await).expect("a count");
        let clicks =
            usize::try_from(real.count("SELECT count(*) FROM clicks").await).expect("a count");
        assert_eq!((visits, clicks), (model.visits, model.charged), "{told}");
        let parked = i64::try_from(model.outcomes.iter().filter(|o| o.0 == "parked").count())
            .expect("small");
        assert_eq!(
            real.count("SELECT count(*) FROM parked").await,
            parked,
            "{told}"
        );
    }
}

/// Both actors at once: whoever wins, an identity is booked once.
#[tokio::test]
async fn two_actors_at_once_book_each_identity_once() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::default();
    let [a, b] = click_ids();
    for case in 0..25 {
        let many = |names: &Vec<String>, runner: &mut proptest::test_runner::TestRunner| {
            let ops = prop::collection::vec(op(names.clone()), 20..60);
            ops.new_tree(runner).expect("a case").current()
        };
        let (left, right) = (many(&a, &mut runner), many(&b, &mut runner));
        let mut real = Real::new().await;
        let left_records = real.records(0, 0, &left);
        let right_records = real.records(1, left.len(), &right);
        let (first, second) = real.actors.split_at_mut(1);
        let run = async |actor: &mut Partition, records: &[(usize, String, Vec<u8>)]| {
            for chunk in records.chunks(7) {
                actor.send(chunk).await.expect("committed");
            }
        };
        tokio::join!(
            run(&mut first[0], &left_records),
            run(&mut second[0], &right_records)
        );
        let twice = real
            .count(
                "SELECT count(*) FROM (
                   SELECT 1 FROM conversions WHERE external_id IS NOT NULL
                     GROUP BY workspace_id, network_id, external_id HAVING count(*) > 1
                   UNION ALL
                   SELECT 1 FROM conversions WHERE txid IS NOT NULL
                     GROUP BY workspace_id, network_id, txid, offer_id, coalesce(provider_event, '-')
                     HAVING count(*) FILTER (WHERE external_id IS NULL) > 1
                   UNION ALL
                   SELECT 1 FROM conversions WHERE txid IS NULL AND external_id IS NULL
                     GROUP BY workspace_id, network_id, click_key, offer_id, coalesce(event, '-'), coalesce(provider_event, '-')
                     HAVING count(*) > 1) twice",
            )
            .await;
        assert_eq!(twice, 0, "case {case}: {left:#?} {right:#?}");
        assert_eq!(
            real.count("SELECT count(*) FROM conversion_keys k WHERE NOT EXISTS
                (SELECT 1 FROM conversions c WHERE c.conversion_id = k.conversion_id AND c.accepted_at = k.accepted_at)").await,
            0,
            "every key names a conversion"
        );
        assert_eq!(
            real.count(
                "SELECT count(*) FROM conversions c WHERE NOT EXISTS
                (SELECT 1 FROM conversion_keys k WHERE k.conversion_id = c.conversion_id)"
            )
            .await,
            0,
            "every conversion holds a key"
        );
        let applied = real
            .count(
                "SELECT coalesce(sum(n), 0)::int8 FROM outcomes o JOIN topics t USING (topic_no)
            WHERE t.name = 'postbacks' AND outcome = 0 AND reason = ''",
            )
            .await;
        assert_eq!(
            real.count("SELECT count(*) FROM conversions").await,
            applied
        );
        let all = real
            .count("SELECT coalesce(sum(n), 0)::int8 FROM outcomes")
            .await;
        assert_eq!(
            usize::try_from(all).expect("a count"),
            left.len() + right.len()
        );
    }
}

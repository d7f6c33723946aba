"""The sink: a checkpoint's records in one transaction, with the positions that it stands for.

Quix Streams promises at-least-once towards a sink: the checkpoint's offsets are committed to Kafka after `flush`. What comes
again after a crash in between is dropped here, by the position that moved with its rows.
"""

import asyncio

import asyncpg
from asyncpg.pgproto.pgproto import UUID
from quixstreams.sinks.base import BatchingSink

from rows import HEADER, TABLES, TRAILER, Batch

GROUP = "quix"
KEYS = "INSERT INTO conversion_keys (key, conversion_id, accepted_at) SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::timestamptz[]) ON CONFLICT DO NOTHING"
WAKE = "DELETE FROM parked WHERE click_key = ANY($1::uuid[])"
MAKE = "INSERT INTO positions (group_name, partition, topic_no) SELECT $1, * FROM unnest($2::int[], $3::int[]) ON CONFLICT DO NOTHING"
HELD = "SELECT partition, topic_no, next_offset FROM positions WHERE group_name = $1 AND (partition, topic_no) IN (SELECT * FROM unnest($2::int[], $3::int[])) ORDER BY partition, topic_no FOR UPDATE"
MOVE = "UPDATE positions p SET next_offset = m.next, consumed = consumed + m.n FROM unnest($2::int[], $3::int[], $4::int8[], $5::int8[]) AS m(partition, topic_no, next, n) WHERE p.group_name = $1 AND p.partition = m.partition AND p.topic_no = m.topic_no"


class Ledger(BatchingSink):
    def __init__(self, database, topics):
        super().__init__()
        self._database = database
        self._numbers = dict(zip(("clicks", "postbacks"), topics))
        self._loop = asyncio.new_event_loop()
        self._made = set()
        # Early postbacks whose rows go in the next transaction, as in the bare loop.
        self._woken = []

    def setup(self):
        self._store = self._loop.run_until_complete(asyncpg.connect(self._database))

    def write(self, batch):
        raise NotImplementedError("flush writes all batches at once")

    def flush(self):
        if not self._batches:
            return
        try:
            self._loop.run_until_complete(self._flush())
        finally:
            self._batches.clear()

    async def _flush(self):
        store = self._store
        places = sorted((partition, self._numbers[topic], topic) for topic, partition in self._batches)
        partitions, numbers = [p for p, _, _ in places], [n for _, n, _ in places]
        if not self._made.issuperset(places):
            await store.execute(MAKE, GROUP, partitions, numbers)
            self._made.update(places)
        async with store.transaction():
            held = {(p, n): at for p, n, at in await store.fetch(HELD, GROUP, partitions, numbers)}
            batch, nexts, counts = Batch(*self._numbers.values()), [], []
            for partition, number, topic in places:
                at, n = held[partition, number], 0
                take = batch.click if topic == "clicks" else batch.postback
                for item in self._batches[topic, partition]:
                    if item.offset >= at:
                        take(partition, item.offset, item.value)
                        at = item.offset + 1
                        n += 1
                nexts.append(at)
                counts.append(n)
            for table, columns in TABLES.items():
                if rows := batch.rows[table]:
                    # Bytes would be taken for a path.
                    source = memoryview(b"".join((HEADER, *rows, TRAILER)))
                    await store.copy_to_table(table, source=source, columns=columns, format="binary")
            if batch.keys:
                # In order, so that two processes lock them in one.
                keys = sorted(batch.keys)
                of = [batch.keys[k] for k in keys]
                await store.execute(KEYS, [UUID(k) for k in keys], [c for c, _ in of], [t for _, t in of])
            if self._woken:
                await store.execute(WAKE, self._woken)
            await store.execute(MOVE, GROUP, partitions, numbers, nexts, counts)
        self._woken = batch.woken

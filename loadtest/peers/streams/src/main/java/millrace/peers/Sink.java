package millrace.peers;

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Timestamp;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.UUID;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.postgresql.PGConnection;
import org.postgresql.copy.CopyIn;
import org.postgresql.copy.CopyManager;

/**
 * The ledger topic into PostgreSQL: read_committed, each transaction moves the offsets it stands for, and none is written that
 * does not go on from the stored ones. Offsets stand in {@code positions} under group {@code streams}, as topic number that of
 * {@code clicks} (the ledger topic is not in the product's catalogue); {@code consumed} counts ledger records.
 */
final class Sink implements Runnable {
    private static final byte[] HEADER = {'P', 'G', 'C', 'O', 'P', 'Y', '\n', (byte) 0xff, '\r', '\n', 0, 0, 0, 0, 0, 0, 0, 0, 0};
    private static final String KEYS =
        "INSERT INTO conversion_keys (key, conversion_id, accepted_at) SELECT * FROM unnest(?::uuid[], ?::uuid[], ?::timestamptz[]) ON CONFLICT DO NOTHING";
    private static final String WAKE = "DELETE FROM parked WHERE click_key = ANY(?::uuid[])";
    private static final String MOVE =
        "UPDATE positions SET next_offset = ?, consumed = consumed + ? WHERE group_name = 'streams' AND topic_no = ? AND partition = ? AND next_offset = ?";

    private final String ledger;
    private final int topicNo;
    private final List<Integer> partitions;
    private final Properties consumer;
    private final Connection store;
    private final int batch;
    private final long lingerNanos;

    private final Out[] tables = new Out[Ledger.TABLES];
    /** Identities sorted by key, so that two sinks lock them in one order. */
    private final TreeMap<UUID, Object[]> keys = new TreeMap<>();
    private final List<UUID> woken = new ArrayList<>();
    /** By partition: where it stood, where it goes, how many. */
    private final TreeMap<Integer, long[]> moves = new TreeMap<>();
    private int records;

    static void start(Map<String, String> given, Properties settings) throws SQLException {
        int threads = Integer.parseInt(settings.getProperty("sink.threads"));
        int count = Integer.parseInt(given.get("partitions"));
        for (int t = 0; t < threads; t++) {
            List<Integer> mine = new ArrayList<>();
            for (int p = t; p < count; p += threads) {
                mine.add(p);
            }
            Thread thread = new Thread(new Sink(given, settings, mine), "sink-" + t);
            thread.setUncaughtExceptionHandler((who, e) -> Main.fail(e));
            thread.start();
        }
    }

    private Sink(Map<String, String> given, Properties settings, List<Integer> partitions) throws SQLException {
        this.partitions = partitions;
        ledger = given.get("ledger");
        topicNo = Integer.parseInt(given.get("topics").split(",")[0]);
        batch = Integer.parseInt(settings.getProperty("sink.batch"));
        lingerNanos = Long.parseLong(settings.getProperty("sink.linger.ms")) * 1_000_000;
        consumer = Main.under(settings, "sink.consumer.");
        consumer.setProperty("bootstrap.servers", given.get("brokers"));
        consumer.setProperty("isolation.level", "read_committed");
        consumer.setProperty("enable.auto.commit", "false");
        consumer.setProperty("auto.offset.reset", "none");
        store = DriverManager.getConnection(given.get("jdbc"), Main.under(settings, "sink.jdbc."));
        store.setAutoCommit(false);
        for (int i = 0; i < tables.length; i++) {
            tables[i] = new Out(1 << 20);
        }
    }

    @Override
    public void run() {
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> in = new KafkaConsumer<>(consumer, bytes, bytes)) {
            in.assign(partitions.stream().map(p -> new TopicPartition(ledger, p)).toList());
            for (int p : partitions) {
                in.seek(new TopicPartition(ledger, p), stored(p));
            }
            long since = System.nanoTime();
            while (true) {
                ConsumerRecords<byte[], byte[]> polled = in.poll(Duration.ofMillis(20));
                for (TopicPartition tp : polled.partitions()) {
                    for (ConsumerRecord<byte[], byte[]> r : polled.records(tp)) {
                        take(r.value());
                    }
                }
                // Behind control records, too.
                for (TopicPartition tp : polled.nextOffsets().keySet()) {
                    move(tp.partition(), polled.nextOffsets().get(tp).offset(), polled.records(tp).size());
                }
                if (records >= batch || (records > 0 && System.nanoTime() - since >= lingerNanos)) {
                    write();
                    since = System.nanoTime();
                }
            }
        } catch (SQLException | java.io.IOException e) {
            Main.fail(e);
        }
    }

    private long stored(int partition) throws SQLException {
        try (PreparedStatement make = store.prepareStatement(
            "INSERT INTO positions (group_name, partition, topic_no) VALUES ('streams', ?, ?) ON CONFLICT DO NOTHING");
            PreparedStatement read = store.prepareStatement(
                "SELECT next_offset FROM positions WHERE group_name = 'streams' AND partition = ? AND topic_no = ?")) {
            make.setInt(1, partition);
            make.setInt(2, topicNo);
            make.execute();
            read.setInt(1, partition);
            read.setInt(2, topicNo);
            try (ResultSet row = read.executeQuery()) {
                row.next();
                long at = row.getLong(1);
                store.commit();
                moves.put(partition, new long[] {at, at, 0});
                return at;
            }
        }
    }

    private void move(int partition, long next, int n) {
        long[] m = moves.get(partition);
        m[1] = next;
        m[2] += n;
    }

    private void take(byte[] value) {
        records++;
        int at = 0;
        while (at < value.length) {
            int table = value[at];
            int n = intAt(value, at + 1);
            at += 5;
            if (table < Ledger.TABLES) {
                Out out = tables[table];
                if (out.length == 0) {
                    out.raw(HEADER, 0, HEADER.length);
                }
                out.raw(value, at, n);
            } else if (table == Ledger.KEY) {
                long micros = longAt(value, at + 32);
                keys.put(uuid(value, at), new Object[] {uuid(value, at + 16), micros});
            } else {
                woken.add(uuid(value, at));
            }
            at += n;
        }
    }

    private void write() throws SQLException, java.io.IOException {
        CopyManager copies = store.unwrap(PGConnection.class).getCopyAPI();
        try (PreparedStatement move = store.prepareStatement(MOVE)) {
            int moved = 0;
            for (Map.Entry<Integer, long[]> e : moves.entrySet()) {
                long[] m = e.getValue();
                if (m[1] == m[0]) {
                    continue;
                }
                move.setLong(1, m[1]);
                move.setLong(2, m[2]);
                move.setInt(3, topicNo);
                move.setInt(4, e.getKey());
                move.setLong(5, m[0]);
                move.addBatch();
                moved++;
            }
            int[] done = move.executeBatch();
            if (done.length != moved || Arrays.stream(done).anyMatch(n -> n != 1)) {
                throw new SQLException("another sink has moved the offsets");
            }
        }
        for (int i = 0; i < tables.length; i++) {
            Out out = tables[i];
            if (out.length == 0) {
                continue;
            }
            out.s(-1);
            CopyIn copy = copies.copyIn(Ledger.COPY[i]);
            copy.writeToCopy(out.bytes, 0, out.length);
            copy.endCopy();
            out.clear();
        }
        if (!keys.isEmpty()) {
            try (PreparedStatement insert = store.prepareStatement(KEYS)) {
                UUID[] conversions = new UUID[keys.size()];
                Timestamp[] times = new Timestamp[keys.size()];
                int i = 0;
                for (Object[] of : keys.values()) {
                    conversions[i] = (UUID) of[0];
                    long micros = (Long) of[1];
                    times[i++] = Timestamp.from(Instant.ofEpochSecond(micros / 1_000_000, micros % 1_000_000 * 1_000));
                }
                insert.setArray(1, store.createArrayOf("uuid", keys.keySet().toArray()));
                insert.setArray(2, store.createArrayOf("uuid", conversions));
                insert.setArray(3, store.createArrayOf("timestamptz", times));
                insert.execute();
            }
            keys.clear();
        }
        if (!woken.isEmpty()) {
            try (PreparedStatement wake = store.prepareStatement(WAKE)) {
                wake.setArray(1, store.createArrayOf("uuid", woken.toArray()));
                wake.execute();
            }
            woken.clear();
        }
        store.commit();
        records = 0;
        for (long[] m : moves.values()) {
            m[0] = m[1];
            m[2] = 0;
        }
    }

    private static int intAt(byte[] b, int at) {
        return (b[at] & 0xff) << 24 | (b[at + 1] & 0xff) << 16 | (b[at + 2] & 0xff) << 8 | (b[at + 3] & 0xff);
    }

    private static long longAt(byte[] b, int at) {
        return ((long) intAt(b, at) << 32) | (intAt(b, at + 4) & 0xffff_ffffL);
    }

    private static UUID uuid(byte[] b, int at) {
        return new UUID(longAt(b, at), longAt(b, at + 8));
    }
}

package millrace.peers;

import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.state.KeyValueBytesStoreSupplier;
import org.apache.kafka.streams.state.RocksDBConfigSetter;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.common.utils.Bytes;
import org.rocksdb.BlockBasedTableConfig;
import org.rocksdb.BloomFilter;
import org.rocksdb.LRUCache;
import org.rocksdb.Options;

/** The topology: both topics, one processor with one store, the ledger topic. */
final class Streams {
    private Streams() {}

    static void start(Map<String, String> given, Properties settings) {
        Properties config = Main.under(settings, "streams.");
        config.setProperty(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, given.get("brokers"));
        config.setProperty(StreamsConfig.APPLICATION_ID_CONFIG, given.get("application"));
        config.setProperty(StreamsConfig.STATE_DIR_CONFIG, given.get("state-dir"));
        config.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.ByteArraySerde.class);
        config.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.ByteArraySerde.class);
        boolean memory = settings.getProperty("store").equals("memory");
        if (!memory) {
            config.put(StreamsConfig.ROCKSDB_CONFIG_SETTER_CLASS_CONFIG, Rocks.class);
        }
        String[] numbers = given.get("topics").split(",");
        int clicks = Integer.parseInt(numbers[0]);
        int postbacks = Integer.parseInt(numbers[1]);
        KeyValueBytesStoreSupplier kept = memory
            ? Stores.inMemoryKeyValueStore(Attribution.STORE)
            : Stores.persistentKeyValueStore(Attribution.STORE);
        StoreBuilder<KeyValueStore<Bytes, byte[]>> store =
            Stores.keyValueStoreBuilder(kept, Serdes.Bytes(), Serdes.ByteArray());
        store = Boolean.parseBoolean(settings.getProperty("store.cached"))
            ? store.withCachingEnabled()
            : store.withCachingDisabled();
        Topology topology = new Topology()
            .addSource("in", "clicks", "postbacks")
            .addProcessor("attribution", () -> new Attribution(clicks, postbacks), "in")
            .addStateStore(store, "attribution")
            .addSink("out", given.get("ledger"), "attribution");
        KafkaStreams streams = new KafkaStreams(topology, config);
        streams.setUncaughtExceptionHandler(e -> {
            Main.fail(e);
            return StreamThreadExceptionResponse.SHUTDOWN_APPLICATION;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(java.time.Duration.ofSeconds(10))));
        streams.start();
    }

    /** RocksDB with memory for what is hot: its defaults under Streams are made for a hundred small stores. */
    public static final class Rocks implements RocksDBConfigSetter {
        private static final LRUCache CACHE = new LRUCache(256L << 20);
        private static final BloomFilter BLOOM = new BloomFilter(10, false);

        @Override
        public void setConfig(String store, Options options, Map<String, Object> configs) {
            BlockBasedTableConfig table = (BlockBasedTableConfig) options.tableFormatConfig();
            table.setBlockCache(CACHE).setBlockSize(4 << 10).setFilterPolicy(BLOOM);
            options.setTableFormatConfig(table);
            options.setWriteBufferSize(32 << 20).setMaxWriteBufferNumber(3);
        }

        @Override
        public void close(String store, Options options) {}
    }
}

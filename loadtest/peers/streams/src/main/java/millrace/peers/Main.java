package millrace.peers;

import java.io.FileInputStream;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;

/**
 * Kafka Streams on workload W. {@code streams}: clicks and postbacks to the ledger topic, exactly once; {@code sink}: the
 * ledger topic into PostgreSQL, its offsets in the same transaction; {@code both}: the two in one JVM.
 */
public final class Main {
    private Main() {}

    public static void main(String[] args) throws Exception {
        Map<String, String> given = new HashMap<>();
        for (int i = 1; i + 1 < args.length; i += 2) {
            given.put(args[i].substring(2), args[i + 1]);
        }
        Properties settings = new Properties();
        try (FileInputStream in = new FileInputStream(given.get("settings"))) {
            settings.load(in);
        }
        // What was tried is tried by naming it: --set name=value,name=value
        for (String pair : given.getOrDefault("set", "").split(",")) {
            int at = pair.indexOf('=');
            if (at > 0) {
                settings.setProperty(pair.substring(0, at), pair.substring(at + 1));
            }
        }
        if (!args[0].equals("sink")) {
            Streams.start(given, settings);
        }
        if (!args[0].equals("streams")) {
            Sink.start(given, settings);
        }
        // Stays, so that whoever measures can read its CPU time.
        Thread.currentThread().join();
    }

    /** The settings whose names begin so, without that beginning. */
    static Properties under(Properties settings, String prefix) {
        Properties out = new Properties();
        for (String name : settings.stringPropertyNames()) {
            if (name.startsWith(prefix)) {
                out.setProperty(name.substring(prefix.length()), settings.getProperty(name).trim());
            }
        }
        return out;
    }

    /** Ends the process: nothing here goes on after a failure, and whoever measures must see it. */
    static void fail(Throwable cause) {
        cause.printStackTrace();
        Runtime.getRuntime().halt(1);
    }
}

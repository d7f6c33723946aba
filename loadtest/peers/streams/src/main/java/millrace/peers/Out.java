package millrace.peers;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/** Bytes that grow: rows in PostgreSQL's binary COPY form, big-endian. */
final class Out {
    /** Microseconds from 1970 to PostgreSQL's 2000. */
    private static final long PG_EPOCH = 946_684_800_000_000L;

    byte[] bytes;
    int length;

    Out(int capacity) {
        bytes = new byte[capacity];
    }

    void clear() {
        length = 0;
    }

    byte[] copy() {
        return Arrays.copyOf(bytes, length);
    }

    private int grow(int by) {
        int at = length;
        length += by;
        if (length > bytes.length) {
            bytes = Arrays.copyOf(bytes, Math.max(length, bytes.length * 2));
        }
        return at;
    }

    Out b(int v) {
        int at = grow(1);
        bytes[at] = (byte) v;
        return this;
    }

    Out s(int v) {
        int at = grow(2);
        bytes[at] = (byte) (v >> 8);
        bytes[at + 1] = (byte) v;
        return this;
    }

    Out i(int v) {
        intAt(grow(4), v);
        return this;
    }

    void intAt(int at, int v) {
        bytes[at] = (byte) (v >> 24);
        bytes[at + 1] = (byte) (v >> 16);
        bytes[at + 2] = (byte) (v >> 8);
        bytes[at + 3] = (byte) v;
    }

    Out l(long v) {
        return i((int) (v >> 32)).i((int) v);
    }

    Out raw(byte[] from, int offset, int n) {
        int at = grow(n);
        System.arraycopy(from, offset, bytes, at, n);
        return this;
    }

    // Columns, each with its length before it.

    Out none() {
        return i(-1);
    }

    Out small(int v) {
        return i(2).s(v);
    }

    Out integer(int v) {
        return i(4).i(v);
    }

    Out bool(boolean v) {
        return i(1).b(v ? 1 : 0);
    }

    Out time(long micros) {
        return i(8).l(micros - PG_EPOCH);
    }

    Out optTime(long micros) {
        return micros == Long.MIN_VALUE ? none() : time(micros);
    }

    Out uuid(byte[] from, int offset) {
        return i(16).raw(from, offset, 16);
    }

    Out optUuid(byte[] v) {
        return v == null ? none() : uuid(v, 0);
    }

    Out blob(byte[] v, int offset, int n) {
        return i(n).raw(v, offset, n);
    }

    Out text(String v) {
        if (v == null) {
            return none();
        }
        int n = v.length();
        int at = grow(4 + n);
        for (int k = 0; k < n; k++) {
            char c = v.charAt(k);
            if (c >= 0x80) {
                length = at;
                byte[] utf8 = v.getBytes(StandardCharsets.UTF_8);
                return blob(utf8, 0, utf8.length);
            }
            bytes[at + 4 + k] = (byte) c;
        }
        intAt(at, n);
        return this;
    }

    /** {@code numeric}: |unscaled| × 10^-scale in groups of four decimal digits. */
    Out numeric(long unscaled, int scale) {
        boolean negative = unscaled < 0;
        long v = Math.abs(unscaled);
        int pad = (4 - scale % 4) % 4;
        for (int k = 0; k < pad; k++) {
            v = Math.multiplyExact(v, 10L);
        }
        int fraction = (scale + pad) / 4;
        int[] groups = new int[8];
        int n = 0;
        int trailing = 0;
        boolean any = false;
        while (v != 0) {
            int group = (int) (v % 10_000);
            v /= 10_000;
            if (group == 0 && !any) {
                trailing++;
                continue;
            }
            any = true;
            groups[n++] = group;
        }
        int weight = n == 0 ? 0 : n + trailing - fraction - 1;
        i(8 + 2 * n).s(n).s(weight).s(negative && n > 0 ? 0x4000 : 0).s(scale);
        for (int k = n - 1; k >= 0; k--) {
            s(groups[k]);
        }
        return this;
    }
}

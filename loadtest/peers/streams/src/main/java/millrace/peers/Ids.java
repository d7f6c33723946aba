package millrace.peers;

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Arrays;

/** Ids as the ledger keeps them: 16 bytes. */
final class Ids {
    private static final byte[] DECODE = new byte[128];

    static {
        Arrays.fill(DECODE, (byte) -1);
        String alphabet = "0123456789abcdefghjkmnpqrstvwxyz";
        for (int i = 0; i < 32; i++) {
            DECODE[alphabet.charAt(i)] = (byte) i;
        }
    }

    private final MessageDigest sha;
    private final byte[] hash = new byte[32];
    private final byte[] size = new byte[8];

    Ids() {
        try {
            sha = MessageDigest.getInstance("SHA-256");
        } catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException(e);
        }
    }

    /** The 16 bytes of a click id: those of a minted one, else a digest. */
    byte[] clickKey(String text) {
        long high = 0;
        long low = 0;
        boolean minted = text.length() == 26 && text.charAt(0) <= '7';
        for (int i = 0; minted && i < 26; i++) {
            char c = text.charAt(i);
            int digit = c < 128 ? DECODE[c] : -1;
            minted = digit >= 0;
            high = (high << 5) | (low >>> 59);
            low = (low << 5) | (digit & 31);
        }
        if (minted && ((high >> 12) & 0xf) == 7 && (low >>> 62) == 2) {
            byte[] out = new byte[16];
            putLong(out, 0, high);
            putLong(out, 8, low);
            return out;
        }
        return digest("click", text.getBytes(StandardCharsets.UTF_8));
    }

    /** A UUIDv8 from a SHA-256 over the parts, each prefixed with its length. */
    byte[] digest(String domain, byte[]... parts) {
        try {
            sha.update(domain.getBytes(StandardCharsets.UTF_8));
            for (byte[] part : parts) {
                putLong(size, 0, part.length);
                sha.update(size);
                sha.update(part);
            }
            sha.digest(hash, 0, 32);
        } catch (java.security.DigestException e) {
            throw new IllegalStateException(e);
        }
        byte[] out = Arrays.copyOf(hash, 16);
        out[6] = (byte) ((out[6] & 0x0f) | 0x80);
        out[8] = (byte) ((out[8] & 0x3f) | 0x80);
        return out;
    }

    /** A record's coordinates as an id. */
    static byte[] recordId(int topic, int partition, long offset) {
        byte[] out = new byte[16];
        putLong(out, 0, ((long) topic << 32) | (partition & 0xffff_ffffL));
        putLong(out, 8, offset);
        return out;
    }

    /** Of {@code 018f0000-0000-7000-8000-000000000000}. */
    static byte[] uuid(String text) {
        byte[] out = new byte[16];
        int n = 0;
        for (int i = 0; i < text.length(); i++) {
            int digit = Character.digit(text.charAt(i), 16);
            if (digit < 0) {
                continue;
            }
            if (n < 32) {
                out[n / 2] |= (byte) (n % 2 == 0 ? digit << 4 : digit);
            }
            n++;
        }
        if (n != 32) {
            throw new IllegalArgumentException("no uuid: " + text);
        }
        return out;
    }

    static void putLong(byte[] to, int at, long v) {
        for (int i = 0; i < 8; i++) {
            to[at + i] = (byte) (v >> (56 - 8 * i));
        }
    }
}

package millrace.peers;

import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

/** What a booking needs of a served journey. */
final class Journey {
    String offer;
    String payout;
    String currency;
    /** Pairs: the id under which the network returns it, and ours. */
    final List<String> sidecars = new ArrayList<>();

    void clear() {
        offer = payout = currency = null;
        sidecars.clear();
    }

    /** Reads the object at which the parser stands. */
    void read(JsonParser in) throws IOException {
        String name;
        while ((name = in.nextFieldName()) != null) {
            in.nextToken();
            switch (name) {
                case "offer" -> offer(in);
                case "sidecar_offers" -> {
                    while (in.nextToken() == JsonToken.START_OBJECT) {
                        sidecar(in);
                    }
                }
                default -> in.skipChildren();
            }
        }
    }

    private void offer(JsonParser in) throws IOException {
        String name;
        while ((name = in.nextFieldName()) != null) {
            in.nextToken();
            switch (name) {
                case "id" -> offer = in.getText();
                case "payout" -> payout = in.getText();
                case "currency" -> currency = in.getText();
                default -> in.skipChildren();
            }
        }
    }

    private void sidecar(JsonParser in) throws IOException {
        String id = null;
        String ours = null;
        String name;
        while ((name = in.nextFieldName()) != null) {
            in.nextToken();
            switch (name) {
                case "offer" -> ours = in.getText();
                case "network_offer_id" -> id = in.getText();
                default -> in.skipChildren();
            }
        }
        sidecars.add(id);
        sidecars.add(ours);
    }

    // In the store: flags, then either what is parked (a count and payloads) or the visit.

    static final int VISITED = 1;
    static final int CLICKED = 2;

    /** A visit as the store keeps it. */
    byte[] stored(byte[] visitId, String campaign, Out out) {
        out.clear();
        out.b(VISITED).raw(visitId, 0, 16);
        text(out, campaign);
        text(out, offer);
        text(out, payout);
        text(out, currency);
        out.b(sidecars.size());
        for (String s : sidecars) {
            text(out, s);
        }
        return out.copy();
    }

    /** Reads a stored visit back; its visit id is the 16 bytes after the flags. Returns the campaign. */
    String load(byte[] stored) {
        clear();
        at = 17;
        String campaign = text(stored);
        offer = text(stored);
        payout = text(stored);
        currency = text(stored);
        for (int n = stored[at++]; n > 0; n--) {
            sidecars.add(text(stored));
        }
        return campaign;
    }

    private int at;

    private static void text(Out out, String v) {
        byte[] utf8 = v == null ? new byte[0] : v.getBytes(StandardCharsets.UTF_8);
        out.s(utf8.length).raw(utf8, 0, utf8.length);
    }

    private String text(byte[] from) {
        int n = ((from[at] & 0xff) << 8) | (from[at + 1] & 0xff);
        String v = new String(from, at + 2, n, StandardCharsets.UTF_8);
        at += 2 + n;
        return v;
    }
}

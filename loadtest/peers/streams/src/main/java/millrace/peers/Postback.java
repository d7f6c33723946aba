package millrace.peers;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import java.io.IOException;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;

/** A record of {@code postbacks} and what its query says, checked as the product checks what workload W holds. */
final class Postback {
    int workspace;
    String network;
    long acceptedAt;
    long occurredAt;
    String query;

    String clickId;
    String txid;
    String externalId;
    String event;
    String providerEvent;
    String offerId;
    String status;
    String emailHash;
    String phoneHash;
    String leadHash;
    boolean paid;
    long payout;
    int scale;

    void read(JsonFactory json, byte[] payload) throws IOException {
        network = query = null;
        acceptedAt = occurredAt = Long.MIN_VALUE;
        try (JsonParser in = json.createParser(payload)) {
            in.nextToken();
            String name;
            while ((name = in.nextFieldName()) != null) {
                in.nextToken();
                switch (name) {
                    case "workspace" -> workspace = in.getIntValue();
                    case "network" -> network = in.getText();
                    case "accepted_at" -> acceptedAt = in.getLongValue();
                    case "occurred_at" -> occurredAt = in.getLongValue();
                    case "query" -> query = in.getText();
                    default -> in.skipChildren();
                }
            }
        }
        if (network == null || query == null || acceptedAt == Long.MIN_VALUE) {
            throw new IOException("a record without what it must have");
        }
        say();
    }

    private void say() throws IOException {
        clickId = txid = externalId = event = providerEvent = offerId = status = null;
        emailHash = phoneHash = leadHash = null;
        paid = false;
        int from = 0;
        int end = query.length();
        while (from < end) {
            int to = query.indexOf('&', from);
            to = to < 0 ? end : to;
            int eq = query.indexOf('=', from);
            if (eq >= 0 && eq < to) {
                pair(query.substring(from, eq), query.substring(eq + 1, to));
            }
            from = to + 1;
        }
        if (clickId == null) {
            throw new IOException("a postback without a click id");
        }
        if (status == null) {
            status = "approved";
        }
    }

    private void pair(String name, String raw) throws IOException {
        String value = plain(raw) ? raw : URLDecoder.decode(raw, StandardCharsets.UTF_8).trim();
        if (value.isEmpty()) {
            return;
        }
        switch (name) {
            case "click_id" -> clickId = value;
            case "txid", "transaction_id" -> txid = same(txid, value);
            case "external_conversion_id" -> externalId = same(externalId, value);
            case "event" -> event = same(event, value);
            case "provider_event_id", "event_id" -> providerEvent = same(providerEvent, value);
            case "offer_id" -> offerId = value;
            case "status" -> status = value;
            case "email_hash" -> emailHash = value;
            case "phone_hash" -> phoneHash = value;
            case "lead_hash" -> leadHash = value;
            case "payout", "amount" -> amount(value);
            default -> { }
        }
    }

    private static String same(String held, String value) throws IOException {
        if (held != null && !held.equals(value)) {
            throw new IOException("two names of one field differ");
        }
        return value;
    }

    /** Neither escaped, blank nor a macro. */
    private static boolean plain(String v) {
        for (int i = 0; i < v.length(); i++) {
            char c = v.charAt(i);
            if (c <= ' ' || c == '%' || c == '+' || c == '{' || c == '[' || c >= 0x7f) {
                return false;
            }
        }
        return true;
    }

    private void amount(String text) throws IOException {
        paid = true;
        payout = 0;
        scale = 0;
        boolean point = false;
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            if (c == '.' && !point) {
                point = true;
            } else if (c >= '0' && c <= '9') {
                payout = payout * 10 + (c - '0');
                scale += point ? 1 : 0;
            } else {
                throw new IOException("no payout: " + text);
            }
        }
    }
}

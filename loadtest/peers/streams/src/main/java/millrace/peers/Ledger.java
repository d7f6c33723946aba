package millrace.peers;

/**
 * A record of the ledger topic: rows, each as a table's number, a length and the row in PostgreSQL's binary COPY form, so that
 * the sink only sorts bytes into tables.
 */
final class Ledger {
    static final int VISITS = 0;
    static final int CLICKS = 1;
    static final int CONVERSIONS = 2;
    static final int LOG = 3;
    static final int PARKED = 4;
    /** An identity: key, conversion, time in microseconds. */
    static final int KEY = 5;
    /** A click whose parked postbacks are to go. */
    static final int WAKE = 6;
    static final int TABLES = 5;

    static final String[] COPY = {
        "COPY visits (workspace_id, click_key, visit_id, record_id, accepted_at, occurred_at, stage, direct, click_id, campaign_id, offer_id, ip, ip_hash, user_agent, source_url, fbp, fbc, params, journey) FROM STDIN BINARY",
        "COPY clicks (workspace_id, click_key, record_id, accepted_at, occurred_at, stage, click_id, campaign_id, offer_id) FROM STDIN BINARY",
        "COPY conversions (workspace_id, conversion_id, click_key, accepted_at, occurred_at, booked_at, click_id, campaign_id, visit_id, offer_id, role, network_id, external_id, txid, event, provider_event, returned_offer, payout, currency, status, status_at, email_hash, phone_hash, lead_hash, flags) FROM STDIN BINARY",
        "COPY postback_log (workspace_id, record_id, accepted_at, decided_at, click_key, conversion_id, outcome, reason, network_id, query) FROM STDIN BINARY",
        "COPY parked (workspace_id, click_key, record_id, hash, accepted_at, deadline, kind, click_id, payload) FROM STDIN BINARY",
    };
    static final int[] COLUMNS = {19, 9, 25, 10, 9};

    private final Out out = new Out(4096);
    private int open;

    void clear() {
        out.clear();
    }

    /** Begins a row; {@link #end} must follow. */
    Out row(int table) {
        out.b(table);
        open = out.length;
        out.i(0);
        if (table < TABLES) {
            out.s(COLUMNS[table]);
        }
        return out;
    }

    void end() {
        out.intAt(open, out.length - open - 4);
    }

    byte[] record() {
        return out.copy();
    }
}

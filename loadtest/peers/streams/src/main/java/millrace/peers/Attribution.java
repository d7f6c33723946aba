package millrace.peers;

import com.fasterxml.jackson.core.JsonFactory;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.processor.api.RecordMetadata;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * Joins clicks and postbacks by click id and books each conversion's identity once. One store holds both: visits (and postbacks
 * that wait for theirs) under workspace and click key, identities under their digest.
 */
final class Attribution implements Processor<byte[], byte[], byte[], byte[]> {
    static final String STORE = "journeys";

    private static final byte[] TXID_ONLY = {0};
    private static final int APPLIED = 0;
    private static final int DUPLICATE = 1;
    private static final int WAITS = 2;

    private final int clicksNo;
    private final int postbacksNo;
    private final JsonFactory json = new JsonFactory();
    private final Ids ids = new Ids();
    private final Click click = new Click();
    private final Postback postback = new Postback();
    private final Journey journey = new Journey();
    private final Ledger ledger = new Ledger();
    private final Out scratch = new Out(1024);
    private ProcessorContext<byte[], byte[]> context;
    private KeyValueStore<Bytes, byte[]> store;

    Attribution(int clicksNo, int postbacksNo) {
        this.clicksNo = clicksNo;
        this.postbacksNo = postbacksNo;
    }

    @Override
    public void init(ProcessorContext<byte[], byte[]> context) {
        this.context = context;
        store = context.getStateStore(STORE);
    }

    @Override
    public void process(Record<byte[], byte[]> record) {
        RecordMetadata at = context.recordMetadata().orElseThrow();
        ledger.clear();
        try {
            boolean any;
            if (at.topic().equals("clicks")) {
                byte[] id = Ids.recordId(clicksNo, at.partition(), at.offset());
                click.read(json, record.value());
                any = click.visit ? visit(id, record.value()) : click(id);
            } else {
                byte[] id = Ids.recordId(postbacksNo, at.partition(), at.offset());
                postback(id, record.value());
                any = true;
            }
            if (any) {
                context.forward(record.withValue(ledger.record()));
            }
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private Bytes stateKey(int workspace, byte[] clickKey) {
        byte[] key = new byte[20];
        key[0] = (byte) (workspace >> 24);
        key[1] = (byte) (workspace >> 16);
        key[2] = (byte) (workspace >> 8);
        key[3] = (byte) workspace;
        System.arraycopy(clickKey, 0, key, 4, 16);
        return Bytes.wrap(key);
    }

    private boolean visit(byte[] id, byte[] payload) throws IOException {
        byte[] key = ids.clickKey(click.clickId);
        Bytes stateKey = stateKey(click.workspace, key);
        byte[] held = store.get(stateKey);
        if (held != null && (held[0] & Journey.VISITED) != 0) {
            return false;
        }
        byte[] visitId = Ids.uuid(click.visitId);
        byte[] stored = click.journey.stored(visitId, click.campaign, scratch);
        store.put(stateKey, stored);
        Out out = ledger.row(Ledger.VISITS);
        out.integer(click.workspace).uuid(key, 0).uuid(visitId, 0).uuid(id, 0);
        out.time(click.acceptedAt).optTime(click.occurredAt);
        out.small(click.stage).bool(click.direct).none();
        out.text(click.campaign).text(click.journey.offer);
        out.text(click.ip);
        out.optUuid(click.ipHash == null ? null : Ids.uuid(click.ipHash));
        out.text(click.userAgent).text(click.sourceUrl).text(click.fbp).text(click.fbc);
        raw(out, payload, click.paramsFrom, click.paramsTo);
        raw(out, payload, click.journeyFrom, click.journeyTo);
        ledger.end();
        if (held != null) {
            wake(click.workspace, key, stored, held);
        }
        return true;
    }

    private static void raw(Out out, byte[] payload, int from, int to) {
        if (from < 0) {
            out.none();
        } else {
            out.blob(payload, from, to - from);
        }
    }

    private boolean click(byte[] id) {
        byte[] key = ids.clickKey(click.clickId);
        Bytes stateKey = stateKey(click.workspace, key);
        byte[] held = store.get(stateKey);
        if (held == null || (held[0] & Journey.VISITED) == 0) {
            throw new IllegalStateException("workload W has no click before its visit");
        }
        if ((held[0] & Journey.CLICKED) != 0) {
            return false;
        }
        byte[] now = held.clone();
        now[0] |= Journey.CLICKED;
        store.put(stateKey, now);
        journey.load(held);
        Out out = ledger.row(Ledger.CLICKS);
        out.integer(click.workspace).uuid(key, 0).uuid(id, 0);
        out.time(click.acceptedAt).optTime(click.occurredAt);
        out.small(click.stage).none().text(click.campaign).text(journey.offer);
        ledger.end();
        return true;
    }

    private void postback(byte[] id, byte[] payload) throws IOException {
        postback.read(json, payload);
        byte[] key = ids.clickKey(postback.clickId);
        Bytes stateKey = stateKey(postback.workspace, key);
        byte[] held = store.get(stateKey);
        if (held == null || (held[0] & Journey.VISITED) == 0) {
            park(stateKey, held, id, key, payload);
            return;
        }
        book(id, key, held, true);
    }

    /** It waits in the store, and its row in the ledger. */
    private void park(Bytes stateKey, byte[] held, byte[] id, byte[] key, byte[] payload) {
        scratch.clear();
        if (held == null) {
            scratch.b(0);
        } else {
            scratch.raw(held, 0, held.length);
        }
        scratch.raw(id, 0, 16).i(payload.length).raw(payload, 0, payload.length);
        store.put(stateKey, scratch.copy());
        log(id, key, null, WAITS, true);
        Out out = ledger.row(Ledger.PARKED);
        out.integer(postback.workspace).uuid(key, 0).uuid(id, 0).integer(0);
        out.time(postback.acceptedAt).time(postback.acceptedAt + 86_400_000_000L);
        out.text("postback").text(postback.clickId).blob(payload, 0, payload.length);
        ledger.end();
    }

    private void wake(int workspace, byte[] key, byte[] visit, byte[] parked) throws IOException {
        int at = 1;
        while (at < parked.length) {
            byte[] id = Arrays.copyOfRange(parked, at, at + 16);
            int n = java.nio.ByteBuffer.wrap(parked, at + 16, 4).getInt();
            postback.read(json, Arrays.copyOfRange(parked, at + 20, at + 20 + n));
            book(id, key, visit, false);
            at += 20 + n;
        }
        ledger.row(Ledger.WAKE).raw(key, 0, 16);
        ledger.end();
    }

    private void book(byte[] id, byte[] key, byte[] visit, boolean first) {
        Postback p = postback;
        String campaign = journey.load(visit);
        String offer = journey.offer;
        String role = "navigation";
        for (int i = 0; p.offerId != null && i < journey.sidecars.size(); i += 2) {
            if (p.offerId.equals(journey.sidecars.get(i))) {
                offer = journey.sidecars.get(i + 1);
                role = "monetization";
            }
        }
        byte[] identity = identity(offer);
        Bytes identityKey = Bytes.wrap(identity);
        if (store.get(identityKey) != null) {
            log(id, key, null, DUPLICATE, first);
            return;
        }
        store.put(identityKey, id);
        log(id, key, id, APPLIED, first);
        ledger.row(Ledger.KEY).raw(identity, 0, 16).raw(id, 0, 16).l(p.acceptedAt);
        ledger.end();
        Out out = ledger.row(Ledger.CONVERSIONS);
        out.integer(p.workspace).uuid(id, 0).uuid(key, 0);
        out.time(p.acceptedAt).optTime(p.occurredAt).time(now());
        out.none().text(campaign).uuid(visit, 1);
        out.text(offer).text(role).text(p.network);
        out.text(p.externalId).text(p.txid).text(p.event).text(p.providerEvent).text(p.offerId);
        boolean navigation = role.equals("navigation");
        String flags = navigation && p.offerId != null ? "offer_id_unmatched" : "";
        if (p.paid) {
            out.numeric(p.payout, p.scale);
        } else if (!navigation) {
            // A sidecar offer of the workload has no payout of its own.
            out.numeric(0, 0);
            flags = "payout_defaulted,payout_unknown";
        } else {
            flags = flags.isEmpty() ? "payout_defaulted" : flags + ",payout_defaulted";
            int point = journey.payout.indexOf('.');
            out.numeric(Long.parseLong(journey.payout.replace(".", "")), point < 0 ? 0 : journey.payout.length() - point - 1);
        }
        out.text(journey.currency).text(p.status).time(p.acceptedAt);
        out.text(p.emailHash).text(p.phoneHash).text(p.leadHash);
        out.text(flags);
        ledger.end();
    }

    private byte[] identity(String offer) {
        Postback p = postback;
        scratch.clear();
        byte[] workspace = scratch.i(p.workspace).copy();
        return ids.digest("conversion-txid", workspace, utf8(p.network), utf8(p.txid), utf8(offer), TXID_ONLY);
    }

    private void log(byte[] id, byte[] key, byte[] conversion, int outcome, boolean first) {
        Out out = ledger.row(Ledger.LOG);
        out.integer(postback.workspace).uuid(id, 0);
        out.time(postback.acceptedAt).time(now()).uuid(key, 0).optUuid(conversion);
        out.small(outcome).text("").text(postback.network).text(first ? postback.query : null);
        ledger.end();
    }

    private long now() {
        return context.currentSystemTimeMs() * 1_000;
    }

    private static byte[] utf8(String v) {
        return v.getBytes(StandardCharsets.UTF_8);
    }
}

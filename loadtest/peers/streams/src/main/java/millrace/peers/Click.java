package millrace.peers;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;

/** A record of {@code clicks}, read token by token; absent members are null. */
final class Click {
    int workspace;
    boolean visit;
    String clickId;
    long acceptedAt;
    long occurredAt;
    String visitId;
    String campaign;
    int stage;
    boolean direct;
    String ip;
    String ipHash;
    String userAgent;
    String sourceUrl;
    String fbp;
    String fbc;
    /** Where the raw members stand in the payload; negative: absent. */
    int journeyFrom;
    int journeyTo;
    int paramsFrom;
    int paramsTo;
    final Journey journey = new Journey();

    private void clear() {
        workspace = 0;
        visit = false;
        clickId = visitId = campaign = ip = ipHash = userAgent = sourceUrl = fbp = fbc = null;
        acceptedAt = occurredAt = Long.MIN_VALUE;
        stage = 0;
        direct = false;
        journeyFrom = paramsFrom = -1;
        journey.clear();
    }

    void read(JsonFactory json, byte[] payload) throws IOException {
        clear();
        try (JsonParser in = json.createParser(payload)) {
            in.nextToken();
            String name;
            while ((name = in.nextFieldName()) != null) {
                JsonToken value = in.nextToken();
                switch (name) {
                    case "kind" -> {
                        String kind = in.getText();
                        visit = kind.equals("visit");
                        if (!visit && !kind.equals("click")) {
                            throw new IOException("a kind that workload W does not hold: " + kind);
                        }
                    }
                    case "workspace" -> workspace = in.getIntValue();
                    case "click_id" -> clickId = in.getText();
                    case "accepted_at" -> acceptedAt = in.getLongValue();
                    case "occurred_at" -> occurredAt = in.getLongValue();
                    case "visit_id" -> visitId = in.getText();
                    case "campaign" -> campaign = in.getText();
                    case "stage" -> stage = in.getIntValue();
                    case "direct" -> direct = in.getBooleanValue();
                    case "ip" -> ip = in.getText();
                    case "ip_hash" -> ipHash = in.getText();
                    case "user_agent" -> userAgent = in.getText();
                    case "source_url" -> sourceUrl = in.getText();
                    case "fbp" -> fbp = in.getText();
                    case "fbc" -> fbc = in.getText();
                    case "journey" -> {
                        journeyFrom = (int) in.currentTokenLocation().getByteOffset();
                        journey.read(in);
                        journeyTo = (int) in.currentLocation().getByteOffset();
                    }
                    case "params" -> {
                        paramsFrom = (int) in.currentTokenLocation().getByteOffset();
                        in.skipChildren();
                        paramsTo = (int) in.currentLocation().getByteOffset();
                    }
                    default -> {
                        if (value.isStructStart()) {
                            in.skipChildren();
                        }
                    }
                }
            }
        }
        if (clickId == null || acceptedAt == Long.MIN_VALUE || (visit && (visitId == null || campaign == null))) {
            throw new IOException("a record without what it must have");
        }
    }
}

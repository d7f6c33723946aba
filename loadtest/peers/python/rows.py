"""The rows of workload W in PostgreSQL's binary COPY form, made from the record alone, as the bare loop makes them.

What must be known beyond the record is taken from the generator: a mark on repeats and on early postbacks, and the visit behind
a click id.
"""

import datetime
import hashlib
import struct
import time

import orjson
from asyncpg.pgproto.pgproto import UUID
from urllib.parse import unquote_plus

HEADER = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0"
TRAILER = b"\xff\xff"
NONE = b"\xff\xff\xff\xff"
PG_EPOCH = 946_684_800_000_000
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)

TABLES = {
    "visits": "workspace_id click_key visit_id record_id accepted_at occurred_at stage direct click_id campaign_id offer_id ip ip_hash user_agent source_url fbp fbc params journey".split(),
    "clicks": "workspace_id click_key record_id accepted_at occurred_at stage click_id campaign_id offer_id".split(),
    "conversions": "workspace_id conversion_id click_key accepted_at occurred_at booked_at click_id campaign_id visit_id offer_id role network_id external_id txid event provider_event returned_offer payout currency status status_at email_hash phone_hash lead_hash flags".split(),
    "postback_log": "workspace_id record_id accepted_at decided_at click_key conversion_id outcome reason network_id query".split(),
    "parked": "workspace_id click_key record_id hash accepted_at deadline kind click_id payload".split(),
}

MARK_REPEAT = b'"gen":"r"}'
MARK_EARLY = b'"gen":"e"}'
APPLIED, DUPLICATE, PARKED = 0, 1, 2

# Crockford's letters as those that int() reads in base 32.
_DIGITS = str.maketrans("0123456789abcdefghjkmnpqrstvwxyz", "0123456789abcdefghijklmnopqrstuv")
_CAMPAIGNS = 60
_CAMPAIGN = [b"spring-%02d" % c for c in range(_CAMPAIGNS)]
_OFFER = [b"of_nav%04d" % c for c in range(_CAMPAIGNS)]
_SIDECAR = [b"of_side%04d" % c for c in range(_CAMPAIGNS)]
_RETURNED = ["%05d" % c for c in range(_CAMPAIGNS)]
_NAVIGATION, _MONETIZATION = b"\0\0\0\x0anavigation", b"\0\0\0\x0cmonetization"
_MASK = 0xFFFF_FFFF_FFFF_FFFF

_length = struct.Struct(">i").pack
_record_id = struct.Struct(">iiq").pack
# Fixed columns at the beginning of a row, lengths between them.
_visit = struct.Struct(">hiii16si16si16siqiihibi").pack
_click = struct.Struct(">hiii16si16siqiihi").pack
_conversion = struct.Struct(">hiii16si16siqiiqi").pack
_log = struct.Struct(">hiii16siqiqi16s").pack
_parked = struct.Struct(">hiii16si16siiiqiq").pack
_parts = struct.Struct(">Q4sQ").pack
_size = struct.Struct(">Q").pack
_time = struct.Struct(">iq").pack
_outcome = struct.Struct(">ihi").pack


def _mix(z):
    z = (z + 0x9E37_79B9_7F4A_7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58_476D_1CE4_E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D0_49BB_1331_11EB) & _MASK
    return z ^ (z >> 31)


def _visit_of(key):
    """Number and milliseconds of the visit behind a click key."""
    return (key & 0xFFFF_FFFF) ^ ((key >> 32) & 0x3FFF_FFFF), key >> 80


def _campaign(number):
    return (_mix(number ^ 0xCA3B) & 0xFFFF_FFFF) % _CAMPAIGNS


def _visit_id(number, millis):
    return ((millis << 80) | (0x7 << 76) | (0b10 << 62) | (_mix(number ^ 0x7151_7000) >> 2)).to_bytes(16, "big")


def _text(value):
    if value is None:
        return NONE
    value = value.encode()
    return _length(len(value)) + value


def _bytes(value):
    return _length(len(value)) + value


def _uuid(text):
    return b"\0\0\0\x10" + bytes.fromhex(text.replace("-", "")) if text else NONE


def _json(value):
    return NONE if value is None else _bytes(orjson.dumps(value))


def _numeric(text):
    whole, _, fraction = text.partition(".")
    if not (whole + fraction).isascii() or not (whole + fraction).isdigit():
        raise ValueError(f"no payout: {text}")
    scale = len(fraction)
    fraction += "0" * (-scale % 4)
    digits = "0" * (-len(whole) % 4) + whole + fraction
    groups = [int(digits[i : i + 4]) for i in range(0, len(digits), 4)]
    weight = (len(digits) - len(fraction)) // 4 - 1
    while groups and groups[0] == 0:
        groups.pop(0)
        weight -= 1
    while groups and groups[-1] == 0:
        groups.pop()
    n = len(groups)
    return struct.pack(f">ihhhh{n}H", 8 + 2 * n, n, weight if n else 0, 0, scale, *groups)


class Batch:
    """Rows of one transaction."""

    def __init__(self, clicks_no, postbacks_no):
        self.numbers = {"clicks": clicks_no, "postbacks": postbacks_no}
        self.rows = {table: [] for table in TABLES}
        self.keys = {}
        self.woken = []

    def click(self, partition, offset, payload):
        record = orjson.loads(payload)
        if payload.endswith(MARK_REPEAT):
            return
        click_id = record["click_id"]
        key = int(click_id.translate(_DIGITS), 32)
        campaign = _campaign(_visit_of(key)[0])
        key = key.to_bytes(16, "big")
        record_id = _record_id(self.numbers["clicks"], partition, offset)
        accepted = record["accepted_at"] - PG_EPOCH
        get = record.get
        if record["kind"] == "visit":
            visit_id = bytes.fromhex(record["visit_id"].replace("-", ""))
            self.rows["visits"].append(
                _visit(19, 4, record["workspace"], 16, key, 16, visit_id, 16, record_id, 8, accepted, -1, 2, record["stage"], 1, get("direct", False), -1)
                + _text(get("campaign"))
                + _bytes(_OFFER[campaign])
                + _text(get("ip"))
                + _uuid(get("ip_hash"))
                + _text(get("user_agent"))
                + _text(get("source_url"))
                + _text(get("fbp"))
                + _text(get("fbc"))
                + _json(get("params"))
                + _json(get("journey"))
            )
        else:
            self.rows["clicks"].append(
                _click(9, 4, record["workspace"], 16, key, 16, record_id, 8, accepted, -1, 2, record["stage"], -1)
                + _text(get("campaign"))
                + _bytes(_OFFER[campaign])
            )

    def postback(self, partition, offset, payload):
        record = orjson.loads(payload)
        query = record["query"]
        said = {}
        for pair in query.split("&"):
            name, _, value = pair.partition("=")
            if "%" in value or "+" in value:
                value = unquote_plus(value).strip()
            if value:
                said[name] = value
        get = said.get
        click_id = said["click_id"]
        key = int(click_id.translate(_DIGITS), 32)
        number, millis = _visit_of(key)
        key = key.to_bytes(16, "big")
        record_id = _record_id(self.numbers["postbacks"], partition, offset)
        now = time.time_ns() // 1_000 - PG_EPOCH
        if payload.endswith(MARK_REPEAT):
            self._log(record, record_id, key, now, DUPLICATE, None, query)
            return
        workspace, network = record["workspace"], record["network"]
        accepted = record["accepted_at"] - PG_EPOCH
        early = payload.endswith(MARK_EARLY)
        if early:
            self._log(record, record_id, key, now, PARKED, None, query)
            self.rows["parked"].append(
                _parked(9, 4, workspace, 16, key, 16, record_id, 4, 0, 8, accepted, 8, accepted + 86_400_000_000)
                + b"\0\0\0\x08postback"
                + _text(click_id)
                + _bytes(payload)
            )
            self.woken.append(UUID(key))
        campaign = _campaign(number)
        returned = get("offer_id")
        if returned == _RETURNED[campaign]:
            offer, role = _SIDECAR[campaign], _MONETIZATION
        else:
            offer, role = _OFFER[campaign], _NAVIGATION
        payout, flags = get("payout"), []
        if role is _NAVIGATION and returned:
            flags.append("offer_id_unmatched")
        if not payout:
            flags.append("payout_defaulted")
            if role is _NAVIGATION:
                payout = "%d.%02d" % divmod(100 + campaign * 5, 100)
            else:
                # A sidecar offer of the workload has no payout of its own.
                payout = "0"
                flags.append("payout_unknown")
        self._log(record, record_id, key, now, APPLIED, record_id, None if early else query)
        identity = self._identity(workspace, network.encode(), said["txid"].encode(), offer)
        self.keys[identity] = (UUID(record_id), EPOCH + datetime.timedelta(microseconds=record["accepted_at"]))
        self.rows["conversions"].append(
            _conversion(25, 4, workspace, 16, record_id, 16, key, 8, accepted, -1, 8, now, -1)
            + _bytes(_CAMPAIGN[campaign])
            + b"\0\0\0\x10"
            + _visit_id(number, millis)
            + _bytes(offer)
            + role
            + _text(network)
            + _text(get("external_conversion_id"))
            + _text(get("txid"))
            + _text(get("event"))
            + _text(get("provider_event_id"))
            + _text(returned)
            + _numeric(payout)
            + b"\0\0\0\x03USD"
            + _text(get("status", "approved"))
            + _time(8, accepted)
            + _text(get("email_hash"))
            + _text(get("phone_hash"))
            + _text(get("lead_hash"))
            + _text(",".join(flags))
        )

    def _log(self, record, record_id, key, now, outcome, conversion, query):
        self.rows["postback_log"].append(
            _log(10, 4, record["workspace"], 16, record_id, 8, record["accepted_at"] - PG_EPOCH, 8, now, 16, key)
            + (NONE if conversion is None else b"\0\0\0\x10" + conversion)
            + _outcome(2, outcome, 0)
            + _text(record["network"])
            + _text(query)
        )

    @staticmethod
    def _identity(workspace, network, txid, offer):
        digest = bytearray(
            hashlib.sha256(
                b"conversion-txid"
                + _parts(4, workspace.to_bytes(4, "big"), len(network))
                + network
                + _size(len(txid))
                + txid
                + _size(len(offer))
                + offer
                + b"\0\0\0\0\0\0\0\x01\0"
            ).digest()[:16]
        )
        digest[6] = digest[6] & 0x0F | 0x80
        digest[8] = digest[8] & 0x3F | 0x80
        return bytes(digest)

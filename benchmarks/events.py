"""JSON events like those of a shop, the same ones in every run.

Random hex would not compress, and a loop over one template compresses four times faster and far
better than real events do. Ids, names and free text are mixed here so that LZ4 finds in batches of
1,000 about what it finds in business events: ratio 1.65. Every run prints the ratio it got.
"""

from itertools import accumulate
from random import Random
from typing import NamedTuple

import msgspec

WORD_COUNT = 20_000
# Zipf's exponent of the words; 1.0 is prose, less is the mixture of languages, names and codes.
WORD_EXPONENT = 0.5
CONSONANTS = (*"bcdfghklmnprstv", "br", "dr", "pr", "st", "tr")
VOWELS = (*"aeiou", "ai", "ou", "ar", "en", "is")
COUNTRIES = ("DE", "ES", "FR", "GB", "IT", "NL", "PL", "US")
SYSTEMS = ("X11; Linux x86_64", "Windows NT 10.0; Win64; x64", "Macintosh; Intel Mac OS X 10_15_7")
TYPES = ("cart.updated", "item.viewed", "order.paid", "order.placed", "order.shipped")


class Event(NamedTuple):
    """One event: the key that decides its partition, and the JSON text."""

    key: str
    value: bytes


def orders(count: int, size_bytes: int) -> list[Event]:
    """Shop events of exactly `size_bytes` (at least 800) each."""
    random = Random(1)
    words = _Words(random)
    return [_order(random, words, size_bytes) for _ in range(count)]


def readings(count: int, size_bytes: int) -> list[Event]:
    """Sensor events of exactly `size_bytes` (at least 100) each: an id, a time, three numbers."""
    random = Random(2)
    return [_reading(random, size_bytes) for _ in range(count)]


class _Words:
    """A vocabulary of made-up words, used as unevenly as words are."""

    def __init__(self, random: Random) -> None:
        self._random = random
        syllables = [consonant + vowel for consonant in CONSONANTS for vowel in VOWELS]
        self._words = [
            "".join(random.choices(syllables, k=random.choice((1, 2, 2, 2, 3, 3))))
            for _ in range(WORD_COUNT)
        ]
        self._cumulative_weights = list(
            accumulate((rank + 1) ** -WORD_EXPONENT for rank in range(WORD_COUNT))
        )

    def text(self, count: int) -> str:
        return " ".join(
            self._random.choices(self._words, cum_weights=self._cumulative_weights, k=count)
        )


def _order(random: Random, words: _Words, size_bytes: int) -> Event:
    customer = f"c-{random.getrandbits(24):06x}"
    order = {
        "eventId": f"{random.getrandbits(128):032x}",
        "type": random.choice(TYPES),
        "occurredAt": _time(random),
        "customer": {
            "id": customer,
            "name": words.text(2).title(),
            "email": f"{words.text(1)}.{words.text(1)}{random.randrange(100)}@mail.example",
            "country": random.choice(COUNTRIES),
            "city": words.text(1).title(),
        },
        "session": {
            "token": f"{random.getrandbits(160):040x}",
            "ip": ".".join(str(random.randrange(256)) for _ in range(4)),
            "agent": f"Mozilla/5.0 ({random.choice(SYSTEMS)}) Chrome/{random.randrange(100, 140)}",
        },
        "items": [
            {
                "sku": f"{random.getrandbits(32):08X}",
                "title": words.text(4),
                "quantity": random.randrange(1, 6),
                "priceCents": random.randrange(99, 99_999),
            }
            for _ in range(2)
        ],
        "latitude": round(random.uniform(-90, 90), 6),
        "longitude": round(random.uniform(-180, 180), 6),
        "note": "",
    }
    return _filled(customer, order, size_bytes, words.text(size_bytes // 4))


def _reading(random: Random, size_bytes: int) -> Event:
    device = f"d-{random.getrandbits(20):05x}"
    reading = {
        "device": device,
        "at": _time(random),
        "celsius": round(random.gauss(19, 6), 2),
        "percent": random.randrange(100),
        "note": "",
    }
    return _filled(device, reading, size_bytes, f"{random.getrandbits(size_bytes * 4):x}")


def _filled(key: str, fields: dict[str, object], size_bytes: int, text: str) -> Event:
    """The event brought to its exact size by as much of `text` as its note has to hold."""
    note_bytes = size_bytes - len(msgspec.json.encode(fields))
    assert 0 <= note_bytes <= len(text), note_bytes
    value = msgspec.json.encode(fields | {"note": text[:note_bytes]})
    assert len(value) == size_bytes, value
    return Event(key, value)


def _time(random: Random) -> str:
    hour, minute, second = random.randrange(24), random.randrange(60), random.randrange(60)
    day = f"2026-{random.randrange(1, 13):02}-{random.randrange(1, 29):02}"
    return f"{day}T{hour:02}:{minute:02}:{second:02}.{random.randrange(1_000_000):06}Z"

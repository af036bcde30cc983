# SPDX-License-Identifier: Apache-2.0
"""Clients that mean harm: bodies that grow, bytes that trickle, answers that nobody reads.

An attack is a coroutine with a connection of its own. It is made again until the time is over, by
as many clients as `ATTACKS` says, and returns the status that it got or how the server ended it.
"""

import asyncio
import gzip
import json
import math
import struct
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import cache
from itertools import cycle
from typing import Any, NamedTuple

import pyarrow as pa

from sparsetrain.serving.requests import ARROW, JSON

MIB = 1 << 20
BODY, ROWS = 16 * MIB, 10**7
NAMES = ("age", "price", "user", "site", "hash", "time")
CHUNKED = "transfer-encoding: chunked"
ENDED = {"closed", "reset"}


def request(kind: str, body: bytes, *headers: str) -> bytes:
    lines = ("POST /predict HTTP/1.1", "host: x", f"content-type: {kind}", *headers)
    if CHUNKED not in headers:
        lines += (f"content-length: {len(body)}",)
    return "\r\n".join((*lines, "", "")).encode() + body


def stream(columns: dict[str, pa.Array], compression: str | None = None) -> bytes:
    """An Arrow stream of one batch."""
    batch, sink = pa.record_batch(columns), pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def rows_of(row: str, count: int) -> bytes:
    return ('{"rows": [' + (row + ",") * (count - 1) + row + "]}").encode()


def filled(row: str) -> bytes:
    """As many of a row as a body takes, as JSON."""
    return rows_of(row, (BODY - 20) // (len(row) + 1))


def nulls() -> dict[str, bytes]:
    """Arrow: rows, and values of lists, for which there are no bytes."""
    listed = pa.ListArray.from_arrays(pa.array([0, ROWS], pa.int32()), pa.nulls(ROWS))
    fixed = pa.FixedSizeListArray.from_arrays(pa.nulls(ROWS), ROWS)
    return {
        "rows": stream(dict.fromkeys(NAMES, pa.nulls(ROWS))),
        "lists": stream({"user": listed}),
        "fixed lists": stream({"user": fixed}),
        "lists beside": stream({"other": listed}),
    }


def shared_text(rows: int) -> pa.Array:
    """Views of one text of 1 MiB."""
    one = pa.array(["x" * MIB], pa.string_view())
    views = pa.py_buffer(one.buffers()[1].to_pybytes() * rows)
    return pa.Array.from_buffers(one.type, rows, [None, views, *one.buffers()[2:]])


def negative_view(length: int, rows: int = 1) -> bytes:
    """A view under a null that says to have fewer bytes than none."""
    views = pa.array(["b", None] + ["c" * 1000] * (rows - 1), pa.string_view())
    body, first = stream({"site": views}), struct.pack("<i", 1) + b"b" + b"\0" * 11
    assert body.count(first) == 1
    return body.replace(first + b"\0" * 4, first + struct.pack("<i", length))


def arrow_bombs() -> dict[str, bytes]:
    """Arrow: few bytes that stand for many."""
    zeros = pa.array([b"\0" * (64 * MIB)])
    indices, text = pa.array([0] * 1000, pa.int32()), pa.array(["x" * MIB])
    decoded = pa.DictionaryArray.from_arrays(indices, text)
    lists = pa.array([[1] * (MIB // 8)])
    objects = pa.array([{"a": "x" * MIB}])
    return {
        "zstd": stream({"site": zeros}, "zstd"),
        "lz4": stream({"site": zeros}, "lz4"),
        "zstd beside": stream({"other": zeros}, "zstd"),
        "dictionary": stream({"site": decoded}),
        "views": stream({"site": shared_text(1000)}),
        "lists of views": stream({"site": pa.array([["x"]], pa.list_(pa.string_view()))}),
        "dictionary of lists": stream({"site": pa.DictionaryArray.from_arrays(indices, lists)}),
        "dictionary of objects": stream({"site": pa.DictionaryArray.from_arrays(indices, objects)}),
        "negative view": negative_view(-(2**31)),
    }


def json_bombs() -> dict[str, bytes]:
    """JSON that is compressed, or takes many times its bytes, as much as limits let through."""
    first = json.dumps(dict.fromkeys(NAMES))
    return {
        "gzip": gzip.compress(filled("{}")),
        "empty rows": filled("{}"),
        "as many values": rows_of('{"user": [' + "1," * 9 + "1]}", 60_000),
        "as many rows": rows_of(first + ",{}" * 99_999, 1),
        "lists": rows_of('{"user": [' + "[]," * 40_000 + "[]]}", 12),
        "texts": rows_of('{"site": [' + '"ab",' * 25_000 + '"a"]}', 19),
        "numbers": rows_of('{"user": [' + "-9," * 40_000 + "1]}", 12),
        "floats": rows_of('{"age": [' + "1e1," * 30_000 + "1]}", 16),
        "escapes": rows_of('{"site": "' + "\\u0041" * 20_000 + '"}', 130),
        "one row": b'{"rows": [{"user": [' + b"1," * (8 * MIB - 20) + b"1]}]}",
        "depth": b'{"rows": [{"user": ' + b"[" * (BODY - 20),
        "digits": b'{"rows": [{"user": ' + b"9" * (BODY - 24) + b"}]}",
        "integers": filled('{"user": ' + "9" * 4300 + "}"),
        "lists of integers": rows_of('{"user": [' + ("9" * 4300 + ",") * 29 + "9]}", 130),
        "text": b'{"rows": [{"site": "' + b"x" * (BODY - 26) + b'"}]}',
        "keys": rows_of("{" + ",".join(f'"{n}":1' for n in range(10_000)) + "}", 49),
        "twice": filled('{"user": 1, "user": 2}'),
        "space": b'{"rows": [{}' + b" " * (BODY - 16) + b"}",
        "wide": rows_of('{"site": "\U0001f600"}' + ",{}" * 90_000, 1) + b" " * 2**16,
    }


class Place(NamedTuple):
    """A server, and a small request of JSON with its answer."""

    port: int
    body: bytes
    answer: bytes


class Connection:
    """One connection; leaving it lets it go."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def __aenter__(self) -> "Connection":
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()

    async def send(self, content: bytes) -> None:
        self.writer.write(content)
        await self.writer.drain()

    async def answer(self) -> tuple[str, bytes]:
        """Read one answer: its status and content."""
        first = await self.reader.readline()
        if not first:
            return "closed", b""
        length = 0
        while (line := await self.reader.readline()) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        return first.split()[1].decode(), await self.reader.readexactly(length)


_turns: dict[Any, Any] = {}


def next_of(make: Callable[[], Any]) -> Any:
    """One after the other of what a function makes once."""
    if make not in _turns:
        _turns[make] = cycle(make())
    return next(_turns[make])


def posting(make: Callable[[], dict[str, bytes]], kind: str) -> Callable[..., Any]:
    def requests() -> list[bytes]:
        return [
            request(kind, body, *(["content-encoding: gzip"] if name == "gzip" else []))
            for name, body in make().items()
        ]

    async def post(place: Place) -> str:
        sent = next_of(requests)  # made before the server waits for it
        async with Connection(place.port) as connection:
            await connection.send(sent)
            return (await connection.answer())[0]

    return post


def trickles() -> list[tuple[bytes, bytes]]:
    """What is sent at once, and what byte by byte: of headers, a body, chunks."""
    whole = request(JSON, b" " * 1000)
    return [
        (b"", whole),
        (whole[:-1000], b" " * 1000),
        (request(JSON, b"", CHUNKED), b"1\r\n \r\n" * 1000),
    ]


async def trickle(place: Place) -> str:
    """Send a byte a second."""
    begin, rest = next_of(trickles)
    async with Connection(place.port) as connection:
        await connection.send(begin)
        answer = asyncio.create_task(connection.answer())
        for byte in rest:
            if answer.done():
                break
            await connection.send(bytes([byte]))
            await asyncio.wait({answer}, timeout=1)
        return (await answer)[0]


def stalls() -> list[bytes]:
    """Bodies that begin and do not go on, of which one says to be a terabyte."""
    length, begun = "content-length: {}", b" " * 65_537
    chunk = b"400000\r\n" + b" " * (4 * MIB) + b"\r\n"
    return [
        _head(length.format(10**12)) + begun,
        _head(length.format(BODY)) + begun,
        _head(length.format(BODY)) + b" " * (BODY - 1),
        _head(CHUNKED) + chunk,
    ]


def _head(length: str) -> bytes:
    return request(JSON, b"", CHUNKED).replace(CHUNKED.encode(), length.encode())


async def stall(place: Place) -> str:
    """Begin a body, and wait."""
    begun = next_of(stalls)
    async with Connection(place.port) as connection:
        await connection.send(begun)
        return (await connection.answer())[0]


@cache
def large_questions() -> list[bytes]:
    """With answers of 2 MB, 350 kB and 400 kB."""
    first = json.dumps(dict.fromkeys(NAMES))
    columns = dict.fromkeys(NAMES, pa.nulls(90_000))
    return [
        request(JSON, rows_of(first + ",{}" * 89_999, 1)),
        request(ARROW, stream(columns)),
        request(JSON, rows_of(first + ",{}" * 20_000, 1)),
    ]


async def deaf(place: Place) -> str:
    """Ask, and read no answer; more questions find out whether the server still listens."""
    question = next_of(large_questions)
    async with Connection(place.port) as connection:
        connection.writer.transport.pause_reading()
        while True:
            await connection.send(question)
            await asyncio.sleep(1)


def floods() -> list[tuple[bytes, bytes]]:
    """Beginnings, and what follows them for ever: a value, headers, a path, trailers, chunks."""
    chunks = request(JSON, b"", CHUNKED)
    value = b"x" * 65536
    return [
        (chunks[:-2] + b"x: ", value),
        (chunks[:-2], b"x: y\r\n" * 10_000),
        (b"GET /", value),
        (chunks + b"0\r\nx: ", value),
        (chunks + b"0\r\n", b"x: y\r\n" * 10_000),
        (chunks + b"1;x=", value),
        (b"", b"\r\n" * 30_000),
    ]


async def flood(place: Place) -> str:
    """Send headers without an end; the server has 64 MiB to end them in."""
    begin, piece = next_of(floods)
    async with Connection(place.port) as connection:
        await connection.send(begin)
        for _ in range(64 * MIB // len(piece)):
            await connection.send(piece)
            await asyncio.sleep(0)
        return "endless"


async def pipeline(place: Place) -> str:
    """Ask many at once, read all answers, in their order."""
    async with Connection(place.port) as connection:
        good, bad = request(JSON, place.body), request(JSON, b"{")
        await connection.send((good + bad) * 8)
        for status, content in (("200", place.answer), ("400", None)) * 8:
            found = await connection.answer()
            if found[0] != status or content not in (found[1], None):
                return f"wrong: {found}"
        return "200"


async def long_pipeline(place: Place) -> str:
    """Ask without an end, read nothing."""
    async with Connection(place.port) as connection:
        connection.writer.transport.pause_reading()
        while True:
            await connection.send(request(JSON, place.body) * 1000)


class Attack(NamedTuple):
    """Clients of one kind.

    Attributes
    ----------
    clients : int
    once : function
        Makes one attack.
    ends : set of str
        How it may end.
    """

    clients: int
    once: Callable[[Place], Coroutine[Any, Any, str]]
    ends: set[str]


ATTACKS = {
    "Arrow nulls": Attack(8, posting(nulls, ARROW), {"413"}),
    "Arrow bombs": Attack(8, posting(arrow_bombs, ARROW), {"413", "400"}),
    "JSON bombs": Attack(8, posting(json_bombs, JSON), {"200", "400", "408", "413"}),
    "a byte a second": Attack(200, trickle, {"408", *ENDED}),
    "half a body": Attack(40, stall, {"408", "413", *ENDED}),
    "no reader": Attack(200, deaf, ENDED),
    "headers": Attack(20, flood, {"431", *ENDED}),
    "pipelines": Attack(20, pipeline, {"200"}),
    "long pipelines": Attack(20, long_pipeline, ENDED),
}


async def _attack(name: str, place: Place, seconds: float, share: float) -> dict[str, Any]:
    attack, ends, longest = ATTACKS[name], Counter[str](), 0.0
    deadline = time.monotonic() + seconds

    async def client() -> None:
        nonlocal longest
        while time.monotonic() < deadline:
            begin = time.monotonic()
            try:
                end = await attack.once(place)
            except (OSError, asyncio.IncompleteReadError):
                end = "reset"
            longest = max(longest, time.monotonic() - begin)
            ends[end] += 1

    await asyncio.gather(*(client() for _ in range(math.ceil(share * attack.clients))))
    return {"ends": dict(ends), "longest": longest}


def attack(name: str, place: Place, seconds: float, share: float, found: Any) -> None:
    """Run an attack in this process and send what came of it."""
    found.send(asyncio.run(_attack(name, place, seconds, share)))

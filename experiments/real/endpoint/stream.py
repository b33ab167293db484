"""One HTTP POST on its own connection; the answer is read line by line as it arrives.

The standard library has no HTTP client for asyncio, and a client that measures should do little
else: one connection, one request, no pool.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from testbed.experiments.real.endpoint.address import Address

PIECE = 1 << 16  # bytes that are read at a time at most


class HttpStream:
    """An open connection for one POST. After `post`, `status` and `headers` are the answer's."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, address: Address) -> "HttpStream":
        """Connect, so that the request itself waits for no handshake."""
        return cls(*await asyncio.open_connection(address.host, address.port, ssl=address.tls))

    def close(self) -> None:
        self._writer.close()

    async def post(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> None:
        """Send the request, and read the head of its answer."""
        data = json.dumps(body).encode()
        fields = {
            **headers,
            "content-type": "application/json",
            "content-length": str(len(data)),
            "connection": "close",
        }
        lines = [f"POST {path} HTTP/1.1", *(f"{name}: {text}" for name, text in fields.items())]
        self._writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        await self._writer.drain()
        status = (await self._line()).split()
        if len(status) < 2 or not status[1].isdigit():
            raise ConnectionError("it ends before it answers")
        self.status = int(status[1])
        while line := await self._line():
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()

    async def lines(self) -> AsyncIterator[str]:
        """The lines of the answer, each as soon as it is complete."""
        rest = b""
        async for piece in self._pieces():
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                yield line.decode("utf-8", "replace").rstrip("\r")
        if rest:
            yield rest.decode("utf-8", "replace")

    async def _line(self) -> str:
        return (await self._reader.readline()).decode("latin-1").strip()

    async def _pieces(self) -> AsyncIterator[bytes]:
        """The body as it arrives: in chunks, with a known length, or until the connection ends."""
        if "chunked" in self.headers.get("transfer-encoding", ""):
            while size := int((await self._line()).partition(";")[0] or "0", 16):
                yield (await self._reader.readexactly(size + 2))[:-2]
        elif "content-length" in self.headers:
            yield await self._reader.readexactly(int(self.headers["content-length"]))
        else:
            while piece := await self._reader.read(PIECE):
                yield piece

"""Carries connections from a listening socket of the machine to a port inside the cluster's network.

The socket is made outside and inherited; the process runs inside, so what it connects to is there.

usage: relay.py LISTENING_FD ADDRESS PORT
"""

import asyncio
import socket
import sys

CHUNK_BYTES = 1 << 18


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Passes on until the end of the stream, and passes on the end."""
    try:
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.close()


async def main() -> None:
    """Serves until the process is ended."""
    listening = socket.socket(fileno=int(sys.argv[1]))
    address, port = sys.argv[2], int(sys.argv[3])

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(address, port, limit=CHUNK_BYTES)
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(copy(reader, back), copy(there, writer))
        back.close()
        writer.close()

    server = await asyncio.start_server(carry, sock=listening, limit=CHUNK_BYTES)
    await server.serve_forever()


asyncio.run(main())

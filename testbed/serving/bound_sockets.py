"""The sockets of a server, which has its address before it says so."""

import socket
from contextlib import ExitStack

from testbed.core.errors import InputError


def bound_sockets(host: str, port: int) -> list[socket.socket]:
    """A socket at each address of the host; no server listens yet. Raises InputError if the host
    or the port cannot be had.
    """
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        with ExitStack() as opened:
            sockets = [
                opened.enter_context(_bound(family, address)) for family, *_, address in infos
            ]
            opened.pop_all()  # they stay open
            return sockets
    except OSError as error:
        raise InputError(
            key=f"--host {host} --port {port}",
            problem=f"cannot be had: {error.strerror}",
            remedy="give another",
        ) from error


def _bound(family: int, address: tuple[object, ...]) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # after a server that has ended
        if family == socket.AF_INET6:  # IPv4 has a socket of its own
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound

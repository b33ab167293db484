"""The address of a server, and its own facts."""

import json
import ssl
import urllib.error
import urllib.request
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from testbed.core.errors import InputError

VERSION = "/v1"
ANSWER_S = 30.0  # in which a server must say what it is
PORTS = {"http": 80, "https": 443}


class Address(NamedTuple):
    """The root of a server, without /v1. api_key: what it takes, None for a server without one."""

    scheme: str
    host: str
    port: int
    root: str
    api_key: str | None

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}{self.root}"

    @property
    def tls(self) -> ssl.SSLContext | None:
        """The encryption of a connection; None for plain HTTP."""
        return ssl.create_default_context() if self.scheme == "https" else None

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every request."""
        key = {} if self.api_key is None else {"authorization": f"Bearer {self.api_key}"}
        return {"host": f"{self.host}:{self.port}", "accept-encoding": "identity", **key}


def address_of(url: str, api_key: str | None) -> Address:
    """The server of a URL, with or without /v1. Raises InputError for what is no HTTP URL."""
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS.get(parts.scheme, 0)
    except ValueError:
        port = 0
    if not port or not parts.hostname:
        raise InputError(
            key="--url", value=url, problem="is no URL of a server", remedy="give http://HOST:PORT"
        )
    root = parts.path.rstrip("/").removesuffix(VERSION)
    return Address(parts.scheme, parts.hostname, port, root, api_key)


def fetched(address: Address, path: str) -> str | None:
    """The server's answer to GET; None if it has no such path. Raises InputError if it does
    not answer, or refuses.
    """
    request = urllib.request.Request(f"{address.url}{path}", headers=address.headers)
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            text: str = answer.read().decode("utf-8", "replace")
            return text
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        hint = " (give --api-key)" if error.code in (401, 403) else ""
        raise InputError(
            key="--url", value=address.url, problem=f"{path} answers {error.code}{hint}"
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise InputError(
            key="--url",
            value=address.url,
            problem=f"does not answer ({reason})",
            remedy="start the server, or give its URL",
        ) from None


def served_model(address: Address, name: str | None) -> dict[str, Any]:
    """The entry of /v1/models of the model of this name, of the only one without a name."""
    text = fetched(address, f"{VERSION}/models")
    try:
        models = {str(each["id"]): each for each in json.loads(text or "")["data"]}
    except (ValueError, KeyError, TypeError):
        raise InputError(
            key="--url",
            value=address.url,
            problem=f"has no list of models at {VERSION}/models",
            remedy="give the URL of an OpenAI endpoint",
        ) from None
    if name is None and len(models) == 1:
        return dict(next(iter(models.values())))
    if name not in models:
        raise InputError(
            key="--model",
            value=name,
            problem="is not served" if name else "is missing",
            remedy=f"{address.url} serves {', '.join(models) or 'no model'}",
        )
    return dict(models[name])

"""API keys. Each is a tenant: nothing is learnt or copied across them."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Collection, Mapping, Sequence

from starlette.types import ASGIApp, Receive, Scope

from copyahead.errors import ConfigError
from copyahead.server.errors import ApiError
from copyahead.server.http.layers import Layer

OPEN_PATHS = frozenset({"/health", "/v1/health", "/openapi.json"})
"""What may be asked for without a key."""
METRICS_PATH = "/metrics"
"""Sums over all tenants: no tenant's to read."""


class ApiKeys:
    """The keys of a server; with none, everybody is the one tenant ``."""

    def __init__(self, keys: Sequence[str] = (), *, option: str = "api_key") -> None:
        """Raises ConfigError, which names the `option`, for a key that no header can carry."""
        for key in keys:
            if not key or not key.isascii() or not key.isprintable() or key != key.strip():
                raise ConfigError(f"{option} must be printable ASCII without spaces at its ends")
        self._salt = secrets.token_bytes(32)
        self._digests = [self._digest(key) for key in dict.fromkeys(keys)]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def __repr__(self) -> str:
        return f"<{len(self._digests)} API keys>"

    def tenant(self, headers: Mapping[str, str]) -> str:
        """Whose request it is: a name that gives nothing away of the key. 401 for a wrong one.

        All keys are compared, each in constant time, so that the answer's time tells nothing.
        """
        if not self._digests:
            return ""
        matches = []
        for given in map(self._digest, _presented(headers)):
            matches += [given for each in self._digests if hmac.compare_digest(given, each)]
        if not matches:
            raise ApiError(
                "no valid API key: send one as `Authorization: Bearer KEY`",
                status=401,
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return matches[0].hex()[:16]

    def _digest(self, key: str) -> bytes:
        """Other in every process, so that keys cannot be guessed from a log."""
        return hmac.digest(self._salt, key.encode("utf-8", "surrogateescape"), "sha256")


class KeyCheck(Layer):
    """Turns away whoever has no key. Leaves the tenant in the request's state."""

    def __init__(
        self,
        app: ASGIApp,
        keys: ApiKeys,
        metrics_key: str | None = None,
        open_paths: Collection[str] = OPEN_PATHS,
    ) -> None:
        """`metrics_key`: the one for `METRICS_PATH`, and only for that. Without it, the path is
        open where there are no `keys`, and closed where there are."""
        super().__init__(app)
        self._keys, self._open_paths = keys, open_paths
        self._metrics_keys = ApiKeys(() if metrics_key is None else (metrics_key,))

    def admit(self, scope: Scope, receive: Receive) -> Receive:
        """401 for a wrong key. On a path that needs none, the tenant is then empty."""
        headers = {
            key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]
        }
        state = scope.setdefault("state", {})
        if scope["path"] == METRICS_PATH:
            state["tenant"] = ""
            self._check_metrics(headers)
            return receive
        try:
            state["tenant"] = self._keys.tenant(headers)
        except ApiError:
            if scope["path"] not in self._open_paths:
                raise
            state["tenant"] = ""
        return receive

    def _check_metrics(self, headers: Mapping[str, str]) -> None:
        if self._keys and not self._metrics_keys:
            self._keys.tenant(headers)
            raise ApiError(
                "/metrics sums over all keys, so none of them reads it: start the server with "
                "--metrics-key, and send that one",
                status=403,
                code="metrics_closed",
            )
        self._metrics_keys.tenant(headers)


def check_metrics_key(keys: Sequence[str], metrics_key: str | None) -> None:
    """Raise ConfigError for a key that no header can carry, or that is a tenant's, too."""
    if metrics_key is None:
        return
    ApiKeys((metrics_key,), option="metrics_key")
    if metrics_key in keys:
        raise ConfigError("metrics_key is an api_key, too: give it a text of its own")


class HostCheck(Layer):
    """Turns away requests to another name than this machine's, or those that it goes by.

    A page that a browser has open may give its own name the address 127.0.0.1, and the browser
    then lets it read what it gets from there. It cannot change the name in the request. Whose pages
    may read answers (CORS) is another question: their origins are no names of this server.
    """

    def __init__(self, app: ASGIApp, names: Sequence[str] = ()) -> None:
        """`names`: what requests may come by besides the addresses of this machine."""
        super().__init__(app)
        self._names = frozenset(names)

    def admit(self, scope: Scope, receive: Receive) -> Receive:
        """403 for another name."""
        given = dict(scope["headers"]).get(b"host", b"localhost").decode("latin-1")
        host = given.rpartition(":")[0] if given.rpartition(":")[2].isdigit() else given
        if not is_loopback(host.lower()) and host.lower() not in self._names:
            known = ", ".join(["localhost", "127.0.0.1", *sorted(self._names)])
            raise ApiError(
                f"this server takes requests to {known} only: use such a name, or start the server "
                "with --allowed-host and the name that requests come by",
                status=403,
                code="host_not_allowed",
            )
        return receive


def check_binding(host: str, keys: ApiKeys, *, open_to_network: bool) -> None:
    """Raise ConfigError where anybody on the network could use the server without a key."""
    if keys or open_to_network or is_loopback(host):
        return
    raise ConfigError(
        f"host {host} can be reached from other machines and there is no API key: give --api-key, "
        "or --open-to-network if that is meant"
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _presented(headers: Mapping[str, str]) -> list[str]:
    """The keys that a request carries, in OpenAI's header and in Anthropic's."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    given = [key.strip()] if scheme.lower() == "bearer" else []
    return [*given, headers.get("x-api-key", "")]

"""Checks and limits of every request: who may ask, how much, how long, and what a browser may do with it."""

import asyncio
import hmac
import ipaddress
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from softtriple.errors import UserError
from softtriple.gallery.workers import RETRY_AFTER

_log = logging.getLogger("uvicorn.error")

LOOPBACK = ("localhost", "127.0.0.1", "::1")

SECURITY_HEADERS = {
    # Everything comes from this server, except that uploads are previewed from memory (blob:).
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Keeps other sites from embedding images of a server on the visitor's own machine.
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Limits of the server; the defaults suit one person on one machine."""

    token: str | None = None  # required of every API request; None: no token
    # Accepted names in the Host header, against DNS rebinding. None: any name, for a server that is public on purpose.
    hosts: tuple[str, ...] | None = LOOPBACK
    max_bytes: int = 10_000_000  # of a request body
    max_pixels: int = 40_000_000  # of an uploaded image; decoding takes about 10 bytes per pixel
    header_seconds: float = 10.0  # to send the head of a request
    body_seconds: float = 20.0  # to send its body
    work_seconds: float = 30.0  # to compute an answer
    request_seconds: float = 60.0  # for a whole request, including the time a client takes to read the answer
    max_requests: int = 256  # in progress
    max_encoding: int = 16  # queries waiting for the encoder, which takes one at a time
    analyzed_items: int = 100_000  # recall and map use a sample of larger stores
    map_points: int = 100_000
    recount_seconds: float = 60.0  # between checks whether classes have changed

    def __post_init__(self) -> None:
        # Only these characters survive unchanged in a header of every client.
        if self.token is not None and not re.fullmatch("[!-~]+", self.token):
            raise UserError("the token must consist of printable ASCII characters without spaces, such as 3f9a-71c2")


def settings_for(host: str, token: str | None, *, allow_public: bool) -> Settings:
    """The settings of a server bound to ``host``; a public address needs a token or ``allow_public``."""
    if is_loopback(host):
        return Settings(token=token, hosts=(*LOOPBACK, host_name(host)))
    if token is None and not allow_public:
        raise UserError(
            f"--host {host} is reachable from other machines. Set a token in the environment variable "
            "SOFTTRIPLE_TOKEN, or use --allow-public to serve everyone without one"
        )
    return Settings(token=token, hosts=None)


def error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """An error in the form that every part of the server uses."""
    return JSONResponse({"error": message}, status, headers=headers)


class Guard:
    """ASGI middleware that enforces `Settings` and adds the security headers to every answer."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app, self._settings = app, settings
        self._active = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def send_safely(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                headers.update(SECURITY_HEADERS)
                # Browsers revalidate the page and its files on every visit, and never keep data.
                headers.setdefault("Cache-Control", "no-store" if scope["path"].startswith("/api") else "no-cache")
            await send(message)

        self._active += 1
        try:
            self._check(scope)
            async with asyncio.timeout(self._settings.request_seconds):
                await self._app(scope, self._limited(receive), send_safely)
            return
        except HTTPException as error:
            answer = error_response(error.status_code, error.detail, error.headers)
        except TimeoutError:
            answer = error_response(429, "the request took too long, try again in a moment", RETRY_AFTER)
        except ClientDisconnect:
            return
        except Exception:
            _log.exception("%s %s", scope["method"], scope["path"])
            answer = error_response(500, "internal error; see the log of the server")
        finally:
            self._active -= 1
        if not started:
            await answer(scope, receive, send_safely)

    def _check(self, scope: Scope) -> None:
        """Raise the error of a request that is rejected by its head alone."""
        headers, settings = Headers(scope=scope), self._settings
        is_api = scope["path"].startswith("/api")
        name = host_name(headers.get("host", ""))
        if settings.hosts is not None and name not in settings.hosts:
            raise HTTPException(421, f"this server does not answer to the host name {name!r}")
        # Browsers say where a request comes from. Pages of other origins could not read an answer, but make us work.
        from_elsewhere = headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
        if from_elsewhere and (is_api or scope["method"] not in ("GET", "HEAD")):
            raise HTTPException(403, "requests from pages of other sites are not allowed")
        if self._active > settings.max_requests:
            raise HTTPException(429, "the server is busy, try again in a moment", RETRY_AFTER)
        if settings.token is not None and is_api:
            scheme, _, token = headers.get("authorization", "").partition(" ")
            # In constant time, so that timing does not reveal how much of the token was right.
            matches = hmac.compare_digest(token.strip().encode(), settings.token.encode())
            if scheme.lower() != "bearer" or not matches:
                message = "a token is required: send the header Authorization: Bearer TOKEN"
                raise HTTPException(401, message, {"WWW-Authenticate": "Bearer"})
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > settings.max_bytes:
            raise self._too_large()

    def _limited(self, receive: Receive) -> Receive:
        """``receive`` that raises if the body is too large, whatever its Content-Length says, or too slow."""
        deadline = asyncio.get_running_loop().time() + self._settings.body_seconds
        received, complete = 0, False

        async def receive_within_limits() -> Message:
            nonlocal received, complete
            if complete:  # the next message is that the client has disconnected
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                late = f"the request body did not arrive within {self._settings.body_seconds:g} seconds"
                raise HTTPException(408, late) from None
            received += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if received > self._settings.max_bytes:
                raise self._too_large()
            return message

        return receive_within_limits

    def _too_large(self) -> HTTPException:
        return HTTPException(413, f"the request body is too large; the limit is {self._settings.max_bytes / 1e6:g} MB")


def host_name(host: str) -> str:
    """The name in a Host header or address, without port and brackets.

    Example:
        >>> host_name("LocalHost:8000"), host_name("[::1]:8000"), host_name("::1")
        ('localhost', '::1', '::1')
    """
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host if host.count(":") > 1 else host.partition(":")[0]


def is_loopback(host: str) -> bool:
    """Whether a server bound to ``host`` is reachable from this machine only."""
    if host_name(host) in LOOPBACK:
        return True
    try:
        return ipaddress.ip_address(host_name(host)).is_loopback
    except ValueError:
        return False

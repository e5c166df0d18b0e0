"""What stands before every request: who asks, how much, how long, and what a browser may do with the answer."""

import asyncio
import hmac
import ipaddress
import logging

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from softtriple.gallery.settings import LOOPBACK, Settings
from softtriple.gallery.workers import RETRY_AFTER

_log = logging.getLogger("uvicorn.error")

# Scripts, styles and data come from this server alone, pictures also from memory: the preview of an upload.
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # No page of another site may show our pictures, which it could otherwise ask a loopback server for.
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Guard:
    """ASGI middleware that refuses what `Settings` does not allow and adds the security headers to every answer."""

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
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
                # The page is asked for anew each time, but not sent again while it is the same.
                headers.setdefault("Cache-Control", "no-store" if scope["path"].startswith("/api") else "no-cache")
            await send(message)

        self._active += 1
        try:
            self._check(scope)
            async with asyncio.timeout(self._settings.request_seconds):
                await self._app(scope, self._limited(scope, receive), send_safely)
        except HTTPException as refusal:
            answer = JSONResponse({"error": refusal.detail}, refusal.status_code, headers=refusal.headers)
            await answer(scope, receive, send_safely)
        except TimeoutError:
            # A client that does not take its answer; one that has none yet can still be told.
            if not started:
                late = JSONResponse({"error": "the request took too long: try again"}, 429, headers=RETRY_AFTER)
                await late(scope, receive, send_safely)
        except ClientDisconnect:
            pass  # nobody is left to answer
        except Exception:
            _log.exception("%s %s", scope["method"], scope["path"])
            if not started:
                answer = JSONResponse({"error": "something is wrong in the server: its log says what"}, 500)
                await answer(scope, receive, send_safely)
        finally:
            self._active -= 1

    def _check(self, scope: Scope) -> None:
        headers, settings = Headers(scope=scope), self._settings
        name = host_name(headers.get("host", ""))
        if settings.hosts is not None and name not in settings.hosts:
            raise HTTPException(421, f"this server is not called {name!r}")
        if self._active > settings.max_requests:
            raise HTTPException(429, "the server is busy: try again in a moment", RETRY_AFTER)
        if settings.token is not None and scope["path"].startswith("/api"):
            kind, _, given = headers.get("authorization", "").partition(" ")
            # In constant time, so that the time of the answer does not tell how much of the token was right.
            right = hmac.compare_digest(given.strip().encode(), settings.token.encode())
            if kind.lower() != "bearer" or not right:
                raise HTTPException(
                    401, "a token is needed: send it as Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"}
                )
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > settings.max_bytes:
            raise self._too_large()

    def _limited(self, scope: Scope, receive: Receive) -> Receive:
        """``receive`` that stops when the body is too long, said or unsaid, or too slow."""
        deadline = asyncio.get_running_loop().time() + self._settings.body_seconds
        received, complete = 0, False

        async def receive_within_limits() -> Message:
            nonlocal received, complete
            if complete:  # what comes now is that the client has gone
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(
                    408, f"the request did not arrive within {self._settings.body_seconds:g} seconds"
                ) from None
            received += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if received > self._settings.max_bytes:
                raise self._too_large()
            return message

        return receive_within_limits

    def _too_large(self) -> HTTPException:
        return HTTPException(413, f"at most {self._settings.max_bytes / 1e6:g} MB can be sent")


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
    """Whether only programs of this machine reach a server bound to ``host``."""
    if host_name(host) in LOOPBACK:
        return True
    try:
        return ipaddress.ip_address(host_name(host)).is_loopback
    except ValueError:
        return False

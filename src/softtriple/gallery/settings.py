"""What the gallery allows: who may ask, how much, and for how long."""

import re
from dataclasses import dataclass

LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Limits of the server; the defaults suit one person on one machine."""

    token: str | None = None  # asked of every request for data; None: nothing is asked
    # Names by which the server may be called: a page of another site that makes its own name point here is refused.
    # None: any name, for a server that is public on purpose.
    hosts: tuple[str, ...] | None = LOOPBACK
    max_bytes: int = 10_000_000  # of the body of a request
    max_pixels: int = 40_000_000  # of an uploaded picture; decoding takes about 10 bytes for each
    header_seconds: float = 10.0  # until the head of a request has arrived
    body_seconds: float = 20.0  # and its body
    work_seconds: float = 30.0  # until a piece of work is done
    request_seconds: float = 60.0  # until the client has taken the answer
    max_requests: int = 256  # at one time
    max_encoding: int = 16  # pictures that wait for the encoder, which takes one at a time
    analyzed_items: int = 100_000  # beyond these, recall and map are those of a sample
    map_points: int = 10_000
    recount_seconds: float = 60.0  # after which it is asked again whether classes have changed

    def __post_init__(self) -> None:
        # What a header carries unchanged from every client.
        if self.token is not None and not re.fullmatch("[!-~]+", self.token):
            raise ValueError("token: it must be printable ASCII characters without spaces, at least one")

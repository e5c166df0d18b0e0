"""What the server refuses, and what it promises with every answer."""

import json
import re
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from io import BytesIO
from urllib.parse import urlsplit

import httpx
import pytest
from PIL import Image
from tests.gallery.small_gallery import Collection, running

from softtriple.gallery import Settings
from softtriple.gallery.security import LOOPBACK, host_name, is_loopback, settings_for

Gallery = Callable[..., httpx.Client]


# Every answer.


@pytest.mark.parametrize(
    "path", ["/", "/docs", "/static/main.js", "/health", "/api/about", "/api/nothing", "/api/search/item"]
)
def test_every_answer_has_the_security_headers(client: httpx.Client, path: str) -> None:
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["cache-control"] == ("no-store" if path.startswith("/api") else "no-cache")
    assert "access-control-allow-origin" not in headers
    assert "server" not in headers


@pytest.mark.parametrize("path", ["/", "/docs", "/health"])
def test_whether_it_is_there_can_be_asked_without_the_content(client: httpx.Client, path: str) -> None:
    answer = client.head(path)
    assert (answer.status_code, answer.content) == (200, b"")


def test_no_other_origin_is_let_in(client: httpx.Client) -> None:
    asked = {"Origin": "http://elsewhere.example", "Access-Control-Request-Method": "POST"}
    for answer in (client.get("/api/about", headers=asked), client.options("/api/search/image", headers=asked)):
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_a_fault_of_ours_is_a_sentence_without_a_traceback(
    collection: Collection, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> int:
        raise RuntimeError("secret detail")

    with running(collection.app()) as url:
        monkeypatch.setattr(collection.store, "count", fail)
        answer = httpx.get(f"{url}/health", timeout=60)
    assert answer.status_code == 500
    assert list(answer.json()) == ["error"]
    assert "secret" not in answer.text
    assert "content-security-policy" in answer.headers
    assert "secret detail" in capsys.readouterr().err, "but the log has it"


# Who asks.


@pytest.mark.parametrize("host", ["elsewhere.example", "localhost.elsewhere.example", "10.0.0.1:8000", "", "[::2]"])
def test_other_names_are_refused(client: httpx.Client, host: str) -> None:
    answer = client.get("/api/about", headers={"Host": host})
    assert answer.status_code == 421
    assert repr(host_name(host)) in answer.json()["error"]


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:8000"])
def test_own_names_are_answered(client: httpx.Client, host: str) -> None:
    assert client.get("/api/about", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    ("host", "local"),
    [
        *((host, True) for host in ("localhost", "127.0.0.1", "127.1.2.3", "::1", "[::1]")),
        *((host, False) for host in ("0.0.0.0", "::", "192.168.1.5", "example.org", "")),
    ],
)
def test_loopback(host: str, local: bool) -> None:
    assert is_loopback(host) is local


def test_host_names() -> None:
    assert [host_name(host) for host in ("A:1", "[::1]:1", "::1", "a")] == ["a", "::1", "::1", "a"]


def test_loopback_needs_no_token_and_knows_its_names() -> None:
    settings = settings_for("127.0.0.5", None, allow_public=False)
    assert settings.token is None
    assert settings.hosts == (*LOOPBACK, "127.0.0.5")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", ""])
def test_a_public_address_needs_a_token_or_to_be_wanted(host: str) -> None:
    with pytest.raises(ValueError, match=rf"{re.escape(host)}.*SOFTTRIPLE_TOKEN.*--allow-public"):
        settings_for(host, None, allow_public=False)
    assert settings_for(host, "sesam", allow_public=False).token == "sesam"
    assert settings_for(host, None, allow_public=True).hosts is None


@pytest.mark.parametrize("site", ["cross-site", "same-site", "unheard-of"])
def test_pages_of_other_sites_cannot_make_the_server_work(client: httpx.Client, site: str) -> None:
    """The answer alone would not help: the page cannot read it, but the server would have decoded an image."""
    sent = {"Sec-Fetch-Site": site}
    requests = [("POST", "/api/search/image"), ("GET", "/api/map"), ("GET", "/api/thumbnail?id=set/0-0.png")]
    for method, path in [*requests, ("POST", "/"), ("OPTIONS", "/health")]:
        answer = client.request(method, path, headers=sent)
        assert (answer.status_code, list(answer.json())) == (403, ["error"]), path
        assert "content-security-policy" in answer.headers
    assert client.get("/", headers=sent).status_code == 200, "a link to the page works"


@pytest.mark.parametrize("site", ["same-origin", "none", None])
def test_the_page_itself_and_other_programs_are_answered(
    client: httpx.Client, collection: Collection, site: str | None
) -> None:
    sent = {} if site is None else {"Sec-Fetch-Site": site}
    image = (collection.folder / "0-0.png").read_bytes()
    assert client.post("/api/search/image", content=image, headers=sent).status_code == 200
    assert client.get("/api/about", headers=sent).status_code == 200


@pytest.mark.parametrize("sent", [None, "Bearer wrong", "sesam", "Basic sesam"])
def test_without_the_token_there_are_no_data(gallery: Gallery, sent: str | None) -> None:
    client = gallery(token="sesam")
    for path in ("/api/about", "/api/thumbnail?id=set/0-0.png", "/api/nothing", "/api"):
        answer = client.get(path, headers={} if sent is None else {"Authorization": sent})
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "token" in answer.json()["error"]


def test_with_the_token_there_are(gallery: Gallery) -> None:
    client = gallery(token="sesam")
    token = {"Authorization": "bearer sesam"}
    assert client.get("/api/about", headers=token).status_code == 200
    for path in ("/", "/docs", "/health", "/openapi.json"):
        assert client.get(path).status_code == 200, "these show no data"
    described = client.get("/openapi.json").json()
    (scheme,) = described["components"]["securitySchemes"].values()
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")
    secured = {
        path for path, methods in described["paths"].items() if all("security" in one for one in methods.values())
    }
    assert secured == {path for path in described["paths"] if path.startswith("/api/")}


@pytest.mark.parametrize("token", ["", " ", "open sesame", "sesam ", "sésam", "a\nb"])
def test_a_token_that_no_header_carries_is_refused(token: str) -> None:
    with pytest.raises(ValueError, match="printable ASCII"):
        Settings(token=token)


# How much.


def picture(width: int, height: int, kind: str = "PNG") -> bytes:
    buffer = BytesIO()
    Image.new("1", (width, height)).save(buffer, kind)
    return buffer.getvalue()


def noise(side: int) -> bytes:
    buffer = BytesIO()
    Image.effect_noise((side, side), 80).save(buffer, "PNG")
    return buffer.getvalue()


def png_that_claims(width: int, height: int) -> bytes:
    """A few bytes whose head says that they are a huge picture."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    )


def tiff_with_huge_tile() -> bytes:
    """A TIFF of 64×64 grey pixels in one tile of 26 000×26 000, for which a decoder would allocate 676 MB."""
    tags = {256: 64, 257: 64, 258: 8, 259: 8, 262: 1, 277: 1, 322: 26_000, 323: 26_000, 324: 200, 325: 1000}
    entries = b"".join(struct.pack("<HHLL", tag, 4, 1, value) for tag, value in tags.items())
    directory = struct.pack("<H", len(tags)) + entries + struct.pack("<L", 0)
    return (b"II*\0" + struct.pack("<L", 8) + directory).ljust(200, b"\0") + zlib.compress(bytes(26_000)).ljust(1000)


@pytest.mark.parametrize(
    ("data", "status", "sentence"),
    [
        (b"", 415, "JPEG"),
        (b"not a picture", 415, "JPEG"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", 415, "JPEG"),
        (b"%PDF-1.4", 415, "JPEG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", 415, "JPEG"),
        (noise(64)[:3000], 415, "not a readable image"),
        (png_that_claims(100, 100), 415, "not a readable image"),
        (png_that_claims(60_000, 60_000), 413, "40000000"),
        (picture(9000, 9000), 413, "9000×9000 pixels"),
        (tiff_with_huge_tile(), 415, "26000×26000"),
        (picture(1, 3000), 415, "1×3000"),
    ],
)
def test_what_is_no_picture_of_reasonable_size_is_refused(
    client: httpx.Client, data: bytes, status: int, sentence: str
) -> None:
    answer = client.post("/api/search/image", content=data)
    assert (answer.status_code, list(answer.json())) == (status, ["error"])
    assert sentence in answer.json()["error"]


def test_the_body_is_limited_said_or_unsaid(gallery: Gallery) -> None:
    client = gallery(max_bytes=50_000)
    taken = []

    def pieces() -> Iterator[bytes]:
        for _ in range(1000):
            taken.append(1)
            yield bytes(10_000)

    said = client.post("/api/search/image", content=bytes(50_001))
    unsaid = client.post("/api/search/image", content=pieces())  # chunked: no Content-Length
    for answer in (said, unsaid):
        assert answer.status_code == 413
        assert "0.05 MB" in answer.json()["error"]
    assert client.post("/api/search/image", content=bytes(50_000)).status_code == 415, "exactly as many are read"
    assert client.request("GET", "/health", content=bytes(50_001)).status_code == 413


def test_no_path_from_a_request_opens_a_file(client: httpx.Client, collection: Collection) -> None:
    outside = collection.folder / "0-0.png"
    for item_id in (str(outside), f"file://{outside}", "../../../etc/passwd", "set/../set/0-0.png", "set/0-0.png\0"):
        assert client.get("/api/thumbnail", params={"id": item_id}).status_code == 404
    for path in (
        "/../app.py",
        "/%2e%2e/app.py",
        "/..%2fapp.py",
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "//etc/passwd",
        "/%00",
    ):
        with socket.create_connection((client.base_url.host, client.base_url.port)) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            answer = connection.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 404"), path
        assert b"create_app" not in answer


# How long.


def test_a_busy_encoder_turns_clients_away_with_429(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, leave = threading.Event(), threading.Event()

    def slowly(*_: object) -> None:
        entered.set()
        leave.wait(60)
        raise ValueError

    monkeypatch.setattr("softtriple.gallery.service.decode_upload", slowly)
    settings = Settings(max_encoding=0, work_seconds=0.4)
    with running(collection.app(settings), settings) as url:
        answers: list[httpx.Response] = []

        def upload() -> httpx.Response:
            return httpx.post(f"{url}/api/search/image", content=b"x", timeout=60)

        ask = threading.Thread(target=lambda: answers.append(upload()))
        ask.start()
        assert entered.wait(30)
        refused = upload()
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
        assert "busy" in refused.json()["error"]
        assert httpx.get(f"{url}/static/main.js", timeout=60).status_code == 200, "the rest goes on"
        ask.join()
        assert answers[0].status_code == 429
        assert "within 0.4 seconds" in answers[0].json()["error"]
        # The thread is still at it: the next one is refused at once, not queued behind it.
        assert "busy" in upload().json()["error"]
        leave.set()


def test_too_many_requests_at_once_are_turned_away(gallery: Gallery) -> None:
    answer = gallery(max_requests=0).get("/health")
    assert (answer.status_code, "retry-after" in answer.headers) == (429, True)


def exchange(client: httpx.Client, *pieces: bytes, pause: float = 0.2) -> tuple[bytes, float]:
    """Send ``pieces`` one after the other; what came back until the server closed, and after how many seconds."""
    where = urlsplit(str(client.base_url))
    start = time.monotonic()
    with socket.create_connection((where.hostname, where.port), timeout=10) as connection:
        connection.settimeout(pause)
        received = b""
        for piece in pieces:
            try:
                connection.sendall(piece)
                received += connection.recv(4096)
            except TimeoutError:
                continue
            except OSError:
                break
        connection.settimeout(30)
        try:
            while data := connection.recv(4096):
                received += data
        except ConnectionResetError:
            pass
    return received, time.monotonic() - start


def test_a_head_that_dawdles_is_cut_off(gallery: Gallery) -> None:
    client = gallery(header_seconds=0.5)
    silent, seconds = exchange(client)
    assert (silent, seconds < 5) == (b"", True)
    trickled, seconds = exchange(client, b"GET / HT", b"TP/1.1\r\n", b"Host: local", b"host\r\n", b"A: b\r\n")
    assert (trickled, seconds < 5) == (b"", True)
    whole = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answered, seconds = exchange(client, whole, b"GET / HT", b"TP", b"/1", b".1", b"\r\n")
    assert answered.count(b"HTTP/1.1 200") == 1
    assert seconds < 5, "also the second request of a connection"


def test_a_body_that_dawdles_is_told_so(gallery: Gallery) -> None:
    head = b"POST /api/search/image HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
    answer, seconds = exchange(gallery(body_seconds=0.5, header_seconds=0.5), head, *[b"x"] * 5)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"within 0.5 seconds" in answer
    assert seconds < 20, "and cut off if it goes on"


def test_malformed_requests_do_not_hurt(client: httpx.Client) -> None:
    head = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    for request in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\nConnection: close\r\n\r\n",
        head + b"Host: elsewhere\r\n\r\n",
        head + b"A: " + b"b" * 200_000 + b"\r\n\r\n",
        head + b"Content-Length: -1\r\n\r\n",
        head + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
        head.replace(b"GET /health", b"POST /api/search/image") + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    ):
        answer, _ = exchange(client, request)
        head_of_answer, _, body = answer.partition(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 4"), request[:40]
        assert list(json.loads(body)) == ["error"], request[:40]
        assert b"content-security-policy" in head_of_answer.lower()
    assert client.get("/health").status_code == 200

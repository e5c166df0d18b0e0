"""A stand-in for the HTTP interface of the Hugging Face hub: repositories in memory, as huggingface_hub uses them."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_of_the_tests"


@dataclass
class Hub:
    """``repositories`` are the files of each by name; ``private`` are those made as such."""

    address: str
    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    private: set[str] = field(default_factory=set)
    unknown: list[str] = field(default_factory=list)  # requests that the stand-in does not know

    def sha(self, repo: str) -> str:
        """The commit, which depends on the content."""
        digest = hashlib.sha1()
        for name, content in sorted(self.repositories[repo].items()):
            digest.update(name.encode() + b"\0" + content)
        return digest.hexdigest()


@contextmanager
def serving() -> Iterator[Hub]:
    """The hub on a free port of this machine; all its threads have ended when the block is left."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self._route("GET")

        def do_HEAD(self) -> None:
            self._route("HEAD")

        def do_POST(self) -> None:
            self._route("POST")

        def _route(self, method: str) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = unquote(urlsplit(self.path).path)
            for verbs, pattern, answer in ROUTES:
                if method in verbs and (match := re.fullmatch(pattern, path)):
                    if method == "POST" and self.headers.get("Authorization") != f"Bearer {TOKEN}":
                        return self._send(401, {"error": "Invalid credentials"})
                    repo = match.groupdict().get("repo")
                    if repo is not None and repo not in hub.repositories:
                        return self._send(404, {"error": "Repository not found"}, **{"X-Error-Code": "RepoNotFound"})
                    return answer(self, match, body)
            if path != "/api/agent-harnesses":  # asked for by some versions, which do without an answer
                hub.unknown.append(f"{method} {path}")
            return self._send(404, {"error": "unknown to the stand-in"})

        def _send(self, status: int, content: Any, **headers: str) -> None:
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def create(self, _: re.Match[str], body: bytes) -> None:
            asked = json.loads(body)
            repo = f"{asked['organization']}/{asked['name']}"
            if repo in hub.repositories:
                return self._send(409, {"error": "You already created this repo", "url": f"{hub.address}/{repo}"})
            hub.repositories[repo] = {".gitattributes": b""}
            if asked.get("private") or asked.get("visibility") == "private":
                hub.private.add(repo)
            return self._send(200, {"url": f"{hub.address}/{repo}"})

        def info(self, match: re.Match[str], _: bytes) -> None:
            repo = match["repo"]
            if (match["revision"] or "main") not in ("main", hub.sha(repo)):
                return self._send(404, {"error": "no such revision"}, **{"X-Error-Code": "RevisionNotFound"})
            return self._send(200, {"id": repo, "modelId": repo, "sha": hub.sha(repo), "siblings": [], "tags": []})

        def tree(self, match: re.Match[str], _: bytes) -> None:
            files = hub.repositories[match["repo"]].items()
            rows = [{"type": "file", "path": name, "size": len(data), "oid": _oid(data)} for name, data in files]
            self._send(200, rows)

        def validate(self, _: re.Match[str], body: bytes) -> None:
            valid = json.loads(body)["content"].startswith("---\n")
            self._send(200 if valid else 400, {"errors": [], "warnings": []})

        def preupload(self, _: re.Match[str], body: bytes) -> None:
            names = [file["path"] for file in json.loads(body)["files"]]
            modes = [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]
            self._send(200, {"files": modes})

        def commit(self, match: re.Match[str], body: bytes) -> None:
            files = hub.repositories[match["repo"]]
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "deletedFile":
                    del files[value["path"]]
            sha = hub.sha(match["repo"])
            self._send(200, {"commitOid": sha, "commitUrl": f"{hub.address}/{match['repo']}/commit/{sha}"})

        def resolve(self, match: re.Match[str], _: bytes) -> None:
            data = hub.repositories[match["repo"]].get(match["path"])
            if data is None:
                return self._send(404, {"error": "no such file"}, **{"X-Error-Code": "EntryNotFound"})
            return self._send(200, data, ETag=f'"{_oid(data)}"', **{"X-Repo-Commit": hub.sha(match["repo"])})

    repo = r"(?P<repo>[\w.-]+/[\w.-]+)"
    ROUTES: list[tuple[str, str, Any]] = [
        ("POST", "/api/repos/create", Handler.create),
        ("POST", "/api/validate-yaml", Handler.validate),
        ("GET", rf"/api/models/{repo}(/revision/(?P<revision>[^/]+))?", Handler.info),
        ("GET", rf"/api/models/{repo}/tree/[^/]+", Handler.tree),
        ("POST", rf"/api/models/{repo}/preupload/[^/]+", Handler.preupload),
        ("POST", rf"/api/models/{repo}/commit/[^/]+", Handler.commit),
        ("GET HEAD", rf"/{repo}/resolve/[^/]+/(?P<path>.+)", Handler.resolve),
    ]
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        httpd.daemon_threads = False
        hub = Hub(f"http://127.0.0.1:{httpd.server_port}")
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield hub
        finally:
            httpd.shutdown()
            thread.join()


def _oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

"""A stand-in of the Hugging Face hub's HTTP interface on loopback: repositories, commits and downloads, in memory."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlparse

TOKEN = "hf_stand_in"


class Hub(ThreadingHTTPServer):
    """Files by repository and path, and every request that came."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, status: int, content: Any = None, **headers: str) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def do_POST(self) -> None:
        path, hub = urlparse(self.path).path.strip("/").split("/"), self.server
        hub.requests.append(f"POST {self.path}")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.answer(401, {"error": "who are you?"}, X_Error_Message="who are you?")
        if path == ["api", "repos", "create"]:
            given = json.loads(body)
            name = f"{given.get('organization') or 'me'}/{given['name']}"
            known = name in hub.files
            hub.files.setdefault(name, {})
            hub.private.setdefault(name, bool(given.get("private") or given.get("visibility") == "private"))
            return self.answer(409 if known else 200, {"url": f"{hub.url}/{name}", "id": name, "name": name})
        if path == ["api", "validate-yaml"]:
            assert json.loads(body)["content"].startswith("---")
            return self.answer(200, {"errors": [], "warnings": []})
        name, what = "/".join(path[2:4]), path[4]
        if what == "preupload":
            files = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in json.loads(body)["files"]
            ]
            return self.answer(200, {"files": files})
        if what == "commit":
            for line in body.splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    assert entry["value"]["encoding"] == "base64"
                    hub.files[name][entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            commit = {"commitUrl": f"{hub.url}/{name}/commit/{'c' * 40}", "commitOid": "c" * 40}
            return self.answer(200, {**commit, "success": True, "hookOutput": ""})
        return self.answer(404, {"error": "not here"})

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path, hub = urlparse(self.path).path.strip("/").split("/"), self.server
        hub.requests.append(f"{self.command} {self.path}")
        if len(path) == 5 and path[2] == "resolve":
            data = hub.files.get("/".join(path[:2]), {}).get(path[4])
            if data is not None:
                etag = f'"{hashlib.sha256(data).hexdigest()}"'
                commit = hashlib.sha1(data, usedforsecurity=False).hexdigest()
                return self.answer(200, data, ETag=etag, X_Repo_Commit=commit, Accept_Ranges="bytes")
            code = "EntryNotFound" if "/".join(path[:2]) in hub.files else "RepoNotFound"
            return self.answer(404, {"error": "not here"}, X_Error_Code=code)
        return self.answer(404, {"error": "not here"})


@contextmanager
def hub_on_loopback() -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()

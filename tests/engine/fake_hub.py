"""A Hugging Face hub of one repository, on loopback: as much of its HTTP interface as a snapshot download asks for."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def fake_hub(repo: str, directory: Path) -> Iterator[tuple[str, list[str]]]:
    """The hub's address, and the names of the files that were downloaded so far."""
    served: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            path = self.path.partition("?")[0]
            if path.startswith(f"/api/models/{repo}/tree/"):
                self._json([_entry(file) for file in directory.iterdir()])
            elif path.startswith(f"/api/models/{repo}/revision/") or path == f"/api/models/{repo}":
                siblings = [{"rfilename": file.name} for file in directory.iterdir()]
                self._json({"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings})
            elif path.startswith(f"/{repo}/resolve/"):
                self._file(directory / path.rpartition("/")[2], body=body)
            else:
                self.send_error(404)

        def _json(self, value: object) -> None:
            self._send(json.dumps(value).encode(), {"Content-Type": "application/json"})

        def _file(self, file: Path, *, body: bool) -> None:
            if body:
                served.append(file.name)
            data = file.read_bytes()
            headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": COMMIT}
            self._send(data, headers, body=body)

        def _send(self, data: bytes, headers: dict[str, str], *, body: bool = True) -> None:
            self.send_response(200)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            if body:
                self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", served
        finally:
            server.shutdown()
            thread.join()


def _entry(file: Path) -> dict[str, object]:
    data = file.read_bytes()
    return {"type": "file", "path": file.name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}

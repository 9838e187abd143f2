"""An API server that answers TokenReviews and SubjectAccessReviews, and nothing else."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews", "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class Reviewer:
    """`tokens`: token → its user; `readers`: the users who may. `refuses`: a status with which it refuses to answer.
    `asked`: the bodies that it got."""

    def __init__(self) -> None:
        self.tokens = {"good": "prometheus", "other": "somebody"}
        self.readers = {"prometheus"}
        self.refuses = 0
        self.asked: list[dict[str, Any]] = []

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """What the API server puts into the status of a review."""
        spec = body["spec"]
        if body["kind"] == "TokenReview":
            user = self.tokens.get(spec["token"])
            return {"user": {"username": user, "groups": ["g"]}, "authenticated": True} if user else {"user": {}}
        may = spec["user"] in self.readers and spec["nonResourceAttributes"] == {"path": "/metrics", "verb": "get"}
        return {"allowed": may}


@contextmanager
def reviewing(folder: Path) -> Iterator[tuple[Reviewer, Path]]:
    """Such a server, and a kubeconfig for it."""
    reviewer = Reviewer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            reviewer.asked.append(body)
            known = self.path == REVIEWS[body["kind"] != "TokenReview"]
            status = reviewer.refuses or (201 if known else 404)
            answer = json.dumps({**body, "status": reviewer.answer(body)} if status == 201 else {"message": "no"})
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    kubeconfig = folder / "kubeconfig"
    named = {"name": "x", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
    context = {"name": "x", "context": {"cluster": "x", "user": "x"}}
    kubeconfig.write_text(
        json.dumps(
            {"clusters": [named], "users": [{"name": "x", "user": {}}], "contexts": [context], "current-context": "x"}
        )
    )
    try:
        yield reviewer, kubeconfig
    finally:
        server.shutdown()
        server.server_close()

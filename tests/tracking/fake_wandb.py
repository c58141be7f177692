"""A W&B server for tests on the loopback: the parts of GraphQL and of the file stream that the client uses for runs and
for resuming them. Runs are kept as the real server shows them.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "k" * 40
ENTITY = {"id": "e", "name": "tester"}


@dataclass
class Run:
    name: str
    project: str
    given: dict[str, Any] = field(default_factory=dict)  # the newest values that are not empty
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    exit_code: int | None = None

    @property
    def config(self) -> dict[str, Any]:
        entries = json.loads(self.given.get("config", "{}"))
        return {name: entry["value"] for name, entry in entries.items() if name != "_wandb"}

    def forget_after(self, step: int) -> None:
        """Drops the later rows."""
        self.history = [row for row in self.history if row["_step"] <= step]
        self.summary |= {"_step": step, "trainer/global_step": step}

    def series(self, name: str) -> list[tuple[int, Any]]:
        """(step, value) of each history row with this value."""
        return [(row["trainer/global_step"], row[name]) for row in self.history if name in row]

    def bucket(self) -> dict[str, Any]:
        """As GraphQL returns it; without `wandbConfig` it counts as not started."""
        return {
            "id": f"id-{self.name}", "name": self.name, "displayName": self.given.get("displayName") or self.name,
            "config": self.given.get("config", "{}"), "wandbConfig": '{"t": 1}', "tags": self.given.get("tags", []),
            "sweepName": self.given.get("sweep"), "project": {"id": "p", "name": self.project, "entity": ENTITY},
            "historyTail": json.dumps([json.dumps(row) for row in self.history[-1:]]), "eventsTail": "[]",
            "historyLineCount": len(self.history), "eventsLineCount": 0, "logLineCount": 0,
            "summaryMetrics": json.dumps(self.summary),
        }  # fmt: skip


class FakeWandb:
    """The server; `with FakeWandb() as server:` runs it in a thread."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.requests: list[tuple[str, Any]] = []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"fake": self}))
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> FakeWandb:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Later connections are refused."""
        self._http.shutdown()
        self._http.server_close()

    def graphql(self, operation: str, given: dict[str, Any]) -> dict[str, Any]:
        match operation:
            case "Viewer" | "ViewerInfo":
                viewer = {"id": "v", "entity": "tester", "username": "tester", "email": "", "flags": "{}"}
                return {"viewer": viewer | {"teams": {"edges": []}}, "serverInfo": {}}
            case "ServerFeaturesQuery":
                return {"serverInfo": {"features": []}}
            case "RunResumeStatus":
                run = self.runs.get(given["name"])
                return {
                    "model": {"id": "p", "name": given["project"], "entity": ENTITY, "bucket": run and run.bucket()}
                }
            case "UpsertBucket":
                new = given["name"] not in self.runs
                run = self.runs.setdefault(given["name"], Run(given["name"], given.get("project") or ""))
                run.given |= {name: value for name, value in given.items() if value}
                return {"upsertBucket": {"bucket": run.bucket(), "inserted": new}}
            case "CreateRunFiles":
                files = [{"name": name, "uploadUrl": f"{self.url}/store/{name}"} for name in given["files"]]
                return {"createRunFiles": {"runID": given["run"], "uploadHeaders": [], "files": files}}
        return {}

    def stream(self, run: Run, document: dict[str, Any]) -> None:
        """Rows of the history, the summary or the end of a run."""
        files = document.get("files") or {}
        if history := files.get("wandb-history.jsonl"):
            lines = [json.loads(line) for line in history["content"]]
            run.history[history["offset"] : history["offset"] + len(lines)] = lines
        if summary := files.get("wandb-summary.json"):
            run.summary = json.loads(summary["content"][-1])
        if document.get("complete"):
            run.exit_code = document.get("exitcode")


class _Handler(BaseHTTPRequestHandler):
    fake: FakeWandb
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def _answer(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        answer: dict[str, Any] = {}
        if self.command != "POST":
            self.fake.requests.append((f"{self.command} {self.path}", content))
        elif not self.path.startswith("/sdk/otel"):  # the client's own telemetry
            answer = self._posted(json.loads(content or b"{}"))
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_POST = _answer

    def _posted(self, document: dict[str, Any]) -> dict[str, Any]:
        name = document.get("operationName", self.path)
        self.fake.requests.append((name, document.get("variables") or document))
        if self.path == "/graphql":
            return {"data": self.fake.graphql(name, document.get("variables") or {})}
        match self.path.strip("/").split("/"):
            case ["files", _, _, run, "file_stream"]:
                self.fake.stream(self.fake.runs[run], document)
        return {}

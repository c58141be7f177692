"""A W&B server for tests on the loopback: the parts of GraphQL and of the file stream that the client uses for runs,
resuming and reports. Runs are kept as the real server shows them.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "k" * 40
ENTITY = "tester"


@dataclass
class Run:
    name: str
    project: str
    upserts: list[dict[str, Any]] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    exit_code: int | None = None

    def last(self, name: str) -> Any:
        """The newest non-empty value of a field."""
        return next((upsert[name] for upsert in reversed(self.upserts) if upsert.get(name)), None)

    @property
    def config(self) -> dict[str, Any]:
        entries = json.loads(self.last("config") or "{}")
        return {name: entry["value"] for name, entry in entries.items() if name != "_wandb"}

    def forget_after(self, step: int) -> None:
        """Drops the later rows."""
        self.history = [row for row in self.history if row["_step"] <= step]
        self.summary |= {"_step": step, "trainer/global_step": step}

    def series(self, name: str) -> list[tuple[int, Any]]:
        """(step, value) of each history row with this value."""
        return [(row["trainer/global_step"], row[name]) for row in self.history if name in row]


class FakeWandb:
    """The server; `with FakeWandb() as server:` runs it in a thread."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.requests: list[tuple[str, Any]] = []
        self.reports: list[dict[str, Any]] = []
        self._http = _QuietServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"fake": self}))
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> FakeWandb:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Later connections are refused."""
        if self._thread.is_alive():
            self._http.shutdown()
            self._thread.join()
        self._http.server_close()

    def environment(self) -> dict[str, str]:
        return {"WANDB_BASE_URL": self.url, "WANDB_API_KEY": KEY}

    def graphql(self, operation: str, variables: dict[str, Any]) -> dict[str, Any] | None:
        match operation:
            case "Viewer" | "ViewerInfo":
                teams: dict[str, Any] = {"edges": []}
                person = {"id": "v", "entity": ENTITY, "username": ENTITY, "email": "", "flags": "{}", "teams": teams}
                return {"viewer": person, "serverInfo": {}}
            case "GetDefaultEntity":
                return {"viewer": {"id": "v", "entity": ENTITY}}
            case "GetProjects":
                edges = [{"cursor": "c", "node": _project(name)} for name in sorted(self.projects())]
                return {"models": {"pageInfo": _last_page("c"), "edges": edges}}
            case "ProjectInternalId":
                name = variables["projectName"]
                return {"project": {"id": "p", "internalId": f"number-{name}"} if name in self.projects() else None}
            case "Runs":
                return {"project": self._runs_of(variables)}
            case "upsertView":
                return {"upsertView": {"inserted": True, "view": self._save(variables)}}
            case "ServerFeaturesQuery":
                return {"serverInfo": {"features": []}}
            case "RunResumeStatus":
                return {"model": self._resume_status(variables)}
            case "UpsertBucket":
                return {"upsertBucket": self._upsert(variables)}
            case "CreateRunFiles":
                files = [{"name": name, "uploadUrl": f"{self.url}/store/{name}"} for name in variables["files"]]
                return {"createRunFiles": {"runID": variables["run"], "uploadHeaders": [], "files": files}}
        return {}

    def projects(self) -> set[str]:
        return {run.project for run in self.runs.values()}

    def _runs_of(self, variables: dict[str, Any]) -> dict[str, Any] | None:
        """A project's runs; the only filter is the group."""
        if variables["project"] not in self.projects():
            return None
        wanted = json.loads(variables["filters"])
        assert wanted.keys() <= {"group"}
        runs = [
            run
            for run in self.runs.values()
            if run.project == variables["project"] and wanted.get("group") in (None, run.last("groupName"))
        ]
        shown = runs[: variables["perPage"]]
        edges = [{"cursor": run.name, "node": _node(run)} for run in shown]
        page = {"endCursor": shown[-1].name if shown else None, "hasNextPage": len(runs) > len(shown)}
        runs_of = {"edges": edges, "pageInfo": page}
        return {"internalId": "1", "runCount": len(runs), "readOnly": False, "runs": runs_of}

    def _save(self, variables: dict[str, Any]) -> dict[str, Any]:
        self.reports.append({**variables, "spec": json.loads(variables["spec"])})
        project = {"id": "p", "name": variables["projectName"], "entityName": variables["entityName"]}
        given = {name: variables[name] for name in ("type", "name", "displayName", "description", "spec")}
        return {**given, "id": "Vmlldzox", "project": project, "updatedAt": "2024-01-01T00:00:00"}

    def _run(self, name: str, project: str) -> Run:
        return self.runs.setdefault(name, Run(name, project))

    def _resume_status(self, variables: dict[str, Any]) -> dict[str, Any]:
        run = self.runs.get(variables["name"])
        bucket = None
        if run is not None:
            tail = [json.dumps(run.history[-1])] if run.history else []
            bucket = {
                "id": f"id-{run.name}", "name": run.name, "displayName": run.last("displayName"), "notes": None,
                "summaryMetrics": json.dumps(run.summary), "config": run.last("config") or "{}",
                "logLineCount": 0, "historyLineCount": len(run.history), "eventsLineCount": 0,
                "historyTail": json.dumps(tail), "eventsTail": "[]", "tags": run.last("tags") or [],
                "wandbConfig": '{"t": 1}',  # without it the run counts as not started
            }  # fmt: skip
        return {"id": "p", "name": variables["project"], "entity": {"id": "e", "name": ENTITY}, "bucket": bucket}

    def _upsert(self, variables: dict[str, Any]) -> dict[str, Any]:
        new = variables["name"] not in self.runs
        run = self._run(variables["name"], variables.get("project") or "")
        run.upserts.append(variables)
        project = {"id": "p", "name": run.project, "entity": {"id": "e", "name": ENTITY}}
        bucket = {
            "id": f"id-{run.name}", "name": run.name, "displayName": run.last("displayName") or run.name,
            "description": None, "config": run.last("config") or "{}", "sweepName": run.last("sweep"),
            "project": project, "historyLineCount": len(run.history),
        }  # fmt: skip
        return {"bucket": bucket, "inserted": new}

    def stream(self, run: Run, document: dict[str, Any]) -> None:
        files = document.get("files") or {}
        if history := files.get("wandb-history.jsonl"):
            lines = [json.loads(line) for line in history["content"]]
            start = history["offset"]
            run.history[start : start + len(lines)] = lines
        if summary := files.get("wandb-summary.json"):
            run.summary = json.loads(summary["content"][-1])
        if document.get("complete"):
            run.exit_code = document.get("exitcode")


def _last_page(cursor: str) -> dict[str, Any]:
    return {"__typename": "PageInfo", "endCursor": cursor, "hasNextPage": False}


def _project(name: str) -> dict[str, Any]:
    created = "2024-01-01T00:00:00"
    known = {"id": "p", "name": name, "entityName": ENTITY, "createdAt": created, "isBenchmark": False, "user": None}
    return {"__typename": "Project", **known}


def _node(run: Run) -> dict[str, Any]:
    named = {"displayName": run.last("displayName"), "group": run.last("groupName"), "jobType": run.last("jobType")}
    user = {"name": ENTITY, "username": ENTITY}
    made = {"state": "finished", "createdAt": "2024-01-01T00:00:00", "user": user}
    return {"projectId": "1", "id": f"id-{run.name}", "name": run.name, **named, "tags": run.last("tags") or [], **made}


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores disconnecting clients, which some tests cause."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    fake: FakeWandb
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, document: Any, status: int = 200) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.fake.requests.append((f"GET {self.path}", None))
        self._answer({})

    def do_PUT(self) -> None:
        self.fake.requests.append((f"PUT {self.path}", self._body()))
        self._answer({})

    def do_POST(self) -> None:
        received = self._body()
        if self.path.startswith("/sdk/otel"):  # the client's own telemetry
            self._answer({})
            return
        body = json.loads(received or b"{}")
        if self.path == "/graphql":
            name = body.get("operationName") or _operation(body["query"])
            variables = body.get("variables") or {}
            self.fake.requests.append((name, variables))
            self._answer({"data": self.fake.graphql(name, variables)})
            return
        self.fake.requests.append((self.path, body))
        parts = self.path.strip("/").split("/")
        if parts[0] == "files" and parts[-1] == "file_stream":
            self.fake.stream(self.fake._run(parts[3], parts[2]), body)
        self._answer({})


def _operation(query: str) -> str:
    words = query.replace("(", " ").replace("{", " ").split()
    return next(after for word, after in itertools.pairwise(words) if word in ("query", "mutation"))

"""What `make test-compose` asks over HTTP, against a gateway of the test's own."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tools.compose_run.http_checks import ask_gateway

MESSAGES = [{"role": "user", "content": "hi"}]


class SlowGateway(BaseHTTPRequestHandler):
    """Lists its model at once, has the tokenizer when that was asked for twice, and answers 503 before."""

    num_tokenizers_asked = 0

    def do_GET(self) -> None:
        kind = type(self)
        if self.path == "/v1/models":
            self._answer(200, {"data": [{"id": "the-model"}]})
        elif self.path == "/v1/tokenizers":
            kind.num_tokenizers_asked += 1
            self._answer(200, {"tokenizers": [{}] if kind.num_tokenizers_asked > 2 else []})
        else:
            self._answer(200, {})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if type(self).num_tokenizers_asked > 2:
            text = f"{asked['model']} {asked['max_tokens']} {asked['messages'] == MESSAGES}"
            self._answer(200, {"choices": [{"message": {"content": text}}]})
        else:
            self._answer(503, {"error": {"code": "tokenizer_not_ready"}})

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def slow_gateway_port() -> Iterator[int]:
    class Handler(SlowGateway):
        """One for each test, because it counts."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_a_gateway_is_asked_once_it_has_the_tokenizer(
    slow_gateway_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.compose_run.http_checks.POLL_SECONDS", 0.01)
    assert ask_gateway(slow_gateway_port, MESSAGES, max_tokens=5) == ("the-model", "the-model 5 True")

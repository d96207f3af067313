"""A server that answers requests with what a test has written down."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class ScriptedAnswers(ThreadingHTTPServer):
    """Each request gets the next of `answers`, a status and a document."""

    daemon_threads = True

    def __init__(self, *answers: tuple[int, object]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = list(answers)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ScriptedAnswers

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        status, document = self.server.answers.pop(0)
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        pass

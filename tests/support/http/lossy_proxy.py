"""A proxy that hands a request on, and then loses its answer."""

import http.client
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class LossyProxy(ThreadingHTTPServer):
    """Of each verb in `to_lose` ("poll") the next answer that is a success is lost."""

    daemon_threads = True

    def __init__(self, broker_port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.broker_port = broker_port
        self.to_lose: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: LossyProxy

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        broker = http.client.HTTPConnection("127.0.0.1", self.server.broker_port)
        try:
            broker.request(self.command, self.path, body, dict(self.headers))
            answer = broker.getresponse()
            content = answer.read()
        finally:
            broker.close()
        verb = self.path.partition("?")[0].rpartition("/")[2]
        if answer.status < 300 and verb in self.server.to_lose:
            self.server.to_lose.remove(verb)
            self.close_connection = True
            return
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                self.send_header(name, value)
        if answer.status != 204:
            self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET

    def log_message(self, format: str, *arguments: object) -> None:
        pass

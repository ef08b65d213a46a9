"""GET /grow fills the cache, GET / answers."""

import http.server
import sys

cache = []


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/grow":
            cache[:] = [bytes(4000) for _ in range(1000)]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello\n")

    def log_message(self, *_):
        pass


http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()

"""A channel that replies are published to: PUT /ID adds a line {"key", "text"} to a file, GET /ID tells whether it has one.

usage: channel.py REPLIES.jsonl PORTFILE        listens on 127.0.0.1; takes every reply that comes, a second one too
"""

import http.server
import json
import os
import sys

replies, port_file = sys.argv[1:]


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_PUT(self):
        text = self.rfile.read(int(self.headers["content-length"])).decode()
        with open(replies, "a", encoding="utf-8") as file:
            file.write(json.dumps({"key": self.path.removeprefix("/"), "text": text}) + "\n")
        self.answer(200)

    def do_GET(self):
        with open(replies, encoding="utf-8") as file:
            known = any(json.loads(line)["key"] == self.path.removeprefix("/") for line in file)
        self.answer(200 if known else 404)

    def answer(self, status):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(f"receipt of {self.path}\n".encode())


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
with open(f"{port_file}.new", "w", encoding="ascii") as file:
    file.write(str(server.server_address[1]))
os.rename(f"{port_file}.new", port_file)
server.serve_forever()

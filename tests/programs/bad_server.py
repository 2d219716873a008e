"""Programs that no `command` engine should be, one for each name: how a server by command line goes wrong.

    python tests/programs/bad_server.py WAY --port 9000

daemon       puts itself into the background and exits 0, as a service does
done         does nothing and exits 0
elsewhere    listens, but on a port of its own choice
mute         opens its port, takes connections and never answers
html         answers everything with 200 and a page, as any web server would
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"<!DOCTYPE html><html><body>Welcome!</body></html>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.do_GET()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=["daemon", "done", "elsewhere", "mute", "html"])
    parser.add_argument("--port", type=int, required=True)
    asked = parser.parse_args()
    match asked.way:
        case "daemon":
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    HTTPServer(("127.0.0.1", asked.port), Page).serve_forever()
                os._exit(0)
            os.wait()
        case "elsewhere":
            HTTPServer(("127.0.0.1", 0), Page).serve_forever()
        case "mute":
            with socket.create_server(("127.0.0.1", asked.port)):
                time.sleep(3600)
        case "html":
            HTTPServer(("127.0.0.1", asked.port), Page).serve_forever()
    sys.exit(0)


if __name__ == "__main__":
    main()

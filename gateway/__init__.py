"""The HTTP front: OpenAI-compatible endpoints, held requests with honest progress, and the hot path to ready engines.

In come clients' requests over HTTP, and from the fleet one view of workers, models and loads, and this gateway's stream
of grants; out go requests to engines through their gates, tickets into the queue, receipts and heartbeats into Redis,
and the operator's commands to the leader. A ready replica with room is reached without Redis. Everything else waits in
the waiting room: the connection and the body stay here, only a ticket goes to Redis. Models are never started from
here: demand is.

``run`` is the process (``bind`` claims its address before anything starts); ``Gateway`` is the same without sockets
and signals, for those who bring their own.
"""

from gateway.app import Gateway
from gateway.operators import TOKEN_HEADER, token_path
from gateway.run import bind, run
from gateway.server import make_server
from gateway.webhooks import read_secrets

__all__ = ["TOKEN_HEADER", "Gateway", "bind", "make_server", "read_secrets", "run", "token_path"]

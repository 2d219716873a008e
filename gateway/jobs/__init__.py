"""Durable jobs over HTTP: handed in at ``/v1/jobs``, or made of a held request whose client could not wait any longer.

``JobOffice`` is all of it for one gateway. ``JobDesk`` is where jobs are handed in, by whatever door they come;
``JobPages`` are the endpoints, ``HandedOff`` what :mod:`gateway.inference` calls at the end of a request's patience,
``JobWatch`` the one loop that all readers wait on.
Reading an order, cursors, listings and descriptions is pure (``order``, ``cursor``, ``listing``, ``showing``).
"""

from gateway.jobs.desk import JobDesk
from gateway.jobs.handoff import HandedOff
from gateway.jobs.office import JobOffice
from gateway.jobs.order import Order, idempotency, preferred_wait_s
from gateway.jobs.pages import JobPages
from gateway.jobs.showing import Showing, failure_of
from gateway.jobs.watching import JobWatch

__all__ = [
    "HandedOff",
    "JobDesk",
    "JobOffice",
    "JobPages",
    "JobWatch",
    "Order",
    "Showing",
    "failure_of",
    "idempotency",
    "preferred_wait_s",
]

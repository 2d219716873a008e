"""What all rooms agree on: configuration, messages, states, error codes, ids, clock, paths. ``rewarm.cli`` is the
command.

Nothing here knows Redis, HTTP handlers or engines; every room may import from here, and this imports from none of them
(``rewarm.cli`` excepted, the one place that puts the rooms together).
"""

__version__ = "0.1.0"

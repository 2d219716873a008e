"""The ``rewarm`` command: the one place that imports every room and puts them together into processes.

``main`` is the entry point. ``serve`` runs the supervisor, whose children are this same command again (``gateway``,
``worker``); the other commands are HTTP clients of a running gateway, or read the configuration file.
Exit codes are those of :mod:`rewarm.errors`; ``docs/command-line.md`` lists them.
"""

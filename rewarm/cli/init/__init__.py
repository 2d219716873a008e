"""``rewarm init``: a configuration from what is on this machine. ``find`` looks, ``write`` says it as YAML (pure)."""

from rewarm.cli.init.command import init

__all__ = ["init"]

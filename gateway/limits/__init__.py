"""What a key may spend. In comes a request's body, out a :class:`Charge` or a typed refusal.

``window.py`` counts one limit, ``key_limits.py`` knows the limits of a key, ``usage.py`` reads from an answer what it
took, ``sharing.py`` tells the other gateways.
"""

from gateway.limits.key_limits import Charge, KeyLimits
from gateway.limits.sharing import Sharing
from gateway.limits.usage import UsageTap
from gateway.limits.window import Window

__all__ = ["Charge", "KeyLimits", "Sharing", "UsageTap", "Window"]

"""The one exception that leader-only writes share."""


class LostLeadership(Exception):
    """The write's term is over: somebody else leads, or the trust window has passed. Decide nothing more."""

"""Which addresses a webhook may reach. Pure.

A client names the URL, and the gateway stands inside the operator's network: without a check anybody with a key could
make it knock on machines that only it can reach, the cloud's metadata service first.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# What is not the public internet, by IANA's registries of special addresses. `ipaddress` knows most of it as
# `is_global`, but not the same in every patch release of Python.
_SPECIAL: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("this machine", ("0.0.0.0/8", "127.0.0.0/8", "::/128", "::1/128")),
    ("a private network", ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10")),
    ("carrier-grade NAT", ("100.64.0.0/10",)),
    ("link-local", ("169.254.0.0/16", "fe80::/10")),
    ("multicast", ("224.0.0.0/4", "ff00::/8")),
    # Azure's host answers every virtual machine on a public-looking address.
    ("a cloud's metadata service", ("168.63.129.16/32",)),
    ("documentation", ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32", "3fff::/20")),
    ("a reserved range", ("192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15", "240.0.0.0/4", "5f00::/16")),
    ("a reserved range", ("100::/64", "100:0:0:1::/64", "2001::/23", "64:ff9b:1::/48")),
)
_RANGES: tuple[tuple[Network, str], ...] = tuple(
    (ipaddress.ip_network(network), what) for what, networks in _SPECIAL for network in networks
)

# IPv6 addresses that stand for an IPv4 one, and where in it that lies (bits from the right). A packet to
# 64:ff9b::7f00:1 ends at 127.0.0.1 where the network translates.
_EMBEDDING: tuple[tuple[ipaddress.IPv6Network, int], ...] = (
    (ipaddress.IPv6Network("::ffff:0:0/96"), 0),  # mapped
    (ipaddress.IPv6Network("::ffff:0:0:0/96"), 0),  # translated, RFC 2765
    (ipaddress.IPv6Network("::/96"), 0),  # compatible, deprecated
    (ipaddress.IPv6Network("64:ff9b::/96"), 0),  # NAT64
    (ipaddress.IPv6Network("2002::/16"), 80),  # 6to4
)


@dataclass(frozen=True, slots=True)
class Allowed:
    """What the operator opens on purpose: everything, networks, or hosts by name."""

    private: bool = False
    networks: tuple[Network, ...] = ()
    hosts: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def parse(cls, entries: Iterable[str], *, private: bool = False) -> Allowed:
        """``entries`` are networks, addresses and host names, as ``jobs.webhooks.allow`` has them."""
        networks, hosts = [], set()
        for entry in entries:
            try:
                networks.append(ipaddress.ip_network(entry))
            except ValueError:
                hosts.add(entry.lower())
        return cls(private, tuple(networks), frozenset(hosts))


def refusal(address: str, host: str, allowed: Allowed) -> str | None:
    """What ``address``, which ``host`` resolved to, is, where it may not be reached; None where it may."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return "no IP address"
    if allowed.private or host.lower().rstrip(".") in allowed.hosts or any(found in net for net in allowed.networks):
        return None
    return _what(found)


def _what(address: Address) -> str | None:
    if isinstance(address, ipaddress.IPv6Address):
        if address not in _UNSPECIFIED_OR_SELF:
            for network, shift in _EMBEDDING:
                if address in network:
                    return _what(ipaddress.IPv4Address((int(address) >> shift) & 0xFFFFFFFF))
    for special, name in _RANGES:
        if address.version == special.version and address in special:
            return name
    return None if address.is_global and not address.is_multicast else "not a public address"


_UNSPECIFIED_OR_SELF = ipaddress.IPv6Network("::/127")  # would read as the compatible 0.0.0.0 and 0.0.0.1

"""Which addresses only this machine reaches."""

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Whether a server on this address, or of this name, is reachable from this machine alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")

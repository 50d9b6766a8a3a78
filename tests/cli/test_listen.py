"""Addresses: what may be typed, what is loopback, and what a client would type."""

from __future__ import annotations

import argparse

import pytest

from basert_fleet.cli.listen import Address, parse_address


@pytest.mark.parametrize(
    ("text", "address", "url"),
    [
        ("127.0.0.1:8080", Address("127.0.0.1", 8080), "http://127.0.0.1:8080"),
        ("localhost:0", Address("localhost", 0), "http://localhost:0"),
        ("[::1]:8080", Address("::1", 8080), "http://[::1]:8080"),
        ("0.0.0.0:80", Address("0.0.0.0", 80), "http://127.0.0.1:80"),
        ("[::]:80", Address("::", 80), "http://[::1]:80"),
    ],
)
def test_an_address_is_host_and_port(text: str, address: Address, url: str) -> None:
    """An address reads back as it was typed, and tells the URL for a client on this machine."""
    assert parse_address(text) == address
    assert str(address) == text
    assert address.url == url


@pytest.mark.parametrize(
    "text",
    ["8080", ":8080", "host", "host:", "host:x", "host:-1", "host:65536", "::1:80", "[host]:1", "[]:1", "h:٣", ""],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    """Half an address is refused, not completed by a guess."""
    with pytest.raises(argparse.ArgumentTypeError):
        parse_address(text)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
     ("10.0.0.1", False), ("my-mac.local", False)],
)  # fmt: skip
def test_only_loopback_is_loopback(host: str, loopback: bool) -> None:
    """A name that might be reached from elsewhere counts as such."""
    assert Address(host, 1).is_loopback is loopback

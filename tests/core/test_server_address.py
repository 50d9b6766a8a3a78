"""Which addresses of servers can be attached, and which name the same one."""

from __future__ import annotations

import pytest

from basert_fleet.core.server_address import NoServerAddress, ServerAddress, server_address


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8896", ServerAddress("127.0.0.1", 8896)),
        ("HTTP://LocalHost:8896/", ServerAddress("localhost", 8896)),
        ("http://[::1]:8896", ServerAddress("::1", 8896)),
        ("http://localhost", ServerAddress("localhost", 80)),
    ],
)
def test_servers_of_this_machine_have_an_address(url: str, address: ServerAddress) -> None:
    """By any name of it, with or without a slash; the port of http is 80."""
    assert server_address(url) == address


def test_an_address_is_written_as_a_url() -> None:
    """An IPv6 address in brackets."""
    assert str(ServerAddress("::1", 8896)) == "http://[::1]:8896"
    assert str(ServerAddress("localhost", 80)) == "http://localhost:80"


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("https://127.0.0.1:8896", "asked without TLS"),
        ("http://user:secret@127.0.0.1:8896", "apiKeyFile"),
        ("http://127.0.0.1:8896/v1", "and no more"),
        ("http://127.0.0.1:8896?a", "and no more"),
        ("http://127.0.0.1:0", "and no more"),
        ("127.0.0.1:8896", "and no more"),
        ("http://127.0.0.1:99999", "PORT"),
        ("http://127.0.0.1:http", "PORT"),
        ("http://[::1:8896", "PORT"),
        ("http://192.168.1.7:8896", "should name this machine"),
        ("http://mac-2.local:8896", "should name this machine"),
        ("http://127.1:8896", "should name this machine"),
        ("http://0.0.0.0:8896", "should name this machine"),
        ("http://:8896", "should name this machine"),
    ],
)
def test_other_addresses_are_refused(url: str, told: str) -> None:
    """Other machines, TLS, and whatever is more than host and port; no message repeats a password."""
    with pytest.raises(NoServerAddress, match=told) as refused:
        server_address(url)
    assert "secret" not in str(refused.value)

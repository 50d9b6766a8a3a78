"""Which version two ends speak, who may dial, and over what."""

from __future__ import annotations

import pytest

from basert_fleet.wire.credentials import (
    UnprotectedAddress,
    authorization,
    require_protected_listener,
    require_protected_url,
    token_check,
)
from basert_fleet.wire.dialling import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, Pauses
from basert_fleet.wire.handshake import Open, common_version


@pytest.mark.parametrize(
    ("oldest", "newest", "expected"),
    [(1, 1, "Upgrade the agent on mac-1."), (1, 2, 2), (3, 9, 3), (2, 3, 3), (4, 4, "Upgrade the gateway.")],
)
def test_both_ends_speak_the_newest_version_that_they_share(oldest: int, newest: int, expected: object) -> None:
    """Without one, the message names the end that is behind."""
    version = common_version(Open("mac-1", oldest, newest), oldest=2, newest=3)
    if isinstance(expected, str):
        assert str(version).endswith(expected)
    else:
        assert version == expected


@pytest.mark.parametrize(
    "url", ["wss://fleet.example.com:8081", "ws://127.0.0.1:8081", "ws://[::1]:1", "ws://localhost"]
)
def test_protected_addresses_are_dialled(url: str) -> None:
    """TLS anywhere, and loopback without it."""
    require_protected_url(url)


@pytest.mark.parametrize(
    "url",
    ["ws://fleet.example.com", "ws://10.0.0.1:80", "https://x", "wss://", "wss://user:secret@x", "127.0.0.1:8081"],
)
def test_other_addresses_are_refused_without_naming_secrets(url: str) -> None:
    """A name that may resolve to loopback is not looked up."""
    with pytest.raises(UnprotectedAddress) as refused:
        require_protected_url(url)
    assert "secret" not in str(refused.value)


def test_only_loopback_is_listened_on_without_tls() -> None:
    """All interfaces need a certificate."""
    require_protected_listener("127.0.0.1", tls=False)
    require_protected_listener("0.0.0.0", tls=True)
    for host in ("0.0.0.0", "::", "", "192.168.1.2"):
        with pytest.raises(UnprotectedAddress):
            require_protected_listener(host, tls=False)


def test_a_token_is_known_as_soon_as_the_file_holds_it() -> None:
    """And not any more when it does not; an empty line opens nothing."""
    tokens = ["old", ""]
    check = token_check(lambda: tuple(tokens))
    assert check(authorization("old"))
    tokens[:] = ["new", ""]
    assert check(authorization("new"))
    for wrong in (authorization("old"), authorization(""), "new", "Bearer", "", None, "bearer new", "Bearer nëw"):
        assert not check(wrong)


def test_pauses_double_up_to_a_bound_and_start_anew_after_a_connection_that_held() -> None:
    """Full jitter: any span up to the bound; a gateway that asks for one gets at least that."""
    pauses = Pauses(lambda low, high: high)
    spans = [pauses.next() for _ in range(8)]
    assert spans == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    assert (spans[0], spans[-1]) == (FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
    pauses.reset()
    assert pauses.next() == FIRST_PAUSE_SECONDS
    asked: list[tuple[float, float]] = []
    Pauses(lambda low, high: asked.append((low, high)) or low).next(60.0)
    assert asked == [(60.0, 120.0)]

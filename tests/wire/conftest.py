"""Both transports behind one face, and a certificate for the one that has TLS."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import uvloop

from basert_fleet.wire.memory import connect
from support.link_ends import LinkEnd
from support.turns import until
from support.websocket_ends import dialling, gateway

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


def pytest_asyncio_loop_factories(config, item):
    """Run every test of this room on both loops: gateways and agents run on uvloop, whose transports differ."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@dataclass(frozen=True)
class Certificate:
    """A self-signed certificate for loopback; its own authority."""

    cert: str
    key: str

    def server_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.cert, self.key)
        return context


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """Make a certificate, once for all tests."""
    folder: Path = tmp_path_factory.mktemp("tls")
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
            *("-addext", "keyUsage=critical,digitalSignature,keyCertSign"),
        ],
        check=True,
        capture_output=True,
    )
    return Certificate(cert, key)


@dataclass
class Pair:
    """A gateway's end and an agent's end, joined by a link."""

    agent: LinkEnd
    gateway: LinkEnd


@pytest.fixture(params=["memory", "websocket", "websocket with TLS"])
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    """Two ends joined by each of the transports."""
    if request.param == "memory":
        agent, gateway_end = LinkEnd(), LinkEnd()
        to_gateway, to_agent = connect(agent, gateway_end)
        agent.bind(to_gateway)
        gateway_end.bind(to_agent)
        yield Pair(agent, gateway_end)
        return
    scheme, context, ca_file = "ws", None, None
    if request.param == "websocket with TLS":
        certificate: Certificate = request.getfixturevalue("certificate")
        scheme, context, ca_file = "wss", certificate.server_context(), certificate.cert
    async with (
        gateway(ssl_context=context) as running,
        dialling(f"{scheme}://127.0.0.1:{running.port}", ca_file=ca_file) as dialled,
    ):
        await until(lambda: dialled.end.links)
        yield Pair(dialled.end, running.end)

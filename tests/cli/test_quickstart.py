"""What README.md and docs/ tell a person to do works, and their links lead somewhere."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from basert_fleet.cli.fleetfile import read_pools
from basert_fleet.gateway.auth import read_keys
from support.seed import called

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
URL = "http://127.0.0.1:8080"
READY_SECONDS = 60.0  # a backstop


def block(language: str, start: str) -> str:
    """Return the code block of the quickstart that begins so."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", QUICKSTART, re.MULTILINE | re.DOTALL)
    return next(text for found, text in blocks if found == language and text.startswith(start))


@asynccontextmanager
async def fleet_of_the_quickstart(folder: Path) -> AsyncIterator[str]:
    """Run `basert-fleet up` on the page's own fleet file, the emulator in the engine's place; gives its URL."""
    document = yaml.safe_load(block("yaml", "apiVersion"))
    document["spec"]["server"]["command"] = [sys.executable, "-m", "basert_fleet.sim"]
    del document["spec"]["resources"]  # this machine may be smaller than a Mac
    file = folder / "fleet.yaml"
    file.write_text(yaml.safe_dump(document))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "basert_fleet.cli.main", "up", str(file), "--state-dir", str(folder / "state"),
        "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        async with asyncio.timeout(READY_SECONDS):
            async for line in process.stderr:
                if found := re.match(rb"Ready\. Base URL for OpenAI clients: (\S+)/v1$", line):
                    break
        yield found[1].decode()
    finally:
        process.terminate()
        await process.communicate()


async def test_the_quickstarts_fleet_answers_its_snippets(tmp_path: Path) -> None:
    """The fleet file starts, the curl line gets its tool call, the SDK's program prints the call and a text."""
    async with fleet_of_the_quickstart(tmp_path) as url:
        _, address, _, header, _, body = shlex.split(block("", "curl"))
        name, _, value = header.partition(": ")
        async with httpx.AsyncClient() as client:
            answer = await client.post(address.replace(URL, url), headers={name: value}, content=body)
        assert called(answer.json()) == [("lookup_key", {"key": "seq-0"})]
        program = block("python", "from openai").replace(URL, url)
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
        out, _ = await process.communicate()
    assert process.returncode == 0
    call, text = out.decode().splitlines()
    assert json.loads(call) == {"key": "seq-0"}
    assert "Hello" in text


def test_the_quickstarts_fleet_file_is_the_example() -> None:
    """What a person copies from the page is what lies in examples/."""
    example = (ROOT / "examples" / "fleet.yaml").read_bytes()
    assert read_pools(block("yaml", "apiVersion").encode(), "page") == read_pools(example, "example")


def test_the_emulators_fleet_answers_to_the_quickstarts_model() -> None:
    """Without a Mac the page's requests work as they stand, on the example that it names."""
    (pool,) = read_pools((ROOT / "examples" / "emulator.yaml").read_bytes(), "example")
    asked = set(re.findall(r'"?model"?[:=] ?"([^"]+)"', QUICKSTART))
    assert asked == {"qwen"} <= {pool.spec.model.name, *pool.spec.model.aliases}


@pytest.mark.parametrize("page", ["quickstart.md", "http.md"])
def test_the_pages_keys_files_are_right(page: str) -> None:
    """What a person copies as a keys file is taken, and lets in nobody who has no key."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    found = re.search(r"^```yaml\n(keys:.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    assert read_keys(found[1].encode(), page).find(None) is None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_that_exist(page: Path) -> None:
    """A renamed page or picture is noticed here."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []

"""`basert-fleet validate`: the same yes or no as `up`, and nothing started."""

from __future__ import annotations

from pathlib import Path

import pytest

from basert_fleet.cli.exits import Exit
from basert_fleet.cli.main import main

EXAMPLES = Path(__file__).parents[2] / "examples"
KEYS = f"keys: [{{name: a, tenant: a, sha256: '{'0' * 64}'}}]\n"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A keys file that is right."""
    path = tmp_path / "keys.yaml"
    path.write_text(KEYS)
    return path


def test_a_right_file_is_told_with_what_it_would_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Pools, workers, memory, names and the start of the command line, on standard output."""
    file = EXAMPLES / "fleet.yaml"
    assert main(["validate", str(file)]) == Exit.OK
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        f"{file} is right:",
        "  qwen: 2 workers, 24Gi each, for Qwen/Qwen3.6-35B-A3B, qwen",
        "    basert-serve /Users/Shared/models/qwen3.6-35b-a3b-q4.base",
    ]
    assert err == ""


@pytest.mark.parametrize("is_there", [True, False])
def test_a_template_that_is_not_there_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    """A relative one is sought where the command was started; the file is right all the same."""
    folder = EXAMPLES.parent if is_there else tmp_path
    monkeypatch.chdir(folder)
    assert main(["validate", str(EXAMPLES / "rendered.yaml")]) == Exit.OK
    told = f"    chatTemplate.file {folder}/examples/rendered.jinja does not exist on this machine\n"
    assert (told in capsys.readouterr().out) is not is_there


def test_a_wrong_file_is_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is wrong goes to standard error, as `up` tells it."""
    file = tmp_path / "fleet.yaml"
    file.write_text("kind: Deployment\n")
    assert main(["validate", str(file)]) == Exit.USAGE
    assert capsys.readouterr() == (
        "",
        f'{file} is refused, 1 problem:\n{file}:1: kind: should be BasertPool, found "Deployment"\n',
    )


def test_the_keys_file_is_checked_too(keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A right one is told, a wrong one is status 2 whatever the fleet file is."""
    command = ["validate", str(EXAMPLES / "emulator.yaml"), "--keys-file", str(keys)]
    assert main(command) == Exit.OK
    out, _ = capsys.readouterr()
    assert "  emulated: 2 workers, for emulated, qwen\n" in out
    assert out.endswith(f"{keys} is right\n")
    keys.write_text("keys: 1\n")
    assert main(command) == Exit.USAGE
    assert f"{keys}:1: keys: should be a list, found a number" in capsys.readouterr().err


def test_both_files_are_told_at_once(keys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing fleet file does not hide what is wrong with the keys."""
    keys.unlink()
    assert main(["validate", str(tmp_path / "none.yaml"), "--keys-file", str(keys)]) == Exit.USAGE
    err = capsys.readouterr().err
    assert err.count("No such file or directory") == 2

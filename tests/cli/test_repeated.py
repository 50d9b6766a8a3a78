"""News that may come often: at once, and then at most once a minute."""

from __future__ import annotations

from basert_fleet.cli.repeated import TELL_AGAIN_SECONDS, Repeated


def test_it_is_told_at_once_and_then_once_a_minute_with_how_often() -> None:
    """Nothing is told twice, and nothing that happened is lost."""
    said: list[str] = []
    news = Repeated(lambda times: f"{times} times", said.append)
    news.look(1.0)
    news.happened()
    news.look(2.0)
    for _ in range(3):
        news.happened()
    news.look(2.0 + TELL_AGAIN_SECONDS - 0.1)
    assert said == ["1 times"]
    news.look(2.0 + TELL_AGAIN_SECONDS)
    news.look(3.0 + 2 * TELL_AGAIN_SECONDS)
    assert said == ["1 times", "3 times"]

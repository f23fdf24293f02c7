"""All that LiveServe's policies do at once: replies are held and cut, turns preloaded and called off, copies
fail. What is said is what transformers says to the same conversations, cut at the same tokens."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from antiphon.core.conversation import Item, TokensPart
from antiphon.core.facts import PlaybackReported, SpeechEnded, SpeechStarted, TurnAdvised
from antiphon.engine import copies
from antiphon.metrics.names import Metric
from exactness.conftest import World, user
from exactness.oracle import Expected
from exactness.talk import Said, Talk
from exactness.test_reference import check
from exactness.test_text import Link
from exactness.test_tiers import STAGES, small_pool
from fakes.world import HURRIED

pytestmark = pytest.mark.filterwarnings("ignore:Passing `repetition_penalty` with `inputs_embeds`")

TURNS = ([1, "And now?", "Thanks."], [3, "Thanks.", "Where?"], [4, "Go on.", "Why?"], [2, "Where?", "Go on."])
"""Of each person: a content with media, then words."""

HELD = "safe_s: 0.01, ahead_s: 0.02"
"""Less than a chunk of sound: a machine that is slower than speech holds replies too."""
NEVER = 1 << 30
"""Steps."""


class Person:
    """Talks turn by turn, at moments that a seed draws; some turns are begun and not said, some replies are
    cut while they are made, others after they were sent whole."""

    def __init__(self, name: str, turns: list, world: World, talk: Talk, seed: int) -> None:
        self.name, self.world, self.talk = name, world, talk
        self._turns, self._rng = turns, np.random.default_rng(seed)
        self._items: list[Item] = []
        self._turn = 0
        self._doing, self._steps = "listens", 0
        self.num_cut = self.num_false_starts = 0
        talk.open(name)

    @property
    def is_done(self) -> bool:
        return self._doing == "left"

    def step(self) -> None:
        self._steps -= 1
        said = self.talk.said.get(self._response)
        if self._doing == "hears":
            assert said is not None
            if said.end is not None:
                self._heard(said)
            elif self._steps <= 0 and len(said.codes) > 1:
                self._break_in(said)
        elif self._steps <= 0:
            self._go_on()

    @property
    def _response(self) -> str:
        return f"{self.name}-{self._turn}"

    def _go_on(self) -> None:
        if self._doing == "listens":
            self.talk.tell(
                *([TurnAdvised(self.name)] if self._rng.random() < 0.3 else []), SpeechStarted(self.name)
            )
            self._wait("speaks", 8)
        elif self._rng.random() < 0.25:
            self.num_false_starts += 1
            self.talk.tell(SpeechEnded(self.name))
            self._wait("listens", 12)
        else:
            content = self._turns[self._turn]
            content = self.world.contents[content] if isinstance(content, int) else content
            self._items.append(user(content, f"user-{self._turn}"))
            self.talk.tell(SpeechEnded(self.name))
            self.talk.add(self.name, self._items[-1])
            self.talk.ask(self.name, self._response)
            self.talk.said[self._response] = Said()
            self._wait("hears", 60)
            if self._rng.random() < 0.6:
                self._steps = NEVER

    def _break_in(self, said: Said) -> None:
        """What was made so far is the beginning of what would have been said."""
        self.num_cut += 1
        kept = int(self._rng.integers(0, len(said.text) + 1))
        self.talk.tell(SpeechStarted(self.name), PlaybackReported(self.name, self._response, 0.08))
        self.talk.cancel(self.name, self._response, kept)
        while said.end is None:
            self.talk.step()
        begins(said, self._expected())
        self._remember(said, kept)
        self._wait("speaks", 8)

    def _heard(self, said: Said) -> None:
        check(said, self._expected(), self.world.eos)
        if said.text and self._rng.random() < 0.5:
            self.num_cut += 1
            kept = int(self._rng.integers(1, len(said.text) + 1))
            self.talk.cut(self.name, f"reply-{self._response}", kept)
            self._remember(said, kept)
        else:
            sessions = self.talk.driver.node._orchestrator._sessions
            self._remember(said, None, sessions.record(self.name).items[-1])
        self._wait("listens", 12)

    def _remember(self, said: Said, kept: int | None, whole: Item | None = None) -> None:
        if whole is not None:
            self._items.append(whole)
        elif kept:
            part = TokensPart(tuple(said.text[:kept]))
            self._items.append(Item(f"reply-{self._response}", "assistant", (part,)))
        self._turn += 1

    def _expected(self) -> Expected:
        return self.world.expect(tuple(self._items))

    def _wait(self, doing: str, most_steps: int) -> None:
        is_over = doing != "hears" and self._turn == len(self._turns)
        self._doing = "left" if is_over else doing
        self._steps = int(self._rng.integers(1, most_steps))


def begins(said: Said, expected: Expected) -> None:
    assert said.end is not None
    assert said.end.status in ("cancelled", "completed", "incomplete")
    assert said.text == expected.text[: len(said.text)].tolist()
    assert said.codes == expected.codes[: len(said.codes)].tolist()
    np.testing.assert_allclose(said.wav, expected.wav[: len(said.wav)], atol=2e-7)


@pytest.mark.parametrize(
    ("preset", "seed"),
    [
        ("hurried", 0),
        *(pytest.param("hurried", seed, marks=pytest.mark.slow) for seed in range(1, 6)),
        pytest.param("liveserve", 0, marks=pytest.mark.slow),
    ],
)
def test_all_at_once(
    world: World, preset: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`hurried`: the preset that ships with shorter leads, so that replies of these lengths are held."""
    path = tmp_path / "held.yaml"
    path.write_text(Path(HURRIED).read_text().replace("safe_s: 0.08, ahead_s: 0.16", HELD))
    chosen = preset if preset == "liveserve" else str(path)
    talk = small_pool(world, 2, depth=1, preset=chosen, is_paced=True, num_blocks=12)
    link = Link(seed, bytes_per_s=4e6, share_failing=1 / 7)
    monkeypatch.setattr(copies, "copy_runs", link.copy_runs)
    people = [Person(str(at), turns, world, talk, 10 * seed + at) for at, turns in enumerate(TURNS)]
    while not all(person.is_done for person in people):
        for person in people:
            if not person.is_done:
                person.step()
        if not talk.step():
            time.sleep(0.005)
    talk.close(*(person.name for person in people))
    talk.run()
    talk.check_all_free()
    counts = dict[str, int]()
    for (_, _, event), count in talk.driver.node.guard.events.items():
        counts[event] = counts.get(event, 0) + count
    stats = talk.driver.stats()
    assert sum(person.num_cut for person in people) > 3
    assert sum(person.num_false_starts for person in people) > 0
    assert preset == "liveserve" or counts["held"] > 3
    assert counts["preload_begun"] + counts["preload_partial"] > 0
    assert link.num_failed > 2
    assert all(stats[Metric.KV_BLOCKS_RELOADED.of(stage)] > 0 for stage in STAGES)

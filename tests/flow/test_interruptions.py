"""Speech over a reply, wherever that reply is: one step ends it in every stage, and the next turn goes on
from what was heard."""

from __future__ import annotations

import pytest

from antiphon.core.conversation import TokensPart
from antiphon.core.facts import Fact, ItemAdded, ItemCut, ResponseCancelled, SpeechEnded, SpeechStarted
from antiphon.core.plans import ArStep, CodecStep, Decision, DropPayload, Handoff, Order
from fakes import toy
from fakes.world import World, toy_config
from flow.test_turns import DEPTHS, ROOMY, ask, finish, talk, user


class Watch:
    """Keeps every decision, and the requests that each one works for. A hand-off that the same decision drops
    again, for facts that came together, is no work."""

    has_stopped = False

    def __init__(self) -> None:
        self.decisions: list[Decision] = []
        self.worked_for: list[set[int]] = []
        self._rows: dict[tuple[str, int], int] = {}

    def write(self, now: float, facts: list[Fact], decision: Decision) -> None:
        self.decisions.append(decision)
        requests = {request for order in decision.orders for request in self._requests(order)}
        dropped = {order.request for order in decision.orders if isinstance(order, DropPayload)}
        handed = {order.request for order in decision.orders if isinstance(order, Handoff)}
        self.worked_for.append(requests | (handed - dropped))

    def _requests(self, order: Order) -> set[int]:
        match order:
            case ArStep():
                self._rows.update({(order.stage, join.row): join.request for join in order.joins})
                return {self._rows[order.stage, row] for row in order.rows.tolist()}
            case CodecStep():
                return set(order.requests.tolist())
            case _:
                return set()


@DEPTHS
@pytest.mark.parametrize("lags", [False, True])
@pytest.mark.parametrize("turns", range(1, 26, 2))
def test_no_decision_after_the_cancel_works_for_the_reply(depth: int, lags: bool, turns: int) -> None:
    """The cancel may come while encoders, thinker, talker and vocoder have steps in flight for it."""
    watch = Watch()
    world = World(toy_config(**ROOMY), depth, recorder=watch, lags=lags)
    for number in range(3):
        talk(world, f"s{number}", user("u", f"hello number {number}", toy.tone(number)))
        ask(world, f"s{number}", f"r{number}")
    for _ in range(turns):
        world.turn()
    heard = world.responses["s1", "r1"]
    was_over = heard.end is not None
    before = len(watch.worked_for)
    world.send(SpeechStarted("s1"), ResponseCancelled("s1", "r1", "turn_detected", keep_tokens=2))
    world.turn()
    assert heard.end is not None, "the cancel's own decision ends it"
    said, sounded = len(heard.text), len(heard.audio)
    world.send(SpeechEnded("s1"))
    world.run()
    assert not any(2 in requests for requests in watch.worked_for[before:])
    assert any(watch.worked_for[before:]), "the others go on"
    assert (len(heard.text), len(heard.audio)) == (said, sounded)
    if not was_over:
        assert (heard.end.status, heard.end.reason) == ("cancelled", "turn_detected")
    for name in ("r0", "r2"):
        other = world.responses[f"s{name[1]}", name]
        assert other.end is not None
        assert other.end.status in ("completed", "incomplete")
    finish(world)


@DEPTHS
@pytest.mark.parametrize("keep", [0, 1, 3])
def test_the_next_turn_goes_on_from_what_was_heard(depth: int, keep: int) -> None:
    watch = Watch()
    world = World(toy_config(**ROOMY), depth, recorder=watch)
    talk(world, "s", user("u1", "say more"))
    first = ask(world, "s", "r1")
    while len(first.text) < 4 and first.end is None:
        world.turn()
    assert first.end is None
    world.send(ResponseCancelled("s", "r1", "turn_detected", keep_tokens=keep))
    world.run()
    world.send(ItemAdded("s", user("u2", "stop")))
    ask(world, "s", "r2")
    finish(world)
    second = world.responses["s", "r2"]
    heard = TokensPart(tuple(first.text[:keep])) if keep else None
    rendered = [item.parts[0] for item in _items(watch, 2) if item.role == "assistant"]
    assert rendered == ([heard] if heard else [])
    assert second.end is not None
    # the KV of what was heard is used again, and nothing of what was not
    known = len(first.prompts["thinker"].token_ids)
    assert second.end.usage.cached_tokens <= known + keep
    assert not keep or second.end.usage.cached_tokens > 0


def test_a_completed_reply_is_cut_in_either_direction_until_the_next_prompt() -> None:
    watch = Watch()
    world = World(toy_config(**ROOMY), recorder=watch)
    talk(world, "s", user("u1", "tell me something long"))
    first = ask(world, "s", "r1")
    world.run()
    assert len(first.text) >= 3
    for keep in (1, 3, 2):
        world.send(ItemCut("s", "reply-r1", keep))
    world.send(ItemAdded("s", user("u2", "and then")))
    ask(world, "s", "r2")
    finish(world)
    (reply,) = [item.parts[0] for item in _items(watch, 2) if item.role == "assistant"]
    assert reply == TokensPart(tuple(first.text[:2]))


def _items(watch: Watch, request: int) -> tuple:
    """The items that a request's prompt was rendered from."""
    orders = [order for decision in watch.decisions for order in decision.orders]
    return next(o.items for o in orders if type(o).__name__ == "RenderPrompt" and o.request == request)

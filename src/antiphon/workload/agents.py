"""Work nobody listens to: single best-effort calls, and graphs of calls that agents make (SYMPHONY §4.4)."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, Tag, model_validator

from antiphon.workload.arrivals import Arrivals
from antiphon.workload.laws import Constant, Fitted, Law, NotNegative, Spec, one_of


class Call(Spec):
    """One request: a prompt of `words` words, at most `max_output_tokens` back, sent `tool_s` after what it
    waits for is over (the run time of a tool)."""

    words: Law = Fitted(fitted="azure_code_input_words")
    max_output_tokens: Law = Fitted(fitted="azure_code_output_tokens")
    tool_s: Law = Constant(constant=0)


class NamedCall(Call):
    """A call of an explicit graph. `after`: names of earlier calls that must be over first."""

    after: tuple[str, ...] = ()


class ChainOf(Spec):
    steps: Law
    call: Call = Call()


class Chain(Spec):
    """Calls one after another."""

    chain: ChainOf


class MapReduceOf(Spec):
    """`width` calls at once after the `split`, and one that waits for them all."""

    width: Law
    split: Call = Call()
    map: Call = Call()
    reduce: Call = Call()


class MapReduce(Spec):
    """Fan-out and fan-in."""

    map_reduce: MapReduceOf


class Explicit(Spec):
    """Calls by name, in an order in which each waits for earlier ones only."""

    calls: Annotated[dict[str, NamedCall], Field(min_length=1)]

    @model_validator(mode="after")
    def check(self) -> Self:
        seen: list[str] = []
        for name, call in self.calls.items():
            for earlier in call.after:
                if earlier not in seen:
                    raise ValueError(
                        f"{name} is after {earlier!r}, which is not one of the calls before it: {seen}"
                    )
            seen.append(name)
        return self


Graph = Annotated[
    Annotated[Chain, Tag("chain")]
    | Annotated[MapReduce, Tag("map_reduce")]
    | Annotated[Explicit, Tag("calls")],
    one_of("a graph of calls", ("chain", "map_reduce", "calls")),
]


class Jobs(Spec):
    """Best-effort calls, one a job. With `arrivals` of their own they come beside the load; without, they
    share its arrivals by `share`. rate: `auto`, a simulated client says so with each request, as it may over
    HTTP: no person reads the text."""

    share: NotNegative = 1.0
    arrivals: Arrivals | None = None
    tier: Literal["latency", "best_effort"] = "best_effort"
    rate: Literal["auto"] | None = None
    call: Call = Call()
    instructions: str = ""


class Agents(Spec):
    """Agents that work through a graph of calls; arrivals and `rate` as for jobs."""

    share: NotNegative = 1.0
    arrivals: Arrivals | None = None
    tier: Literal["latency", "best_effort"] = "best_effort"
    rate: Literal["auto"] | None = None
    graph: Graph
    instructions: str = ""


def laid_out(graph: Graph, width: int) -> list[tuple[Call, tuple[int, ...]]]:
    """The calls in order, each with the indices of those it waits for. `width`: how long a chain is, or how
    many calls fan out; an explicit graph has its own."""
    if isinstance(graph, Chain):
        return [(graph.chain.call, (index - 1,) if index else ()) for index in range(width)]
    if isinstance(graph, MapReduce):
        fan = [(graph.map_reduce.map, (0,)) for _ in range(width)]
        last = (graph.map_reduce.reduce, tuple(range(1, width + 1)))
        return [(graph.map_reduce.split, ()), *fan, last]
    order = list(graph.calls)
    return [(call, tuple(order.index(name) for name in call.after)) for call in graph.calls.values()]


def width_law(graph: Graph) -> Law | None:
    """The law of a graph's size, where it has one."""
    if isinstance(graph, Chain):
        return graph.chain.steps
    return graph.map_reduce.width if isinstance(graph, MapReduce) else None

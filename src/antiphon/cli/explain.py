"""`antiphon explain`: one session's story, from a record."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from antiphon.cli.options import RecordPreset
from antiphon.cli.shared import console, fail, warn_of_cut
from antiphon.core.errors import AntiphonError, ConfigError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from antiphon.assembly.story import Event, Spent, Story

SHOWN_NAMES = 8
"""Of sessions or responses that an error lists."""


def explain(
    record: Annotated[
        Path,
        typer.Argument(help="File written by `antiphon serve --record` or `antiphon simulate --record`."),
    ],
    session: Annotated[str, typer.Option(help="Whose story; by default a table of all sessions.")] = "",
    response: Annotated[
        str, typer.Option(help="Only this response of the session, and what led to it.")
    ] = "",
    preset: RecordPreset = "",
) -> None:
    """Tell what happened to a session, when, and why: waits, preemptions, its KV, first audio, gaps, cuts."""
    try:
        if response and not session:
            raise ConfigError("--response: name its --session too")
        stories = _stories(record, preset, session)
        if not session:
            if stories:
                _print_whole(sessions_table(stories.values()))
            else:
                console.print(f"{record}: no session was opened", soft_wrap=True)
            return
        story = stories[session]
        if response and response not in story.responses:
            raise ConfigError(f"session {session} has {_unknown('response', response, story.responses)}")
        tell(story.about(response) if response else story.events)
    except (AntiphonError, OSError) as error:
        fail(error)


def _stories(record: Path, preset: str, session: str) -> dict[str, Story]:
    """By session; of one only if it is named. Raises ConfigError if there is none of that name."""
    from antiphon.assembly.storyteller import Storyteller
    from antiphon.core.config import NodeConfig
    from antiphon.runtime.record import replay

    tellers: list[Storyteller] = []

    def make(config: NodeConfig, depth: int) -> Storyteller:
        tellers.append(Storyteller(config, depth, session or None))
        return tellers[0]

    count, differences = replay(record, preset, make)
    warn_of_cut(record)
    teller = tellers[0]
    teller.finish()
    if session and session not in teller.stories:
        raise ConfigError(f"{record} has {_unknown('session', session, list(teller.sessions))}")
    if differences:
        console.print(
            f"[bold yellow]warning:[/] {len(differences)} of {count} decisions differ from the record, "
            f"first decision {differences[0].index}: from there on the story is not the run's",
            soft_wrap=True,
        )
    return teller.stories


def _unknown(kind: str, name: str, known: list[str]) -> str:
    shown = ", ".join(known[:SHOWN_NAMES]) or "none"
    more = f" and {len(known) - SHOWN_NAMES} more" if len(known) > SHOWN_NAMES else ""
    return f"no {kind} {name!r}{nearest(name, known) or '.'} There are {shown}{more}"


def _print_whole(table: Table) -> None:
    """With every name as it is, however narrow the terminal: names are copied into the next command."""
    out = Console(highlight=False)
    out.width = max(out.width, out.measure(table, options=out.options.update_width(10_000)).maximum)
    out.print(table)


def sessions_table(stories: Iterable[Story]) -> Table:
    """A row each, in the order in which they began."""
    from antiphon.assembly.story import What

    columns = (
        "turns",
        "TTFP s",
        "TTFT s",
        "waited s",
        "held s",
        "preempted",
        "evicted",
        "fetched",
        "cut",
        "unheard s",
    )
    caption = (
        "Medians: TTFP to the first audio, TTFT to the first text of replies without sound. "
        "Waited: for what was short. Held: far enough ahead. Evicted, fetched: KV blocks."
    )
    table = Table(box=SIMPLE, pad_edge=False, caption=caption)
    table.add_column("session", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for story in stories:
        first_audio = list(story.of(What.FIRST_AUDIO))
        sounding = {event.response for event in first_audio}
        first_text = [event for event in story.of(What.FIRST_TEXT) if event.response not in sounding]
        table.add_row(
            story.session,
            str(len(list(story.of(What.ASKED)))),
            _median_s(first_audio),
            _median_s(first_text),
            f"{story.waited_s:.3f}",
            f"{story.held_s:.3f}",
            str(len(list(story.of(What.PREEMPTED, What.PREEMPTED_KEEPING)))),
            f"{story.total('blocks', What.EVICTED, What.TAKEN):.0f}",
            f"{story.total('blocks', What.FETCHED, What.PRELOADED):.0f}",
            str(len(list(story.of(What.CUT)))),
            f"{story.total('unheard_s', What.CUT):.3f}",
        )
    return table


def _median_s(events: list[Event]) -> str:
    return f"{median(event.amounts['after_s'] for event in events):.3f}" if events else "–"


def tell(events: Iterable[Event]) -> None:
    """A line an event: seconds since the session began, whose it is, what, and why."""
    out, told = Console(highlight=False), list(events)
    names = [" ".join(one for one in (event.response, event.where) if one) for event in told]
    width = max(map(len, names), default=0)
    for event, name in zip(told, names, strict=True):
        words = event.words
        if event.times > 1:
            words += f", {event.times} times until {event.until_s:.3f} s"
        if event.reason:
            words += f" ({event.reason})"
        out.print(f"{event.at_s:9.3f}  {name:{width}}  {words}", markup=False, soft_wrap=True)
        for line in _waits(event.spent):
            out.print(f"{'':{width + 13}}  {line}", markup=False, soft_wrap=True)


def _waits(spent: Spent) -> list[str]:
    """The longest first."""
    longest = sorted(spent.items(), key=lambda item: -item[1])
    return [
        f"waited {seconds:.3f} s for {cause}" + (f" ({reason})" if reason else "")
        for (cause, reason), seconds in longest
        if seconds >= 0.0005
    ]

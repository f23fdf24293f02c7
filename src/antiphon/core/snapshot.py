"""What a node shows people who watch it. Nothing is decided by it: it is taken when somebody looks."""

from __future__ import annotations

import msgspec


class KvShown(msgspec.Struct, frozen=True):
    """What became of a session's KV at `at`, and why.

    what  a `stage.kv_asks.KvMove`; of a preload: preloaded | used | unused, or "" while none was ordered
    """

    what: str
    blocks: int
    why: str
    at: float


class StageShare(msgspec.Struct, frozen=True):
    """What a stage did for a session's last reply, what it does now, and what it holds for the session.

    done        tokens (a text decoder) or frames (a talker, a vocoder); None where it is not known
    audio_s     seconds of audio that these make, None for text
    kv_tokens   positions in the stage's KV, and the blocks that hold them; 0 of a stage without KV
    lead_s      seconds until the listener runs dry if the stage makes no more; None: not known
    state       "runs", "held", or what the reply waits for (`assembly.story.Cause`); "": nothing is owed
    label       its class, as the step policy names it; why, as the policy that decided says it
    until       of a reply that is held: until when, if nothing happens, on the clock of `Snapshot.at`
    moved       the last move of the session's KV, and the last preload of it
    """

    stage: str
    done: int | None
    audio_s: float | None
    kv_tokens: int
    kv_blocks: int
    lead_s: float | None = None
    state: str = ""
    label: str = ""
    why: str = ""
    until: float | None = None
    moved: KvShown | None = None
    preload: KvShown | None = None


class SessionShown(msgspec.Struct, frozen=True):
    """One session. Times in seconds; `generated_s` and `played_s` are of the reply heard last.

    phase      an `interaction.monitor.PersonPhase`
    source     how the cursor is known: acked | estimated | unknown
    waited_s   how long the first of a reply has been waited for, None if none is
    is_making  a response is open
    next_use_s seconds until its KV is needed again, by what people usually take; None: not known
    is_expected  its next turn is expected at any moment: its person speaks or types, or it was announced
    overdue_s  how much longer than usual its person takes already; 0: no longer
    """

    session: str
    phase: str
    source: str
    generated_s: float
    played_s: float
    ttfp_s: float | None
    waited_s: float | None
    is_making: bool
    stages: tuple[StageShare, ...]
    next_use_s: float | None = None
    is_expected: bool = False
    overdue_s: float = 0.0


class StepShown(msgspec.Struct, frozen=True):
    """A step that was decided.

    kind      encode | prefill | decode | mixed | vocode | speak (by a voice that reads text)
    tokens    positions run (frames of a vocoder, text of a voice, media of an encoder)
    sessions  whose rows were in it, each once
    """

    step: int
    at: float
    stage: str
    kind: str
    rows: int
    tokens: int
    reason: str
    sessions: tuple[str, ...]


class StageShown(msgspec.Struct, frozen=True):
    """A stage's queue and KV."""

    stage: str
    running: int
    waiting: int
    kv_blocks: int
    kv_blocks_free: int
    kv_blocks_idle: int


class PolicyShown(msgspec.Struct, frozen=True):
    """A policy of a unit (of several that share it, by their joint names; "" of the whole node).

    decisions  that it takes; `suspended` are those that the baseline takes for it, since it was too slow
    events     that it counted, or that were counted of it
    observed   of the decisions, those in which it is only observed: the baseline takes them
    """

    unit: str
    policy: str
    decisions: tuple[str, ...]
    suspended: tuple[str, ...]
    events: dict[str, int]
    observed: tuple[str, ...] = ()


class Snapshot(msgspec.Struct, frozen=True, tag=True):
    """A node at `at`, seconds of its monotonic clock.

    steps      decided since the last snapshot, oldest first
    num_steps  how many were decided meanwhile; more than `steps` where some were too many to keep
    makers     the stages that make a reply, as each session has them
    """

    at: float
    sessions: tuple[SessionShown, ...]
    stages: tuple[StageShown, ...]
    steps: tuple[StepShown, ...]
    num_steps: int
    policies: tuple[PolicyShown, ...] = ()
    makers: tuple[str, ...] = ()

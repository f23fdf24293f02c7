"""What the parts of one session have in common."""

from __future__ import annotations

from dataclasses import dataclass, field

from antiphon.core.ids import IdSource
from antiphon.wire.config import Scope, SessionConfig
from antiphon.wire.content import ItemReader
from antiphon.wire.conversation import Conversation
from antiphon.wire.limits import Limits


@dataclass(slots=True)
class Shared:
    """`config` is replaced by updates; the rest stays."""

    session: str
    conversation_id: str
    ids: IdSource
    scope: Scope
    limits: Limits
    reader: ItemReader
    config: SessionConfig
    conversation: Conversation = field(default_factory=Conversation)

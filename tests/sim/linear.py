"""Costs that a test can say: so many seconds a step, a token, a row."""

from __future__ import annotations

from math import inf

import msgspec

from antiphon.core.plans import ArStep, CodecStep, CopyBlocks, Step
from antiphon.latency.features import SpeechFeatures


class LinearCosts(msgspec.Struct, frozen=True):
    """Implements `sim.costs.CostModel`.

    launch_s     of any step
    token_s      per token that a decoder computes, of a prompt or a reply
    row_s        per row of a decoder's step
    prompt_s     of a decoder's step in which a row runs more than one token
    speech_s     of a step of the talker, beside all that
    frame_s      per frame that a vocoder decodes
    media_s      per medium that an encoder encodes
    bytes_per_s  of copies between the tiers of the KV, and between units; those take delay_s as well
    host_bytes_per_s  of all copies between the tiers together
    """

    launch_s: float = 0.004
    token_s: float = 1.5e-5
    row_s: float = 5e-5
    prompt_s: float = 0.0
    speech_s: float = 0.004
    frame_s: float = 3e-4
    media_s: float = 0.01
    bytes_per_s: float = 5e10
    host_bytes_per_s: float = inf
    delay_s: float = 0.0
    decide_s: float = 0.0

    def step_s(self, step: Step, stage: str) -> float:
        match step:
            case ArStep():
                speech_s = self.speech_s if stage == "talker" else 0.0
                work_s = self.token_s * int(step.counts.sum()) + self.row_s * len(step.rows)
                prompt_s = self.prompt_s if (step.counts > 1).any() else 0.0
                return self.launch_s + speech_s + prompt_s + work_s
            case CodecStep():
                return self.launch_s + self.frame_s * int(step.counts.sum())
            case _:
                return self.launch_s + self.media_s * len(step.media)

    def spoken_s(self, features: SpeechFeatures, stage: str) -> float:
        work_s = 0.01 * (features.phrases + features.phrase_s + features.windows)
        return self.launch_s + self.frame_s * features.streams + work_s

    def copy_s(self, order: CopyBlocks, num_bytes: float) -> float:
        return num_bytes / self.bytes_per_s

    def host_s(self, num_bytes: float) -> float:
        return num_bytes / self.host_bytes_per_s

    def send_s(self, num_bytes: float) -> float:
        return self.delay_s + num_bytes / self.bytes_per_s

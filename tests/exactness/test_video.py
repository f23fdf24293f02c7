"""Videos, silent and with sound: tokens, frames and waveform equal transformers'."""

from __future__ import annotations

import numpy as np
import pytest

from antiphon.core.plans import RenderPrompt
from exactness.conftest import World, user
from exactness.test_reference import check, watch_joins

pytestmark = pytest.mark.filterwarnings("ignore:Passing `repetition_penalty` with `inputs_embeds`")


def film(seed: int, frames: int, size: tuple[int, int], fps: float, sound_s: float = 0.0) -> dict:
    """Frames of `size` (height, width); pixels are resized to at least 256 x 512."""
    rng = np.random.default_rng(seed)
    part = {"video": rng.integers(0, 255, (frames, *size, 3), dtype=np.uint8), "fps": fps}
    return part | (tone(seed, sound_s) if sound_s else {})


def tone(seed: int, seconds: float) -> dict:
    rng = np.random.default_rng(seed)
    return {"audio": (0.1 * rng.standard_normal(int(16000 * seconds))).astype(np.float32)}


PICTURE = {"image": np.random.default_rng(5).integers(0, 255, (64, 96, 3), dtype=np.uint8)}
SCENES = {
    "odd frames at an odd rate": [film(2, 3, (90, 160), 3.0), "one two"],
    "beside a recording": [film(3, 2, (256, 512), 1.0), tone(3, 1.2), "and ", PICTURE, "?"],
    "sound outlasts the frames": ["Listen: ", film(4, 4, (256, 512), 2.0, 2.6), "What was it?"],
    "frames outlast the sound": [PICTURE, film(5, 5, (100, 200), 3.0, 0.5), "Who speaks?", tone(5, 1.1)],
}


@pytest.mark.parametrize("step_tokens", [4096, 45])
def test_beside_others_and_in_chunks(world: World, step_tokens: int) -> None:
    """Chunks end inside frames, and between a video's frames and its sound."""
    talk = world.talk(step_tokens=step_tokens)
    for name, content in SCENES.items():
        talk.open(name, user(content))
        talk.ask(name)
        talk.step()
    talk.open("text", world.item(0))
    talk.ask("text")
    talk.run()
    for name in SCENES:
        check(talk.said[name], world.expect((user(SCENES[name]),)), world.eos)
    check(talk.said["text"], world.expect_content(0), world.eos)
    talk.close("text", *SCENES)
    talk.run()
    talk.check_all_free()


@pytest.mark.parametrize("name", ["odd frames at an odd rate", "sound outlasts the frames"])
def test_the_next_turn_reuses_the_video(world: World, name: str) -> None:
    talk = world.talk()
    first, second = user(SCENES[name]), user("And then?", "second")
    talk.open("s", first)
    talk.ask("s", "one")
    talk.run()
    check(talk.said["one"], world.expect((first,)), world.eos)
    starts = watch_joins(talk)
    talk.add("s", second)
    talk.ask("s", "two")
    talk.run()
    reply = talk.driver.node._orchestrator._sessions.record("s").items[1]
    check(talk.said["two"], world.expect((first, reply, second)), world.eos)
    assert min(*starts[0], *starts[1]) > 128, "thinker and talker go on after the video"


def test_usage_counts_frames_as_images_and_sound_as_audio(world: World) -> None:
    talk = world.talk()
    talk.open("s", user(SCENES["frames outlast the sound"]))
    talk.ask("s", speech=False)
    talk.run()
    usage = talk.said["s"].end.usage
    assert usage.input_image_tokens == 3 * 128 + 6
    assert usage.input_audio_tokens == 7 + 15


def test_the_talker_counts_a_sounding_video_as_text_whatever_follows(world: World) -> None:
    """generate() doesn't tell the talker that videos have sound, but finds out where a picture follows; here
    what was said first keeps its place, or a later turn could not go on from an earlier one.
    """
    content = SCENES["sound outlasts the frames"]
    model = world.omni.engine.executors["talker"].runner._model
    prompts = []
    for more in ([], [PICTURE]):
        ready = world.omni.engine.prompter.render(RenderPrompt(0, (user([*content, *more]),), speech=True))
        prompts.append(ready.prompts["talker"])
    alone, _ = model.positions(prompts[0])
    assert (alone == np.arange(alone.shape[1])).all()
    followed, _ = model.positions(prompts[1])
    picture = prompts[1].spans[-1].start
    assert (followed[:, :picture] == np.arange(picture)).all()
    assert (followed[1] != followed[2]).any()

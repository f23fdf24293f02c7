"""The console's panels in a headless Chromium: what they show, and that it can be seen and reached."""

from __future__ import annotations

import msgspec
import pytest
from playwright.async_api import expect

from antiphon.core.snapshot import KvShown, PolicyShown
from server.browser import CHROMIUM, SENTENCE, OmniWire, opened
from server.conftest import eventually
from server.fake_engine import Script
from server.test_console import snapshot

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH or in CHROMIUM"),
    pytest.mark.slow,
]


async def test_panels_follow_the_feed() -> None:
    async with opened(Script(), viewport={"width": 1440, "height": 900}) as console:
        engine, page = console.server.engine, console.page
        await eventually(lambda: engine.viewer is not None)
        engine.viewer(msgspec.structs.replace(snapshot(0.5, count=0), steps=()))
        await expect(page.locator("#stage option")).to_have_count(4)  # who sees no session sees stages
        engine.viewer(snapshot(1.0, count=3))
        rows = page.locator("#sessions tbody tr")
        await expect(rows).to_have_count(3)
        await expect(rows.first.locator(".phase")).to_have_text("replying")
        track = rows.first.locator(".track")
        await expect(track).to_have_attribute("aria-label", "1.2 of 2.4 s heard (estimated); "
            "thinker at 3.3 s, talker at 3.2 s, code2wav at 2.4 s")  # fmt: skip
        engine.viewer(snapshot(1.5, count=1))
        await expect(rows).to_have_count(1)
        await expect(page.locator("#decisions li")).to_have_count(2)
        await page.select_option("#stage", "talker")
        await expect(page.locator("#decisions li")).to_have_count(0)
        await page.select_option("#stage", "")
        await page.click("#pause")
        engine.viewer(snapshot(2.0, count=5))
        await expect(rows).to_have_count(5)
        await expect(page.locator("#decisions li")).to_have_count(2)
        await page.click("#pause")
        await expect(page.locator("#decisions li")).to_have_count(3)


async def test_each_stage_says_why_and_kv_what_became_of_it() -> None:
    preload = KvShown("used", 12, "its next turn is coming", 8.0)
    moved = KvShown("evicted", 1, "needed last", 10.0)
    told = (
        {"lead_s": 1.4, "state": "runs", "label": "U2", "why": "well buffered: more than 1 s ahead"},
        {"lead_s": 4.6, "state": "held", "label": "U2", "why": "4.6 s ahead of the listener", "until": 11.25},
        {"lead_s": None, "state": "upstream input", "preload": preload, "moved": moved},
    )
    shown = snapshot(10.0)
    (session,) = shown.sessions
    stages = tuple(msgspec.structs.replace(a, **b) for a, b in zip(session.stages, told, strict=True))
    busy = msgspec.structs.replace(session, stages=stages, next_use_s=3.04)
    quiet = tuple(msgspec.structs.replace(stage, state="") for stage in stages)
    idle = msgspec.structs.replace(busy, stages=quiet, is_making=False, is_expected=True)
    moves = [
        "code2wav KV12 blocks preloaded, and read by the turn 2 s ago: its next turn is coming",
        "code2wav KV1 block left the device now: needed last",
    ]
    async with opened(Script(), viewport={"width": 1440, "height": 900}) as console:
        view = await console.viewer()
        view(msgspec.structs.replace(shown, sessions=(busy,)))
        await expect(console.page.locator(".reasons li")).to_have_text(
            [
                "thinkerU2dry in 1.4 sruns (well buffered: more than 1 s ahead)",
                "talkerU2dry in 4.6 sheld 1.3 s more: 4.6 s ahead of the listener",
                "code2wavwaits for upstream input",
                *moves,
            ]
        )
        view(msgspec.structs.replace(shown, sessions=(idle,)))
        await expect(console.page.locator(".reasons li")).to_have_text(
            ["next turnexpected in 3.0 s: the person speaks or types, or their turn was announced", *moves]
        )
        late = msgspec.structs.replace(idle, is_expected=False, overdue_s=7.5)
        view(msgspec.structs.replace(shown, sessions=(late,)))
        words = "next turnoverdue for 7.5 s: the longer the person is silent, the later it is expected"
        await expect(console.page.locator(".reasons li")).to_have_text([words, *moves])


@pytest.mark.parametrize("width", [992, 1100, 1280])
async def test_bars_of_sessions_have_one_length_and_nothing_sticks_out(width: int) -> None:
    async with opened(Script(), viewport={"width": width, "height": 800}) as console:
        page, engine = console.page, console.server.engine
        shown = snapshot(count=3)
        short, long, silent = shown.sessions
        sessions = (
            short,
            msgspec.structs.replace(long, source="acked", generated_s=123.4, played_s=111.1, waited_s=12.3),
            msgspec.structs.replace(silent, source="unknown", phase="interrupting"),
        )
        await eventually(lambda: engine.viewer is not None)
        assert engine.viewer is not None
        engine.viewer(msgspec.structs.replace(shown, sessions=sessions))
        await expect(page.locator(".track")).to_have_count(3)
        lengths = (
            """[...document.querySelectorAll(".track")].map((one) => one.getBoundingClientRect().width)"""
        )
        widths = await page.evaluate(lengths)
        assert min(widths) == max(widths) > 100
        for panel in ("#sessions-panel .scroll", "#pools", "#decisions"):
            hidden = "(panel) => (({ scrollWidth, clientWidth }) => scrollWidth - clientWidth)"
            assert await page.evaluate(f"{hidden}(document.querySelector(panel))", panel) <= 0
        await expect(page.locator(".far").nth(1)).to_have_text("111.1 of 123.4 s heard (reported)")
        await expect(page.locator("#pools li").first).to_have_text(
            "thinker1 running · 0 waiting8 of 100 blocks in use, 12 kept"
        )
        await expect(page.locator("#pools li").last).to_have_text(
            "talker1 running · 0 waiting4 of 100 blocks in use"
        )


async def test_policies_are_told_unit_by_unit_and_only_what_was_counted() -> None:
    async with opened(Script()) as console:
        page, engine = console.page, console.server.engine
        await expect(page.locator("#decisions")).to_be_empty()
        words = await page.evaluate(
            """getComputedStyle(document.querySelector("#decisions"), "::after").content"""
        )
        assert words == '"Nothing was decided since this page was opened."'
        counted = {"lead_unknown": 0, "held": 14, "observed_step_differed": 2}
        policies = (
            PolicyShown("thinker", "urgency", ("step", "pace"), (), counted),
            PolicyShown("thinker", "lru", ("evict",), ("evict",), {}),
            PolicyShown("talker", "fcfs", ("step",), (), {"left_out": 0}),
            PolicyShown("encoders+code2wav", "fcfs", ("step",), (), {"left_out": 0}),
            PolicyShown("", "sticky", ("replica",), (), {}),
        )
        await eventually(lambda: engine.viewer is not None)
        assert engine.viewer is not None
        engine.viewer(msgspec.structs.replace(snapshot(), policies=policies))
        await page.click("#policies summary")
        await expect(page.locator("#policies > ul > li > span")).to_have_text(
            ["thinker", "talker, encoders + code2wav", "all units"]
        )
        lines = [
            "step, pace: urgencyreply held, being far enough ahead ×14 · only observed: step differed ×2",
            "evict: lru; it was too slow, and the baseline decides evict",
            "step: fcfs",
            "replica: sticky",
        ]
        await expect(page.locator("#policies li li")).to_have_text(lines)
        await expect(page.locator("#since")).to_have_text(
            "Newest first, in seconds since this page was opened"
        )
        await expect(page.locator("#decisions .why")).to_have_text("prompts before replies")


async def test_a_voice_that_reads_is_told_in_tokens() -> None:
    async with opened(Script(), viewport={"width": 1440, "height": 900}) as console:
        view = await console.viewer()
        shown = snapshot()
        (step,) = shown.steps
        reads = msgspec.structs.replace(step, kind="speak", rows=1, tokens=7)
        goes_on = msgspec.structs.replace(step, kind="speak", rows=2, tokens=0)
        vocodes = msgspec.structs.replace(step, kind="vocode", rows=2, tokens=16)
        view(msgspec.structs.replace(shown, steps=(reads, goes_on, vocodes), num_steps=3))
        sizes = ["2 rows · 16 frames", "2 rows", "1 row · 7 tokens"]
        await expect(console.page.locator("#decisions .size")).to_have_text(sizes)


async def test_times_stay_within_their_column() -> None:
    async with opened(Script(), viewport={"width": 1280, "height": 800}) as console:
        view = await console.viewer()
        (step,) = snapshot().steps
        steps = tuple(msgspec.structs.replace(step, at=at) for at in (0.0, 99.99, 115.57, 1234.5, 12345.6))
        view(msgspec.structs.replace(snapshot(12345.6), steps=steps, num_steps=5))
        times = console.page.locator("#decisions time")
        await expect(times).to_have_text(["12346 s", "1235 s", "115.6 s", "99.99 s", "0.00 s"])
        times_of = "[...document.querySelectorAll('#decisions time')]"
        wide = f"{times_of}.filter((one) => one.scrollWidth > one.clientWidth)"
        assert await console.page.evaluate(f"{wide}.length") == 0


async def test_kv_that_wraps_begins_at_one_edge() -> None:
    async with opened(Script(), viewport={"width": 1000, "height": 700}) as console:
        view = await console.viewer()
        shown = snapshot()
        (session,) = shown.sessions
        stages = tuple(msgspec.structs.replace(stage, kv_tokens=12345) for stage in session.stages)
        session = msgspec.structs.replace(session, stages=stages)
        view(msgspec.structs.replace(shown, sessions=(session,)))
        await expect(console.page.locator(".kv span")).to_have_count(2)
        edges = "[...document.querySelectorAll('.kv span')].map((one) => one.getBoundingClientRect())"
        first, second = await console.page.evaluate(f"{edges}.map(({{left, top}}) => [left, top])")
        assert first[0] == second[0]
        assert first[1] < second[1]


async def test_a_phone_shows_one_panel_at_a_time() -> None:
    phone = {"width": 390, "height": 844}
    async with opened(Script(SENTENCE), viewport=phone, color_scheme="dark", has_touch=True) as console:
        page, engine = console.page, console.server.engine
        await console.type("Hello " * 60)
        await eventually(lambda: engine.viewer is not None)
        engine.viewer(snapshot(count=8))
        await page.focus("#tab-talk")
        for panel in ("talk", "sessions", "decisions"):
            await expect(page.locator(f"#{panel}-panel")).to_be_visible()
            await expect(page.locator("main > section:visible")).to_have_count(1)
            assert await page.evaluate(WIDEST) <= 390
            await page.keyboard.press("ArrowRight")


async def test_the_list_of_policies_scrolls_and_the_page_does_not() -> None:
    async with opened(Script(SENTENCE), viewport={"width": 1280, "height": 700}) as console:
        page = console.page
        await page.click("#policies summary")
        many = """document.querySelector("#policies ul").innerHTML = "<li>thinker by fcfs</li>".repeat(60)"""
        await page.evaluate(many)
        assert await page.evaluate("document.documentElement.scrollHeight") == 700
        assert await page.evaluate("""document.querySelector("#policies ul").scrollHeight""") > 700
        bottom = await page.evaluate("""document.querySelector("#policies").getBoundingClientRect().bottom""")
        assert bottom < 700


async def test_the_smallest_phone_has_room_for_the_placeholder() -> None:
    async with opened(Script(SENTENCE), viewport={"width": 320, "height": 568}) as console:
        lines = """(() => {
            const text = document.querySelector("#text"), style = getComputedStyle(text);
            const inner = text.clientHeight - parseFloat(style.paddingTop) - parseFloat(style.paddingBottom);
            return inner / parseFloat(style.lineHeight);
        })()"""
        assert await console.page.evaluate(lines) == pytest.approx(1, abs=0.2)


WIDEST = """Math.max(document.documentElement.scrollWidth,
    ...[...document.querySelectorAll("body *")].filter((one) => !one.closest(".unseen, dialog, thead"))
        .map((one) => one.getBoundingClientRect().right))"""


async def test_every_control_is_reached_and_seen_by_keyboard() -> None:
    async with opened(Script(SENTENCE, audio_s=0.2), viewport={"width": 390, "height": 844}) as console:
        page = console.page
        await page.keyboard.press("/")
        await page.keyboard.type("By hand")
        reached = []
        for _ in range(12):
            await page.keyboard.press("Tab")
            reached.append(await page.evaluate("document.activeElement.id"))
            if reached[-1]:
                outline = await page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
                assert outline != "none" or reached[-1] == "text"
        assert {"open-settings", "tab-talk", "talk", "attach", "text", "send"} <= set(reached)
        await page.focus("#talk")
        await page.keyboard.press("/")
        await expect(page.locator("#text")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.locator(".user")).to_contain_text("By hand")


FAINT = """() => {
    const context = document.createElement("canvas").getContext("2d");
    const rgba = (colour) => {
        context.clearRect(0, 0, 1, 1);
        context.fillStyle = colour;
        context.fillRect(0, 0, 1, 1);
        return context.getImageData(0, 0, 1, 1).data;
    };
    const linear = (share) => share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    const weigh = (byte, weight) => weight * linear(byte / 255);
    const light = ([r, g, b]) => weigh(r, 0.2126) + weigh(g, 0.7152) + weigh(b, 0.0722);
    const ground = (one) => {
        const colour = rgba(getComputedStyle(one).backgroundColor);
        return colour[3] === 255 ? colour : ground(one.parentElement);
    };
    const ratios = [...document.querySelectorAll("body *")]
        .filter((one) => one.checkVisibility() && !one.closest(".unseen, :disabled"))
        .filter((one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()))
        .map((one) => [light(rgba(getComputedStyle(one).color)), light(ground(one)), one.outerHTML])
        .map(([a, b, html]) => [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), html]);
    return [ratios.length, ratios.filter(([ratio]) => ratio < 4.5)];
}"""
"""How many elements have text of their own, and those whose contrast is below WCAG 2 AA, by its formula."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_text_can_be_read(scheme: str) -> None:
    wire = OmniWire(3.0)
    wide = {"width": 1440, "height": 900}
    async with opened(Script(), wire=wire, viewport=wide, color_scheme=scheme) as console:
        phases = ("listening", "speaking", "waiting", "replying", "interrupting")
        shown = snapshot(count=len(phases))
        sessions = [
            msgspec.structs.replace(session, phase=phase, waited_s=0.4)
            for session, phase in zip(shown.sessions, phases, strict=True)
        ]
        view = await console.viewer()
        view(msgspec.structs.replace(shown, sessions=tuple(sessions)))
        await console.type("Hello")
        await console.state("replying")
        wire.say("error", error={"message": "Something is wrong.", "code": "x", "event_id": None})
        await expect(console.page.locator("#sessions tbody tr")).to_have_count(len(phases))
        count, faint = await console.page.evaluate(FAINT)
        assert count > 40
        assert not faint
        await console.page.keyboard.press("Escape")
        await expect(console.page.locator(".cut")).to_have_count(1)
        _, faint = await console.page.evaluate(FAINT)
        assert not faint

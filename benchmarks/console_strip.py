"""Pictures of a conversation in the console, side by side: an answer, one that is spoken over, one more.

    make serve
    python benchmarks/console_strip.py http://127.0.0.1:8000/ docs/conversation.png

Needs a Chromium (CHROMIUM, or on PATH), playwright and Pillow. The microphone hears the model's own voice.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import shutil
import sys
import urllib.request
from pathlib import Path

from PIL import Image
from playwright.async_api import Page, async_playwright

QUESTIONS = ("What is the capital of France?", "Tell me a short story about the sea.", "How do birds fly?")
SIZE = {"width": 400, "height": 640}
HEARD_S = 2.2
"""So much of the second answer is heard before it is spoken over."""
BETWEEN = 12
REPLY_MS = 60_000

MICROPHONE = """(() => {
    const context = new AudioContext({ sampleRate: 24000 });
    const ear = context.createMediaStreamDestination();
    navigator.mediaDevices.getUserMedia = async () => (await context.resume(), ear.stream);
    window.say = (base64) => {
        const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
        const samples = Float32Array.from(new Int16Array(bytes.buffer), (sample) => sample / 32768);
        const sound = new AudioBuffer({ length: samples.length, sampleRate: 24000 });
        sound.copyToChannel(samples, 0);
        const source = new AudioBufferSourceNode(context, { buffer: sound });
        source.connect(ear);
        return new Promise((resolve) => { source.onended = resolve; source.start(); });
    };
})()"""


def spoken(url: str, text: str) -> str:
    """The text in the model's voice: base64 of 24 kHz PCM."""
    body = json.dumps({"input": text, "response_format": "pcm", "voice": "default"}).encode()
    asked = urllib.request.Request(f"{url}v1/audio/speech", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked) as answer:
        return base64.b64encode(answer.read()).decode()


async def converse(page: Page, said: list[str]) -> list[bytes]:
    """While the first answer is heard; while the second is; once that was spoken over; at the end."""
    pictures: list[bytes] = []

    async def state(name: str) -> None:
        await page.wait_for_selector(f'#status[data-state="{name}"]', timeout=REPLY_MS)

    async def picture() -> None:
        pictures.append(await page.screenshot())

    await page.click("#talk")
    await page.evaluate("(it) => say(it)", said[0])
    await state("replying")
    await asyncio.sleep(0.8)
    await picture()
    await state("listening")
    await page.evaluate("(it) => say(it)", said[1])
    await state("replying")
    await asyncio.sleep(HEARD_S)
    await picture()
    speaking = asyncio.ensure_future(page.evaluate("(it) => say(it)", said[2]))
    await page.wait_for_selector(".assistant.cut", timeout=REPLY_MS)
    await speaking
    await picture()
    await state("replying")
    await state("listening")
    await picture()
    return pictures


async def main(url: str, out: Path) -> None:
    said = [spoken(url, text) for text in QUESTIONS]
    program = os.environ.get("CHROMIUM") or shutil.which("chromium")
    flags = ["--no-sandbox", "--use-fake-ui-for-media-stream", "--autoplay-policy=no-user-gesture-required"]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=flags)
        page = await browser.new_page(viewport=SIZE, device_scale_factor=1.5)  # type: ignore[arg-type]
        await page.add_init_script(MICROPHONE)
        await page.goto(url)
        await page.wait_for_selector('#status[data-state="ready"]')
        pictures = [Image.open(io.BytesIO(one)) for one in await converse(page, said)]
        await browser.close()
    width, height = pictures[0].size
    strip = Image.new("RGB", ((width + BETWEEN) * len(pictures) - BETWEEN, height), "white")
    for index, one in enumerate(pictures):
        strip.paste(one, (index * (width + BETWEEN), 0))
    strip.quantize(128, dither=Image.Dither.NONE).save(out, optimize=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))

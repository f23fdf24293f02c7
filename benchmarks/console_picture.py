"""A picture of the console while its page and two people beside it are answered.

    antiphon checkpoint demo checkpoints/demo --size small --if-missing
    antiphon serve checkpoints/demo --preset liveserve --kv-tokens 1008 --max-context-tokens 1008
    python benchmarks/console_picture.py http://127.0.0.1:8000/ docs/console.png

Needs a Chromium (CHROMIUM, or on PATH) and playwright.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path

from playwright.async_api import Page, async_playwright

QUESTIONS = ("Where shall I go in September?", "Is there a train?", "Tell me about the weather.")
"""The page's own is the last."""
SIZE = {"width": 1440, "height": 900}
APART_S = 0.4
HEARD_S = 2.5
"""So much of the page's reply is heard before the picture is taken."""
REPLY_MS = 60_000


async def ask(page: Page, text: str) -> None:
    """Typed."""
    await page.fill("#text", text)
    await page.press("#text", "Enter")


async def main(url: str, out: Path) -> None:
    program = os.environ.get("CHROMIUM") or shutil.which("chromium")
    flags = ["--no-sandbox", "--autoplay-policy=no-user-gesture-required"]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=flags)
        pages = [await browser.new_page(viewport=SIZE) for _ in QUESTIONS]  # type: ignore[arg-type]
        for page in pages:
            await page.goto(url)
            await page.wait_for_selector('#status[data-state="ready"]')
        for page, text in zip(pages, QUESTIONS, strict=True):
            await ask(page, text)
            await asyncio.sleep(APART_S)
        await pages[-1].wait_for_selector('#status[data-state="replying"]', timeout=REPLY_MS)
        await asyncio.sleep(HEARD_S)
        await pages[-1].screenshot(path=out)
        await browser.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))

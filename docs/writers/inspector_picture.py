"""Takes the picture of a page of `squelch inspect` in headless Chromium, for the docs.

    python -m docs.writers.inspector_picture runs/frozenlake '/group?step=1&group=000001-007' docs/inspector.png

The page is light, 1280 pixels wide and 760 high, or with `--whole` as high as it is.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

from benchmarks.inspector import served

SIZE = {"width": 1280, "height": 760}


def main() -> None:
    """Takes the picture of one page of a run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the run's folder, for example runs/frozenlake")
    parser.add_argument("page", help="the page's address after the host, for example /group?step=1&group=000001-007")
    parser.add_argument("out", type=Path, help="the PNG to write")
    parser.add_argument("--whole", action="store_true", help="the whole page, however high")
    args = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        parser.error("no chromium is installed; on Debian: apt-get install chromium")
    with served(args.run) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        answer = page.goto(server.address.rstrip("/") + args.page, wait_until="networkidle")
        if answer is None or not answer.ok:
            parser.error(f"{args.page} is not shown: {page.locator('main').inner_text()}")
        page.screenshot(path=args.out, full_page=args.whole)
        browser.close()


if __name__ == "__main__":
    main()

"""The README's picture: python examples/screenshot.py runs/NAME/report.html docs/images/report.png (needs chromium)."""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

page, picture = map(Path, sys.argv[1:])
options = webdriver.ChromeOptions()
options.binary_location = shutil.which("chromium") or sys.exit("chromium is not installed")
for argument in ("--headless=new", "--no-sandbox", "--hide-scrollbars", "--window-size=1100,950"):
    options.add_argument(argument)
with webdriver.Chrome(options, Service(shutil.which("chromedriver"))) as browser:
    browser.get(page.resolve().as_uri())
    WebDriverWait(browser, 20).until(lambda b: b.find_elements(By.CSS_SELECTOR, "#loss .main-svg"))
    shot = Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB")
shot.quantize(128).save(picture, optimize=True)
print(f"{picture}: {picture.stat().st_size / 1024:.0f} KiB")

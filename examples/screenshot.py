"""Pictures of a report (needs chromium), of its top or of one figure:

python examples/screenshot.py runs/NAME/report.html docs/images/report.png
python examples/screenshot.py runs/NAME/report.html docs/images/landscapes.png landscape
"""

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

page, picture = map(Path, sys.argv[1:3])
WEBGL = ("--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader")
options = webdriver.ChromeOptions()
options.binary_location = shutil.which("chromium") or sys.exit("chromium is not installed")
for argument in ("--headless=new", "--no-sandbox", "--hide-scrollbars", "--window-size=1100,1150", *WEBGL):
    options.add_argument(argument)
with webdriver.Chrome(options, Service(shutil.which("chromedriver"))) as browser:
    browser.get(page.resolve().as_uri())
    WebDriverWait(browser, 20).until(lambda b: b.find_elements(By.CSS_SELECTOR, "#loss .main-svg"))
    seen = (
        browser.find_element(By.ID, sys.argv[3]).screenshot_as_png if sys.argv[3:] else browser.get_screenshot_as_png()
    )
    shot = Image.open(io.BytesIO(seen)).convert("RGB")
shot.quantize(256, kmeans=1).save(picture, optimize=True)
print(f"{picture}: {picture.stat().st_size / 1024:.0f} KiB")

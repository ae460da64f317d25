"""Pictures of a report (needs chromium), of its top or of one figure, in a window of any width, light, dark or printed:

python examples/screenshot.py runs/NAME/report.html docs/images/report.png
python examples/screenshot.py runs/NAME/report.html docs/images/report-dark.png --theme dark --at generalisation
python examples/screenshot.py runs/NAME/report.html docs/images/landscapes.png --figure landscape
python examples/screenshot.py runs/NAME/report.html docs/images/report-phone.png --width 390 --height 844
"""

from __future__ import annotations

import argparse
import base64
import io
import shutil
import time
from pathlib import Path

from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

WEBGL = ("--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader")
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("page", type=Path)
parser.add_argument("picture", type=Path, help="a .png file, or a .pdf file for the printed page")
parser.add_argument("--width", type=int, default=1440)
parser.add_argument("--height", type=int, default=1000)
parser.add_argument("--theme", choices=("light", "dark"), default="light")
parser.add_argument("--at", default="", help="section or figure to scroll to")
parser.add_argument("--figure", help="show this figure only")
chosen = parser.parse_args()
options = webdriver.ChromeOptions()
options.binary_location = shutil.which("chromium") or parser.error("chromium is not installed")
for argument in ("--headless=new", "--no-sandbox", "--hide-scrollbars", *WEBGL):
    options.add_argument(argument)
with webdriver.Chrome(options, Service(shutil.which("chromedriver"))) as browser:
    size = {"width": chosen.width, "height": chosen.height, "deviceScaleFactor": 1, "mobile": chosen.width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(f"{chosen.page.resolve().as_uri()}#theme={chosen.theme}&at={chosen.figure or chosen.at}")
    WebDriverWait(browser, 60).until(lambda b: b.find_elements(By.CSS_SELECTOR, "#runs li"))
    time.sleep(5)
    if chosen.picture.suffix == ".pdf":
        printed = browser.execute_cdp_cmd(
            "Page.printToPDF", {"printBackground": True, "paperWidth": 8.27, "paperHeight": 11.69}
        )
        chosen.picture.write_bytes(base64.b64decode(printed["data"]))
    else:
        whole = not chosen.figure
        seen = (
            browser.get_screenshot_as_png() if whole else browser.find_element(By.ID, chosen.figure).screenshot_as_png
        )
        shot = Image.open(io.BytesIO(seen)).convert("RGB")
        shot.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=2).save(chosen.picture, optimize=True)
print(f"{chosen.picture}: {chosen.picture.stat().st_size / 1024:.0f} KiB")

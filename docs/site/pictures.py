"""Makes every picture of docs/pictures from real reports: ``python docs/site/pictures.py [NAME...]``.

Needs chromium with its driver, and the packages selenium and pillow. The controls need tests/plugins/dpspec_faulty.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"


@dataclass(frozen=True)
class Picture:
    """Part of a report on a spec, or on a folder of them: its top, a figure by the beginning of its title, or a part.

    ``part`` is an XPath, and ``marks`` are those of elements that get the numbers 1, 2, ...
    """

    spec: str
    figure: str = ""
    width: int = 1280
    height: int = 1000
    dark: bool = False
    internal: bool = False
    part: str = ""
    marks: tuple[str, ...] = ()


#: Shortens the name of this machine's platform.
_GENERAL = """
for (const part of document.querySelectorAll("dd"))
  part.textContent = part.textContent.replace(/Linux-[^ ,]+/, "Linux");
"""

#: Puts a number at the left of an element.
_MARK = """
const number = document.createElement("b");
number.textContent = arguments[1];
number.style.cssText = "position:absolute;z-index:9;width:22px;height:22px;border-radius:50%;text-align:center;" +
  "font:bold 14px/22px sans-serif;background:#b3460e;color:#fff";
const box = arguments[0].getBoundingClientRect();
number.style.left = `${Math.max(0, box.left + scrollX - 26)}px`;
number.style.top = `${box.top + scrollY}px`;
document.body.append(number);
"""


SHOWN = {
    "report.png": Picture("quickstart.yaml", height=1060),
    "report-phone.png": Picture("quickstart.yaml", width=400, height=860, dark=True),
    "control.png": Picture("controls/tenth-noise.yaml", height=560),
    "overview.png": Picture("controls", height=1180, dark=True),
    "tests-of-membership.png": Picture("quickstart.yaml", "Maximum power of membership inference"),
    "groups.png": Picture("quickstart.yaml", "Delta against epsilon"),
    "records.png": Picture("per-instance/digits.yaml", "Every audited record", internal=True),
    "training.png": Picture("per-instance/digits.yaml", "Contribution of a step", internal=True),
    "reconstruction.png": Picture("rero/digits.yaml", "Reconstruction: gamma"),
    "read-answer.png": Picture(
        "quickstart.yaml",
        height=760,
        marks=(
            "//p[@class='lead'][2]",
            "//*[@class='headline']",
            "(//section[@class='card'])[1]/h2",
            "(//section[@class='card'])[2]/*[name()='svg']",
            "//h2[starts-with(., 'What this does not cover')]",
        ),
    ),
    "read-claims.png": Picture(
        "quickstart.yaml",
        height=3000,
        part="//section[@id='claims']",
        marks=tuple(f"(//tbody)[1]/tr[{n}]" for n in (1, 2, 3, 4)),
    ),
    "read-conformance.png": Picture(
        "quickstart.yaml",
        height=6000,
        part="//section[h3[starts-with(., 'Conformance')]]",
        marks=("//section[h3[starts-with(., 'Conformance')]]//summary",),
    ),
    "read-provenance.png": Picture("quickstart.yaml", height=6000, part="//section[@aria-labelledby='provenance-h']"),
    "modelmix.png": Picture("modelmix/digits.yaml", "Epsilon at delta 0.0001 against threshold", internal=True),
}


def report(picture: Picture, folder: Path) -> Path:
    """The report of a picture's spec, made once."""
    name = f"{picture.spec.replace('/', '-')}{'-internal' * picture.internal}.html"
    page = folder / name
    if not page.exists():
        specs = folder / "specs"
        if not specs.exists():
            shutil.copytree(ROOT / "specs", specs)
        command = [sys.executable, "-m", "dpspec", "run", f"specs/{picture.spec}", "--report", f"html={page.name}"]
        subprocess.run(
            [*command, *["--internal"] * picture.internal], cwd=folder, check=True, stdout=subprocess.DEVNULL
        )
    return page


def browser(picture: Picture, folder: Path) -> Any:
    """A browser window of the picture's size and colours."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    colours = f"--blink-settings=preferredColorScheme={0 if picture.dark else 1}"
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--hide-scrollbars",
        f"--user-data-dir={folder / 'profile'}",
        colours,
    ):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    size = {"width": picture.width, "height": picture.height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    return driver


#: The pixels at the left of a part, which hold numbers.
_BESIDE = 30


def cropped(png: bytes, box: dict[str, float]) -> bytes:
    """The part of a screenshot of a whole page."""
    left, top = int(box["x"]) - _BESIDE, int(box["y"])
    part = Image.open(io.BytesIO(png)).crop((left, top, left + int(box["width"]) + _BESIDE, top + int(box["height"])))
    content = io.BytesIO()
    part.save(content, "PNG")
    return content.getvalue()


def taken(picture: Picture, folder: Path) -> bytes:
    """The picture as PNG, in 256 colours that are nearly its own."""
    driver = browser(picture, folder)
    try:
        driver.get(report(picture, folder).as_uri())
        driver.execute_script(_GENERAL)
        for number, path in enumerate(picture.marks, 1):
            driver.execute_script(_MARK, driver.find_element("xpath", path), number)
        if picture.part:
            png = cropped(driver.get_screenshot_as_png(), driver.find_element("xpath", picture.part).rect)
        elif not picture.figure:
            png = driver.get_screenshot_as_png()
        else:
            figures = driver.find_elements("tag name", "figure")
            (png, *_) = [f.screenshot_as_png for f in figures if f.text.startswith(picture.figure)]
    finally:
        driver.quit()
    small = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(256, method=Image.Quantize.MAXCOVERAGE).save(
        small, "PNG", optimize=True
    )
    return small.getvalue()


def main(names: list[str]) -> None:
    """Make the named pictures, or all."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in names or SHOWN:
            (PICTURES / name).write_bytes(taken(SHOWN[name], Path(folder)))
            print(PICTURES / name)


if __name__ == "__main__":
    main(sys.argv[1:])

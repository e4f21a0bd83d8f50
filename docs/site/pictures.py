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
    """Part of a report on a spec, or on a folder of them: its top, or the figure whose title begins so."""

    spec: str
    figure: str = ""
    width: int = 1280
    height: int = 1000
    dark: bool = False
    internal: bool = False


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
    "modelmix.png": Picture("modelmix/digits.yaml", "Epsilon at delta 0.0001 against threshold", internal=True),
}


def report(picture: Picture, folder: Path) -> Path:
    """The report of a picture's spec, made once."""
    name = f"{picture.spec.replace('/', '-')}{'-internal' * picture.internal}.html"
    page = folder / name
    if not page.exists():
        command = [sys.executable, "-m", "dpspec", "run", ROOT / "specs" / picture.spec, "--report", f"html={page}"]
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


def taken(picture: Picture, folder: Path) -> bytes:
    """The picture as PNG, in 256 colours that are nearly its own."""
    driver = browser(picture, folder)
    try:
        driver.get(report(picture, folder).as_uri())
        if not picture.figure:
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

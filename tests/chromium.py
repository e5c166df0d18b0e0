"""Where headless Chromium is, and the packages of npm that run in it: neither comes from pip."""

import shutil
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

_PACKAGES = Path(__file__).parent / "browser" / "node_modules"  # made by `make test`, see tests/browser/package.json
AXE = _PACKAGES / "axe-core" / "axe.min.js"
ONNXRUNTIME = _PACKAGES / "onnxruntime-web" / "dist"

"""The model card of a run: README.md, from the files of the run alone."""

import importlib.metadata
import json
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeGuard

from softtriple.errors import UserError, counted
from softtriple.files import write_text
from softtriple.metrics.report import Report, metric_rows
from softtriple.models import Encoder, Preprocess
from softtriple.progress import one_line
from softtriple.training.baseline import verdict
from softtriple.training.run import Run

GENERATED = "<!-- Written by softtriple. Remove this line to keep your own changes. -->"
_TASKS = {"image": "image-feature-extraction", "text": "sentence-similarity", "vector": "feature-extraction"}
_MOST_NAMES = 12  # classes that the card lists


def write_card(run: Run, path: Path, *, repo: str | None = None, licence: str | None = None) -> None:
    """Write the card of ``run`` to ``path``, unless there is one without the line `GENERATED`."""
    if not path.is_file() or GENERATED in path.read_text(encoding="utf-8", errors="replace"):
        write_text(path, model_card(run, repo=repo, licence=licence))


def model_card(run: Run, *, repo: str | None = None, licence: str | None = None) -> str:
    """The card of ``run`` as Markdown; ``repo`` is where it will be on the hub, ``licence`` that of the weights."""
    encoder, config = run.encoder, run.config
    name = _data_name(run)
    head = {
        "library_name": "softtriple",
        "pipeline_tag": _TASKS[encoder.takes],
        "tags": ["metric-learning", "embeddings", "retrieval", "softtriple"],
        **({"license": licence} if licence else {}),
    }
    loss = config.loss.name
    if config.loss.centers_per_class not in (1, "auto"):
        loss += f", {config.loss.centers_per_class} centres per class"
    parts = [
        "---\n" + "".join(f"{key}: {json.dumps(value)}\n" for key, value in head.items()) + "---",
        GENERATED,
        f"# {encoder.config.backbone} on {name}",
        f"An encoder from {encoder.takes}s to unit vectors of {encoder.dim} dimensions: the dot product of two is high "
        f"if they are of the same class. Trained with [softtriple](https://arxiv.org/abs/1909.05235) "
        f"{importlib.metadata.version('softtriple')} ({loss}).",
        "## Data\n\n" + _data(run, name),
        "## Results\n\n" + _results(run.report, run.baseline, next(iter(run.baselines), "")),
        _prefixes(run),
        _calibration(run),
        "## Intended use\n\nSearch by similarity among items like those it was trained on, including classes it has "
        "not seen. The results above are for the data above; measure on your own with `softtriple evaluate RUN --data "
        "DATA` before you rely on it. It was not made to identify people, and its mistakes are those of its data.",
        "## Licence\n\n" + _licence(licence),
        "## Use\n\n" + _usage(encoder, repo),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _data_name(run: Run) -> str:
    name = _read(run, "data.json").get("name") or run.config.dataset.partition(":")[0] or "data in memory"
    return _plain(str(name))


def _read(run: Run, name: str) -> dict[str, Any]:
    """The object in a JSON file of the run; {} if there is no such file."""
    file = None if run.directory is None else run.directory.path / name
    if file is None or not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{file}: not JSON ({error})") from error
    return content if isinstance(content, dict) else {}


def _data(run: Run, name: str) -> str:
    report, names = run.report, run.encoder.class_names
    listed = ", ".join(_plain(one) for one in names[:_MOST_NAMES]) + (", …" if len(names) > _MOST_NAMES else "")
    same = "the classes trained on" if report.accuracy is not None else "classes that were not trained on"
    text = f"Trained on {counted(len(names), 'class')} of {name}: {listed}.\n\nEvaluated on "
    text += f"{counted(report.num_queries, 'query')} of {counted(report.num_classes, 'class')} against "
    text += f"{counted(report.num_gallery, 'item')}: {same}."
    return text + (" The data set lacked some of its items." if report.incomplete else "")


def _results(report: Report, baseline: Report | None, baseline_name: str) -> str:
    untrained = {} if baseline is None else {name: share for _, name, share in metric_rows(baseline)}
    columns = ["metric, in per cent", "trained", "95 % interval"] + ([_plain(baseline_name)] if untrained else [])
    lines = [columns, ["---"] * len(columns)]
    for title, name, share in metric_rows(report):
        low, high = report.intervals.get(name, (None, None))
        line = [
            title,
            f"{100 * share:.1f}",
            "" if low is None or high is None else f"{100 * low:.1f} to {100 * high:.1f}",
        ]
        lines.append(line + ([f"{100 * untrained[name]:.1f}" if name in untrained else ""] if untrained else []))
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    text += "\n\nIntervals are over the choice of test classes."
    if baseline is not None:
        text += f" {_plain(baseline_name)[:1].upper()}{_plain(baseline_name)[1:]}: the same items without training."
        with suppress(UserError):  # not measured on the same classes
            text += f" {warning}" if (warning := verdict(baseline, report)) is not None else ""
    return text


def _prefixes(run: Run) -> str:
    """The metrics of truncated embeddings, if several widths were trained."""
    if not run.prefixes:
        return ""
    lines = "".join(
        f"| {width} | {100 * report.recall[1]:.1f} | {100 * report.map_at_r:.1f} |\n"
        for width, report in {**run.prefixes, run.encoder.dim: run.report}.items()
    )
    start = "Embeddings can be truncated: `encoder.truncated(dim)`."
    return f"{start}\n\n| dim | Recall@1 | MAP@R |\n| --- | --- | --- |\n{lines}".rstrip()


def _calibration(run: Run) -> str:
    """The numbers in calibration.json, if the run is calibrated."""
    content = _read(run, "calibration.json")
    lines = []
    for key, value in content.items():
        if isinstance(value, int | float):
            around = content.get(f"{key}_interval")
            interval = f" ({' to '.join(f'{bound:.4g}' for bound in around)})" if _is_interval(around) else ""
            lines.append(f"| {_plain(key.replace('_', ' '))} | {value:.4g}{interval} |\n")
    if not lines:
        return ""
    return (
        f"## Calibration\n\n| from calibration.json | value (95 % interval) |\n| --- | --- |\n{''.join(lines)}".rstrip()
    )


def _is_interval(value: Any) -> TypeGuard[list[float]]:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(bound, int | float) for bound in value)


def _licence(licence: str | None) -> str:
    weights = f"Weights: {licence}." if licence else "No licence has been chosen for these weights."
    return f"{weights} The licences of the data and of the network's published weights also apply."


def _usage(encoder: Encoder, repo: str | None) -> str:
    source = repo or "RUN"
    item = {"image": '"photo.jpg"', "text": '"a text"', "vector": "[0.0] * " + str(encoder.config.in_features)}
    text = f"""```python
import softtriple as st

encoder = st.Encoder.from_pretrained({json.dumps(source)})
vectors = encoder.embed([{item[encoder.takes]}])  # one row per item
```

"""
    if repo is not None:
        text += f"`softtriple pull {repo} --out RUN` gets the whole run, with its centres and configuration. "
    text += "What is downloaded is data: loading it executes no code.\n\nWithout softtriple: "
    text += "`softtriple export RUN --out encoder.onnx` makes one file that onnxruntime runs; its metadata, under "
    return f"{text}`softtriple`, describe the input.\n\n{_onnx_usage(encoder)}".rstrip()


def _onnx_usage(encoder: Encoder) -> str:
    code = 'import numpy as np\nimport onnxruntime\n\nsession = onnxruntime.InferenceSession("encoder.onnx")\n'
    if isinstance(encoder.preprocess, Preprocess):
        view = encoder.preprocess.eval_view
        code = f"""import numpy as np
import onnxruntime
from PIL import Image, ImageOps

image = ImageOps.exif_transpose(Image.open("photo.jpg")).convert("RGB")
short = min(image.size)
image = image.resize([int({view.resize} * side / short) for side in image.size], Image.Resampling.BILINEAR)
left, top = round((image.width - {view.size}) / 2), round((image.height - {view.size}) / 2)
pixels = np.asarray(image.crop((left, top, left + {view.size}, top + {view.size})))
session = onnxruntime.InferenceSession("encoder.onnx")
(vectors,) = session.run(None, {{"images": pixels[None]}})
"""
    elif encoder.takes == "vector":
        code += f"features = np.zeros((1, {encoder.config.in_features}), dtype=np.float32)\n"
        code += '(vectors,) = session.run(None, {"features": features})\n'
    else:
        return ""
    return f"```python\n{code}```"


def _plain(text: str) -> str:
    """``text`` on one line, with the special characters of Markdown escaped."""
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>|#" else letter for letter in one_line(text))

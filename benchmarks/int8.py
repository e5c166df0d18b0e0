"""What 8-bit weights cost: Recall@1 and MAP@R of an exported encoder with and without them, on its test classes.

python benchmarks/int8.py RUN [ITEMS]
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime

from softtriple import evaluate
from softtriple.data import batches
from softtriple.interop.export import export_encoder
from softtriple.models import Preprocess
from softtriple.training import Run


def main(path: str, count: int) -> None:
    run = Run.load(path)
    encoder, test = run.encoder, run.benchmark().test
    rows = np.argsort(test.labels, kind="stable")[:count]  # whole classes, except for the last
    labels = test.labels[rows]
    view = encoder.preprocess.eval_view if isinstance(encoder.preprocess, Preprocess) else None
    vectors = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("float32", "int8"):
            file = Path(folder) / f"{name}.onnx"
            export_encoder(encoder, file, int8=name == "int8")
            session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
            parts = []
            for items, _ in batches(test, np.array_split(rows, max(1, len(rows) // 32)), view):
                inputs = encoder.prepare(items) if isinstance(items, list) else items
                parts.append(session.run(["vectors"], {session.get_inputs()[0].name: inputs.numpy()})[0])
            vectors[name] = np.concatenate(parts)
            report = evaluate(vectors[name], labels, kmeans_restarts=0)
            figures = {"weights": name, "bytes": file.stat().st_size, "items": len(rows)}
            figures |= {"recall_at_1": round(report.recall[1], 4), "map_at_r": round(report.map_at_r, 4)}
            print(json.dumps(figures))
    print(json.dumps({"mean_cosine": round(float((vectors["float32"] * vectors["int8"]).sum(axis=1).mean()), 4)}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10**9)

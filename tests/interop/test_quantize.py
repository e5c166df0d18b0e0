"""8-bit weights: which tensors, along which axis, and how exact."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from softtriple.interop.quantize import quantize_weights, round_to_int8


def test_rounding_is_exact_to_half_a_step_in_every_channel() -> None:
    random = np.random.default_rng(0)
    weights = random.standard_normal((5, 4, 3, 3)).astype(np.float32) * np.logspace(-3, 3, 5)[:, None, None, None]
    weights[2] = 0
    weights = weights.astype(np.float32)
    rounded, scales = round_to_int8(weights, 0)
    for channel in range(5):
        restored = rounded[channel].astype(np.float64) * scales[channel]
        assert np.abs(restored - weights[channel]).max() <= 0.5001 * scales[channel]
        assert np.abs(rounded[channel]).max() == (0 if channel == 2 else 127)


def test_layers_keep_their_meaning(tmp_path: Path) -> None:
    """A table, a product, both orders of Gemm, and a tensor too small to be worth it."""
    random = np.random.default_rng(0)
    shapes = {"table": (64, 32), "product": (32, 40), "across": (36, 40), "along": (36, 50), "small": (50, 2)}
    weights = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    nodes = [
        helper.make_node("Gather", ["table", "rows"], ["a"]),
        helper.make_node("MatMul", ["a", "product"], ["b"]),
        helper.make_node("Gemm", ["b", "across"], ["c"], transB=1),
        helper.make_node("Gemm", ["c", "along"], ["d"]),
        helper.make_node("MatMul", ["d", "small"], ["out"]),
    ]
    graph = helper.make_graph(
        nodes, "layers",
        [helper.make_tensor_value_info("rows", TensorProto.INT64, ["batch"])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["batch", 2])],
        [numpy_helper.from_array(values, name) for name, values in weights.items()],
    )  # fmt: skip
    file = tmp_path / "layers.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), file)
    quantize_weights(file)
    model = onnx.load(file)
    onnx.checker.check_model(model)
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    axes = {"table": 0, "product": 1, "across": 0, "along": 1}
    for name, axis in axes.items():
        assert stored[f"{name}.int8"].data_type == TensorProto.INT8
        assert list(stored[f"{name}.scale"].dims) == [shapes[name][axis]]
    assert stored["small"].data_type == TensorProto.FLOAT

    rows = np.arange(10)
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"rows": rows})
    exact = weights["table"][rows] @ weights["product"] @ weights["across"].T @ weights["along"] @ weights["small"]
    assert np.abs(found - exact).max() < 0.03 * np.abs(exact).max()

"""8-bit weights for an ONNX file: about a quarter of the size; computation stays in float32."""

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int8

SMALLEST = 1024  # elements of a tensor; smaller ones stay in float32
LARGEST = 127  # symmetric around zero, which is represented exactly


def quantize_weights(path: Path) -> None:
    """Convert the weights of layers and embedding tables in ``path`` to 8-bit integers with a scale per channel."""
    import onnx
    from onnx import helper, numpy_helper

    model = onnx.load(str(path))
    graph = model.graph
    axes = _channel_axes(graph)
    nodes = []
    for tensor in list(graph.initializer):
        axis = axes.get(tensor.name)
        if axis is None or tensor.data_type != onnx.TensorProto.FLOAT or np.prod(tensor.dims) < SMALLEST:
            continue
        rounded, scales = round_to_int8(numpy_helper.to_array(tensor), axis)
        names = [f"{tensor.name}.int8", f"{tensor.name}.scale"]
        graph.initializer.remove(tensor)
        graph.initializer.extend(
            numpy_helper.from_array(values, name) for values, name in zip((rounded, scales), names, strict=True)
        )
        nodes.append(helper.make_node("DequantizeLinear", names, [tensor.name], axis=axis))
    calculations = list(graph.node)
    del graph.node[:]
    graph.node.extend([*nodes, *calculations])
    onnx.save(model, str(path))


def round_to_int8(
    weights: Float32[np.ndarray, "..."], axis: int
) -> tuple[Int8[np.ndarray, "..."], Float32[np.ndarray, " channels"]]:
    """Weights as integers from -127 to 127, and the scale of each channel along ``axis``.

    Example:
        >>> rounded, scales = round_to_int8(np.array([[1.27, -0.5], [0.0, 0.0]], dtype=np.float32), axis=0)
        >>> rounded.tolist(), [round(float(scale), 4) for scale in scales]
        ([[127, -50], [0, 0]], [0.01, 1.0])
    """
    others = tuple(place for place in range(weights.ndim) if place != axis)
    largest = np.abs(weights).max(axis=others, keepdims=True)
    scales = np.where(largest > 0, largest / LARGEST, 1).astype(np.float32)
    return np.rint(weights / scales).astype(np.int8), scales.reshape(-1)


def _channel_axes(graph: Any) -> dict[str, int]:
    """The axis of the output channels of each layer's weight, and of the rows of each embedding table."""
    axes = {}
    for node in graph.node:
        options = {option.name: option.i for option in node.attribute}
        match node.op_type:
            case "Conv" | "ConvTranspose":
                axes[node.input[1]] = 0 if node.op_type == "Conv" else 1
            case "Gemm":
                axes[node.input[1]] = 0 if options.get("transB") else 1
            case "Gather":
                axes[node.input[0]] = 0
            case "MatMul":
                dims = {tensor.name: len(tensor.dims) for tensor in graph.initializer}
                if node.input[1] in dims:
                    axes[node.input[1]] = dims[node.input[1]] - 1
    return axes

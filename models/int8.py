"""Matrices in int8, without a text's result depending on its neighbours in a batch.

Weights are quantised per output channel, activations per token: each row of a matrix product has its own scale. ONNX
Runtime's own dynamic quantisation takes one scale for the whole tensor, so that a text's vector changes with the texts
that happen to share its batch (distances moved by up to 0.12); here a text has one vector, whatever its neighbours.
"""

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper


def quantise(model: onnx.ModelProto) -> onnx.ModelProto:
    """Replace every product with a constant matrix by an int8 one, and store the word table in half precision."""
    graph = model.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    nodes: list[NodeProto] = []
    added: list[TensorProto] = []
    replaced: set[str] = set()
    quantised: set[str] = set()

    def constant(name: str, value: NDArray[np.generic]) -> str:
        added.append(numpy_helper.from_array(value, name))
        return name

    constant("int8.one", np.array(1, np.float32))
    constant("int8.zero_point", np.array(128, np.uint8))
    constant("int8.top", np.array(127, np.float32))
    constant("int8.per_top", np.array(1 / 127, np.float32))
    constant("int8.tiny", np.array(1e-12, np.float32))

    def quantised_rows(x: str) -> tuple[str, str]:
        """The rows of x as uint8 around 128, and each row's scale; made once for all products that read x."""
        rows, scale = f"{x}.int8", f"{x}.scale"
        if x not in quantised:
            quantised.add(x)
            nodes.extend(
                [
                    helper.make_node("Abs", [x], [f"{x}.abs"]),
                    helper.make_node("ReduceMax", [f"{x}.abs"], [f"{x}.max"], axes=[-1], keepdims=1),
                    helper.make_node("Max", [f"{x}.max", "int8.tiny"], [f"{x}.top"]),
                    helper.make_node("Mul", [f"{x}.top", "int8.per_top"], [scale]),
                    helper.make_node("Div", ["int8.top", f"{x}.top"], [f"{x}.inverse"]),
                    helper.make_node("Mul", [x, f"{x}.inverse"], [f"{x}.scaled"]),
                    helper.make_node("QuantizeLinear", [f"{x}.scaled", "int8.one", "int8.zero_point"], [rows]),
                ]
            )
        return rows, scale

    for node in graph.node:
        weight = weights.get(node.input[1]) if node.op_type == "MatMul" else None
        if weight is not None:
            matrix = numpy_helper.to_array(weight)
            scales = np.abs(matrix).max(axis=0) / 127
            x, y = node.input[0], node.output[0]
            constant(f"{y}.weight", np.clip(np.round(matrix / scales), -127, 127).astype(np.int8))
            constant(f"{y}.weight_scale", scales.astype(np.float32))
            replaced.add(weight.name)
            rows, scale = quantised_rows(x)
            nodes.extend(
                [
                    helper.make_node("MatMulInteger", [rows, f"{y}.weight", "int8.zero_point"], [f"{y}.int32"]),
                    helper.make_node("Cast", [f"{y}.int32"], [f"{y}.float"], to=TensorProto.FLOAT),
                    helper.make_node("Mul", [f"{y}.float", f"{y}.weight_scale"], [f"{y}.columns"]),
                    helper.make_node("Mul", [f"{y}.columns", scale], [y]),
                ]
            )
        elif node.op_type == "Gather" and "word_embeddings" in node.input[0]:
            table = numpy_helper.to_array(weights[node.input[0]])
            constant(f"{node.input[0]}.half", table.astype(np.float16))
            replaced.add(node.input[0])
            half = f"{node.output[0]}.half"
            nodes.append(helper.make_node("Gather", [f"{node.input[0]}.half", node.input[1]], [half]))
            nodes.append(helper.make_node("Cast", [half], [node.output[0]], to=TensorProto.FLOAT))
        else:
            nodes.append(node)

    kept = [tensor for tensor in graph.initializer if tensor.name not in replaced]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend(kept + added)
    onnx.checker.check_model(model)
    return model

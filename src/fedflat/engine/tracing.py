"""Turns a function of tensors into a plain sequence of tensor operations, and on a GPU into a CUDA graph.

`trace_operations` removes vmap, gradients and Python from a function, and what it computes twice. `compile_operations`
compiles what is left for a GPU. `capture_cuda_graph` records the work of a function on a GPU, so that it is repeated
without work for the processor.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from itertools import takewhile
from threading import Thread
from typing import Any

import torch
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.fx import CodeGen
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _triton
from torch.utils._pytree import tree_leaves, tree_map_only

WARM_UP_STEPS = 3  # calls of a function before it is captured as a CUDA graph
_VIEWS = tuple(getattr(torch.ops.aten, name).default for name in ("view", "_unsafe_view", "expand", "permute"))


def trace_operations(function: Callable[..., Any], *inputs: Any) -> torch.fx.GraphModule:
    """Trace `function` into the plain tensor operations that it does, without vmap, grad and Python.

    Nothing is computed: tracing works on tensors without data.

    Args:
        function: a function of tensors (or tuples of tensors), which may write into its inputs.
        inputs: examples of its inputs; the traced function takes inputs of the same shapes.
    """
    without_data = FakeTensorMode(allow_non_fake_inputs=True)  # tensors that `function` contains keep their data
    with tracing(TracingContext(without_data)):
        examples = tree_map_only(Tensor, without_data.from_tensor, inputs)
        graph = make_fx(lambda *tensors: function(*tensors), tracing_mode="real")(*examples)
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        if node.args[0] is node.args[1]:  # a tensor that never changes would be copied onto itself
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    _drop_needless_operations(graph.graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def _drop_needless_operations(graph: torch.fx.Graph) -> None:
    """Do once what is done twice to the same tensors, and drop views that change nothing.

    A convolution and its gradients then share their matrix of patches, or their filters in the order of the kernels
    (kernels/lanes.py, launch.py). What comes after the first operation that writes stays as it is. Nothing is dropped
    if an operation writes into anything but the inputs of the graph.
    """
    calls = [node for node in graph.nodes if node.op == "call_function"]
    if any(_writes(node.target) and node.args[0].op != "placeholder" for node in calls):
        return
    first: dict[Any, Any] = {}
    for node in takewhile(lambda node: not _writes(node.target), calls):
        operation = (node.target, repr(node.args), repr(node.kwargs))
        kept = first.setdefault(operation, node.args[0] if _is_same_view(node) else node)
        if kept is not node:
            node.replace_all_uses_with(kept)
            graph.erase_node(node)


def _is_same_view(node: torch.fx.Node) -> bool:
    """Return whether a node is a view of a tensor with the shape and the strides that the tensor has."""
    if node.target not in _VIEWS or not isinstance(node.args[0], torch.fx.Node):
        return False
    old, new = node.args[0].meta.get("val"), node.meta.get("val")
    if not isinstance(old, Tensor) or not isinstance(new, Tensor):
        return False
    return old.shape == new.shape and old.stride() == new.stride()


def _writes(operation: Any) -> bool:
    """Return whether an operation changes one of its inputs."""
    return isinstance(operation, torch._ops.OpOverload) and operation._schema.is_mutable


@cache
def import_compiler_ahead() -> Thread:
    """Import torch's compiler, some 1,500 modules, in a thread of its own, while data are read and sent to a GPU."""
    thread = Thread(target=_import_compiler, daemon=True)
    thread.start()
    return thread


def _import_compiler() -> None:
    for name in ("torch._dynamo", "torch._inductor.standalone_compile", "torch._inductor.compile_fx"):
        import_module(name)
    import_module("torch._inductor.codecache").torch_key()  # a hash of torch's files, part of the key of its cache
    if _triton.has_triton():
        _triton.triton_hash_with_backend()  # of Triton's files; the compiler needs it, and it takes a third of a second
        folder = import_module("torch._inductor.runtime.cache_dir_utils").triton_cache_dir(torch.cuda.current_device())
        os.environ.setdefault("TRITON_CACHE_DIR", folder)  # the compiler sets it when it compiles; kernels are there


def start_compile_workers() -> None:
    """Start the processes that compile kernels, while a step is traced, because they take seconds to start."""
    from torch._inductor.async_compile import maybe_warm_pool

    maybe_warm_pool()


def compile_operations(graph: torch.fx.GraphModule, *inputs: Any) -> Callable[..., Any]:
    """Compile a traced function for the device of its inputs.

    What was compiled before, in any process, comes from torch's cache, whose key is the traced operations.
    `torch.compile` has that cache too, but first traces the operations a second time.

    Args:
        graph: what `trace_operations` returned; it is used up.
        inputs: examples of its inputs; the compiled function takes inputs of the same shapes and types.
    """
    from torch._inductor import standalone_compile

    constants = _constants_as_inputs(graph)
    flat = torch.fx.GraphModule(torch.nn.Module(), graph.graph)
    tensors = [*tree_leaves(inputs), *constants]
    compiled = standalone_compile(flat, tensors, dynamic_shapes="from_example_inputs")
    _end_compile_workers()
    return lambda *given: compiled(*tree_leaves(given), *constants)


def _end_compile_workers() -> None:
    """End the processes that the compiler started, without waiting: the end of the program would wait for them."""
    from torch._inductor import async_compile

    pools = [*async_compile._pool_set]
    async_compile.after_fork()  # forgets them: who compiles next starts new ones
    Thread(target=lambda: [pool.shutdown() for pool in pools], daemon=True).start()


def _constants_as_inputs(graph: torch.fx.GraphModule) -> list[Tensor]:
    """Make inputs, after all others, of the tensors that a graph contains, such as the data set, and return them.

    The compiler would copy constants into what it stores. Inputs and outputs of the graph become lists of tensors.
    """
    operations, added = graph.graph, dict[str, torch.fx.Node]()
    last = operations.find_nodes(op="placeholder")[-1]
    for node in list(operations.find_nodes(op="get_attr")):
        if node.target not in added:
            with operations.inserting_after(last):
                last = added[node.target] = operations.placeholder(f"constant{node.target}")
        node.replace_all_uses_with(added[node.target])
        operations.erase_node(node)
    operations.set_codegen(CodeGen())
    return [getattr(graph, name) for name in added]


def capture_cuda_graph(function: Callable[[], None]) -> Callable[[], None]:
    """Capture `function` as a CUDA graph and return a function that replays it.

    Args:
        function: works on tensors that stay at the same addresses on a GPU; it is called a few times to warm up.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP_STEPS):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay

"""A request with its open choices made, or refused."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.version import Version

from harness.errors import NotComparable, Refused, UsageError
from harness.layers import check_capture
from harness.recipe._types import RecipeRequest

_DTYPES = ("bfloat16", "float32")


@dataclass(frozen=True)
class Context:
    """A request with its open choices made; what the rules read.

    Attributes:
        request: The request.
        version: Release of the installed vLLM.
        dtype: Name of the resolved dtype.
        mla: Whether the engine will run latent attention.
        max_model_len: Tokens of the longest request.
    """

    request: RecipeRequest
    version: Version
    dtype: str
    mla: bool
    max_model_len: int

    @property
    def on_cpu(self) -> bool:
        """Whether the engine runs on CPU."""
        return self.request.platform.device == "cpu"


def decide(request: RecipeRequest) -> Context:
    """Make the open choices of a request.

    Raises:
        NotComparable: The installed vLLM is unknown.
        Refused: The engine would fail, hang or be wrong.
    """
    engine, model, platform = request.engine, request.model, request.platform
    if engine.vllm is None:
        raise NotComparable(
            "engine.version-unknown",
            expected="an installed vLLM whose release can be read",
            found="none",
            where="the engine's interpreter",
            next="harness doctor",
        )
    dtype = _dtype(request)
    tensor_parallel = request.tensor_parallel_size
    _refuse_unless(
        tensor_parallel >= 1 and model.num_heads % max(tensor_parallel, 1) == 0,
        "recipe.heads-not-divisible",
        f"a tensor parallel size that divides {model.num_heads} attention heads",
        str(tensor_parallel),
        next="choose another --tensor-parallel-size",
    )
    if platform.device == "cuda":
        _refuse_unless(
            tensor_parallel <= platform.gpus,
            "recipe.not-enough-gpus",
            f"at least {tensor_parallel} GPUs for tensor parallel size {tensor_parallel}",
            str(platform.gpus),
            next="harness doctor",
        )
    else:
        _refuse_unless(
            model.quantization in (None, "int4"),
            "recipe.quantization-on-cpu",
            "unquantised weights or INT4 experts on CPU",
            str(model.quantization),
            next="run this checkpoint on a GPU",
        )
    if request.capture != "none":
        check_layers(request)
    if request.capture == "native":
        check_native(request)
    return Context(
        request=request,
        version=engine.vllm,
        dtype=dtype,
        mla=_mla(request),
        max_model_len=_max_model_len(request),
    )


def _dtype(request: RecipeRequest) -> str:
    asked = request.dtype if request.dtype != "auto" else request.model.dtype
    dtype = asked.removeprefix("torch.")
    latent_on_gpu = request.model.is_mla and request.platform.device == "cuda"
    if latent_on_gpu and dtype == "float32":
        # Every MLA attention of vLLM 0.26 says "dtype not supported" of float32, a minute after
        # the start (run on an H200).
        _refuse_unless(
            request.dtype == "auto",
            "recipe.dtype",
            "bfloat16: no latent attention (MLA) of vLLM takes float32 on a GPU",
            dtype,
            next="use --dtype bfloat16, or compare in float32 on a CPU engine",
        )
        return "bfloat16"
    if request.dtype != "auto" and dtype not in _DTYPES:
        raise UsageError(
            "recipe.dtype",
            expected=f"auto, {' or '.join(_DTYPES)}",
            found=dtype,
            where="--dtype",
            next="leave it out to take the checkpoint's own",
        )
    _refuse_unless(
        dtype in _DTYPES,
        "recipe.dtype",
        "bfloat16 or float32: in float16 the DeepSeek decoder scales the residual stream, "
        "so captured rows would be off by that factor",
        dtype,
        next="use --dtype bfloat16 or --dtype float32",
    )
    return dtype


def check_layers(request: RecipeRequest) -> None:
    """Hold a request that captures to what every capture needs."""
    if request.layers is None or request.spool is None:
        raise ValueError("a capture needs layers and a spool")
    if request.layers.num_layers != request.model.num_layers:
        raise ValueError("the layers were resolved for another model")


def check_native(request: RecipeRequest) -> None:
    """Refuse what the release's native capture cannot do.

    Raises:
        NotComparable: The release is unknown.
        Refused: It cannot capture here, or not these depths.
    """
    engine = request.engine
    assert request.layers is not None
    check_capture(
        request.layers,
        capture="native",
        model_is_deepseek=_is_deepseek(request),
        engine_version=str(engine.vllm),
        captures_final_depth=engine.probes.get("captures_final_depth_deepseek"),
    )
    _refuse_unless(
        engine.probes.get("native_extract", True),
        "capture.native-absent",
        "a vLLM with the method extract_hidden_states",
        f"{engine.dist} {engine.vllm} without it",
        next="use a newer vLLM",
    )


def _is_deepseek(request: RecipeRequest) -> bool:
    """Say whether the decoder is vLLM's DeepSeek-V2 backbone."""
    name = request.model.architecture.lower()
    return "deepseek" in name or "kimi" in name


def _mla(request: RecipeRequest) -> bool:
    possible = request.model.is_mla and (
        request.platform.device == "cuda" or request.engine.has("cpu_mla")
    )
    if request.use_mla is None:
        return possible
    _refuse_unless(
        possible or not request.use_mla,
        "recipe.no-mla",
        "a model and a release with latent attention on this device",
        f"{request.model.architecture} on {request.platform.device}, vLLM {request.engine.vllm}",
        next="leave the choice to the recipe",
    )
    return request.use_mla


def _max_model_len(request: RecipeRequest) -> int:
    longest, limit = request.longest_prompt, request.max_model_len
    if limit is None:
        if longest is None:
            raise ValueError("one of longest_prompt and max_model_len is needed")
        limit = longest + 1
    _refuse_unless(
        longest is None or longest < limit,
        "recipe.max-model-len",
        f"max_model_len of at least {(longest or 0) + 1}: the longest prompt and one output token",
        str(limit),
        next="raise --max-model-len, or use --truncate",
    )
    known = request.model.max_position_embeddings
    _refuse_unless(
        limit <= known,
        "recipe.max-model-len",
        f"at most {known} tokens, the model's max_position_embeddings",
        str(limit),
        next="lower --max-model-len, or use --truncate",
    )
    return limit


def _refuse_unless(condition: bool, id: str, expected: str, found: str, *, next: str) -> None:
    if not condition:
        raise Refused(id, expected=expected, found=found, where="recipe", next=next)

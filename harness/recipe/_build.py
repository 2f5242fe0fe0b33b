"""From a request to a recipe: refusals first, then one line a setting."""

from __future__ import annotations

from harness.errors import NotComparable
from harness.recipe import _capture, _limits, _process
from harness.recipe._context import Context, decide
from harness.recipe._types import Recipe, RecipeRequest, Setting


def build(request: RecipeRequest) -> Recipe:
    """Decide every setting of an engine.

    Raises:
        NotComparable: The installed vLLM, or what it accepts, is unknown.
        Refused: The engine would fail, hang or be wrong; the failure says which and why.
    """
    context = decide(request)
    settings = (
        *_process.rules(context),
        *_limits.rules(context),
        *_capture.rules(context),
    )
    _check_names(settings, context)
    return Recipe(settings)


def _check_names(settings: tuple[Setting, ...], context: Context) -> None:
    engine = context.request.engine
    unknown = [s.name for s in settings if s.kind == "argument" and not engine.takes(s.name)]
    if unknown:
        raise NotComparable(
            "recipe.argument-unknown",
            expected="an EngineArgs with every argument of the recipe",
            found=f"{engine.dist} {engine.vllm} without {', '.join(unknown)}",
            where="vllm/engine/arg_utils.py",
            next="harness doctor, then a release of vLLM that it knows",
        )

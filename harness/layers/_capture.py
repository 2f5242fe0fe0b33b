"""What the engine's native capture cannot do, refused before an engine starts."""

from __future__ import annotations

import re

from harness.errors import NotComparable, Refused
from harness.layers._plan import LayerPlan


def check_capture(
    plan: LayerPlan,
    *,
    capture: str,
    model_is_deepseek: bool,
    engine_version: str | None,
    captures_final_depth: bool | None = None,
) -> None:
    """Refuse a plan that the engine's native capture would crash on or answer wrongly.

    Releases are those at which vLLM's source changed: native capture exists from 0.17.0, takes
    DeepSeek and Kimi from 0.18.0, and captures their depth L from 0.25.0.

    Args:
        plan: The resolved layers.
        capture: ``native`` is checked; other captures read every depth.
        model_is_deepseek: Whether the decoder is vLLM's DeepSeek-V2 backbone (Kimi is).
        engine_version: The release of vLLM, or None when unknown.
        captures_final_depth: What a look at the installed source said; it overrules the release.

    Raises:
        NotComparable: The release is unknown.
        Refused: The release cannot capture one of the depths.
    """
    if capture != "native":
        return
    release = _release(engine_version)
    where = f"vLLM {engine_version}, native capture"

    def refuse(id: str, expected: str, found: str, next: str) -> None:
        raise Refused(id, expected=expected, found=found, where=where, next=next)

    upgrade = "use a newer vLLM"
    if release < (0, 17, 0, 0):
        refuse("capture.native-absent", "vLLM 0.17.0 or newer", str(engine_version), upgrade)
    if not model_is_deepseek:
        return
    if release < (0, 18, 0, 0):
        refuse(
            "capture.native-model",
            "vLLM 0.18.0 or newer for DeepSeek and Kimi models",
            str(engine_version),
            upgrade,
        )
    final = captures_final_depth if captures_final_depth is not None else release >= (0, 25, 0, 0)
    if not final:
        refuse(
            "capture.native-final-depth",
            "vLLM 0.25.0 or newer, the first that captures depth L of DeepSeek and Kimi models",
            f"{engine_version} would return one state too few for depth {plan.num_layers}",
            upgrade,
        )
    if 0 in plan.engine_depths:
        refuse(
            "capture.native-depth-0",
            "depths of 1 or more on DeepSeek and Kimi models",
            "depth 0: the engine would die, since layer 0 has no residual yet",
            "leave depth 0 out",
        )


def _release(version: str | None) -> tuple[int, int, int, int]:
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?(.*)", version or "")
    if match is None:
        raise NotComparable(
            "engine.version-unknown",
            expected="a vLLM release such as 0.32.0",
            found=str(version),
            where="the engine's interpreter",
            next="harness doctor",
        )
    major, minor, patch, rest = match.groups()
    # A release candidate or development build may lack what the release has.
    early = re.match(r"\.?(a|b|rc|dev)\d", rest) is not None
    return int(major), int(minor), int(patch or 0), -1 if early else 0

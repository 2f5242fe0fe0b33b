"""Which tokens of a rendered conversation did the assistant write?

The rule is that of speculators 0.9: one row for every assistant turn that has context,
holding the conversation up to and with that turn as inference would have seen it. What the
generation prompt ends with is context (mask 0); what the full render adds, the answer and
its end-of-turn mark, is supervised (mask 1).

Two ways lead there, and they must give equal rows: speculators' own function, with its call
to a render server answered by the local template, or the same rule written here. A third
layout, one row a conversation with every answer supervised, is only possible when the
template renders history the same way whatever follows it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from harness.inside.chat import Renderer, first_line
from harness.inside.conversations import Conversation

UNLIMITED = sys.maxsize


class UnstableTemplate(ValueError):
    """The template renders history differently once an answer follows."""


@dataclass(frozen=True)
class Row:
    """One training row: ids and mask of equal length, and the answer it supervises.

    Attributes:
        input_ids: Token ids, at most the limit.
        loss_mask: 1 for supervised tokens.
        answer: Which assistant turn, from 1; 0 for a row that supervises all of them.
        truncated: Whether tokens were cut off at the limit.
    """

    input_ids: list[int]
    loss_mask: list[int]
    answer: int
    truncated: bool


RowMaker = Callable[[Conversation, int], list[Row]]


def boundary_rows(renderer: Renderer) -> RowMaker:
    """Rows by the rule above, from this module alone."""

    def make(conversation: Conversation, limit: int) -> list[Row]:
        turns, tools = conversation.normalised(), conversation.tools
        rows: list[Row] = []
        answer = 0
        for place, turn in enumerate(turns):
            if turn["role"] != "assistant" or place == 0:
                continue
            answer += 1
            context = renderer.ids(turns[:place], add_generation_prompt=True, tools=tools)
            if len(context) >= limit:
                continue
            start, full = _span(renderer, turns, place, tools, context)
            mask = [0] * start + [1] * (len(full) - start)
            rows.append(Row(full[:limit], mask[:limit], answer, len(full) > limit))
        return rows

    return make


def conversation_rows(renderer: Renderer) -> RowMaker:
    """One row a conversation with every answer supervised.

    The template's own generation marks are used where it has them; else each answer's span
    is found between two renders, which must be prefixes of the whole.
    """

    def make(conversation: Conversation, limit: int) -> list[Row]:
        turns, tools = conversation.normalised(), conversation.tools
        places = [p for p, t in enumerate(turns) if p and t["role"] == "assistant"]
        if not places:
            return []
        turns = turns[: places[-1] + 1]
        if renderer.marks_generations:
            full, mask = renderer.ids_and_mask(turns, tools=tools)
        else:
            full = renderer.ids(turns, add_generation_prompt=False, tools=tools)
            mask = [0] * len(full)
            for place in places:
                context = renderer.ids(turns[:place], add_generation_prompt=True, tools=tools)
                start, part = _span(renderer, turns, place, tools, context)
                if full[: len(part)] != part:
                    raise UnstableTemplate(
                        f"the render changes before turn {place} once later turns follow; "
                        "use one row a turn"
                    )
                mask[start : len(part)] = [1] * (len(part) - start)
        if not any(mask[:limit]):
            return []
        return [Row(full[:limit], mask[:limit], 0, len(full) > limit)]

    return make


def _span(
    renderer: Renderer,
    turns: Sequence[dict[str, Any]],
    place: int,
    tools: list[Any] | None,
    context: list[int],
) -> tuple[int, list[int]]:
    """Where the answer at ``place`` starts, and the render up to and with it."""
    full = renderer.ids(turns[: place + 1], add_generation_prompt=False, tools=tools)
    if full[: len(context)] == context:
        return len(context), full
    # The generation prompt itself diverges (an opened reasoning block, say): the answer then
    # starts where the renders part, provided that they part after the history.
    start = next(
        (i for i, (a, b) in enumerate(zip(context, full, strict=False)) if a != b),
        min(len(context), len(full)),
    )
    history = renderer.ids(turns[:place], add_generation_prompt=False, tools=tools)
    if full[: len(history)] != history or start < len(history):
        raise UnstableTemplate(
            f"the renders with and without the answer part inside the history of turn {place}"
        )
    return start, full


def speculators_rows(renderer: Renderer) -> RowMaker:
    """Rows by the installed speculators' own function.

    Raises:
        ImportError: speculators is missing, does not import, or is a release without it.
    """
    module = _speculators_module()

    def render(
        endpoint: str,
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool,
        tools: list[Any] | None = None,
        truncate_prompt_tokens: int | None = None,
        **_options: Any,
    ) -> list[int]:
        ids = renderer.ids(messages, add_generation_prompt=add_generation_prompt, tools=tools)
        return ids[:truncate_prompt_tokens]

    # Its only way to the template is a server's address; the name is replaced in this
    # process alone, where nothing else uses the module.
    module.render_conversation = render

    def make(conversation: Conversation, limit: int) -> list[Row]:
        turns = module._normalize_conversation([dict(turn) for turn in conversation.turns])
        made = module._render_boundary_rows(turns, "local", limit, tools=conversation.tools)
        rows = []
        for row in made:
            full = row["input_ids"]
            if len(full) == limit:
                full = renderer.ids(
                    row["conv"], add_generation_prompt=False, tools=conversation.tools
                )
            answer = sum(t["role"] == "assistant" for t in row["conv"][1:])
            cut = len(full) > len(row["input_ids"])
            rows.append(Row(list(row["input_ids"]), list(row["loss_mask"]), answer, cut))
        return rows

    return make


def speculators_version() -> str:
    """Version of the installed speculators, or ``none``."""
    try:
        return metadata.version("speculators")
    except metadata.PackageNotFoundError:
        return "none"


def _speculators_module() -> Any:
    version = speculators_version()
    if version == "none":
        raise ImportError("speculators is not installed")
    try:
        from speculators.data_generation import preprocessing as module
    # An import of many libraries: pydantic, transformers or torch of another release than it
    # was made for raise what they like.
    except Exception as error:
        raise ImportError(
            f"speculators {version} does not import: {type(error).__name__}: {first_line(error)}"
        ) from error
    try:
        module.render_conversation  # noqa: B018
        inspect.signature(module._normalize_conversation).bind([])
        inspect.signature(module._render_boundary_rows).bind([], "local", 1, tools=None)
    except (AttributeError, TypeError) as error:
        raise ImportError(
            f"speculators {version} has no boundary rows to call: {first_line(error)}"
        ) from error
    return module

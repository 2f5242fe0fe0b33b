"""``docs/patches.md``, made from the registry."""

from __future__ import annotations

from harness.patches._patch import Patch
from harness.patches._registry import PATCHES

_HEAD = """# Patches

speculators 0.3.0 drives vLLM from inside: it builds scheduler, executor and requests itself. Newer
vLLM refuses its calls, one after another, and behind the refusals rows come out wrong without a
word. A patch repairs one of these faults by replacing a name in speculators' own modules, in the
running process. No file is changed, and vLLM's own classes stay as they are: all that is put into
a module of vLLM is a name that it had before (`kv-planning`), for without it 0.3.0 cannot even be
imported.

```
harness patches check --python PYTHON        # needed, obsolete or broken there, and why
harness patches check --release 0.16.0       # the same of a recorded release
harness patches run -- PYTHON their_script.py ARGS
```

`run` starts a script with the needed patches in force in it and in every worker, and returns its
exit code. It refuses to start when one is broken, and each process says on stderr what is in
force. A patch that does not fit what is really there fails the import: nothing runs half patched.
`--trust-remote-code` allows the code that comes with a tokenizer.

Whether a patch is needed is read from the release's surface (`docs/surfaces.md`); the releases
below are a second word. The native capture (`harness extract`) needs none of them.
"""

_TAIL = """
## What they do not do

- They make 0.3.0's rows right, not its way out of the worker: tensors still travel through the
  RPC, which holds it at 8 to 10 % of plain prefill on an H200.
- `dtype="auto"` is 0.3.0's own: vLLM loads a float32 checkpoint in bfloat16 then.
- A wrapper is loaded with its vision tower: 0.3.0 sets no limit on images.
- 0.3.0 runs the code that comes with a model's configuration without asking.

*Made from `harness/patches` by `harness patches list --markdown`; do not edit.*
"""


def page() -> str:
    """Return the whole page."""
    rows = "".join(
        f"| [{patch.id}](#{patch.id}) | {patch.process} | {patch.releases} "
        f"| {'silent' if patch.silent else 'crash'} | {patch.summary} |\n"
        for patch in PATCHES
    )
    table = (
        "\n| patch | in | vLLM | fault | what it does |\n| --- | --- | --- | --- | --- |\n" + rows
    )
    return _HEAD + table + "".join(_section(patch) for patch in PATCHES) + _TAIL


def _section(patch: Patch) -> str:
    targets = ", ".join(f"`{change.name}`" for change in patch.changes)
    lines = [
        f"\n## {patch.id}\n",
        patch.summary,
        "",
        f"- **Without it**: {patch.fault}",
        f"- **Replaces**: {targets} in `{patch.module}`",
        f"- **Seam**: {f'`{patch.seam}`' if patch.seam else 'none at vLLM'}",
        f"- **Since**: {patch.upstream}",
        f"- **Retire when**: {patch.retire_when}",
    ]
    if patch.environment:
        named = ", ".join(f"`{name}={value}`" for name, value in patch.environment.items())
        lines.append(f"- **Sets, unless you did**: {named}")
    return "\n".join(lines) + "\n"

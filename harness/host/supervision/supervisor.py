"""Watches an engine through its load and its batches, and says when it cannot succeed any more.

A :class:`~harness.host.watch.Watcher`: it looks from the loop that waits for the engine, reads
what is new in the log, and every two seconds the processes and the machine. ``docs/supervisor.md``
has the phases, the fatal kinds and the policies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.host.supervision import aftermath, code_on_disk, fatal, loads, room
from harness.host.supervision.load import Load
from harness.host.supervision.loads import LoadKind
from harness.host.supervision.loglines import LogFollower, LogLine
from harness.host.supervision.phases import sight
from harness.host.supervision.policy import Action, Danger, Supervision
from harness.host.supervision.pulse import DeviceProbe, NoDevices
from harness.host.supervision.room import LinuxRoom, RoomProbe
from harness.host.supervision.stall import Stillness
from harness.host.watch import Call, Cut

_SETTLE_S = 1.0
"""A traceback goes on after its first fatal line: the cause is at its end."""

_MACHINE_S = 2.0
_CODE_EVERY = 5
_TELL_S = 1.0
_LINE_SHOWN = 300


class Supervisor:
    """Judges one engine from its start to its end.

    Args:
        supervision: What to do about what, and who listens.
        kind: What its load is like, for what to expect; None remembers and expects nothing.
        devices: Reads the GPUs it may use.
        machine: Tells how much room is left.
        code: Folders whose code must stay as it is.
        every_s: Seconds between two looks at processes and machine.
    """

    def __init__(
        self,
        supervision: Supervision,
        *,
        kind: LoadKind | None = None,
        devices: DeviceProbe | None = None,
        machine: RoomProbe | None = None,
        code: Sequence[Path] = code_on_disk.ROOTS,
        every_s: float = _MACHINE_S,
    ) -> None:
        self._supervision = supervision
        self._kind = kind
        self._devices: DeviceProbe = NoDevices() if devices is None else devices
        self._machine: RoomProbe = LinuxRoom() if machine is None else machine
        self._roots = tuple(code)
        self._every_s = min(every_s, supervision.stall_s / 4)
        self._stillness = Stillness(self._devices, supervision.stall_s)
        self._memory = aftermath.DeviceMemory(self._devices)
        self._call: Call | None = None
        self._log: LogFollower | None = None
        self._load: Load | None = None
        self._ending: _Ending | None = None
        self._warned: set[str] = set()
        self._killed = False
        self._low = 0
        self._looks = 0
        self._next_machine = 0.0
        self._next_tell = 0.0

    # What the loop calls.

    def begin(self, call: Call) -> None:
        """A call begins; the first one is the engine's start."""
        if self._log is None:
            self._log = LogFollower(call.log.path, call.log.begin)
            self._code = code_on_disk.read(self._roots)
            self._room = self._machine.room()
            self._memory.note()
        self._call = call
        self._load = None
        self._stillness.restart(call.begun)
        if call.op == "load":
            self._load = Load(call.begun, loads.expect(self._kind))
            self._tell(call.begun, new_phase=True)

    def look(self, now: float) -> Cut | None:
        """Look at the log, and every two seconds at processes and machine."""
        if self._call is None:
            return None
        quiet = not self._read_log(now)
        cut = self._fatal_line(now, quiet)
        if cut is None and now >= self._next_machine:
            self._next_machine = now + self._every_s
            cut = self._stalled(now) or self._short(now) or self._edited(now)
        if self._load is not None and now >= self._next_tell:
            self._tell(now)
        return cut

    def done(self, now: float) -> None:
        """The call has ended well; the time of a load is kept for the next one."""
        load, self._load = self._load, None
        self._call = None
        if load is None:
            return
        load.track.finish(now)
        self._supervision.on_progress(load.progress(now, new_phase=True))
        if self._kind is not None:
            loads.remember(self._kind, now - load.track.begun, load.track)

    def failed(self, now: float) -> Mapping[str, Any]:
        """The call has failed: say where a load was, and what the log's last lines mean."""
        self._read_log(now)
        facts: dict[str, Any] = {}
        words = []
        if self._load is not None:
            facts = self._load.facts(now)
            words.append(f"in {self._load.track.where}")
            if not self._killed:  # What ended it otherwise does not tell the time.
                words[0] = f"load ended at {self._load.times(now)}, {words[0]}"
        if self._ending is not None and not self._ending.kind.general and not self._killed:
            facts["fatal"] = self._ending.kind.id
            words.append(f"known: {self._ending.kind.means} ({self._ending.kind.source})")
        if self._log is not None:
            self._log.close()
        return {**facts, "where": "; ".join(words)}

    def ended(self) -> str:
        """Wait until the GPUs' memory is back, at most a minute."""
        return self._memory.wait_until_back()

    # The log.

    def _read_log(self, now: float) -> bool:
        """Take in what is new; whether there was anything."""
        lines = self._log.read() if self._log is not None else []
        for line in lines:
            self._hear(line, now)
        return bool(lines)

    def _hear(self, line: LogLine, now: float) -> None:
        if fatal.informational(line):
            return  # What a waiting engine repeats is no sign of life.
        self._stillness.sign(now)
        if self._load is not None and (seen := sight(line)) is not None:
            track = self._load.track
            before = track.phase
            if track.see(seen, now):
                self._tell(now, new_phase=track.phase is not before)
        kind = fatal.recognise(line)
        if kind is not None and not (kind.load_only and self._load is None):
            if self._ending is None or (self._ending.kind.general and not kind.general):
                begun = now if self._ending is None else self._ending.since
                self._ending = _Ending(kind, line, begun)
        elif self._ending is not None and fatal.raised(line):
            self._ending.raised_by(line)

    def _fatal_line(self, now: float, quiet: bool) -> Cut | None:
        ending = self._ending
        if ending is None or (not quiet and now < ending.since + _SETTLE_S):
            return None
        kind = ending.kind
        return self._act(
            Danger.LINE,
            now,
            f"{ending.line.who} says: {ending.text}",
            means=f"{kind.means} ({kind.source})",
            next=f"{kind.next}; or go on after such a line with line=warn",
            key=kind.id,
            fatal=kind.id,
            line=ending.line.text,
        )

    # Processes and machine.

    def _stalled(self, now: float) -> Cut | None:
        call = self._call
        if call is None or call.op == "start":
            return None  # Its deadline is a minute, and its processes are not known yet.
        stall = self._stillness.look(call.tree(), now)
        if stall is None:
            return None
        return self._act(
            Danger.STALL,
            now,
            stall.text,
            means="nothing moves: no log line, no CPU, no storage, no GPU",
            next="py-spy dump or the stacks in the log say where it waits; a longer "
            "--stall-deadline waits longer",
            only_warn=not stall.proved,
        )

    def _short(self, now: float) -> Cut | None:
        short = room.shortage(self._machine.room(), self._room)
        if short is None:
            self._low = 0
            return None
        self._low += 1
        if self._low < 2:  # One low reading may be a blip.
            return None
        name, text = short
        return self._act(
            Danger(name),
            now,
            text,
            means="the engine is about to run out of it",
            next="free memory, or raise the container's limits (--memory, --shm-size)",
            # A loaded engine has its segments; it may go on with what it has.
            only_warn=name == Danger.SHM and self._load is None,
        )

    def _edited(self, now: float) -> Cut | None:
        self._looks += 1
        if self._looks % _CODE_EVERY or Danger.CODE in self._warned:
            return None
        if self._action(Danger.CODE) is Action.OFF:
            return None
        names = code_on_disk.changed(self._code, self._roots)
        if not names:
            return None
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        return self._act(
            Danger.CODE,
            now,
            f"changed on disk since the start: {shown}",
            means="this load is one of other code than what lies there now",
            next="start again with the code as it is now",
            changed=names,
        )

    # What follows.

    def _action(self, danger: Danger) -> Action:
        return self._supervision.actions.get(danger, Action.WARN)

    def _act(
        self,
        danger: Danger,
        now: float,
        found: str,
        *,
        means: str,
        next: str,
        key: str = "",
        only_warn: bool = False,
        **details: Any,
    ) -> Cut | None:
        """Kill, warn once, or do nothing, as the policy says."""
        action = self._action(danger)
        if action is Action.KILL and not only_warn:
            self._killed = True
            load = self._load
            killed = f"killed at {load.times(now)}" if load else "killed"
            return Cut(
                expected="a load that can succeed" if load else "an engine that works",
                found=f"{killed}: {found}: {means}",
                next=next,
                details={
                    "danger": danger.value,
                    **details,
                    **(load.facts(now) if load else {}),
                },
            )
        key = key or danger.value
        if action is not Action.OFF and key not in self._warned:
            self._supervision.on_warning(f"{found}: {means}")
        self._warned.add(key)
        return None

    def _tell(self, now: float, *, new_phase: bool = False) -> None:
        self._next_tell = now + _TELL_S
        if self._load is not None:
            self._supervision.on_progress(self._load.progress(now, new_phase=new_phase))


class _Ending:
    """A fatal line, and the exception behind it where one follows."""

    def __init__(self, kind: fatal.FatalKind, line: LogLine, since: float) -> None:
        self.kind, self.line, self.since = kind, line, since
        self._raised = ""

    def raised_by(self, line: LogLine) -> None:
        """Keep the first exception that the same process writes after it."""
        if not self._raised and line.process == self.line.process:
            self._raised = line.text.strip()

    @property
    def text(self) -> str:
        said = self.line.text.strip()
        if self._raised and self.kind.general:
            said = f"{said} {self._raised}"
        return said if len(said) <= _LINE_SHOWN else said[: _LINE_SHOWN - 3] + "..."

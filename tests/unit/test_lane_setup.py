"""Making a lane's environment: stamps, refusals, pins, and the stand-in libraries."""

from __future__ import annotations

import ctypes
import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

ROOT = Path(__file__).parents[2]
LANES = ROOT / "ci" / "lanes"

# Cut from what readelf says about one library of torch's CUDA build.
READELF = """\
Dynamic section at offset 0x8be80 contains 36 entries:
  Tag        Type                         Name/Value
 0x0000000000000001 (NEEDED)             Shared library: [libc10.so]
 0x0000000000000001 (NEEDED)             Shared library: [libcudart.so.13]
 0x0000000000000001 (NEEDED)             Shared library: [libnccl.so.2]
 0x0000000000000001 (NEEDED)             Shared library: [libcusparse.so.12]
 0x0000000000000001 (NEEDED)             Shared library: [libcusparseLt.so.0]
 0x0000000000000001 (NEEDED)             Shared library: [libcuda.so.1]
 0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]
 0x000000000000000e (SONAME)             Library soname: [libtorch_cuda.so]

Symbol table '.dynsym' contains 9 entries:
   Num:    Value          Size Type    Bind   Vis      Ndx Name
     0: 0000000000000000     0 NOTYPE  LOCAL  DEFAULT  UND
     1: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND cudaFree@libcudart.so.13 (4)
     2: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND cudaGetErrorString@libcudart.so.13 (4)
     3: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND malloc@GLIBC_2.2.5 (3)
     4: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND ncclSend
     5: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND cusparseLtInit
     6: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND cuLaunchKernel
     7: 0000000000000000     0 FUNC    WEAK   DEFAULT  UND ncclWeak
     8: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND ncclHelper
     9: 0000000000012340    20 FUNC    GLOBAL DEFAULT   13 ncclHelper

Version symbols section '.gnu.version' contains 9 entries:
  000:   0 (*local*)       4 (libcudart.so.13)   3 (GLIBC_2.2.5)   1 (*global*)

Version needs section '.gnu.version_r' contains 3 entries:
 Addr: 0x0000000000001234  Offset: 0x001234  Link: 4 (.dynstr)
  000000: Version: 1  File: libcudart.so.13  Cnt: 1
  0x0010: Name: libcudart.so.13  Flags: none  Version: 4
  0x0020: Version: 1  File: libcusparse.so.12  Cnt: 1
  0x0030: Name: libcusparse.so.12  Flags: none  Version: 9
  0x0040: Version: 1  File: libc.so.6  Cnt: 1
  0x0050: Name: GLIBC_2.2.5  Flags: none  Version: 3
"""


def load(name: str) -> Any:
    """Import one of the lanes' scripts, which find each other beside themselves."""
    if str(LANES) not in sys.path:
        sys.path.append(str(LANES))
    return importlib.import_module(name)


stub_libs: Any = load("stub_libs")
cuda_stubs: Any = load("cuda_stubs")
numa_stub: Any = load("numa_stub")
refusals: Any = load("refusals")
setup: Any = load("setup")


def pins(lane: str) -> dict[str, str]:
    lines = (LANES / f"{lane}.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


class TestPins:
    def test_every_line_pins_one_version(self) -> None:
        lines = (LANES / "gen2.txt").read_text().splitlines()
        wrong = [
            line
            for line in lines
            if not re.fullmatch(r"#.*|[a-z0-9]+(-[a-z0-9]+)*==[0-9][a-z0-9.]*", line)
        ]
        assert wrong == []

    @pytest.mark.parametrize(
        "name", ["torchvision", "torchaudio", "torchcodec", "triton", "intel-openmp"]
    )
    def test_what_breaks_or_idles_on_cpu_is_left_out(self, name: str) -> None:
        assert name not in pins("gen2")

    def test_no_cuda_library_is_pinned(self) -> None:
        assert [name for name in pins("gen2") if name.startswith(("nvidia", "cuda"))] == [
            "nvidia-ml-py"
        ]

    def test_torch_is_pinned_without_a_local_version(self) -> None:
        # A pin of "+cpu" finds nothing where only the index's own build can be had.
        assert "+" not in pins("gen2")["torch"]

    def test_pip_itself_is_pinned(self) -> None:
        text = (LANES / "gen2.txt").read_text()
        assert setup.pip_requirement(text) == f"pip=={pins('gen2')['pip']}"

    def test_all_that_the_project_asks_for_is_pinned(self) -> None:
        tomllib = importlib.import_module("tomllib")
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        extras = project["optional-dependencies"]
        asked = [
            *project["dependencies"],
            *extras["cpu"],
            *extras["test"],
            *extras["dev"],
            *tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"],
        ]
        names = {re.split(r"[\[<>=~! ]", one)[0] for one in asked} - {project["name"]}
        assert names - pins("gen2").keys() == set()


class TestStamp:
    @pytest.fixture
    def lane(self, tmp_path: Path) -> Any:
        lane = setup.Lane("gen9", tmp_path)
        lane.pins.parent.mkdir(parents=True)
        lane.pins.write_text("pip==1\n")
        (tmp_path / "pyproject.toml").write_text("[project]\n")
        (tmp_path / "harness").mkdir()
        (tmp_path / "harness" / "__init__.py").write_text("")
        lane.env.parent.mkdir()
        return lane

    @pytest.fixture
    def steps(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Replace what costs minutes by notes of what was done."""
        done: list[str] = []

        def make_venv(lane: Any) -> None:
            done.append("venv")
            lane.python.parent.mkdir(parents=True)
            lane.python.symlink_to(sys.executable)

        monkeypatch.setattr(setup, "_make_venv", make_venv)
        monkeypatch.setattr(setup, "_install_pins", lambda lane: done.append("pins"))
        monkeypatch.setattr(setup, "_build_stubs", lambda lane: done.append("stubs"))
        monkeypatch.setattr(setup, "_run", lambda lane, *command: done.append("trial"))
        monkeypatch.setattr(setup, "_install_project", lambda lane: done.append("project"))
        monkeypatch.setattr(setup, "check_room", lambda folder, needed: None)
        return done

    EVERYTHING: ClassVar = ["venv", "pins", "stubs", "trial", "project"]

    def test_second_run_does_nothing(self, lane: Any, steps: list[str]) -> None:
        setup.make(lane)
        assert steps == self.EVERYTHING
        setup.make(lane)
        assert steps == self.EVERYTHING

    def test_changed_pin_makes_the_environment_anew(self, lane: Any, steps: list[str]) -> None:
        setup.make(lane)
        (lane.env / "left-over").touch()
        lane.pins.write_text("pip==2\n")
        setup.make(lane)
        assert steps == self.EVERYTHING * 2
        assert not (lane.env / "left-over").exists()

    def test_other_python_makes_the_environment_anew(
        self, lane: Any, steps: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        setup.make(lane)
        monkeypatch.setattr(setup.platform, "python_version", lambda: "3.99.0")
        setup.make(lane)
        assert steps == self.EVERYTHING * 2

    def test_changed_project_file_installs_only_the_project(
        self, lane: Any, steps: list[str]
    ) -> None:
        setup.make(lane)
        (lane.root / "pyproject.toml").write_text("[project]\nname = 'x'\n")
        setup.make(lane)
        assert steps == [*self.EVERYTHING, "project"]

    @pytest.mark.parametrize("step", ["_make_venv", "_install_pins", "_build_stubs", "_run"])
    def test_run_cut_short_is_made_anew(
        self, lane: Any, steps: list[str], monkeypatch: pytest.MonkeyPatch, step: str
    ) -> None:
        whole = getattr(setup, step)

        def cut(lane: Any, *command: str) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(setup, step, cut)
        with pytest.raises(KeyboardInterrupt):
            setup.make(lane)
        monkeypatch.setattr(setup, step, whole)
        steps.clear()
        setup.make(lane)
        assert steps == self.EVERYTHING

    def test_vanished_python_makes_the_environment_anew(self, lane: Any, steps: list[str]) -> None:
        setup.make(lane)
        lane.python.unlink()
        lane.python.symlink_to(lane.root / "gone")
        setup.make(lane)
        assert steps == self.EVERYTHING * 2

    def test_environment_of_somebody_else_is_left_alone(self, lane: Any, steps: list[str]) -> None:
        lane.env.mkdir()
        (lane.env / "theirs").touch()
        with pytest.raises(setup.LaneError, match=r"(?s)lane\.not-ours.*rm -r"):
            setup.make(lane)
        assert (lane.env / "theirs").exists()
        assert steps == []

    def test_broken_stamp_counts_as_cut_short(self, lane: Any) -> None:
        lane.env.mkdir()
        (lane.env / setup._STAMP).write_text("{")
        assert setup.read_stamp(lane.env) == {}


class TestRefusals:
    @pytest.mark.parametrize(
        ("output", "id"),
        [
            ("OSError: [Errno 28] No space left on device", "lane.disk-full"),
            (
                "WARNING: Retrying ... NameResolutionError(...)\nERROR: No matching distribution "
                "found for torch==2.13.0",
                "lane.no-network",
            ),
            ("ERROR: No matching distribution found for torch==2.13.0", "lane.no-wheel"),
            ("Segmentation fault", "lane.failed"),
        ],
    )
    def test_output_of_pip_is_explained(self, output: str, id: str, tmp_path: Path) -> None:
        failure = refusals.explain("pip install", output, tmp_path / "log")
        assert failure.id == id
        assert re.findall(r"^  (\w+):", str(failure), re.M) == [
            "expected",
            "found",
            "where",
            "next",
        ]

    def test_old_python_is_refused_by_name(self) -> None:
        with pytest.raises(refusals.LaneError, match=r"lane\.old-python(.|\n)*Python 3\.10\.9"):
            refusals.check_python((3, 10, 9))
        refusals.check_python((3, 11, 0))

    def test_full_disk_is_refused_before_the_start(self, tmp_path: Path) -> None:
        refusals.check_room(tmp_path, 1)
        with pytest.raises(refusals.LaneError, match=r"lane\.disk-full"):
            refusals.check_room(tmp_path, 1 << 60)

    def test_missing_compiler_says_what_it_is_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("CC", raising=False)
        with pytest.raises(refusals.LaneError, match=r"lane\.no-compiler(.|\n)*CUDA build"):
            refusals.find_compiler("torch came as its CUDA build")


class TestStubs:
    def test_every_missing_cuda_library_but_the_driver_is_named(self) -> None:
        reading = stub_libs.parse(READELF)
        assert cuda_stubs.missing([reading], present=["libnccl.so.2"]) == {
            "libcudart.so.13",
            "libcusparse.so.12",
            "libcusparseLt.so.0",
        }

    def plan(self) -> dict[str, Any]:
        reading = stub_libs.parse(READELF)
        names = cuda_stubs.missing([reading], present=[])
        return {one.soname: one for one in stub_libs.plan([reading], names, returns=100)}

    def test_symbols_go_to_the_library_that_is_asked_for_them(self) -> None:
        assert {name: one.symbols for name, one in self.plan().items()} == {
            "libcudart.so.13": {"libcudart.so.13": {"cudaFree", "cudaGetErrorString"}},
            "libnccl.so.2": {"": {"ncclSend"}},
            "libcusparse.so.12": {"libcusparse.so.12": set()},
            "libcusparseLt.so.0": {"": {"cusparseLtInit"}},
        }

    def test_version_without_symbols_is_kept(self) -> None:
        # The loader refuses a library that lacks a version it is asked for.
        assert "libcusparse.so.12 {" in self.plan()["libcusparse.so.12"].version_script()

    def test_functions_that_return_text_do_not_return_a_number(self) -> None:
        source = self.plan()["libcudart.so.13"].source()
        assert "long cudaFree(void) { return 100; }" in source
        assert "const char *cudaGetErrorString(void)" in source

    @pytest.mark.skipif(
        not (shutil.which("cc") and shutil.which("readelf")), reason="needs cc and readelf"
    )
    def test_library_loads_with_a_stub_in_place_of_the_one_it_was_linked_to(
        self, tmp_path: Path
    ) -> None:
        def cc(*arguments: str) -> None:
            subprocess.run(["cc", "-shared", "-fPIC", *arguments], cwd=tmp_path, check=True)

        # A name of its own: a machine may have the real libraries.
        (tmp_path / "real.c").write_text("int cuharness(void) { return 1; }\n")
        (tmp_path / "real.map").write_text("libcuharness.so.1 { global: cuharness; };\n")
        script = "-Wl,--version-script=real.map"
        cc("-Wl,-soname,libcuharness.so.1", script, "-o", "libcuharness.so.1", "real.c")
        (tmp_path / "user.c").write_text(
            "int cuharness(void); int ask(void){return cuharness();}\n"
        )
        link = ["user.c", "-L.", "-l:libcuharness.so.1", "-Wl,-rpath,$ORIGIN", "-Wl,-z,now"]
        cc("-o", "libtorch_cuda.so", *link)
        (tmp_path / "libcuharness.so.1").unlink()
        with pytest.raises(OSError, match="libcuharness"):
            ctypes.CDLL(str(tmp_path / "libtorch_cuda.so"))

        assert cuda_stubs.needs_stubs(tmp_path)
        assert [path.name for path in cuda_stubs.build(tmp_path, "cc")] == ["libcuharness.so.1"]

        assert ctypes.CDLL(str(tmp_path / "libtorch_cuda.so")).ask() == 100
        assert cuda_stubs.build(tmp_path, "cc") == ()

    @pytest.mark.skipif(
        not (shutil.which("cc") and shutil.which("readelf")), reason="needs cc and readelf"
    )
    def test_numa_stub_is_loaded_at_every_start_of_python(self, tmp_path: Path) -> None:
        (tmp_path / "vllm").mkdir()
        (tmp_path / "k.c").write_text(
            "int numa_available(void); int f(void){return numa_available();}"
        )
        command = ["cc", "-shared", "-fPIC", "-o", str(tmp_path / "vllm" / "_C.abi3.so")]
        subprocess.run([*command, str(tmp_path / "k.c")], check=True)
        library = numa_stub.build(tmp_path, "cc")
        (hook,) = tmp_path.glob("*.pth")
        asked = subprocess.run(
            [
                sys.executable,
                "-c",
                f"{hook.read_text()}print(ctypes.CDLL({str(library)!r}).numa_available())",
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        assert asked.stdout == "-1\n"

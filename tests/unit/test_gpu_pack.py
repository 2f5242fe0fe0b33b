"""Making the pack for a GPU box: what is cut, kept, refused, and the archive's bytes."""

from __future__ import annotations

import importlib
import os
import shutil
import struct
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

GPU = Path(__file__).parents[2] / "ci" / "gpu"
IMAGE, PTX = 2, 1


def load(name: str) -> Any:
    """Import one of the scripts, which find each other beside themselves."""
    if str(GPU) not in sys.path:
        sys.path.append(str(GPU))
    return importlib.import_module(name)


failures: Any = load("failures")
fatbins: Any = load("fatbins")
toolbox: Any = load("toolbox")
kernels: Any = load("kernels")
wheels: Any = load("wheels")
archive: Any = load("archive")
pack: Any = load("pack")


def entry(kind: int, arch: int, code: bytes) -> bytes:
    """One entry of a fat binary, padded to 8 bytes, as nvcc lays it out."""
    padded = code + bytes(-len(code) % 8)
    header = struct.pack("<HHIQI", kind, 0x101, 64, len(padded), len(code))
    return (header + bytes(8) + struct.pack("<I", arch)).ljust(64, b"\0") + padded


def container(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def library(*containers: bytes, section: bytes = b".nv_fatbin") -> bytes:
    """A 64-bit ELF file of two sections: device code, and the sections' names."""
    code, names = b"\0" * 8 + b"".join(containers), b"\0" + section + b"\0.names\0"
    at = 64
    table = at + len(code) + len(names)
    head = b"\x7fELF\x02\x01\x01".ljust(40, b"\0") + struct.pack("<Q", table)
    head = head.ljust(58, b"\0") + struct.pack("<HHH", 64, 2, 1)

    def row(name: int, offset: int, length: int) -> bytes:
        return struct.pack("<IIQQQQ", name, 1, 0, 0, offset, length).ljust(64, b"\0")

    rows = row(1, at, len(code)) + row(2 + len(section), at + len(code), len(names))
    return head + code + names + rows


def entries_of(data: bytes) -> list[list[tuple[int, int, bytes]]]:
    return [
        [(one.kind, one.arch, one.code) for one in found.entries]
        for found in fatbins.containers(data)
    ]


class FakeTools:
    """The toolbox without its programs: text is not compressed, and names are as they are."""

    def __init__(self) -> None:
        self.compiled: list[bytes] = []

    def nothing(self) -> bytes:
        return entry(IMAGE, 75, b"nothing")

    def decompress(self, code: bytes) -> bytes:
        return code

    def demangle(self, names: Any) -> str:
        return "\n".join(name.decode().replace("_Z", "") for name in names)

    def assemble(self, ptx: bytes, arch: int) -> bytes:
        self.compiled.append(ptx)
        return entry(IMAGE, arch, b"compiled")


class TestFatBinaries:
    two = container(entry(IMAGE, 80, b"old"), entry(IMAGE, 90, b"hopper"), entry(PTX, 90, b"text"))
    one = container(entry(IMAGE, 100, b"a newer one"))

    def trim(self, path: Path, keep: Any) -> Any:
        path.write_bytes(library(self.two, self.one))
        return fatbins.trim(path, keep)

    def test_entries_are_read_with_kind_architecture_and_code(self) -> None:
        assert entries_of(library(self.two, self.one)) == [
            [(IMAGE, 80, b"old"), (IMAGE, 90, b"hopper"), (PTX, 90, b"text")],
            [(IMAGE, 100, b"a newer one")],
        ]

    def test_only_what_is_kept_is_left_and_nothing_moves(self, tmp_path: Path) -> None:
        path = tmp_path / "library.so"
        tools = FakeTools()
        done = self.trim(path, kernels.native_or_ptx(tools, 90))
        data = path.read_bytes()
        assert entries_of(data) == [[(IMAGE, 90, b"hopper")], [(IMAGE, 75, b"nothing")]]
        whole = library(self.two, self.one)
        assert len(data) == len(whole)
        assert [one.header for one in fatbins.containers(data)] == [
            one.header for one in fatbins.containers(whole)
        ]
        assert b"a newer one" not in data
        assert b"text" not in data  # the rest is zeros, which compress to nothing
        assert (done.containers, done.after) == (2, 2 * 72)

    def test_file_keeps_its_mode_and_leaves_no_scratch(self, tmp_path: Path) -> None:
        path = tmp_path / "library.so"
        path.touch(mode=0o755)
        self.trim(path, lambda entries: entries[0].raw)
        assert path.stat().st_mode & 0o777 == 0o755
        assert [one.name for one in tmp_path.iterdir()] == ["library.so"]

    @pytest.mark.parametrize("kept", [b"", bytes(1000)])
    def test_empty_or_too_long_choice_is_refused_and_changes_nothing(
        self, tmp_path: Path, kept: bytes
    ) -> None:
        with pytest.raises(fatbins.Malformed):
            self.trim(tmp_path / "library.so", lambda entries: kept)
        assert (tmp_path / "library.so").read_bytes() == library(self.two, self.one)

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"\x7fELF\x02 and no more",
            library(two, section=b".something"),
            library(two)[:-64],
            library(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 1 << 40)),
            library(container(entry(IMAGE, 90, b"code")[:40])),
            library(container(struct.pack("<HHIQI", 2, 0, 64, 1 << 40, 0).ljust(64, b"\0"))),
        ],
    )
    def test_file_that_is_laid_out_otherwise_is_refused(self, tmp_path: Path, data: bytes) -> None:
        path = tmp_path / "library.so"
        path.write_bytes(data)
        with pytest.raises(fatbins.Malformed):
            fatbins.trim(path, lambda entries: entries[0].raw)
        assert path.read_bytes() == data

    def test_missing_or_other_library_is_refused_by_name(self, tmp_path: Path) -> None:
        choice = kernels.Choice(90, (), {"vllm/_C.so": kernels.native_or_ptx})
        with pytest.raises(failures.GpuError, match=r"gpu\.other-library(.|\n)*vllm/_C\.so"):
            pack.trim(tmp_path, choice, FakeTools())


class TestKernels:
    half, bf16, int4 = kernels._HALF, kernels._BF16, kernels._INT4

    def kept(self, *entries: bytes) -> tuple[list[tuple[int, int, bytes]], FakeTools]:
        tools = FakeTools()
        (found,) = fatbins.containers(library(container(*entries)))
        raw = kernels.native_or_ptx(tools, 90)(found.entries)
        return entries_of(library(container(raw)))[0], tools

    def test_newest_ptx_stays_where_there_is_no_image(self) -> None:
        found, tools = self.kept(
            entry(PTX, 75, b".entry _Zold("), entry(PTX, 80, b".entry _Zrepack(")
        )
        assert found == [(PTX, 80, b".entry _Zrepack(")]
        assert tools.compiled == []

    def test_ptx_for_newer_gpus_or_fp8_does_not_stay(self) -> None:
        assert self.kept(entry(PTX, 100, b".entry _Zx("))[0] == [(IMAGE, 75, b"nothing")]
        assert self.kept(entry(PTX, 89, b".entry _Zx("))[0] == [(IMAGE, 75, b"nothing")]

    @pytest.mark.parametrize(
        ("name", "stays"),
        [
            (f"marlin_moe_wna16::Marlin<{bf16}, {int4}, x>", (IMAGE, 90, b"compiled")),
            (f"marlin_moe_wna16::Marlin<{half}, {int4}, x>", (IMAGE, 75, b"nothing")),
            (f"marlin::Marlin<{bf16}, x, {half}>", (IMAGE, 75, b"nothing")),
        ],
    )
    def test_marlin_of_int4_experts_is_compiled_and_half_precision_goes(
        self, monkeypatch: pytest.MonkeyPatch, name: str, stays: tuple[int, int, bytes]
    ) -> None:
        monkeypatch.setattr(FakeTools, "demangle", lambda self, names: name)
        found, tools = self.kept(entry(PTX, 80, b".entry _Zmarlin("))
        assert found == [stays]
        assert len(tools.compiled) == (stays[2] == b"compiled")

    @pytest.mark.parametrize(
        ("kernel", "stays"),
        [
            ("192>, ", False),
            ("cute::tuple<cute::C<1>, cute::C<2>, cute::C<64> >, 512, cutlass::bfloat16_t,", True),
            ("cute::tuple<cute::C<1>, cute::C<2>, cute::C<64> >, 512, cutlass::half_t,", False),
            ("cute::tuple<cute::C<1>, cute::C<2>, cute::C<96> >, 96, cutlass::bfloat16_t,", False),
        ],
    )
    def test_attention_stays_for_wanted_types_and_head_sizes(
        self, monkeypatch: pytest.MonkeyPatch, kernel: str, stays: bool
    ) -> None:
        other = "cute::tuple<cute::C<1>, cute::C<2>, cute::C<96> >, 96, cutlass::half_t,"
        tools = FakeTools()
        monkeypatch.setattr(tools, "demangle", lambda names: f"{kernel}\n{other}")
        image = entry(IMAGE, 90, b".text._Zattention")
        (found,) = fatbins.containers(library(container(image)))
        kept = kernels.attention(tools, 90)(found.entries)
        assert kept == (image if stays else tools.nothing())

    def test_dropped_folders_files_and_tests_do_not_stay(self) -> None:
        choice = pack.choose(90)
        gone = ["vllm/vllm-rs", "vllm/third_party/deep_gemm/a/b.py", "x/tests/a.py"]
        kept = ["vllm/vllm-rs.py", "vllm/third_party/deep_gemm_x.py", "x/tests.py"]
        assert [kernels.stays(name, choice) for name in gone + kept] == [False] * 3 + [True] * 3

    def test_architecture_without_a_choice_is_refused(self) -> None:
        with pytest.raises(failures.GpuError, match=r"gpu\.unknown-arch(.|\n)*: 90\n(.|\n)*80"):
            pack.choose(80)


def make_wheel(folder: Path, name: str, files: dict[str, bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    with zipfile.ZipFile(path, "w") as wheel:
        for member, text in files.items():
            wheel.writestr(member, text)
    return path


class TestWheels:
    def test_every_line_pins_one_version_and_vllm_is_among_them(self) -> None:
        lines = (GPU / "wheels.txt").read_text().splitlines()
        pins = wheels.parse_pins(lines, where="wheels.txt")
        assert len({pin.name for pin in pins}) == len(pins)
        assert "vllm==0.26.0" in map(str, pins)
        heavy = [pin.name for pin in pins if pin.name.startswith(("torch", "nvidia"))]
        assert heavy == ["nvidia-ml-py"]  # plain Python, 60 kB: the driver's counters

    @pytest.mark.parametrize("line", ["vllm", "vllm>=1", "--index-url x", "vllm==1 ; x"])
    def test_line_that_pins_nothing_is_refused(self, line: str) -> None:
        with pytest.raises(failures.GpuError, match=r"gpu\.bad-pin"):
            wheels.parse_pins([line], where="here")

    def test_wheels_that_are_there_are_not_fetched(self, tmp_path: Path) -> None:
        path = make_wheel(tmp_path, "Some_Name-1.0-py3-none-any.whl", {})
        assert wheels.collect([wheels.Pin("some-name", "1.0")], tmp_path) == (path,)

    def test_failed_download_says_pips_last_words(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pip = tmp_path / "python"
        pip.write_text("#!/bin/sh\necho 'ERROR: No matching distribution for '$* >&2; exit 1\n")
        pip.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(pip))
        with pytest.raises(failures.GpuError, match=r"gpu\.no-wheel(.|\n)*No matching .*x==1"):
            wheels.collect([wheels.Pin("x", "1")], tmp_path)

    def test_extra_that_is_not_pure_python_is_refused(self, tmp_path: Path) -> None:
        make_wheel(tmp_path, "x-1-cp312-cp312-manylinux_2_17_x86_64.whl", {})
        with pytest.raises(failures.GpuError, match=r"gpu\.not-pure"):
            wheels.collect([wheels.Pin("x", "1", pure=True)], tmp_path)

    def test_two_wheels_of_one_pin_are_refused(self, tmp_path: Path) -> None:
        for machine in ("x86_64", "aarch64"):
            make_wheel(tmp_path, f"x-1-cp312-cp312-manylinux_2_17_{machine}.whl", {})
        with pytest.raises(failures.GpuError, match=r"gpu\.wheels(.|\n)*aarch64"):
            wheels.collect([wheels.Pin("x", "1")], tmp_path)

    def test_python_parts_are_unpacked_where_pip_would_put_them(self, tmp_path: Path) -> None:
        files = {
            "x/a.py": b"a",
            "x-1.data/purelib/y.py": b"y",
            "x-1.data/platlib/z.so": b"z",
            "x-1.data/scripts/run": b"",
            "x/gone.py": b"",
        }
        wheel = make_wheel(tmp_path, "x-1-py3-none-any.whl", files)
        site = tmp_path / "site"
        wheels.unpack(wheel, site, lambda name: name != "x/gone.py")
        found = {p.relative_to(site).as_posix() for p in site.rglob("*") if p.is_file()}
        assert found == {"x/a.py", "y.py", "z.so"}

    @pytest.mark.parametrize("damage", ["cut", "flipped", "escapes"])
    def test_damaged_wheel_is_refused_by_name(self, tmp_path: Path, damage: str) -> None:
        files = {"../x" if damage == "escapes" else "x.py": b"text" * 100}
        wheel = make_wheel(tmp_path / "wheels", "x-1-py3-none-any.whl", files)
        data = wheel.read_bytes()
        if damage == "cut":
            wheel.write_bytes(data[: len(data) // 2])
        elif damage == "flipped":
            wheel.write_bytes(data.replace(b"texttext", b"testtext", 1))
        with pytest.raises(failures.GpuError, match=r"gpu\.cut-wheel(.|\n)*x-1-py3"):
            wheels.unpack(wheel, tmp_path / "site", lambda name: True)
        assert not (tmp_path / "x").exists()


needs_xz = pytest.mark.skipif(shutil.which("xz") is None, reason="needs xz")


class TestArchive:
    def folder(self, place: Path, names: list[str]) -> Path:
        for name in names:
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)
        return place

    @needs_xz
    def test_same_files_give_the_same_bytes_in_sorted_order(self, tmp_path: Path) -> None:
        names = ["b/2.py", "a.py", "b/1.py", "b-c/x.py"]
        first = self.folder(tmp_path / "first", names)
        second = self.folder(tmp_path / "second", names[::-1])
        os.utime(second / "a.py", (1, 1))
        (second / "a.py").chmod(0o600)
        sizes = [
            archive.write(folder, tmp_path / f"{folder.name}.tar.xz", "xz")
            for folder in (first, second)
        ]
        packed = (tmp_path / "first.tar.xz").read_bytes()
        assert packed == (tmp_path / "second.tar.xz").read_bytes()
        assert sizes == [len(packed)] * 2
        with tarfile.open(tmp_path / "first.tar.xz") as tar:
            found = tar.getnames()
        assert found == ["a.py", "b", "b/1.py", "b/2.py", "b-c", "b-c/x.py"]

    def test_failing_xz_leaves_the_archive_of_before(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path / "site", [f"{i}.py" for i in range(300)])
        target = tmp_path / "out.tar.xz"
        target.write_text("before")
        xz = tmp_path / "xz"
        xz.write_text("#!/bin/sh\necho 'Write error' >&2; exit 1\n")
        xz.chmod(0o755)
        with pytest.raises(failures.GpuError, match=r"gpu\.tool-failed(.|\n)*Write error"):
            archive.write(folder, target, str(xz))
        assert target.read_text() == "before"
        assert sorted(one.name for one in tmp_path.iterdir()) == ["out.tar.xz", "site", "xz"]


def fake_programs(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("#!/bin/sh\nexit 0\n")
        (folder / name).chmod(0o755)
    return folder


class TestTools:
    def test_every_missing_program_is_named_at_once(self, tmp_path: Path) -> None:
        path = fake_programs(tmp_path / "bin", "zstd")
        with pytest.raises(
            failures.GpuError, match=r"gpu\.no-tool(.|\n)*missing: c\+\+filt, xz, ptxas, fatbinary"
        ):
            toolbox.find_tools({"PATH": str(path), "CUDA": str(tmp_path)})

    def test_named_toolkit_comes_before_the_path(self, tmp_path: Path) -> None:
        names = ("c++filt", "zstd", "xz", "ptxas", "fatbinary")
        path = fake_programs(tmp_path / "path", *names)
        cuda = fake_programs(tmp_path / "cuda" / "bin", "ptxas", "fatbinary")
        tools = toolbox.find_tools({"PATH": str(path), "CUDA": str(cuda.parent)})
        assert tools.programs["ptxas"] == str(cuda / "ptxas")
        assert tools.programs["xz"] == str(path / "xz")

    def test_failing_program_is_quoted(self, tmp_path: Path) -> None:
        (tmp_path / "ptxas").write_text(
            "#!/bin/sh\necho 'Unsupported .version 9.9' >&2\nexit 255\n"
        )
        (tmp_path / "ptxas").chmod(0o755)
        tools = toolbox.Toolbox({"ptxas": str(tmp_path / "ptxas")})
        with pytest.raises(failures.GpuError, match=r"gpu\.tool-failed(.|\n)*Unsupported"):
            tools.assemble(b"", 90)

    def test_full_disk_is_refused_before_the_start(self, tmp_path: Path) -> None:
        with pytest.raises(failures.GpuError, match=r"gpu\.disk-full"):
            failures.check_room(tmp_path, 1 << 60)


class TestCommandLine:
    @needs_xz
    def test_wheels_become_one_archive_with_its_facts(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        device = library(container(entry(IMAGE, 80, b"old"), entry(IMAGE, 90, b"new")))
        folder = tmp_path / "wheels"
        make_wheel(folder, "v-1-cp312-cp312-linux_x86_64.whl", {"v/c.so": device, "v/fa2.so": b""})
        make_wheel(folder, "e-2-py3-none-any.whl", {"e.py": b"e"})
        pins = tmp_path / "wheels.txt"
        pins.write_text("# a comment\nv==1\n")
        choice = kernels.Choice(90, ("v/fa2.so",), {"v/c.so": kernels.native_or_ptx})
        monkeypatch.setattr(pack, "_PINS", pins)
        monkeypatch.setattr(pack, "CHOICES", {90: choice})
        monkeypatch.setattr(toolbox.Toolbox, "nothing", lambda self: entry(IMAGE, 75, b"nothing"))
        programs = fake_programs(tmp_path / "bin", "c++filt", "zstd", "ptxas", "fatbinary")
        monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
        out = tmp_path / "new folder" / "site.tar.xz"
        assert pack.main([str(out), "--wheels", str(folder), "--extra", "e==2"]) == 0
        with tarfile.open(out) as tar:
            assert tar.getnames() == ["e.py", "harness-pack.json", "v", "v/c.so"]
            found = tar.extractfile("v/c.so")
            assert found is not None
            assert entries_of(found.read()) == [[(IMAGE, 90, b"new")]]
            told = tar.extractfile("harness-pack.json")
            assert told is not None
            assert b'"e==2"' in told.read()

    def test_missing_tools_are_told_by_the_script_itself(self, tmp_path: Path) -> None:
        out = tmp_path / "site.tar.xz"
        done = subprocess.run(
            [sys.executable, str(GPU / "pack.py"), str(out)],
            env={"PATH": str(tmp_path), "CUDA": str(tmp_path)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 3
        assert "gpu.no-tool" in done.stderr
        assert not out.exists()

